/* The loader of objects, and the cache on disk: a second process runs generated code without LLVM. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include "gen_run.h"
#include <dirent.h>
#include <pthread.h>

static struct err *compile(struct arena *a, int64_t n, struct gen_out *o)
{
	struct ir_module *m = ir_module_new();
	struct ir_fn *fn = ir_fn_new(m, "f");
	ir_type t = ir_tensor(m, DT_f32, 1, &n);
	ir_val x = ir_param(fn, t);
	struct ir_b b = { m, fn, 0 };
	ir_result(fn, ir_bin(&b, ELEM_remainder, ir_un(&b, ELEM_sine, x), ir_const_f(&b, t, 0.25)));
	struct err *e = gen_group(m, fn, NULL, o);
	ir_module_free(m);
	return e;
}

static bool has_llvm(void)
{
	struct str s = { 0 };
	struct err *e = str_read_file(&s, "/proc/self/maps");
	bool yes = e || strstr(s.p, "librondo_gen.so");
	err_free(e);
	str_free(&s);
	return yes;
}

static bool use(const struct gen_out *o, int64_t n)
{
	struct rt_code *c;
	struct err *e = rt_code_load(o->obj, o->nobj, &c);
	if (e)
		return false;
	float *x = malloc((size_t)n * 4), *y = malloc((size_t)n * 4);
	for (int64_t i = 0; i < n; i++)
		x[i] = (float)i * 1000;
	char *ptr[2] = { (char *)x, (char *)y };
	((prog_code_fn *)(uintptr_t)rt_code_symbol(c, o->symbol))(ptr, 0, o->tiles);
	bool ok = rt_code_symbol(c, "nothing") == NULL;
	for (int64_t i = 0; i < n; i++)
		ok &= fabsf(y[i] - fmodf(sinf(x[i]), 0.25f)) < 1e-5f || fabsf(fabsf(y[i] - fmodf(sinf(x[i]), 0.25f)) - 0.25f) < 1e-5f;
	free(x);
	free(y);
	rt_code_free(c);
	return ok;
}

static int in_child(int (*f)(void))
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0)
		leave(f());
	int st = 0;
	waitpid(pid, &st, 0);
	return WIFEXITED(st) ? WEXITSTATUS(st) : 99;
}

static int build_and_use(void)
{
	struct arena a;
	arena_init(&a);
	struct gen_out o;
	bool good = !compile(&a, 100, &o) && use(&o, 100);
	arena_fini(&a);
	return good ? has_llvm() : 2;
}

static void second_process(void **state)
{
	char dir[] = "/tmp/rondo-gen-XXXXXX";
	assert_non_null(mkdtemp(dir));
	char sub[64];
	snprintf(sub, sizeof sub, "%s/a/b", dir);
	setenv("RONDO_CACHE", sub, 1);
	assert_int_equal(in_child(build_and_use), 1);
	assert_int_equal(in_child(build_and_use), 0);
	/* a damaged file is made anew */
	DIR *d = opendir(sub);
	struct dirent *f;
	while ((f = readdir(d)))
		if (f->d_name[0] == 'g') {
			char path[400];
			snprintf(path, sizeof path, "%s/%s", sub, f->d_name);
			FILE *w = fopen(path, "r+");
			fseek(w, -9, SEEK_END);
			fputc(fgetc(w) ^ 0xff, w);
			fclose(w);
		}
	closedir(d);
	assert_int_equal(in_child(build_and_use), 1);
	d = opendir(sub);
	while ((f = readdir(d)))
		if (f->d_name[0] == 'g') {
			char path[400];
			snprintf(path, sizeof path, "%s/%s", sub, f->d_name);
			remove(path);
		}
	closedir(d);
	remove(sub);
	snprintf(sub, sizeof sub, "%s/a", dir);
	remove(sub);
	remove(dir);
}

/* Any damage is an error or a usable mapping, never a crash of the loader. */
static void damaged(void **state)
{
	setenv("RONDO_CACHE", "", 1);
	struct arena a;
	arena_init(&a);
	struct gen_out o;
	struct err *e = compile(&a, 100, &o);
	assert_null(e);
	assert_true(use(&o, 100));
	struct rt_code *c;
	for (size_t n = 0; n < o.nobj; n += 1 + n / 16) {
		char *p = malloc(n + 1);
		memcpy(p, o.obj, n);
		e = rt_code_load(p, n, &c);
		assert_non_null(e);
		assert_null(c);
		err_free(e);
		free(p);
	}
	char *p = malloc(o.nobj);
	for (int i = 0; i < 4000; i++) {
		memcpy(p, o.obj, o.nobj);
		for (int k = 0; k <= i % 4; k++)
			p[pick((int)o.nobj)] ^= (char)(1 << pick(8));
		e = rt_code_load(p, o.nobj, &c);
		err_free(e);
		rt_code_free(c);
	}
	free(p);
	rt_code_free(NULL);
	arena_fini(&a);
}

static void *compile_some(void *arg)
{
	for (int i = 0; i < 3; i++) {
		struct arena a;
		arena_init(&a);
		struct gen_out o;
		int64_t n = 50 + (i + (int)(intptr_t)arg) % 4;
		struct err *e = compile(&a, n, &o);
		if (e || !use(&o, n))
			return "failed";
		arena_fini(&a);
	}
	return NULL;
}

static void threads(void **state)
{
	pthread_t t[4];
	for (intptr_t i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, compile_some, (void *)i), 0);
	for (int i = 0; i < 4; i++) {
		void *r;
		pthread_join(t[i], &r);
		assert_null(r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(second_process), cmocka_unit_test(damaged), cmocka_unit_test(threads) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
