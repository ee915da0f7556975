/* Fibers: code with a stack of its own on the thread that enters it.
 *
 * What has to wait in the middle of a long text of steps leaves there, and goes on at that point when it is entered again.  A switch is
 * a call that comes back on another stack: what a caller may not lose is pushed, the stacks are exchanged, and it is popped. */
#include "mem.h"

#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define FIBER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FIBER_TSAN 1
#endif
#endif

#ifdef FIBER_ASAN
void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *size);
#endif
#ifdef FIBER_TSAN
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
#endif

#ifdef __x86_64__
typedef void *context;
#else
#include <ucontext.h>
typedef ucontext_t context;
#endif

struct fiber {
	context own, caller;
	void (*fn)(void *arg);
	void *arg;
	char *map;                    /* a page that faults, then the stack */
	size_t guard, stack;
	struct mem_guard *top;        /* the guards that it has put up */
	/* What a sanitizer knows of either side. */
	void *fake[2], *side[2];
	const void *bottom;
	size_t size;
};

#ifdef __x86_64__
/* Keeps where this stack is in *from, goes on where `to` was kept, and gives arg there; a function that begins there has it as its argument. */
void *fiber_switch(context *from, context to, void *arg) __asm__("rondo_fiber_switch");
__asm__(".text\n"
        ".p2align 4\n"
        ".globl rondo_fiber_switch\n"
        ".hidden rondo_fiber_switch\n"
        ".type rondo_fiber_switch, @function\n"
        "rondo_fiber_switch:\n"
        "	pushq %rbp\n	pushq %rbx\n	pushq %r12\n	pushq %r13\n	pushq %r14\n	pushq %r15\n"
        "	movq %rsp, (%rdi)\n"
        "	movq %rsi, %rsp\n"
        "	movq %rdx, %rax\n"
        "	movq %rdx, %rdi\n"
        "	popq %r15\n	popq %r14\n	popq %r13\n	popq %r12\n	popq %rbx\n	popq %rbp\n"
        "	ret\n"
        ".size rondo_fiber_switch, . - rondo_fiber_switch\n");
#endif

/* The other side is about to run: 0 the caller, 1 the fiber. */
static void leaving(struct fiber *f, int to)
{
#ifdef FIBER_ASAN
	__sanitizer_start_switch_fiber(&f->fake[!to], to ? f->map + f->guard : f->bottom, to ? f->stack : f->size);
#endif
#ifdef FIBER_TSAN
	if (to)
		f->side[0] = __tsan_get_current_fiber();
	__tsan_switch_to_fiber(f->side[to], 0);
#endif
}

static void arrived(struct fiber *f, int at)
{
#ifdef FIBER_ASAN
	if (at)
		__sanitizer_finish_switch_fiber(f->fake[1], &f->bottom, &f->size);
	else
		__sanitizer_finish_switch_fiber(f->fake[0], NULL, NULL);
#endif
}

static void begin(struct fiber *f)
{
	arrived(f, 1);
	f->fn(f->arg);
	assert(!"a fiber has returned, and nobody is there");
}

#ifndef __x86_64__
static void begin_here(unsigned lo, unsigned hi) { begin((struct fiber *)(((uintptr_t)hi << 16 << 16) | lo)); }
#endif

struct err *fiber_new(size_t stack, void (*fn)(void *arg), void *arg, struct fiber **out)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), n = (stack + page - 1) / page * page;
	struct fiber *f = calloc(1, sizeof *f);
	char *map = f ? mmap(NULL, page + n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0) : MAP_FAILED;

	if (map == MAP_FAILED || mprotect(map, page, PROT_NONE)) {
		struct err *e = ERR(EXHAUSTED, "out of host memory: asked for %zu bytes for a stack", page + n);
		if (map != MAP_FAILED)
			munmap(map, page + n);
		free(f);
		return e;
	}
	f->fn = fn;
	f->arg = arg;
	f->map = map;
	f->guard = page;
	f->stack = n;
#ifdef __x86_64__
	/* As if it had called fiber_switch: six registers, where to go on, and nowhere to return to. */
	enum { SAVED = 6 };
	void **sp = (void **)(void *)(map + page + n) - 2 - SAVED;
	void (*first)(struct fiber *) = begin;
	memset(sp, 0, (SAVED + 2) * sizeof *sp);
	memcpy(&sp[SAVED], &first, sizeof first);
	f->own = sp;
#else
	getcontext(&f->own);
	f->own.uc_stack.ss_sp = map + page;
	f->own.uc_stack.ss_size = n;
	f->own.uc_link = NULL;
	makecontext(&f->own, (void (*)(void))begin_here, 2, (unsigned)(uintptr_t)f, (unsigned)((uintptr_t)f >> 16 >> 16));
#endif
#ifdef FIBER_TSAN
	f->side[1] = __tsan_create_fiber(0);
#endif
	*out = f;
	return NULL;
}

void fiber_free(struct fiber *f)
{
	if (!f)
		return;
#ifdef FIBER_TSAN
	__tsan_destroy_fiber(f->side[1]);
#endif
	munmap(f->map, f->guard + f->stack);
	free(f);
}

/* Guards stay on the stack on which they were put up: who runs out of memory jumps to one of its own. */
static void exchange_guards(struct fiber *f)
{
	struct mem_guard **top = mem_top(), *t = *top;

	*top = f->top;
	f->top = t;
}

/* To the other side: 1 the fiber, 0 who entered it; comes back when that one does the same. */
static void cross(struct fiber *f, int to)
{
	context *from = to ? &f->caller : &f->own, *there = to ? &f->own : &f->caller;

	exchange_guards(f);
	leaving(f, to);
#ifdef __x86_64__
	fiber_switch(from, *there, f);
#else
	swapcontext(from, there);
#endif
	arrived(f, !to);
}

void fiber_enter(struct fiber *f) { cross(f, 1); }
void fiber_leave(struct fiber *f) { cross(f, 0); }
