/* What memory of a device a program holds, command by command: from its first use to its last each temporary has storage. */
#include "impl.h"

#include <stdlib.h>

struct walk { const struct prog *p; struct prog_live *to; int64_t now; };

static void touch(struct walk *w, const struct prog_cmd *c)
{
	for (uint32_t k = 0; k < c->nopnd; k++) {
		struct prog_held *h = &w->to->held[w->p->opnd[c->opnd + k].buf];
		if (h->first < 0)
			*h = (struct prog_held){ w->now, w->now, c->site };
		h->last = w->now;
	}
}

/* What was there before a loop and is used in it is there until it ends. */
static void lives(struct walk *w, uint32_t b)
{
	for (uint32_t i = 0; i < w->p->block[b].n; i++) {
		const struct prog_cmd *c = &w->p->block[b].cmd[i];
		int64_t begin = w->now++;
		touch(w, c);
		for (uint32_t k = 0; k < c->nblock; k++)
			lives(w, w->p->sub[c->block + k]);
		for (uint32_t k = 0; k < w->p->nbuf && (c->op == CMD_LOOP || c->op == CMD_WHILE); k++)
			if (w->to->held[k].first >= 0 && w->to->held[k].first <= begin && w->to->held[k].last > begin)
				w->to->held[k].last = w->now - 1;
	}
}

static bool temporary(const struct walk *w, uint32_t k) { return w->p->buf[k].kind == BUF_TEMP && w->p->buf[k].alias < 0 && w->to->held[k].first >= 0; }

/* Temporary bytes by command, and the command with most of them. */
static void bytes(struct walk *w, struct arena *a)
{
	struct prog_live *to = w->to;
	int64_t sum = 0, *more = ARENA_NEW(a, int64_t, w->now + 2);
	to->ncmd = w->now;
	to->live = more;
	for (uint32_t k = 0; k < w->p->nbuf; k++)
		if (temporary(w, k)) {
			more[to->held[k].first] += w->p->buf[k].size;
			more[to->held[k].last + 1] -= w->p->buf[k].size;
		}
	for (int64_t i = 0; i < w->now; i++) {
		more[i] = sum += more[i];
		if (sum > to->most) {
			to->most = sum;
			to->peak = i;
		}
	}
}

const char *prog_site_text(const struct prog *p, uint32_t s) { return s < p->nsite && p->site[s].text[0] ? p->site[s].text : "(no line)"; }

static int larger(const void *x, const void *y)
{
	const struct prog_like *a = x, *b = y;
	int64_t m = a->bytes * a->n, n = b->bytes * b->n;
	int by_site = strcmp(a->site, b->site);
	return m != n ? (m < n) - (m > n) : by_site ? by_site : (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

/* Those that are alive at the peak; such of one size from one line are one entry. */
static void alive(struct walk *w, struct arena *a)
{
	struct prog_live *to = w->to;
	struct prog_like *x = to->like = ARENA_NEW(a, struct prog_like, w->p->nbuf + 1);
	for (uint32_t k = 0; k < w->p->nbuf; k++) {
		const struct prog_held *h = &to->held[k];
		if (!temporary(w, k) || h->first > to->peak || h->last < to->peak || !w->p->buf[k].size)
			continue;
		size_t j = 0;
		while (j < to->nlike && (x[j].bytes != w->p->buf[k].size || strcmp(x[j].site, prog_site_text(w->p, h->site))))
			j++;
		x[j] = (struct prog_like){ w->p->buf[k].size, x[j].n + 1, prog_site_text(w->p, h->site) };
		to->nlike += j == to->nlike;
	}
	qsort(x, to->nlike, sizeof *x, larger);
}

void prog_live(struct arena *a, const struct prog *p, struct prog_live *to)
{
	struct walk w = { p, to, 0 };
	*to = (struct prog_live){ .held = ARENA_NEW(a, struct prog_held, p->nbuf + 1) };
	for (uint32_t k = 0; k < p->nbuf; k++)
		to->held[k].first = -1;
	if (p->nblock)
		lives(&w, 0);
	bytes(&w, a);
	alive(&w, a);
}
