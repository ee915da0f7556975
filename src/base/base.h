/* What everything stands on: errors, arenas, arrays, strings, maps, logging,
 * settings, clock, element types.
 *
 * Errors are values (struct err *, NULL is success).  Who runs out of the
 * host's memory leaves for the guard above it (mem.c).
 * Unless a comment says otherwise nothing here is thread-safe: one owner at
 * a time. */
#ifndef RONDO_BASE_H
#define RONDO_BASE_H

#include <assert.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define RONDO_RELEASE "0.1.0"            /* as pyproject.toml and python/rondo/__init__.py have it */
/* Changes when compiled programs or generated code of older builds must not be used. */
#define RONDO_VERSION 1

#define NELEM(a) (sizeof(a) / sizeof((a)[0]))
#define UNUSED __attribute__((unused))
#define PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* The greatest common divisor of two that are not negative; gcd_of(a, 0) is a. */
static inline int64_t gcd_of(int64_t a, int64_t b)
{
	while (b) {
		int64_t t = a % b;
		a = b;
		b = t;
	}
	return a;
}

/* Is v one of the n numbers? */
static inline bool in_list(const int64_t *list, int64_t n, int64_t v)
{
	for (int64_t i = 0; i < n; i++)
		if (list[i] == v)
			return true;
	return false;
}

/* --- err.c ------------------------------------------------------------- */

/* The numbers are PJRT's (absl's) error codes, so the border needs no table. */
enum err_code {
	ERR_CANCELLED = 1, ERR_UNKNOWN = 2, ERR_INVALID = 3, ERR_DEADLINE = 4,
	ERR_NOT_FOUND = 5, ERR_ALREADY_EXISTS = 6, ERR_PERMISSION = 7,
	ERR_EXHAUSTED = 8, ERR_PRECONDITION = 9, ERR_ABORTED = 10,
	ERR_OUT_OF_RANGE = 11, ERR_UNIMPLEMENTED = 12, ERR_INTERNAL = 13,
	ERR_UNAVAILABLE = 14, ERR_DATA_LOSS = 15,
};

struct err {
	void *vtable;         /* always NULL: PJRT wants a vtable word first */
	enum err_code code;
	const char *file;     /* where it was made, for debugging */
	int line;
	char *msg;            /* owned, NUL-terminated */
	struct err_watch *watch;      /* NULL, or shared by its copies */
	bool fixed;           /* there was no memory for it: "out of host memory", which lives for ever */
};

/* Make an error.  The text starts in lower case, says what failed first, puts
 * the subject in quotes and has no full stop. */
struct err *err_new(enum err_code code, const char *file, int line,
                    const char *fmt, ...) PRINTF(4, 5);
#define ERR(code, ...) err_new(ERR_##code, __FILE__, __LINE__, __VA_ARGS__)

/* Put "<text>: " in front of e's message; returns e.  e may be NULL. */
struct err *err_wrap(struct err *e, const char *fmt, ...) PRINTF(2, 3);
struct err *err_copy(const struct err *e);   /* owned; NULL gives NULL */
void err_free(struct err *e);                /* NULL is fine */
/* An error that may reach nobody: if it and all its copies are freed and none was heard, the log has "<what>: <message>";
 * one such line in ten seconds is a warning, others are LOG_INFO.  Any thread; what must live for ever. */
void err_watch(struct err *e, const char *what);
void err_heard(const struct err *e);         /* somebody who will tell the user has it; NULL is fine */

#define TRY(x) do { struct err *e_ = (x); if (e_) return e_; } while (0)
#define TRY_GOTO(e, x, label) do { (e) = (x); if (e) goto label; } while (0)

/* --- mem.c, guard.c ------------------------------------------------------ */

/* malloc and friends.  If there is no memory they do not return: the guard that this thread put up last does.  Without one
 * the process aborts.  Free with free(). */
void *mem_alloc(size_t n);                   /* zeroed */
void *mem_new(size_t n);                     /* not zeroed */
void *mem_aligned(size_t align, size_t n);   /* not zeroed */
void *mem_lines(size_t n);                   /* zeroed, on cache lines of its own: one thread writes it often */
void *mem_grow(void *p, size_t n);           /* realloc; new bytes are not zeroed */
void *mem_try(size_t n);                     /* not zeroed; NULL if there is none */
void mem_free(void *p);

/* fn(arg) under a guard: EXHAUSTED, with what was asked for, if memory runs out in it; then what it registered with mem_undo has been
 * called, the newest first, and, if frees, what it took and did not free is freed.  So what shall outlive it must be
 * taken under mem_persist or by malloc; what fn leaves when it returns, no guard above knows; and memory taken in it must not be freed by other threads before it returns.  Nothing
 * may lie between the guard and who allocates that a jump must not pass: code that calls back into Rondo begins with a
 * guard, or takes nothing but by mem_try and malloc. */
struct err *mem_guard(struct err *(*fn)(void *), void *arg, bool frees);
/* What must be done if a guard is left: between mem_undo and mem_done, which nest.  u lives on the stack. */
struct mem_undo { struct mem_undo *next; void (*fn)(void *); void *arg; };
void mem_undo(struct mem_undo *u, void (*fn)(void *), void *arg);
void mem_done(struct mem_undo *u);
/* A lock (pthread_mutex_t *) that a jump opens. */
void mem_lock(struct mem_undo *u, void *mutex);
void mem_unlock(struct mem_undo *u);
/* From here on what is taken outlives the guard; gives what was so before. */
bool mem_persist(bool on);
void mem_keep(const void *p);                /* the same for what has been taken */
/* Once in a process; again, if memory ran out in it.  What fn takes persists.  fn may call mem_once. */
struct mem_once { _Atomic bool done; };
void mem_once(struct mem_once *o, void (*fn)(void));
/* A shared object that has this file as well uses the guards of who loads it. */
struct mem_home;
const struct mem_home *mem_home(void);
void mem_join(const struct mem_home *h);
/* For tests: true from fn refuses the allocation.  NULL: none is refused.  Any thread calls fn. */
void mem_refuse(bool (*fn)(size_t n));
bool mem_refuses(void);                      /* is there one? */

/* What banned.h calls instead of the C library's: NULL if there is no memory. */
void *mem_malloc(size_t n);
void *mem_calloc(size_t k, size_t n);
void *mem_realloc(void *p, size_t n);
void *mem_aligned_alloc(size_t align, size_t n);
int mem_posix_memalign(void **p, size_t align, size_t n);

/* --- spare.c --------------------------------------------------------------- */

/* Objects of `size` bytes, at least a pointer's, from the C library, of which those given back are kept, up to some MB, for whoever takes
 * one next.  From SPARE(size).  Any thread. */
struct spare { atomic_flag lock; void *first; size_t n, size, aside; };
#define SPARE(size) { ATOMIC_FLAG_INIT, NULL, 0, (size), 0 }
void *spare_take(struct spare *s);           /* not zeroed; NULL: no memory */
bool spare_take_all(struct spare *s, size_t n, void **out);    /* false: no memory for n, none is taken */
void spare_give(struct spare *s, void *p);   /* what was taken from s */
void spare_fill(struct spare *s, size_t n);   /* so that n are kept, as far as there is memory, and left aside by spare_take_free */
void *spare_take_free(struct spare *s);      /* spare_take, but of what is not left aside */
void spare_fini(struct spare *s);            /* those that it keeps are freed */
bool spare_keeps(void);                      /* false: nothing is kept, of what size ever */

/* --- fiber.c ------------------------------------------------------------- */

/* Code with a stack of its own, on the thread that enters it: it leaves in the middle, and goes on there when it is entered again.
 * Used by one thread at a time.  What is the thread's (errno, thread-local words) is that of who enters it; guards are its own. */
struct fiber;
/* stack: bytes, rounded up to pages, which are taken as they are used.  fn, which never returns, runs when it is first entered.  Owned. */
struct err *fiber_new(size_t stack, void (*fn)(void *arg), void *arg, struct fiber **out);
void fiber_free(struct fiber *f);            /* not in it; what it has on its stack is gone.  NULL is fine */
void fiber_enter(struct fiber *f);           /* comes back when it leaves */
void fiber_leave(struct fiber *f);           /* by itself */

/* --- arena.c ----------------------------------------------------------- */

/* Memory that dies together.  Zeroed on allocation, 16-byte aligned. */
struct arena { struct arena_block *block; size_t used, cap; };
void arena_init(struct arena *a);
void arena_fini(struct arena *a);
void arena_reset(struct arena *a);           /* keeps the first block */
void *arena_alloc(struct arena *a, size_t n);
void *arena_copy(struct arena *a, const void *p, size_t n);
char *arena_str(struct arena *a, const char *s, size_t n);    /* NUL added */
char *arena_printf(struct arena *a, const char *fmt, ...) PRINTF(2, 3);
#define ARENA_NEW(a, type, n) ((type *)arena_alloc((a), sizeof(type) * (size_t)(n)))

/* Growable array of type t, on the heap: struct { t *p; size_t n, cap; }. */
#define ARR(t) struct { t *p; size_t n, cap; }
#define arr_push(a, v) do { arr_reserve(a, 1); (a)->p[(a)->n++] = (v); } while (0)
#define arr_reserve(a, k) ((a)->p = arr_grow_((a)->p, &(a)->cap, (a)->n + (size_t)(k), sizeof *(a)->p))
#define arr_free(a) (mem_free((a)->p), (a)->p = NULL, (a)->n = (a)->cap = 0)
void *arr_grow_(void *p, size_t *cap, size_t need, size_t elem);

/* --- str.c ------------------------------------------------------------- */

/* A string that grows.  p is always NUL-terminated once something was added. */
struct str { char *p; size_t n, cap; };
void str_add(struct str *s, const char *text);
void str_addn(struct str *s, const char *text, size_t n);
void str_addf(struct str *s, const char *fmt, ...) PRINTF(2, 3);
void str_vaddf(struct str *s, const char *fmt, va_list ap);
void str_bytes(struct str *s, uint64_t n);                    /* "1.5 MB" of 10^6 bytes, from 10^11 on GB, from 10^12 on TB; fewer as "900 bytes" */
void str_free(struct str *s);
/* The candidate nearest to name by edit distance, or NULL if none is near. */
const char *str_nearest(const char *name, const char *const *cand, size_t n);
/* What somebody gave, as a message shows it: in one line, and of what is long the beginning and "..".  s itself if it is that already. */
enum { STR_SHOWN = 200 };
const char *str_shown(const char *s, char to[STR_SHOWN]);
void str_words(struct str *s, const char *const *word, size_t n);      /* adds "a, b or c" */
/* A progress line on a terminal: "what [#####    ] 45 %", kept on one line. */
void str_progress(FILE *f, const char *what, double done);

/* --- file.c ------------------------------------------------------------ */

/* Whole file, or pipe, into s (which it appends to).  INVALID: a device such as /dev/zero, which has no end. */
struct err *str_read_file(struct str *s, const char *path);
/* Write atomically: a temporary file beside it, then rename; but into a device or a pipe. */
struct err *str_write_file(const char *path, const void *p, size_t n);
/* The same of parts: next gives one after the other, borrowed until it is called again, then false. */
struct err *str_write_parts(const char *path, bool (*next)(void *arg, const void **p, size_t *n), void *arg);
/* The same for folders in which anybody may have put anything: a regular file of at most so many bytes is read, at once; else
 * DATA_LOSS.  Whatever is there is replaced. */
struct err *str_read_entry(struct str *s, const char *path, int64_t most);
struct err *str_write_entry(const char *path, const void *p, size_t n);

/* --- cache.c ------------------------------------------------------------- */

/* The same for entries of the folder of RONDO_CACHE, which RONDO_CACHE_SIZE bounds: what was not used for longest goes.  Its names are
 * gen-<16 digits> and <32 digits>.rondo; what else lies there is left alone. */
struct err *cache_read(struct str *s, const char *path, int64_t most);
struct err *cache_write(const char *path, const void *p, size_t n);

/* --- map.c ------------------------------------------------------------- */

/* Hash map from a byte string (copied) to a 64-bit value. */
struct map { struct map_slot *slot; size_t n, cap; };
void map_free(struct map *m);
void map_keep(const struct map *m);           /* mem_keep of all that it has */
/* Pointer to the value of key, or NULL.  Valid until the next map_put. */
uint64_t *map_get(const struct map *m, const void *key, size_t n);
/* Pointer to the value of key, which is added (as 0) if absent. */
uint64_t *map_put(struct map *m, const void *key, size_t n);
/* A copy of n bytes that lives for ever, the same one for equal bytes; aligned for anything.  Any thread. */
const void *map_intern(const void *p, size_t n);
uint64_t hash_bytes(const void *p, size_t n, uint64_t seed);   /* stable over runs and machines */

/* --- log.c ------------------------------------------------------------- */

/* One line to stderr, "rondo: ...".  Thread-safe.  Logs are for what is not an
 * error.  Level from RONDO_LOG: 0 quiet, 1 warn (default), 2 info, 3 debug. */
enum log_level { LOG_WARN = 1, LOG_INFO, LOG_DEBUG };
void log_line(enum log_level l, const char *fmt, ...) PRINTF(2, 3);

/* --- conf.c, conf_use.c -------------------------------------------------- */

/* Settings: rows of conf.def.  Read once from the environment (RONDO_<NAME>),
 * thread-safe after conf_init, which the first getter calls.  An unknown
 * RONDO_ variable gives one warning that names the nearest setting; a value
 * that is not accepted one that says what is, and is ignored.  An
 * empty one is not set, unless the setting takes any text. */
enum conf_id {
#define CONF(id, kind, dflt, accepted, help) CONF_##id,
#include "conf.def"
	CONF_COUNT
};
void conf_init(void);
/* As mem_join: one set of settings. */
struct conf_value;
struct conf_value *conf_home(void);
void conf_join(struct conf_value *v);
int64_t conf_int(enum conf_id id);            /* of a setting that is one of some words: its number among them, from 1 on; 0: none */
int64_t conf_number(const char *name);       /* the same by name; 0 if there is no such setting */
const char *conf_str(enum conf_id id);       /* "" if unset */
bool conf_is_set(enum conf_id id);
/* A value that is accepted and turns out to be of no use: one warning a setting that names both, then the text. */
void conf_useless(enum conf_id id, const char *fmt, ...) PRINTF(2, 3);
struct err *conf_set(const char *name, const char *value);   /* as by the environment; for options of a client */
void conf_help(FILE *f);
/* What was wrong with settings so far, a line each; borrowed.  conf_quietly, before the first of these functions: it is only kept, not printed. */
const char *conf_complaints(void);
void conf_quietly(void);
/* The folder of RONDO_CACHE and a '/', added to s.  make: make it if it is not there.  false: none is wanted, or it cannot be had. */
bool conf_cache(struct str *s, bool make);
/* The file that a setting names: its path or, where that is a folder, one of this process in it, BASE-PID.EXT. */
void conf_file(enum conf_id id, struct str *s, const char *base, const char *ext);

/* --- kv ----------------------------------------------------------------- */

/* A store of keys and values that the processes of a job share: how they find each other.  Keys are written
 * once.  Both functions are called from one thread at a time. */
struct kv {
	int process, nprocess;
	void *user;
	struct err *(*put)(void *user, const char *key, const void *value, size_t n);
	/* Waits up to ms milliseconds for the key: DEADLINE.  The value is added to out. */
	struct err *(*get)(void *user, const char *key, int ms, struct str *out);
};

/* --- copy.c ------------------------------------------------------------ */

/* memmove into memory that other cores may have read, by the way that is faster between this thread's core and theirs, which is learned for each
 * use by itself, of copies of COPY_LEAST bytes and more.  What is stored with release order after it is seen after it.  From any thread. */
enum copy_use { COPY_MESSAGE, COPY_PACKED /* of what was just made, near */, COPY_USES };
enum { COPY_LEAST = 4 << 10 };
void copy_shared(enum copy_use use, void *to, const void *from, size_t n);
void copy_past(void *to, const void *from, size_t n);        /* memcpy past the caches, and that promise */
/* n rows of a multiple of 16 bytes past the caches, to such places, one after the other so that cache lines become whole; what is told after
 * copy_rows_end is told after them. */
void copy_rows_past(char *to, int64_t by_to, const char *from, int64_t by_from, int64_t n, size_t row);
void copy_rows_end(void);
/* n <= COPY_FEW bytes that do not overlap: a call of memcpy takes longer than the rest. */
enum { COPY_FEW = 32 };
static inline void copy_few(void *to, const void *from, size_t n)
{
	char *d = (char *)to;
	const char *s = (const char *)from;

	if (n >= 16) {
		memcpy(d, s, 16);
		memcpy(d + n - 16, s + n - 16, 16);
	} else if (n >= 8) {
		memcpy(d, s, 8);
		memcpy(d + n - 8, s + n - 8, 8);
	} else if (n >= 4) {
		memcpy(d, s, 4);
		memcpy(d + n - 4, s + n - 4, 4);
	} else
		for (; n; n--)
			d[n - 1] = s[n - 1];
}

/* --- clock.c, cpu.c ---------------------------------------------------- */

double clock_s(void);                        /* monotonic seconds */
uint64_t clock_ns(void);                     /* monotonic nanoseconds */

/* What this machine is.  Read once, thread-safe. */
struct cpu_info {
	int cores;            /* usable: affinity mask and cgroup quota, or RONDO_CORES */
	bool avx2, avx512, avx512_bf16, avx512_vbmi, avx512_fp16, amx_bf16, amx_int8;
	bool amd, zen5;       /* AMD's; from Zen 5 on: what pays there differs, and so the order in which products of bf16 are added up */
	size_t l1, l2, l3;    /* bytes; l1 data */
	int64_t ram;          /* bytes this process may use: the cgroup's limit or the RAM */
	char name[64];        /* model name: of several models, where a hypervisor shortens it */
	char model[48];       /* vendor family.model.stepping */
};
const struct cpu_info *cpu_get(void);
/* From here on this machine has no instruction set that the other lacks, no larger caches, and is taken for one of a kind: kernels then add up in the same
 * order on both.  False: that takes away instruction sets.  Before anything is compiled or run; one thread. */
bool cpu_lower(const struct cpu_info *other);
/* Caches of a core as the folder says (/sys/devices/system/cpu/cpu0/cache): bytes of the first (data), second and third; 0: it says nothing. */
void cpu_caches(const char *dir, size_t size[3]);
/* Flush denormals on this thread, as XLA:CPU does; returns the old MXCSR. */
unsigned cpu_set_ftz(void);
void cpu_restore_fp(unsigned mxcsr);

/* --- dtype.c ----------------------------------------------------------- */

enum dtype_class { DT_NONE, DT_PRED, DT_INT, DT_UINT, DT_FLOAT, DT_COMPLEX };

/* Rows of dtype.def.  The values are PJRT_Buffer_Type's. */
enum dtype {
#define DTYPE(id, name, value, cls, bits, bytes, vhlo, builtin) DT_##id = value,
#include "dtype.def"
#undef DTYPE
	DT_COUNT = 34
};
struct dtype_info {
	const char *name;     /* as in our text form: f32, bf16, i32, u8, pred, c64, ... */
	uint8_t cls;          /* enum dtype_class */
	uint8_t bits;         /* of the value */
	uint8_t bytes;        /* of one stored element: sub-byte types take one byte */
};
extern const struct dtype_info dtype_info[DT_COUNT];   /* name NULL: no such type */
int dtype_xla(enum dtype dt);          /* its number among XLA's PrimitiveType */
int dtype_by_name(const char *name, size_t n);         /* -1 if unknown */

/* Scalar conversions that everything agrees on: round to nearest even,
 * saturation as IEEE or the f8 type says.  bits are the stored bits. */
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float x);
static inline float bf16_to_f32(uint16_t b)
{
	uint32_t u = (uint32_t)b << 16;
	float f;
	memcpy(&f, &u, 4);
	return f;
}
static inline uint16_t f32_to_bf16(float x)
{
	uint32_t u;
	memcpy(&u, &x, 4);
	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
/* The float types of at most 8 bits (f8*, f6*, f4*): dt is their dtype. */
float f8_to_f32(enum dtype dt, uint8_t bits);
uint8_t f32_to_f8(enum dtype dt, float x);
/* One stored element of a type that is no token, sub-byte types in a byte of their own; of complex ones the real part.  Exact but for 64-bit integers
 * beyond 2^53. */
double dtype_real(enum dtype dt, const void *p);

/* A slice that an operand of a ragged_all_to_all names (ir/ops.def): its first row in the operand, in the result, how many rows; of any number. */
enum { SLICE_FROM, SLICE_TO, SLICE_ROWS, SLICE_NUMBERS };

/* --- layout.c ------------------------------------------------------------ */

/* How the elements of an array lie, if not row-major (NULL): minor[k] is the dimension that is the k-th from the innermost; in XLA's words "{0,1}" for
 * columns one after the other.  Layouts live for ever, and equal ones are one pointer. */
struct layout { const char *text; int rank; int64_t minor[]; };
/* False: minor is not each of the rank dimensions. */
bool layout_new(int rank, const int64_t *minor, const struct layout **out);
/* What JAX says in mhlo.layout_mode, but for "auto".  False: it is no layout of an array of that rank, or one with tiles. */
bool layout_read(const char *text, int rank, const struct layout **out);
const struct layout *layout_of(const struct layout *l, int rank);      /* l, or what is row-major of that rank, for who wants it in words */

/* --- redop.def, elem.def ------------------------------------------------ */

enum redop {
#define REDOP(id, text, elem) RED_##id,
#include "redop.def"
#undef REDOP
	RED_COUNT
};
extern const char *const redop_name[RED_COUNT];

/* Elementwise scalar functions: the one list of them (elem.def). */
enum elem {
#define ELEM(id, nin, flags, work, slow, meaning) ELEM_##id,
#include "elem.def"
#undef ELEM
	ELEM_COUNT
};
extern const enum elem redop_elem[RED_COUNT];     /* what combines two values; ELEM_COUNT: none of its own */
enum { MAX_RANK = 64 };              /* dimensions of an array: NumPy has no more */

enum { EL_COMM = 1, EL_PRED = 2, EL_CONV = 4, EL_REAL = 8 };
struct elem_info {
	const char *name;
	uint8_t nin;
	uint8_t flags;        /* EL_COMM commutative; EL_PRED result is pred; EL_CONV result type is
	                       * its own; EL_REAL complex operand gives its real type */
	uint8_t work, slow;   /* additions, see elem_work */
};
extern const struct elem_info elem_info[ELEM_COUNT];
/* Time of one element in vector code, in additions of f32, when the operands are of type dt. */
int elem_work(enum elem e, enum dtype dt);
enum elem elem_mirrored(enum elem e);     /* of a comparison: what says the same with its operands exchanged */

#if __has_include("banned.h")        /* not where this is installed */
#include "banned.h"
#endif
#endif
