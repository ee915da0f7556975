/* gen_group: objects by key from memory or from disk, else from the generator, whose shared object (and
 * with it LLVM) is opened the first time that something has to be compiled. */
#include "sched.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- key: everything that the code depends on ---------------------------- */

static void put(struct str *s, const void *p, size_t n) { str_addn(s, p, n); }
static void put_i(struct str *s, int64_t v) { put(s, &v, sizeof v); }

/* Where it may be: where the setting says; else beside this code's file, one folder up (the tests' programs), or in lib beside
 * that folder (make install).  false: no such place. */
static bool candidate(struct str *s, int i)
{
	static const char *const where[] = { "", "../", "../lib/" };
	const char *set = conf_str(CONF_GEN_PATH);
	char exe[PATH_MAX];
	Dl_info here;
	s->n = 0;
	if (*set) {
		str_add(s, set);
		return i == 0;
	}
	if (i == NELEM(where))
		return false;
	const char *file = dladdr((void *)(uintptr_t)gen_can, &here) && here.dli_fname ? here.dli_fname : "";
	if (!strchr(file, '/')) {        /* a program is called as whoever starts it likes */
		ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
		exe[MAX(n, 0)] = '\0';
		file = exe;
	}
	const char *slash = strrchr(file, '/');
	str_addf(s, "%.*s%slibrondo_gen.so", slash ? (int)(slash - file + 1) : 0, file, where[i]);
	return true;
}

/* Tells one build of the generator from another without loading it. */
static uint64_t stamp;
static void drop(void *text) { str_free(text); }

static void make_stamp(void)
{
	struct str path = { 0 };
	struct mem_undo u;
	struct stat st;
	mem_undo(&u, drop, &path);
	for (int i = 0; !stamp && candidate(&path, i); i++)
		if (!stat(path.p, &st)) {
			int64_t v[3] = { st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec };
			stamp = hash_bytes(v, sizeof v, 3) | 1;
		}
	mem_done(&u);
	str_free(&path);
}
static uint64_t generator_stamp(void)
{
	static struct mem_once once;
	mem_once(&once, make_stamp);
	return stamp;
}

static void make_key(struct str *s, const struct gen_target *t, const struct ir_module *m, const struct ir_fn *fn, const struct prog_view *view)
{
	put_i(s, GEN_VERSION);
	put_i(s, (int64_t)generator_stamp());
	put(s, t->name, strlen(t->name) + 1);
	ir_fn_bytes(s, m, fn, NULL, NULL);
	put_i(s, view != NULL);
	for (size_t i = 0; view && i < fn->nparam + fn->result.n; i++) {
		put_i(s, view[i].off);
		put(s, view[i].stride, sizeof *view[i].stride * view[i].rank);
	}
}

/* --- caches ------------------------------------------------------------- */

struct entry { int64_t tiles, block, times; uint64_t key; size_t nobj, nunder; void *obj; int64_t *under; };
static struct map memory;                         /* key text -> struct entry *; entries live as long as the process */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct header { char magic[8]; uint64_t key, check; int64_t tiles, block, times; uint64_t nunder, nobj, sum; };    /* then nunder words, and the object */
static const char magic[8] = "rondog5";

static bool disk_path(struct str *s, uint64_t key, bool make)
{
	if (!conf_cache(s, make))
		return false;
	str_addf(s, "gen-%016llx", (unsigned long long)key);
	return true;
}

static struct entry *entry_new(const struct entry *from, const int64_t *under, const void *obj)
{
	struct entry *x = mem_alloc(sizeof *x);
	*x = *from;
	x->under = mem_alloc(sizeof *under * x->nunder);
	memcpy(x->under, under, sizeof *under * x->nunder);
	x->obj = mem_alloc(x->nobj);
	memcpy(x->obj, obj, x->nobj);
	return x;
}

static void entry_free(struct entry *x)
{
	free(x->under);
	free(x->obj);
	free(x);
}

enum { MOST = 1 << 28 };                  /* bytes of an entry on disk */

static struct entry *disk_read(uint64_t key, uint64_t check)
{
	struct str path = { 0 }, data = { 0 };
	struct entry *x = NULL;
	if (disk_path(&path, key, false)) {
		struct err *e = cache_read(&data, path.p, MOST);
		struct header h;
		if (!e && data.n >= sizeof h) {
			memcpy(&h, data.p, sizeof h);
			if (!memcmp(h.magic, magic, sizeof magic) && h.key == key && h.check == check && h.nunder <= (data.n - sizeof h) / sizeof *x->under &&
			    h.nobj == data.n - sizeof h - h.nunder * sizeof *x->under && h.sum == hash_bytes(data.p + sizeof h, data.n - sizeof h, 7)) {
				const char *under = data.p + sizeof h, *obj = under + h.nunder * sizeof *x->under;
				x = entry_new(&(struct entry){ h.tiles, h.block, h.times, key, h.nobj, h.nunder, NULL, NULL }, (const int64_t *)(const void *)under, obj);
			}
		}
		err_free(e);
	}
	str_free(&path);
	str_free(&data);
	return x;
}

static void disk_write(const struct entry *x, uint64_t check)
{
	struct str path = { 0 }, data = { 0 };
	if (disk_path(&path, x->key, true)) {
		struct header h = { .key = x->key, .check = check, .tiles = x->tiles, .block = x->block, .times = x->times, .nunder = x->nunder, .nobj = x->nobj };
		memcpy(h.magic, magic, sizeof magic);
		str_addn(&data, (const char *)&h, sizeof h);
		str_addn(&data, (const char *)x->under, sizeof *x->under * x->nunder);
		str_addn(&data, x->obj, x->nobj);
		h.sum = hash_bytes(data.p + sizeof h, data.n - sizeof h, 7);
		memcpy(data.p, &h, sizeof h);
		struct err *e = cache_write(path.p, data.p, data.n);
		if (e && conf_is_set(CONF_CACHE))                       /* a cache that cannot be written is no error */
			conf_useless(CONF_CACHE, "generated code is not kept: %s", e->msg);
		err_free(e);
	}
	str_free(&path);
	str_free(&data);
}

/* --- the generator ------------------------------------------------------ */

static const struct gen_api *api;
static char *api_error;

static void api_open(void)
{
	struct str path = { 0 }, why = { 0 };
	struct mem_undo u[2];
	void *h = NULL;
	mem_undo(&u[0], drop, &path);
	mem_undo(&u[1], drop, &why);
	for (int i = 0; !h && candidate(&path, i); i++) {
		h = dlopen(path.p, RTLD_NOW | RTLD_LOCAL);
		const char *t = h ? NULL : dlerror();
		/* if the file is there but something it needs is not, that is the reason to tell */
		if (t && (!why.n || !strstr(t, "librondo_gen.so: cannot open"))) {
			why.n = 0;
			str_add(&why, t);
		}
	}
	api = h ? dlsym(h, "rondo_gen") : NULL;
	if (api) {
		api->join(mem_home(), conf_home());
	} else {
		struct str s = { 0 };
		str_addf(&s, "the code generator (LLVM 19) cannot be loaded: %s", why.n ? why.p : "librondo_gen.so has no table");
		api_error = s.p;
		if (*conf_str(CONF_GEN_PATH))
			conf_useless(CONF_GEN_PATH, "%s; reference kernels run instead, whose last digits may differ", api_error);
	}
	mem_done(&u[1]);
	mem_done(&u[0]);
	str_free(&path);
	str_free(&why);
}


struct err *gen_load(void)
{
	static struct mem_once once;
	mem_once(&once, api_open);
	return api ? NULL : ERR(UNAVAILABLE, "%s", api_error);
}

/* LLVM ends the process when it finds no memory: so there must be enough before it begins.  What it takes for one group is a
 * few megabytes. */
static struct err *room_for_llvm(void)
{
	enum { ROOM = 64 << 20 };
	void *p = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return ERR(EXHAUSTED, "out of host memory: the code generator wants %d MB of address space", ROOM / 1000000);
	munmap(p, ROOM);
	return NULL;
}

struct err *gen_group_for(const struct gen_target *t, const struct ir_module *m, const struct ir_fn *fn, const struct prog_view *view, struct gen_out *out)
{
	memset(out, 0, sizeof *out);
	struct str text = { 0 };
	make_key(&text, t, m, fn, view);
	uint64_t key = hash_bytes(text.p, text.n, 1), check = hash_bytes(text.p, text.n, 2);
	pthread_mutex_lock(&lock);
	uint64_t *hit = map_get(&memory, text.p, text.n);
	struct entry *x = hit ? (struct entry *)(uintptr_t)*hit : NULL;
	pthread_mutex_unlock(&lock);
	struct err *error = NULL;
	if (!x) {
		x = disk_read(key, check);
		if (!x) {
			struct arena tmp;
			arena_init(&tmp);
			struct gen_out made = { 0 };
			error = gen_load();
			if (!error)
				error = room_for_llvm();
			if (!error)
				error = api->group(&tmp, t, m, fn, view, &made);
			if (!error) {
				x = entry_new(&(struct entry){ made.tiles, made.block, made.times, key, made.nobj, fn->nparam, NULL, NULL }, made.under, made.obj);
				disk_write(x, check);
			}
			arena_fini(&tmp);
		}
		if (x) {
			struct mem_undo u;
			mem_lock(&u, &lock);
			bool was = mem_persist(true);
			uint64_t *slot = map_put(&memory, text.p, text.n);
			mem_persist(was);
			if (*slot) {                     /* another thread was faster */
				entry_free(x);
				x = (struct entry *)(uintptr_t)*slot;
			} else {
				mem_keep(x);
				mem_keep(x->obj);
				mem_keep(x->under);
				*slot = (uint64_t)(uintptr_t)x;
			}
			mem_unlock(&u);
		}
	}
	if (x) {
		out->symbol = GEN_SYMBOL;
		out->obj = x->obj;
		out->nobj = x->nobj;
		out->key = key;
		out->tiles = x->tiles;
		out->block = x->block;
		out->times = x->times;
		out->under = x->under;
	}
	str_free(&text);
	return error;
}

int64_t gen_keeps(void)
{
	return gen_target_get()->kept;
}

struct err *gen_group(const struct ir_module *m, const struct ir_fn *fn, const struct prog_view *view, struct gen_out *out)
{
	return gen_group_for(gen_target_get(), m, fn, view, out);
}
