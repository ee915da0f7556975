/* Attention over a sharded sequence goes round.
 *
 * The partitioner gathers what the devices have of the keys, or of a gradient's queries, and scatters sums of what each gives for all of them.
 * Here each turn has a part of that, which goes on to the next: the blocks of one device (ring_loop.c), or of one host (ring_hosts.c). */
#include "ring.h"

struct rings { const struct pass_opts *o; const struct ir_fn *fn; struct ring *const *r; bool hosts; };

static ir_val emit(void *user, struct ir_b *b, int k, const ir_val *in)
{
	const struct rings *s = user;
	b->loc = s->r[k]->att->loc;
	return s->hosts ? ring_turns(s->o, b, s->fn, s->r[k], in) : ring_loop(b, s->fn, s->r[k], in);
}

/* Those for which it pays are done: in turns of hosts, or in loops over devices. */
static void replace(const struct pass_opts *o, struct ir_module *m, struct arena *a, ir_fnid f, bool hosts)
{
	const struct ir_fn *fn = ir_fn_of(m, f);
	struct ring **r = ARENA_NEW(a, struct ring *, fn->op.n + 1), *at = ARENA_NEW(a, struct ring, 1);
	struct region *g = ARENA_NEW(a, struct region, fn->op.n + 1);
	int n = 0;
	for (size_t i = 0; i < fn->op.n; i++)
		if (ring_find(m, fn, (int)i, at) && (hosts ? ring_hosts(o, m, fn, at) : ring_loops(o, m, at))) {
			g[n] = (struct region){ .op = at->op, .nop = at->nop, .in = at->in, .nin = at->att->nin, .out = at->out, .nout = (size_t)at->nres };
			r[n++] = at;
			at = ARENA_NEW(a, struct ring, 1);
		}
	if (n)
		pass_replace(m, f, ir_rebuild(m, pass_replace_regions(m, a, fn, g, n, &(struct region_change){ .region = emit, .user = &(struct rings){ o, fn, r, hosts }, .in_order = true })));
}

struct err *pass_ring(const struct pass_opts *o, struct ir_module *m)
{
	struct arena a;
	int n;
	if (!pass_has(m, IR_all_gather) || (!pass_has(m, IR_attention) && !pass_has(m, IR_attention_grad)))
		return NULL;
	arena_init(&a);
	const ir_fnid *f = ir_reachable(&a, m, &n);
	for (int k = 0; k < n; k++)
		for (int hosts = 1; hosts >= 0; hosts--)
			replace(o, m, &a, f[k], hosts);
	arena_fini(&a);
	return NULL;
}
