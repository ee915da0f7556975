/* Code outside Rondo: custom calls. */
#include "host.h"

struct target {
	struct target *next;
	rt_custom_fn *fn; void *user;     /* one of the two */
	void *ffi; _Atomic bool checked;  /* its version was looked at */
	_Atomic bool replaced;            /* there is a newer one of this name */
	char name[];
};

/* Targets are few and stay for ever: readers need no lock. */
static _Atomic(struct target *) targets;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void target_add(const char *name, rt_custom_fn *fn, void *user, void *ffi)
{
	size_t n = strlen(name) + 1;
	struct target *t = calloc(1, sizeof *t + n);

	if (!t) {
		log_line(LOG_WARN, "custom call '%s' has no handler: out of host memory", name);
		return;
	}
	memcpy(t->name, name, n);
	t->fn = fn;
	t->user = user;
	t->ffi = ffi;
	pthread_mutex_lock(&lock);
	t->next = atomic_load(&targets);       /* the newest of a name is found first */
	atomic_store(&targets, t);
	for (struct target *old = t->next; old; old = old->next)
		if (!strcmp(old->name, name))
			atomic_store(&old->replaced, true);
	pthread_mutex_unlock(&lock);
}

void rt_custom_register(const char *target, rt_custom_fn *fn, void *user) { target_add(target, fn, user, NULL); }
void rt_ffi_register(const char *target, void *handler) { target_add(target, NULL, NULL, handler); }

static struct target *target_find(const char *name)
{
	struct target *t = atomic_load(&targets);

	while (t && strcmp(t->name, name))
		t = t->next;
	return t;
}

bool rt_custom_known(const char *target) { return target_find(target) != NULL; }

bool custom_is_ffi(const char *target)
{
	const struct target *t = target_find(target);

	return t && t->ffi;
}

struct err *custom_prepare(struct arena *a, const struct prog_custom *c, struct custom *x)
{
	x->c = c;
	return ffi_attributes(a, c, &x->attrs);
}

struct err *custom_run(struct frame *f, struct custom *x, char *const *ptr)
{
	const struct prog_custom *c = x->c;
	struct target *t = atomic_load(&x->target);
	int n = c->nin + c->nout;
	struct err *e;

	if (!t || atomic_load_explicit(&t->replaced, memory_order_relaxed))
		atomic_store(&x->target, t = target_find(c->target));
	if (!t)
		return ERR(UNIMPLEMENTED, "custom call '%s' of program '%s' has no handler: a JAX program has jaxlib's own, and those that jax.ffi.register_ffi_target registers for 'cpu' or 'rondo'", c->target, f->x->name);
	struct rt_custom_call call = { c, f->pos, f->d, f->launch_id, f->by, (void *const *)ptr, (void *const *)ptr + c->nin };
	/* Memory that the host cannot touch is copied there and back. */
	void **tmp = NULL;
	if (!f->d->ops->plain) {
		tmp = calloc((size_t)MAX(n, 1), sizeof *tmp);
		for (int i = 0; i < n; i++) {
			size_t bytes = (size_t)prog_view_bytes(&c->v[i]);
			if (!tmp || !(tmp[i] = malloc(MAX(bytes, 1)))) {
				e = no_room(bytes);
				goto out;
			}
			if (i < c->nin)
				memcpy(tmp[i], ptr[i], bytes);
		}
		call.in = tmp;
		call.out = tmp + c->nin;
	}
	/* The handler's arithmetic is its own affair: denormals as the C library has them. */
	unsigned fp = cpu_set_ftz();
	cpu_restore_fp(fp & ~0x8040u);
	if (t->fn) {
		unsigned long outer = behalf;
		relief_called(f->d);
		behalf = f->by;
		e = t->fn(t->user, &call);
		behalf = outer;
		relief_back(f->d);
	} else {
		int threads = strncmp(c->target, "lapack_", 7) ? 0 : f->d->c->lapack;
		if (threads)
			blas_enter(threads);
		e = ffi_call(t->ffi, &t->checked, &call, x->attrs);
		if (threads)
			blas_leave();
	}
	cpu_restore_fp(fp);
out:
	for (int i = 0; tmp && i < n; i++) {
		if (i >= c->nin && !e)
			memcpy(ptr[i], tmp[i], (size_t)prog_view_bytes(&c->v[i]));
		free(tmp[i]);
	}
	free(tmp);
	return e;
}
