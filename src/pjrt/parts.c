/* RONDO_REPRO: an executable each of whose devices is several of the runtime's, side by side.  What JAX has of a device is one array, on the first of
 * these: the others get their part of it, or the same, and what they make is put together. */
#include "impl.h"

/* Numbers in one field. */
static void packed(struct str *s, int field, const int64_t *v, int64_t n)
{
	struct str body = { 0 };

	for (int64_t i = 0; i < n; i++)
		pjrt_put(&body, (uint64_t)v[i]);
	pjrt_put_bytes(s, field, body.p, body.n);
	str_free(&body);
}

/* How tile k lies along dimension d. */
static int64_t along(const struct spmd_tiles *t, int64_t k, int d)
{
	for (int i = t->n - 1; i > d; i--)
		k /= t->dim[i];
	return k % t->dim[d];
}

/* Along which of its dimensions t has the parts of each device; -1: there is no such one. */
static int split(struct arena *a, const struct spmd_tiles *t, int ndev, int parts)
{
	int64_t *tile = ARENA_NEW(a, int64_t, ndev);

	for (int k = 0; k < ndev; k++)
		tile[t->device[k]] = k;
	for (int d = 0; d < t->n; d++) {
		bool all = true;
		for (int p = 0; p < ndev && all; p++) {
			int64_t step = 1;
			for (int i = d + 1; i < t->n; i++)
				step *= t->dim[i];
			int64_t first = tile[p - p % parts];
			all = along(t, first, d) % parts == 0 && tile[p] == first + p % parts * step;
		}
		if (all)
			return d;
	}
	return -1;
}

static struct err *lies(struct arena *a, const struct prog_arg *x, const char *what, int ndev, int parts, int *cut, struct str *sharding)
{
	enum { REPLICATED, OTHER = 3 };
	struct spmd_tiles t = { 0 };

	*cut = -1;
	if (x->sharding)
		TRY(pjrt_shardings_read((struct span){ x->sharding, x->nsharding }, a, &t, 1));
	if (!t.n)
		return str_addn(sharding, x->sharding, x->sharding ? x->nsharding : 0), NULL;
	int d = split(a, &t, ndev, parts);
	if (d < 0)
		return ERR(UNIMPLEMENTED, "%s is cut along a dimension by the last axis of the mesh and another one behind it, which RONDO_REPRO does not know: let the axis of which devices are counted come last there", what);
	*cut = d < x->rank ? d : -1;
	int64_t n = 0, tiles = 1;
	for (int k = 0; k < ndev; k++)
		if (along(&t, k, d) % parts == 0)
			t.device[n++] = t.device[k] / parts;
	t.dim[d] /= parts;
	if (t.dim[t.n - 1] == 1 && t.n > x->rank)
		t.n--;
	for (int i = 0; i < x->rank; i++)
		tiles *= t.dim[i];
	pjrt_put_int(sharding, 1, tiles > 1 ? OTHER : REPLICATED);
	if (tiles == 1)
		return NULL;
	packed(sharding, 3, t.dim, t.n);
	packed(sharding, 4, t.device, n);
	if (t.n > x->rank)
		pjrt_put_int(sharding, 6, 1);
	return NULL;
}

struct err *pjrt_parts_lie(const struct prog_arg *x, const char *what, int ndev, int parts, int *cut, struct str *sharding)
{
	struct arena a;

	arena_init(&a);
	struct err *e = lies(&a, x, what, ndev, parts, cut, sharding);
	arena_fini(&a);
	return e;
}

static struct rt_device *device(const struct pjrt_exec *x, int i, int v) { return rt_exec_device(x->x, i * x->parts + v); }

/* What the parts of device i get for parameter k, one each `step` pointers: new references. */
static struct err *give(const struct pjrt_exec *x, int i, size_t k, struct rt_buffer *b, struct rt_buffer **to, size_t step)
{
	int cut = x->arg.cut[k], n = x->parts, made = 0;

	for (int v = 0; v < n; v++) {
		struct rt_buffer **t = &to[(size_t)v * step];
		*t = NULL;
		if (cut >= 0) {
			TRY(rt_buffer_part(b, cut, v, n, device(x, i, v), t));
		} else if (!v) {
			*t = rt_buffer_ref(b);
		} else if (!(*t = rt_buffer_twin(b, v - 1))) {
			TRY(rt_buffer_copy(b, device(x, i, v), rt_buffer_mem(b), t));
			made++;
		}
	}
	if (made < n - 1 || cut >= 0)
		return NULL;
	struct rt_buffer **twin = malloc(sizeof *twin * (size_t)made);       /* the next launch finds them */
	for (int v = 1; v < n && twin; v++)
		twin[v - 1] = rt_buffer_ref(to[(size_t)v * step]);
	if (twin && !rt_buffer_twins(b, twin, made))
		for (int v = 0; v < made; v++)
			rt_buffer_unref(twin[v]);
	free(twin);
	return NULL;
}

/* One array of what the parts of device i have made as result r; they are taken.  part: room for as many. */
static struct rt_buffer *take(const struct pjrt_exec *x, int i, size_t r, struct rt_buffer *const *made, struct rt_buffer **part)
{
	int cut = x->res.cut[r], n = x->parts;
	struct rt_buffer *out;

	for (int v = 0; v < n; v++)
		part[v] = made[(size_t)v * x->res.n];
	if (cut < 0) {
		bool taken = rt_buffer_twins(part[0], part + 1, n - 1);
		for (int v = 1; v < n && !taken; v++)
			rt_buffer_unref(part[v]);
		return part[0];
	}
	struct err *e = rt_buffer_join(part, cut, n, device(x, i, 0), &out);
	if (e) {
		struct rt_shape s = *rt_buffer_shape(part[0]);
		s.dim[cut] *= n;
		out = rt_buffer_error(device(x, i, 0), rt_buffer_mem(part[0]), &s, e);
	}
	for (int v = 0; v < n; v++)
		rt_buffer_unref(part[v]);
	return out;
}

static bool kept(size_t k, const int64_t *no_donate, size_t nkeep)
{
	for (size_t i = 0; i < nkeep; i++)
		if (no_donate[i] == (int64_t)k)
			return true;
	return false;
}

size_t pjrt_parts_bytes(const struct pjrt_exec *x) { return sizeof(void *) * (size_t)x->parts * ((size_t)x->nlocal * (x->arg.n + x->res.n + 1) + 1); }

struct err *pjrt_parts_run(struct pjrt_exec *x, struct rt_buffer *const *arg, const int64_t *no_donate, size_t nkeep, int32_t launch_id,
                           struct rt_buffer **out, struct rt_event **done)
{
	size_t n = (size_t)x->nlocal, parts = (size_t)x->parts, narg = x->arg.n, nres = x->res.n;
	if (parts == 1)
		return rt_exec_run(x->x, arg, no_donate, nkeep, launch_id, out, done);
	void **p = spare_take(&x->wide);
	if (!p)
		return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", x->wide.size);
	struct rt_buffer **in = (struct rt_buffer **)p, **made = in + n * parts * narg, **some = made + n * parts * nres;
	struct rt_event **end = (struct rt_event **)(some + parts);
	struct err *e = NULL;
	memset(in, 0, sizeof *in * n * parts * narg);
	for (size_t i = 0; i < n && !e; i++)
		for (size_t k = 0; k < narg && !e; k++)
			e = give(x, (int)i, k, arg[i * narg + k], &in[i * parts * narg + k], narg);
	if (!e)
		e = rt_exec_run(x->x, in, no_donate, nkeep, launch_id, made, end);
	for (size_t j = 0; j < n * parts * narg; j++)
		rt_buffer_unref(in[j]);
	for (size_t k = 0; k < narg && !e; k++)
		if (x->arg.cut[k] >= 0 && x->prog->arg[k].alias != -1 && !kept(k, no_donate, nkeep))
			for (size_t i = 0; i < n; i++)
				rt_buffer_delete(arg[i * narg + k]);
	for (size_t i = 0; i < n && !e; i++) {
		for (size_t r = 0; r < nres; r++)
			out[i * nres + r] = take(x, (int)i, r, &made[i * parts * nres + r], some);
		done[i] = rt_event_all(&end[i * parts], (int)parts);
	}
	spare_give(&x->wide, p);
	return e;
}
