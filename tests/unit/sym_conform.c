/* What the library promises, on every road: each case runs with 1, 2, 4 and 7 PEs as threads, as processes, as both, over
 * TCP and UCX, and with everything that may be late or out of order made so. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "coll/coll.h"
#include "draws.h"
#include "leave.h"
#include "sym/sym.h"

enum { MAXP = 7, BIG = 200000 };

/* A world: processes with PEs each. */
struct shape { const char *name; int nproc, ndev[MAXP]; const char *road; uint64_t chaos; };

/* One PE of it. */
struct pe {
	struct sym_world *w;
	int me, n;
	struct sym_team *all;
	struct sym_ctx *cx;
	const char *name;             /* of the case */
	bool slow;                    /* sanitizers, and a transport that must be asked, cost more */
};

static const char *shape_name;

static _Noreturn void bad(const struct pe *p, int line, const char *what, struct err *e)
{
	fprintf(stderr, "%s: PE %d of %d, case '%s', line %d: %s%s%s\n", shape_name, p->me, p->n, p->name, line, what, e ? ": " : "", e ? e->msg : "");
	_exit(1);
}
#define CHECK(x) do { if (!(x)) bad(p, __LINE__, #x, NULL); } while (0)
#define OK(x) do { struct err *e_ = (x); if (e_) bad(p, __LINE__, #x, e_); } while (0)
#define FAILS(x, want) do { struct err *e_ = (x); if (!e_ || e_->code != ERR_##want) bad(p, __LINE__, #x, e_); err_free(e_); } while (0)

static uint64_t mix(uint64_t x) { return (x ^ x >> 31) * 0x9e3779b97f4a7c15ull; }
static void fill(void *at, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		((unsigned char *)at)[i] = (unsigned char)(mix(seed + i) >> 40);
}
static bool filled(const void *at, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		if (((const unsigned char *)at)[i] != (unsigned char)(mix(seed + i) >> 40))
			return false;
	return true;
}

static struct sym_mem *memory(struct pe *p, struct sym_team *t, size_t n)
{
	struct sym_mem *m;

	OK(sym_mem_new(t, n, p->name, &m));
	return m;
}

/* --- teams ---------------------------------------------------------------------------- */

static void try_team(struct pe *p, struct sym_team *t, const int *list, int n)
{
	CHECK(sym_team_n(t) == n);
	CHECK(sym_team_pe(t, sym_team_me(t)) == p->me && sym_team_pe(t, n) == -1 && sym_team_pe(t, -1) == -1);
	for (int i = 0; i < n; i++) {
		CHECK(sym_team_pe(t, i) == list[i]);
		CHECK(sym_team_rank(t, list[i]) == i);
		CHECK(sym_team_translate(t, i, p->all) == list[i]);
		CHECK(sym_team_translate(p->all, list[i], t) == i);
	}
	for (int k = 0; k < 3; k++)
		OK(sym_team_sync(t));
}

static void teams(struct pe *p)
{
	struct sym_team *t, *u;
	int list[MAXP], n = 0;

	CHECK(sym_team_me(p->all) == p->me && sym_team_n(p->all) == p->n);
	/* Even and odd ones, each a team; made again and again, some kept while others are made. */
	for (int round = 0; round < 4; round++) {
		int odd = p->me & 1;
		n = 0;
		for (int i = odd; i < p->n; i += 2)
			list[n++] = i;
		OK(sym_team_split(p->all, odd, 2, n, &t));
		try_team(p, t, list, n);
		/* Backwards, as an overlapping team of all. */
		OK(sym_team_split(p->all, p->n - 1, -1, p->n, &u));
		for (int i = 0; i < p->n; i++)
			list[i] = p->n - 1 - i;
		try_team(p, u, list, p->n);
		OK(sym_team_sync(t));
		sym_team_free(t);
		OK(sym_team_sync(u));
		sym_team_free(u);
	}
	/* An arbitrary list without PE 1: PE 1 does not call at all. */
	if (p->n >= 4 && p->me != 1) {
		n = 0;
		for (int i = 0; i < p->n; i++)
			if ((i * 3) % p->n != 1 && p->n == 7)
				list[n++] = (i * 3) % p->n;
		if (p->n == 4)
			memcpy(list, (int[]){ 3, 0, 2 }, sizeof(int[3])), n = 3;
		OK(sym_team_new(p->w, p->me, list, n, &t));
		try_team(p, t, list, n);
		sym_team_free(t);
	}
	OK(sym_team_split(p->all, 0, 1, 1, &t));
	CHECK(!!t == (p->me == 0));
	sym_team_free(t);
	OK(sym_team_split_2d(p->all, 2, &t, &u));
	CHECK(sym_team_me(t) == p->me % 2 && sym_team_me(u) == p->me / 2);
	OK(sym_team_sync(u));
	OK(sym_team_sync(t));
	sym_team_free(u);
	sym_team_free(t);
	FAILS(sym_team_split(p->all, 0, 1, p->n + 1, &t), INVALID);
	FAILS(sym_team_split(p->all, 0, 0, 2, &t), INVALID);
	FAILS(sym_team_new(p->w, p->me, (int[]){ p->me, p->me }, 2, &t), INVALID);
	FAILS(sym_team_new(p->w, p->me, (int[]){ (p->me + 1) % MAXP }, 1, &t), INVALID);
	FAILS(sym_team_new(p->w, MAXP, (int[]){ 0 }, 1, &t), INVALID);
	sym_team_free(NULL);
	sym_team_free(p->all);
	OK(sym_team_sync(p->all));
}

/* Two threads of each PE make overlapping teams at the same time. */
struct maker { pthread_t t; struct pe *p; int kind; };
static void *make(void *v)
{
	struct maker *k = v;
	struct pe *p = k->p;
	int list[MAXP];

	for (int round = 0; round < 3; round++) {
		struct sym_team *t;
		for (int i = 0; i < p->n; i++)
			list[i] = (i + k->kind) % p->n;
		OK(sym_team_new(p->w, p->me, list, p->n, &t));
		struct sym_mem *m = memory(p, t, 64);
		for (int i = 0; i < 3; i++)
			OK(sym_team_sync(t));
		CHECK(!memcmp(sym_mem_at(m), (char[64]){ 0 }, 64));
		sym_mem_free(m);
		sym_team_free(t);
	}
	return NULL;
}

static void teams_at_once(struct pe *p)
{
	struct maker k[2] = { { .p = p, .kind = 0 }, { .p = p, .kind = p->n > 1 } };

	if (p->n == 1)
		return;
	for (int i = 0; i < 2; i++)
		pthread_create(&k[i].t, NULL, make, &k[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(k[i].t, NULL);
}

/* Nobody leaves a sync before all have come. */
static void syncs(struct pe *p)
{
	struct sym_mem *m = memory(p, p->all, 8);

	for (int round = 1; round <= 30; round++) {
		for (int r = 0; r < p->n; r++)
			sym_ctx_amo_post(p->cx, m, 0, 8, SYM_ADD, 1, r);
		OK(sym_team_barrier(p->all));
		CHECK(sym_signal_fetch(m, 0) >= (uint64_t)(round * p->n));
		OK(sym_team_sync(p->all));
	}
	sym_mem_free(m);
}

/* --- memory ------------------------------------------------------------------------------ */

static void symmetric_memory(struct pe *p)
{
	static const size_t size[] = { 0, 1, 7, 64, 4097, BIG };
	struct sym_block *b;
	struct sym_mem *m[NELEM(size)], *x;
	struct sym_team *t;

	/* Offsets differ from PE to PE. */
	OK(sym_alloc(sym_heap_of(p->w, p->me), 64 + 256 * (size_t)p->me, "private", -1, &b));
	for (size_t i = 0; i < NELEM(size); i++) {
		m[i] = memory(p, p->all, size[i]);
		CHECK(sym_mem_bytes(m[i]) == size[i] && sym_mem_team(m[i]) == p->all && !((uintptr_t)sym_mem_at(m[i]) & 63));
		for (size_t k = 0; k < size[i]; k++)
			CHECK(((char *)sym_mem_at(m[i]))[k] == 0);
		fill(sym_mem_at(m[i]), size[i], (uint64_t)p->me * 1000);
	}
	CHECK(sym_mem_off(m[3], p->me) == (size_t)((char *)sym_mem_at(m[3]) - sym_base(sym_heap_of(p->w, p->me))));
	OK(sym_team_sync(p->all));
	for (size_t i = 0; i < NELEM(size); i++)
		for (int r = 0; r < p->n; r++) {
			const void *at = sym_ptr(m[i], r);
			CHECK(!!at == sym_mapped(p->w, r));
			CHECK(!at || filled(at, size[i], (uint64_t)r * 1000));
		}
	CHECK(!sym_ptr(m[1], -1) && !sym_ptr(m[1], p->n));
	/* Only the members are asked. */
	OK(sym_team_split(p->all, 0, 1, (p->n + 1) / 2, &t));
	if (t) {
		x = memory(p, t, 1000);
		sym_mem_free(x);
		sym_team_free(t);
	}
	if (p->n > 1)
		FAILS(sym_mem_new(p->all, 100 + (size_t)(p->me == 1), NULL, &x), INVALID);
	FAILS(sym_mem_new(p->all, p->me == p->n - 1 ? SIZE_MAX / 2 : SIZE_MAX / 2, "too much", &x), EXHAUSTED);
	for (size_t i = 0; i < NELEM(size); i++)
		sym_mem_free(m[i]);
	sym_mem_free(NULL);
	sym_free(b);
}

/* --- data ----------------------------------------------------------------------------------- */

static void put_get(struct pe *p)
{
	static const size_t size[] = { 0, 1, 2, 3, 4, 5, 8, 12, 16, 63, 64, 1000, 8192, BIG };
	struct sym_mem *m = memory(p, p->all, 2 * BIG);
	char *buf = malloc(BIG), *back = malloc(BIG);
	int next = (p->me + 1) % p->n, before = (p->me + p->n - 1) % p->n;

	for (size_t i = 0; i < NELEM(size); i++)
		for (int nbi = 0; nbi < 2; nbi++) {
			size_t n = size[i], off = i * 3 % 17 + 1;
			uint64_t seed = mix(i * 2 + (size_t)nbi);
			fill(buf, n, seed + (uint64_t)p->me);
			if (nbi)
				sym_ctx_put_nbi(p->cx, m, off, buf, n, next);
			else {
				sym_ctx_put(p->cx, m, off, buf, n, next);
				memset(buf, 0, n);    /* it may be reused */
			}
			OK(sym_ctx_quiet(p->cx));
			OK(sym_team_sync(p->all));
			CHECK(filled((char *)sym_mem_at(m) + off, n, seed + (uint64_t)before));
			for (int r = 0; r < p->n; r++) {
				memset(back, 1, n);
				if (nbi) {
					sym_ctx_get_nbi(p->cx, back, m, off, n, r);
					OK(sym_ctx_quiet(p->cx));
				} else
					sym_ctx_get(p->cx, back, m, off, n, r);
				CHECK(filled(back, n, seed + (uint64_t)((r + p->n - 1) % p->n)));
			}
			OK(sym_team_barrier(p->all));
		}
	free(buf);
	free(back);
	sym_mem_free(m);
}

/* All to all, many at once, in flight until quiet. */
static void many_nbi(struct pe *p)
{
	enum { N = 40, EACH = 3000 };
	struct sym_mem *m = memory(p, p->all, (size_t)p->n * N * EACH);
	char *src = malloc((size_t)p->n * N * EACH);

	for (int r = 0; r < p->n; r++)
		for (int k = 0; k < N; k++) {
			size_t at = ((size_t)r * N + (size_t)k) * EACH;
			fill(src + at, EACH, (uint64_t)(r * 100 + p->me) << 20 | (uint64_t)k << 8);
			sym_ctx_put_nbi(p->cx, m, ((size_t)p->me * N + (size_t)k) * EACH, src + at, EACH, r);
		}
	OK(sym_team_barrier(p->all));
	for (int r = 0; r < p->n; r++)
		for (int k = 0; k < N; k++)
			CHECK(filled((char *)sym_mem_at(m) + ((size_t)r * N + (size_t)k) * EACH, EACH, (uint64_t)(p->me * 100 + r) << 20 | (uint64_t)k << 8));
	OK(sym_ctx_quiet(p->cx));
	OK(sym_team_sync(p->all));
	free(src);
	sym_mem_free(m);
}

static bool refuse(size_t n) { return true; }

/* Without memory: what does not go at once waits for what has gone before. */
static void poor(struct pe *p)
{
	enum { N = 30, EACH = 40000, GET = 100 };      /* more of these under way than what the network keeps for questions */

	for (int r = 0; r < p->n; r++)
		if (!strcmp(sym_road(p->w, r), "ucx") || !strcmp(sym_road(p->w, r), "chaos") || strstr(shape_name, "chaos"))
			return;              /* UCX says that it has none, and has lost something */
	struct sym_mem *m = memory(p, p->all, (size_t)p->n * N * EACH), *count = memory(p, p->all, 8);
	char *src = malloc((size_t)p->n * N * EACH), *back = malloc((size_t)p->n * EACH);

	memset(sym_mem_at(count), 0, 8);
	for (int r = 0; r < p->n; r++)
		for (int k = 0; k < N; k++)
			fill(src + ((size_t)r * N + (size_t)k) * EACH, EACH, (uint64_t)(r * 100 + p->me) << 20 | (uint64_t)k << 8);
	OK(sym_team_barrier(p->all));
	mem_refuse(refuse);
	for (int k = 0; k < N; k++)
		for (int r = 0; r < p->n; r++) {
			sym_ctx_put_nbi(p->cx, m, ((size_t)p->me * N + (size_t)k) * EACH, src + ((size_t)r * N + (size_t)k) * EACH, EACH, r);
			sym_ctx_amo_post(p->cx, count, 0, 8, SYM_ADD, 1, r);
		}
	OK(sym_ctx_quiet(p->cx));
	for (int r = 0; r < p->n; r++)
		for (size_t at = 0; at < EACH; at += GET)
			sym_ctx_get_nbi(p->cx, back + (size_t)r * EACH + at, m, ((size_t)p->me * N + N - 1) * EACH + at, GET, r);
	OK(sym_ctx_quiet(p->cx));
	mem_refuse(NULL);
	OK(sym_team_barrier(p->all));
	for (int r = 0; r < p->n; r++) {
		CHECK(!memcmp(back + (size_t)r * EACH, src + ((size_t)r * N + N - 1) * EACH, EACH));
		for (int k = 0; k < N; k++)
			CHECK(filled((char *)sym_mem_at(m) + ((size_t)r * N + (size_t)k) * EACH, EACH, (uint64_t)(p->me * 100 + r) << 20 | (uint64_t)k << 8));
	}
	uint64_t got;
	memcpy(&got, sym_mem_at(count), 8);
	CHECK(got == (uint64_t)(N * p->n));
	OK(sym_team_sync(p->all));
	free(src);
	free(back);
	sym_mem_free(count);
	sym_mem_free(m);
}

static void strided(struct pe *p)
{
	enum { N = 20 };
	struct sym_mem *m = memory(p, p->all, 4096);
	int next = (p->me + 1) % p->n, before = (p->me + p->n - 1) % p->n;

	for (size_t bytes = 1; bytes <= 16; bytes = bytes * 2 + (bytes == 4)) {
		char src[N * 2 * 16], back[N * 2 * 16];
		fill(src, sizeof src, (uint64_t)p->me + bytes);
		/* Every second element to every third place; then read backwards. */
		sym_ctx_iput(p->cx, m, 0, 3, src, 2, bytes, N, next);
		OK(sym_team_barrier(p->all));
		char want[N * 2 * 16], *at = sym_mem_at(m);
		fill(want, sizeof want, (uint64_t)before + bytes);
		for (size_t i = 0; i < N; i++)
			CHECK(!memcmp(at + 3 * i * bytes, want + 2 * i * bytes, bytes));
		sym_ctx_iget(p->cx, back, 1, m, (N - 1) * 3 * bytes, -3, bytes, N, next);
		for (size_t i = 0; i < N; i++)
			CHECK(!memcmp(back + i * bytes, src + 2 * (N - 1 - i) * bytes, bytes));
		OK(sym_ctx_quiet(p->cx));
		OK(sym_team_sync(p->all));
	}
	sym_ctx_iput(p->cx, m, 0, 1, NULL, 1, 8, 0, next);
	OK(sym_ctx_quiet(p->cx));
	sym_ctx_iput(p->cx, m, 8, -2, "0123456789abcdef", 1, 8, 2, next);
	FAILS(sym_ctx_quiet(p->cx), OUT_OF_RANGE);
	sym_ctx_iput(p->cx, m, 0, PTRDIFF_MAX / 8, "0123456789abcdef", 1, 8, 2, next);
	FAILS(sym_ctx_quiet(p->cx), OUT_OF_RANGE);
	sym_mem_free(m);
}

static void elements(struct pe *p)
{
	struct sym_mem *m = memory(p, p->all, 256);
	int next = (p->me + 1) % p->n;

	for (int bytes = 1; bytes <= 8; bytes *= 2) {
		uint64_t v = mix((uint64_t)p->me + (uint64_t)bytes) >> (64 - 8 * bytes);
		sym_ctx_p(p->cx, m, 16 * (size_t)bytes, bytes, v, next);
		OK(sym_ctx_quiet(p->cx));
		CHECK(sym_ctx_g(p->cx, m, 16 * (size_t)bytes, bytes, next) == v);
	}
	sym_ctx_p(p->cx, m, 0, 3, 1, next);
	FAILS(sym_ctx_quiet(p->cx), INVALID);
	OK(sym_team_sync(p->all));
	sym_mem_free(m);
}

/* --- signals and order -------------------------------------------------------------------------- */

static void put_signal(struct pe *p)
{
	struct sym_mem *m = memory(p, p->all, 2 * BIG), *sig = memory(p, p->all, 64);
	char *src = malloc(BIG);
	int next = (p->me + 1) % p->n, before = (p->me + p->n - 1) % p->n;
	uint64_t sum = 0;

	for (uint64_t r = 1; r <= 40; r++) {
		size_t n = r % 10 == 0 ? BIG : (size_t)(mix(r) >> 52);
		size_t off = (r & 1) * BIG;
		/* The half was read two rounds ago. */
		OK(sym_wait_until(p->cx, sig, 32, SYM_U64, SYM_GE, r < 2 ? 0 : (int64_t)r - 2, next, NULL));
		fill(src, n, r * 100 + (uint64_t)p->me);
		if (r % 3 == 0)
			sym_ctx_put_signal_nbi(p->cx, m, off, src, n, sig, 8, SYM_SET, r, next);
		else
			sym_ctx_put_signal(p->cx, m, off, src, n, sig, 8, SYM_SET, r, next);
		int64_t seen;
		OK(sym_wait_until(p->cx, sig, 8, SYM_U64, SYM_GE, (int64_t)r, before, &seen));
		CHECK((uint64_t)seen == r || (uint64_t)seen == r + 1);
		CHECK(filled((char *)sym_mem_at(m) + off, n, r * 100 + (uint64_t)before));
		sym_ctx_signal(p->cx, sig, 32, SYM_SET, r, before);
		if (r % 3 == 0)
			OK(sym_ctx_quiet(p->cx));
	}
	/* Adding counts. */
	OK(sym_team_sync(p->all));
	for (int r = 0; r < p->n; r++)
		sym_ctx_put_signal(p->cx, m, 16 * (size_t)p->me, src, 16, sig, 16, SYM_ADD, (uint64_t)p->me + 1, r);
	for (int r = 0; r < p->n; r++)
		sum += (uint64_t)r + 1;
	OK(sym_wait_until(p->cx, sig, 16, SYM_U64, SYM_EQ, (int64_t)sum, SYM_ANY, NULL));
	CHECK(sym_signal_fetch(sig, 16) == sum);
	sym_ctx_signal(p->cx, sig, 24, SYM_ADD, 5, p->me);
	sym_ctx_signal(p->cx, sig, 24, SYM_ADD, 6, p->me);
	OK(sym_wait_until(p->cx, sig, 24, SYM_I64, SYM_GT, 10, SYM_ANY, NULL));
	OK(sym_ctx_quiet(p->cx));
	OK(sym_team_sync(p->all));
	free(src);
	sym_mem_free(sig);
	sym_mem_free(m);
}

/* Data, fence, flag: who sees the flag sees the data, however the flag is written. */
static void fences(struct pe *p)
{
	struct sym_mem *m = memory(p, p->all, 8192);
	int next = (p->me + 1) % p->n, before = (p->me + p->n - 1) % p->n;
	char buf[4000];

	for (uint64_t r = 1; r <= 40; r++) {
		size_t off = 64 + (r & 1) * 4000;
		uint64_t flag = r;
		fill(buf, sizeof buf, r * 7 + (uint64_t)p->me);
		for (size_t i = 0; i < 4; i++)
			sym_ctx_put(p->cx, m, off + 1000 * i, buf + 1000 * i, 1000, next);
		sym_ctx_fence(p->cx);
		if (r & 2)
			sym_ctx_put(p->cx, m, 0, &flag, sizeof flag, next);
		else
			sym_ctx_p(p->cx, m, 0, 8, flag, next);
		OK(sym_wait_until(p->cx, m, 0, SYM_U64, SYM_GE, (int64_t)r, before, NULL));
		CHECK(filled((char *)sym_mem_at(m) + off, sizeof buf, r * 7 + (uint64_t)before));
		/* Before the half is written again, its reader must be through. */
		sym_ctx_amo_post(p->cx, m, 8, 8, SYM_SET, r, before);
		OK(sym_wait_until(p->cx, m, 8, SYM_U64, SYM_GE, (int64_t)r, next, NULL));
	}
	OK(sym_team_barrier(p->all));
	/* The last of many puts to one place wins. */
	for (uint64_t r = 0; r < 20; r++) {
		memset(buf, (int)r, 100);
		sym_ctx_put(p->cx, m, 64, buf, 100, next);
		sym_ctx_fence(p->cx);
	}
	OK(sym_team_barrier(p->all));
	for (int i = 0; i < 100; i++)
		CHECK(((char *)sym_mem_at(m))[64 + i] == 19);
	OK(sym_team_sync(p->all));
	sym_mem_free(m);
}

/* Store buffering: of two that write and then read the other's, one at least sees it. */
static void store_buffering(struct pe *p)
{
	struct sym_mem *m = memory(p, p->all, 64);
	int peer = p->me ^ 1;

	for (uint64_t r = 1; r <= 60; r++) {
		if (peer < p->n) {
			sym_ctx_p(p->cx, m, 0, 8, r, p->me);
			OK(sym_ctx_quiet(p->cx));
			uint64_t saw = sym_ctx_g(p->cx, m, 0, 8, peer) >= r;
			sym_ctx_p(p->cx, m, 8, 8, saw, p->me);
		}
		OK(sym_team_barrier(p->all));
		if (peer < p->n)
			CHECK(sym_ctx_g(p->cx, m, 8, 8, p->me) || sym_ctx_g(p->cx, m, 8, 8, peer));
		OK(sym_team_sync(p->all));
	}
	sym_mem_free(m);
}

/* --- atomics ------------------------------------------------------------------------------------------ */

static void atomics(struct pe *p)
{
	enum { N = 30 };
	struct sym_mem *m = memory(p, p->all, 256);

	for (int bytes = 4; bytes <= 8; bytes += 4) {
		uint64_t all = bytes == 4 ? UINT32_MAX : UINT64_MAX, old, seen = 0;
		size_t at = bytes == 4 ? 4 : 64;
		/* Counting: what is fetched never falls, nothing is lost. */
		for (int i = 0; i < N; i++) {
			old = sym_ctx_amo(p->cx, m, at, bytes, SYM_ADD, 3, 0, 0);
			CHECK(i == 0 || old > seen);
			seen = old;
		}
		OK(sym_team_sync(p->all));
		for (int i = 0; i < N; i++)
			sym_ctx_amo_post(p->cx, m, at, bytes, SYM_ADD, all, 0);      /* minus one */
		OK(sym_team_barrier(p->all));
		CHECK(sym_ctx_amo(p->cx, m, at, bytes, SYM_FETCH, 0, 0, 0) == (uint64_t)(2 * N * p->n));
		OK(sym_team_sync(p->all));
		/* A lock by compare and swap guards a plain word. */
		for (int i = 0; i < 10; i++) {
			while (sym_ctx_amo(p->cx, m, at + 8, bytes, SYM_CAS, (uint64_t)p->me + 1, 0, 0) != 0) { }
			old = sym_ctx_g(p->cx, m, at + 16, 8, 0);
			sym_ctx_p(p->cx, m, at + 16, 8, old + 1, 0);
			OK(sym_ctx_quiet(p->cx));
			CHECK(sym_ctx_amo(p->cx, m, at + 8, bytes, SYM_SWAP, 0, 0, 0) == (uint64_t)p->me + 1);
		}
		OK(sym_team_barrier(p->all));
		CHECK(sym_ctx_g(p->cx, m, at + 16, 8, 0) == (uint64_t)(10 * p->n));
		OK(sym_team_sync(p->all));
		/* Bits: each PE has its own. */
		uint64_t bit = 1ull << (p->me + 20), every = ((1ull << p->n) - 1) << 20;
		CHECK(!(sym_ctx_amo(p->cx, m, at + 24, bytes, SYM_OR, bit, 0, 0) & bit));
		OK(sym_team_barrier(p->all));
		CHECK(sym_ctx_amo(p->cx, m, at + 24, bytes, SYM_FETCH, 0, 0, 0) == every);
		OK(sym_team_sync(p->all));
		CHECK(sym_ctx_amo(p->cx, m, at + 24, bytes, SYM_XOR, bit | 1ull << p->me, 0, 0) & bit);
		OK(sym_team_barrier(p->all));
		sym_ctx_amo_nbi(p->cx, m, at + 24, bytes, SYM_FETCH, 0, 0, 0, &old);
		OK(sym_ctx_quiet(p->cx));
		CHECK(old == every >> 20);
		OK(sym_team_sync(p->all));
		CHECK(sym_ctx_amo(p->cx, m, at + 24, bytes, SYM_AND, all & ~(1ull << p->me), 0, 0) & 1ull << p->me);
		OK(sym_team_barrier(p->all));
		CHECK(sym_ctx_amo(p->cx, m, at + 24, bytes, SYM_FETCH, 0, 0, 0) == 0);
		/* Neighbours stay as they are. */
		CHECK(sym_ctx_g(p->cx, m, 0, 4, 0) == 0);
		sym_ctx_amo_post(p->cx, m, at + 32, bytes, SYM_SET, 77, p->me);
		OK(sym_ctx_quiet(p->cx));
		CHECK(sym_ctx_amo(p->cx, m, at + 32, bytes, SYM_FETCH, 0, 0, p->me) == 77);
		OK(sym_team_barrier(p->all));
	}
	sym_ctx_amo(p->cx, m, 2, 4, SYM_ADD, 1, 0, 0);
	FAILS(sym_ctx_quiet(p->cx), INVALID);
	sym_ctx_amo(p->cx, m, 0, 2, SYM_ADD, 1, 0, 0);
	FAILS(sym_ctx_quiet(p->cx), INVALID);
	sym_ctx_amo_post(p->cx, m, 0, 8, SYM_CAS, 1, 0);
	FAILS(sym_ctx_quiet(p->cx), INVALID);
	sym_mem_free(m);
}

/* --- waits -------------------------------------------------------------------------------------------- */

static void waits(struct pe *p)
{
	struct sym_mem *m = memory(p, p->all, 1024);
	size_t which[MAXP], n, got = 0;
	uint8_t skip[MAXP] = { 0 };
	int64_t each[MAXP] = { 0 };
	const int64_t seen = 7;

	/* Each PE tells each other one, 64-bit words at 0, 32-bit ones at 512. */
	for (int r = 0; r < p->n; r++)
		sym_ctx_p(p->cx, m, 8 * (size_t)p->me, 8, (uint64_t)p->me + 1, r);
	struct sym_cond x = { .m = m, .n = (size_t)p->n, .type = SYM_I64, .cmp = SYM_NE, .v = 0, .from = SYM_ANY };
	for (int k = 0; k < p->n; k++) {
		OK(sym_wait_any(p->cx, &(struct sym_cond){ .m = m, .n = (size_t)p->n, .type = SYM_I64, .cmp = SYM_GT, .v = 0, .skip = skip, .from = SYM_ANY }, &n));
		CHECK(n < (size_t)p->n && !skip[n]);
		skip[n] = 1;
	}
	x.skip = skip;
	OK(sym_wait_any(p->cx, &x, &n));      /* none counts */
	CHECK(n == (size_t)p->n);
	OK(sym_wait_some(p->cx, &x, which, &n));
	CHECK(n == 0);
	OK(sym_wait_all(p->cx, &x));
	x.skip = NULL;
	OK(sym_wait_all(p->cx, &x));
	for (int k = 0; k < p->n; k++) {      /* as many looks as words: none is passed over */
		OK(sym_wait_any(p->cx, &x, &n));
		each[n] = seen;
	}
	for (int i = 0; i < p->n; i++)
		CHECK(each[i] == seen);
	for (int i = 0; i < p->n; i++)
		each[i] = i + 1;
	x.each = each;
	x.cmp = SYM_EQ;
	CHECK(sym_test_all(p->cx, &x));
	OK(sym_wait_some(p->cx, &x, which, &n));
	CHECK(n == (size_t)p->n && which[n - 1] == n - 1);
	each[0] = 99;
	CHECK(!sym_test_all(p->cx, &x) && sym_test_some(p->cx, &x, which) == (size_t)p->n - 1);
	x.cmp = SYM_GT;
	CHECK(sym_test_any(p->cx, &x) == (size_t)p->n);
	OK(sym_team_barrier(p->all));

	memset(skip, 0, sizeof skip);
	for (int r = 0; r < p->n; r++)
		sym_ctx_amo_post(p->cx, m, 512 + 4 * (size_t)p->me, 4, SYM_ADD, (uint32_t)-5, r);
	while (got < (size_t)p->n) {
		struct sym_cond y = { .m = m, .off = 512, .n = (size_t)p->n, .type = SYM_I32, .cmp = SYM_LE, .v = -5, .skip = skip, .from = SYM_ANY };
		OK(sym_wait_some(p->cx, &y, which, &n));
		CHECK(n > 0);
		for (size_t i = 0; i < n; i++)
			skip[which[i]] = 1;
		got += n;
	}
	struct sym_cond z = { .m = m, .off = 512, .n = (size_t)p->n, .type = SYM_U32, .cmp = SYM_GT, .v = 5, .from = SYM_ANY };
	CHECK(sym_test_all(p->cx, &z));        /* not negative */
	z.type = SYM_I32;
	z.cmp = SYM_LT;
	CHECK(sym_test_all(p->cx, &z));
	z.off = 514;
	FAILS(sym_wait_all(p->cx, &z), INVALID);
	z.off = 1020;
	FAILS(sym_wait_all(p->cx, &(struct sym_cond){ .m = m, .off = 1020, .n = 2, .type = SYM_I32 }), INVALID);
	FAILS(sym_wait_all(p->cx, &(struct sym_cond){ .m = m, .n = 1, .type = SYM_I64, .from = p->n }), INVALID);
	OK(sym_team_barrier(p->all));
	sym_mem_free(m);
}

static int by_size(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

/* Waiting costs next to nothing: in most of some times, since a core that the machine lends to others meanwhile counts as used. */
static void idle(struct pe *p)
{
	enum { TIMES = 5, WAIT_MS = 100 };
	struct sym_mem *m = memory(p, p->all, 8);
	double ms[TIMES];

	for (int k = 0; k < TIMES; k++) {
		struct timespec a, b;
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
		if (p->me == 0) {
			usleep(WAIT_MS * 1000);
			for (int r = 1; r < p->n; r++)
				sym_ctx_signal(p->cx, m, 0, SYM_SET, (uint64_t)k + 1, r);
		} else
			OK(sym_wait_until(p->cx, m, 0, SYM_U64, SYM_EQ, k + 1, 0, NULL));
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
		ms[k] = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
		OK(sym_team_barrier(p->all));
	}
	qsort(ms, TIMES, sizeof *ms, by_size);
	if (getenv("TIMES"))
		fprintf(stderr, "%s: PE %d of %d used %.2f ms of CPU in %d ms\n", shape_name, p->me, p->n, ms[TIMES / 2], WAIT_MS);
	CHECK(p->slow || ms[TIMES / 2] < WAIT_MS * 0.02);
	OK(sym_team_barrier(p->all));
	sym_mem_free(m);
}

/* --- contexts and errors ---------------------------------------------------------------------------------- */

struct side { pthread_t t; struct pe *p; struct sym_ctx *cx; struct sym_mem *m; int k; };
static void *count(void *v)
{
	struct side *s = v;
	struct pe *p = s->p;
	char buf[100];

	for (int i = 0; i < 20; i++) {
		int to = (p->me + i) % p->n;
		sym_ctx_amo_post(s->cx, s->m, 0, 8, SYM_ADD, 1, to);
		fill(buf, sizeof buf, (uint64_t)i);
		sym_ctx_put(s->cx, s->m, 128 * (size_t)(1 + p->me * 2 + s->k), buf, sizeof buf, to);
	}
	OK(sym_ctx_quiet(s->cx));
	return NULL;
}
static void *poke(void *v)
{
	struct side *s = v;

	sym_ctx_p(s->cx, s->m, 8, 8, 1, s->p->me);
	return NULL;
}

static void contexts(struct pe *p)
{
	struct sym_mem *m = memory(p, p->all, 128 * (1 + 2 * MAXP));
	struct sym_ctx *shared, *mine;
	struct side s[2];
	pthread_t t;

	FAILS(sym_ctx_new(p->w, p->n, SYM_SHARED, &shared), INVALID);
	OK(sym_ctx_new(p->w, p->me, SYM_SHARED, &shared));
	OK(sym_ctx_new(p->w, p->me, SYM_PRIVATE, &mine));
	for (int k = 0; k < 2; k++) {
		s[k] = (struct side){ .p = p, .cx = shared, .m = m, .k = k };
		pthread_create(&s[k].t, NULL, count, &s[k]);
	}
	for (int k = 0; k < 2; k++)
		pthread_join(s[k].t, NULL);
	OK(sym_team_barrier(p->all));
	uint64_t sum = 0;
	for (int r = 0; r < p->n; r++)
		sum += sym_ctx_g(mine, m, 0, 8, r);
	CHECK(sum == (uint64_t)(40 * p->n));
	OK(sym_ctx_quiet(mine));
	/* Errors stay in their context, the first of them, until quiet. */
	char c = 0;
	sym_ctx_put(mine, m, 0, &c, 1, p->n);
	sym_ctx_put(mine, m, sym_mem_bytes(m), &c, 1, 0);
	OK(sym_ctx_quiet(shared));
	struct err *e = sym_ctx_quiet(mine);
	CHECK(e && e->code == ERR_OUT_OF_RANGE && strstr(e->msg, "put: rank"));
	err_free(e);
	OK(sym_ctx_quiet(mine));
	sym_ctx_get(mine, &c, m, SIZE_MAX, 1, 0);
	FAILS(sym_ctx_quiet(mine), OUT_OF_RANGE);
	sym_ctx_signal(mine, m, 0, SYM_XOR, 1, 0);
	FAILS(sym_ctx_quiet(mine), INVALID);
	s[0].cx = mine;
	pthread_create(&t, NULL, poke, &s[0]);
	pthread_join(t, NULL);
	FAILS(sym_ctx_quiet(mine), PRECONDITION);
	sym_ctx_free(mine);
	sym_ctx_free(shared);
	sym_ctx_free(NULL);
	OK(sym_team_barrier(p->all));
	sym_mem_free(m);
}

/* --- streams --------------------------------------------------------------------------------------------------- */

struct look { struct pe *p; const char *buf; size_t n; uint64_t seed; int *count; };
static struct err *look(void *v)
{
	struct look *l = v;

	if (l->count)
		++*l->count;
	return filled(l->buf, l->n, l->seed) ? NULL : ERR(DATA_LOSS, "PE %d read something else", l->p->me);
}

static void streams(struct pe *p)
{
	enum { N = 6, EACH = 30000 };
	struct sym_mem *m = memory(p, p->all, (size_t)N * EACH), *sig = memory(p, p->all, 64);
	struct sym_stream *copy, *work;
	struct sym_event *v[N];
	struct look l[N];
	char *src = malloc((size_t)N * EACH), *back = malloc((size_t)N * EACH);
	int next = (p->me + 1) % p->n, before = (p->me + p->n - 1) % p->n, count = 0;

	OK(sym_stream_new(p->w, p->me, "copy", &copy));
	OK(sym_stream_new(p->w, p->me, "work", &work));
	CHECK(sym_stream_idle(copy));
	/* Put round the ring, wait for the own piece, read it back from the neighbour; another stream looks at each piece. */
	for (int i = 0; i < N; i++) {
		size_t off = (size_t)i * EACH;
		fill(src + off, EACH, (uint64_t)(p->me * 100 + i));
		sym_stream_put_signal(copy, m, off, src + off, EACH, sig, 0, SYM_ADD, 1, next);
		sym_stream_wait(copy, sig, 0, SYM_U64, SYM_GE, i + 1, before);
		sym_stream_get(copy, back + off, m, off, EACH, next);
		v[i] = sym_event_new();
		CHECK(sym_event_done(v[i]));
		sym_event_record(v[i], copy);
		sym_stream_await(work, v[i]);
		l[i] = (struct look){ p, back + off, EACH, (uint64_t)(p->me * 100 + i), &count };
		sym_stream_call(work, "look", look, &l[i]);
	}
	OK(sym_event_wait(v[2]));
	CHECK(sym_event_done(v[2]));
	OK(sym_stream_sync(work));
	CHECK(count == N && sym_stream_idle(work));
	OK(sym_stream_sync(copy));
	for (int i = 0; i < N; i++) {
		CHECK(filled((char *)sym_mem_at(m) + (size_t)i * EACH, EACH, (uint64_t)(before * 100 + i)));
		sym_event_free(v[i]);
	}
	OK(sym_team_sync(p->all));
	/* Barriers on a stream; a put before it is there behind it. */
	sym_stream_put(copy, m, 0, src + EACH, 100, next);
	sym_stream_signal(copy, sig, 8, SYM_SET, 1, next);
	sym_stream_barrier(copy, p->all);
	sym_stream_get(copy, back, m, 0, 100, next);
	OK(sym_stream_sync(copy));
	CHECK(filled(sym_mem_at(m), 100, (uint64_t)(before * 100 + 1)) && sym_signal_fetch(sig, 8) == 1);
	CHECK(filled(back, 100, (uint64_t)(p->me * 100 + 1)));
	OK(sym_team_sync(p->all));

	/* The first error stays, names what failed, stops what follows, and goes over to who waits for it. */
	struct sym_stream *bad_one;
	struct sym_event *ev = sym_event_new();
	OK(sym_stream_new(p->w, p->me, "bad", &bad_one));
	sym_stream_put(bad_one, m, 0, src, 10, p->me);
	sym_stream_put(bad_one, m, (size_t)N * EACH, src, 10, p->me);
	count = 0;
	sym_stream_call(bad_one, "look", look, &l[0]);
	sym_event_record(ev, bad_one);
	sym_stream_await(work, ev);
	for (int i = 0; i < 2; i++) {
		struct err *e = sym_stream_sync(bad_one);
		CHECK(e && e->code == ERR_OUT_OF_RANGE && strstr(e->msg, "stream 'bad', operation 2, put of 10 bytes"));
		err_free(e);
	}
	CHECK(!count);
	FAILS(sym_event_wait(ev), OUT_OF_RANGE);
	FAILS(sym_stream_sync(work), OUT_OF_RANGE);
	sym_stream_free(bad_one);
	sym_stream_free(work);
	/* What waits for ever can be cancelled. */
	OK(sym_stream_new(p->w, p->me, "stuck", &work));
	sym_stream_wait(work, sig, 16, SYM_U64, SYM_EQ, 1, SYM_ANY);
	sym_stream_call(work, "look", look, &l[0]);
	sym_stream_cancel(work);
	FAILS(sym_stream_sync(work), CANCELLED);
	CHECK(!count);
	sym_stream_free(work);
	sym_stream_free(copy);
	sym_stream_free(NULL);
	sym_event_free(ev);
	OK(sym_team_barrier(p->all));
	free(src);
	free(back);
	sym_mem_free(sig);
	sym_mem_free(m);
}

static struct err *counted(void *v)
{
	++*(int *)v;
	return NULL;
}

/* Whose stream is freed has had all of it done, though the thread was about to sleep. */
static void streams_freed(struct pe *p)
{
	enum { STREAMS = 20, CALLS = 3 };
	struct sym_stream *s;
	int count = 0;

	for (int i = 0; i < STREAMS; i++) {
		OK(sym_stream_new(p->w, p->me, "freed", &s));
		OK(sym_stream_sync(s));
		for (int k = 0; k < CALLS; k++)
			sym_stream_call(s, "count", counted, &count);
		sym_stream_free(s);
	}
	CHECK(count == STREAMS * CALLS);
}

/* Collectives on two streams of each PE, in one order over both, while the PE itself is in others of the same team. */
enum { SUMS = 10, WORDS = 3000 };
struct sums { int64_t in[SUMS][WORDS], out[SUMS][WORDS], own[WORDS], all[WORDS * MAXP]; };

static int64_t word_of(int pe, int i, int j) { return pe * 1000 + i * 10 + j; }

static void stream_collectives(struct pe *p)
{
	static struct sums all[MAXP];
	static const struct coll_red add = { .op = RED_add, .dtype = DT_i64 };
	struct sums *s = &all[p->me];
	struct sym_stream *st[2];
	struct coll_table table;
	int peer[MAXP], every[MAXP], n = 0;

	for (int i = 0; i < p->n; i++) {
		every[i] = i;
		if (i != p->me)
			peer[n++] = i;
	}
	struct coll_group g = { .n = p->n, .me = p->me, .pe = every };
	coll_table_init(&table);
	struct coll *c = coll_new_stream(p->w, p->me, &table), *own = coll_new(p->w, p->me, &table);
	for (int k = 0; k < 2; k++)
		OK(sym_stream_new(p->w, p->me, k ? "b" : "a", &st[k]));
	for (int i = 0; i < SUMS; i++) {
		for (int j = 0; j < WORDS; j++)
			s->in[i][j] = word_of(p->me, i, j);
		coll_stream_all_reduce(c, st[i * 3 % 2], p->all, &add, i % 3 ? 50 : WORDS, s->in[i], s->out[i]);
	}
	coll_stream_permute(c, st[0], p->all, (p->me + 1) % p->n, (p->me + p->n - 1) % p->n, sizeof s->own, s->in[3], s->own);
	coll_stream_all_gather(c, st[1], p->all, sizeof s->own, s->in[1], s->all);
	sym_stream_barrier(st[0], p->all);
	/* Meanwhile, on the PE's own thread: */
	struct sym_ep *ep = sym_ep_of(p->w, p->me);
	for (int i = 0; i < SUMS; i++) {
		int64_t mine = word_of(p->me, i, 0), sum = 0;
		sym_begin(ep, &(struct sym_launch){ .prog = 5, .name = "sum", .peer = peer, .npeer = n });
		struct err *e = coll_all_reduce(own, &g, 1, &add, 1, &mine, &sum);
		sym_end(ep, e);
		OK(e);
		CHECK(sum == (int64_t)p->n * (p->n - 1) / 2 * 1000 + p->n * i * 10);
		OK(sym_team_barrier(p->all));
	}
	for (int k = 0; k < 2; k++)
		OK(sym_stream_sync(st[k]));
	for (int i = 0; i < SUMS; i++)
		for (int j = 0; j < (i % 3 ? 50 : WORDS); j++)
			CHECK(s->out[i][j] == (int64_t)p->n * (p->n - 1) / 2 * 1000 + p->n * (i * 10 + j));
	for (int j = 0; j < WORDS; j++)
		CHECK(s->own[j] == word_of((p->me + 1) % p->n, 3, j) && s->all[(p->n - 1) * WORDS + j] == word_of(p->n - 1, 1, j));
	/* A member fails in a collective: it fails for all, and so do those after it. */
	coll_stream_broadcast(c, st[0], p->all, p->me ? 0 : p->n, 8, s->own, s->own);
	for (int i = 0; i < 3; i++)
		coll_stream_all_reduce(c, st[0], p->all, &add, 1, s->in[0], s->out[0]);
	if (p->n > 1) {
		struct err *e = sym_stream_sync(st[0]);
		CHECK(e && (p->me ? e->code == ERR_ABORTED : e->code == ERR_INVALID && strstr(e->msg, "operation 9, broadcast: a broadcast from rank")));
		err_free(e);
	}
	for (int k = 0; k < 2; k++)
		sym_stream_free(st[k]);
	coll_free(c);
	coll_free(own);
}

/* Every kind of them, on a team whose ranks are not the numbers of its PEs. */
static void stream_kinds(struct pe *p)
{
	enum { EACH = 701 };
	static const struct coll_red add = { .op = RED_add, .dtype = DT_i64 };
	struct sym_team *t;
	struct sym_stream *s;

	OK(sym_team_split(p->all, p->n - 1, -1, p->n, &t));
	int n = sym_team_n(t), me = sym_team_me(t), next = (me + 1) % n, before = (me + n - 1) % n, root = n / 2;
	size_t all = (size_t)n * EACH;
	struct coll *c = coll_new_stream(p->w, p->me, NULL);
	int64_t *x = malloc(all * sizeof *x), *y = malloc(8 * all * sizeof *y);
	for (size_t i = 0; i < all; i++)
		x[i] = word_of(me, 1, (int)i);
	OK(sym_stream_new(p->w, p->me, "kinds", &s));
	coll_stream_all_reduce(c, s, t, &add, EACH, x, y);
	coll_stream_reduce_scatter(c, s, t, &add, EACH, x, y + all);
	coll_stream_all_gather(c, s, t, EACH * sizeof *x, x, y + 2 * all);
	coll_stream_all_to_all(c, s, t, EACH * sizeof *x, x, y + 3 * all);
	coll_stream_broadcast(c, s, t, root, EACH * sizeof *x, x, y + 4 * all);
	coll_stream_permute(c, s, t, before, next, EACH * sizeof *x, x, y + 5 * all);
	coll_stream_scan(c, s, t, &add, false, EACH, x, y + 6 * all);
	coll_stream_scan(c, s, t, &add, true, EACH, x, y + 7 * all);
	OK(sym_stream_sync(s));
	for (int j = 0; j < EACH; j++) {
		int64_t sum = 0, mine = 0, to_me = 0;
		for (int r = 0; r < n; r++) {
			to_me += word_of(r, 1, me * EACH + j);
			sum += word_of(r, 1, j);
			mine += r <= me ? word_of(r, 1, j) : 0;
			CHECK(y[2 * all + (size_t)(r * EACH + j)] == word_of(r, 1, j));
			CHECK(y[3 * all + (size_t)(r * EACH + j)] == word_of(r, 1, me * EACH + j));
		}
		CHECK(y[j] == sum && y[all + (size_t)j] == to_me);
		CHECK(y[4 * all + (size_t)j] == word_of(root, 1, j) && y[5 * all + (size_t)j] == word_of(before, 1, j));
		CHECK(y[6 * all + (size_t)j] == mine && y[7 * all + (size_t)j] == mine - word_of(me, 1, j));
	}
	sym_stream_free(s);
	coll_free(c);
	sym_team_free(t);
	free(x);
	free(y);
}

static bool summed(const struct pe *p, const int64_t *y, int64_t n)
{
	for (int64_t j = 0; j < n; j++)
		if (y[j] != (int64_t)p->n * (p->n - 1) / 2 + p->n * j)
			return false;
	return true;
}

/* The last PE's stream is cancelled within a collective for which the others have not come: who needs more of it than it has sent
 * fails, nobody gets a wrong sum, and other streams go on with the same collectives' memory. */
static void stream_cancelled(struct pe *p)
{
	enum { MOST = 200000 };
	static const int64_t size[] = { 1, 3000, MOST };
	static const struct coll_red add = { .op = RED_add, .dtype = DT_i64 };
	int64_t *x = malloc(MOST * sizeof *x), *y = malloc(MOST * sizeof *y);
	struct coll_table table;
	struct sym_stream *s;

	coll_table_init(&table);
	struct coll *c = coll_new_stream(p->w, p->me, &table);
	for (size_t i = 0; i < NELEM(size) && p->n > 1; i++) {
		for (int64_t j = 0; j < size[i]; j++)
			x[j] = p->me + j;
		OK(sym_stream_new(p->w, p->me, "late", &s));
		if (p->me == p->n - 1) {
			coll_stream_all_reduce(c, s, p->all, &add, size[i], x, y);
			usleep(i * 3000);
			sym_stream_cancel(s);
			FAILS(sym_stream_sync(s), CANCELLED);
		}
		OK(sym_team_barrier(p->all));
		if (p->me < p->n - 1) {
			coll_stream_all_reduce(c, s, p->all, &add, size[i], x, y);
			struct err *e = sym_stream_sync(s);
			CHECK(e ? e->code == ERR_ABORTED : summed(p, y, size[i]));
			err_free(e);
		}
		sym_stream_free(s);
		OK(sym_team_barrier(p->all));
		OK(sym_stream_new(p->w, p->me, "next", &s));
		coll_stream_all_reduce(c, s, p->all, &add, size[i], x, y);
		OK(sym_stream_sync(s));
		CHECK(summed(p, y, size[i]));
		sym_stream_free(s);
	}
	coll_free(c);
	free(x);
	free(y);
}

/* --- channels -------------------------------------------------------------------------------------------------- */

/* Round the ring: what is lent, put where it was granted, or in a slot, of every size; then as many lines to the next one as fit, which
 * all send before any of them takes one. */
static void channels(struct pe *p)
{
	static const size_t size[] = { 0, 1, 31, 32, 33, 57, SYM_SHORT, SYM_SHORT + 1, SYM_SLOT, SYM_SLOT + 1 };
	struct sym_ep *ep = sym_ep_of(p->w, p->me);
	struct sym_heap *h = sym_heap_of(p->w, p->me);
	int next = (p->me + 1) % p->n, before = (p->me + p->n - 1) % p->n, peer[2] = { next, before };
	struct sym_block *b, *to;
	struct sym_msg m;
	char *buf = malloc(SYM_SLOT + 1);

	OK(sym_alloc(h, SYM_SLOT + 1, "lent", -1, &b));
	OK(sym_alloc(h, SYM_SLOT + 1, "granted", -1, &to));
	char *x = sym_base(h) + b->off, *y = sym_base(h) + to->off;
	for (int round = 0; round < 2 && p->n > 1; round++) {
		sym_begin(ep, &(struct sym_launch){ .prog = 6, .name = "channels", .peer = peer, .npeer = 1 + (p->n > 2) });
		for (uint32_t i = 0; i < NELEM(size); i++) {
			size_t n = size[i];
			fill(x, n, i * 100 + (uint64_t)p->me);
			OK(sym_tell(ep, next, i, SYM_LEND, b->off, n));
			OK(sym_recv(ep, before, i, SYM_LEND, &m));
			CHECK(m.n == n && filled(sym_at(ep, before, m.off, n, buf), n, i * 100 + (uint64_t)before));
			sym_return(ep, before, true);
			OK(sym_settle(ep, &next, 1));
			OK(sym_tell(ep, before, i, SYM_GRANT, to->off, n));
			OK(sym_recv(ep, next, i, SYM_GRANT, &m));
			CHECK(m.n == n);
			sym_put(ep, next, m.off, x, n);
			OK(sym_tell(ep, next, i, SYM_READY, 0, 0));
			sym_return(ep, next, false);
			OK(sym_recv(ep, before, i, SYM_READY, &m));
			sym_return(ep, before, false);
			CHECK(filled(y, n, i * 100 + (uint64_t)before));
			if (n > SYM_SLOT)
				continue;
			OK(sym_slot_put(ep, next, i, x, n));
			OK(sym_recv(ep, before, i, SYM_SLOT_MSG, &m));
			CHECK(m.n == n && filled(m.data, n, i * 100 + (uint64_t)before));
			sym_return(ep, before, false);
		}
		for (uint32_t k = 0; k < SYM_RING; k++)
			OK(sym_tell(ep, next, 100 + k, SYM_LEND, b->off + k, k));
		for (uint32_t k = 0; k < SYM_RING; k++) {
			OK(sym_recv(ep, before, 100 + k, SYM_LEND, &m));
			CHECK(m.n == k);
		}
		sym_return(ep, before, true);
		OK(sym_settle(ep, &next, 1));
		sym_end(ep, NULL);
	}
	OK(sym_team_sync(p->all));
	sym_free(b);
	sym_free(to);
	free(buf);
}

/* Who waits long for one whose memory is not mapped asks what it shows there: meanwhile that one writes it. */
static void late(struct pe *p)
{
	struct sym_ep *ep = sym_ep_of(p->w, p->me);
	int other = p->me ^ 1;
	struct sym_msg m;

	for (int round = 0; round < 2 && other < p->n && !sym_maps(ep, other); round++) {
		sym_begin(ep, &(struct sym_launch){ .prog = 7 + (uint32_t)round, .name = round ? "late by two seconds and a half" : "late", .peer = &other, .npeer = 1 });
		if (p->me > other)
			OK(sym_recv(ep, other, 1, SYM_LEND, &m));
		else {
			if (!round)
				usleep(2300 * 1000);
			OK(sym_tell(ep, other, 1, SYM_LEND, 0, 0));
		}
		if (p->me > other)
			sym_return(ep, other, false);
		else
			OK(sym_settle(ep, &other, 1));
		sym_end(ep, NULL);
	}
	OK(sym_team_sync(p->all));
}

/* --- running them ------------------------------------------------------------------------------------------- */

static const struct { const char *name; void (*fn)(struct pe *); } cases[] = {
	{ "teams", teams }, { "teams at once", teams_at_once }, { "syncs", syncs }, { "memory", symmetric_memory }, { "put and get", put_get },
	{ "many nbi", many_nbi }, { "without memory", poor }, { "strided", strided }, { "elements", elements }, { "put and signal", put_signal }, { "fences", fences },
	{ "store buffering", store_buffering }, { "atomics", atomics }, { "waits", waits }, { "idle", idle }, { "contexts", contexts },
	{ "streams", streams }, { "streams that are freed", streams_freed },
	{ "collectives on streams", stream_collectives }, { "kinds on streams", stream_kinds },
	{ "a collective is cancelled", stream_cancelled }, { "channels", channels },
	{ "late", late },
};

static void *pe_main(void *v)
{
	struct pe *p = v;
	const char *only = getenv("CASE");

	p->all = sym_team_world(p->w, p->me);
	OK(sym_ctx_new(p->w, p->me, SYM_SHARED, &p->cx));
	for (size_t i = 0; i < NELEM(cases); i++) {
		double t = clock_s();
		p->name = cases[i].name;
		if (only && strcmp(only, p->name))
			continue;
		cases[i].fn(p);
		OK(sym_ctx_quiet(p->cx));
		OK(sym_team_barrier(p->all));
		if (getenv("TIMES") && !p->me)
			fprintf(stderr, "%s %d: %s: %.3f s\n", shape_name, p->n, p->name, clock_s() - t);
	}
	sym_ctx_free(p->cx);
	return NULL;
}

/* Process i of a shape joins the others. */
static struct sym_world *join(const struct shape *s, int i, struct kv **kv)
{
	struct sym_world *w;
	struct err *e = NULL;
	char text[20];

	shape_name = s->name;
	snprintf(text, sizeof text, "%d", s->nproc);
	conf_set("PROCESSES", text);
	snprintf(text, sizeof text, "%d", i);
	conf_set("PROCESS", text);
	conf_set("TRANSPORT", s->road);
	conf_set("JOIN_TIMEOUT", "30");
	*kv = NULL;
	if (s->nproc > 1)
		e = sym_boot_env(kv);
	struct sym_opts o = { .nlocal = s->ndev[i], .boot = *kv, .threads = s->ndev[i], .guard = true, .chaos = s->chaos != 0, .seed = s->chaos * 100 + (uint64_t)i };
	if (!e)
		e = sym_open(&o, &w);
	if (e) {
		fprintf(stderr, "%s: process %d: %s\n", s->name, i, e->msg);
		_exit(e->code == ERR_UNIMPLEMENTED || strstr(e->msg, "cannot load UCX") ? 77 : 1);
	}
	return w;
}

/* What does not come to its end says where. */
static struct pe all_pe[MAXP];
static void hangs(int sig)
{
	for (int k = 0; k < MAXP && all_pe[k].w; k++)
		dprintf(2, "%s: PE %d of %d has not come to the end of case '%s'\n", shape_name, all_pe[k].me, all_pe[k].n, all_pe[k].name);
	signal(sig, SIG_DFL);
	raise(sig);
}

/* Every case, on the n PEs of this process. */
static void all_cases(struct sym_world *w, int n, bool slow)
{
	struct pe *p = all_pe;
	pthread_t t[MAXP];

	signal(SIGALRM, hangs);
	for (int k = 0; k < n; k++) {
		p[k] = (struct pe){ .w = w, .me = sym_first(w) + k, .n = sym_npe(w), .slow = slow };
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
		p[k].slow = true;
#endif
		pthread_create(&t[k], NULL, pe_main, &p[k]);
	}
	for (int k = 0; k < n; k++)
		pthread_join(t[k], NULL);
	if (sym_guard_broken())
		_exit(2);
}

static void member(const struct shape *s, int i)
{
	struct kv *kv;
	struct sym_world *w = join(s, i, &kv);

	all_cases(w, s->ndev[i], !strcmp(s->road, "tcp") || !strcmp(s->road, "ucx"));
	sym_close(w);
	sym_boot_free(kv);
	leave(0);
}

/* The thread sanitizer does not see order between two threads that comes about through another process; on our TCP road it does. */
static bool blind(const struct shape *s)
{
#ifdef __SANITIZE_THREAD__
	for (int i = 0; i < s->nproc && s->nproc > 1 && strcmp(s->road, "tcp"); i++)
		if (s->ndev[i] > 1)
			return true;
#endif
	return false;
}

struct job { const struct shape *s; pid_t pid[MAXP]; char dir[64]; double since; };

static void start(struct job *j, const struct shape *s, void (*fn)(const struct shape *, int))
{
	*j = (struct job){ .s = s, .dir = "/tmp/rondo-conform-XXXXXX", .since = clock_s() };
	assert_non_null(mkdtemp(j->dir));
	conf_set("RENDEZVOUS", j->dir);
	fflush(NULL);
	for (int i = 0; i < s->nproc; i++)
		if (!(j->pid[i] = fork())) {
			alarm(300);
			fn(s, i);
		}
}

/* Wait for its processes.  Good: the victim, if there is one, was killed, and all others ended well; or the road is not here. */
static bool end(const struct job *j, int victim)
{
	bool good = true, absent = false;
	char cmd[100];

	for (int i = 0; i < j->s->nproc; i++) {
		int st;
		assert_int_equal(waitpid(j->pid[i], &st, 0), j->pid[i]);
		absent |= WIFEXITED(st) && WEXITSTATUS(st) == 77;
		if (i == victim ? WIFSIGNALED(st) : !st)
			continue;
		good = false;
		fprintf(stderr, "%s: process %d ended with status %x\n", j->s->name, i, st);
	}
	snprintf(cmd, sizeof cmd, "rm -r %s", j->dir);
	assert_int_equal(system(cmd), 0);
	if (absent)
		fprintf(stderr, "%s: not here\n", j->s->name);
	if (getenv("TIMES"))
		fprintf(stderr, "%s x %d: %.2f s\n", j->s->name, j->s->nproc, clock_s() - j->since);
	return good || absent;
}

/* A few worlds at a time: much of what they do is wait.  Where few cases are drawn, half of the shapes, others each time. */
static void run(const struct shape *s, size_t n, void (*fn)(const struct shape *, int), int victim)
{
	enum { FEW = 3 };
	struct job job[FEW];
	bool good = true;
	size_t take = draws(100) < 50 ? (n + 1) / 2 : n, first = take < n ? (size_t)getpid() % n : 0;

	for (size_t i = 0; i < take + FEW; i++) {
		if (i >= FEW && !(fn == member && blind(&s[(first + i - FEW) % n])))
			good &= end(&job[i % FEW], victim);
		if (i < take && !(fn == member && blind(&s[(first + i) % n])))
			start(&job[i % FEW], &s[(first + i) % n], fn);
	}
	assert_true(good);
}

static void threads(void **state)
{
	static const struct shape s[] = {
		{ "self", 1, { 1 }, "auto", 0 }, { "thread", 1, { 2 }, "auto", 0 }, { "thread", 1, { 4 }, "auto", 0 }, { "thread", 1, { 7 }, "auto", 0 },
	};
	run(s, NELEM(s), member, -1);
}

static void processes(void **state)
{
	static const struct shape s[] = {
		{ "shm", 2, { 1, 1 }, "shm", 0 }, { "shm", 4, { 1, 1, 1, 1 }, "shm", 0 }, { "shm", 7, { 1, 1, 1, 1, 1, 1, 1 }, "shm", 0 },
		{ "mixed", 2, { 1, 3 }, "auto", 0 }, { "mixed", 3, { 2, 1, 4 }, "auto", 0 },
	};
	run(s, NELEM(s), member, -1);
}

static void chaos(void **state)
{
	static const struct shape s[] = {
		{ "chaos self", 1, { 1 }, "auto", 1 }, { "chaos thread", 1, { 2 }, "auto", 2 }, { "chaos thread", 1, { 4 }, "auto", 3 },
		{ "chaos thread", 1, { 7 }, "auto", 4 }, { "chaos shm", 2, { 1, 1 }, "shm", 5 }, { "chaos shm", 4, { 1, 1, 1, 1 }, "shm", 6 },
		{ "chaos mixed", 2, { 3, 4 }, "shm", 7 }, { "chaos thread", 1, { 2 }, "auto", 8 },
	};
	run(s, NELEM(s), member, -1);
}

static void tcp(void **state)
{
	static const struct shape s[] = {
		{ "tcp", 2, { 1, 1 }, "tcp", 0 }, { "tcp", 2, { 1, 3 }, "tcp", 0 }, { "tcp", 3, { 2, 1, 4 }, "tcp", 0 }, { "chaos tcp", 2, { 1, 1 }, "tcp", 10 },
		{ "tcp", 7, { 1, 1, 1, 1, 1, 1, 1 }, "tcp", 0 },
	};
	run(s, NELEM(s), member, -1);
}

static void ucx(void **state)
{
	static const struct shape s[] = {
		{ "ucx", 2, { 1, 1 }, "ucx", 0 }, { "ucx", 2, { 1, 3 }, "ucx", 0 }, { "ucx", 3, { 2, 1, 4 }, "ucx", 0 }, { "chaos ucx", 2, { 1, 1 }, "ucx", 9 },
	};
	run(s, NELEM(s), member, -1);
}

/* A process is killed while the others are in a sync with it, wait for its signal, or write to it: they hear of it at once. */
static void orphan(const struct shape *s, int i)
{
	struct pe q = { .name = "death" }, *p = &q;
	struct kv *kv;

	p->w = join(s, i, &kv);
	p->me = i;
	p->n = s->nproc;
	p->all = sym_team_world(p->w, i);
	OK(sym_ctx_new(p->w, i, SYM_SHARED, &p->cx));
	struct sym_mem *m = memory(p, p->all, 1 << 20);
	struct sym_stream *st;
	OK(sym_stream_new(p->w, i, "s", &st));
	OK(sym_team_barrier(p->all));
	if (i == 1) {
		usleep(20000);
		raise(SIGKILL);
	}
	double t = clock_s();
	sym_ctx_p(p->cx, m, 128, 8, 1, 1);
	sym_stream_wait(st, m, 64, SYM_U64, SYM_EQ, 1, 1);
	struct err *e = i == 0 ? sym_wait_until(p->cx, m, 0, SYM_U64, SYM_EQ, 1, SYM_ANY, NULL) : sym_team_barrier(p->all);
	CHECK(e && e->code == ERR_UNAVAILABLE && strstr(e->msg, "process 1 (pid"));
	err_free(e);
	e = sym_stream_sync(st);
	CHECK(e && strstr(e->msg, "stream 's', operation 1, wait: process 1 (pid"));
	err_free(e);
	if (i != 0)
		FAILS(sym_team_sync(p->all), UNAVAILABLE);
	FAILS(sym_ctx_quiet(p->cx), UNAVAILABLE);
	OK(sym_ctx_quiet(p->cx));
	CHECK(clock_s() - t < 15);        /* a network that says nothing is given up after 20 s */
	sym_stream_free(st);
	sym_mem_free(m);
	sym_ctx_free(p->cx);
	sym_close(p->w);
	sym_boot_free(kv);
	leave(0);
}

static void death(void **state)
{
	static const struct shape s[] = {
		{ "shm", 2, { 1, 1 }, "shm", 0 }, { "shm", 4, { 1, 1, 1, 1 }, "shm", 0 }, { "chaos", 3, { 1, 1, 1 }, "shm", 3 }, { "tcp", 3, { 1, 1, 1 }, "tcp", 0 }, { "ucx", 3, { 1, 1, 1 }, "ucx", 0 },
	};
	run(s, NELEM(s), orphan, 1);
}

/* As one process of a job that somebody else started: sym_conform member DEVICES. */
static int member_main(int n)
{
	struct sym_world *w;
	struct kv *kv;
	struct err *e = sym_boot_env(&kv);

	shape_name = "job";
	struct sym_opts o = { .nlocal = n, .boot = kv, .threads = n, .guard = true, .chaos = conf_int(CONF_CHAOS) != 0, .seed = (uint64_t)conf_int(CONF_CHAOS) };
	if (!e)
		e = sym_open(&o, &w);
	if (e) {
		fprintf(stderr, "%s\n", e->msg);
		return 1;
	}
	all_cases(w, n, true);
	printf("process %d of %d: every case passed\n", sym_proc(w), sym_nproc(w));
	sym_close(w);
	sym_boot_free(kv);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "member"))
		return member_main(MIN(MAX(atoi(argv[2]), 1), MAXP));
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads), cmocka_unit_test(processes), cmocka_unit_test(chaos), cmocka_unit_test(tcp), cmocka_unit_test(ucx), cmocka_unit_test(death),
	};
	return cmocka_run_group_tests_name("sym_conform", tests, NULL, NULL);
}
