#include "../kern/kern.h"
#include "impl.h"

/* Copies of at most this many bytes are done where they stand; larger ones go to the side lane, unless the
 * caller would have to wait for them anyway. */
enum { SMALL_COPY = 1 << 20 };

int64_t rt_shape_bytes(const struct rt_shape *s)
{
	int64_t n = dtype_info[s->dtype].bytes;

	for (int i = 0; i < s->rank; i++)
		n *= s->dim[i];
	return n;
}

static struct spare buffers = SPARE(sizeof(struct rt_buffer));

bool buffer_spares(size_t n, struct rt_buffer **out) { return spare_take_all(&buffers, n, (void **)out); }
void buffer_spare(struct rt_buffer *b) { spare_give(&buffers, b); }
void buffer_fill(size_t n) { spare_fill(&buffers, n); }

struct rt_buffer *buffer_init(struct rt_buffer *b, struct rt_device *d, int mem, enum dtype dt, const struct layout *layout, int rank, const int64_t *dim, struct store *st, struct rt_event *ready)
{
	atomic_init(&b->ref, 1);
	atomic_flag_clear_explicit(&b->lock, memory_order_relaxed);
	atomic_init(&b->deleted, false);
	b->mem = mem;
	b->dev = d;
	b->st = st;
	b->of = NULL;
	b->held = b->late = NULL;
	b->nheld = b->ntwin = 0;
	b->twin = NULL;
	b->ready = ready;
	b->mark = b->twice = 0;
	b->shape.dtype = dt;
	b->shape.rank = rank;
	b->shape.layout = layout;
	b->bytes = dtype_info[dt].bytes;
	for (int i = 0; i < rank; i++)
		b->bytes *= b->shape.dim[i] = dim[i];
	return b;
}

struct rt_buffer *buffer_new(struct rt_device *d, int mem, const struct rt_shape *s, struct store *st, struct rt_event *ready)
{
	struct rt_buffer *b = spare_take_free(&buffers);

	if (b && st)
		atomic_fetch_add_explicit(&st->handles, 1, memory_order_relaxed);
	return b ? buffer_init(b, d, mem, s->dtype, s->layout, s->rank, s->dim, st, ready) : NULL;
}

static struct rt_event *failed(struct err *e);

static void late(struct err *e, void *user)
{
	struct rt_buffer *b = user;

	err_free(e);
	store_unref(b->late);
	b->late = NULL;
	rt_buffer_unref(b);
}

/* s, which b showed until now, is let go of.  False: when b is ready; until then b has one reference more. */
static bool store_drop(struct rt_buffer *b, struct store *s)
{
	if (!s)
		return true;
	atomic_fetch_sub(&s->handles, 1);
	if (!rt_event_ready(buffer_ready(b))) {
		b->late = s;
		b->then = (struct callback){ .fn = late, .user = b, .lent = true };
		rt_buffer_ref(b);
		if (event_then(buffer_ready(b), &b->then))
			return false;
		atomic_fetch_sub_explicit(&b->ref, 1, memory_order_relaxed);
	}
	store_unref(s);
	return true;
}

/* What st is about is under this lock. */
static void lock(struct rt_buffer *b) { spin_lock(b->of ? &b->of->lock : &b->lock); }
static void unlock(struct rt_buffer *b) { spin_unlock(b->of ? &b->of->lock : &b->lock); }

static struct store *shown(const struct rt_buffer *b)
{
	return b->of && atomic_load_explicit(&b->of->gone, memory_order_acquire) ? NULL : b->st;
}

/* From now on b is not as the others of its relay. */
static void differ(struct rt_buffer *b)
{
	if (b->of)
		b->of->odd = true;
}

struct store *buffer_store(struct rt_buffer *b)
{
	lock(b);
	struct store *s = shown(b);
	if (s)
		store_ref(s);
	unlock(b);
	return s;
}

/* The same for a copy that begins: nobody takes the storage before it is done.  Pairs with copied. */
static struct store *store_to_copy(struct rt_buffer *b)
{
	lock(b);
	struct store *s = shown(b);
	if (s) {
		store_ref(s);
		atomic_fetch_add(&s->hold, 1);
		differ(b);
	}
	unlock(b);
	return s;
}

static void copied(struct store *s)
{
	atomic_fetch_sub(&s->hold, 1);
	store_unref(s);
}

static struct err *deleted_error(const struct rt_buffer *b)
{
	return ERR(INVALID, "buffer of device %d has been deleted or donated", b->dev->id);
}

/* The references that b's twins are; n: their number.  Under its lock, or when nobody else has it. */
static struct rt_buffer **twins_leave(struct rt_buffer *b, int *n)
{
	struct rt_buffer **t = b->twin;

	*n = b->ntwin;
	b->twin = NULL;
	b->ntwin = 0;
	return t;
}

static void twins_drop(struct rt_buffer **t, int n)
{
	for (int i = 0; i < n; i++)
		rt_buffer_unref(t[i]);
	free(t);
}

struct rt_buffer *rt_buffer_ref(struct rt_buffer *b)
{
	atomic_fetch_add_explicit(&b->ref, 1, memory_order_relaxed);
	return b;
}

void rt_buffer_unref(struct rt_buffer *b)
{
	if (!b || !ref_drop(&b->ref))
		return;
	struct store *s = shown(b);
	b->st = NULL;
	int n;
	struct rt_buffer **twin = twins_leave(b, &n);
	twins_drop(twin, n);
	if (!store_drop(b, s))
		return;
	store_unref(b->held);
	if (!b->of) {
		rt_event_unref(b->ready);
		spare_give(&buffers, b);
		return;
	}
	b->held = NULL;
	b->nheld = 0;
	atomic_store_explicit(&b->deleted, false, memory_order_relaxed);
	atomic_store_explicit(&b->ref, 1, memory_order_relaxed);
	relay_left(b->of);
}

const struct rt_shape *rt_buffer_shape(const struct rt_buffer *b) { return &b->shape; }
struct rt_device *rt_buffer_device(const struct rt_buffer *b) { return b->dev; }
int rt_buffer_mem(const struct rt_buffer *b) { return b->mem; }
struct rt_event *rt_buffer_ready(struct rt_buffer *b) { return buffer_ready(b); }

bool rt_buffer_deleted(const struct rt_buffer *b)
{
	return atomic_load_explicit(&b->deleted, memory_order_acquire) || (b->of && atomic_load_explicit(&b->of->gone, memory_order_acquire));
}

void rt_buffer_delete(struct rt_buffer *b)
{
	lock(b);
	struct store *s = shown(b);
	if (s)
		b->st = NULL;
	atomic_store(&b->deleted, true);
	differ(b);
	int n;
	struct rt_buffer **twin = twins_leave(b, &n);
	unlock(b);
	twins_drop(twin, n);
	store_drop(b, s);
}

bool rt_buffer_twins(struct rt_buffer *b, struct rt_buffer *const *others, int n)
{
	struct rt_buffer **t = malloc(sizeof *t * (size_t)n);

	if (!t)
		return false;
	memcpy(t, others, sizeof *t * (size_t)n);
	lock(b);
	bool some = b->twin != NULL || !shown(b);
	if (!some) {
		b->twin = t;
		b->ntwin = n;
	}
	unlock(b);
	if (some)
		free(t);
	return !some;
}

struct rt_buffer *rt_buffer_twin(struct rt_buffer *b, int i)
{
	lock(b);
	struct rt_buffer *t = i < b->ntwin && !rt_buffer_deleted(b->twin[i]) ? rt_buffer_ref(b->twin[i]) : NULL;
	unlock(b);
	return t;
}

void rt_buffer_hold(struct rt_buffer *b)
{
	lock(b);
	if (shown(b) && !b->nheld) {
		b->held = b->st;
		store_ref(b->held);
	}
	if (b->held) {
		b->nheld++;
		atomic_fetch_add(&b->held->hold, 1);
	}
	differ(b);
	unlock(b);
}

void rt_buffer_release(struct rt_buffer *b)
{
	struct store *s = NULL;

	lock(b);
	if (b->nheld) {
		atomic_fetch_sub(&b->held->hold, 1);
		if (!--b->nheld) {
			s = b->held;
			b->held = NULL;
		}
	}
	unlock(b);
	store_unref(s);
}

bool buffer_take(struct rt_buffer *b, uint64_t mark, struct store **out)
{
	lock(b);
	struct store *s = shown(b);
	bool ok = s && b->twice != mark && !atomic_load(&s->hold) && atomic_load(&s->handles) == 1;
	if (ok) {
		b->st = NULL;
		atomic_store_explicit(&b->deleted, true, memory_order_release);
		differ(b);
	} else if (s)
		store_ref(s);
	unlock(b);
	*out = s;
	return ok;
}

void buffer_untake(struct rt_buffer *b, struct store *s)
{
	lock(b);
	b->st = s;
	atomic_store_explicit(&b->deleted, false, memory_order_release);
	unlock(b);
}

void *rt_buffer_host_ptr(struct rt_buffer *b)
{
	lock(b);
	struct store *s = shown(b);
	void *p = !s || !s->addr ? NULL : s->mem ? s->host : s->dev->ops->plain ? (void *)(uintptr_t)s->addr : NULL;
	unlock(b);
	return p;
}

uint64_t rt_buffer_addr(struct rt_buffer *b)
{
	lock(b);
	struct store *s = shown(b);
	uint64_t a = s ? s->addr : 0;
	unlock(b);
	return a;
}

/* --- from the host ---------------------------------------------------------- */

struct gathering { char *dst; const char *src; int es, rank; const int64_t *dim, *stride; };

static struct err *gathered(void *user)
{
	static const enum dtype by_bytes[] = { [1] = DT_u8, [2] = DT_u16, [4] = DT_u32, [8] = DT_u64, [16] = DT_c128 };
	const struct gathering *g = user;
	int64_t dim[MAX_RANK + 1], from[MAX_RANK + 1], to[MAX_RANK + 1], dense = 1;
	int n = 0, unit = g->es;

	for (int k = 0; k < g->rank; k++)
		if (g->dim[k] != 1 && g->stride[k] % g->es)
			unit = 1;                     /* elements that lie across each other's bounds are bytes */
	for (int k = 0; k < g->rank; k++)
		if (g->dim[k] != 1) {
			dim[n] = g->dim[k];
			from[n++] = g->stride[k] / unit;
		}
	if (unit != g->es) {
		dim[n] = g->es;
		from[n++] = 1;
	}
	for (int k = n; k-- > 0; dense *= dim[k])
		to[k] = dense;
	uint8_t dt = (uint8_t)by_bytes[unit], rank = (uint8_t)n;
	struct prog_view v[2] = { { dt, rank, 0, dim, from }, { dt, rank, 0, dim, to } };
	return kern_run_all(&(struct prog_kern){ .id = KERN_copy, .nin = 1, .nout = 1, .v = v, .code = -1 }, (char *[]){ (char *)(uintptr_t)g->src, g->dst });
}

/* A strided array, of elements of es bytes, becomes dense dst; strides in bytes, of any sign. */
static struct err *gather(char *dst, const char *src, size_t es, int rank, const int64_t *dim, const int64_t *stride)
{
	return mem_guard(gathered, &(struct gathering){ dst, src, (int)es, rank, dim, stride }, true);
}

/* The dimension that is the k-th from the outermost. */
static int lies(const struct layout *l, int rank, int k) { return l ? (int)l->minor[rank - 1 - k] : k; }

static void strides(const struct rt_shape *s, const struct layout *l, int64_t *stride)
{
	int64_t step = dtype_info[s->dtype].bytes;

	for (int k = s->rank; k-- > 0; step *= s->dim[lies(l, s->rank, k)])
		stride[lies(l, s->rank, k)] = step;
}

void rt_shape_strides(const struct rt_shape *s, int64_t *stride) { strides(s, s->layout, stride); }

static struct err *shape_check(const struct rt_shape *s)
{
	if (s->dtype <= 0 || s->dtype >= DT_COUNT || !dtype_info[s->dtype].name)
		return ERR(INVALID, "element type %d is unknown", (int)s->dtype);
	if (s->rank < 0 || s->rank > MAX_RANK)
		return ERR(INVALID, "rank %d is not between 0 and %d", s->rank, MAX_RANK);
	int64_t n = dtype_info[s->dtype].bytes;
	for (int i = 0; i < s->rank; i++)
		if (s->dim[i] < 0 || __builtin_mul_overflow(n, MAX(s->dim[i], 1), &n))
			return ERR(INVALID, "extent %lld of dimension %d is out of range", (long long)s->dim[i], i);
	return NULL;
}

struct err *rt_buffer_uninit(struct rt_device *d, int mem, const struct rt_shape *s, struct rt_buffer **out)
{
	TRY(shape_check(s));
	struct store *st = store_new(d, mem, (size_t)rt_shape_bytes(s));
	struct err *e = store_alloc_idle(st, "an array from the host", -1);
	if (e) {
		store_unref(st);
		return e;
	}
	if (!(*out = buffer_new(d, mem, s, st, &event_ok))) {
		store_unref(st);
		return no_room(sizeof **out);
	}
	return NULL;
}

struct err *rt_buffer_from_host(struct rt_device *d, int mem, const struct rt_shape *s, const void *data,
                                const int64_t *byte_stride, struct rt_buffer **out)
{
	TRY(rt_buffer_uninit(d, mem, s, out));
	struct store *st = (*out)->st;
	size_t n = st->bytes, elem = dtype_info[s->dtype].bytes;
	int64_t from[MAX_RANK], to[MAX_RANK], dim[MAX_RANK], step[MAX_RANK];
	bool dense = true;

	if (!n)
		return NULL;
	strides(s, NULL, from);
	strides(s, s->layout, to);
	if (byte_stride)
		memcpy(from, byte_stride, sizeof *from * (size_t)s->rank);
	for (int k = 0; k < s->rank; k++) {
		int at = lies(s->layout, s->rank, k);
		dim[k] = s->dim[at];
		step[k] = from[at];
		dense &= s->dim[at] == 1 || from[at] == to[at];
	}
	bool plain = st->mem || d->ops->plain;
	char *tmp = dense || plain ? NULL : malloc(n);
	struct err *e = !dense && !plain && !tmp ? no_room(n) : NULL;
	if (!dense && !e)
		e = gather(plain ? store_enter(st) : tmp, data, elem, s->rank, dim, step);
	if (!e && (dense || !plain))
		store_upload(st, 0, dense ? data : tmp, n);
	free(tmp);
	if (e)
		rt_buffer_unref(*out);
	return e;
}

struct rt_buffer *rt_buffer_error(struct rt_device *d, int mem, const struct rt_shape *s, struct err *e)
{
	struct rt_event *ev = failed(e ? e : ERR(INTERNAL, "buffer without content"));
	struct store *st = store_new(d, mem, (size_t)rt_shape_bytes(s));
	struct rt_buffer *b = st ? buffer_new(d, mem, s, st, ev) : NULL;

	if (!b) {
		store_unref(st);
		rt_event_unref(ev);
	}
	return b;
}

/* --- copies ------------------------------------------------------------------ */

struct copy {
	struct store *src, *dst;      /* dst NULL: to host memory at p */
	size_t off, n;
	void *p;
	const struct rt_shape *whole; /* all of it, which lies as this says, is to lie as `as`; NULL: bytes as they are */
	const struct layout *as;
	struct rt_event *done;
	struct err *err;
	struct rt_client *c;
};

static struct err *read_as(struct store *src, const struct rt_shape *s, const struct layout *as, char *to)
{
	int64_t from[MAX_RANK], dim[MAX_RANK], step[MAX_RANK];
	bool plain = src->mem || src->dev->ops->plain;
	char *tmp = plain ? NULL : malloc(src->bytes);

	if (!plain && !tmp)
		return no_room(src->bytes);
	if (!plain)
		store_download(src, 0, tmp, src->bytes);
	rt_shape_strides(s, from);
	for (int k = 0; k < s->rank; k++) {
		dim[k] = s->dim[lies(as, s->rank, k)];
		step[k] = from[lies(as, s->rank, k)];
	}
	struct err *e = src->bytes ? gather(to, plain ? store_enter(src) : tmp, dtype_info[s->dtype].bytes, s->rank, dim, step) : NULL;
	free(tmp);
	return e;
}

static struct err *copy_now(const struct copy *k)
{
	if (k->whole)
		return read_as(k->src, k->whole, k->as, k->p);
	if (k->dst)
		store_copy(k->dst, 0, k->src, k->off, k->n);
	else
		store_download(k->src, k->off, k->p, k->n);
	return NULL;
}

/* A copy has ended, and gives back what it had of both. */
static void over(struct rt_event *done, struct err *e, struct rt_client *c)
{
	rt_event_set(done, e);
	rt_event_unref(done);
	client_unref(c);
}

static void copy_do(void *user)
{
	struct copy *k = user;

	if (!k->err)
		k->err = copy_now(k);
	copied(k->src);
	store_unref(k->dst);
	over(k->done, k->err, k->c);
	free(k);
}

static void copy_ready(struct err *e, void *user)
{
	struct copy *k = user;

	k->err = e;
	if (e || k->n <= SMALL_COPY / 16)
		copy_do(k);
	else
		client_side(k->c, copy_do, k);
}

/* what: of b, its src of store_to_copy, and taken; the event and what follows are filled in here. */
static struct rt_event *copy_start(struct rt_buffer *b, struct copy what)
{
	struct rt_event *r = buffer_ready(b);

	if (atomic_load_explicit(&r->state, memory_order_acquire) == 1 && what.n <= SMALL_COPY) {
		struct err *e = copy_now(&what);
		copied(what.src);
		return e ? failed(e) : &event_ok;
	}
	struct copy *k = malloc(sizeof *k + (what.whole ? sizeof *what.whole : 0));
	struct rt_event *end = rt_event_new();
	if (!k || !end) {
		free(k);
		rt_event_unref(end);
		copied(what.src);
		return &event_none;
	}
	*k = what;
	k->done = end;
	k->c = b->dev->c;
	if (k->whole)
		k->whole = memcpy(k + 1, k->whole, sizeof *k->whole);
	if (k->dst)
		store_ref(k->dst);
	client_ref(k->c);
	struct rt_event *done = rt_event_ref(k->done);
	if (!rt_event_on_ready(r, copy_ready, k))
		copy_ready(no_room(sizeof *k), k);
	return done;
}

static struct rt_event *failed(struct err *e)
{
	struct rt_event *ev = rt_event_new();

	if (!ev) {
		err_free(e);
		return &event_none;
	}
	rt_event_set(ev, e);
	return ev;
}

struct rt_event *rt_buffer_to_host(struct rt_buffer *b, int64_t off, int64_t n, void *dst)
{
	struct store *s = store_to_copy(b);

	if (!s)
		return failed(deleted_error(b));
	if (off < 0 || n < 0 || (uint64_t)off + (uint64_t)n > s->bytes) {
		copied(s);
		return failed(ERR(OUT_OF_RANGE, "bytes %lld..%lld of a buffer of %lld bytes", (long long)off, (long long)(off + n), (long long)rt_shape_bytes(&b->shape)));
	}
	rt_event_ask(buffer_ready(b));
	return copy_start(b, (struct copy){ .src = s, .off = (size_t)off, .n = (size_t)n, .p = dst });
}

struct rt_event *rt_buffer_read(struct rt_buffer *b, const struct layout *as, void *dst)
{
	if (b->shape.layout == as)
		return rt_buffer_to_host(b, 0, rt_shape_bytes(&b->shape), dst);
	struct store *s = store_to_copy(b);
	if (!s)
		return failed(deleted_error(b));
	rt_event_ask(buffer_ready(b));
	return copy_start(b, (struct copy){ .src = s, .n = s->bytes, .p = dst, .whole = &b->shape, .as = as });
}

struct err *rt_buffer_copy(struct rt_buffer *b, struct rt_device *d, int mem, struct rt_buffer **out)
{
	struct store *s = store_to_copy(b);

	if (!s)
		return deleted_error(b);
	struct store *dst = store_new(d, mem, s->bytes);
	struct err *e = store_alloc_idle(dst, "a copy of an array", -1);
	if (e) {
		store_unref(dst);
		copied(s);
		return e;
	}
	struct rt_event *ready = copy_start(b, (struct copy){ .src = s, .dst = dst, .n = s->bytes });
	if (!(*out = buffer_new(d, mem, &b->shape, dst, ready))) {
		store_unref(dst);
		rt_event_unref(ready);
		return no_room(sizeof **out);
	}
	return NULL;
}

/* Parts of an array along one dimension: `rows` times `run` bytes of each, which lie `step` apart in the whole, behind those of the part before. */
struct parts {
	struct store *whole;
	bool join;                    /* into the whole, else out of it */
	size_t rows, run, step;
	struct rt_client *c;
	struct rt_event *done;
	struct err *err;
	int first, n;                 /* part[0] is number `first` */
	struct store *part[];
};

static void parts_do(void *user)
{
	struct parts *k = user;

	for (int i = 0; i < k->n && !k->err; i++)
		for (size_t r = 0; r < k->rows; r++) {
			size_t at = r * k->step + (size_t)(k->first + i) * k->run;
			if (k->join)
				store_copy(k->whole, at, k->part[i], r * k->run, k->run);
			else
				store_copy(k->part[i], r * k->run, k->whole, at, k->run);
		}
	for (int i = 0; i < k->n; i++)
		store_unref(k->part[i]);
	if (k->join)
		store_unref(k->whole);
	else
		copied(k->whole);
	over(k->done, k->err, k->c);
	free(k);
}

static void parts_ready(struct err *e, void *user)
{
	struct parts *k = user;

	k->err = e;
	if (e || k->rows * k->run * (size_t)k->n <= SMALL_COPY / 16)
		parts_do(k);
	else
		client_side(k->c, parts_do, k);
}

/* For n of `all` parts of shape s, along d.  *out: what is made, of shape `made`, on device `to`. */
static struct err *parts_new(const struct rt_shape *s, int d, int all, int n, const struct rt_shape *made, int mem, struct rt_device *to, struct parts **k, struct rt_buffer **out)
{
	struct rt_event *done = rt_event_new();
	struct err *e = (*k = malloc(sizeof **k + sizeof *(*k)->part * (size_t)n)) && done ? rt_buffer_uninit(to, mem, made, out) : no_room(sizeof **k);

	if (e) {
		free(*k);
		rt_event_unref(done);
		return e;
	}
	int64_t run = dtype_info[s->dtype].bytes, rows = 1;
	int at = s->rank - 1;
	for (; lies(s->layout, s->rank, at) != d; at--)
		run *= s->dim[lies(s->layout, s->rank, at)];
	for (int outer = 0; outer < at; outer++)
		rows *= s->dim[lies(s->layout, s->rank, outer)];
	run *= s->dim[d];
	**k = (struct parts){ .rows = (size_t)rows, .run = (size_t)run, .step = (size_t)run * (size_t)all, .c = to->c, .done = done, .n = n };
	(*out)->ready = rt_event_ref(done);
	client_ref(to->c);
	return NULL;
}

static void parts_when(struct rt_event *ready, struct parts *k)
{
	if (!rt_event_on_ready(ready, parts_ready, k))
		parts_ready(no_room(sizeof(struct callback)), k);
}

struct err *rt_buffer_part(struct rt_buffer *b, int d, int i, int n, struct rt_device *to, struct rt_buffer **out)
{
	struct rt_shape s = b->shape;
	struct parts *k;
	struct store *from = store_to_copy(b);

	if (!from)
		return deleted_error(b);
	s.dim[d] /= n;
	struct err *e = parts_new(&s, d, n, 1, &s, b->mem, to, &k, out);
	if (e) {
		copied(from);
		return e;
	}
	k->whole = from;
	k->first = i;
	k->part[0] = (*out)->st;
	store_ref(k->part[0]);
	parts_when(buffer_ready(b), k);
	return NULL;
}

struct err *rt_buffer_join(struct rt_buffer *const *part, int d, int n, struct rt_device *to, struct rt_buffer **out)
{
	struct rt_shape s = part[0]->shape;
	struct parts *k;
	struct rt_event **ready = malloc(sizeof *ready * (size_t)n);

	if (!ready)
		return no_room(sizeof *ready * (size_t)n);
	s.dim[d] *= n;
	struct err *e = parts_new(&part[0]->shape, d, n, n, &s, part[0]->mem, to, &k, out);
	if (!e) {
		k->join = true;
		k->whole = (*out)->st;
		store_ref(k->whole);
		for (int i = 0; i < n; i++) {
			k->part[i] = buffer_store(part[i]);
			ready[i] = rt_event_ref(buffer_ready(part[i]));
		}
		struct rt_event *all = rt_event_all(ready, n);
		parts_when(all, k);
		rt_event_unref(all);
	}
	free(ready);
	return e;
}

struct err *rt_buffer_bitcast(struct rt_buffer *b, const struct rt_shape *s, struct rt_buffer **out)
{
	TRY(shape_check(s));
	if (rt_shape_bytes(s) != rt_shape_bytes(&b->shape))
		return ERR(INVALID, "bitcast of %lld bytes to %lld bytes", (long long)rt_shape_bytes(&b->shape), (long long)rt_shape_bytes(s));
	struct rt_buffer *n = spare_take_free(&buffers);
	if (!n)
		return no_room(sizeof *n);
	lock(b);
	struct store *st = shown(b);
	if (st) {
		store_ref(st);
		atomic_fetch_add(&st->handles, 1);       /* from here on no launch takes it */
		differ(b);
	}
	unlock(b);
	if (!st) {
		buffer_spare(n);
		return deleted_error(b);
	}
	*out = buffer_init(n, b->dev, b->mem, s->dtype, s->layout, s->rank, s->dim, st, rt_event_ref(buffer_ready(b)));
	return NULL;
}
