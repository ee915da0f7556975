/* Axes and their parts, by the coordinates of devices; and what brings arrays from one sharding to another, run on all devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "eval/eval.h"
#include "spmd/impl.h"

enum { LARGEST = 64, OTHER = 3, LISTS = 2000, MOST = 4, DEVICES = 8 };
static struct arena mem;

/* --- lists -------------------------------------------------------------------------- */

static struct ir_mesh_axis axis[2];
static const struct ir_mesh two = { .naxis = 2, .axis = axis };
static struct axes list[LISTS];
static int nlist;

static int64_t devices(void) { return axis[0].size * axis[1].size; }

/* Are the places where a and b cut one axis those of one series of cuts? */
static bool nested(struct ir_axis_ref a, struct ir_axis_ref b)
{
	int64_t at[] = { a.pre, a.pre * a.size, b.pre, b.pre * b.size };
	bool all = true;
	for (int i = 0; i < 4; i++)
		for (int k = 0; k < 4; k++)
			all &= at[i] > at[k] || at[k] % at[i] == 0;
	return all || a.axis != b.axis;
}

/* Are they so, and does every pair of coordinates occur equally often? */
static bool apart(struct ir_axis_ref a, struct ir_axis_ref b)
{
	if (!nested(a, b))
		return false;
	int64_t n[LARGEST * OTHER][LARGEST * OTHER] = {{0}};
	for (int64_t d = 0; d < devices(); d++)
		n[mesh_coordinate(&two, d, a)][mesh_coordinate(&two, d, b)]++;
	for (int64_t i = 0; i < a.size; i++)
		for (int64_t k = 0; k < b.size; k++)
			if (n[i][k] * a.size * b.size != devices())
				return false;
	return true;
}

/* Is what lies along a known to who knows what lies along b, major first? */
static bool begins(struct axes a, struct axes b)
{
	int64_t na = axes_size(a), nb = axes_size(b);
	for (int64_t d = 0; d < devices(); d++)
		if (nb % na || mesh_index(&two, d, a) != mesh_index(&two, d, b) / (nb / na))
			return false;
	return true;
}

static int refs(struct ir_axis_ref *r)
{
	int n = 0;
	for (uint16_t a = 0; a < 2; a++)
		for (int64_t pre = 1; pre <= axis[a].size; pre++)
			for (int64_t size = 2; pre * size <= axis[a].size; size++)
				if (axis[a].size % (pre * size) == 0)
					r[n++] = (struct ir_axis_ref){ a, pre, size };
	return n;
}

static void pairs_of_parts(void **state)
{
	(void)state;
	static struct ir_axis_ref r[LARGEST * LARGEST];
	axis[1].size = OTHER;
	for (axis[0].size = 1; axis[0].size <= LARGEST; axis[0].size++) {
		int n = refs(r);
		for (int i = 0; i < n; i++)
			for (int k = 0; k < n; k++) {
				assert_int_equal(ir_axes_overlap(r[i], r[k]), !apart(r[i], r[k]));
				struct ir_axis_ref have = {0}, want = {0};
				for (int64_t size = 2; size <= r[i].size; size++) {
					struct ir_axis_ref part = { r[i].axis, r[i].pre, size };
					if (r[i].size % size == 0 && apart(part, r[k]))
						want = part;
				}
				assert_int_equal(ref_before(r[i], r[k], &have), want.size != 0);
				if (want.size)
					assert_true(ref_equal(have, want));
				assert_int_equal(ref_begins(r[i], r[k]), r[i].size < r[k].size && begins((struct axes){ 1, &r[i] }, (struct axes){ 1, &r[k] }));
			}
	}
}

/* All lists of up to three parts that lie apart, neighbours put together. */
static void grow(const struct ir_axis_ref *r, int n, struct ir_axis_ref *at, int have)
{
	struct ir_axis_ref *copy = ARENA_NEW(&mem, struct ir_axis_ref, have + 1);
	memcpy(copy, at, sizeof *at * (size_t)have);
	assert_true(nlist < LISTS);
	list[nlist++] = (struct axes){ have, copy };
	for (int i = 0; i < n && have < 3; i++) {
		bool fits = !have || at[have - 1].axis != r[i].axis || at[have - 1].pre * at[have - 1].size != r[i].pre;
		for (int k = 0; k < have && fits; k++)
			fits = apart(at[k], r[i]);
		if (!fits)
			continue;
		at[have] = r[i];
		grow(r, n, at, have + 1);
	}
}

static void lists(void **state)
{
	(void)state;
	static const int64_t sizes[] = { 1, 6, 8, 12 };
	struct ir_axis_ref r[LARGEST], at[4];
	axis[1].size = 2;
	for (size_t s = 0; s < NELEM(sizes); s++) {
		axis[0].size = sizes[s];
		arena_init(&mem);
		nlist = 0;
		grow(r, refs(r), at, 0);
		for (int i = 0; i < nlist; i++)
			for (int k = 0; k < nlist; k++) {
				struct axes a = list[i], b = list[k], want = {0};
				assert_int_equal(axes_begin(a, b), begins(a, b));
				assert_int_equal(axes_equal(a, b), i == k);
				bool free_of = true, joins = true;
				for (int x = 0; x < a.n; x++)
					for (int y = 0; y < b.n; y++)
						joins &= apart(a.p[x], b.p[y]);
				if (joins) {
					struct axes j = axes_join(&mem, a, b);
					assert_int_equal(axes_size(j), axes_size(a) * axes_size(b));
					for (int64_t d = 0; d < devices(); d++)
						assert_int_equal(mesh_index(&two, d, j), mesh_index(&two, d, a) * axes_size(b) + mesh_index(&two, d, b));
					for (int x = 1; x < j.n; x++)
						assert_false(j.p[x].axis == j.p[x - 1].axis && j.p[x - 1].pre * j.p[x - 1].size == j.p[x].pre);
				}
				for (int w = 0; w < nlist; w++) {        /* the longest beginning of a that lies apart from b */
					free_of = axes_begin(list[w], a) && axes_size(list[w]) > axes_size(want);
					for (int x = 0; x < list[w].n && free_of; x++)
						for (int y = 0; y < b.n && free_of; y++)
							free_of = apart(list[w].p[x], b.p[y]);
					if (free_of)
						want = list[w];
				}
				assert_true(axes_equal(axes_without(&mem, a, b), want));
				if (s && k > i + 40)                   /* the nearest and those that follow */
					k += 7;
			}
		arena_fini(&mem);
	}
}

/* --- from one sharding to another --------------------------------------------------------- */

struct mesh_case { const char *text; int ndev, rank; int64_t dim[3]; };
static const struct mesh_case meshes[] = {
	{ "[\"x\"=8]", 8, 2, { 8, 16 } },
	{ "[\"x\"=4,\"y\"=2]", 8, 2, { 8, 16 } },
	{ "[\"x\"=4,\"y\"=2]", 8, 3, { 8, 8, 8 } },
	{ "[\"x\"=2,\"y\"=2,\"z\"=2]", 8, 2, { 8, 8 } },
	{ "[\"x\"=4,\"y\"=2] ids=[3,1,0,2,7,6,4,5]", 8, 2, { 8, 8 } },
	{ "[\"x\"=6]", 6, 2, { 6, 12 } },
	{ "[\"x\"=3,\"y\"=2]", 6, 3, { 6, 6, 6 } },
	{ "[\"x\"=4,\"y\"=2]\nmesh @other = [\"a\"=2,\"b\"=4] ids=[3,1,0,2,7,6,4,5]", 8, 2, { 8, 8 } },
	{ "[\"x\"=4,\"y\"=2]\nmesh @other = [\"a\"=4,\"b\"=2]", 8, 2, { 8, 4 } },
};

static ir_shard shard[LISTS];
static int nshard;

/* All ways to cut rank dimensions by parts of the mesh's axes that lie apart. */
static void cuts(struct ir_module *m, uint32_t mesh, const struct mesh_case *c, int d, struct ir_dim_shard *dim, const struct ir_axis_ref *r, int n, const struct ir_axis_ref *used, int nused)
{
	if (d == c->rank) {
		struct ir_shard_info h = { .mesh = mesh, .rank = (uint8_t)c->rank, .dim = dim };
		ir_shard s = ir_shard_add(m, &h);
		assert_true(nshard < LISTS);
		shard[nshard++] = s;
		return;
	}
	cuts(m, mesh, c, d + 1, dim, r, n, used, nused);
	struct ir_dim_shard was = dim[d];
	for (int i = 0; i < n; i++) {
		const struct ir_axis_ref *last = was.naxis ? &was.axis[was.naxis - 1] : NULL;
		bool fits = !last || last->axis != r[i].axis || last->pre * last->size != r[i].pre;
		int64_t parts = r[i].size;
		for (int k = 0; k < nused && fits; k++)
			fits = !ir_axes_overlap(used[k], r[i]);
		for (int k = 0; k < was.naxis; k++)
			parts *= was.axis[k].size;
		if (!fits || c->dim[d] % parts)
			continue;
		struct ir_axis_ref own[8], all[8];
		if (was.naxis)
			memcpy(own, was.axis, sizeof *own * (size_t)was.naxis);
		own[was.naxis] = r[i];
		memcpy(all, used, sizeof *all * (size_t)nused);
		all[nused] = r[i];
		dim[d] = (struct ir_dim_shard){ .naxis = was.naxis + 1, .axis = own };
		cuts(m, mesh, c, d, dim, r, n, all, nused + 1);
	}
	dim[d] = was;
}

static int64_t local(const struct ir_module *m, const struct mesh_case *c, ir_shard h)
{
	int64_t n = 1;
	for (int d = 0; d < c->rank; d++)
		n *= c->dim[d] / ir_shard_parts(m, h, d);
	return n;
}

/* The part of the whole array 0, 1, 2, .. that device dev holds. */
static int32_t *box(const struct ir_module *m, const struct mesh_case *c, ir_shard h, int dev)
{
	int64_t at[3] = {0}, size[3] = { 1, 1, 1 }, n = 0;
	spmd_shard_box(m, h, dev, c->rank, c->dim, at, size);
	int32_t *p = calloc((size_t)local(m, c, h), sizeof *p);
	for (int64_t i = 0; i < size[0]; i++)
		for (int64_t j = 0; j < size[1]; j++)
			for (int64_t k = 0; k < size[2]; k++)
				p[n++] = (int32_t)(((at[0] + i) * c->dim[1] + at[1] + j) * (c->rank > 2 ? c->dim[2] : 1) + at[2] + k);
	return p;
}

static struct ir_module *module(const struct mesh_case *c)
{
	struct str s = {0};
	struct ir_module *m;
	str_addf(&s, "module @m partitions=%d replicas=1\nmesh @mesh = %s\nfn @main(%%1: i32[]) -> (i32[]) {\n  return %%1\n}\n", c->ndev, c->text);
	struct err *e = ir_parse(s.p, s.n, &m);
	if (e)
		fail_msg("%s\n%s", e->msg, s.p);
	str_free(&s);
	struct ir_axis_ref r[LARGEST], used[8];
	struct ir_dim_shard dim[3] = {{0}};
	nshard = 0;
	for (uint32_t k = 0; k < m->mesh.n; k++) {
		const struct ir_mesh *mesh = &m->mesh.p[k];
		int n = 0;
		for (uint16_t a = 0; a < mesh->naxis; a++)
			for (int64_t pre = 1; pre <= mesh->axis[a].size; pre++)
				for (int64_t size = 2; pre * size <= mesh->axis[a].size; size++)
					if (mesh->axis[a].size % (pre * size) == 0)
						r[n++] = (struct ir_axis_ref){ a, pre, size };
		if (n)
			cuts(m, k, c, 0, dim, r, n, used, 0);
	}
	return m;
}

/* What is promised of the way between two shardings of one mesh: nothing travels where parts are only cut further; only the least is gathered
 * where they are only put together; nowhere does a device hold more than where it comes from and where it goes. */
static void promises(const struct ir_module *m, const struct mesh_case *c, const struct ir_fn *fn, size_t first, ir_shard from, ir_shard to)
{
	struct part p = { .m = (struct ir_module *)m, .ndev = c->ndev };
	bool nest = m->shard.p[from].mesh == m->shard.p[to].mesh, finer = nest;
	for (int d = 0; d < c->rank * c->rank; d++) {
		struct axes x = part_axes(&p, from, d / c->rank), y = part_axes(&p, to, d % c->rank);
		for (int i = 0; i < x.n * y.n; i++)
			nest &= nested(x.p[i / y.n], y.p[i % y.n]);
	}
	for (int d = 0; d < c->rank; d++)
		finer &= axes_begin(part_axes(&p, from, d), part_axes(&p, to, d));
	int64_t most = 0;
	for (size_t i = first; i < fn->op.n; i++) {
		enum ir_kind k = fn->op.p[i].kind;
		if (finer)
			assert_true(k != IR_all_gather && k != IR_all_to_all && k != IR_redistribute && k != IR_collective_permute);
		if (ir_vtype(m, fn, fn->op.p[i].out)->rank == c->rank)
			most = MAX(most, ir_vtype(m, fn, fn->op.p[i].out)->count);
	}
	if (nest && most > MAX(local(m, c, from), local(m, c, to))) {
		struct str s = {0};
		ir_print_shard(&s, m, from);
		str_addf(&s, " to ");
		ir_print_shard(&s, m, to);
		fail_msg("%s of %s: a device holds %ld", s.p, c->text, (long)most);
	}
}

/* What goes in one step brings into each host, of so many devices, what it lacks, once, where all have as many copies and these divide a part. */
static void once_between_hosts(const struct ir_module *m, const struct mesh_case *c, const struct ir_fn *fn, size_t first, ir_shard from, ir_shard to, int by)
{
	int64_t got = 0, lacks = 0, copies[DEVICES] = {0};
	bool divides = false, even = true;
	int n = 0, row = 2 + 3 * c->rank;
	const int64_t *w = NULL;
	for (size_t i = first; i < fn->op.n && !w; i++)
		w = fn->op.p[i].kind == IR_redistribute ? ir_attrs(fn, &fn->op.p[i], AT_boxes, &n) : NULL;
	for (int i = 0; i < n; i += row) {
		int64_t size = w[i] / by != w[i + 1] / by;
		for (int d = 0; d < c->rank; d++)
			size *= w[i + 2 + 2 * c->rank + d];
		got += size;
	}
	for (int host = 0; host < c->ndev / by && w; host++) {
		int32_t first_of[DEVICES];
		char has[512] = {0};             /* of each element, whether a device of the host holds it, then whether one wants it */
		for (int turn = 0; turn < 2; turn++)
			for (int d = host * by; d < (host + 1) * by; d++) {
				int64_t size = local(m, c, turn ? to : from);
				int32_t *p = box(m, c, turn ? to : from, d);
				first_of[d] = *p;
				for (int64_t i = 0; i < size; i++) {
					lacks += turn && !has[p[i]];
					has[p[i]] = 1;
				}
				free(p);
			}
		for (int d = host * by; d < (host + 1) * by; d++)
			for (int k = host * by; k < (host + 1) * by; k++)
				copies[d] += first_of[d] == first_of[k];
	}
	for (int d = 0; d < c->ndev; d++)
		even &= copies[d] == copies[0];
	for (int d = 0; d < c->rank && w; d++)
		divides |= c->dim[d] / ir_shard_parts(m, to, d) % copies[0] == 0;
	if (even && divides && got != lacks) {
		struct str s = {0};
		ir_print_shard(&s, m, from);
		str_addf(&s, " to ");
		ir_print_shard(&s, m, to);
		fail_msg("%s of %s, hosts of %d: %ld elements come into hosts that lack %ld", s.p, c->text, by, (long)got, (long)lacks);
	}
}

/* least: bytes from which parts go in one step; by: devices of a host, 0: all. */
static void pairs_from(int64_t least, int by)
{
	for (size_t q = 0; q < NELEM(meshes); q++) {
		const struct mesh_case *c = &meshes[q];
		struct ir_module *m = module(c);
		const bool regular = by && c->ndev % by == 0 && !strstr(c->text, "ids");
		int host[DEVICES] = {0};
		for (int d = 0; d < c->ndev && by; d++)
			host[d] = d / by;
		for (int i = 0; i < nshard; i++) {
			ir_module_free(m);
			m = module(c);
			struct ir_fn *fn = ir_main(m);
			const struct plan_on here = { .host = by ? host : NULL };
			struct part p = { .m = m, .ndev = c->ndev, .plan = &here, .least = least };
			arena_init(&p.a);
			fn->val.p[1].type = part_type(&p, ir_tensor(m, DT_i32, c->rank, c->dim), shard[i], DT_token);
			struct ir_b b = { m, fn, 0 };
			int n = 0;
			static int to[LISTS];
			fn->result.n = 0;
			for (int k = 0; k < nshard; k++) {
				size_t first = fn->op.n;
				if (nshard > 150 && (i * 31 + k * 17) % 5)      /* a fifth of very many */
					continue;
				ir_result(fn, part_reshard(&p, &b, 1, shard[i], shard[k]));
				promises(m, c, fn, first, shard[i], shard[k]);
				if (regular)
					once_between_hosts(m, c, fn, first, shard[i], shard[k], by);
				to[n++] = k;
			}
			struct eval_array a[DEVICES] = {0}, *r = calloc((size_t)(n * c->ndev), sizeof *r);
			for (int d = 0; d < c->ndev; d++) {
				a[d].p = box(m, c, shard[i], d);
				a[d].bytes = (size_t)local(m, c, shard[i]) * sizeof(int32_t);
			}
			struct err *e = eval_main(m, &(struct eval_opts){ .ndev = c->ndev }, a, r);
			if (e)
				fail_msg("%s", e->msg);
			for (int d = 0; d < c->ndev; d++) {
				for (int k = 0; k < n; k++) {
					int32_t *want = box(m, c, shard[to[k]], d);
					assert_int_equal(r[d * n + k].bytes, (size_t)local(m, c, shard[to[k]]) * sizeof(int32_t));
					if (memcmp(want, r[d * n + k].p, r[d * n + k].bytes)) {
						struct str s = {0};
						ir_print_shard(&s, m, shard[i]);
						str_addf(&s, " to ");
						ir_print_shard(&s, m, shard[to[k]]);
						fail_msg("%s of %s on device %d", s.p, c->text, d);
					}
					free(want);
					eval_array_free(&r[d * n + k]);
				}
				free(a[d].p);
			}
			free(r);
			map_free(&p.spread);
			arena_fini(&p.a);
		}
		ir_module_free(m);
	}
}

static void all_pairs(void **state)
{
	(void)state;
	pairs_from(0, 0);
}

static void all_pairs_at_once(void **state)
{
	(void)state;
	pairs_from(1, 0);
}

static void all_pairs_between_hosts(void **state)
{
	(void)state;
	pairs_from(1, 2);
	pairs_from(1, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pairs_of_parts), cmocka_unit_test(lists), cmocka_unit_test(all_pairs), cmocka_unit_test(all_pairs_at_once), cmocka_unit_test(all_pairs_between_hosts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
