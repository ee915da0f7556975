/* Lowering, shared between lower.c (commands), place.c (where values lie) and memory.c (offsets). */
#ifndef RONDO_PASS_LOWER_H
#define RONDO_PASS_LOWER_H

#include "passes.h"

struct frame;

/* Storage: the buffer of one or several values, live from command time first to last. */
struct store {
	uint32_t buf;            /* index into lw->buf */
	int first, last;
	int depth;               /* loops that were open when it was made */
	bool fixed;              /* read-only for this program: constants, arguments that are not donated */
	int donated_to;          /* argument: store of the output that takes its memory, -1 none */
	const struct frame *holder;   /* the value whose bytes it holds: frame and root */
	ir_val held;
	bool twin;               /* a second name of another store's buffer */
};

/* Where a value lies: base(store) + off + reg terms, element strides. */
struct place {
	int store;
	int64_t off;             /* bytes */
	int rank;
	enum dtype dtype;
	const int64_t *dim;      /* the type's */
	int64_t *stride;         /* elements, rank entries, owned by the arena */
	uint16_t reg[2];
	int64_t mul[2];
};

/* A function being lowered. */
struct frame {
	const struct ir_fn *fn;
	struct place **at;       /* per value; NULL = not made yet */
	ir_val *root;            /* per value: the value whose bytes it shows, through views */
	int *last;               /* per root: index of the last op that reads it; INT_MAX for results */
	struct place **target;   /* per value: where the result is wanted, NULL = anywhere */
	bool *steal;             /* per parameter: its storage may be overwritten after its last use */
	int stepping;            /* index of the op being lowered */
};

struct loop_frame { int start; ARR(int) extend; };

struct lw {
	const struct pass_opts *opts;
	struct arena *tmp;
	struct ir_module *m;
	struct prog *p;
	ARR(struct prog_buf) buf;
	ARR(struct prog_kern) kern;
	ARR(struct prog_opnd) opnd;
	ARR(uint32_t) sub;
	ARR(struct prog_block) block;
	ARR(struct prog_coll) coll;
	ARR(struct prog_custom) custom;
	ARR(struct prog_site) site;
	ARR(struct prog_table) table;
	ARR(struct prog_code) code;
	ARR(struct prog_group) group;
	ARR(struct store) store;
	ARR(char) data;
	ARR(struct loop_frame) loops;
	struct map site_map, code_map, const_map;
	struct { struct prog_cmd *p; size_t n, cap; } *cur;   /* block being filled */
	int now;
	int nreg;
	uint32_t site_now;
};
typedef struct { struct prog_cmd *p; size_t n, cap; } cmd_list;

/* --- place.c --- */
int pass_store_new(struct lw *w, enum prog_buf_kind kind, int64_t bytes, uint32_t index);
void pass_store_touch(struct lw *w, int store);                       /* read or written now */
struct place *pass_place_new(struct lw *w, int store, enum dtype dt, int rank, const int64_t *dim);    /* dense, off 0 */
struct place *pass_place_like(struct lw *w, const struct place *p);
bool pass_place_dense(const struct place *p);                         /* row-major without gaps; registers may be set */
int64_t pass_place_bytes(const struct place *p);
struct prog_opnd pass_place_opnd(struct lw *w, const struct place *p);
/* The view op o of operand place p as a place on the same storage; NULL if strides cannot say it. */
struct place *pass_place_view(struct lw *w, const struct ir_fn *fn, const struct ir_op *o, const struct place *p);
/* p with type dt, rank, dim by reshaping; NULL if strides cannot say it. */
struct place *pass_place_reshape(struct lw *w, const struct place *p, enum dtype dt, int rank, const int64_t *dim);

/* --- memory.c --- */
/* Offsets of the TEMP buffers in the program zone: two buffers that live at the same time do not
 * overlap.  Sets p->zone. */
void pass_memory_plan(struct lw *w);


#endif
