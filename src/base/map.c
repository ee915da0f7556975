/* Open addressing with linear probing; keys are copied.  Never more than 3/4 full. */
#include "base.h"

#include <pthread.h>
#include <stdlib.h>

struct map_slot { uint64_t hash; void *key; size_t n; uint64_t value; };

/* wyhash-like mixing (Wang Yi, public domain idea): multiply to 128 bits and fold. */
static uint64_t mix(uint64_t a, uint64_t b)
{
	__uint128_t r = (__uint128_t)a * b;
	return (uint64_t)r ^ (uint64_t)(r >> 64);
}

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed)
{
	const unsigned char *c = p;
	/* Mixed before anything meets it, and once more at the end: no difference of two seeds is undone by one of the data, and what is
	 * alike under one seed is not under another. */
	const uint64_t s = mix(seed ^ 0x9e3779b97f4a7c15u, 0x8ebc6af09c88c6e3u);
	uint64_t h = s, w;
	size_t left = n;
	for (; left >= 8; left -= 8, c += 8) {
		memcpy(&w, c, 8);
		h = mix(h ^ w, 0xd6e8feb86659fd93u);
	}
	w = 0;
	if (left)
		memcpy(&w, c, left);
	h = mix(h ^ w, 0xa0761d6478bd642fu);
	return mix(h ^ n, 0xe7037ed1a0b428dbu ^ s);
}

void map_free(struct map *m)
{
	for (size_t i = 0; i < m->cap; i++)
		free(m->slot[i].key);
	free(m->slot);
	*m = (struct map){0};
}

void map_keep(const struct map *m)
{
	mem_keep(m->slot);
	for (size_t i = 0; i < m->cap; i++)
		mem_keep(m->slot[i].key);
}

static struct map_slot *find(const struct map *m, uint64_t h, const void *key, size_t n)
{
	for (size_t i = h & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
		struct map_slot *s = &m->slot[i];
		if (!s->key || (s->hash == h && s->n == n && memcmp(s->key, key, n) == 0))
			return s;
	}
}

uint64_t *map_get(const struct map *m, const void *key, size_t n)
{
	if (!m->cap)
		return NULL;
	struct map_slot *s = find(m, hash_bytes(key, n, 0), key, n);
	return s->key ? &s->value : NULL;
}

uint64_t *map_put(struct map *m, const void *key, size_t n)
{
	if (m->n * 4 >= m->cap * 3) {
		struct map old = *m;
		size_t cap = old.cap ? old.cap * 2 : 16;
		m->slot = mem_alloc(cap * sizeof *m->slot);
		m->cap = cap;
		for (size_t i = 0; i < old.cap; i++)
			if (old.slot[i].key)
				*find(m, old.slot[i].hash, old.slot[i].key, old.slot[i].n) = old.slot[i];
		free(old.slot);
	}
	uint64_t h = hash_bytes(key, n, 0);
	struct map_slot *s = find(m, h, key, n);
	if (!s->key) {
		s->key = mem_alloc(n + 1);
		if (n)
			memcpy(s->key, key, n);
		s->hash = h;
		s->n = n;
		m->n++;
	}
	return &s->value;
}

const void *map_intern(const void *p, size_t n)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct map all;
	struct mem_undo u;
	bool was = mem_persist(true);

	mem_lock(&u, &lock);
	uint64_t *v = map_put(&all, p, n);
	if (!*v)
		*v = (uint64_t)(uintptr_t)memcpy(mem_new(n), p, n);
	const void *r = (const void *)(uintptr_t)*v;
	mem_unlock(&u);
	mem_persist(was);
	return r;
}
