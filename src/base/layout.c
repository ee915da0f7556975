#include "base.h"

#include <stdlib.h>

static const struct layout *made(int rank, const int64_t *minor)
{
	union { struct layout l; char room[sizeof(struct layout) + sizeof(int64_t) * MAX_RANK]; } u = { .room = { 0 } };
	struct str s = { 0 };

	for (int k = 0; k < rank; k++)
		str_addf(&s, "%c%d", k ? ',' : '{', (int)minor[k]);
	str_add(&s, rank ? "}" : "{}");
	u.l.text = map_intern(s.p, s.n + 1);
	u.l.rank = rank;
	memcpy(u.room + sizeof u.l, minor, sizeof *minor * (size_t)rank);
	str_free(&s);
	return map_intern(&u, sizeof u.l + sizeof *minor * (size_t)rank);
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
		*out = made(rank, minor);
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

const struct layout *layout_of(const struct layout *l, int rank)
{
	static _Atomic(const struct layout *) rows[MAX_RANK + 1];
	int64_t minor[MAX_RANK];

	if (!l)
		l = atomic_load_explicit(&rows[rank], memory_order_acquire);
	if (!l) {
		for (int k = 0; k < rank; k++)
			minor[k] = rank - 1 - k;
		atomic_store_explicit(&rows[rank], l = made(rank, minor), memory_order_release);
	}
	return l;
}
