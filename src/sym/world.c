/* The world: all PEs, and how this process reaches each of them. */
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "impl.h"

enum {
	CONTROL_MAX = 1 << 20,    /* of address space that a heap must have beside its data */
	MOST_LOCAL = 1 << 16,     /* PEs of a process: join.c takes no more from others */
	LARGE_PAGE = 2 << 20, MANY = 8, MB = 1000000,
};

/* Bytes that a heap may have where address space is limited: of what is left, and the program has no need of, half; or as little as will
 * do, if that is more.  heaps: that this process will map. */
static struct err *within_limit(size_t heaps, size_t room, size_t *want, bool *narrow)
{
	const size_t least = ((size_t)SYM_HEAP_LEAST + CONTROL_MAX + LARGE_PAGE - 1) & ~((size_t)LARGE_PAGE - 1);
	struct rlimit as;
	long pages = 0;

	if (getrlimit(RLIMIT_AS, &as) || as.rlim_cur == RLIM_INFINITY)
		return NULL;
	FILE *f = fopen("/proc/self/statm", "re");
	if (!f || fscanf(f, "%ld", &pages) != 1)
		pages = 0;
	if (f)
		fclose(f);
	size_t limit = (size_t)as.rlim_cur, used = (size_t)pages * (size_t)sysconf(_SC_PAGESIZE), free = limit > used + room ? limit - used - room : 0;
	if (free / heaps < least)
		return ERR(EXHAUSTED, "no address space for %zu heaps of %zu MB: of the %zu MB that the limit allows %zu are in use, and the program keeps %zu for itself; raise it (ulimit -v), or have fewer devices",
		           heaps, least / MB, limit / MB, used / MB, room / MB);
	*narrow = *want > MAX(free / 2 / heaps, least);
	*want = MIN(*want, MAX(free / 2 / heaps, least));
	return NULL;
}

/* Without others of its kind. */
static void alone(struct sym_world *w)
{
	w->npe = w->nlocal;
	w->nproc = 1;
	w->process = mem_alloc(sizeof *w->process);
	w->process[0] = (struct sym_process){ .npe = w->npe, .pid = getpid(), .fd = -1, .pidfd = -1 };
	w->peer = mem_alloc((size_t)w->npe * sizeof *w->peer);
	for (int i = 0; i < w->npe; i++)
		w->peer[i] = (struct sym_peer){ w->region.base + (size_t)i * w->region.each, true, 0, 0 };
}

struct opening { const struct sym_opts *o; struct sym_world *w; };

static bool of_others(const struct sym_opts *o) { return o->boot && o->boot->nprocess > 1; }

/* The others, who see it leave, ask why. */
static void given_up(const struct opening *g, struct sym_world *w, const struct err *why)
{
	if (of_others(g->o))
		sym_give_up(g->o->boot, why);
	sym_close(w);
}

static void closed(void *v)
{
	struct opening *g = v;
	struct err poor = { .code = ERR_EXHAUSTED, .msg = (char[]){ "out of host memory" } };

	given_up(g, g->w, &poor);
}

static struct err *opened(void *v)
{
	struct opening *g = v;
	const struct sym_opts *o = g->o;
	bool others = of_others(o);
	struct err *e = NULL;
	struct mem_undo u;

	if (o->nlocal < 1 || o->nlocal > MOST_LOCAL)
		return ERR(INVALID, "a process has 1 to %d PEs, not %d", MOST_LOCAL, o->nlocal);
	struct sym_world *w = g->w = mem_alloc(sizeof *w);

	w->region.fd = -1;
	mem_undo(&u, closed, g);              /* before what it has is freed: threads look at it */
	w->heap = mem_alloc((size_t)o->nlocal * sizeof *w->heap);
	w->nlocal = o->nlocal;
	w->limit = w->memory = o->limit;
	w->share = o->limit ? o->limit / o->nlocal : INT64_MAX;
	w->said = o->said ? w->share : INT64_MAX;
	w->guard = o->guard;
	w->seed = o->seed;
	w->threads = o->threads;
	w->spins = sym_spins(o->threads);
	w->pause = sym_pause_s();
	w->fence = !sym_barrier_init(others);
	w->patience = (double)conf_int(CONF_TIMEOUT);
	/* Four times the RAM a heap, so that holes between buffers never matter; but no more than 32 TB in all. */
	size_t heaps = (size_t)o->nlocal * (size_t)(others ? o->boot->nprocess : 1), want = MIN((size_t)cpu_get()->ram * 4, ((size_t)32 << 40) / heaps);
	TRY_GOTO(e, within_limit(heaps, o->room, &want, &w->narrow), out);
	TRY_GOTO(e, sym_region(o->nlocal, want, CONTROL_MAX, others, &w->region), out);
	if (others)
		TRY_GOTO(e, sym_join(w, o->boot), out);
	else
		alone(w);
	size_t control = (sym_from_off(w->npe, SYM_SEATS, 0) + LARGE_PAGE - 1) & ~((size_t)LARGE_PAGE - 1);
	if (control > w->region.each / 2) {
		e = ERR(EXHAUSTED, "%d devices need heaps of %zu MB at least; there is address space for %zu MB each%s", w->npe, 2 * control / MB,
		        w->region.each / MB, w->narrow ? ": raise its limit (ulimit -v), or have fewer devices" : "");
		goto out;
	}
	/* Of many pairs each uses little, which lies apart; so may the first arrays of many devices. */
	for (int i = 0; i < w->npe && w->npe > MANY; i++)
		if (w->peer[i].base)
			madvise(w->peer[i].base, control + LARGE_PAGE, MADV_NOHUGEPAGE);
	for (int i = 0; i < w->nlocal; i++)
		sym_heap_init(&w->heap[i], w, i, control);
	int64_t space = (int64_t)((w->region.each - control) * (size_t)w->nlocal);
	if (w->narrow && w->limit > space)
		w->limit = space;
	w->ep = mem_lines((size_t)o->nlocal * SYM_SEATS * sizeof *w->ep);
	for (int k = 0; k < w->nlocal * SYM_SEATS; k++) {
		struct sym_ep *ep = &w->ep[k];
		int i = k % w->nlocal;
		ep->world = w;
		ep->pe = w->first + i;
		ep->which = k / w->nlocal;
		ep->spins = w->spins;
		sym_patience(ep, 1);          /* as far as can be, until it is known */
		ep->me = (struct sym_control *)w->heap[i].base;
		ep->seat = &ep->me->seat[ep->which];
		ep->from = (struct sym_from *)((char *)ep->me + sym_from_off(w->npe, ep->which, 0));
		ep->mine = sym_from_off(w->npe, ep->which, ep->pe);
		ep->words = sym_ret_off(w->npe, ep->which, ep->pe);
		ep->chan = mem_lines((size_t)w->npe * sizeof *ep->chan);
		ep->to = mem_lines((size_t)w->npe * sizeof *ep->to);
		ep->swap = mem_lines((size_t)w->npe * sizeof *ep->swap);
		ep->in = mem_lines((size_t)w->npe * sizeof *ep->in);
		ep->post = mem_lines((size_t)w->npe * sizeof *ep->post);
		for (int j = 0; j < w->npe; j++) {
			ep->chan[j].in = ep->from[j].ring;
			ep->chan[j].ret = &ep->me->ret[ep->which * w->npe + j];
		}
	}
	w->tr = w->net;
	int near = 0;
	for (int pe = 0; pe < w->npe; pe++)
		near += w->peer[pe].proc == w->proc || w->process[w->peer[pe].proc].region.base;
	sym_share((double)MIN(cpu_get()->cores, near) * w->nlocal / near, o->threads);
	w->roomy = w->net && w->spins == sym_spins(0);
	if (w->net)                       /* a look costs more than a pause, and brings the message nearer */
		w->spins = sym_spins(INT_MAX);
	if (o->chaos) {
		TRY_GOTO(e, sym_chaos.open(w), out);
		w->tr = &sym_chaos;
		for (int i = 0; i < w->npe; i++) {
			w->peer[i].mapped = false;
			w->peer[i].host = i;
		}
	}
	for (int k = 0; k < w->nlocal * SYM_SEATS; k++)
		for (int j = 0; j < w->npe; j++)
			if (w->peer[j].mapped)
				w->ep[k].to[j] = (struct sym_to){ (struct sym_from *)(w->peer[j].base + w->ep[k].mine), sym_control_of(w, j) };
	TRY_GOTO(e, sym_sides(w), out);
out:
	mem_done(&u);
	if (e)
		given_up(g, w, e);
	return e;
}

struct err *sym_open(const struct sym_opts *o, struct sym_world **out)
{
	struct opening g = { o, NULL };
	struct err *e = mem_guard(opened, &g, true);

	*out = e ? NULL : g.w;
	if (e && of_others(o))                /* so far it may have been silent */
		sym_give_up(o->boot, e);
	return e;
}

void sym_leave_job(struct sym_world *w)
{
	if (w->tr && w->tr != w->net)
		w->tr->close(w);
	if (w->net)
		w->net->close(w);
	sym_part(w);
}

void sym_close(struct sym_world *w)
{
	if (!w)
		return;
	sym_leave_job(w);
	sym_sides_free(w);
	for (int i = 0; i < w->nlocal * SYM_SEATS && w->ep; i++) {
		if (w->ep[i].world)
			sym_clear(&w->ep[i], true);
		for (int k = 0; k < w->ep[i].nkept; k++)
			sym_free(w->ep[i].kept[k]);
		free(w->ep[i].kept);
		free(w->ep[i].chan);
		free(w->ep[i].to);
		free(w->ep[i].swap);
		for (int k = 0; k < w->npe && w->ep[i].in; k++)
			free(w->ep[i].in[k]);
		free(w->ep[i].in);
		free(w->ep[i].post);
	}
	for (int i = 0; i < w->nlocal; i++)
		sym_heap_fini(&w->heap[i]);
	sym_region_free(&w->region);
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
static bool is_pe(const struct sym_world *w, int pe) { return pe >= 0 && pe < w->npe; }
int sym_proc_of(const struct sym_world *w, int pe) { return is_pe(w, pe) ? w->peer[pe].proc : -1; }
bool sym_near(const struct sym_world *w)
{
	for (int i = 0; i < w->npe; i++)
		if (!w->peer[i].mapped)
			return false;
	return true;
}

bool sym_mapped(const struct sym_world *w, int pe) { return is_pe(w, pe) && w->peer[pe].mapped; }
int sym_host_of(const struct sym_world *w, int pe) { return is_pe(w, pe) ? w->peer[pe].host : -1; }
struct sym_heap *sym_heap_of(struct sym_world *w, int pe) { return sym_local(w, pe) ? &w->heap[pe - w->first] : NULL; }
struct sym_ep *sym_ep_of(struct sym_world *w, int pe) { return sym_local(w, pe) ? &w->ep[pe - w->first] : NULL; }
struct sym_ep *sym_stream_ep(struct sym_world *w, int pe) { return sym_local(w, pe) ? &w->ep[w->nlocal + pe - w->first] : NULL; }

const char *sym_road(const struct sym_world *w, int pe)
{
	if (!is_pe(w, pe))
		return "none";
	if (sym_local(w, pe))
		return !w->peer[pe].mapped ? w->tr->name : w->nlocal == 1 ? "self" : "thread";
	return w->peer[pe].mapped ? "shm" : w->tr->name;
}
