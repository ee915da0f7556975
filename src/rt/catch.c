/* Calling code that may throw C++ exceptions.
 *
 * An exception must not pass frames of C: they release nothing.  So foreign code is entered through a frame with a
 * personality routine of its own (Itanium C++ ABI, exception handling, level I), which catches every exception and lets forced
 * unwinding pass: a thread that is cancelled, or calls pthread_exit, goes on to do so.  What the exception says is found by
 * level II, as libstdc++ and libc++abi lay it out. */
#include <dlfcn.h>
#include <unwind.h>

#include "host.h"

void *catch_enter(void *(*fn)(void *), void *arg, struct _Unwind_Exception **thrown);
_Unwind_Reason_Code catch_personality(int version, _Unwind_Action actions, _Unwind_Exception_Class class, struct _Unwind_Exception *e,
                                      struct _Unwind_Context *cx);
extern const char catch_landing[];

/* catch_enter: gives fn(arg); if that throws, NULL, and *thrown is the exception. */
__asm__(
	"	.text\n"
	"	.p2align 4\n"
	"	.hidden catch_enter\n"
	"	.hidden catch_landing\n"
	"	.hidden catch_personality\n"
	"	.globl catch_enter\n"
	"	.globl catch_landing\n"
	"	.type catch_enter, @function\n"
	"catch_enter:\n"
	"	.cfi_startproc\n"
	"	.cfi_personality 0x1b, catch_personality\n"    /* pcrel, sdata4 */
	"	pushq %rbp\n"
	"	.cfi_def_cfa_offset 16\n"
	"	.cfi_offset %rbp, -16\n"
	"	movq %rsp, %rbp\n"
	"	.cfi_def_cfa_register %rbp\n"
	"	pushq %rbx\n"
	"	.cfi_offset %rbx, -24\n"
	"	subq $8, %rsp\n"
	"	movq %rdx, %rbx\n"
	"	movq %rdi, %rax\n"
	"	movq %rsi, %rdi\n"
	"	call *%rax\n"
	"	jmp 1f\n"
	"catch_landing:\n"
	"	endbr64\n"
	"	movq %rax, (%rbx)\n"
	"	xorl %eax, %eax\n"
	"1:	addq $8, %rsp\n"
	"	popq %rbx\n"
	"	popq %rbp\n"
	"	.cfi_def_cfa %rsp, 8\n"
	"	ret\n"
	"	.cfi_endproc\n"
	"	.size catch_enter, . - catch_enter\n");

__attribute__((used)) _Unwind_Reason_Code catch_personality(int version, _Unwind_Action actions, _Unwind_Exception_Class class,
                                                            struct _Unwind_Exception *e, struct _Unwind_Context *cx)
{
	if (version != 1 || actions & _UA_FORCE_UNWIND)
		return _URC_CONTINUE_UNWIND;
	if (actions & _UA_SEARCH_PHASE)
		return _URC_HANDLER_FOUND;
	if (!(actions & _UA_HANDLER_FRAME))
		return _URC_CONTINUE_UNWIND;
	_Unwind_SetGR(cx, __builtin_eh_return_data_regno(0), (_Unwind_Word)(uintptr_t)e);
	_Unwind_SetIP(cx, (_Unwind_Ptr)(uintptr_t)catch_landing);
	return _URC_INSTALL_CONTEXT;
}

/* --- what an exception of C++ says ------------------------------------------------ */

/* Vendor and language; the last byte tells an object from a reference to one (std::rethrow_exception). */
#define CLASS(text) ((_Unwind_Exception_Class)text[0] << 56 | (_Unwind_Exception_Class)text[1] << 48 | (_Unwind_Exception_Class)text[2] << 40 | \
                     (_Unwind_Exception_Class)text[3] << 32 | (_Unwind_Exception_Class)text[4] << 24 | text[5] << 16 | text[6] << 8)
enum { HEADER = 80 };               /* of an exception, before struct _Unwind_Exception: its first word is the type */

struct type_info { void **vtable; const char *name; };
enum { DO_CATCH = 4, WHAT = 2 };    /* slots in the tables of std::type_info and std::exception */
typedef bool do_catch(const struct type_info *catcher, const struct type_info *thrown, void **object, unsigned outer);
typedef const char *what(void *exception);

static void *slot(void **vtable, int k)
{
	return vtable[k];
}

/* The text of a std::exception; NULL if it is none, or if libstdc++ is not here to say so. */
static const char *text_of(const struct type_info *type, void *object)
{
	void *lib = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
	const struct type_info *base = lib ? dlsym(lib, "_ZTISt9exception") : NULL;
	do_catch *is;
	what *say;

	if (lib)
		dlclose(lib);
	if (!base)
		return NULL;
	void *p = slot(base->vtable, DO_CATCH);
	memcpy(&is, &p, sizeof is);
	if (!is(base, type, &object, 1))
		return NULL;
	p = slot(*(void ***)object, WHAT);
	memcpy(&say, &p, sizeof say);
	return say(object);
}

static struct err *error_of(struct _Unwind_Exception *e)
{
	if ((e->exception_class & ~(_Unwind_Exception_Class)0xff) != CLASS("GNUCC++"))
		return ERR(UNKNOWN, "XLA FFI call failed: an exception that is not one of C++");
	char *object = (char *)(e + 1);
	if (e->exception_class & 0xff)
		memcpy(&object, (char *)e - HEADER, sizeof object);
	const struct type_info *type;
	memcpy(&type, object - sizeof *e - HEADER, sizeof type);
	const char *text = text_of(type, object);
	return text ? ERR(UNKNOWN, "XLA FFI call failed: %s", text) : ERR(UNKNOWN, "XLA FFI call failed: an exception of type '%s'", type->name);
}

struct err *catch_call(void *(*fn)(void *), void *arg, void **result)
{
	struct _Unwind_Exception *thrown = NULL;

	*result = catch_enter(fn, arg, &thrown);
	if (!thrown)
		return NULL;
	struct err *e = error_of(thrown);
	_Unwind_DeleteException(thrown);
	return e;
}
