/* Custom calls of which their maker says how they are cut: it is asked, with how the operands and results lie, and answers with how they
 * shall lie and with what a device computes on its parts. */
#include "impl.h"

static const uint32_t NO_MESH = UINT32_MAX;

/* A part of an axis of the mesh of a prime size, that is the first digit of the devices' numbers index % size. */
static bool digit(const struct ir_mesh *mesh, int ndev, const int64_t *index, int64_t size, struct ir_axis_ref *out)
{
	for (int a = 0; a < mesh->naxis; a++)
		for (int64_t pre = 1; pre <= mesh->axis[a].size; pre++)
			for (int64_t q = 2; q <= size; q++) {
				bool prime = size % q == 0 && mesh->axis[a].size % (pre * q) == 0, same = true;
				for (int64_t i = 2; i * i <= q && prime; i++)
					prime = q % i != 0;
				struct ir_axis_ref r = { (uint16_t)a, pre, q };
				for (int d = 0; d < ndev && prime && same; d++)
					same = index[d] % size / (size / q) == mesh_coordinate(mesh, mesh_position(mesh, d), r);
				if (prime && same) {
					*out = r;
					return true;
				}
			}
	return false;
}

/* The axes of the mesh that number the blocks as index says, of n of them. */
static bool axes_for(struct part *p, const struct ir_mesh *mesh, const int64_t *index, int64_t n, struct axes *out)
{
	*out = (struct axes){0};
	while (n > 1) {
		struct ir_axis_ref *r = ARENA_NEW(&p->a, struct ir_axis_ref, 1);
		if (!digit(mesh, p->ndev, index, n, r))
			return false;
		*out = axes_join(&p->a, *out, (struct axes){ 1, r });
		n /= r->size;
	}
	return true;
}

/* A mesh of an axis for each dimension of the tiles. */
static uint32_t mesh_for(struct part *p, const struct spmd_tiles *t)
{
	struct ir_mesh m = { .naxis = t->n, .ndev = p->ndev };
	char name[32];
	m.name = ir_intern(p->m, name, (size_t)snprintf(name, sizeof name, "tiles_%zu", p->m->mesh.n));
	m.axis = ARENA_NEW(&p->m->arena, struct ir_mesh_axis, t->n);
	for (int i = 0; i < t->n; i++)
		m.axis[i] = (struct ir_mesh_axis){ ir_intern(p->m, name, (size_t)snprintf(name, sizeof name, "t%d", i)), t->dim[i] };
	m.id = arena_copy(&p->m->arena, t->device, sizeof *m.id * (size_t)p->ndev);
	arr_push(&p->m->mesh, m);
	return (uint32_t)p->m->mesh.n - 1;
}

/* Tiles as a sharding over the mesh (NO_MESH: there is none), or over one of its own. */
static struct err *read_tiles(struct part *p, const struct spmd_tiles *t, const struct ir_type_info *ty, uint32_t mesh, ir_shard *out)
{
	*out = 0;
	if (!t->n)
		return NULL;
	int64_t all = 1, rest = 1;
	bool *seen = ARENA_NEW(&p->a, bool, p->ndev);
	for (int i = 0; i < t->n; i++) {
		if (t->dim[i] < 1 || t->dim[i] > p->ndev / all)
			return ERR(INVALID, "tiles that are not those of %d devices", p->ndev);
		all *= t->dim[i];
	}
	if (t->n < ty->rank || all != p->ndev)
		return ERR(INVALID, "tiles of %lld devices, and of rank %d, for an array of rank %d on %d", (long long)all, t->n, ty->rank, p->ndev);
	int64_t *index = ARENA_NEW(&p->a, int64_t, (int64_t)p->ndev * (ty->rank + 1));
	for (int i = 0; i < p->ndev; i++) {
		int64_t d = t->device[i], at = i;
		if (d < 0 || d >= p->ndev || seen[d])
			return ERR(INVALID, "tiles whose devices are no permutation");
		seen[d] = true;
		for (int k = t->n; k-- > 0; at /= t->dim[k])
			if (k < ty->rank)
				index[(int64_t)k * p->ndev + d] = at % t->dim[k];
	}
	struct ir_shard_info s = { .mesh = mesh, .rank = ty->rank };
	s.dim = ARENA_NEW(&p->a, struct ir_dim_shard, ty->rank + 1);
	bool fits = mesh != NO_MESH;
	for (int d = 0; d < ty->rank; d++) {
		struct axes l;
		fits = fits && axes_for(p, &p->m->mesh.p[mesh], index + (int64_t)d * p->ndev, t->dim[d], &l);
		if (fits)
			s.dim[d] = (struct ir_dim_shard){ .naxis = l.n, .axis = (struct ir_axis_ref *)l.p };
		rest *= t->dim[d];
	}
	if (!fits) {
		s.mesh = mesh_for(p, t);
		for (int d = 0; d < ty->rank; d++) {
			struct ir_axis_ref *r = ARENA_NEW(&p->a, struct ir_axis_ref, 1);
			*r = (struct ir_axis_ref){ (uint16_t)d, 1, t->dim[d] };
			s.dim[d] = (struct ir_dim_shard){ .naxis = t->dim[d] > 1, .axis = r };
		}
	}
	if (rest > 1)
		*out = ir_shard_add(p->m, &s);
	return NULL;
}

/* t with as many more elements as it takes to divide into the tiles. */
static ir_type divided(struct part *p, ir_type t, const struct spmd_tiles *x)
{
	const struct ir_type_info *i = ir_type_of(p->m, t);
	int64_t dim[IR_MAX_RANK];
	for (int d = 0; d < i->rank && x->n; d++)
		dim[d] = (i->dim[d] + x->dim[d] - 1) / x->dim[d] * x->dim[d];
	return x->n ? ir_tensor(p->m, (enum dtype)i->dtype, i->rank, dim) : t;
}

const struct ir_blob_info *part_key(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o)
{
	size_t n;
	ir_blob config = (ir_blob)ir_attr(fn, o, AT_config);
	if (!config)
		return NULL;
	const uint8_t *b = ir_blob_data(m, config, &n);
	struct ir_dict_it it = { .p = b, .end = b + n };
	while (ir_dict_next(&it)) {
		int64_t v;
		if (it.name_n != 3 || memcmp(it.name, "key", 3) || it.kind || it.dtype != DT_i64)
			continue;
		memcpy(&v, it.data, sizeof v);
		return ir_key(m, v);
	}
	return NULL;
}

bool part_asks(const struct part *p, const struct ir_fn *fn, const struct ir_op *o)
{
	return o->kind == IR_custom_call && p->maker && part_key(p->m, fn, o) && p->maker->partitions(p->maker->user, ir_text(p->m, (ir_str)ir_attr(fn, o, AT_target)));
}

bool part_of_parts(const struct part *p, const struct ir_fn *fn, const struct ir_op *o)
{
	if (!p->maker || !p->maker->of_parts(p->maker->user, ir_text(p->m, (ir_str)ir_attr(fn, o, AT_target))))
		return false;
	for (uint32_t k = 0; k < o->nout; k++)
		if (ir_vtype(p->m, fn, o->out + k)->dtype != DT_token)
			return false;
	return true;
}

bool part_batches(const struct part *p, const struct ir_fn *fn, const struct ir_op *o)
{
	return p->maker && p->maker->batches(p->maker->user, ir_text(p->m, (ir_str)ir_attr(fn, o, AT_target)));
}

/* How operand k lies if it lies as the other tensors that have its factors: what is made of one number lies everywhere as it is wanted. */
static ir_shard as_others(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const ir_shard *sh, uint32_t k)
{
	const struct ir_axes *x = ir_axes_of(&p->a, p->m, fn, o);
	struct axes *f = ARENA_NEW(&p->a, struct axes, x->nfactor + 1), taken = {0};
	struct factor_axes *seen = ARENA_NEW(&p->a, struct factor_axes, x->nfactor + 1);
	uint32_t mesh = NO_MESH;
	for (int t = 0; t < x->nin + x->nout; t++) {
		if (!sh[t] || (mesh != NO_MESH && p->m->shard.p[sh[t]].mesh != mesh))
			continue;
		mesh = p->m->shard.p[sh[t]].mesh;
		factors_of(&p->a, p->m, x, t, sh[t], seen);
		for (int i = 0; i < x->nfactor; i++) {
			if (f[i].n || !seen[i].has || x->factor[i].blocked || ir_axes_find(x, (int)k, i) < 0)
				continue;
			f[i] = axes_without(&p->a, seen[i].axes, taken);
			taken = axes_join(&p->a, taken, f[i]);
		}
	}
	return mesh == NO_MESH ? 0 : shard_settled(&p->a, p->m, part_shard(p, x, (int)k, mesh, f), ir_vtype(p->m, fn, ir_in(fn, o, k)), false);
}

static void free_local(void *c) { ir_module_free(((struct spmd_call *)c)->local); }

struct err *part_ask(struct part *p, const struct ir_fn *fn, const struct ir_op *o, ir_shard *sh, ir_type *type, ir_fnid *f)
{
	uint32_t n = o->nin + o->nout, mesh = NO_MESH;
	const struct ir_blob_info *key = part_key(p->m, fn, o);
	struct spmd_call c = { .m = p->m, .a = &p->a, .target = ir_text(p->m, (ir_str)ir_attr(fn, o, AT_target)), .key = key->p, .nkey = key->n, .nin = o->nin, .n = n };
	struct str s = {0};
	for (uint32_t k = 0; k < o->nin; k++)
		if (!sh[k] && ir_splat(p->m, fn, ir_in(fn, o, k)))
			sh[k] = as_others(p, fn, o, sh, k);
	c.type = type;
	c.sharding = ARENA_NEW(&p->a, struct ir_blob_info, n + 1);
	c.tiles = ARENA_NEW(&p->a, struct spmd_tiles, n + 1);
	for (uint32_t i = 0; i < n; i++) {
		type[i] = fn->val.p[i < o->nin ? ir_in(fn, o, i) : o->out + i - o->nin].type;
		s.n = 0;
		spmd_op_sharding(&s, p->m, sh[i], ir_type_of(p->m, type[i])->rank, p->ndev);
		c.sharding[i] = (struct ir_blob_info){ arena_copy(&p->a, s.p, s.n), s.n };
		if (sh[i] && mesh == NO_MESH)
			mesh = p->m->shard.p[sh[i]].mesh;
	}
	str_free(&s);
	for (uint32_t k = 0; mesh == NO_MESH && k < p->m->mesh.n; k++)
		if (p->m->mesh.p[k].naxis && p->m->mesh.p[k].ndev == p->ndev)
			mesh = k;
	struct mem_undo u;
	struct err *e = NULL;
	mem_undo(&u, free_local, &c);
	TRY_GOTO(e, p->maker->partition(p->maker->user, &c), out);
	*f = ir_import(p->m, c.local);
	const struct ir_fn *g = ir_fn_of(p->m, *f);
	if (g->nparam != o->nin || g->result.n != o->nout) {
		e = ERR(INVALID, "a partition of '%s' into a program of %u arguments and %zu results", c.target, g->nparam, g->result.n);
		goto out;
	}
	for (uint32_t i = 0; i < n; i++) {
		bool in = i < o->nin;
		uint32_t k = in ? i : i - o->nin;
		TRY_GOTO(e, err_wrap(read_tiles(p, &c.tiles[i], ir_type_of(p->m, type[i]), mesh, &sh[i]), "a partition of '%s', %s %u", c.target, in ? "argument" : "result", k), out);
		type[i] = divided(p, type[i], &c.tiles[i]);
		if (part_type(p, type[i], sh[i], DT_token) != g->val.p[in ? i + 1 : g->result.p[k]].type) {
			e = ERR(INVALID, "a partition of '%s' whose program has another shape of %s %u than it says", c.target, in ? "argument" : "result", k);
			goto out;
		}
	}
out:
	mem_done(&u);
	free_local(&c);
	return e;
}

struct err *part_inspect(struct part *p, const struct ir_fn *fn, const struct ir_op *o, ir_shard h)
{
	const struct ir_blob_info *key = ir_key(p->m, ir_attr(fn, o, AT_key));
	const struct ir_mesh *mesh = p->apart.n ? &p->m->mesh.p[p->apart_of] : NULL;
	struct str s = {0};
	if (!key || !p->maker)
		return NULL;
	if (mesh && axes_size(p->apart) == mesh->ndev)
		spmd_op_sharding_manual(&s);
	else
		spmd_op_sharding(&s, p->m, h, ir_vtype(p->m, fn, ir_in(fn, o, 0))->rank, p->ndev);
	struct ir_blob_info sharding = { arena_copy(&p->a, s.p, s.n), s.n };
	str_free(&s);
	return p->maker->inspect(p->maker->user, key->p, key->n, &sharding);
}
