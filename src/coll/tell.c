/* What the members of a call tell each other before and after data moves: where it lies, that it is there.  Many do so in
 * rounds, as many as the logarithm of their number. */
#include <stdlib.h>

#include "impl.h"

struct err *sizes_differ(const struct call *q, int pe, size_t its, size_t mine)
{
	return ERR(INTERNAL, "devices have diverged: at command %u device %d exchanges %zu bytes at a time, device %d %zu", q->site, sym_ep_pe(q->ep), mine, pe, its);
}

struct err *meet_in_rounds(const struct call *q)
{
	struct sym_msg m;

	for (int d = 1; d < q->n; d *= 2) {
		int to = q->pe[rank_after(q, q->n - d)], from = q->pe[rank_after(q, d)];
		TRY(sym_slot_put(q->ep, to, q->site, "", 0));
		TRY(sym_recv(q->ep, from, q->site, SYM_SLOT_MSG, &m));
		sym_return(q->ep, from, false);
	}
	return NULL;
}

struct err *keep(struct kept *k, size_t n)
{
	if (k->n >= n)
		return NULL;
	free(k->p);
	k->p = aligned_alloc(64, (n + 63) & ~(size_t)63);
	k->n = k->p ? n : 0;
	return k->p ? NULL : ERR(EXHAUSTED, "out of host memory: asked for %zu bytes for a collective", n);
}

/* In round k every PE has the operands of ranks me .. me + 2^k - 1 and gets as many from the rank that is 2^k above:
 * Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997. */
struct err *gather_doubling(const struct call *q, const char *x, int64_t n, char *all)
{
	struct sym_msg m;
	void *room;

	memcpy(all + q->me * n, x, (size_t)n);
	for (int have = 1; have < q->n; have *= 2) {
		int some = MIN(have, q->n - have);
		int to = q->pe[rank_after(q, q->n - have)], from = q->pe[rank_after(q, have)];
		int64_t bytes = some * n;
		for (int64_t o = 0; o < bytes; o += SYM_SLOT) {
			int64_t len = MIN(bytes - o, SYM_SLOT);
			TRY(sym_slot_room(q->ep, to, (size_t)len, &room));
			for (int64_t i = 0, k; i < len; i += k) {
				k = MIN(len - i, n - (o + i) % n);
				memcpy((char *)room + i, all + rank_after(q, (int)((o + i) / n)) * n + (o + i) % n, (size_t)k);
			}
			sym_slot_send(q->ep, to, q->site, (size_t)len);
			TRY(recv_bytes(q, from, SYM_SLOT_MSG, len, &m));
			for (int64_t i = 0, k; i < len; i += k) {
				k = MIN(len - i, n - (o + i) % n);
				memcpy(all + (q->me + have + (o + i) / n) % q->n * n + (o + i) % n, (const char *)m.data + i, (size_t)k);
			}
			sym_return(q->ep, from, false);
		}
	}
	return NULL;
}

/* As sym_exchange. */
static struct err *tell_all(const struct call *q, const void *src, size_t n, struct sym_msg *m)
{
	struct coll *c = q->c;

	if (!in_rounds(q))
		return sym_exchange(q->ep, q->pe, q->n, q->me, q->site, src, 0, n, m);
	if (!n)
		return meet_in_rounds(q);
	TRY(keep(&c->heard, n * (size_t)q->n));
	TRY(gather_doubling(q, src, (int64_t)n, c->heard.p));
	for (int k = 0; k < q->n; k++)
		m[k] = (struct sym_msg){ 0, n, c->heard.p + (size_t)k * n };
	return NULL;
}

struct err *expect_all(const struct call *q)
{
	int pe[MAX_ROW];

	return q->n > 2 ? sym_expect(q->ep, pe, others_of(q, pe), q->site) : NULL;
}

struct err *loan_exchange(const struct call *q, int64_t n, size_t off, size_t other, size_t *at, size_t *to)
{
	size_t own[3] = { off, other, (size_t)n };
	struct sym_msg m[MAX_ROW];

	TRY(tell_all(q, own, sizeof own, m));
	for (int k = 0; k < q->n; k++) {
		const size_t *its = m[k].data;
		TRY(same_size(q, q->pe[k], its[2], n));
		at[k] = its[0];
		if (to)
			to[k] = its[1];
	}
	return NULL;
}

struct err *ready_all(const struct call *q)
{
	struct sym_msg m[MAX_ROW];

	return tell_all(q, "", 0, m);
}
