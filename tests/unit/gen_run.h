/* Compile a group, run it tile by tile between guard pages, compare with the oracle. */
#ifndef GEN_RUN_H
#define GEN_RUN_H

#include "eval/eval.h"
#include "gen/gen.h"
#include "gen/target.h"
#include "leave.h"
#include "rt/load.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t rng_state = 1;
UNUSED static uint64_t rng(void)
{
	rng_state ^= rng_state << 13;
	rng_state ^= rng_state >> 7;
	rng_state ^= rng_state << 17;
	return rng_state * 0x2545f4914f6cdd1dull >> 11;
}
UNUSED static int pick(int n) { return (int)(rng() % (uint64_t)n); }

/* n bytes whose end is the end of a readable page. */
static void *guarded(size_t n)
{
	size_t page = 4096, size = (n + page - 1) / page * page + page;
	char *p = mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		abort();
	mprotect(p, page, PROT_NONE);
	mprotect(p + size, page, PROT_NONE);
	return p + size - n;
}
static void unguard(void *p, size_t n)
{
	size_t page = 4096, size = (n + page - 1) / page * page + page;
	munmap((char *)p + n - size, size + page);
}

static double as_double(int dt, const void *p)
{
	switch (dt) {
	case DT_bf16: { uint16_t u; memcpy(&u, p, 2); return (double)bf16_to_f32(u); }
	case DT_f16: { uint16_t u; memcpy(&u, p, 2); return (double)f16_to_f32(u); }
	case DT_f32: { float f; memcpy(&f, p, 4); return (double)f; }
	default: { double d; memcpy(&d, p, 8); return d; }
	}
}

/* Floats are to be zeros, subnormals of f32 and bf16, and the first normal numbers only. */
static bool fill_low;

/* Fill with values that any operation bears: small ones, some special.  They come again after a prime number of them. */
UNUSED static void fill_random(int dt, int64_t n, void *p, bool special)
{
	enum { PERIOD = 4099 };
	int es = dtype_info[dt].bytes;
	for (int64_t i = 0; i < MIN(n, PERIOD); i++) {
		char *q = (char *)p + i * es;
		if (dtype_info[dt].cls == DT_FLOAT) {
			static const double odd[] = { 0.0, -0.0, INFINITY, -INFINITY, NAN, 1e30, -1e30, 1e-30, 0.5, -0.5, 1, -1, 88.8, -88.8, 100.5, 2.5, 1.5, -1.5 };
			double d = special && pick(4) == 0 ? odd[pick((int)(sizeof odd / sizeof *odd))] : (double)(pick(65) - 32) / 8;
			if (special && pick(3) == 0)
				d = ldexp((double)pick(1 << 24) / (1 << 24) - 0.5, pick(24) - 12);
			float f = (float)d;
			uint16_t h;
			if (fill_low) {
				uint32_t u = (uint32_t)pick(0x102) << 16 | (uint32_t[]){ 0, 0x8000, 0x7fff, 0x8001, (uint32_t)pick(0x10000) }[pick(5)] | (uint32_t)pick(2) << 31;
				memcpy(&f, &u, 4);
				d = (double)f;
				u >>= 16;
				if (dt == DT_bf16) {
					memcpy(q, &u, 2);
					continue;
				}
			}
			if (dt == DT_f64) memcpy(q, &d, 8);
			if (dt == DT_f32) memcpy(q, &f, 4);
			if (dt == DT_bf16) { h = f32_to_bf16(f); memcpy(q, &h, 2); }
			if (dt == DT_f16) { h = f32_to_f16(f); memcpy(q, &h, 2); }
		} else if (dt == DT_pred) {
			*(uint8_t *)q = (uint8_t)pick(2);
		} else {
			uint64_t v = pick(3) ? (uint64_t)(pick(40) - 10) : rng() << 20 ^ rng();
			if (pick(16) == 0)
				v = (uint64_t)1 << (dtype_info[dt].bits - 1);
			if (dt == DT_i4) v = (uint64_t)((int64_t)(v << 60) >> 60);
			if (dt == DT_u4) v &= 15;
			memcpy(q, &v, (size_t)es);
		}
	}
	for (int64_t i = PERIOD; i < n; i += PERIOD)
		memcpy((char *)p + i * es, p, (size_t)(MIN(n - i, PERIOD) * es));
}

struct gen_case { const struct ir_module *m; const struct ir_fn *fn; struct eval_array *arg, *want; void **got; };

UNUSED static void case_free(struct gen_case *c)
{
	for (uint32_t i = 0; i < c->fn->nparam; i++)
		eval_array_free(&c->arg[i]);
	for (size_t i = 0; i < c->fn->result.n; i++) {
		if (c->want)
			eval_array_free(&c->want[i]);
		if (c->got)
			free(c->got[i]);
	}
	free(c->arg);
	free(c->want);
	free(c->got);
}

static void array_of(const struct ir_type_info *t, struct eval_array *a)
{
	a->dtype = t->dtype;
	a->rank = t->rank;
	memcpy(a->dim, t->dim, sizeof *t->dim * t->rank);
	a->bytes = (size_t)t->bytes;
	a->p = aligned_alloc(64, (a->bytes + 127) & ~(size_t)63);
}

/* A random layout of t: dimensions in any order, gaps, some backwards.  *lo: elements before the base. */
static void random_view(struct arena *a, const struct ir_type_info *t, struct prog_view *v, int64_t *elems)
{
	prog_view_make(a, v, (enum dtype)t->dtype, t->rank, t->dim);
	*elems = MAX(t->count, 1);
	if (pick(3) == 0 || t->count == 0)
		return;
	int perm[IR_MAX_RANK];
	for (int d = 0; d < t->rank; d++)
		perm[d] = d;
	for (int d = t->rank - 1; d > 0; d--) {
		int e = pick(d + 1), x = perm[d];
		perm[d] = perm[e];
		perm[e] = x;
	}
	int64_t st = 1 + (pick(3) == 0 ? pick(3) : 0), lo = 0, hi = 0;
	for (int i = t->rank - 1; i >= 0; i--) {
		int d = perm[i];
		v->stride[d] = pick(5) == 0 ? -st : st;
		st *= t->dim[d] + (pick(3) == 0 ? pick(3) : 0);
		if (v->stride[d] < 0)
			lo -= v->stride[d] * (t->dim[d] - 1);
		else
			hi += v->stride[d] * (t->dim[d] - 1);
	}
	int64_t gap = pick(4);
	v->off = lo + gap;
	*elems = lo + hi + gap + 1;
}

static void copy_strided(int es, int64_t n, char *to, int64_t to_step, const char *from, int64_t from_step)
{
	for (int64_t i = 0; i < n; i++, to += to_step * es, from += from_step * es)
		switch (es) {
		case 1: *to = *from; break;
		case 2: memcpy(to, from, 2); break;
		case 4: memcpy(to, from, 4); break;
		default: memcpy(to, from, (size_t)es);
		}
}

static void scatter_in(const struct prog_view *v, const void *dense, void *out, bool back)
{
	int es = dtype_info[v->dtype].bytes, last = v->rank - 1;
	int64_t n = 1, ix[IR_MAX_RANK] = { 0 }, row = v->rank ? v->dim[last] : 1, step = v->rank ? v->stride[last] : 1;
	for (int d = 0; d < v->rank; d++)
		n *= v->dim[d];
	for (int64_t i = 0; i < n; i += row) {
		int64_t o = v->off;
		for (int d = 0; d < last; d++)
			o += ix[d] * v->stride[d];
		char *p = (char *)(uintptr_t)dense + i * es, *q = (char *)out + o * es;
		if (back)
			copy_strided(es, row, p, 1, q, step);
		else
			copy_strided(es, row, q, step, p, 1);
		for (int d = last - 1; d >= 0 && ++ix[d] == v->dim[d]; d--)
			ix[d] = 0;
	}
}

/* Pairs of an operand and a result that were run as one array. */
static int case_shared;

/* Run; false with a message printed if something is wrong that is not a number. */
UNUSED static bool case_run(struct gen_case *c, bool special)
{
	const struct ir_module *m = c->m;
	const struct ir_fn *fn = c->fn;
	int np = (int)fn->nparam, nr = (int)fn->result.n;
	c->arg = calloc((size_t)np + 1, sizeof *c->arg);
	c->want = calloc((size_t)nr + 1, sizeof *c->want);
	c->got = calloc((size_t)nr + 1, sizeof *c->got);
	char *ptr[256];
	struct arena a;
	arena_init(&a);
	struct prog_view *view = ARENA_NEW(&a, struct prog_view, np + nr);
	int64_t elems[256];
	size_t bytes[256];
	bool views = pick(2);
	for (int i = 0; i < np + nr; i++) {
		const struct ir_type_info *t = ir_vtype(m, fn, i < np ? (ir_val)i + 1 : fn->result.p[i - np]);
		if (views)
			random_view(&a, t, &view[i], &elems[i]);
		else
			elems[i] = t->count, prog_view_make(&a, &view[i], (enum dtype)t->dtype, t->rank, t->dim);
		bytes[i] = (size_t)elems[i] * dtype_info[t->dtype].bytes;
	}
	for (int i = 0; i < np; i++) {
		const struct ir_type_info *t = ir_vtype(m, fn, (ir_val)i + 1);
		array_of(t, &c->arg[i]);
		bool used = false;
		for (size_t k = 0; k < fn->ref.n && !used; k++)
			used = fn->ref.p[k] == (ir_val)i + 1;
		for (int k = 0; k < nr; k++)
			used |= fn->result.p[k] == (ir_val)i + 1;
		if (!used) {             /* and must not be touched */
			ptr[i] = guarded(bytes[i] = 0);
			continue;
		}
		fill_random(t->dtype, t->count, c->arg[i].p, special);
		ptr[i] = guarded(bytes[i]);
		scatter_in(&view[i], c->arg[i].p, ptr[i], false);
	}
	struct err *e = eval_fn(m, fn, c->arg, c->want);
	if (e) {
		printf("oracle: %s\n", e->msg);
		return false;
	}
	struct gen_out o;
	e = gen_group(m, fn, views ? view : NULL, &o);
	if (e) {
		printf("gen: %s\n", e->msg);
		return false;
	}
	struct rt_code *code;
	e = rt_code_load(o.obj, o.nobj, &code);
	if (e) {
		printf("load: %s\n", e->msg);
		return false;
	}
	prog_code_fn *f = (prog_code_fn *)(uintptr_t)rt_code_symbol(code, o.symbol);
	bool ok = true;
	for (int pass = 0; pass < 2; pass++) {       /* backwards one by one, then all at once: the same bits */
		for (int i = 0; i < nr; i++) {
			ptr[np + i] = guarded(bytes[np + i]);
			memset(ptr[np + i], 0xa5, bytes[np + i]);
		}
		unsigned fp = cpu_set_ftz();
		if (pass)
			f(ptr, 0, o.tiles);
		else
			for (int64_t t = o.tiles; t-- > 0;)
				f(ptr, t, t + 1);
		cpu_restore_fp(fp);
		for (int i = 0; i < nr; i++) {
			size_t n = (size_t)ir_vtype(m, fn, fn->result.p[i])->bytes;
			char *got = malloc(n + 1);
			scatter_in(&view[np + i], got, ptr[np + i], true);
			if (!pass) {
				c->got[i] = got;
			} else {
				if (memcmp(c->got[i], got, n)) {
					printf("result %d depends on how tiles are shared out\n", i);
					ok = false;
				}
				free(got);
			}
			unguard(ptr[np + i], bytes[np + i]);
		}
	}
	/* An operand that may be a result's array: each alone. */
	for (int k = 0; k < np && ok; k++)
		for (int r = 0; r < nr && ok; r++) {
			const struct prog_view *v = &view[k], *w = &view[np + r];
			if (!(o.under[k] >> r & 1) || !bytes[k] || dtype_info[v->dtype].bytes != dtype_info[w->dtype].bytes || v->off != w->off || v->rank != w->rank ||
			    memcmp(v->dim, w->dim, sizeof *v->dim * v->rank) || memcmp(v->stride, w->stride, sizeof *v->stride * v->rank))
				continue;
			case_shared++;
			for (int i = 0; i < nr; i++)
				ptr[np + i] = i == r ? ptr[k] : guarded(bytes[np + i]);
			unsigned fp = cpu_set_ftz();
			for (int64_t t = o.tiles; t-- > 0;)
				f(ptr, t, t + 1);
			cpu_restore_fp(fp);
			for (int i = 0; i < nr; i++) {
				size_t n = (size_t)ir_vtype(m, fn, fn->result.p[i])->bytes;
				char *got = malloc(n + 1);
				scatter_in(&view[np + i], got, ptr[np + i], true);
				if (memcmp(c->got[i], got, n)) {
					printf("result %d changes when result %d lies over operand %d\n", i, r, k);
					ok = false;
				}
				free(got);
				if (i != r)
					unguard(ptr[np + i], bytes[np + i]);
			}
			scatter_in(v, c->arg[k].p, ptr[k], false);
		}
	for (int i = 0; i < np; i++)
		unguard(ptr[i], bytes[i]);
	rt_code_free(code);
	arena_fini(&a);
	return ok;
}

/* Distance in units of the last place, roughly; integers: 0 or huge. */
UNUSED static double ulps(int dt, const void *got, const void *want)
{
	if (dtype_info[dt].bits == 4)       /* only the low half of the byte counts */
		return ((*(const uint8_t *)got ^ *(const uint8_t *)want) & 15) ? 1e9 : 0;
	if (dtype_info[dt].cls != DT_FLOAT)
		return memcmp(got, want, dtype_info[dt].bytes) ? 1e9 : 0;
	double g = as_double(dt, got), w = as_double(dt, want);
	if (g != g && w != w)
		return 0;
	if (g == w)
		return 0;
	if (g != g || w != w || isinf(g) || isinf(w))
		return 1e9;
	int bits = dt == DT_bf16 ? 8 : dt == DT_f16 ? 11 : dt == DT_f32 ? 24 : 53;
	int ex;
	frexp(fmax(fabs(g), fabs(w)), &ex);
	int lo = dt == DT_f16 ? -13 : dt == DT_f64 ? -1021 : -125;
	return fabs(g - w) / ldexp(1, MAX(ex, lo) - bits);
}

/* Run what() in a child for each target whose code runs here; 0 if all said true.  The parent must not have asked what machine
 * this is. */
UNUSED static int each_target(bool (*what)(void))
{
	const struct gen_target *t;
	int bad = 0;
	for (int i = 0; (t = gen_target_row(i)); i++) {
		if (t->lacks)
			continue;
		fflush(stdout);
		pid_t pid = fork();
		if (pid == 0) {
			setenv("RONDO_ISA", t->name, 1);
			setenv("RONDO_CACHE", "", 1);
			setenv("RONDO_CHECK", "1", 1);
			bool ok = true;
			if (!t->here(cpu_get()))
				printf("no code for '%s' runs on this machine\n", t->name);
			else if (gen_target_get() != t)
				ok = !printf("code is generated for '%s', not for '%s'\n", gen_target_get()->name, t->name);
			else
				ok = what();
			fflush(stdout);
			leave(ok ? 0 : 1);
		}
		int st = 0;
		waitpid(pid, &st, 0);
		if (st) {
			printf("failed with RONDO_ISA=%s (status %x)\n", t->name, st);
			bad++;
		}
	}
	return bad;
}

#endif
