/* Symmetric memory without JAX: a ring of puts with signals, then an all-reduce on a stream.
 *
 *     cc -o symmetric symmetric.c $(pkg-config --cflags --libs rondo-sym)
 *     rondo launch -n 4 ./symmetric
 */
#include <stdio.h>
#include <stdlib.h>

#include <rondo/coll/coll.h>
#include <rondo/sym/sym.h>

enum { WORDS = 1 << 16 };

static void need(struct err *e, const char *what)
{
	if (!e)
		return;
	fprintf(stderr, "symmetric: %s: %s\n", what, e->msg);
	exit(1);
}

/* What the stream is to do: the sum of one number of each PE. */
struct job { struct sym_world *w; struct coll *c; int me, n, *all; double mine, sum; };

static struct err *reduce(void *user)
{
	struct job *j = user;
	struct sym_ep *ep = sym_ep_of(j->w, j->me);
	struct coll_group g = { j->n, j->me, j->all };
	struct coll_red add = { .op = RED_add, .dtype = DT_f64 };
	int *peer = malloc((size_t)j->n * sizeof *peer), npeer = 0;

	for (int i = 0; i < j->n; i++)
		if (i != j->me)
			peer[npeer++] = i;
	sym_begin(ep, &(struct sym_launch){ .prog = 1, .name = "symmetric", .peer = peer, .npeer = npeer });
	struct err *e = coll_all_reduce(j->c, &g, 0, &add, 1, &j->mine, &j->sum);
	sym_end(ep, e);
	free(peer);
	return e;
}

int main(void)
{
	struct kv *meet;
	struct sym_world *w;
	struct sym_ctx *cx;
	struct sym_mem *data, *sig;
	struct sym_stream *st;

	/* Who else there is: `rondo launch`, mpirun or srun have said so in the environment. */
	need(sym_boot_env(&meet), "finding the others");
	need(sym_open(&(struct sym_opts){ .nlocal = 1, .boot = meet, .threads = 1 }, &w), "joining the job");
	int me = sym_first(w), n = sym_npe(w), next = (me + 1) % n, before = (me + n - 1) % n;
	struct sym_team *team = sym_team_world(w, me);
	need(sym_ctx_new(w, me, SYM_PRIVATE, &cx), "a context");
	need(sym_mem_new(team, WORDS * sizeof(double), "data", &data), "memory");
	need(sym_mem_new(team, sizeof(uint64_t), "signal", &sig), "memory");

	/* Each PE writes its numbers into the memory of the next one, and tells it. */
	double *out = malloc(WORDS * sizeof *out), *in = sym_mem_at(data), sum = 0;
	for (int i = 0; i < WORDS; i++)
		out[i] = me + 1;
	sym_ctx_put_signal(cx, data, 0, out, WORDS * sizeof *out, sig, 0, SYM_SET, 1, next);
	need(sym_wait_until(cx, sig, 0, SYM_U64, SYM_EQ, 1, before, NULL), "waiting for the neighbour");
	for (int i = 0; i < WORDS; i++)
		sum += in[i];
	need(sym_ctx_quiet(cx), "the ring");

	/* All sums together, on a stream: this thread could go on with other things meanwhile. */
	struct coll_table table;
	need(coll_table_get(&table), "the machine's table");
	struct job j = { .w = w, .c = coll_new(w, me, &table), .me = me, .n = n, .all = malloc((size_t)n * sizeof *j.all), .mine = sum };
	for (int i = 0; i < n; i++)
		j.all[i] = i;
	need(sym_stream_new(w, me, "sums", &st), "a stream");
	sym_stream_collective(st, "all_reduce", reduce, &j);
	need(sym_stream_sync(st), "the sum");

	double want = (double)WORDS * n * (n + 1) / 2;
	printf("PE %d of %d (%s): from %d %.0f, from all %.0f\n", me, n, sym_road(w, next), before, sum, j.sum);
	sym_stream_free(st);
	coll_free(j.c);
	free(j.all);
	free(out);
	sym_mem_free(sig);
	sym_mem_free(data);
	sym_ctx_free(cx);
	sym_close(w);
	sym_boot_free(meet);
	return j.sum == want ? 0 : 1;
}
