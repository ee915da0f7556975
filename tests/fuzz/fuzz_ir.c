/* libFuzzer target: the text of a module.  What parses must print, and come back from that text. */
#include <stdint.h>
#include <stdlib.h>

#include "ir/ir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct ir_module *m = NULL, *back = NULL;
	struct str a = {0}, b = {0};
	struct err *e = ir_parse((const char *)data, n, &m);
	if (e) {
		err_free(e);
		return 0;
	}
	ir_print(&a, m);
	e = ir_parse(a.p, a.n, &back);
	if (e) {
		fprintf(stderr, "%s\n%s", e->msg, a.p);
		abort();
	}
	ir_print(&b, back);
	if (a.n != b.n || memcmp(a.p, b.p, a.n) != 0) {
		fprintf(stderr, "%s\n%s", a.p, b.p);
		abort();
	}
	/* the builder copes with whatever verifies */
	ir_rebuild(m, ir_main(m));
	str_free(&b);
	ir_print_canonical(&b, m, ir_main(m));
	ir_module_free(m);
	ir_module_free(back);
	str_free(&a);
	str_free(&b);
	return 0;
}
