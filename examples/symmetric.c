/* Symmetric memory without JAX: a ring of puts with signals, then an all-reduce on a stream.
 *
 *     cc -o symmetric symmetric.c $(pkg-config --cflags --libs rondo-sym)
 *     rondo launch -n 4 ./symmetric
 */
#include <stdio.h>
#include <stdlib.h>

#include <rondo/coll/coll.h>
#include <rondo/plan/plan.h>
#include <rondo/sym/sym.h>

enum { WORDS = 1 << 16 };

static void need(struct err *e, const char *what)
{
	if (!e)
		return;
	fprintf(stderr, "symmetric: %s: %s\n", what, e->msg);
	exit(1);
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
	static struct plan_table machine;
	struct coll_table table;
	need(plan_table_get(&machine), "the machine's table");
	coll_table_from(&table, machine.rule);
	struct coll *c = coll_new_stream(w, me, &table);
	const struct coll_red add = { .op = RED_add, .dtype = DT_f64 };
	double all;
	need(sym_stream_new(w, me, "sums", &st), "a stream");
	coll_stream_all_reduce(c, st, team, &add, 1, &sum, &all);
	need(sym_stream_sync(st), "the sum");

	double want = (double)WORDS * n * (n + 1) / 2;
	printf("PE %d of %d (%s): from %d %.0f, from all %.0f\n", me, n, sym_road(w, next), before, sum, all);
	sym_stream_free(st);
	coll_free(c);
	free(out);
	sym_mem_free(sig);
	sym_mem_free(data);
	sym_ctx_free(cx);
	sym_close(w);
	sym_boot_free(meet);
	return all == want ? 0 : 1;
}
