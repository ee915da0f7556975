/* Kinds of device.  `cpu` computes in host memory.  `far` is a cpu whose addresses are biased so that they
 * are no valid pointers: host code that forgets the device table faults at once. */
#include "impl.h"

/* Not canonical on x86-64 and beyond the user half elsewhere. */
#define FAR_BIAS ((rt_addr)1 << 62)

static struct err *cpu_alloc(struct rt_device *d, struct store *s, const char *what, int index)
{
	TRY(sym_alloc(d->heap, s->bytes, what, index, &s->block));
	s->addr = (rt_addr)(uintptr_t)(sym_base(d->heap) + s->block->off);
	return NULL;
}

static void cpu_free(struct rt_device *d, struct store *s)
{
	sym_free(s->block);
	s->block = NULL;
}

static void cpu_upload(struct rt_device *d, rt_addr dst, const void *src, size_t n) { memcpy((void *)(uintptr_t)dst, src, n); }
static void cpu_download(struct rt_device *d, void *dst, rt_addr src, size_t n) { memcpy(dst, (void *)(uintptr_t)src, n); }
static void cpu_copy(struct rt_device *d, rt_addr dst, rt_addr src, size_t n) { memcpy((void *)(uintptr_t)dst, (void *)(uintptr_t)src, n); }
static char *cpu_enter(struct rt_device *d, rt_addr a) { return (char *)(uintptr_t)a; }

static struct err *far_alloc(struct rt_device *d, struct store *s, const char *what, int index)
{
	TRY(cpu_alloc(d, s, what, index));
	s->addr |= FAR_BIAS;
	return NULL;
}

static void *far_ptr(rt_addr a)
{
	assert(a & FAR_BIAS);
	return (void *)(uintptr_t)(a & ~FAR_BIAS);
}

static void far_upload(struct rt_device *d, rt_addr dst, const void *src, size_t n) { memcpy(far_ptr(dst), src, n); }
static void far_download(struct rt_device *d, void *dst, rt_addr src, size_t n) { memcpy(dst, far_ptr(src), n); }
static void far_copy(struct rt_device *d, rt_addr dst, rt_addr src, size_t n) { memcpy(far_ptr(dst), far_ptr(src), n); }
static char *far_enter(struct rt_device *d, rt_addr a) { return far_ptr(a); }

static const struct rt_device_ops kinds[] = {
	{ "cpu", true, cpu_alloc, cpu_free, cpu_upload, cpu_download, cpu_copy, cpu_enter },
	{ "far", false, far_alloc, cpu_free, far_upload, far_download, far_copy, far_enter },
};

const struct rt_device_ops *rt_device_ops_find(const char *name)
{
	for (size_t i = 0; i < NELEM(kinds); i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	return NULL;
}

int rt_device_id(const struct rt_device *d) { return d->id; }
int rt_device_local(const struct rt_device *d) { return d->local; }
void rt_device_tag(struct rt_device *d, void *user) { d->user = user; }
void *rt_device_user(const struct rt_device *d) { return d->user; }

struct rt_stats rt_device_stats(struct rt_device *d)
{
	struct sym_stats s = sym_heap_stats(d->heap);

	return (struct rt_stats){ s.in_use, s.peak, s.limit, s.allocs, s.largest, s.reserved };
}

void rt_device_clear_stats(struct rt_device *d) { sym_heap_clear_stats(d->heap); }

/* --- the walker's bell -------------------------------------------------------- */

uint32_t device_bell(struct rt_device *d)
{
	atomic_fetch_add(&d->bell, 1);
	return atomic_load(&d->asleep) ? device_bit(d) : 0;
}

void device_wake(struct rt_client *c, uint32_t who)
{
	if (!who)
		return;
	atomic_fetch_add(&c->bell, 1);
	sym_wake_in(&c->bell, who);
}

/* --- stores ---------------------------------------------------------------- */

static struct spare stores = SPARE(sizeof(struct store));

bool store_spares(size_t n, struct store **out) { return spare_take_all(&stores, n, (void **)out); }
void store_spare(struct store *s) { spare_give(&stores, s); }
void store_fill(size_t n) { spare_fill(&stores, n); }

struct store *store_init(struct store *s, struct rt_device *d, int mem, size_t bytes)
{
	atomic_init(&s->ref, 1);
	atomic_init(&s->hold, 0);
	atomic_init(&s->handles, 0);
	s->dev = d;
	s->mem = mem;
	s->block = NULL;
	s->host = NULL;
	s->addr = 0;
	s->bytes = bytes;
	client_ref(d->c);
	return s;
}

struct store *store_new(struct rt_device *d, int mem, size_t bytes)
{
	struct store *s = spare_take_free(&stores);

	return s ? store_init(s, d, mem, bytes) : NULL;
}

struct err *no_room(size_t n) { return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", n); }

struct err *store_alloc(struct store *s, const char *what, int index)
{
	if (!s)
		return no_room(sizeof *s);
	if (!s->mem)
		return s->dev->ops->alloc(s->dev, s, what, index);
	if (posix_memalign(&s->host, 64, MAX(s->bytes, 64))) {
		s->host = NULL;
		return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes for %s", s->bytes, what);
	}
	s->addr = (rt_addr)(uintptr_t)s->host;
	return NULL;
}

bool zones_drop(struct rt_client *c)
{
	bool any = false;

	for (int i = 0; i < c->ndev; i++) {
		struct rt_device *d = &c->dev[i];
		uint32_t idle = 0;
		if (!atomic_compare_exchange_strong(&d->state, &idle, STATE_INLINE))
			continue;
		any |= d->room.zone != NULL;
		store_unref(d->room.zone);
		d->room.zone = NULL;
		atomic_store(&d->zoned, 0);
		atomic_fetch_and(&d->state, ~STATE_INLINE);
	}
	return any;
}

struct err *store_alloc_idle(struct store *s, const char *what, int index)
{
	struct err *e = store_alloc(s, what, index);

	if (!e || e->code != ERR_EXHAUSTED || !s || s->mem || !zones_drop(s->dev->c))
		return e;
	err_free(e);
	return store_alloc(s, what, index);
}

void store_unref(struct store *s)
{
	if (!s || !ref_drop(&s->ref))
		return;
	struct rt_client *c = s->dev->c;
	if (s->block)
		s->dev->ops->free(s->dev, s);
	free(s->host);
	spare_give(&stores, s);
	client_unref(c);
}

void store_upload(struct store *s, size_t off, const void *src, size_t n)
{
	if (s->mem)
		memcpy((char *)s->host + off, src, n);
	else if (n)
		s->dev->ops->upload(s->dev, s->addr + off, src, n);
}

void store_download(struct store *s, size_t off, void *dst, size_t n)
{
	if (s->mem)
		memcpy(dst, (char *)s->host + off, n);
	else if (n)
		s->dev->ops->download(s->dev, dst, s->addr + off, n);
}

void store_copy(struct store *dst, size_t doff, struct store *src, size_t soff, size_t n)
{
	if (!n)
		return;
	if (src->mem)
		store_upload(dst, doff, (char *)src->host + soff, n);
	else if (dst->mem)
		store_download(src, soff, (char *)dst->host + doff, n);
	else
		dst->dev->ops->copy(dst->dev, dst->addr + doff, src->addr + soff, n);
}
