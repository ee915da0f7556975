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
	k->times = out->times;
	k->nattr = k->nin;
	k->attr = arena_copy(a, out->under, sizeof *out->under * k->nin);
}

struct err *lw_code(struct lw *w, bool *again)
{
	for (size_t i = 0; i < w->pending.n; i++) {
		struct pending t = w->pending.p[i];
		struct gen_out out;
		if (!w->choice[t.fn].code)
			continue;                /* refused for another kernel */
		struct err *e = gen_group(w->m, ir_fn_of(w->m, t.fn), w->kern.p[t.kern].v, &out);
		if (!e) {
			fill(w, &w->kern.p[t.kern], &out);
			continue;
		}
		if (e->code != ERR_UNAVAILABLE && e->code != ERR_UNIMPLEMENTED)
			return e;
		log_line(LOG_INFO, "%s; the group runs through reference kernels", e->msg);
		bool all = e->code == ERR_UNAVAILABLE;
		for (size_t g = all ? 1 : t.fn; g < (all ? w->m->fn.n : t.fn + 1u); g++)
			if (w->choice[g].code) {
				w->choice[g].code = false;
				w->choice[g].why = all ? "the code generator is not here" : "the code generator refused it";
			}
		err_free(e);
		*again = true;
	}
	return NULL;
}
