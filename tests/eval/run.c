/* Evaluates a program with the oracle: run PROGRAM.mlirbc ARGS RESULTS.  ARGS: the arguments' bytes one
 * after the other.  RESULTS: for each result a line "dtype dims..", then its bytes. */
#include <stdlib.h>

#include "eval/eval.h"
#include "hlo/hlo.h"

static int fail(struct err *e)
{
	fprintf(stderr, "%s\n", e->msg);
	return 1;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	struct str code = { 0 }, data = { 0 };
	struct ir_module *m = NULL;
	struct err *e = str_read_file(&code, argv[1]);
	if (!e)
		e = str_read_file(&data, argv[2]);
	if (!e)
		e = hlo_read(code.p, code.n, &m);
	if (e)
		return fail(e);
	const struct ir_fn *fn = ir_main(m);
	struct eval_array *a = mem_alloc(sizeof *a * (fn->nparam + 1)), *r = mem_alloc(sizeof *r * (fn->result.n + 1));
	size_t at = 0;
	for (uint32_t i = 0; i < fn->nparam; i++) {
		a[i].bytes = (size_t)ir_vtype(m, fn, 1 + i)->bytes;
		a[i].p = data.p + at;
		at += a[i].bytes;
	}
	if (at != data.n) {
		fprintf(stderr, "arguments have %zu bytes, the program wants %zu\n", data.n, at);
		return 1;
	}
	struct eval_opts o = { .ndev = 1 };
	double t = clock_s();
	e = eval_main(m, &o, a, r);
	if (e)
		return fail(e);
	t = clock_s() - t;
	FILE *f = fopen(argv[3], "wb");
	for (size_t i = 0; i < fn->result.n; i++) {
		fprintf(f, "%s", dtype_info[r[i].dtype].name);
		for (int d = 0; d < r[i].rank; d++)
			fprintf(f, " %lld", (long long)r[i].dim[d]);
		fprintf(f, "\n");
		fwrite(r[i].p, 1, r[i].bytes, f);
		eval_array_free(&r[i]);
	}
	fclose(f);
	printf("%.3f\n", t);
	free(a);
	free(r);
	ir_module_free(m);
	str_free(&code);
	str_free(&data);
	return 0;
}
