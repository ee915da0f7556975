#include "load.h"

#include <dlfcn.h>
#include <elf.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* All sections that occupy memory go into one mapping, so that relative relocations between them fit in
 * 32 bits.  After them come one stub (jmp *slot) and one slot per undefined symbol, because libm may be
 * further away.  The mapping is writable until everything is in place and executable afterwards: code and
 * constants only, an object with writable data is refused. */

struct rt_code { char *base; size_t size; struct map sym; };

static const struct { const char *name; void *p; } known[] = {
#define F(f) { #f, (void *)(uintptr_t)f }
	F(memcpy), F(memset), F(memmove), F(sinf), F(cosf), F(tanf), F(fmodf), F(fmod), F(exp), F(expm1), F(log), F(log1p), F(tanh),
	F(tan), F(sin), F(cos), F(cbrt), F(erf), F(pow), F(powf), F(atan2), F(floor), F(ceil), F(trunc), F(rint), F(round), F(fma), F(fmaf),
#undef F
};

static void *outside(const char *name)
{
	for (size_t i = 0; i < NELEM(known); i++)
		if (!strcmp(known[i].name, name))
			return known[i].p;
	return dlsym(RTLD_DEFAULT, name);
}

static bool inside(size_t off, size_t len, size_t n)
{
	return off <= n && len <= n - off;
}

static const char *text_at(const char *p, const Elf64_Shdr *str, size_t off)
{
	if (off >= str->sh_size || !memchr(p + str->sh_offset + off, 0, str->sh_size - off))
		return NULL;
	return p + str->sh_offset + off;
}

static struct err *bad(const char *what)
{
	return ERR(DATA_LOSS, "object of generated code is damaged: %s", what);
}

static struct err *relocate(char *at, uint32_t type, uint64_t s, int64_t a, uint64_t slot, const char *end)
{
	uint64_t p = (uint64_t)(uintptr_t)at, v;
	int64_t d;
	int wide = 0;
	switch (type) {
	case R_X86_64_64: v = s + (uint64_t)a; wide = 1; break;
	case R_X86_64_PC64: v = s + (uint64_t)a - p; wide = 1; break;
	case R_X86_64_PC32: case R_X86_64_PLT32: v = s + (uint64_t)a - p; break;
	case R_X86_64_GOTPCREL: case R_X86_64_GOTPCRELX: case R_X86_64_REX_GOTPCRELX: v = slot + (uint64_t)a - p; break;
	case R_X86_64_32: case R_X86_64_32S: v = s + (uint64_t)a; break;
	case R_X86_64_NONE: return NULL;
	default: return ERR(UNIMPLEMENTED, "object of generated code has relocation type %u", type);
	}
	if (end - at < (wide ? 8 : 4))
		return bad("relocation outside its section");
	if (wide) {
		memcpy(at, &v, 8);
		return NULL;
	}
	d = (int64_t)v;
	if (type == R_X86_64_32 ? v >> 32 != 0 : d != (int32_t)d)
		return bad("relocation does not fit");
	int32_t w = (int32_t)d;
	memcpy(at, &w, 4);
	return NULL;
}

static void unmap(void *v)
{
	struct rt_code *c = v;

	if (c->base)
		munmap(c->base, c->size);
}

struct err *rt_code_load(const void *obj, size_t n, struct rt_code **out)
{
	const char *p = obj;
	struct rt_code *c;
	Elf64_Ehdr eh;
	*out = NULL;
	if (n < sizeof eh)
		return bad("too short");
	memcpy(&eh, p, sizeof eh);
	if (memcmp(eh.e_ident, ELFMAG, SELFMAG) || eh.e_ident[EI_CLASS] != ELFCLASS64 || eh.e_type != ET_REL || eh.e_machine != EM_X86_64 ||
	    eh.e_shentsize != sizeof(Elf64_Shdr) || !inside(eh.e_shoff, (size_t)eh.e_shnum * sizeof(Elf64_Shdr), n))
		return bad("not an x86-64 object");
	bool was = mem_persist(false);        /* a guard frees what is taken here, and ends the mapping */
	struct mem_undo undo;
	Elf64_Shdr *sh = mem_alloc(sizeof *sh * (eh.e_shnum + 1));
	size_t *at = mem_alloc(sizeof *at * (eh.e_shnum + 1u));
	c = mem_alloc(sizeof *c);
	mem_undo(&undo, unmap, c);
	memcpy(sh, p + eh.e_shoff, eh.e_shnum * sizeof *sh);
	struct err *error = NULL;
	size_t size = 0;
	const Elf64_Shdr *symtab = NULL;
	for (int i = 0; i < eh.e_shnum; i++) {
		if (sh[i].sh_type != SHT_NOBITS && !inside(sh[i].sh_offset, sh[i].sh_size, n)) {
			error = bad("section outside the file");
			goto done;
		}
		if (sh[i].sh_type == SHT_SYMTAB)
			symtab = &sh[i];
		if (!(sh[i].sh_flags & SHF_ALLOC) || !sh[i].sh_size)
			continue;
		if ((sh[i].sh_flags & SHF_WRITE) || sh[i].sh_size > 1u << 30 || sh[i].sh_addralign > 4096) {
			error = ERR(UNIMPLEMENTED, "object of generated code has writable data");
			goto done;
		}
		size_t al = MAX(sh[i].sh_addralign, 1);
		size = (size + al - 1) / al * al;
		at[i] = size;
		size += sh[i].sh_size;
	}
	if (!symtab || symtab->sh_link >= eh.e_shnum || symtab->sh_entsize != sizeof(Elf64_Sym)) {
		error = bad("no symbols");
		goto done;
	}
	const Elf64_Shdr *strtab = &sh[symtab->sh_link];
	size_t nsym = symtab->sh_size / sizeof(Elf64_Sym), stub = (size + 15) / 16 * 16;
	size = stub + nsym * 16;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size = (size + page - 1) / page * page;
	char *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED) {
		error = ERR(EXHAUSTED, "no memory for %zu bytes of generated code", size);
		goto done;
	}
	c->base = base;
	c->size = size;
	for (int i = 0; i < eh.e_shnum; i++)
		if (sh[i].sh_flags & SHF_ALLOC && sh[i].sh_size && sh[i].sh_type != SHT_NOBITS)
			memcpy(base + at[i], p + sh[i].sh_offset, sh[i].sh_size);

	uint64_t *addr = mem_alloc(sizeof *addr * (nsym + 1));
	for (size_t i = 1; i < nsym; i++) {
		Elf64_Sym s;
		memcpy(&s, p + symtab->sh_offset + i * sizeof s, sizeof s);
		const char *name = text_at(p, strtab, s.st_name);
		if (!name) {
			error = bad("symbol name");
			goto fail;
		}
		char *st = base + stub + i * 16;
		if (s.st_shndx == SHN_UNDEF) {
			void *f = outside(name);
			if (!f) {
				error = ERR(NOT_FOUND, "generated code needs '%s', which no library has", name);
				goto fail;
			}
			/* jmp *2(%rip); two bytes; address */
			static const unsigned char jmp[8] = { 0xff, 0x25, 2, 0, 0, 0, 0xcc, 0xcc };
			memcpy(st, jmp, 8);
			memcpy(st + 8, &f, 8);
			addr[i] = (uint64_t)(uintptr_t)st;
		} else if (s.st_shndx < eh.e_shnum && sh[s.st_shndx].sh_flags & SHF_ALLOC) {
			if (s.st_value > sh[s.st_shndx].sh_size) {
				error = bad("symbol outside its section");
				goto fail;
			}
			addr[i] = (uint64_t)(uintptr_t)(base + at[s.st_shndx] + s.st_value);
			memcpy(st + 8, &addr[i], 8);
			if (ELF64_ST_BIND(s.st_info) == STB_GLOBAL)
				*map_put(&c->sym, name, strlen(name)) = addr[i];
		}
	}
	for (int i = 0; i < eh.e_shnum; i++) {
		if (sh[i].sh_type != SHT_RELA || sh[i].sh_info >= eh.e_shnum || !(sh[sh[i].sh_info].sh_flags & SHF_ALLOC))
			continue;
		const Elf64_Shdr *to = &sh[sh[i].sh_info];
		for (size_t k = 0; k + sizeof(Elf64_Rela) <= sh[i].sh_size; k += sizeof(Elf64_Rela)) {
			Elf64_Rela r;
			memcpy(&r, p + sh[i].sh_offset + k, sizeof r);
			size_t sym = ELF64_R_SYM(r.r_info);
			if (sym >= nsym || r.r_offset >= to->sh_size) {
				error = bad("relocation");
				goto fail;
			}
			char *t = base + at[sh[i].sh_info];
			error = relocate(t + r.r_offset, (uint32_t)ELF64_R_TYPE(r.r_info), addr[sym], r.r_addend,
			                 (uint64_t)(uintptr_t)(base + stub + sym * 16 + 8), t + to->sh_size);
			if (error)
				goto fail;
		}
	}
	if (mprotect(base, size, PROT_READ | PROT_EXEC))
		error = ERR(PERMISSION, "this system does not let generated code be executed");
fail:
	free(addr);
done:
	mem_done(&undo);
	free(sh);
	free(at);
	if (error) {
		rt_code_free(c);
		c = NULL;
	} else {
		map_keep(&c->sym);
		mem_keep(c);
	}
	mem_persist(was);
	*out = c;
	return error;
}

void *rt_code_symbol(const struct rt_code *c, const char *name)
{
	uint64_t *v = map_get(&c->sym, name, strlen(name));
	return v ? (void *)(uintptr_t)*v : NULL;
}

void rt_code_free(struct rt_code *c)
{
	if (!c)
		return;
	map_free(&c->sym);
	unmap(c);
	free(c);
}
