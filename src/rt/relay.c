/* Relays: the results of a launch that have the storage of its parameters, together.  The next launch of the program takes all of it at
 * once, if it is given these results for these parameters, and fills a relay that is free again: two take turns, as a rule. */
#include "impl.h"

enum { MOST = 3 };                /* of a program on a device: what more there is goes by single buffers */

static void relays_unref(struct relays *h)
{
	if (ref_drop(&h->ref))
		free(h);
}

void relays_close(struct relays *h)
{
	if (!h)
		return;
	spin_lock(&h->lock);
	struct relay *r = h->free, *next;
	h->free = NULL;
	h->closed = true;
	spin_unlock(&h->lock);
	for (; r; r = next) {
		next = r->next;
		free(r);
	}
	relays_unref(h);
}

struct relay *relay_take(struct relays *h)
{
	spin_lock(&h->lock);
	struct relay *r = h->free;
	bool another = !r && h->made < MOST;
	if (r)
		h->free = r->next;
	h->made += another;
	spin_unlock(&h->lock);
	if (another && (r = malloc(sizeof *r + (size_t)h->n * sizeof *r->b)))
		*r = (struct relay){ .home = h };
	else if (another) {
		spin_lock(&h->lock);
		h->made--;
		spin_unlock(&h->lock);
	}
	if (!r)
		return NULL;
	atomic_fetch_add_explicit(&h->ref, 1, memory_order_relaxed);
	atomic_init(&r->gone, false);
	r->odd = false;
	atomic_init(&r->live, h->n);
	r->ready = NULL;
	return r;
}

void relay_spare(struct relay *r)
{
	struct relays *h = r->home;

	rt_event_unref(r->ready);
	spin_lock(&h->lock);
	bool keep = !h->closed && spare_keeps();
	if (keep) {
		r->next = h->free;
		h->free = r;
	} else
		h->made--;
	spin_unlock(&h->lock);
	if (!keep)
		free(r);
	relays_unref(h);
}

struct relays *relays_new(int64_t n)
{
	struct relays *h = mem_alloc(sizeof *h);
	struct relay *r[MOST] = { NULL };

	atomic_init(&h->ref, 1);
	h->n = n;
	for (int i = 0; i < MOST && spare_keeps(); i++)
		r[i] = relay_take(h);
	for (int i = 0; i < MOST; i++)
		if (r[i])
			relay_spare(r[i]);
	return h;
}

void relay_left(struct relay *r)
{
	if (atomic_fetch_sub_explicit(&r->live, 1, memory_order_acq_rel) == 1)
		relay_spare(r);
}

bool relay_pass(struct relay *r)
{
	spin_lock(&r->lock);
	bool ok = !r->odd && !atomic_load_explicit(&r->gone, memory_order_relaxed);
	if (ok)
		atomic_store_explicit(&r->gone, true, memory_order_release);
	spin_unlock(&r->lock);
	return ok;
}

void relay_back(struct relay *r)
{
	spin_lock(&r->lock);
	atomic_store_explicit(&r->gone, false, memory_order_release);
	spin_unlock(&r->lock);
}
