/* One element type: the rows of its .def file as functions over strips, then as a table.  TNAME and the
 * macros the rows use are set by isa.h; TNAME and the integers' macros are gone afterwards. */

#if defined(SET_INT)
#define ROWS "int.def"
#elif defined(SET_PRED)
#define ROWS "pred.def"
#else
#define ROWS "float.def"
#endif

#define OP1(fn, R, e) static void FN(fn)(ARGS) { (void)b_, (void)c_; const T *a = a_; R *o = out; \
	EACH { UNUSED T x = a[i]; o[i] = (R)(e); } }
#define OP2(fn, R, e) static void FN(fn)(ARGS) { (void)c_; const T *a = a_, *b = b_; R *o = out; \
	EACH { T x = a[i], y = b[i]; o[i] = (R)(e); } }
#define OP3(fn, R, e) static void FN(fn)(ARGS) { const T *a = a_, *b = b_, *c = c_; R *o = out; \
	EACH { T x = a[i], y = b[i], z = c[i]; o[i] = (R)(e); } }
#define OPSEL(fn) static void FN(fn)(ARGS) { const uint8_t *a = a_; const T *b = b_, *c = c_; T *o = out; \
	EACH { T x = b[i], y = c[i]; o[i] = a[i] ? x : y; } }
#define SAME(fn, as)
/* A block with elements outside the fast range is done fast all the same, then those are done over, so
 * that no element's result depends on its neighbours. */
#define NEAR1(fn, fast, slow, ok) static void FN(fn)(ARGS) { (void)b_, (void)c_; const T *a = a_; T *o = out, keep[256]; \
	for (int64_t n1 = n, n0 = 0; n0 < n1; n0 += n, a += n, o += n) {                                             \
		int bad = 0;                                                                                             \
		n = MIN(n1 - n0, 256);                                                                                   \
		for (int64_t i = 0; i < n; i++) { T x = a[i]; bad |= !(ok); }                                            \
		if (bad) memcpy(keep, a, (size_t)n * sizeof(T));                                                         \
		EACH { T x = a[i]; o[i] = (fast); }                                                                      \
		if (bad) for (int64_t i = 0; i < n; i++) { T x = keep[i]; if (!(ok)) o[i] = (slow); } } }
#define NEAR2(fn, fast, slow, ok) static void FN(fn)(ARGS) { (void)c_; const T *a = a_, *b = b_; T *o = out, keep[2][256]; \
	for (int64_t n1 = n, n0 = 0; n0 < n1; n0 += n, a += n, b += n, o += n) {                                     \
		int bad = 0;                                                                                             \
		n = MIN(n1 - n0, 256);                                                                                   \
		for (int64_t i = 0; i < n; i++) { T x = a[i], y = b[i]; bad |= !(ok); }                                  \
		if (bad) { memcpy(keep[0], a, (size_t)n * sizeof(T)); memcpy(keep[1], b, (size_t)n * sizeof(T)); }       \
		EACH { T x = a[i], y = b[i]; o[i] = (fast); }                                                            \
		if (bad) for (int64_t i = 0; i < n; i++) { T x = keep[0][i], y = keep[1][i]; if (!(ok)) o[i] = (slow); } } }
#include ROWS
#undef OP1
#undef OP2
#undef OP3
#undef OPSEL
#undef SAME
#undef NEAR1
#undef NEAR2

#define OP1(fn, R, e) [ELEM_##fn] = FN(fn),
#define OP2(fn, R, e) [ELEM_##fn] = FN(fn),
#define OP3(fn, R, e) [ELEM_##fn] = FN(fn),
#define OPSEL(fn) [ELEM_##fn] = FN(fn),
#define SAME(fn, as) [ELEM_##fn] = FN(as),
#define NEAR1(fn, fast, slow, ok) [ELEM_##fn] = FN(fn),
#define NEAR2(fn, fast, slow, ok) [ELEM_##fn] = FN(fn),
static kern_strip *const FN(table)[ELEM_COUNT] = {
#include ROWS
};
#undef OP1
#undef OP2
#undef OP3
#undef OPSEL
#undef SAME
#undef NEAR1
#undef NEAR2

#undef ROWS
#undef TNAME
#undef T
#ifdef SET_INT
#undef S
#undef U
#undef W
#undef BITS
#undef SIGNED
#endif
