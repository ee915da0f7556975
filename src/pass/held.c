/* What memory a device needs for a compiled program, and the temporaries that are alive when it needs most. */
#include "passes.h"

#include <stdlib.h>

enum { MOST = 8 };

/* A temporary: the commands, by number, from which to which it is needed, and the site of the one that first uses it. */
struct held { int64_t first, last; uint32_t site; };
struct walk { const struct prog *p; struct held *held; int64_t now; };

static void touch(struct walk *w, const struct prog_cmd *c)
{
	for (uint32_t k = 0; k < c->nopnd; k++) {
		struct held *h = &w->held[w->p->opnd[c->opnd + k].buf];
		if (h->first < 0)
			*h = (struct held){ w->now, w->now, c->site };
		h->last = w->now;
	}
}

/* What was there before a loop and is used in it is there until it ends. */
static void block(struct walk *w, uint32_t b)
{
	for (uint32_t i = 0; i < w->p->block[b].n; i++) {
		const struct prog_cmd *c = &w->p->block[b].cmd[i];
		int64_t begin = w->now++;
		touch(w, c);
		for (uint32_t k = 0; k < c->nblock; k++)
			block(w, w->p->sub[c->block + k]);
		for (uint32_t k = 0; k < w->p->nbuf && (c->op == CMD_LOOP || c->op == CMD_WHILE); k++)
			if (w->held[k].first >= 0 && w->held[k].first <= begin && w->held[k].last > begin)
				w->held[k].last = w->now - 1;
	}
}

static bool temporary(const struct walk *w, uint32_t k) { return w->p->buf[k].kind == BUF_TEMP && w->p->buf[k].alias < 0 && w->held[k].first >= 0; }

/* The command during which most bytes are needed: *most of them. */
static int64_t peak(const struct walk *w, struct arena *a, int64_t *most)
{
	int64_t *more = ARENA_NEW(a, int64_t, w->now + 2), sum = 0, at = 0;
	*most = 0;
	for (uint32_t k = 0; k < w->p->nbuf; k++)
		if (temporary(w, k)) {
			more[w->held[k].first] += w->p->buf[k].size;
			more[w->held[k].last + 1] -= w->p->buf[k].size;
		}
	for (int64_t i = 0; i <= w->now; i++) {
		sum += more[i];
		if (sum > *most) {
			*most = sum;
			at = i;
		}
	}
	return at;
}

static const char *site(const struct prog *p, uint32_t s) { return s < p->nsite && p->site[s].text ? p->site[s].text : "(no line)"; }

/* Temporaries of one size from one place. */
struct like { int64_t bytes, n; uint32_t site; };

static int larger(const void *x, const void *y)
{
	const struct like *a = x, *b = y;
	int64_t m = a->bytes * a->n, n = b->bytes * b->n;
	return m != n ? (m < n) - (m > n) : a->site != b->site ? (a->site > b->site) - (a->site < b->site) : (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

static void alive(struct str *s, struct arena *a, const struct walk *w)
{
	struct like *x = ARENA_NEW(a, struct like, w->p->nbuf + 1);
	int64_t most, at = peak(w, a, &most), rest = 0;
	size_t n = 0;
	for (uint32_t k = 0; k < w->p->nbuf; k++) {
		const struct held *h = &w->held[k];
		if (!temporary(w, k) || h->first > at || h->last < at || !w->p->buf[k].size)
			continue;
		size_t j = 0;
		while (j < n && (x[j].bytes != w->p->buf[k].size || strcmp(site(w->p, x[j].site), site(w->p, h->site))))
			j++;
		x[j].bytes = w->p->buf[k].size;
		x[j].site = j < n ? x[j].site : h->site;
		x[j].n++;
		n += j == n;
	}
	if (!n)
		return;
	qsort(x, n, sizeof *x, larger);
	str_add(s, "  temporaries alive at the peak: ");
	pass_add_bytes(s, (double)most);
	str_add(s, "\n");
	for (size_t i = 0; i < n; i++) {
		if (i >= MOST) {
			rest += x[i].bytes * x[i].n;
			continue;
		}
		struct str size = {0};
		pass_add_bytes(&size, (double)x[i].bytes);
		if (x[i].n > 1)
			str_addf(&size, " x%lld", (long long)x[i].n);
		str_addf(s, "    %-14s%s\n", size.p, site(w->p, x[i].site));
		str_free(&size);
	}
	if (rest) {
		str_add(s, "    and ");
		pass_add_bytes(s, (double)rest);
		str_add(s, " in smaller ones\n");
	}
}

void pass_explain_memory(struct str *s, struct arena *a, const struct ir_module *m, const struct prog *p)
{
	int64_t arg, res, shared;
	prog_sizes(p, &arg, &res, &shared);
	str_add(s, "memory of a device: ");
	pass_add_bytes(s, (double)(arg + res - shared + p->zone));
	str_add(s, " at most\n  arguments ");
	pass_add_bytes(s, (double)arg);
	str_add(s, ", results ");
	pass_add_bytes(s, (double)res);
	str_add(s, " (in the storage of donated arguments: ");
	pass_add_bytes(s, (double)shared);
	str_add(s, "), temporary ");
	pass_add_bytes(s, (double)p->zone);
	str_add(s, ", constants ");
	pass_add_bytes(s, (double)p->ndata);
	str_add(s, "\n");
	struct walk w = { .p = p, .held = ARENA_NEW(a, struct held, p->nbuf + 1) };
	for (uint32_t k = 0; k < p->nbuf; k++)
		w.held[k].first = -1;
	if (p->nblock)
		block(&w, 0);
	alive(s, a, &w);
	for (uint32_t i = 0; i < p->narg; i++)
		if (m->arg[i].donor && p->arg[i].alias < 0)
			str_addf(s, "  argument %u is donated, but no result can take its storage\n", i);
}
