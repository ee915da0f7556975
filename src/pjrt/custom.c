/* Extension: who says how custom calls are cut, and who looks at shardings.  JAX's Python is asked while a program is compiled. */
#include <pthread.h>
#include <stdlib.h>

#include "../hlo/hlo.h"
#include "../pass/pass.h"
#include "impl.h"
#include "pjrt.h"

/* Entries stay until the process ends: a compilation may be using one, and destroying it takes Python. */
struct entry { struct entry *next; struct pjrt_partitioner *partitioner; char name[]; };      /* partitioner NULL: cut by batches */
static pthread_mutex_t entries_lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries;

static struct err *enter(const char *name, size_t n, struct pjrt_partitioner *partitioner)
{
	struct entry *x = malloc(sizeof *x + n + 1);
	if (!x)
		return ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", sizeof *x + n + 1);
	x->partitioner = partitioner;
	memcpy(x->name, name, n);
	x->name[n] = 0;
	pthread_mutex_lock(&entries_lock);
	x->next = entries;
	entries = x;
	pthread_mutex_unlock(&entries_lock);
	return NULL;
}

static struct entry *find(const char *name)
{
	pthread_mutex_lock(&entries_lock);
	struct entry *x = entries;
	while (x && strcmp(x->name, name))
		x = x->next;
	pthread_mutex_unlock(&entries_lock);
	return x;
}

static struct err *register_partitioner(struct pjrt_register_partitioner *a)
{
	return enter(a->name, a->name_size, a->partitioner);
}

static struct err *register_batches(struct pjrt_register_batches *a)
{
	return enter(a->name, a->name_size, NULL);
}

struct pjrt_partitioner_ext pjrt_partitioners = {
	.base = { .struct_size = sizeof pjrt_partitioners, .type = EXT_PARTITIONER, .next = &pjrt_profilers.base },
	.partitioner = register_partitioner,
	.batches = register_batches,
};

static bool partitions(void *user, const char *target)
{
	const struct entry *x = find(target);
	return x && x->partitioner;
}

static bool batches(void *user, const char *target)
{
	const struct entry *x = find(target);
	return x && !x->partitioner;
}

/* --- the program that a partitioner gives ------------------------------------ */

static _Atomic(rondo_portable *) portable;

__attribute__((visibility("default"))) void rondo_set_portable(rondo_portable *fn)
{
	atomic_store(&portable, fn);
}

struct taken { char *p; size_t n; };

static void take(void *to, const void *p, size_t n)
{
	struct taken *t = to;
	free(t->p);
	*t = (struct taken){ malloc(n + 1), n };
	if (t->p)
		memcpy(t->p, p, n);
}

static void drop(void *t)
{
	free(((struct taken *)t)->p);
}

/* The passes before partition have run on it: on a device's program they would find no whole to cut. */
static struct err *read_local(struct pjrt_bytes module, int partitions, struct ir_module **out)
{
	rondo_portable *fn = atomic_load(&portable);
	struct taken t = {0};
	char msg[4096] = "no text";
	struct pass_opts o;
	struct mem_undo u;
	if (!fn)
		return ERR(UNIMPLEMENTED, "a partitioned custom call without Rondo's Python package");
	mem_undo(&u, drop, &t);
	struct err *e = fn(module.p, module.n, take, &t, msg, sizeof msg) ? ERR(INTERNAL, "the partitioned program cannot be read: %s", msg)
	              : t.p ? hlo_read_part(t.p, t.n, partitions, out) : ERR(EXHAUSTED, "out of host memory: asked for %zu bytes", t.n);
	mem_done(&u);
	drop(&t);
	TRY(e);
	pass_opts_from_conf(&o);
	o.stop = "partition";
	o.dump = NULL;
	return pass_run(&o, *out);
}

static void clean(void *v)
{
	struct pjrt_partition *a = v;
	if (a->cleanup)
		a->cleanup(a->data);
}

static struct err *answers(const struct pjrt_partition *a, struct spmd_call *c)
{
	if (a->has_error) {
		struct err *e = ERR(INTERNAL, "%.*s", (int)MIN(a->error.n, 1 << 20), a->error.p);
		e->code = (enum err_code)a->code;
		return e;
	}
	for (uint32_t i = 0; i < c->nin; i++)
		TRY(pjrt_shardings_read((struct span){ a->args_sharding[i].p, a->args_sharding[i].n }, c->a, &c->tiles[i], 1));
	TRY(pjrt_shardings_read((struct span){ a->result_sharding.p, a->result_sharding.n }, c->a, &c->tiles[c->nin], c->n - c->nin));
	return read_local(a->module, c->m->num_partitions, &c->local);
}

static struct pjrt_bytes kept(struct arena *a, struct str *s)
{
	struct pjrt_bytes b = { arena_copy(a, s->p, s->n), s->n };
	s->n = 0;
	return b;
}

static struct err *partition(void *user, struct spmd_call *c)
{
	const struct entry *x = find(c->target);
	struct pjrt_partition q = { .nargs = c->nin, .config = { c->key, c->nkey } };
	struct str s = {0};
	q.args = ARENA_NEW(c->a, struct pjrt_aval, c->nin + 1);
	for (uint32_t i = 0; i < c->nin; i++) {
		pjrt_shape_write(&s, c->m, &c->type[i], 1);
		q.args[i].shape = kept(c->a, &s);
		q.args[i].has_sharding = true;
		q.args[i].sharding = (struct pjrt_bytes){ c->sharding[i].p, c->sharding[i].n };
	}
	pjrt_shape_write(&s, c->m, &c->type[c->nin], c->n - c->nin);
	q.result.shape = kept(c->a, &s);
	pjrt_shardings_write(&s, &c->sharding[c->nin], c->n - c->nin);
	q.result.sharding = kept(c->a, &s);
	q.result.has_sharding = true;
	str_free(&s);
	struct mem_undo u;
	x->partitioner->partition(x->partitioner, &q);
	mem_undo(&u, clean, &q);
	struct err *e = answers(&q, c);
	mem_done(&u);
	clean(&q);
	return e;
}

/* --- who looks ------------------------------------------------------------------- */

static struct err *inspect(void *user, const void *key, size_t n, const struct ir_blob_info *sharding)
{
	struct pjrt_inspector to;
	struct pjrt_inspect args = { .sharding = sharding->p, .size = sharding->n };
	if (n != sizeof to)
		return ERR(INVALID, "InspectSharding with a configuration of %zu bytes", n);
	memcpy(&to, key, sizeof to);
	to.call(to.data, &args);
	if (!args.error)
		return NULL;
	struct err *e = ERR(INTERNAL, "Error calling inspect_sharding: %s", args.error);
	args.free_error(&args);
	return e;
}

static bool of_parts(void *user, const char *target) { return pjrt_custom_of_parts(target); }

const struct spmd_maker pjrt_maker = { NULL, partitions, batches, of_parts, partition, inspect };
