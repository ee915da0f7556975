/* libFuzzer target: StableHLO bytecode.  What is read must verify, print, and come back from its text. */
#include <stdint.h>
#include <stdlib.h>

#include "hlo/hlo.h"
#include "ir/ir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct ir_module *m = NULL, *back = NULL;
	struct str a = {0}, b = {0}, c = {0};
	struct err *e = hlo_read(data, n, &m);
	if (!e) {
		e = ir_verify(m);
		if (e) {
			fprintf(stderr, "%s\n", e->msg);
			abort();
		}
		ir_print(&a, m);
		if (!memchr(a.p, 0, a.n) && !(e = ir_parse(a.p, a.n, &back))) {
			ir_print(&b, back);
			if (a.n != b.n || memcmp(a.p, b.p, a.n) != 0)
				abort();
			ir_print_canonical(&c, m, ir_main(m));
		} else if (e) {
			fprintf(stderr, "%s\n%s", e->msg, a.p);
			abort();
		}
	}
	err_free(e);
	ir_module_free(m);
	ir_module_free(back);
	str_free(&a);
	str_free(&b);
	str_free(&c);
	return 0;
}
