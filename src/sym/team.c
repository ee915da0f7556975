/* The team: heaps and endpoints of the local PEs, and how they reach the others. */
#include <stdlib.h>

#include "team.h"

static struct err *thread_open(struct sym_team *t) { return NULL; }
static void thread_close(struct sym_team *t) { }

/* Devices of one process: every heap is memory like any other. */
const struct sym_transport sym_thread = { .name = "thread", .mapped = true, .open = thread_open, .close = thread_close };

struct err *sym_open(const struct sym_opts *o, struct sym_team **out)
{
	struct sym_team *t = mem_alloc(sizeof *t);
	struct err *e = NULL;

	t->npe = o->npe;
	t->first = o->first;
	t->nlocal = o->nlocal;
	t->limit = o->limit;
	t->guard = o->guard;
	t->seed = o->seed;
	t->spins = sym_spins(o->threads);
	t->fence = !sym_barrier_init();
	t->patience = (double)conf_int(CONF_TIMEOUT);
	t->tr = o->chaos ? &sym_chaos : &sym_thread;
	t->heap = mem_alloc((size_t)o->nlocal * sizeof *t->heap);
	t->ep = mem_alloc((size_t)o->nlocal * sizeof *t->ep);
	/* Four times the RAM a heap, so that holes between buffers never matter, but no more than 32 TB in all. */
	size_t want = MIN((size_t)cpu_get()->ram * 4, ((size_t)32 << 40) / (size_t)o->nlocal) & ~(size_t)((2 << 20) - 1);
	size_t control = sizeof(struct sym_control) + (size_t)o->npe * sizeof(struct sym_from);
	for (int i = 0; i < o->nlocal; i++)
		TRY_GOTO(e, sym_heap_init(&t->heap[i], t, o->first + i, want, control), out);
	for (int i = 0; i < o->nlocal; i++) {
		struct sym_ep *ep = &t->ep[i];
		ep->team = t;
		ep->pe = o->first + i;
		ep->spins = t->spins;
		ep->me = (struct sym_control *)t->heap[i].base;
		ep->chan = mem_alloc((size_t)o->npe * sizeof *ep->chan);
		for (int k = 0; k < o->npe; k++) {
			ep->chan[k].in = ep->me->from[k].ring;
			ep->chan[k].ret = &ep->me->from[k].ret;
		}
	}
	TRY_GOTO(e, t->tr->open(t), out);
out:
	if (e) {
		t->tr = &sym_thread;
		sym_close(t);
		t = NULL;
	}
	*out = t;
	return e;
}

void sym_close(struct sym_team *t)
{
	if (!t)
		return;
	t->tr->close(t);
	for (int i = 0; i < t->nlocal; i++) {
		free(t->ep[i].chan);
		sym_heap_fini(&t->heap[i]);
	}
	free(t->ep);
	free(t->heap);
	free(t);
}

struct sym_heap *sym_heap_of(struct sym_team *t, int pe) { return &t->heap[pe - t->first]; }
struct sym_ep *sym_ep_of(struct sym_team *t, int pe) { return &t->ep[pe - t->first]; }
