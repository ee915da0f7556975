/* Permutes, and all_gathers, whose result is read where it lies.
 *
 * Who lends tells each PE that reads it where it is; the line is returned at once.  The loan itself goes back by a count of its own, a word
 * in the lender's heap for each reader: so loans may be open while other messages come and go, may be many at once, and may be
 * given back in any order.  A loan is begun as often by all whom it links, for their programs are one: who gives back the n-th time
 * writes n.  Lines are told before any is waited for, and a wait is for what comes before it in the program (prog.h): no circle. */
#include <stdlib.h>

#include "impl.h"

struct told { uint64_t off, words, bytes, pe; };
_Static_assert(sizeof(struct told) <= SYM_INLINE, "it fits a line");

struct coll_loan {
	const struct prog_coll *c;
	int from, to;             /* PEs one link away, -1: none */
	int around;               /* PEs of the cycle of links; 0: it has ends */
	int nsource, nreader;     /* whose this one sees where they lie, who sees its; k + 1 links away */
	int *source, *reader;
	bool all;                 /* every other PE of the cycle is among both: all tell all */
	int me, *member;          /* then the cycle in the order that all its members know, this one in it */
	struct seen { const char *at; uint64_t words; } *seen;       /* of each source: where it lies; its words in its heap */
	size_t words;             /* this one's */
	uint64_t begun;           /* times that it was lent */
	bool told, shown;         /* what is to be given back now; the last time it was shown alone */
	const char *own, *before; /* what is lent, or shown; and was before that */
};

/* PEs along link from pos that map each other with it, at most n; of one link: that one alone; of more: all on the way, or none. */
static int along(const struct coll_cx *cx, const int64_t *link, int n, int *pe)
{
	int k = 0;

	for (int at; k < n && (at = prog_link(link, cx->pos, k + 1)) >= 0 && at != cx->pos; k++)
		pe[k] = cx->pe[at];
	return k;
}

/* Do all that the links join with pos map each other? */
static bool near(const struct coll_cx *cx, const int64_t *from, const int64_t *to)
{
	int host = sym_host_of(cx->c->world, cx->pe[cx->pos]);

	for (int way = 0; way < 2; way++)
		for (int at = cx->pos, k = 0; k < cx->p->ndev; k++) {
			at = (int)(way ? to : from)[at];
			if (at < 0 || at == cx->pos)
				break;
			if (sym_host_of(cx->c->world, cx->pe[at]) != host || !sym_mapped(cx->c->world, cx->pe[at]))
				return false;
		}
	return true;
}

struct coll_loan *coll_loan_new(const struct coll_cx *cx, const struct prog_coll *c)
{
	const int64_t *from = cx->p->table[c->pairs].v, *to = cx->p->table[c->pairs + 1].v;
	struct coll_loan *l = mem_alloc(sizeof *l);
	int first = cx->pos, n = 0;

	*l = (struct coll_loan){ .c = c, .from = from[cx->pos] < 0 ? -1 : cx->pe[from[cx->pos]], .to = to[cx->pos] < 0 ? -1 : cx->pe[to[cx->pos]] };
	l->source = mem_alloc(sizeof *l->source * (size_t)c->hops);
	l->reader = mem_alloc(sizeof *l->reader * (size_t)c->hops);
	l->seen = mem_alloc(sizeof *l->seen * (size_t)c->hops);
	for (int at = cx->pos; at >= 0 && (!n || at != cx->pos); at = (int)to[at], n++)
		first = MIN(first, at);
	l->around = from[cx->pos] < 0 || prog_link(from, cx->pos, n) != cx->pos ? 0 : n;
	l->nsource = along(cx, from, c->hops, l->source);
	l->nreader = along(cx, to, c->hops, l->reader);
	bool pair = c->hops == 1 && c->kind == COLL_permute;
	if (!pair && !near(cx, from, to))
		l->nsource = l->nreader = 0;
	if (pair) {
		l->nsource -= l->nsource && !sym_mapped(cx->c->world, l->source[0]);
		l->nreader -= l->nreader && !sym_mapped(cx->c->world, l->reader[0]);
	}
	l->all = l->around > 2 && l->nsource == l->around - 1 && l->around <= MAX_ROW;
	if (l->all) {
		l->member = mem_alloc(sizeof *l->member * (size_t)n);
		for (int k = 0, at = first; k < n; k++, at = (int)to[at]) {
			l->member[k] = cx->pe[at];
			l->me = at == cx->pos ? k : l->me;
		}
	}
	return l;
}

void coll_loan_free(struct coll_loan *l)
{
	if (!l)
		return;
	free(l->source);
	free(l->reader);
	free(l->seen);
	free(l->member);
	free(l);
}

/* Is what comes from the neighbour seen where it lies; what goes to the other one? */
static bool sees(const struct coll_cx *cx, const struct coll_loan *l) { return l->nsource > 0 || l->from < 0 || l->from == sym_ep_pe(cx->c->ep); }
static bool seen(const struct coll_cx *cx, const struct coll_loan *l) { return l->nreader > 0 || l->to < 0 || l->to == sym_ep_pe(cx->c->ep); }

bool coll_loan_copies(const struct coll_loan *l) { return l->around != 1 && ((l->from >= 0 && !l->nsource) || (l->to >= 0 && !l->nreader)); }
size_t coll_loan_words(const struct prog_coll *c) { return ((size_t)c->hops * 8 + 63) & ~(size_t)63; }

void coll_loan_begin(struct coll_loan *l, char *words)
{
	memset(words, 0, coll_loan_words(l->c));
	l->words = (size_t)(uintptr_t)words;
	l->begun = 0;
	l->told = l->shown = false;
}

/* As the others do. */
static struct err *exchange(struct coll_cx *cx, struct coll_loan *l, uint32_t site, const struct told *own)
{
	struct sym_ep *ep = cx->c->ep;
	struct sym_msg m[MAX_ROW];
	size_t at[MAX_ROW], words[MAX_ROW];
	struct call q = { cx->c, ep, site, l->around, l->me, l->member, COLL_direct };

	if (l->all) {
		TRY(loan_exchange(&q, (int64_t)own->bytes, own->off | (size_t)own->pe << 48, own->words, at, words));
		for (int k = 0; k < l->nsource; k++) {
			int j = rank_after(&q, q.n - 1 - k);
			l->seen[k] = (struct seen){ sym_at(ep, (int)(at[j] >> 48), at[j] & (((size_t)1 << 48) - 1), own->bytes, NULL), words[j] };
		}
		return NULL;
	}
	for (int k = 0; k < l->nreader; k++)
		TRY(sym_slot_put(ep, l->reader[k], site, own, sizeof *own));
	for (int k = 0; k < l->nsource; k++) {
		TRY(recv_bytes(&q, l->source[k], SYM_SLOT_MSG, sizeof *own, &m[0]));
		const struct told *its = m[0].data;
		TRY(same_size(&q, l->source[k], its->bytes, (int64_t)own->bytes));
		l->seen[k] = (struct seen){ sym_at(ep, (int)its->pe, its->off, own->bytes, NULL), its->words };
		sym_return(ep, l->source[k], false);
	}
	return NULL;
}

void coll_show(struct coll_loan *l, const void *src)
{
	if (l->told)
		return;
	l->before = l->own;
	l->own = src;
	l->shown = true;
}

struct err *coll_lend(struct coll_cx *cx, struct coll_loan *l, uint32_t site, const void *src)
{
	struct told own = { .bytes = (uint64_t)(l->c->outer * l->c->inner) };
	size_t off;
	int pe = sym_whose(cx->c->ep, src, &off);

	l->before = l->own;
	l->own = src;
	l->shown = false;
	l->begun++;
	l->told = true;
	if (!l->nsource && !l->nreader)
		return NULL;
	if (pe < 0)
		return ERR(INTERNAL, "what a device lends is in no heap that others see");
	own.off = off;
	own.pe = (uint64_t)pe;
	own.words = l->words - (size_t)(uintptr_t)sym_ep_base(cx->c->ep);
	return exchange(cx, l, site, &own);
}

struct err *coll_next(struct coll_cx *cx, struct coll_loan *l, uint32_t site, int hop, const void *src, char *own, char **at)
{
	int64_t n = l->c->outer * l->c->inner;
	int k = l->around ? hop % l->around : hop;
	bool in = sees(cx, l), out = seen(cx, l);

	*at = own;
	if (!in || !out)
		TRY(coll_permute_by(cx->c, site, l->c->algo, in ? -1 : l->from, out ? -1 : l->to, n, src, in ? NULL : own, NULL, false));
	if (!in)
		return NULL;
	if (k > l->nsource)           /* beyond the end of the links */
		memset(own, 0, (size_t)n);
	else
		*at = (char *)(uintptr_t)(k ? l->seen[k - 1].at : l->own);
	return NULL;
}

struct err *coll_all(struct coll_cx *cx, struct coll_loan *l, uint32_t site, char *src, char *const *own, char **at)
{
	int64_t bytes = l->c->outer * l->c->inner;
	int n = l->around, rank = cx->p->group[l->c->group].rank[cx->pos];

	at[rank] = src;
	for (int k = 1, j, before = rank; k < n; k++, before = j) {
		j = (rank - k + n) % n;
		at[j] = l->nsource ? (char *)(uintptr_t)l->seen[k - 1].at : own[j];
		if (!l->nsource)              /* round the ring */
			TRY(coll_permute_by(cx->c, site, l->c->algo, l->from, l->to, bytes, at[before], own[j], NULL, false));
	}
	return NULL;
}

void coll_back(struct coll_cx *cx, struct coll_loan *l)
{
	for (int k = 0; k < l->nsource && l->told; k++)
		sym_count(cx->c->ep, l->source[k], l->seen[k].words + (size_t)k * 8, l->begun);
	l->told = false;
}

struct err *coll_wait(struct coll_cx *cx, struct coll_loan *l, int but)
{
	uint64_t open = but && !l->shown ? 1 : 0;

	if (!l->nreader || l->begun <= open)
		return NULL;
	TRY(sym_counted(cx->c->ep, l->reader, l->nreader, l->words - (size_t)(uintptr_t)sym_ep_base(cx->c->ep), l->begun - open));
#ifdef __x86_64__
	/* The next thing that happens is that it is written, while readers have its lines. */
	for (int64_t i = 0; but && i < MIN(l->c->outer * l->c->inner, 65536); i += 64)
		__asm__ volatile("prefetchw %0" :: "m"(l->before[i]));
#endif
	return NULL;
}
