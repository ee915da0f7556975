/* The intermediate representation: arrays and 32-bit ids.
 *
 * A module owns everything (one arena); a function is a list of operations in
 * program order over values.  Regions are functions with explicit operands:
 * nothing is captured.  Types, shardings, groups, strings are interned per
 * module: equality is ==.  Passes annotate or rebuild: dead code is what a rebuild
 * does not copy, and functions that nobody holds any more are swept out.
 *
 * Text form, one op per line (docs/ir.md):
 *     %3 = dot %1, %2 lb=[] rb=[] lc=[1] rc=[0] ... : f32[8,128] @[{"x"},{}] loc("a.py":3)
 *
 * Not thread-safe: one module belongs to one compile. */
#ifndef RONDO_IR_H
#define RONDO_IR_H

#include "../base/base.h"

typedef uint32_t ir_val;     /* index into fn->val; 0 = none */
typedef uint32_t ir_type;    /* index into m->type; 0 = none */
typedef uint32_t ir_fnid;    /* index into m->fn; 0 = none, 1 = main */
typedef uint32_t ir_blob;    /* index into m->blob; 0 = none */
typedef uint32_t ir_str;     /* index into m->str; 0 = empty */
typedef uint32_t ir_group;   /* index into m->group; 0 = none */
typedef uint32_t ir_shard;   /* index into m->shard; 0 = none given (all open) */
typedef uint32_t ir_loc;     /* index into m->loc; 0 = unknown */

enum { IR_MAX_RANK = MAX_RANK };

enum ir_kind {
	IR_none,
#define OP(id, nin, nout, flags, axes, cost, attrs, meaning) IR_##id,
#include "ops.def"
	IR_COUNT
};

/* Names of attributes: AT_dims, AT_redop, .. */
enum ir_at {
#define ATTR(name) AT_##name,
#include "ops.def"
	AT_COUNT
};
extern const char *const ir_at_name[AT_COUNT];

/* Flags of an op kind. */
enum {
	IR_PURE = 1,       /* no effect: dead if unused, movable */
	IR_ELEM = 2,       /* a row of elem.def */
	IR_VIEW = 4,       /* result is the operand's bytes seen otherwise (or a broadcast) */
	IR_COLL = 8,       /* communicates: never shared, order kept */
	IR_EFFECT = 16,    /* order kept among effects, never dead */
	IR_BARRIER = 32,
	IR_CUSTOM = 64,    /* effect decided by its attribute */
};

struct ir_kind_info {
	const char *name;
	int nin, nout;           /* -1: any number */
	unsigned flags;
	struct { uint8_t name; char kind; } attr[16];    /* enum ir_at, kind as in ops.def; kind 0 ends */
	const char *meaning;
	int nattr;
};
const struct ir_kind_info *ir_info(enum ir_kind k);   /* thread-safe; tables built on first use */
int ir_kind_by_name(const char *name, size_t n);      /* 0 if unknown */
static inline bool ir_is_elem(enum ir_kind k) { return k >= 1 && k <= (int)ELEM_COUNT; }
static inline enum elem ir_elem(enum ir_kind k) { return (enum elem)(k - 1); }
static inline enum ir_kind ir_of_elem(enum elem e) { return (enum ir_kind)(e + 1); }

/* A type: element type and extents.  A token has dtype token and rank 0. */
struct ir_type_info {
	uint8_t dtype;           /* enum dtype */
	uint8_t rank;
	const int64_t *dim;      /* elements */
	int64_t count;           /* product of dim */
	int64_t bytes;           /* count * stored bytes of an element */
};

/* Role of an operand of loop (ir_loop_view gives the numbers that follow).  The body's parameters are: the iteration number (i32 scalar, from 0),
 * then one per operand that is carry, const or in, in order; its results are the next carries, then
 * the slices of the outs, in operand order.  The loop's results are the final carries, then the outs.
 * in and out stacks have the iteration as dimension 0, of extent >= trip; the body sees the slice
 * without that dimension.  _REV: iteration i uses slice trip-1-i.  An out operand is the stack's
 * initial value (rows that are not written keep it).  A loop with trip -1 has only carry and const
 * operands; its cond takes all operands in order and gives a pred. */
enum ir_role { ROLE_CARRY, ROLE_CONST, ROLE_IN, ROLE_IN_REV, ROLE_OUT, ROLE_OUT_REV };
extern const char *const ir_role_name[6];    /* as in the text: carry, const, in, in_rev, out, out_rev */
static inline bool ir_role_is_in(enum ir_role r) { return r == ROLE_IN || r == ROLE_IN_REV; }
static inline bool ir_role_is_out(enum ir_role r) { return r == ROLE_OUT || r == ROLE_OUT_REV; }
static inline bool ir_role_is_stack(enum ir_role r) { return r >= ROLE_IN; }
static inline bool ir_role_is_reversed(enum ir_role r) { return r == ROLE_IN_REV || r == ROLE_OUT_REV; }

struct ir_op {
	uint16_t kind;           /* enum ir_kind */
	uint32_t nin, nout;
	uint32_t in;             /* operands are fn->ref.p[in .. in+nin) */
	ir_val out;              /* results are out .. out+nout-1 */
	uint32_t attr;           /* attributes are words fn->attr.p[attr ..): scalar = 1 word, list = count, items */
	ir_loc loc;
};

struct ir_value {
	ir_type type;
	uint32_t def;            /* index of the op that makes it; IR_PARAM for a parameter */
	uint32_t use;            /* the newest operand that reads it (ir_use_first) */
	uint32_t nuse;           /* operands that read it, and results of the function that it is */
};
/* Beside each entry of fn->ref: whose operand it is, and the next older reader of the same value. */
struct ir_use { uint32_t op, next; };
#define IR_PARAM UINT32_MAX

struct ir_fn {
	ir_fnid id;
	ir_str name;
	ARR(struct ir_op) op;
	ARR(struct ir_value) val;    /* val.p[0] unused; parameters are 1 .. nparam */
	ARR(ir_val) ref;
	ARR(struct ir_use) use;      /* beside ref */
	ARR(int64_t) attr;
	uint32_t nparam;
	ARR(ir_val) result;
	ARR(ir_shard) shard;         /* beside val: what is said of a value; as long as the last one of which something is */
};

/* What main's parameters and results say about themselves. */
struct ir_arg {
	ir_shard shard;
	int32_t alias;           /* parameter: donated to this output, -1 if not */
	bool donor;              /* parameter: donated, any output may take it */
	ir_str memory_kind;
	ir_str layout;           /* how it lies in memory (base.h), or "auto": as the compiler likes it; empty: row-major */
	ir_str name;             /* what the program calls it: "params['w1']"; empty if nothing */
};

struct ir_mesh_axis { ir_str name; int64_t size; };
struct ir_mesh {
	ir_str name;
	int naxis;
	struct ir_mesh_axis *axis;
	int64_t ndev;            /* product of sizes; a maximal mesh has no axes and one id */
	int64_t *id;             /* device positions in mesh order; NULL = 0, 1, 2, .. */
};

/* (axis, pre, size): the middle factor of the axis split as [pre, size, rest]; the full axis has
 * pre 1 and its whole size. */
struct ir_axis_ref { uint16_t axis; int64_t pre, size; };
struct ir_dim_shard { int naxis; struct ir_axis_ref *axis; bool open; int priority; };
struct ir_shard_info {
	uint32_t mesh;           /* index into m->mesh */
	int rank;
	struct ir_dim_shard *dim;
	int nrepl; struct ir_axis_ref *repl;          /* explicitly replicated */
	int npart; struct ir_axis_ref *part;          /* partial over these ("unreduced"); by softmax: a value and the next one of its op together */
	enum redop part_op;
};

/* A partition of devices into groups.  Rows may differ in length; -1 pads.  A device in no row is
 * alone.  Positions are those of the program's device assignment. */
struct ir_group_info { int nrow, ncol; int64_t *id; };

/* more: another place, if one op has become of several; 0: none. */
struct ir_loc_info { ir_str file; int line; ir_str name; ir_loc more; };

struct ir_module {
	struct arena arena;
	ir_str name;
	int num_partitions, num_replicas;
	ARR(struct ir_fn *) fn;              /* fn.p[0] NULL; main is fn.p[1] */
	ARR(struct ir_type_info) type;
	ARR(struct ir_mesh) mesh;
	ARR(struct ir_shard_info) shard;
	ARR(struct ir_group_info) group;
	ARR(struct ir_loc_info) loc;
	struct ir_blob_info { const void *p; size_t n; } *blob;   /* contents are 16-byte aligned */
	size_t nblob, capblob;
	ARR(const char *) str;
	struct ir_arg *arg, *res;            /* of main: nparam, nresult entries */
	ARR(struct ir_blob_info) key;        /* ir_key */
	struct map type_map, str_map, shard_map, group_map, loc_map;
};

/* Dictionary blob (attribute kind D): the concatenation of entries
 *   u32 name length, name, u8 kind, u8 dtype, u16 0, u32 count, payload
 * kind 0: scalar of dtype (count 1); 1: array of dtype; 2: string (count bytes); 3: nested dictionary
 * (count bytes).  Little endian, no padding.  Entries are in order of name. */
struct ir_dict_it { const uint8_t *p, *end; const char *name; uint32_t name_n; uint8_t kind, dtype; uint32_t count; const uint8_t *data; };
bool ir_dict_next(struct ir_dict_it *it);     /* it->p, it->end set by the caller at first; false at the end or if malformed */

/* --- module.c ---------------------------------------------------------- */

struct ir_module *ir_module_new(void);                  /* owned */
void ir_module_free(struct ir_module *m);               /* NULL is fine */
ir_type ir_tensor(struct ir_module *m, enum dtype dt, int rank, const int64_t *dim);
ir_type ir_scalar(struct ir_module *m, enum dtype dt);
static inline const struct ir_type_info *ir_type_of(const struct ir_module *m, ir_type t) { return &m->type.p[t]; }
ir_str ir_intern(struct ir_module *m, const char *s, size_t n);
const char *ir_text(const struct ir_module *m, ir_str s);
ir_blob ir_blob_add(struct ir_module *m, const void *p, size_t n);      /* copies */
ir_shard ir_shard_add(struct ir_module *m, const struct ir_shard_info *s);   /* copies, interned */
/* An axis that s names twice, of which parts that it names overlap or are not cut at the same places; NULL: there is none. */
const char *ir_shard_twice(const struct ir_module *m, const struct ir_shard_info *s);
/* Two parts of one axis lie apart if one is within what the other leaves: the other's pre is a multiple of its pre * size. */
static inline bool ir_axes_overlap(struct ir_axis_ref a, struct ir_axis_ref b)
{
	return a.axis == b.axis && b.pre % (a.pre * a.size) && a.pre % (b.pre * b.size);
}
/* Each device becomes `by` of them, side by side: the last axis of every mesh is so much longer, and what is cut by it in so many more parts. */
void ir_mesh_widen(struct ir_module *m, int by);
ir_group ir_group_add(struct ir_module *m, int nrow, int ncol, const int64_t *id);
ir_loc ir_loc_add(struct ir_module *m, ir_str file, int line, ir_str name);
/* A new one for what is done for l and for all of `more`. */
ir_loc ir_loc_also(struct ir_module *m, ir_loc l, ir_loc more);
/* Files without their folders, and lines, as "train.py:7,9 model.py:3"; nothing if there is none. */
void ir_loc_lines(struct str *s, const struct ir_module *m, ir_loc l);
/* Of an op in a function that is called at outer: where it says no place of its own the call's, and its name within the call's, which
 * JAX leaves out in functions. */
ir_loc ir_loc_inside(struct ir_module *m, ir_loc inner, ir_loc outer);
int64_t ir_shard_parts(const struct ir_module *m, ir_shard s, int dim);   /* pieces dimension dim is cut into; 1 if s is 0 */
bool ir_shard_replicated(const struct ir_module *m, ir_shard s);          /* no axis of size > 1 anywhere */
/* Is a value partial by the joint reducer softmax (redop.def)?  It is one of two then, results of one op or parameters, o and behind it l,
 * with the same axes (ir_shard_pair). */
bool ir_shard_joint(const struct ir_module *m, ir_shard s);
bool ir_shard_pair(const struct ir_module *m, ir_shard o, ir_shard l);
/* Are o and l, floats, the two parts of such a value: has l o's leading dimensions? */
bool ir_is_pair(const struct ir_module *m, ir_type o, ir_type l);

/* A new function; parameters are added before the first op. */
struct ir_fn *ir_fn_new(struct ir_module *m, const char *name);
void ir_fn_drop(struct ir_module *m);                     /* the newest function goes; nobody holds it */
void ir_fn_free(struct ir_fn *fn);                        /* what it has beside itself, which is the module's; for who takes it out of m->fn */
/* How far a function has come, to go back to: what was emitted since is gone. */
struct ir_mark { size_t op, val, ref, attr; };
struct ir_mark ir_mark(const struct ir_fn *fn);
void ir_go_back(struct ir_fn *fn, struct ir_mark to);
ir_val ir_param(struct ir_fn *fn, ir_type t);
static inline struct ir_fn *ir_fn_of(const struct ir_module *m, ir_fnid f) { return m->fn.p[f]; }
static inline struct ir_fn *ir_main(const struct ir_module *m) { return m->fn.p[1]; }

/* --- access ------------------------------------------------------------ */

static inline ir_val ir_in(const struct ir_fn *fn, const struct ir_op *o, uint32_t i) { return fn->ref.p[o->in + i]; }
static inline const struct ir_type_info *ir_vtype(const struct ir_module *m, const struct ir_fn *fn, ir_val v)
{ return &m->type.p[fn->val.p[v].type]; }
/* The op that makes v, NULL for a parameter. */
static inline struct ir_op *ir_def(const struct ir_fn *fn, ir_val v)
{ return fn->val.p[v].def == IR_PARAM ? NULL : &fn->op.p[fn->val.p[v].def]; }
/* Operands that read v, the newest first: for (uint32_t u = ir_use_first(fn, v); u; u = ir_use_next(fn, u)) .. ir_use_op(fn, u).
 * Emitting keeps them.  Results of the function are not among them, but in nuse. */
static inline uint32_t ir_use_first(const struct ir_fn *fn, ir_val v) { return fn->val.p[v].use; }
static inline uint32_t ir_use_next(const struct ir_fn *fn, uint32_t u) { return fn->use.p[u - 1].next; }
static inline uint32_t ir_use_op(const struct ir_fn *fn, uint32_t u) { return fn->use.p[u - 1].op; }      /* index of the op */
static inline uint32_t ir_use_operand(const struct ir_fn *fn, uint32_t u) { return u - 1 - fn->op.p[ir_use_op(fn, u)].in; }
static inline ir_shard ir_shard_of(const struct ir_fn *fn, ir_val v) { return v < fn->shard.n ? fn->shard.p[v] : 0; }
void ir_shard_set(struct ir_fn *fn, ir_val v, ir_shard h);
/* Attribute a of o, which has one of that name. */
int64_t ir_attr(const struct ir_fn *fn, const struct ir_op *o, enum ir_at a);
const int64_t *ir_attrs(const struct ir_fn *fn, const struct ir_op *o, enum ir_at a, int *n);    /* a list */
static inline int64_t ir_attrs_n(const struct ir_fn *fn, const struct ir_op *o, enum ir_at a) { int n; ir_attrs(fn, o, a, &n); return n; }
bool ir_has_attr(enum ir_kind k, enum ir_at a);
/* For who treats all attributes alike: the values of the i-th (i < nattr), one value if it is no list. */
const int64_t *ir_attr_nth(const struct ir_fn *fn, const struct ir_op *o, int i, int *n);
uint32_t ir_attr_words(const struct ir_fn *fn, const struct ir_op *o);    /* words of all attributes */
/* A copy of them, n of them, for an op like o: it may be changed, at the place of attribute a (its value, or its number of
 * values and these). */
int64_t *ir_attr_copy(struct arena *a, const struct ir_fn *fn, const struct ir_op *o, uint32_t *n);
int64_t *ir_attr_word(enum ir_kind k, int64_t *words, enum ir_at a);
void ir_attr_set(struct ir_fn *fn, struct ir_op *o, enum ir_at a, int64_t v);    /* scalar, in place */
const void *ir_blob_data(const struct ir_module *m, ir_blob b, size_t *n);
/* What the process that wrote the program knows it by: addresses, which another process writes otherwise.  Ops have its number, and texts of
 * the module do not have it.  NULL: the module has no key of that number. */
const struct ir_blob_info *ir_key(const struct ir_module *m, int64_t number);
int64_t ir_key_add(struct ir_module *m, const void *p, size_t n);       /* copies */
/* v is a constant whose elements are all equal (splat or scalar): pointer to one element, else NULL. */
const void *ir_splat(const struct ir_module *m, const struct ir_fn *fn, ir_val v);
/* v is a constant or a chain of broadcast/reshape/convert of integers that gives one integer, which an int64_t holds: true. */
bool ir_const_int(const struct ir_module *m, const struct ir_fn *fn, ir_val v, int64_t *out);
/* Dimension d of the operand of o, a view that leaves it whole, as one of its result; -1: it is none by itself. */
int ir_view_dim(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, int d);
/* The view op o (broadcast, transpose, reverse, slice) in strides: its element at (i ..) is the operand's element at
 * *off + sum i * out[..], where the operand has strides in.  False: o is none of these. */
bool ir_view(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, const int64_t *in, int64_t *off, int64_t *out);

/* --- sweep.c ----------------------------------------------------------- */

/* Functions that main reaches, main too, held ones before who holds them; array owned by the arena. */
ir_fnid *ir_reachable(struct arena *a, const struct ir_module *m, int *n);
/* The others leave; those that stay move up, in order, and whoever holds them knows. */
void ir_sweep(struct ir_module *m);

/* --- import.c ---------------------------------------------------------- */

/* main of another module, which has no shardings in its ops any more, and the functions that it reaches become functions of `to`: that main's id. */
ir_fnid ir_import(struct ir_module *to, const struct ir_module *from);

/* --- build.c ----------------------------------------------------------- */

/* The builder.  Appends ops to fn; folds identities (reshape to the same type, convert to the same
 * type, transpose by iota, x+0 for integers, ...), never shares.  loc is given to each new op. */
struct ir_b { struct ir_module *m; struct ir_fn *fn; ir_loc loc; };

/* Append an op as it is.  attr: the words of all attributes.  Returns its first result, and fills
 * the others as the following ids.  t: result types. */
ir_val ir_emit_raw(struct ir_b *b, enum ir_kind k, uint32_t nin, const ir_val *in,
                   uint32_t nout, const ir_type *t, const int64_t *attr, uint32_t nattr);
/* The same with folding (one result only). */
ir_val ir_emit(struct ir_b *b, enum ir_kind k, uint32_t nin, const ir_val *in, ir_type t,
               const int64_t *attr, uint32_t nattr);
/* Copy op o of function from, with operands in: for rebuilding.  Returns the first result. */
ir_val ir_clone(struct ir_b *b, const struct ir_fn *from, const struct ir_op *o, const ir_val *in);

ir_val ir_un(struct ir_b *b, enum elem e, ir_val x);                 /* type of x, pred or real type by flag */
ir_val ir_bin(struct ir_b *b, enum elem e, ir_val x, ir_val y);
ir_val ir_select(struct ir_b *b, ir_val c, ir_val x, ir_val y);
ir_val ir_convert(struct ir_b *b, ir_val x, enum dtype dt);
ir_val ir_bitcast(struct ir_b *b, ir_val x, enum dtype dt);          /* dt as wide as x's */
ir_val ir_const(struct ir_b *b, ir_type t, const void *p, size_t n);   /* n = bytes of all, or of one element (splat) */
ir_val ir_const_i(struct ir_b *b, ir_type t, int64_t v);             /* splat, converted to t's dtype */
ir_val ir_const_f(struct ir_b *b, ir_type t, double v);
ir_val ir_iota(struct ir_b *b, ir_type t, int dim);
ir_val ir_broadcast(struct ir_b *b, ir_val x, ir_type t, const int64_t *dims);
ir_val ir_splat_of(struct ir_b *b, ir_val scalar, ir_type t);        /* broadcast of a rank-0 value; dtype of t must agree */
ir_val ir_reshape(struct ir_b *b, ir_val x, int rank, const int64_t *dim);
ir_val ir_transpose(struct ir_b *b, ir_val x, const int64_t *perm);
ir_val ir_slice(struct ir_b *b, ir_val x, const int64_t *start, const int64_t *limit, const int64_t *stride);
ir_val ir_reduce1(struct ir_b *b, enum redop r, ir_val x, ir_val init, int n, const int64_t *dims);
ir_val ir_dot(struct ir_b *b, ir_val x, ir_val y, enum dtype out, int nb, const int64_t *lb, const int64_t *rb,
              int nc, const int64_t *lc, const int64_t *rc);
ir_val ir_turned_dot(struct ir_b *b, ir_val dot, const int64_t *perm);    /* transpose(dot, perm) as a dot of its operands in the other order; 0: it is none */
void ir_result(struct ir_fn *fn, ir_val v);
/* Inline function f with operands in; results go to out.  b->loc: the call's. */
void ir_inline(struct ir_b *b, ir_fnid f, const ir_val *in, ir_val *out);

/* Copy a whole function into a new one of the same module, dropping what no result or effect needs. */
struct ir_fn *ir_rebuild(struct ir_module *m, const struct ir_fn *fn);
/* live[v]: bit 0: a result (one of the wanted ones; NULL: any) or an effect needs v; bit 1: its op makes it anyway.
 * Array of fn->val.n bytes, owned by the arena. */
uint8_t *ir_live(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const bool *wanted);
/* Does the op, or any function it holds, have an effect or communicate? */
bool ir_effect(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);
/* Functions op o holds (body, cond, branches, reducers), at most cap; returns their number. */
int ir_regions(const struct ir_fn *fn, const struct ir_op *o, ir_fnid *out, int cap);
/* The single elementwise op that a two-parameter region computes, as a redop; RED_fn if it is anything else. */
enum redop ir_region_redop(const struct ir_module *m, ir_fnid f);

/* --- loop.c -------------------------------------------------------------- */

enum { IR_LOOP_TURN = 1 };           /* the parameter of a body that is the number of the iteration */
struct ir_loop_operand {
	ir_val v;                        /* outside */
	enum ir_role role;
	ir_val param;                    /* of the body; 0: an out has none */
	ir_val asked;                    /* parameter of the condition; 0: there is none */
	int result;                      /* of the body and of the loop; -1: neither carry nor out */
};
struct ir_loop {
	int64_t trip;                    /* -1: while cond */
	const struct ir_fn *body, *cond; /* cond: NULL if counted */
	int n, ncarry, nmade;            /* operands, carries, results */
	struct ir_loop_operand *x;       /* per operand */
	int *made;                       /* result -> operand */
};
struct ir_loop ir_loop_view(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);
/* Length of the table [B.., 1, 1, N] that operand k of an attention is, of which its function takes single elements; 0: it is none. */
int64_t ir_attention_table(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, uint32_t k);
/* Is v read by attention alone, here or in each turn of a loop, as keys, values, queries or cotangents, at any strides; or handed on to another device? */
bool ir_attended(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, ir_val v);
/* Is o the concatenation of two arrays, alike, which attention alone reads, in a place where it reads several arrays as well as one? */
bool ir_side_by_side(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);

/* A loop in the making, zeroed at first: add the operands; open makes the functions, whose parameters are then in x; emit into
 * body and cond (its result by ir_result), give for each carry its next value and for each out its slice; close appends the op to
 * b's function, gives its first result and ends the making.  result: of each operand the number of its result; NULL is fine. */
struct ir_loop_new {
	struct ir_b *b;
	int64_t trip;
	struct ir_fn *body, *cond;
	ARR(struct ir_loop_operand) x;
	ir_val *next;
};
int ir_loop_add(struct ir_loop_new *l, ir_val v, enum ir_role role);       /* number of the operand */
void ir_loop_open(struct ir_loop_new *l, struct ir_b *b, int64_t trip, const char *body, const char *cond);
void ir_loop_give(struct ir_loop_new *l, int operand, ir_val v);
ir_val ir_loop_close(struct ir_loop_new *l, int *result);

/* --- axes.c -------------------------------------------------------------- */

/* What an op does along a factor of its dimensions. */
enum ir_factor_kind {
	FACTOR_EACH,      /* one by one: a batch dimension if all tensors have it, a free one if an operand and the result have */
	FACTOR_SUM,       /* contracted or reduced: parts of it are combined; no result has it, but of scatter, which adds to its operand */
	FACTOR_WINDOW,    /* the result reads what is around each place: neighbours' elements at the ends of a part */
	FACTOR_MOVED,     /* the same elements at other places, or some of them: reverse, slice, pad, concatenate */
	FACTOR_WHOLE,     /* all of it is needed at once */
};
struct ir_factor { int64_t size; uint8_t kind; bool blocked; };    /* blocked: what is known of one side says nothing of the other */
struct ir_axes_dim { int n; int *factor; };                         /* major first */
/* Tensors are the operands, then the results.  A dimension without factors has nothing to do with any other one. */
struct ir_axes {
	int nfactor, nin, nout;
	struct ir_factor *factor;
	int *rank;
	struct ir_axes_dim **dim;    /* [tensor][dimension] */
};
struct ir_axes *ir_axes_of(struct arena *a, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);
int ir_axes_find(const struct ir_axes *x, int tensor, int factor);    /* the dimension of the tensor that has the factor, -1: none */
double ir_axes_points(const struct ir_axes *x);                       /* product of all sizes: times the op does what it does */
/* In the form of Shardy's op_sharding_rule: ([i, k], [k, j])->([i, j]) {i=16, j=8, k=32} reduction={k}. */
void ir_axes_print(struct str *s, const struct ir_axes *x);

/* --- cost.c -------------------------------------------------------------- */

/* What one run costs; apart from any machine, and the same in all processes. */
struct ir_cost {
	double flops;            /* operations on elements: an elementwise function is one, a multiplication and its addition two */
	double adds;             /* how long they take in vector code, in additions of f32 (elem.def) */
	double bytes;            /* read and written at least once: of an update in place the update, of a broadcast its operand */
	double ops;              /* operations that run; views and constants are none */
};
/* Turns that a loop of unknown trip is taken to make: searches and solvers stop after tens or hundreds. */
enum { IR_TURNS = 100 };
struct ir_cost ir_cost_of(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);
struct ir_cost ir_cost_of_fn(const struct ir_module *m, const struct ir_fn *fn);      /* its ops, and those of the functions they hold */
struct ir_cost ir_cost_of_group(const struct ir_module *m, const struct ir_fn *g);     /* as one kernel: what is between its ops is no memory */
/* Additions for each time that o does what it does, for each element most often; 0: it is free. */
double ir_cost_each(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);
double ir_turns(const struct ir_fn *fn, const struct ir_op *loop);
/* Per function: how often a run of main runs it as the body, condition, branch or group of ops; of several branches each as often
 * as the others.  Array of m->fn.n, owned by the arena. */
double *ir_runs(struct arena *a, const struct ir_module *m);

/* --- print.c, parse.c, verify.c ---------------------------------------- */

void ir_print(struct str *s, const struct ir_module *m);                       /* every function, meshes, groups */
void ir_print_fn(struct str *s, const struct ir_module *m, const struct ir_fn *fn);
void ir_print_op(struct str *s, const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);
void ir_print_type(struct str *s, const struct ir_module *m, ir_type t);
void ir_print_shard(struct str *s, const struct ir_module *m, ir_shard h);
/* As jax.sharding.PartitionSpec prints it: P('d', None); and axes of a mesh as there. */
void ir_print_spec(struct str *s, const struct ir_module *m, ir_shard h);
void ir_print_axes(struct str *s, const struct ir_module *m, const struct ir_mesh *mesh, int n, const struct ir_axis_ref *r);
/* Text that does not depend on names, locations, value numbering of dead code or function ids:
 * two functions with equal canonical text compute the same.  Used as cache key for groups. */
void ir_print_canonical(struct str *s, const struct ir_module *m, const struct ir_fn *fn);
/* What a function computes, as bytes: two that have the same compute the same, whatever module they are of.  Names, places in the
 * source, shardings and groups' members do not count; functions that it holds are taken for what they compute.  A constant for which
 * hole (NULL: none) is true is left out; hole is asked once for each, in the order of the ops, held functions at their op. */
typedef bool ir_hole(void *user, const struct ir_fn *fn, const struct ir_op *constant);
void ir_fn_bytes(struct str *s, const struct ir_module *m, const struct ir_fn *fn, ir_hole *hole, void *user);
/* text of n bytes -> module.  Prints back to the same text.  ERR_INVALID with line and column. */
struct err *ir_parse(const char *text, size_t n, struct ir_module **out);
/* Shapes, types, operand order, attribute ranges, regions' signatures of every op. */
struct err *ir_verify(const struct ir_module *m);
/* The same of one op, whose operands and functions must be complete; not the order of definitions. */
struct err *ir_verify_op(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);
/* The result types an op must have, from operands and attributes (out: nout entries), where they can
 * be inferred; 0 where the op states its own (constant, iota, convert, broadcast, reshape, custom_call,
 * ...).  ERR_INVALID says which rule is broken. */
struct err *ir_infer(struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o, ir_type *out);

#endif
