/* Machine code for the groups that have their places: after the memory of the program is known. */
#include "lw.h"

static void fill(struct lw *w, struct prog_kern *k, const struct gen_out *out)
{
	struct arena *a = &w->p->arena;
	uint64_t *id = map_put(&w->code_map, &out->key, sizeof out->key);
	if (!*id) {
		arr_push(&w->code, ((struct prog_code){ arena_str(a, out->symbol, strlen(out->symbol)), arena_copy(a, out->obj, out->nobj), out->nobj, out->key }));
		*id = w->code.n;
	}
	k->code = (int32_t)*id - 1;
	k->tiles = out->tiles;
	k->block = out->block;
	k->flops = out->flops;
	k->bytes = out->bytes ? out->bytes : k->bytes;
	k->nattr = k->nin;
	k->attr = arena_copy(a, out->under, sizeof *out->under * k->nin);
}

struct err *lw_code(struct lw *w, bool *again)
{
	for (size_t i = 0; i < w->pending.n && !w->refused[0]; i++) {
		struct pending t = w->pending.p[i];
		struct gen_out out;
		struct err *e = w->refused[t.fn] ? NULL : gen_group(w->m, ir_fn_of(w->m, t.fn), w->kern.p[t.kern].v, &out);
		if (!e && !w->refused[t.fn]) {
			fill(w, &w->kern.p[t.kern], &out);
			continue;
		}
		if (e && e->code != ERR_UNAVAILABLE && e->code != ERR_UNIMPLEMENTED)
			return e;
		if (e) {
			log_line(LOG_INFO, "%s; the group runs through reference kernels", e->msg);
			w->refused[e->code == ERR_UNAVAILABLE ? 0 : t.fn] = true;
		}
		err_free(e);
		*again = true;
	}
	return NULL;
}
