/* rondo run: compile a program, run it on its devices (or walk it with the oracle), show and compare. */
#include "tool.h"

#include <stdlib.h>

#include "../eval/eval.h"
#include "../rt/rt.h"

static const char *in_path, *out_path, *check_path, *tier, *devices, *hosts, *oracle, *repeat, *quiet, *tol, *atol_;

static const struct opt opts[] = {
	{"in", "X.npz", "inputs in0, in1, ..; made up if not given", &in_path},
	{"out", "Y.npz", "write results as out0, out1, ..", &out_path},
	{"check", "Z.npz", "compare with out0, out1, .. (f32_0, ..: the same in f32); exit 1 if a result is wrong", &check_path},
	{"tol", "E", "error allowed, as part of the largest expected value (1e-4)", &tol},
	{"atol", "E", "error allowed in any case", &atol_},
	{"devices", "N", "devices to have; a program of fewer runs on each set of them in turn", &devices},
	{"hosts", "N", "compile as for so many hosts, which have equal parts of the devices one after the other (1)", &hosts},
	{"tier", "T", "ref (reference kernels), gen (generated code) or auto", &tier},
	{"eval", NULL, "walk the operations one by one with reference kernels, nothing compiled", &oracle},
	{"repeat", "N", "run N times and give the fastest", &repeat},
	{"quiet", NULL, "print only what is wrong", &quiet},
};

struct job {
	const char *path, *text;     /* where the program is, or the program itself */
	struct ir_module *m;
	int np, ndev;                /* devices the program is for; devices there are */
	struct array *arg, *res;
	int narg, nres;
	double read_s, compile_s, run_s;
};

/* --- results ---------------------------------------------------------------- */

/* Position pos's results are at part[i]; what is seen grows with each position. */
static struct err *join(struct job *j, struct array *res, int pos, void *const *part, uint8_t **seen)
{
	for (int i = 0; i < j->nres; i++) {
		bool differs = false;
		array_join(&res[i], pos, part[i], seen[i], &differs);
		if (differs)
			return ERR(INTERNAL, "result %d: device %d and another hold the same part with different values", i, pos);
	}
	return NULL;
}

static uint8_t **seen_new(struct job *j, struct array *res)
{
	uint8_t **seen = mem_alloc(sizeof *seen * (size_t)(j->nres + 1));
	for (int i = 0; i < j->nres; i++) {
		free(res[i].p);
		res[i].p = mem_alloc(res[i].bytes);
		seen[i] = mem_alloc(res[i].bytes);
	}
	return seen;
}

static void seen_free(struct job *j, uint8_t **seen)
{
	for (int i = 0; i < j->nres; i++)
		free(seen[i]);
	free(seen);
}

/* --- the runtime -------------------------------------------------------------- */

static struct err *upload(struct job *j, const struct prog *prog, struct rt_device *d, int pos, struct rt_buffer **buf)
{
	for (int i = 0; i < j->narg; i++) {
		struct rt_shape s = {.dtype = j->arg[i].dtype, .rank = j->arg[i].rank};
		if (prog->arg[i].layout)
			layout_read(prog->arg[i].layout, s.rank, &s.layout);
		memcpy(s.dim, j->arg[i].local, sizeof *s.dim * (size_t)s.rank);
		char *p = mem_alloc(j->arg[i].local_bytes);
		array_cut(&j->arg[i], pos, p);
		struct err *e = rt_buffer_from_host(d, 0, &s, p, NULL, &buf[i]);
		free(p);
		if (e)
			return e;
	}
	return NULL;
}

static struct err *download(struct job *j, int pos, struct rt_buffer **buf, struct array *res, uint8_t **seen)
{
	void **part = mem_alloc(sizeof *part * (size_t)(j->nres + 1));
	struct err *e = NULL;
	for (int i = 0; i < j->nres && !e; i++) {
		int64_t have = rt_shape_bytes(rt_buffer_shape(buf[i]));
		part[i] = mem_alloc(res[i].local_bytes);
		if (have != (int64_t)res[i].local_bytes) {
			e = ERR(INTERNAL, "result %d has %ld bytes on a device instead of %zu", i, (long)have, res[i].local_bytes);
			break;
		}
		struct rt_event *ev = rt_buffer_read(buf[i], NULL, part[i]);
		e = rt_event_wait(ev);
		rt_event_unref(ev);
	}
	if (!e)
		e = join(j, res, pos, part, seen);
	for (int i = 0; i < j->nres; i++)
		free(part[i]);
	free(part);
	return e;
}

/* One launch on all devices of x; results into res. */
static struct err *launch(struct job *j, struct rt_exec *x, int turn, struct array *res)
{
	struct rt_buffer **in = mem_alloc(sizeof *in * (size_t)(j->np * j->narg + 1)), **out = mem_alloc(sizeof *out * (size_t)(j->np * j->nres + 1));
	struct rt_event **done = mem_alloc(sizeof *done * (size_t)j->np);
	uint8_t **seen = seen_new(j, res);
	struct err *e = NULL;
	for (int k = 0; k < j->np && !e; k++)
		e = upload(j, rt_exec_prog(x), rt_exec_device(x, k), rt_exec_position(x, k), in + k * j->narg);
	if (!e) {
		double t = clock_s();
		e = rt_exec_run(x, in, NULL, 0, turn, out, done);
		for (int k = 0; k < j->np && done[k]; k++) {
			struct err *late = rt_event_wait(done[k]);
			if (e)
				err_free(late);
			else
				e = late;
		}
		t = clock_s() - t;
		j->run_s = j->run_s == 0 ? t : MIN(j->run_s, t);
	}
	for (int k = 0; k < j->np && !e; k++)
		e = download(j, rt_exec_position(x, k), out + k * j->nres, res, seen);
	for (int i = 0; i < j->np * j->narg; i++)
		if (in[i])
			rt_buffer_unref(in[i]);
	for (int i = 0; i < j->np * j->nres; i++)
		if (out[i])
			rt_buffer_unref(out[i]);
	for (int k = 0; k < j->np; k++)
		if (done[k])
			rt_event_unref(done[k]);
	seen_free(j, seen);
	free(in);
	free(out);
	free(done);
	return e;
}

static struct err *read_job(const struct job *j, struct ir_module **out)
{
	return j->text ? ir_parse(j->text, strlen(j->text), out) : source_read(j->path, out);
}

static struct err *run_set(struct job *j, struct rt_client *c, const struct pass_opts *o, int first, int64_t times, struct array *res)
{
	struct prog *p;
	struct rt_exec *x;
	struct ir_module *m = NULL;
	double t = clock_s();
	TRY(read_job(j, &m));
	j->read_s = clock_s() - t;
	t = clock_s();
	struct err *e = pass_compile(o, m, &p);
	if (!e && j->np > 1) {
		e = arrays_place(m, j->np, j->arg, j->narg, res, j->nres);
		if (e)
			prog_free(p);
	}
	ir_module_free(m);
	if (e)
		return e;
	int *dev = mem_alloc(sizeof *dev * (size_t)j->np);
	for (int i = 0; i < j->np; i++)
		dev[i] = rt_device_id(rt_client_device(c, first + i));
	e = rt_exec_new(c, p, dev, &x);
	free(dev);
	j->compile_s = clock_s() - t;
	if (e)
		return e;
	for (int64_t k = 0; k < times && !e; k++) {
		if (times > 1)
			str_progress(stderr, "run", (double)(k + 1) / (double)times);
		e = launch(j, x, (int)k, res);
	}
	rt_exec_unref(x);
	return e;
}

static struct err *same_everywhere(struct job *j, const struct array *again, int first)
{
	for (int i = 0; i < j->nres; i++)
		if (memcmp(again[i].p, j->res[i].p, j->res[i].bytes) != 0)
			return ERR(INTERNAL, "result %d on the devices from %d on differs from the one on device 0", i, first);
	return NULL;
}

static struct err *run_compiled(struct job *j, const struct pass_opts *o, int64_t times)
{
	struct rt_client *c;
	struct rt_opts ro = { .ndev = j->ndev };
	TRY(rt_client_new(&ro, &c));
	struct err *e = run_set(j, c, o, 0, times, j->res);
	for (int first = j->np; first + j->np <= j->ndev && !e; first += j->np) {
		struct array *a, *again;
		int na, nr;
		arrays_of(j->m, j->np, &a, &na, &again, &nr);
		e = run_set(j, c, o, first, 1, again);
		if (!e)
			e = same_everywhere(j, again, first);
		arrays_free(a, na);
		arrays_free(again, nr);
	}
	rt_client_free(c);
	return e;
}

/* --- the oracle ---------------------------------------------------------------- */

static struct err *run_oracle(struct job *j, const struct pass_opts *o)
{
	struct eval_opts eo = {.ndev = j->np};
	struct pass_opts po = *o;
	po.stop = j->np > 1 ? "partition" : "round";
	TRY(pass_run(&po, j->m));
	if (j->np > 1)
		TRY(arrays_place(j->m, j->np, j->arg, j->narg, j->res, j->nres));
	struct eval_array *in = mem_alloc(sizeof *in * (size_t)(j->np * j->narg + 1)), *out = mem_alloc(sizeof *out * (size_t)(j->np * j->nres + 1));
	for (int k = 0; k < j->np; k++)
		for (int i = 0; i < j->narg; i++) {
			const struct array *a = &j->arg[i];
			struct eval_array *x = &in[k * j->narg + i];
			*x = (struct eval_array){.dtype = a->dtype, .rank = a->rank, .bytes = a->local_bytes, .p = mem_alloc(a->local_bytes)};
			memcpy(x->dim, a->local, sizeof a->local);
			array_cut(a, k, x->p);
		}
	unsigned fp = cpu_set_ftz();
	double t = clock_s();
	struct err *e = eval_main(j->m, &eo, in, out);
	j->run_s = clock_s() - t;
	cpu_restore_fp(fp);
	uint8_t **seen = seen_new(j, j->res);
	void **part = mem_alloc(sizeof *part * (size_t)(j->nres + 1));
	for (int k = 0; k < j->np && !e; k++) {
		for (int i = 0; i < j->nres && !e; i++) {
			part[i] = out[k * j->nres + i].p;
			if (out[k * j->nres + i].bytes != j->res[i].local_bytes)
				e = ERR(INTERNAL, "result %d has %zu bytes instead of %zu", i, out[k * j->nres + i].bytes, j->res[i].local_bytes);
		}
		if (!e)
			e = join(j, j->res, k, part, seen);
	}
	free(part);
	seen_free(j, seen);
	for (int i = 0; i < j->np * j->narg; i++)
		eval_array_free(&in[i]);
	for (int i = 0; i < j->np * j->nres; i++)
		eval_array_free(&out[i]);
	free(in);
	free(out);
	return e;
}

/* --- the command ----------------------------------------------------------------- */

static struct err *inputs(struct job *j)
{
	struct npz z = {0};
	struct err *e = NULL;
	if (in_path)
		TRY(npz_read(in_path, &z));
	for (int i = 0; i < j->narg && !e; i++) {
		char name[32];
		snprintf(name, sizeof name, "in%d", i);
		if (in_path)
			e = array_load(&j->arg[i], &z, name);
		else
			array_make_up(&j->arg[i], (uint64_t)i);
	}
	npz_free(&z);
	return e;
}

static struct err *compare(struct job *j, int *status)
{
	struct npz z;
	double rel = 1e-4, abs = 0;
	TRY(arg_real("tol", tol, &rel));
	TRY(arg_real("atol", atol_, &abs));
	TRY(npz_read(check_path, &z));
	struct err *e = NULL;
	int wrong = 0;
	for (int i = 0; i < j->nres && !e; i++) {
		char name[32], wide[32];
		snprintf(name, sizeof name, "out%d", i);
		snprintf(wide, sizeof wide, "f32_%d", i);
		const struct npy *want = npz_get(&z, name);
		if (!want) {
			e = ERR(NOT_FOUND, "'%s' has no '%s'", check_path, name);
			break;
		}
		struct verdict v = array_compare(&j->res[i], want, npz_get(&z, wide), rel, abs);
		wrong += !v.ok;
		if (!v.ok || !quiet)
			printf("  %-6s %s  error %.1e, allowed %.1e\n", name, v.ok ? "right" : "WRONG", v.error, v.allowed);
	}
	npz_free(&z);
	if (!e && !quiet)
		printf("%d of %d results right\n", j->nres - wrong, j->nres);
	if (wrong)
		*status = 1;
	return e;
}

static struct err *save(struct job *j)
{
	struct npz z = {0};
	for (int i = 0; i < j->nres; i++) {
		char name[32];
		snprintf(name, sizeof name, "out%d", i);
		npz_add(&z, name, j->res[i].dtype, j->res[i].rank, j->res[i].dim, j->res[i].p, j->res[i].bytes);
	}
	struct err *e = npz_write(out_path, &z);
	npz_free(&z);
	return e;
}

static struct err *work(struct job *j, int *status)
{
	struct pass_opts o;
	int64_t n = 0, times = 1;
	TRY(source_opts(tier, NULL, hosts, j->m, &o));
	j->np = o.ndev;
	TRY(arg_int("devices", devices, 1, RT_MOST_DEVICES, &n));
	TRY(arg_int("repeat", repeat, 1, 1000000, &times));
	if (devices && n < j->np)
		return ERR(INVALID, "the program is for %d devices, '--devices %ld' are too few", j->np, (long)n);
	j->ndev = devices ? (int)n : j->np;
	arrays_of(j->m, j->np, &j->arg, &j->narg, &j->res, &j->nres);
	TRY(inputs(j));
	if (oracle)
		TRY(run_oracle(j, &o));
	else
		TRY(run_compiled(j, &o, times));
	if (!quiet) {
		for (int i = 0; i < j->nres; i++) {
			char name[32];
			snprintf(name, sizeof name, "out%d", i);
			array_print(stdout, name, &j->res[i]);
		}
		if (oracle)
			printf("oracle: %.3f ms\n", j->run_s * 1e3);
		else
			printf("read %.3f ms, compiled %.3f ms, ran %.3f ms on %d device%s%s\n", j->read_s * 1e3, j->compile_s * 1e3, j->run_s * 1e3, j->np,
			       j->np > 1 ? "s" : "", times > 1 ? " (fastest)" : "");
	}
	if (out_path)
		TRY(save(j));
	if (check_path)
		TRY(compare(j, status));
	return NULL;
}

struct err *run_check(const char *text, enum lower_tier t, double *run_s)
{
	struct job j = {.text = text};
	struct pass_opts o;
	struct array *arg, *want;
	int narg, nres;
	TRY(read_job(&j, &j.m));
	struct err *e = source_opts(NULL, NULL, NULL, j.m, &o);
	o.tier = t;
	j.np = j.ndev = o.ndev;
	arrays_of(j.m, j.np, &j.arg, &j.narg, &j.res, &j.nres);
	arrays_of(j.m, j.np, &arg, &narg, &want, &nres);
	if (!e)
		e = inputs(&j);
	if (!e)
		e = run_compiled(&j, &o, 1);
	*run_s = j.run_s;
	struct array *got = j.res;
	j.res = want;
	if (!e)
		e = run_oracle(&j, &o);
	for (int i = 0; i < nres && !e; i++) {
		struct npy all = {.kind = 'f', .item = 4, .rank = want[i].rank, .p = want[i].p, .bytes = want[i].bytes};
		memcpy(all.dim, want[i].dim, sizeof all.dim);
		struct verdict v = array_compare(&got[i], &all, NULL, 1e-4, 0);
		if (!v.ok)
			e = ERR(INTERNAL, "result %d is wrong by %.1e of its size", i, v.error);
	}
	arrays_free(j.arg, j.narg);
	arrays_free(got, nres);
	arrays_free(arg, narg);
	arrays_free(want, nres);
	ir_module_free(j.m);
	return e;
}

static struct err *run(char **file, int nfile, int *status)
{
	struct job j = {.path = file[0]};
	enum lower_tier t;
	if ((tol || atol_) && !check_path)
		return ERR(INVALID, "option '%s' is for --check, which is not given", tol ? "tol" : "atol");
	TRY(arg_tier(tier, &t));
	TRY(read_job(&j, &j.m));
	struct err *e = work(&j, status);
	arrays_free(j.arg, j.narg);
	arrays_free(j.res, j.nres);
	ir_module_free(j.m);
	return e;
}

const struct command cmd_run = {"run", "FILE [options]", "run a program and show or compare its results", opts, NELEM(opts), 1, 1, run};
