/* Collectives in two halves, as JAX has them since 0.11: custom calls "all-reduce-start" and "all-reduce-done", with what the
 * collective needs as JSON.  The first half does all of it, and its result is what the second one gives. */
#include "wire.h"

/* Keys, and where their values go: an integer or a boolean, or rows of integers. */
enum key { K_CHANNEL, K_GLOBAL, K_GATHER, K_SCATTER, K_SPLIT, K_CONCAT, K_COUNT, K_TILED, K_NUMBERS, K_GROUPS = K_NUMBERS, K_PERMUTATION, K_KEYS };
static const char *const keys[K_KEYS] = {
	"channel_id", "use_global_device_ids", "all_gather_dimension", "scatter_dimension", "split_dimension", "concat_dimension",
	"split_count", "tiled", "replica_groups", "permutation",
};

struct config {
	bool has[K_KEYS];
	int64_t number[K_NUMBERS];
	int rows[K_KEYS - K_NUMBERS], cols[K_KEYS - K_NUMBERS];
	int64_t *id[K_KEYS - K_NUMBERS];
};

struct json { const char *p, *end; };

static char json_peek(struct json *j)
{
	while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\t' || *j->p == '\r'))
		j->p++;
	return j->p < j->end ? *j->p : 0;
}

static bool json_take(struct json *j, char c)
{
	if (json_peek(j) != c)
		return false;
	j->p++;
	return true;
}

static bool json_word(struct json *j, const char *word)
{
	size_t n = strlen(word);
	if ((size_t)(j->end - j->p) < n || memcmp(j->p, word, n))
		return false;
	j->p += n;
	return true;
}

/* An integer of at most 18 digits; true is 1, false 0. */
static bool json_number(struct json *j, int64_t *out)
{
	bool minus = json_take(j, '-');
	int n = 0;
	*out = 0;
	if (!minus && (json_peek(j) == 't' || json_peek(j) == 'f')) {
		*out = json_peek(j) == 't';
		return json_word(j, *out ? "true" : "false");
	}
	for (; j->p < j->end && *j->p >= '0' && *j->p <= '9' && n < 18; j->p++, n++)
		*out = *out * 10 + (*j->p - '0');
	if (minus)
		*out = -*out;
	return n > 0;
}

/* Rows of integers, padded with -1 to the longest. */
static bool json_rows(struct hlo *h, struct json *j, int *rows, int *cols, int64_t **id)
{
	for (int pass = 0; pass < 2; pass++) {
		struct json k = *j;
		int r = 0, most = 0;
		if (!json_take(&k, '['))
			return false;
		while (!json_take(&k, ']')) {
			int c = 0;
			if ((r && !json_take(&k, ',')) || !json_take(&k, '['))
				return false;
			for (; !json_take(&k, ']'); c++) {
				int64_t v;
				if ((c && !json_take(&k, ',')) || !json_number(&k, &v))
					return false;
				if (pass)
					(*id)[(int64_t)r * *cols + c] = v;
			}
			for (int i = c; pass && i < *cols; i++)
				(*id)[(int64_t)r * *cols + i] = -1;
			most = MAX(most, c);
			r++;
		}
		if (!pass) {
			if ((int64_t)r * most > 1 << 24)
				return false;
			*rows = r;
			*cols = most;
			*id = ARENA_NEW(&h->a, int64_t, (int64_t)r * most + 1);
		} else {
			*j = k;
		}
	}
	return true;
}

static bool json_config(struct hlo *h, struct json *j, struct config *c)
{
	if (!json_take(j, '{'))
		return false;
	for (int n = 0; !json_take(j, '}'); n++) {
		int k = 0;
		if ((n && !json_take(j, ',')) || !json_take(j, '"'))
			return false;
		const char *name = j->p;
		while (j->p < j->end && *j->p != '"')
			j->p++;
		size_t len = (size_t)(j->p - name);
		while (k < K_KEYS && (strlen(keys[k]) != len || memcmp(keys[k], name, len)))
			k++;
		if (k == K_KEYS || !json_take(j, '"') || !json_take(j, ':'))
			return false;
		c->has[k] = true;
		int m = k - K_NUMBERS;
		if (m < 0 ? !json_number(j, &c->number[k]) : !json_rows(h, j, &c->rows[m], &c->cols[m], &c->id[m]))
			return false;
	}
	return json_peek(j) == 0;
}

static struct err *config_of(struct hlo *h, const struct wop *o, struct config *c)
{
	uint32_t attr, n, *kv;
	struct span s;
	*c = (struct config){0};
	TRY(op_discardable(h, o, "mhlo.frontend_attributes", &attr));
	if (attr == UINT32_MAX)
		return bad_op(h, "it does not say which collective it is");
	TRY(attr_dict(h, attr, &n, &kv));
	for (uint32_t i = 0; i < n; i++) {
		TRY(attr_str(h, kv[2 * i], &s));
		if (!span_is(h, s, "async_collective_config"))
			continue;
		TRY(attr_str(h, kv[2 * i + 1], &s));
		struct json j = { (const char *)h->p + s.at, (const char *)h->p + s.at + s.n };
		return json_config(h, &j, c) ? NULL : no_op(h, "a collective whose description is '%.*s'", (int)MIN(s.n, 300), h->p + s.at);
	}
	return bad_op(h, "it does not say which collective it is");
}

/* The function of two values that the call names, as a reducer. */
static struct err *reducer(struct hlo *h, uint32_t called, enum redop *r, ir_fnid *f)
{
	uint32_t n, *list;
	struct wfunc *g;
	TRY(attr_list(h, called, &n, &list));
	if (n != 1)
		return bad_op(h, "it names %u functions to reduce by", n);
	TRY(func_find(h, list[0], &g));
	TRY(func_fn(h, g, true, f));
	*r = ir_region_redop(h->m, *f);
	if (*r != RED_fn)
		*f = 0;
	return NULL;
}

struct err *half_known(struct hlo *h, const struct wop *o, struct span target, uint32_t called, bool *done)
{
	static const struct { const char *name; enum ir_kind kind; enum key dim; } what[] = {
		{ "all-reduce-", IR_all_reduce, K_KEYS }, { "reduce-scatter-", IR_reduce_scatter, K_SCATTER }, { "all-gather-", IR_all_gather, K_GATHER },
		{ "all-to-all-", IR_all_to_all, K_SPLIT }, { "collective-permute-", IR_collective_permute, K_KEYS },
	};
	size_t i = 0, n = 0;
	for (; i < NELEM(what); i++) {
		n = strlen(what[i].name);
		if (target.n > n && !memcmp(h->p + target.at, what[i].name, n))
			break;
	}
	struct span half = { target.at + (uint32_t)n, target.n - (uint32_t)n };
	*done = i < NELEM(what) && (span_is(h, half, "start") || span_is(h, half, "done"));
	if (!*done)
		return NULL;
	if (span_is(h, half, "done"))
		return op_same(h, o);
	struct config c;
	ir_group g;
	bool alone;
	enum redop r = RED_add;
	ir_fnid f = 0;
	TRY(config_of(h, o, &c));
	if (what[i].kind == IR_collective_permute) {
		if (!c.has[K_PERMUTATION] || (c.rows[1] && c.cols[1] != 2))
			return bad_op(h, "its permutation is no list of pairs");
		return permute(h, o, c.number[K_CHANNEL], c.rows[1] * 2, c.id[1]);
	}
	if (!c.has[K_GROUPS] || (what[i].dim < K_KEYS && !c.has[what[i].dim]) || (what[i].kind == IR_all_to_all && !(c.has[K_CONCAT] && c.has[K_COUNT])))
		return bad_op(h, "its description lacks something");
	if (c.has[K_TILED] && !c.number[K_TILED])
		return no_op(h, "a half of a collective that is not tiled");
	TRY(group_make(h, c.rows[0], c.cols[0], c.id[0], c.number[K_CHANNEL], !c.has[K_GLOBAL] || c.number[K_GLOBAL], &g, &alone));
	if (alone)
		return op_same(h, o);
	if (what[i].kind == IR_all_to_all)
		return all_to_all(h, o, c.number[K_SPLIT], c.number[K_CONCAT], c.number[K_COUNT], g);
	bool reduces = what[i].kind != IR_all_gather;
	if (reduces)
		TRY(reducer(h, called, &r, &f));
	w_begin(h);
	if (what[i].dim < K_KEYS)
		w_int(h, c.number[what[i].dim]);
	w_int(h, g);
	if (reduces) {
		w_int(h, r);
		w_int(h, f);
	}
	return op_emit_words(h, o, what[i].kind);
}
