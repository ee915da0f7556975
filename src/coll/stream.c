/* Collectives on streams: the arguments of a call wait in the queue, and a stream's thread makes the call. */
#include <stdlib.h>

#include "impl.h"

struct late {
	struct coll *c;
	enum coll_kind kind;
	struct coll_group g;
	struct coll_red r;
	int64_t n;                        /* elements of a reduction, bytes of the others */
	int from, to;                     /* ranks; from: the root of a broadcast */
	bool exclusive;
	const void *src;
	void *dst;
	int pe[];
};

static struct err *run(void *user)
{
	const struct late *l = user;
	const struct coll_group *g = &l->g;
	const uint32_t site = (uint32_t)l->kind + 1;

	if (!l->c || !l->c->stream)
		return ERR(INVALID, "what coll_new_stream gave is for streams, and nothing else is");

	switch (l->kind) {
	case COLL_all_reduce: return coll_all_reduce(l->c, g, site, &l->r, l->n, l->src, l->dst);
	case COLL_reduce_scatter: return coll_reduce_scatter(l->c, g, site, &l->r, l->n, l->src, l->dst);
	case COLL_all_gather: return coll_all_gather(l->c, g, site, l->n, l->src, l->dst);
	case COLL_all_to_all: return coll_all_to_all(l->c, g, site, l->n, l->src, l->dst);
	case COLL_broadcast: return coll_broadcast(l->c, g, site, l->from, l->n, l->src, l->dst);
	case COLL_scan: return coll_scan(l->c, g, site, &l->r, l->exclusive, l->n, l->src, l->dst);
	default:
		if (l->from < -1 || l->from >= g->n || l->to < -1 || l->to >= g->n)
			return ERR(INVALID, "a permute from rank %d to rank %d of %d", l->from, l->to, g->n);
		return coll_permute(l->c, site, l->from < 0 ? -1 : g->pe[l->from], l->to < 0 ? -1 : g->pe[l->to], l->n, l->src, l->dst);
	}
}

static void put(struct coll *c, struct sym_stream *s, struct sym_team *t, const struct late *x)
{
	int n = sym_team_n(t);
	struct late *l = mem_alloc(sizeof *l + (size_t)n * sizeof *l->pe);

	*l = *x;
	l->c = c;
	for (int i = 0; i < n; i++)
		l->pe[i] = sym_team_pe(t, i);
	l->g = (struct coll_group){ n, sym_team_me(t), l->pe };
	sym_stream_collective(s, t, prog_coll_name[x->kind], run, l, free);
}

/* None is found to be wrong when its turn comes. */
static struct coll_red red(const struct coll_red *r) { return r ? *r : (struct coll_red){ .op = RED_COUNT }; }

void coll_stream_all_reduce(struct coll *c, struct sym_stream *s, struct sym_team *t, const struct coll_red *r, int64_t count, const void *src, void *dst)
{
	put(c, s, t, &(struct late){ .kind = COLL_all_reduce, .r = red(r), .n = count, .src = src, .dst = dst });
}

void coll_stream_reduce_scatter(struct coll *c, struct sym_stream *s, struct sym_team *t, const struct coll_red *r, int64_t count, const void *src, void *dst)
{
	put(c, s, t, &(struct late){ .kind = COLL_reduce_scatter, .r = red(r), .n = count, .src = src, .dst = dst });
}

void coll_stream_all_gather(struct coll *c, struct sym_stream *s, struct sym_team *t, int64_t bytes, const void *src, void *dst)
{
	put(c, s, t, &(struct late){ .kind = COLL_all_gather, .n = bytes, .src = src, .dst = dst });
}

void coll_stream_all_to_all(struct coll *c, struct sym_stream *s, struct sym_team *t, int64_t bytes, const void *src, void *dst)
{
	put(c, s, t, &(struct late){ .kind = COLL_all_to_all, .n = bytes, .src = src, .dst = dst });
}

void coll_stream_broadcast(struct coll *c, struct sym_stream *s, struct sym_team *t, int root, int64_t bytes, const void *src, void *dst)
{
	put(c, s, t, &(struct late){ .kind = COLL_broadcast, .from = root, .n = bytes, .src = src, .dst = dst });
}

void coll_stream_permute(struct coll *c, struct sym_stream *s, struct sym_team *t, int from, int to, int64_t bytes, const void *src, void *dst)
{
	put(c, s, t, &(struct late){ .kind = COLL_permute, .from = from, .to = to, .n = bytes, .src = src, .dst = dst });
}

void coll_stream_scan(struct coll *c, struct sym_stream *s, struct sym_team *t, const struct coll_red *r, bool exclusive, int64_t count, const void *src, void *dst)
{
	put(c, s, t, &(struct late){ .kind = COLL_scan, .r = red(r), .exclusive = exclusive, .n = count, .src = src, .dst = dst });
}
