/* What the files of this folder share. */
#ifndef RONDO_PJRT_IMPL_H
#define RONDO_PJRT_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "../spmd/spmd.h"
#include "abi.h"

enum { NMEM = 3 };                  /* memories of a device; index 0 is the default */
extern const char *const pjrt_mem_kind[NMEM];

struct pjrt_memory {
	void *vtable;               /* NULL; callers may read it */
	struct pjrt_device *device;
	int id, mem;
	char text[64];
};
struct pjrt_device {
	struct pjrt_client *client;
	struct rt_device *rt;       /* the first of its parts; NULL: a device of another process */
	int id, local, process;
	struct pjrt_memory memory[NMEM], *memories[NMEM];
	struct pjrt_device *self;
	char kind[80], text[64], debug[160];
	struct pjrt_value attr[2];
};
/* JAX's store, as struct kv. */
struct pjrt_store {
	struct kv kv;
	int attempt;                /* keys are written once: clients of one process take turns */
	struct err *(*get)(struct pjrt_kv_get *); void *get_arg;
	struct err *(*put)(struct pjrt_kv_put *); void *put_arg;
};
struct pjrt_client {
	struct rt_client *rt;
	int ndev;                   /* of all processes */
	int parts;                  /* devices of the runtime that each of them is (RONDO_REPRO) */
	int first, nlocal;          /* those of this one */
	bool host_memory;           /* the host may read the devices' memory */
	struct pjrt_device *device, **devices;      /* by id */
	struct pjrt_memory **memories;              /* of local devices */
	struct pjrt_store store;
	char version[160], topology[160];
	struct pjrt_client *next;                   /* all that are open */
};

/* PJRT_Executable and PJRT_LoadedExecutable: two handles, one counted object.  Everything that JAX asks
 * for at each call or compile is laid out when it is made. */
struct pjrt_exec {
	atomic_int refs;
	atomic_bool deleted;
	struct pjrt_client *client;
	struct rt_exec *x;
	const struct prog *prog;
	int64_t replicas, partitions;
	int parts;                  /* positions of the program on each device; 1, or those of the client */
	bool python;                /* calls Python functions */
	int nlocal;
	struct pjrt_device **device;        /* nlocal */
	struct pjrt_logical_id *logical;    /* nlocal */
	struct str options, assignment;     /* as given; as DeviceAssignmentProto, our own writing */
	char fingerprint[32];
	struct pjrt_side {                  /* of the parameters, of the results */
		size_t n;
		const char **sharding; size_t *sharding_size;      /* max(n, 1) of them */
		const char **kind; size_t *kind_size;
		const struct layout **layout;
		int *type; int64_t *dim; size_t *rank;
		int *cut;                          /* dimension along which a device's parts have theirs; -1: each has all */
		struct str said;                   /* shardings, where they are not the program's */
	} arg, res;
	struct pjrt_value cost[2];
	struct spare lists, wide;           /* of a call's arguments, results and events; of its parts' */
	struct pjrt_exec *next, *prev;      /* all that live */
};

bool pjrt_viewed(void);              /* are there views of arrays? */

/* Where an array of this process lies. */
static inline struct pjrt_memory *pjrt_memory_of(const struct rt_buffer *b)
{
	struct pjrt_device *d = rt_device_user(rt_buffer_device(b));

	return &d->memory[rt_buffer_mem(b)];
}

int pjrt_mem_by_kind(const char *kind);            /* -1 if there is no such memory; NULL is the default */

/* --- proto.c: protocol buffers ------------------------------------------- */

struct span { const char *p; size_t n; };
/* What xla.CompileOptionsProto says that matters here. */
struct pjrt_options {
	int64_t replicas, partitions;
	ARR(int) device;            /* replicas * partitions global ids, replica-major; empty if not given */
};
/* Fields, added: the number or length as a varint, an integer, a double, bytes. */
void pjrt_put(struct str *s, uint64_t v);
void pjrt_put_int(struct str *s, int field, uint64_t v);
void pjrt_put_real(struct str *s, int field, double v);
void pjrt_put_bytes(struct str *s, int field, const void *p, size_t n);
/* Fails with INVALID for malformed bytes or an unknown option of the user. */
struct err *pjrt_options_read(const void *p, size_t n, struct pjrt_options *out);
void pjrt_options_free(struct pjrt_options *o);
/* xla.ShapeProto of n arrays: of the one, or of a tuple of them. */
void pjrt_shape_write(struct str *s, const struct ir_module *m, const ir_type *t, size_t n);
/* xla.OpSharding of n values that each have one: of the one, or of a tuple. */
void pjrt_shardings_write(struct str *s, const struct ir_blob_info *one, size_t n);
struct err *pjrt_shardings_read(struct span s, struct arena *a, struct spmd_tiles *out, size_t n);
void pjrt_assignment_write(struct str *s, int64_t replicas, int64_t partitions, const int *dev);

/* --- parts.c: devices that are several ----------------------------------------- */

/* How x, of a program for ndev devices of which each `parts` are one to JAX, lies there: along which dimension the parts are, and the sharding (appended). */
struct err *pjrt_parts_lie(const struct prog_arg *x, const char *what, int ndev, int parts, int *cut, struct str *sharding);
size_t pjrt_parts_bytes(const struct pjrt_exec *x);           /* for a call's lists */
/* As rt_exec_run, of arrays as JAX has them. */
struct err *pjrt_parts_run(struct pjrt_exec *x, struct rt_buffer *const *arg, const int64_t *no_donate, size_t nkeep, int32_t launch_id,
                           struct rt_buffer **out, struct rt_event **done);

/* --- xspace.c: profiles ------------------------------------------------------ */

/* tensorflow.profiler.XSpace: a plane for each device that has run something; nothing if none has. */
void pjrt_xspace_write(struct str *s, const struct rt_trace_read *r);

/* --- host.c --------------------------------------------------------------- */

/* Tell Python about the custom calls of a program that is about to be loaded. */
void pjrt_custom_resolve(const struct prog *p);
/* Does each device make calls of target with its parts of the operands? */
bool pjrt_custom_of_parts(const char *target);
/* Count an executable's Python functions up or down; true if it has any. */
bool pjrt_custom_count(const struct prog *p, int change);
void pjrt_calls(int change);          /* so many more runs of programs that call Python are under way */

/* Every member of the table. */
void pjrt_Error_Destroy(struct pjrt_Error_Destroy *a);
void pjrt_Error_Message(struct pjrt_Error_Message *a);
#define API(name) struct err *pjrt_##name(struct pjrt_##name *a);
PJRT_MEMBERS(API)
#undef API
extern struct pjrt_shardings_ext pjrt_shardings;
extern struct pjrt_layouts_ext pjrt_layouts;
extern struct pjrt_partitioner_ext pjrt_partitioners;
extern struct pjrt_profiler_ext pjrt_profilers;

/* --- watch.c --------------------------------------------------------------- */

/* From open to close a terminal on standard error hears each second what goes on, when it has gone on for so many; the line goes when it is over.
 * look, if not NULL, is asked for the text each time, and gives false if there is nothing to say. */
typedef bool watch_look(void *user, char *text, size_t n);
struct watch { pthread_t thread; pthread_mutex_t lock; pthread_cond_t bell; bool runs, done; int after; watch_look *look; void *user; char text[160]; };
void watch_open(struct watch *w, int after, watch_look *look, void *user);
void watch_close(struct watch *w);
void watch_say(struct watch *w, const char *text);      /* copied */

/* --- custom.c -------------------------------------------------------------- */

extern const struct spmd_maker pjrt_maker;

#endif
