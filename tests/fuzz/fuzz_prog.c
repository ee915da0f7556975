/* libFuzzer target: the binary and the text form of a program.  The first byte chooses; binary input gets a
 * header with a checksum that fits, so that the fuzzer reaches what is behind it. */
#include <stdint.h>
#include <stdlib.h>

#include "prog/prog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use(struct prog *p)
{
	struct str a = {0}, b = {0};
	struct prog *q;
	prog_print(&a, p);
	prog_save(&b, p);
	err_free(prog_check(p));
	struct err *e = prog_load(b.p, b.n, &q);
	if (e)
		abort();
	prog_free(q);
	e = prog_parse(a.p, a.n, &q);
	if (e)
		abort();
	struct str c = {0};
	prog_print(&c, q);
	if (c.n != a.n || memcmp(a.p, c.p, a.n) != 0)
		abort();
	prog_free(q);
	str_free(&a);
	str_free(&b);
	str_free(&c);
	prog_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct prog *p = NULL;
	if (n < 1)
		return 0;
	struct err *e;
	if (data[0] & 1) {
		e = prog_parse((const char *)data + 1, n - 1, &p);
	} else {
		struct str s = {0};
		struct prog *none = prog_new();
		prog_save(&s, none);      /* for its head */
		prog_free(none);
		uint32_t version;
		memcpy(&version, s.p + 8, 4);
		uint64_t len = n - 1, hash = hash_bytes(data + 1, n - 1, version);
		memcpy(s.p + 16, &len, 8);
		memcpy(s.p + 24, &hash, 8);
		s.n = 32;
		str_addn(&s, (const char *)data + 1, n - 1);
		e = prog_load(s.p, s.n, &p);
		str_free(&s);
	}
	err_free(e);
	if (p)
		use(p);
	return 0;
}
