#include "base.h"

#include <pthread.h>
#include <stdlib.h>

/* The layout of that text, which is valid. */
static const struct layout *known(const char *text, int rank, const int64_t *minor)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct map all;
	struct mem_undo u;
	bool was = mem_persist(true);

	mem_lock(&u, &lock);
	uint64_t *v = map_put(&all, text, strlen(text));
	if (!*v) {
		size_t n = strlen(text) + 1;
		struct layout *l = mem_new(sizeof *l + sizeof *minor * (size_t)rank + n);
		l->rank = rank;
		memcpy(l->minor, minor, sizeof *minor * (size_t)rank);
		l->text = memcpy(l->minor + rank, text, n);
		*v = (uint64_t)(uintptr_t)l;
	}
	const struct layout *l = (const struct layout *)(uintptr_t)*v;
	mem_unlock(&u);
	mem_persist(was);
	return l;
}

static const struct layout *of(int rank, const int64_t *minor)
{
	struct str s = { 0 };

	for (int k = 0; k < rank; k++)
		str_addf(&s, "%c%d", k ? ',' : '{', (int)minor[k]);
	str_add(&s, rank ? "}" : "{}");
	const struct layout *l = known(s.p, rank, minor);
	str_free(&s);
	return l;
}

bool layout_new(int rank, const int64_t *minor, const struct layout **out)
{
	bool seen[MAX_RANK] = { false }, rows = true;

	*out = NULL;
	for (int k = 0; k < rank; k++) {
		if (minor[k] < 0 || minor[k] >= rank || seen[minor[k]])
			return false;
		seen[minor[k]] = true;
		rows &= minor[k] == rank - 1 - k;
	}
	if (!rows)
		*out = of(rank, minor);
	return true;
}

bool layout_read(const char *text, int rank, const struct layout **out)
{
	int64_t d[MAX_RANK];
	int n = 0;

	*out = NULL;
	if (!strcmp(text, "default"))
		return true;
	if (*text++ != '{')
		return false;
	for (char *end; n < rank && *text >= '0' && *text <= '9'; text = *end == ',' ? end + 1 : end)
		d[n++] = strtol(text, &end, 10);
	if (!strncmp(text, ":E(", 3))                /* bits of an element: those of its type */
		text += strcspn(text, "}");
	return n == rank && !strcmp(text, "}") && layout_new(rank, d, out);
}

const struct layout *layout_rows(int rank)
{
	static _Atomic(const struct layout *) rows[MAX_RANK + 1];
	const struct layout *l = atomic_load_explicit(&rows[rank], memory_order_acquire);
	int64_t minor[MAX_RANK];

	if (!l) {
		for (int k = 0; k < rank; k++)
			minor[k] = rank - 1 - k;
		atomic_store_explicit(&rows[rank], l = of(rank, minor), memory_order_release);
	}
	return l;
}
