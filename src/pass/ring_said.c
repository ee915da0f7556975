/* What rondo explain says of an attention over a sequence that devices share: how it gets what others have, how even its work is, and what else was to be had. */
#include "ring.h"

enum { LATE = 1000 };        /* nanoseconds that are worth a word */

static int hosts_of(const struct pass_opts *o, const struct ir_module *m, const struct ring *r)
{
	const struct ir_group_info *g = &m->group.p[r->group];
	return plan_groups_of(&o->plan, g->nrow, g->ncol, g->id).hosts;
}

struct ring_said *ring_said(const struct pass_opts *o, const struct ir_module *m, const struct ring *r)
{
	struct ring_said *x = NULL;
	bool back = r->att->kind != IR_attention;
	for (size_t i = 0; o->rings && i < o->rings->said.n && !x; i++) {
		struct ring_said *is = &o->rings->said.p[i];
		x = is->where == r->att->loc && is->back == back ? is : NULL;
	}
	if (!x && o->rings) {
		int hosts = hosts_of(o, m, r);
		bool copied = hosts > 1 || o->plan.ring == PLAN_RING_GATHER;
		arr_push(&o->rings->said, ((struct ring_said){ .where = r->att->loc, .back = back, .side = r->side, .road = copied ? RING_GATHERED : RING_IN_PLACE,
		                                               .members = (int)r->members, .hosts = hosts, .cores = o->plan.cores }));
		x = &o->rings->said.p[o->rings->said.n - 1];
	}
	return x;
}

static void work(struct str *s, const struct ring_said *x)
{
	if (x->busy < 1.005) {
		str_add(s, "work: even");
		return;
	}
	str_addf(s, "work: the busiest device has %.2f of the mean, %.2f if halves are exchanged, which ", x->busy, x->dealt);
	str_add(s, x->exchanged ? "is done: it saves " : "is not done: it would save ");
	pass_add_time(s, x->saves);
	if (x->cores)
		str_addf(s, " on %d core%s", x->cores, x->cores > 1 ? "s" : "");
	str_add(s, x->exchanged ? " and takes " : " and take ");
	pass_add_time(s, x->takes);
	str_add(s, x->hosts > 1 && x->road != RING_HEADS && !x->exchanged ? ", of which it must save several times as much between hosts" : "");
}

static void others(struct str *s, const struct ring_said *x)
{
	static const char *const road[] = { "are read where they lie", "are gathered", "go round", "go from host to host" };
	str_addf(s, "%s over %d devices%s: ", x->back ? "gradient" : "forward", x->members, x->hosts > 1 ? " of several hosts" : "");
	if (x->road == RING_HEADS)
		str_addf(s, "%s exchange rows for heads", x->hosts > 1 ? "hosts" : "devices");
	else
		str_addf(s, "%s %s", x->side == RING_KEYS ? "keys and values" : "queries and cotangents", road[x->road]);
	if (x->turns > (x->road == RING_HEADS))
		str_addf(s, ", in %d %s", x->turns, x->road == RING_HEADS ? "parts" : "turns");
	if (x->gathered > 0) {
		str_add(s, "; what no computing hides of it: in turns ");
		pass_add_time(s, x->open);
		str_add(s, ", gathered ");
		pass_add_time(s, x->gathered);
	}
	if (x->hosts > 1 && x->heads > 0) {
		str_add(s, x->gathered > 0 ? ", " : "; ");
		str_add(s, "rows exchanged for heads ");
		pass_add_time(s, x->heads);
		str_add(s, ", ");
		pass_add_bytes(s, x->bytes);
		str_add(s, " into a host");
		if (x->late >= LATE) {
			str_add(s, "; uneven work counts ");
			pass_add_time(s, x->late);
			str_add(s, " beside the others");
		}
	}
}

void pass_explain_rings(struct str *s, const struct ir_module *m, const struct ring_record *r)
{
	if (r->said.n)
		str_add(s, "attention over a sequence that devices share: how it has what others have, and how even its work is\n");
	for (size_t i = 0; i < r->said.n; i++) {
		const struct ring_said *x = &r->said.p[i];
		struct str line = {0};
		pass_add_place(&line, m, x->where);
		str_add(&line, "  ");
		others(&line, x);
		pass_add_wrapped(s, line.p, 2);
		line.n = 0;
		if (x->busy > 0) {
			work(&line, x);
			pass_add_wrapped(s, line.p, 6);
		}
		str_free(&line);
	}
}
