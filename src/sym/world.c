/* The world: all PEs, and how this process reaches each of them. */
#include <stdlib.h>
#include <unistd.h>

#include "impl.h"

struct err *sym_open(const struct sym_opts *o, struct sym_world **out)
{
	struct sym_world *w = mem_alloc(sizeof *w);
	struct err *e = NULL;

	if (o->boot)
		return ERR(UNIMPLEMENTED, "several processes");
	w->npe = w->nlocal = o->nlocal;
	w->nproc = 1;
	w->process = mem_alloc(sizeof *w->process);
	w->process[0] = (struct sym_process){ 0, w->npe, getpid(), SYM_HERE };
	w->limit = o->limit;
	w->guard = o->guard;
	w->seed = o->seed;
	w->spins = sym_spins(o->threads);
	w->fence = !sym_barrier_init();
	w->patience = (double)conf_int(CONF_TIMEOUT);
	w->heap = mem_alloc((size_t)o->nlocal * sizeof *w->heap);
	w->ep = mem_alloc((size_t)o->nlocal * sizeof *w->ep);
	w->peer = mem_alloc((size_t)w->npe * sizeof *w->peer);
	/* Four times the RAM a heap, so that holes between buffers never matter, but no more than 32 TB in all. */
	size_t want = MIN((size_t)cpu_get()->ram * 4, ((size_t)32 << 40) / (size_t)w->npe) & ~(size_t)((2 << 20) - 1);
	size_t control = sizeof(struct sym_control) + (size_t)w->npe * sizeof(struct sym_from);
	for (int i = 0; i < o->nlocal; i++) {
		TRY_GOTO(e, sym_heap_init(&w->heap[i], w, w->first + i, want, control), out);
		w->peer[w->first + i] = (struct sym_peer){ w->heap[i].base, true, 0 };
	}
	if (o->chaos) {
		TRY_GOTO(e, sym_chaos.open(w), out);
		w->tr = &sym_chaos;
		for (int i = 0; i < w->npe; i++)
			w->peer[i].direct = false;
	}
	for (int i = 0; i < o->nlocal; i++) {
		struct sym_ep *ep = &w->ep[i];
		ep->world = w;
		ep->pe = w->first + i;
		ep->spins = w->spins;
		ep->me = (struct sym_control *)w->heap[i].base;
		ep->mine = offsetof(struct sym_control, from) + (size_t)ep->pe * sizeof(struct sym_from);
		ep->chan = mem_alloc((size_t)w->npe * sizeof *ep->chan);
		for (int k = 0; k < w->npe; k++) {
			ep->chan[k].in = ep->me->from[k].ring;
			ep->chan[k].ret = &ep->me->from[k].ret;
		}
	}
out:
	if (e) {
		sym_close(w);
		w = NULL;
	}
	*out = w;
	return e;
}

void sym_close(struct sym_world *w)
{
	if (!w)
		return;
	if (w->tr)
		w->tr->close(w);
	for (int i = 0; i < w->nlocal; i++) {
		free(w->ep[i].chan);
		sym_heap_fini(&w->heap[i]);
	}
	free(w->process);
	free(w->peer);
	free(w->ep);
	free(w->heap);
	free(w);
}

int sym_npe(const struct sym_world *w) { return w->npe; }
int sym_first(const struct sym_world *w) { return w->first; }
int sym_nproc(const struct sym_world *w) { return w->nproc; }
int sym_proc(const struct sym_world *w) { return w->proc; }
int sym_proc_of(const struct sym_world *w, int pe) { return w->peer[pe].proc; }
bool sym_mapped(const struct sym_world *w, int pe) { return w->peer[pe].direct; }
struct sym_heap *sym_heap_of(struct sym_world *w, int pe) { return &w->heap[pe - w->first]; }
struct sym_ep *sym_ep_of(struct sym_world *w, int pe) { return &w->ep[pe - w->first]; }

const char *sym_road(const struct sym_world *w, int pe)
{
	if (pe >= w->first && pe < w->first + w->nlocal)
		return !w->peer[pe].direct ? w->tr->name : w->nlocal == 1 ? "self" : "thread";
	return w->peer[pe].direct ? "shm" : w->tr->name;
}
