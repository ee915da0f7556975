/* Inside hlo: the program as it lies on the wire, and the state of its translation.
 *
 * Two stages.  wire.c turns the IR section into flat arrays: operations in pre-order (an operation is
 * followed by those of its regions), values numbered over the whole file in the order of their
 * definition, so that "defined outside region r" is a comparison.  Attributes, types and locations stay
 * bytes until someone asks.  read.c then has region.c walk the operations of main, inlining what is called, and
 * op.c, expand.c, custom.c and manual.c give the ir of each operation (emit.c).
 *
 * Everything that comes from the file is checked where it is read: an index against its table, a length
 * against what is left.  Reading goes through a cursor that remembers its first failure and then
 * gives zeros, so loops over counts only have to test it. */
#ifndef RONDO_HLO_WIRE_H
#define RONDO_HLO_WIRE_H

#include "../base/base.h"
#include "../ir/ir.h"

enum dialect { D_BUILTIN, D_VHLO, D_SDY, D_STABLEHLO, D_OTHER };    /* stablehlo: tokens beside sdy ops */

/* Bytes [pos, end) of the file. */
struct cur { const uint8_t *p; size_t pos, end; bool bad; size_t bad_at; };

struct span { uint32_t at, n; };                                    /* bytes of the file */
struct entry { uint32_t at, n; uint8_t dialect; bool custom; };     /* an attribute or a type */

enum wkind { W_UNKNOWN, W_OPEN, W_TENSOR, W_ELEMENT, W_FUNCTION, W_TUPLE, W_INDEX, W_NONE, W_TF32 };
/* A type, once decoded. */
struct wtype {
	uint8_t kind;
	uint8_t dtype;               /* W_ELEMENT */
	ir_type t;                   /* W_TENSOR; W_ELEMENT: token only */
	uint32_t nin, nout;          /* function: parameters, results; tuple: nin members */
	uint32_t *list;              /* nin + nout type indices */
	uint32_t leaves;             /* values it flattens to */
};

struct hlo;
struct wop;
typedef struct err *conv_fn(struct hlo *h, const struct wop *o);

/* What row->kind says if row->conv is NULL: region.c and read.c handle it. */
enum { ROW_CALL = 1, ROW_COMPOSITE, ROW_ASYNC, ROW_RETURN, ROW_FUNC, ROW_MODULE, ROW_MESH };

/* A row of the table of operations. */
struct op_row {
	const char *name;            /* without version; with it where versions differ */
	conv_fn *conv;
	uint16_t kind;               /* enum ir_kind, for conv functions that serve several; or ROW_* */
	int8_t nprop;                /* properties on the wire */
	int8_t nin, nout, nregion;   /* -1: any */
	const char *words;           /* properties that are the attributes, for w_props */
};

struct opname { uint8_t dialect; struct span text; const struct op_row *row; };    /* row: hlo_read looks it up */

struct wop {
	uint32_t name;               /* index into opname */
	uint32_t loc, dict, prop;    /* dict, prop: index + 1, 0 = none */
	uint32_t nin, in;            /* values ref[in ..) */
	uint32_t nout, out;          /* values out .. */
	uint32_t nregion, region;
	uint32_t end;                /* index after the operations of its regions */
	uint32_t at;                 /* offset in the file */
};

struct wregion {
	uint32_t first, end;         /* operations, in pre-order */
	uint32_t narg, arg;          /* block arguments are values arg .. */
	uint32_t loc;                /* their locations are hlo->argloc[loc ..), attributes + 1; 0 = none */
	bool isolated;
};

enum { F_UNSEEN, F_OPEN, F_DONE };
struct wfunc {
	uint32_t name;               /* attribute index of the name */
	uint32_t op, type, arg_attrs, res_attrs;
	struct span text;
	bool is_public, keep;        /* keep: called, not inlined */
	bool active;                 /* being inlined */
	uint8_t seen;
	uint64_t size, count;        /* operations once inlined; copies if everything is inlined */
	ir_fnid fn;                  /* if kept and done */
	uint32_t ncall, call;        /* callees: hlo->callee[call ..) */
};

/* Parameter param of fn stands for value from of up, the function around it. */
struct capture { const struct ir_fn *fn, *up; ir_val param, from; };

/* vm[value]: the ir value, or TUPLE | index into tuple (count, values). */
#define TUPLE 0x80000000u

struct hlo {
	const uint8_t *p;
	size_t n;
	int part_of;                 /* partitions of the program that this is a device's part of; 0: of none */
	struct arena a;
	uint32_t nstr; struct span *str;
	uint32_t nattr, ntype; struct entry *attr, *type;
	struct wtype *wt;
	ir_loc *loc;                 /* of a location attribute, + 1; 0 = not decoded */
	ir_shard *shard;             /* of a sharding attribute, + 1 */
	ir_blob *blob;               /* of a constant's value; 0 = not made: copies of a constant share their bytes */
	uint32_t nname; struct opname *opname;
	uint32_t nprop; struct span *prop;
	uint8_t *dialect; uint32_t ndialect;

	ARR(struct wop) op;
	ARR(uint32_t) ref;
	ARR(struct wregion) region;
	ARR(uint32_t) argloc;
	ARR(uint32_t) vtype;         /* type index of each value; value 0 is unused */
	ARR(uint32_t) scope;         /* values that are visible while operations are read */
	int type_depth;

	ARR(struct wfunc) func;
	struct map func_map;
	ARR(uint32_t) callee;
	struct map mesh_map;

	struct ir_module *m;
	struct ir_b b;               /* where operations go */
	uint32_t *vm;
	ARR(uint32_t) tuple;
	ARR(struct capture) captured;
	ARR(int64_t) word;
	int depth;                   /* regions being translated, one in the other */
	bool reducer;                /* inside the region of a reduction or comparison */
	uint64_t emitted;
	struct wop *cur;             /* operation being translated, for messages */
};

enum { MAX_DEPTH = 128 };

/* --- wire.c ------------------------------------------------------------ */

struct err *wire_read(struct hlo *h);      /* fills the tables and the flat arrays */
void wire_free(struct hlo *h);

struct cur cur_of(const struct hlo *h, size_t at, size_t n);
uint64_t cur_varint(struct cur *c);
int64_t cur_svarint(struct cur *c);
uint8_t cur_byte(struct cur *c);
uint32_t cur_index(struct cur *c, uint64_t limit);     /* a varint below limit; fails the cursor if not */
uint32_t cur_count(struct cur *c);                     /* a varint not above the bytes that are left */
struct err *cur_err(const struct cur *c, const char *what);

struct err *bad_at(size_t at, const char *fmt, ...) PRINTF(2, 3);
/* Of the operation being translated. */
struct err *bad_op(const struct hlo *h, const char *fmt, ...) PRINTF(2, 3);
struct err *no_op(const struct hlo *h, const char *fmt, ...) PRINTF(2, 3);     /* UNIMPLEMENTED */

const char *span_text(struct hlo *h, struct span s);   /* NUL-terminated copy in the arena */
ir_str span_intern(struct hlo *h, struct span s);      /* up to a zero byte: names are text */
bool span_is(const struct hlo *h, struct span s, const char *text);
const char *op_name(struct hlo *h, const struct wop *o);   /* "dialect.name" */

struct err *type_get(struct hlo *h, uint32_t type, const struct wtype **out);
/* The ir type of a tensor or token. */
struct err *type_tensor(struct hlo *h, uint32_t type, ir_type *out);

/* The ir type with this element type and extents, refusing what is too large. */
struct err *type_make(struct hlo *h, size_t at, enum dtype dt, int rank, const int64_t *dim, ir_type *out);

/* Attributes, by index.  All give ERR_INVALID if it is not of that kind. */
struct err *attr_open(struct hlo *h, uint32_t attr, struct cur *c, int *dialect, int *code);
struct err *attr_int(struct hlo *h, uint32_t attr, int64_t *out);      /* integer, boolean or enumerator */
struct err *attr_float(struct hlo *h, uint32_t attr, double *out);
struct err *attr_str(struct hlo *h, uint32_t attr, struct span *out);  /* string or symbol */
struct err *attr_list(struct hlo *h, uint32_t attr, uint32_t *n, uint32_t **out);     /* attribute indices, in the arena */
struct err *attr_dict(struct hlo *h, uint32_t attr, uint32_t *n, uint32_t **out);     /* 2n: name, value */
/* An integer tensor, or a list of integers: n elements, in the arena.  A tensor's extents if rank is asked for. */
struct err *attr_ints(struct hlo *h, uint32_t attr, int *n, int64_t **out);
struct err *attr_ints2(struct hlo *h, uint32_t attr, int *n, int64_t **out, int *rank, int64_t dim[2]);
struct err *attr_type(struct hlo *h, uint32_t attr, uint32_t *type);
/* A dense tensor: its ir type, the bytes as they stand (elements, or one if splat). */
struct err *attr_tensor(struct hlo *h, uint32_t attr, ir_type *t, const uint8_t **p, size_t *n);
ir_loc loc_get(struct hlo *h, uint32_t attr);

/* Properties of o: row->nprop attribute indices. */
struct err *op_props(struct hlo *h, const struct wop *o, uint32_t *out);
/* The value of a discardable attribute of o; *out = UINT32_MAX if it has none of that name. */
struct err *op_discardable(struct hlo *h, const struct wop *o, const char *name, uint32_t *out);

/* --- shard.c ----------------------------------------------------------- */

struct err *mesh_add(struct hlo *h, const struct wop *o);
struct err *shard_get(struct hlo *h, uint32_t attr, ir_shard *out);
struct err *shard_per_value(struct hlo *h, uint32_t attr, uint32_t *n, ir_shard **out);
/* A mesh by name, or one of sdy that is written out: its index in h->m->mesh. */
struct err *mesh_find(struct hlo *h, uint32_t attr, uint32_t *out);
bool shard_says_nothing(const struct hlo *h, ir_shard s);    /* all dimensions open, nothing replicated or partial */
struct err *shard_axes(struct hlo *h, uint32_t attr, uint32_t *n, ir_str **out);     /* the names in a list of manual axes */
int mesh_axis(const struct ir_mesh *m, ir_str name);         /* the number of an axis; -1: none */

/* --- emit.c ------------------------------------------------------------ */

/* Operands of o, tuples flattened (n, in the arena). */
struct err *op_ins(struct hlo *h, const struct wop *o, uint32_t *n, ir_val **out);
/* The same, exactly n of them. */
struct err *op_ins_n(struct hlo *h, const struct wop *o, uint32_t n, ir_val *out);
/* ir types of o's results, tuples flattened. */
struct err *op_outs(struct hlo *h, const struct wop *o, uint32_t *n, ir_type **out);
struct err *op_out1(struct hlo *h, const struct wop *o, ir_type *out);
/* The same of the values first .. first + count - 1 of the file. */
struct err *vals_types(struct hlo *h, uint32_t first, uint32_t count, uint32_t *n, ir_type **out);
/* These are the n values v, whose types they must have. */
struct err *vals_bind(struct hlo *h, uint32_t first, uint32_t count, uint32_t n, const ir_val *v);
/* Results of o are the n values v. */
struct err *op_bind(struct hlo *h, const struct wop *o, uint32_t n, const ir_val *v);
/* Append an operation, check it, make its results those of o. */
struct err *op_emit(struct hlo *h, const struct wop *o, enum ir_kind k, uint32_t nin, const ir_val *in,
                    uint32_t nattr, const int64_t *attr);
/* The same with o's operands and the attribute words in h->word. */
struct err *op_emit_words(struct hlo *h, const struct wop *o, enum ir_kind k);
/* The results of o are its operands. */
conv_fn op_same;
/* The type a reduction accumulates in may be wider than its operands: *v is converted to it. */
void op_widen(struct hlo *h, ir_val *v, ir_type result);
/* Operands of o, which has per of them for each result, so widened: operand i goes with result i % (number of results). */
struct err *op_ins_widened(struct hlo *h, const struct wop *o, uint32_t per, uint32_t *n, ir_val **in);
/* As op_emit, with these result types; the first result to out, nothing bound. */
struct err *op_emit_t(struct hlo *h, enum ir_kind k, uint32_t nin, const ir_val *in, uint32_t nout, const ir_type *t,
                      uint32_t nattr, const int64_t *attr, ir_val *out);

/* A product, whose words are in h->word: of complex numbers if an operand or the result is, of which a real result is the real part. */
struct err *op_dot(struct hlo *h, const struct wop *o);

/* Attribute words of the operation being made, in h->word: begin after its regions are translated. */
void w_begin(struct hlo *h);
void w_int(struct hlo *h, int64_t v);
void w_list(struct hlo *h, int n, const int64_t *v);           /* count, integers */
struct err *w_attr_int(struct hlo *h, uint32_t attr);          /* the same of an attribute */
struct err *w_attr_list(struct hlo *h, uint32_t attr);
/* Properties p by number: i integer, l list, c the two columns of a list of pairs, p precision, d the list of two
 * integers and a list that follow each other: "l1 l0 i2". */
struct err *w_props(struct hlo *h, const uint32_t *p, const char *words);

/* --- region.c ---------------------------------------------------------- */

/* Values from outside that the regions of o use: in the arena, ascending. */
struct err *op_captures(struct hlo *h, const struct wop *o, uint32_t *n, uint32_t **out);
/* Those of cap that a region takes as operands, after its own, to out (room for ncap); returns how many.  It has constants of its own. */
uint32_t region_operands(const struct hlo *h, uint32_t ncap, const uint32_t *cap, ir_val *out);
/* Translate a region as a function.  Parameters: an i32 if iter, then the block's, then one for each of the
 * ncap captured values; with constants, captured constants are copied into it instead. */
struct err *region_fn(struct hlo *h, uint32_t region, const char *name, bool iter, uint32_t ncap, const uint32_t *cap,
                      bool reducer, ir_fnid *out);
/* The region of a reduction: its redop, or RED_fn and its function. */
struct err *region_reducer(struct hlo *h, const struct wop *o, uint32_t k, const char *name, enum redop *r, ir_fnid *f);
struct err *func_find(struct hlo *h, uint32_t attr, struct wfunc **out);
const struct wregion *func_body(const struct hlo *h, const struct wfunc *f);
/* The function that o calls, NULL if it calls none (a composite may be an operation). */
struct err *func_callee(struct hlo *h, const struct wop *o, struct wfunc **out);
/* A function as ir, for comparators that are named. */
struct err *func_fn(struct hlo *h, struct wfunc *f, bool reducer, ir_fnid *out);
/* The op that makes *v in *fn, through captures into the functions around: then these are *fn and *v.  NULL: a parameter. */
const struct ir_op *value_origin(const struct hlo *h, const struct ir_fn **fn, ir_val *v);

/* --- collective.c --------------------------------------------------------- */

/* rows groups of cols partitions each, -1 where there is none.  With one replica, a collective over replicas (no channel) leaves its
 * operand as it is (*alone), and one over replicas and all their partitions (!global) has a single group. */
struct err *group_make(struct hlo *h, int rows, int cols, int64_t *id, int64_t channel, bool global, ir_group *g, bool *alone);
struct err *all_to_all(struct hlo *h, const struct wop *o, int64_t split, int64_t concat, int64_t count, ir_group g);
struct err *ragged_all_to_all(struct hlo *h, const struct wop *o, uint32_t config);     /* config: a dictionary */
struct err *permute(struct hlo *h, const struct wop *o, int64_t channel, int n, const int64_t *pairs);    /* pairs: n numbers */
conv_fn conv_reducing, conv_cross_replica_sum, conv_all_gather, conv_all_to_all, conv_collective_permute, conv_collective_broadcast,
	conv_collective_reduce;

/* --- async.c: one half of a collective, as a custom call ------------------- */

/* *done: the call is one.  called: the functions that it names. */
struct err *half_known(struct hlo *h, const struct wop *o, struct span target, uint32_t called, bool *done);

/* --- op.c -------------------------------------------------------------- */

const struct op_row *op_row_find(enum dialect d, const char *name, size_t n);

/* --- qr.c: Qr, or the product of its reflectors -------------------------- */

struct err *householder(struct hlo *h, const struct wop *o, bool product);

/* --- expand.c, custom.c, manual.c --------------------------------------- */

conv_fn conv_batch_norm_inference, conv_batch_norm_training, conv_batch_norm_grad, conv_map, conv_dot, conv_einsum,
	conv_unary_einsum, conv_broadcast, conv_torch_index_select, conv_tuple, conv_get_tuple_element, conv_get_dimension_size,
	conv_set_dimension_size, conv_dynamic_pad, conv_dynamic_reshape, conv_dynamic_iota, conv_dynamic_broadcast_in_dim,
	conv_dynamic_gather, conv_dynamic_conv, conv_real_dynamic_slice;
conv_fn conv_custom_call;
conv_fn conv_sharding_constraint, conv_sharding_group, conv_manual;
/* v, an integer tensor of this function known at compile time: its elements, in the arena; *n = -1 if not known. */
void const_ints(struct hlo *h, ir_val v, int *n, int64_t **out);
/* A composite that is an operation of ours: *done. */
struct err *composite_known(struct hlo *h, const struct wop *o, bool *done);

#endif
