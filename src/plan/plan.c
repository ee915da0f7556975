/* Prices. */
#include "plan.h"

static const struct plan_table *of(const struct plan_table *t) { return t ? t : plan_default(); }

/* --- one core ------------------------------------------------------------------- */

double plan_time(const struct plan_table *t, const struct plan_work *w, enum plan_way way)
{
	const double *r = of(t)->way[way];
	return r[0] + r[1] * w->ops + r[2] * w->flops + r[3] * w->adds + r[4] * w->bytes;
}

double plan_compile_time(const struct plan_table *t, double nops, double adds)
{
	const double *r = of(t)->rate;
	return r[PLAN_compile_first] + r[PLAN_compile_op] * nops + r[PLAN_compile_add] * adds;
}

/* What a group that is left without code costs is so at most one part in twenty of a short program, if making it takes 2 ms; of a long
 * one 2 us.  START: a launch of a program that does nothing. */
double plan_launches(double ns, double ops)
{
	enum { LEAST = 1000, LIFE = 40000000, START = 4000, EAGER = 4 };
	return ops <= EAGER ? LEAST : MAX(LEAST, LIFE / (START + ns));
}

bool plan_worth_compiling(const struct plan_table *t, const struct plan_work *w, enum plan_way otherwise, double nops, double adds, double runs)
{
	return runs * (plan_time(t, w, otherwise) - plan_time(t, w, PLAN_gen)) > plan_compile_time(t, nops, adds);
}

/* An operation of a product of such elements. */
static double of_product(const struct plan_table *t, enum dtype dt)
{
	static const double OTHER = 0.1;         /* of what has no rate of its own */
	const double *r = of(t)->rate;
	switch (dt) {
	case DT_f32: case DT_f16: return r[PLAN_dot_f32];         /* f16 is multiplied as f32 */
	case DT_bf16: return r[PLAN_dot_bf16];
	case DT_i8: case DT_u8: return r[PLAN_dot_i8];
	case DT_f64: return r[PLAN_dot_f64];
	default: return OTHER;
	}
}

double plan_part_time(const struct plan_table *t, enum dtype dt, double products, double bytes)
{
	return of_product(t, dt) * products + of(t)->rate[PLAN_own_byte] * bytes;
}

static bool is_product(const struct prog_kern *k)
{
	return (k->id == KERN_dot || k->id == KERN_convolution || k->id == KERN_attention || k->id == KERN_attention_grad || k->id == KERN_attention_grad_add) && k->nin;
}

static double bytes_of(const struct prog_kern *k)
{
	double n = (double)k->bytes;
	for (int i = 0; !k->bytes && i < k->nin + k->nout; i++)
		n += (double)prog_view_bytes(&k->v[i]);
	return n;
}

static double kern_time(const struct plan_table *t, const struct prog_kern *k, bool near)
{
	struct plan_work w = { .adds = (double)k->flops, .bytes = bytes_of(k), .ops = 1 };
	bool multiplies = is_product(k);
	double ns = 0;

	if (multiplies) {
		w.adds = 0;
		ns = (double)k->flops * of_product(t, (enum dtype)k->v[0].dtype);
	}
	near = near && (multiplies || k->id == KERN_gen) && w.bytes <= (double)cpu_get()->l2;
	return plan_time(t, &w, near ? PLAN_gen : PLAN_cold) + ns;
}

double plan_kern_time(const struct plan_table *t, const struct prog_kern *k) { return kern_time(t, k, false); }
double plan_kern_near(const struct plan_table *t, const struct prog_kern *k) { return kern_time(t, k, true); }

double plan_kern_limit(const struct plan_table *t, const struct prog_kern *k)
{
	const double *gen = of(t)->way[PLAN_gen];
	double bytes = bytes_of(k);
	double moved = bytes * (bytes > (double)cpu_get()->l2 ? of(t)->rate[PLAN_own_byte] : gen[4]);
	double done = (double)k->flops * (is_product(k) ? of_product(t, (enum dtype)k->v[0].dtype) : gen[3]);
	return MAX(moved, done);
}

double plan_peak_flops(const struct plan_table *t)
{
	static const enum dtype fast[] = { DT_f32, DT_bf16, DT_i8 };
	double most = 0;
	for (size_t i = 0; i < NELEM(fast); i++)
		most = MAX(most, 1 / of_product(t, fast[i]));
	return most;
}

double plan_peak_bytes(const struct plan_table *t) { return 1 / of(t)->rate[PLAN_own_byte]; }

/* --- several devices ------------------------------------------------------------------- */

enum plan_ring plan_ring(void) { return (enum plan_ring)(conf_int(CONF_RING) - 1); }

uint64_t plan_hash(const struct plan_on *p, int npos)
{
	int32_t v[3] = { p->ndev, p->cores, p->ring };
	uint64_t h = plan_table_hash(of(p->table));
	h = npos > 1 ? hash_bytes(v, sizeof v, h) : h;   /* of one position nothing goes by them */
	return p->host ? hash_bytes(p->host, sizeof *p->host * (size_t)npos, h) : h;
}

static struct plan_group row_of(const struct plan_on *p, int n, const int64_t *pos)
{
	struct plan_group g = { .n = n };
	int host[COLL_ROW], members = 0;

	for (int i = 0; i < n; i++) {
		if (pos[i] >= 0 && members < COLL_ROW)
			host[members++] = p->host[pos[i]];
		int same = 0, before = 0;
		for (int k = 0; k < n; k++) {
			bool is = pos[i] >= 0 && pos[k] >= 0 && p->host[pos[k]] == p->host[pos[i]];
			same += is;
			before += is && k < i;
		}
		g.hosts += same && !before;
		g.most = MAX(g.most, same);
	}
	for (int k = 0; k < COLL_COUNT && g.hosts > 1; k++)
		g.levels |= (uint32_t)(n <= COLL_ROW && prog_topo_far((enum coll_kind)k, 1, members, host) == COLL_HOSTS) << k;
	return g;
}

/* Hosts are below this number. */
static int hosts_below(const struct plan_on *p, int n, const int64_t *pos)
{
	int hosts = 0;
	for (int i = 0; i < n && p->host; i++)
		hosts = pos[i] >= 0 ? MAX(hosts, p->host[pos[i]] + 1) : hosts;
	return hosts;
}

/* Has a row members on this host, and on others? */
static bool crosses(const struct plan_on *p, int n, const int64_t *pos, int host)
{
	int in = 0, out = 0;
	for (int i = 0; i < n; i++) {
		in += pos[i] >= 0 && p->host[pos[i]] == host;
		out += pos[i] >= 0 && p->host[pos[i]] != host;
	}
	return in && out;
}

/* Rows that go over the link of one host, that of most. */
static int over_link(const struct plan_on *p, int rows, int n, const int64_t *pos)
{
	int most = 0;

	for (int h = hosts_below(p, rows * n, pos) - 1; h >= 0; h--) {
		int over = 0;
		for (int r = 0; r < rows; r++)
			over += crosses(p, n, pos + (size_t)r * (size_t)n, h);
		most = MAX(most, over);
	}
	return most;
}

struct plan_group plan_groups_of(const struct plan_on *p, int rows, int n, const int64_t *pos)
{
	struct plan_group most = { n, 1, n, 0 };

	for (int r = 0; r < rows && p->host; r++) {
		struct plan_group g = row_of(p, n, pos + (size_t)r * (size_t)n);
		if (g.hosts > most.hosts || (g.hosts == most.hosts && g.hosts > 1 && g.most > most.most))
			most = g;
	}
	most.beside = most.hosts > 1 ? over_link(p, rows, n, pos) - 1 : 0;
	return most;
}

struct plan_group plan_pairs_of(const struct plan_on *p, int n, const int64_t *pair)
{
	int most = 0;
	for (int h = hosts_below(p, 2 * n, pair) - 1; h >= 0; h--) {
		int come = 0;
		for (int k = 0; k < n; k++)
			come += p->host[pair[2 * k]] != h && p->host[pair[2 * k + 1]] == h;
		most = MAX(most, come);
	}
	return most ? (struct plan_group){ 2, 2, 1, 0, most - 1 } : (struct plan_group){ 2, 1, 2, 0 };
}

/* Bytes that come into a device of n: in one step, each from who has them. */
static double into_device(enum coll_kind k, double n, double b)
{
	switch (k) {
	case COLL_all_gather: case COLL_all_to_all: case COLL_reduce_scatter: return (n - 1) * b;
	case COLL_all_reduce: return 2 * (n - 1) / n * b;
	case COLL_barrier: return 0;
	default: return b;
	}
}

/* Bytes that come into the host that has most members, from others: each to who asks for it; or, by levels, each once, and sums as they climb
 * from host to host.  Of one group of those that share its link. */
static double into_host(enum coll_kind k, struct plan_group g, double b, bool levels)
{
	double n = g.n, m = g.most;
	switch (k) {
	case COLL_all_gather: return (levels ? 1 : m) * (n - m) * b;
	case COLL_all_to_all: return m * (n - m) * b;
	case COLL_reduce_scatter: return levels ? n * b : m * (n - m) * b;
	case COLL_all_reduce: return levels ? MIN(g.hosts - 1, 2) * b : 2 * m * (n - m) / n * b;
	case COLL_permute: return m * b;
	case COLL_barrier: return 0;
	default: return b;
	}
}

/* Lines that each waits for. */
static double waits(enum coll_kind k, double n) { return k == COLL_permute ? 1 : n - 1; }

/* Latency and bandwidth alone, of what was not measured. */
static double straight(const struct plan_table *t, enum coll_kind k, struct plan_group g, double b)
{
	const double *r = t->rate;
	double near = g.most > 1 || g.hosts < 2 ? g.most : 1;
	double ns = r[PLAN_wait] * waits(k, near) + r[PLAN_byte] * into_device(k, near, b);
	if (k == COLL_all_reduce)                /* in one step, or in two */
		ns = MIN(r[PLAN_wait] * (near - 1) + r[PLAN_byte] * (near - 1) * b, ns + r[PLAN_wait] * (near - 1));
	if (k == COLL_permute && g.hosts > 1)
		ns = 0;
	if (g.hosts > 1)
		ns += r[PLAN_far_wait] * waits(k, g.hosts) + r[PLAN_far_byte] * (1 + g.beside) * into_host(k, g, b, g.levels >> k & 1);
	return near > 1 || g.hosts > 1 ? ns : 0;
}

static enum coll_topo topo_of(const struct plan_on *p, enum coll_kind k, struct plan_group g)
{
	bool far = g.hosts > 1;
	if (far && g.levels >> k & 1)
		return COLL_HOSTS;
	return prog_topo(far, MAX(p->ndev, g.n), p->cores ? p->cores : INT32_MAX, g.n);
}

enum coll_algo plan_coll_algo(const struct plan_on *p, enum coll_kind k, struct plan_group g, double bytes)
{
	return prog_rule_pick(of(p->table)->rule[topo_of(p, k, g)][k], (int64_t)MIN(bytes, 9e18));
}

/* A curve holds for as many members as were measured, in one group: what it takes without data grows with the lines that each waits for, the rest with the
 * bytes that come in, and between hosts with the groups that share a link. */
static double scaled(const struct plan_table *t, enum coll_topo topo, enum coll_kind k, enum coll_algo a, struct plan_group g, double b)
{
	double ns = plan_curve(t, topo, k, a, b), start = MIN(plan_curve(t, topo, k, a, 0), ns), n0 = MAX(t->members[topo], 2), moved = into_device(k, n0, 1);
	return start * waits(k, g.n) / waits(k, n0) + (1 + g.beside) * (ns - start) * (moved > 0 ? into_device(k, g.n, 1) / moved : 1);
}

double plan_coll_bytes(enum coll_kind k, int n, double bytes) { return n > 1 ? into_device(k, n, bytes) : 0; }

double plan_coll_time(const struct plan_on *p, enum coll_kind k, struct plan_group g, double bytes, enum coll_algo a)
{
	const struct plan_table *t = of(p->table);
	enum coll_topo topo = topo_of(p, k, g);
	enum coll_algo by = a ? a : plan_coll_algo(p, k, g, bytes);
	if (g.n < 2)
		return 0;
	if (plan_curve(t, topo, k, by, bytes) > 0)
		return scaled(t, topo, k, by, g, bytes);
	return a ? 0 : straight(t, k, g, bytes);
}

enum coll_algo plan_coll_other(const struct plan_on *p, enum coll_kind k, struct plan_group g, double bytes)
{
	enum coll_algo taken = plan_coll_algo(p, k, g, bytes), best = COLL_auto;
	double least = 0;
	for (int a = 1; a < COLL_ALGOS; a++) {
		double ns = a == (int)taken ? 0 : plan_coll_time(p, k, g, bytes, (enum coll_algo)a);
		if (ns > 0 && (!best || ns < least)) {
			best = (enum coll_algo)a;
			least = ns;
		}
	}
	return best;
}

double plan_move_time(const struct plan_on *p, enum coll_kind k, struct plan_group g, double bytes)
{
	double one = into_device(k, g.n, 1);
	return g.n > 1 && one > 0 ? plan_coll_time(p, k, g, bytes / one, COLL_auto) : 0;
}

double plan_sum_time(const struct plan_on *p, struct plan_group g, double bytes) { return plan_coll_time(p, COLL_all_reduce, g, bytes, COLL_auto); }

/* Bytes of an all_to_all of boxes that come to a position from others. */
static double boxes_into(const struct prog_coll *c, int pos)
{
	int64_t rank = c->box[0];
	double bytes = 0;

	for (const int64_t *r = c->box + 1 + 2 * rank; r < c->box + c->nbox; r += 2 + 3 * rank) {
		double n = dtype_info[c->dtype].bytes;
		for (int64_t d = 0; d < rank; d++)
			n *= (double)r[2 + 2 * rank + d];
		bytes += r[0] == pos && r[1] != pos ? n : 0;
	}
	return bytes;
}

/* The group of a collective that pos is in; of a permute the pair that it receives from, beside what else comes to its host. */
static struct plan_group group_at(const struct plan_on *on, const struct prog *p, const struct prog_coll *c, int pos)
{
	int64_t id[COLL_ROW] = { pos, pos };
	int n = 0;

	if (c->kind == COLL_permute) {
		const int64_t *from = p->table[c->pairs].v;
		id[0] = from[pos] >= 0 ? from[pos] : pos;
		struct plan_group pair = plan_pairs_of(on, 1, id);
		for (int k = 0; k < p->ndev && pair.hosts > 1; k++)
			pair.beside += k != pos && from[k] >= 0 && on->host[k] == on->host[pos] && on->host[from[k]] != on->host[pos];
		return pair;
	}
	const struct prog_group *g = &p->group[c->group];
	const int64_t *row = g->id + (int64_t)MAX(g->row[pos], 0) * g->ncol;
	for (int k = 0; k < g->ncol && g->row[pos] >= 0; k++)
		if (row[k] >= 0 && n++ < COLL_ROW)
			id[n - 1] = row[k];
	struct plan_group is = plan_groups_of(on, 1, MIN(MAX(n, 1), COLL_ROW), id);
	is.beside = is.hosts > 1 ? over_link(on, g->nrow, g->ncol, g->id) - 1 : 0;
	is.n = MAX(n, 1);
	is.most = is.hosts < 2 ? is.n : is.most;
	return is;
}

double plan_prog_coll(const struct plan_on *on, const struct prog *p, const struct prog_coll *c, int pos, double *bytes, bool *in_place)
{
	struct plan_group g = group_at(on, p, c, pos);
	double each = (double)c->outer * (double)c->inner * c->nin;

	if (c->nbox)                      /* as plan_coll_bytes has it */
		each = boxes_into(c, pos) * c->nin / MAX(g.n - 1, 1);
	if (c->slices)                    /* data tell: a guess is that all rows go, each member the same */
		each = (double)MIN(c->inner, c->inner2) / MAX(g.n, 1);
	*in_place = c->hops && g.hosts < 2;
	*bytes = plan_coll_bytes((enum coll_kind)c->kind, g.n, each);
	return plan_coll_time(on, (enum coll_kind)c->kind, g, *in_place ? 0 : each, COLL_auto);
}
