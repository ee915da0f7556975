/* Dispatch: a kernel id gives the function that prepares it; the prepared state says the rest. */
#include <stdlib.h>

#include "impl.h"

static kern_make *const makers[KERN_COUNT] = {
#define KERN(id, operands, attrs, meaning) [KERN_##id] = kern_make_##id,
#define kern_make_gen NULL
#include "../prog/kern.def"
#undef kern_make_gen
#undef KERN
};

static void nothing(const struct prog_kern *k, const struct kern_state *s, int phase, char *const *ptr,
                    int64_t t0, int64_t t1, void *scratch)
{
}

struct err *kern_prepare(const struct prog_kern *k, struct kern_state **out)
{
	*out = NULL;
	if (k->id >= KERN_COUNT || k->id == KERN_gen)
		return ERR(INTERNAL, "kernel '%s' is not run by the kernel library", k->id < KERN_COUNT ? prog_kern_name[k->id] : "?");
	struct kern_state *s = mem_alloc(sizeof *s);
	s->tiles = 1;
	s->phases = 1;
	arena_init(&s->a);
	struct err *e = makers[k->id](k, s);
	if (e) {
		kern_release(s);
		return e;
	}
	if (s->tiles < 1) {       /* empty arrays */
		s->tiles = 1;
		s->run = nothing;
	}
	*out = s;
	return NULL;
}

void kern_release(struct kern_state *s)
{
	if (!s)
		return;
	if (s->release)
		s->release(s);
	arena_fini(&s->a);
	free(s);
}

int64_t kern_tiles(const struct prog_kern *k, const struct kern_state *s) { return s ? s->tiles : 1; }
size_t kern_scratch(const struct prog_kern *k, const struct kern_state *s) { return s ? s->scratch : 0; }
int kern_phases(const struct prog_kern *k, const struct kern_state *s) { return s ? s->phases : 1; }
size_t kern_shared(const struct prog_kern *k, const struct kern_state *s) { return s ? s->shared : 0; }

void kern_run(const struct prog_kern *k, const struct kern_state *s, int phase,
              char *const *ptr, int64_t t0, int64_t t1, void *scratch)
{
	if (t0 < t1 && s)
		s->run(k, s, phase, ptr, t0, t1, scratch);
}

struct err *kern_run_all(const struct prog_kern *k, char *const *ptr)
{
	struct kern_state *s;
	TRY(kern_prepare(k, &s));
	char *mem = s->scratch ? aligned_alloc(64, (s->scratch + 63) & ~(size_t)63) : NULL;
	char *shared = s->shared ? aligned_alloc(64, (s->shared + 63) & ~(size_t)63) : NULL;
	struct err *e = NULL;
	if ((s->scratch && !mem) || (s->shared && !shared)) {
		e = ERR(EXHAUSTED, "no memory for the %zu scratch bytes of kernel '%s'", s->scratch + s->shared,
		        prog_kern_name[k->id]);
	} else {
		int n = k->nin + k->nout;
		char **p = mem_alloc(sizeof *p * (size_t)(n + 1));
		memcpy(p, ptr, sizeof *p * (size_t)n);
		p[n] = shared;
		for (int ph = 0; ph < s->phases; ph++)
			s->run(k, s, ph, p, 0, s->tiles, mem);
		free(p);
	}
	free(mem);
	free(shared);
	kern_release(s);
	return e;
}
