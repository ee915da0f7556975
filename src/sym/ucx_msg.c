/* Messages between processes, over UCX: what comes is done in its turn. */
#include "ucx.h"

#if __has_include(<ucp/api/ucp.h>)

#include <stdlib.h>

enum { SMALL = 1 << 10 };

/* What is received straight into a heap. */
struct landing { struct ucx *x; struct head h; };

/* What comes and goes with every message is kept: messages by how much data is copied into them. */
static struct spare bare = SPARE(sizeof(struct msg)), small = SPARE(sizeof(struct msg) + SMALL), full = SPARE(sizeof(struct msg) + COPY), waitings = SPARE(sizeof(struct waiting)), landings = SPARE(sizeof(struct landing));

/* --- receiving: inside progress, so under the lock ------------------------------------------------- */

static char *place(struct ucx *x, const struct head *h, size_t n)
{
	struct sym_world *w = x->w;

	if (!sym_local(w, h->pe) || h->off > w->region.each || n > w->region.each - h->off)
		return NULL;
	return w->region.base + (size_t)(h->pe - w->first) * w->region.each + h->off;
}

void ucx_down(struct ucx *x, int from, _Atomic uint32_t *left)
{
	atomic_fetch_sub_explicit(left, 1, memory_order_release);
	atomic_fetch_sub_explicit(&x->open[from - x->w->first], 1, memory_order_release);
}

void ucx_fetched(struct ucx *x, uint64_t cookie, bool lost)
{
	struct fetch *f = &x->get[cookie - 1];
	_Atomic uint32_t *left = f->left;

	f->left = NULL;
	x->idle = MIN(x->idle, (size_t)cookie - 1);
	if (!f->dst)
		return;
	if (lost || f->lost) {
		memset(f->dst, 0, f->n);
		sym_lost_data(x->w, f->from, f->proc);
	}
	ucx_down(x, f->from, left);
}

/* No answers will come from proc any more. */
static void forsake(struct ucx *x, int proc, enum sym_life how)
{
	sym_gone(x->w, proc, how);
	for (size_t i = 0; i < x->nget; i++) {
		struct fetch *f = &x->get[i];
		if (f->left && f->proc == proc && !f->busy)
			ucx_fetched(x, i + 1, true);
		else if (f->left && f->proc == proc)
			f->lost = true;           /* the library ends what it has begun */
	}
}

/* A jump to a guard would leave the lock closed, and pass the library. */
void ucx_give_up(struct ucx *x, int proc)
{
	log_line(LOG_WARN, "out of host memory: messages between this process and process %d are lost", proc);
	x->poor = true;
	forsake(x, proc, SYM_DEAD);
}

/* What changes memory, and whose turn has come.  What a PUT brought is in its place already. */
static void act(struct ucx *x, const struct head *h)
{
	struct head l = *h;

	if (h->kind == PUT)
		return;
	if (h->kind == PUT_LINE)
		l.off = h->cookie;
	char *at = place(x, &l, h->kind == AMO ? h->n : h->n * 8);
	if (h->kind != AMO && at)
		sym_deliver(x->w, h->pe, at, h->word, (int)h->n);
	if (h->kind == AMO) {
		struct head r = { VALUE, 8, x->w->proc, h->pe, 0, 0, h->cookie, { 0 } };
		if (at && h->n) {
			r.word[0] = sym_amo_at(at, (int)h->n, (enum sym_amo)h->word[0], h->word[1], h->word[2]);
			sym_notify(x->w, h->pe);
		}
		if (h->cookie)
			ucx_post(x, h->from, &r, NULL, 0, true, 0, NULL);
	}
}

/* Do what waited for number l->next, one after the other. */
static void advance(struct ucx *x, struct link *l)
{
	for (bool more = true; more;) {
		more = false;
		for (struct waiting **q = &l->line; *q; q = &(*q)->next)
			if ((*q)->h.seq == l->next) {
				struct waiting *v = *q;
				*q = v->next;
				act(x, &v->h);
				spare_give(&waitings, v);
				l->next++;
				more = true;
				break;
			}
	}
}

static void in_turn(struct ucx *x, struct link *l, const struct head *h)
{
	if (h->seq == l->next) {
		act(x, h);
		l->next++;
		advance(x, l);
		return;
	}
	struct waiting *v = spare_take(&waitings);
	if (!v) {
		ucx_give_up(x, h->from);
		return;
	}
	v->h = *h;
	v->next = l->line;
	l->line = v;
}

void ucx_drop(struct link *l)
{
	for (struct waiting *v; (v = l->line);) {
		l->line = v->next;
		spare_give(&waitings, v);
	}
}

static void landed(void *request, ucs_status_t status, size_t n, void *user)
{
	struct landing *g = user;

	if (g->h.kind == DATA)
		ucx_fetched(g->x, g->h.cookie, status != UCS_OK);
	else if (status == UCS_OK)
		in_turn(g->x, &g->x->link[g->h.from], &g->h);
	spare_give(&landings, g);
	if (request)
		ucx.ucp_request_free(request);
}

static struct fetch *asked(struct ucx *x, const struct head *h, size_t n)
{
	if (h->cookie == 0 || h->cookie > x->nget)
		return NULL;
	struct fetch *f = &x->get[h->cookie - 1];
	return f->left && f->n == n && f->proc == h->from ? f : NULL;
}

ucs_status_t ucx_receive(void *user, const void *header, size_t nheader, void *data, size_t n, const ucp_am_recv_param_t *p)
{
	struct ucx *x = user;
	struct head h;

	if (nheader != sizeof h)
		return UCS_OK;
	memcpy(&h, header, sizeof h);
	if (h.from < 0 || h.from >= x->w->nproc || !x->link)
		return UCS_OK;
	struct link *l = &x->link[h.from];
	if (h.kind == HELLO) {
		l->greeted |= !memcmp(h.word, x->token, sizeof h.word);
		return UCS_OK;
	}
	if (h.kind == BYE) {
		forsake(x, h.from, SYM_LEFT);
		return UCS_OK;
	}
	if ((h.kind == LINE && h.n >= 1 && h.n <= 8) || (h.kind == AMO && (h.n == 0 || h.n == 4 || h.n == 8))) {
		in_turn(x, l, &h);
		return UCS_OK;
	}
	if (h.kind == VALUE) {
		struct fetch *f = asked(x, &h, 8);
		if (f && f->dst)
			memcpy(f->dst, h.word, 8);
		if (f)
			ucx_fetched(x, h.cookie, false);
		return UCS_OK;
	}
	if (h.kind == GET) {
		char *at = place(x, &h, h.n);
		struct head r = { DATA, h.n, x->w->proc, h.pe, 0, 0, h.cookie, { 0 } };
		if (at)
			ucx_post(x, h.from, &r, at, h.n, false, 0, NULL);
		return UCS_OK;
	}
	if (h.kind != PUT && h.kind != DATA && (h.kind != PUT_LINE || h.n < 1 || h.n > 8))
		return UCS_OK;
	struct fetch *f = h.kind == DATA ? asked(x, &h, n) : NULL;
	char *to = h.kind != DATA ? place(x, &h, n) : f ? f->dst : NULL;
	if (f && !to)
		ucx_fetched(x, h.cookie, false);
	if (!to)
		return UCS_OK;
	if (!(p->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
		memcpy(to, data, n);
		if (f)
			ucx_fetched(x, h.cookie, false);
		else
			in_turn(x, l, &h);
		return UCS_OK;
	}
	struct landing *g = spare_take(&landings);
	if (!g) {
		if (f)
			ucx_fetched(x, h.cookie, true);
		ucx_give_up(x, h.from);
		return UCS_OK;
	}
	*g = (struct landing){ x, h };
	if (f)
		f->busy = true;
	ucp_request_param_t q = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.recv_am = landed, .user_data = g };
	ucs_status_ptr_t r = ucx.ucp_am_recv_data_nbx(x->worker, data, to, n, &q);
	if (!UCS_PTR_IS_PTR(r))
		landed(NULL, UCS_PTR_STATUS(r), n, g);
	return UCS_INPROGRESS;
}

/* --- sending: under the lock ------------------------------------------------------------------------- */

static size_t long_of(const struct msg *m) { return m->n > WHOLE ? m->n : 0; }

/* m has gone, or never will. */
static void over(struct msg *m)
{
	m->x->flying--;
	if (m->left) {
		if ((*m->at = m->next))
			m->next->at = m->at;
		ucx_down(m->x, m->pe, m->left);
	}
	spare_give(m->of, m);
}

static void sent(void *request, ucs_status_t status, void *user)
{
	struct msg *m = user;
	struct ucx *x = m->x;
	int proc = m->proc;

	x->link[proc].under -= long_of(m);
	over(m);
	ucx.ucp_request_free(request);
	ucx_flow(x, proc);
}

static void send_now(struct msg *m)
{
	struct link *l = &m->x->link[m->proc];
	ucp_request_param_t q = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = sent, .user_data = m };

	if (!l->ep) {                         /* it has died */
		over(m);
		return;
	}
	size_t n = long_of(m);
	l->under += n;
	if (!UCS_PTR_IS_PTR(ucx.ucp_am_send_nbx(l->ep, 0, &m->h, sizeof m->h, m->src, m->n, &q))) {
		l->under -= n;
		over(m);
	}
}

void ucx_flow(struct ucx *x, int proc)
{
	struct link *l = &x->link[proc];

	for (struct msg *m; (m = l->first) && (!l->ep || !l->under || l->under + m->n <= UNDER);) {
		l->first = m->after;
		send_now(m);
	}
}

/* What the library has it sends in its order: behind a long message a question, or the answer to an announcement, would wait until all of that is there, and both ways
 * of a link would go in turn.  So long messages wait here, but for a few. */
void ucx_post(struct ucx *x, int proc, const struct head *h, const void *data, size_t n, bool copy, int from, _Atomic uint32_t *left)
{
	struct spare *of = !copy || !n ? &bare : n <= SMALL ? &small : &full;
	struct link *l = &x->link[proc];
	struct msg *m = spare_take(of);

	if (!m) {
		if (left)
			ucx_down(x, from, left);
		ucx_give_up(x, proc);
		return;
	}
	m->h = *h;
	m->of = of;
	m->x = x;
	m->left = left;
	m->pe = from;
	m->proc = proc;
	m->src = copy ? m->data : data;
	m->n = n;
	m->after = NULL;
	if (left) {
		if ((m->next = x->lent))
			m->next->at = &m->next;
		m->at = &x->lent;
		x->lent = m;
	}
	if (copy && n)
		memcpy(m->data, data, n);
	x->flying++;
	if (!long_of(m)) {
		send_now(m);
		return;
	}
	*(l->first ? &l->last->after : &l->first) = m;
	l->last = m;
	ucx_flow(x, proc);
}

bool ucx_turn(struct ucx *x)
{
	unsigned n = 0, k;

	while ((k = ucx.ucp_worker_progress(x->worker)))
		n += k;
	return n;
}

void ucx_end(struct ucx *x, int proc)
{
	ucp_ep_h ep = x->link[proc].ep;
	ucp_request_param_t q = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE };

	x->link[proc].ep = NULL;
	ucx_flow(x, proc);
	ucs_status_ptr_t r = ep ? ucx.ucp_ep_close_nbx(ep, &q) : NULL;
	if (UCS_PTR_IS_PTR(r))
		ucx.ucp_request_free(r);
}

void ucx_cut(struct ucx *x, int proc)
{
	ucx_end(x, proc);
	forsake(x, proc, SYM_DEAD);
}

void ucx_lost(void *user, ucp_ep_h ep, ucs_status_t s)
{
	struct ucx *x = user;

	for (int k = 0; k < x->w->nproc; k++)
		if (x->link[k].ep == ep) {
			x->link[k].ep = NULL;
			ucx_flow(x, k);
			forsake(x, k, SYM_DEAD);
		}
}

#endif
