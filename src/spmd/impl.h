/* What the files of the partitioner share.
 *
 * axis.c: lists of mesh axes, major to minor, and how they lie on the factors of an op.
 * An axis reference (struct ir_axis_ref) is an axis or a part of it: an axis of size n split as [pre, size, n / (pre * size)],
 * the middle one. */
#ifndef RONDO_SPMD_IMPL_H
#define RONDO_SPMD_IMPL_H

#include "spmd.h"

/* A list is never changed in place: who makes another one shares or copies the references, in an arena. */
struct axes { int n; const struct ir_axis_ref *p; };

static inline bool ref_equal(struct ir_axis_ref a, struct ir_axis_ref b) { return a.axis == b.axis && a.pre == b.pre && a.size == b.size; }
/* Is a a major part of b, smaller than b? */
static inline bool ref_begins(struct ir_axis_ref a, struct ir_axis_ref b) { return a.axis == b.axis && a.pre == b.pre && a.size < b.size && b.size % a.size == 0; }
/* The largest major part of a that has nothing of b.  False: there is none. */
bool ref_before(struct ir_axis_ref a, struct ir_axis_ref b, struct ir_axis_ref *out);
int64_t axes_size(struct axes l);                       /* product; 1 if empty */
bool axes_equal(struct axes a, struct axes b);
/* Is a a list that b goes on from: the same references, the last one of a perhaps a major part of b's? */
bool axes_begin(struct axes a, struct axes b);
/* Cut l, at ref i, before it overlaps anything of taken. */
struct axes axes_without(struct arena *a, struct axes l, struct axes taken);
/* l, r behind; references that are neighbours in one axis become one. */
struct axes axes_join(struct arena *a, struct axes l, struct axes r);
/* What two lists have in common from the major end; parts of axes at the border are split so that they have the most. */
struct axes axes_common(struct arena *a, struct axes x, struct axes y);
struct axes axes_rest(struct arena *a, struct axes x, struct axes h);     /* x behind its beginning h */
bool axes_among(struct axes x, struct axes y);                            /* is each of x's one of y's? */
struct axes axes_but(struct arena *a, struct axes l, struct axes gone);   /* l without what of it is in gone */

/* How the dimensions of one tensor of an op are cut, seen on the op's factors. */
struct factor_axes {
	bool has;                /* the tensor has this factor */
	bool closed, minor;      /* may not be cut further; the least significant factor of its dimension, which takes axes that do not divide it */
	struct axes axes, over;  /* over: what is left of the dimension's axes and fits no factor */
};
/* h: of the tensor, 0: open; out: of nfactor entries.  Returns the axes that cut dimensions without factors, or are kept out of the tensor
 * (replicated, unreduced). */
struct axes factors_of(struct arena *a, const struct ir_module *m, const struct ir_axes *x, int tensor, ir_shard h, struct factor_axes *out);
/* The way back: h with the dimensions' axes as the factors have them. */
ir_shard factors_to(struct arena *a, struct ir_module *m, const struct ir_axes *x, int tensor, ir_shard h, uint32_t mesh, const struct factor_axes *f);

/* --- shard.c: where a device is in a mesh ------------------------------------------- */

int64_t mesh_position(const struct ir_mesh *m, int64_t device);
int64_t mesh_coordinate(const struct ir_mesh *m, int64_t position, struct ir_axis_ref r);
int64_t mesh_index(const struct ir_mesh *m, int64_t device, struct axes l);      /* number of the device's block along l */

/* --- record.c: what is told to who asks why ------------------------------------------ */

/* The only sources of a value with sharding h; index, o as in struct spmd_origin (o NULL: main's border).  Gives the newest origin; 0: it is
 * cut by nothing. */
uint32_t record_given(struct spmd_record *r, const struct ir_module *m, ir_shard h, enum spmd_source by, const struct ir_op *o, uint32_t index);
/* Dimension dim has axis, too: through o (NULL: main's border), from origin `from`.  Gives the newest. */
uint32_t record_flow(struct spmd_record *r, uint32_t newest, int dim, struct ir_axis_ref axis, const struct ir_op *o, uint32_t from);
bool record_cut_by(const struct ir_module *m, ir_shard h, int dim, struct ir_axis_ref axis);

/* --- settle.c ------------------------------------------------------------------------- */

/* h as a value may have it that is computed: closed, without axes of size 1 and without those from the first on that do not divide the
 * dimension, or, of an argument or a result that the compiler chose (border), are parts of axes; 0 if nothing is cut or to be summed. */
ir_shard shard_settled(struct arena *a, struct ir_module *m, ir_shard h, const struct ir_type_info *t, bool border);

/* --- the program on its way -------------------------------------------------------------- */

/* For the record: what is emitted now is for o, an op of fn (NULL: none), because of value x of `of`.  If it is known how o is cut: of its n operands
 * the dimension that it cannot be cut along, or -1, how they might lie instead, and the way in which it is cut. */
struct why { const struct ir_fn *fn, *of; const struct ir_op *o; ir_val x; int n; const int *cannot; const ir_shard *advice; uint32_t way; };
/* The two best ways to cut an op, of those that were priced. */
struct tried { int n; double ns[2]; const struct axes *f[2]; };

/* apart: axes along which devices hold other values, not copies (those of the manual computation around), in mesh apart_of.
 * spare: bytes of a device that may yet be spent on keeping what else would travel in each turn of a loop: all together as many as its
 * arguments and results have, and PART_SPARE.  values: of functions, part_values.  rec: NULL: nobody asks why; why and tried are for it. */
enum { PART_SPARE = 1 << 20 };
struct scope;
struct part { struct ir_module *m; struct arena a; int ndev; const struct spmd_maker *maker; const struct plan_on *plan; struct map spread; struct axes apart; uint32_t apart_of; double spare; struct values **values;
              struct spmd_record *rec; struct why why; struct tried tried;
              struct err *(*ops)(struct part *p, struct scope *s);      /* all ops of a function, but for results that wait for who reads them */
              int64_t least;     /* bytes of a device's part from which on it comes in one step (boxes.c); 0: as many as are worth it */
};

/* What moves next is value x of fn: an operand or a result of the op in p->why, or, of another function, its parameter or result. */
static inline void record_about(struct part *p, const struct ir_fn *fn, ir_val x)
{
	p->why.of = fn;
	p->why.x = x;
}
/* Collectives of b from op `first` on that are of no move yet bring a value, of that type on each device, from one sharding to another. */
void record_move(struct part *p, struct ir_b *b, size_t first, ir_type local, ir_shard from, ir_shard to);
/* The same of what is left of the op in p->why: it is the program's own, or its way to do its part. */
void record_rest(struct part *p, struct ir_b *b, size_t first);
/* How far b's function and the record have come; what came since is gone. */
struct part_mark { struct ir_mark code; size_t move, comm, value, uneven, way; };
struct part_mark part_mark(struct part *p, struct ir_b *b);
void part_go_back(struct part *p, struct ir_b *b, struct part_mark to);

/* --- layout.c: how a value lies ---------------------------------------------------------------- */

ir_type part_type(struct part *p, ir_type t, ir_shard h, enum dtype dt);        /* a device's part of t under h; of element type dt unless that is DT_token */
double part_local(struct part *p, ir_type t, ir_shard h);                         /* bytes of that part; sums of narrow floats wait in f32 */
bool part_rounds(enum dtype dt, enum redop r);      /* is a sum by r in dt made in f32? */
enum dtype part_wide(struct part *p, enum dtype dt, ir_shard h);     /* what a value of type dt, which lies as h, has while it is on its way */
ir_shard part_sum(struct part *p, ir_shard h);      /* the sum over devices that is still to be made: its axes cut the only dimension of a list; 0: none */
ir_shard part_summed(struct part *p, ir_shard h);   /* h without that sum */
bool part_equal(struct part *p, ir_shard a, ir_shard b, int rank);              /* does every device hold the same box? */
bool part_same_order(const struct ir_module *m, uint32_t x, uint32_t y);        /* are devices where they are in meshes x and y alike? */
struct axes part_axes(struct part *p, ir_shard h, int d);
ir_shard part_with_sum(struct part *p, ir_shard h, uint32_t mesh, struct axes l, int rank);      /* h of an array of that rank, and a sum over l to be made */
ir_shard part_shifted(struct part *p, ir_shard h, int rank, int by);             /* h without its first `by` dimensions, or with -by whole ones before: of that rank */
ir_shard part_finer(struct part *p, ir_shard h, int rank, int d, struct axes l); /* h with dimension d cut by l as well */
/* How a tensor of an op lies whose factors are cut by f. */
ir_shard part_shard(struct part *p, const struct ir_axes *x, int tensor, uint32_t mesh, const struct axes *f);

/* --- collective.c: single steps -------------------------------------------------------------- */

ir_val part_by_device(struct part *p, struct ir_b *b, const int32_t *table);     /* the i32 scalar that is table[d] on device d */
/* The i32 scalar that is, on each device, the number of its block along l times size. */
ir_val part_offset(struct part *p, struct ir_b *b, uint32_t mesh, struct axes l, int64_t size);
ir_val part_first(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, ir_val other);    /* v where the block along l is 0, else other */
ir_val part_neutral(struct part *p, struct ir_b *b, ir_type t, enum redop r);     /* of type t: elements that change nothing under r */
ir_group part_group(struct part *p, uint32_t mesh, struct axes l);              /* devices that differ along l alone, in the order of l */
/* Who differs along l alone, and on how many hosts the groups of such are at most. */
struct plan_group part_spread(struct part *p, uint32_t mesh, struct axes l);
/* v of every device, combined over l by r.  Parts of a sum of narrow floats travel and add in f32: it rounds once, as the whole sum would; the
 * result is of type dt. */
ir_val part_combine(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, enum redop r, enum dtype dt);
/* The type of v with num / den times as many elements along d, and den / num times as many along e unless that is -1. */
ir_type part_resized(struct part *p, struct ir_b *b, ir_val v, int d, int64_t num, int64_t den, int e);
ir_val part_gather(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d);                     /* all_gather along d */
ir_val part_exchange(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int from, int to);        /* all_to_all: l cuts dimension `to` instead */
ir_val part_cut(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d);                        /* the device's block along l */
/* Each device gets the part that it shall hold from one that holds it, itself if it can: dimensions are cut into equally many parts.  Along
 * the axes of a manual computation around, and of a sum that is still to be made, devices hold no copies of each other. */
ir_val part_change_places(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to, int rank);

/* --- stepwise.c: from one sharding to another in several steps ----------------------------------- */

/* Dimensions that differ, gathered up to where they do, and cut. */
ir_val part_gather_and_cut(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to, uint32_t mesh, int rank);
ir_val part_stepwise(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to, uint32_t mesh, int rank);

/* --- boxes.c: in one step -------------------------------------------------------------------- */

int64_t part_worth(const struct part *p);      /* bytes from which on that is better than several small steps */
struct piece;
/* v, of dim[d] elements along d of which each device has its part as `from`, where pieces of it, which do not overlap and lie in it one element
 * after the other, are all of a value of of[d]: each device takes the boxes that it lacks as `to` from where they lie, in one step.  0: of does not
 * divide, no device would get fewer bytes than `less`, nothing moves, or there are too many boxes to be written into the program. */
ir_val part_boxes(struct part *p, struct ir_b *b, ir_val v, ir_shard from, const int64_t *dim, int npiece, const struct piece *piece, const int64_t *of, ir_shard to, int64_t less);
/* What is long enough goes in one step, where several would write it several times, or in short rows.  Of what several devices of a host
 * want of others, each gets a part, which they gather.  0: it is not worth it, nothing moves, or there are too many boxes to be written into the
 * program. */
ir_val part_in_boxes(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to, int rank);

/* --- sum.c: sums over devices ---------------------------------------------------------------- */

/* To parts of a sum over `sum`: what is cut by axes of it becomes such parts where it is, without moving; *left: the others. */
ir_val part_embedded(struct part *p, struct ir_b *b, ir_val v, ir_shard *from, ir_shard to, uint32_t mesh, struct axes sum, struct axes *left);
/* The axes of sum that dimension d of what lies as `from` is cut by while the sum is made, because `to` is. */
struct axes part_scattered(struct part *p, ir_shard from, ir_shard to, int d, struct axes sum);
/* The sum that v still is, made, of v's type; dimensions that `to` cuts by axes of the sum are so cut afterwards.  *from: how it lies, then. */
ir_val part_finish(struct part *p, struct ir_b *b, ir_val v, ir_shard *from, ir_shard to);
ir_shard part_finished(struct part *p, ir_shard from, ir_shard to, int rank);    /* how it lies, then, of that rank */

/* --- reshard.c, travel.c ------------------------------------------------------------------------- */

ir_val part_reshard(struct part *p, struct ir_b *b, ir_val v, ir_shard from, ir_shard to);
/* Bytes that come to each device on that way, at least, of a value of type t, and how long that takes. */
struct travel { double bytes, ns; };
struct travel part_travel(struct part *p, ir_type t, ir_shard from, ir_shard to);

/* --- halo.c: what a device has not, from those that have it --------------------------------- */

/* Along one dimension: element first + step * j is element from + by * j of a source, 0 <= j < n. */
struct run { int64_t first, n, step, from, by; };
/* What is put together along dimension d.  v: a device's part of the source, of `part` elements along d, or, if it is not cut, all of it; where
 * fill is set, a scalar. */
struct strip { struct run run; ir_val v; int64_t part; bool cut, fill; };
/* How strips, later ones over earlier ones, come to devices that differ along l in mesh: that of block r gets elements start[r] .. start[r] + len.
 * The first strip may be a fill, for what no other one covers.  A strip with a step has no others but that.  NULL: it takes too many rounds. */
struct halo;
struct halo *halo_plan(struct part *p, uint32_t mesh, struct axes l, int d, int n, const struct strip *s, const int64_t *start, int64_t len);
int64_t halo_fetched(const struct halo *h);     /* elements along d that come to a device, at most */
int64_t halo_gathered(const struct halo *h);    /* and if the sources that are cut were gathered */
ir_val halo_emit(struct part *p, struct ir_b *b, const struct halo *h);
/* Elements start[r] .. start[r] + n of v along d on the devices of block r. */
ir_val halo_own(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d, const int64_t *start, int64_t n);
/* Those of a run of v, of which each device has its part, cut by l, that are in its part, in any order; where they are fewer than others have, `none`, a
 * scalar, is among them. */
ir_val halo_some(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, int d, const struct run *run, ir_val none);
/* Of a strip with a step, only its elements: they belong at low, low + step, .. with `high` behind the last one.  0: not on all devices alike. */
ir_val halo_emit_dense(struct part *p, struct ir_b *b, const struct halo *h, int64_t *low, int64_t *high);

/* --- view.c: elements moved to other places ----------------------------------------------------- */

/* A value that is made of others' elements.  Pieces, later ones over earlier ones, are boxes: a run along each dimension; of a fill, whose source is
 * a scalar, only where they are counts.  made: it is one that was made, of which it leaves out what is behind. */
struct source { ir_val v; ir_shard sh; const int64_t *dim; bool fill; };     /* dim: of the whole array */
struct piece { int source; const struct run *run; };
struct view { int rank; const int64_t *dim; int npiece, nsource; struct piece *piece; struct source *source; bool made; };

struct view *view_of(struct part *p, const struct ir_type_info *t, ir_val v, ir_shard sh);
struct view *view_fill(struct part *p, const struct ir_type_info *t, ir_val scalar);
/* Does o move elements, along which dimensions? */
bool view_moves(struct part *p, const struct ir_fn *fn, const struct ir_op *o, int d);
/* Such an op's result, from its operands; NULL: pieces are no boxes. */
struct view *view_moved(struct part *p, const struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, struct view *const *in);
/* v with dim[d] elements along d, as many as it has or more: the others are of the scalar fill, or, if that is 0, anything.  NULL: pieces are no boxes. */
struct view *view_longer(struct part *p, const struct ir_b *b, const struct view *v, const int64_t *dim, ir_val fill);
/* It as `to` says, with what each device lacks fetched from others.  0: that is no better than to gather what it is made of. */
ir_val view_emit(struct part *p, struct ir_b *b, const struct view *v, ir_shard to);
/* It, if it is pieces of one value, as `to`, in one step (part_boxes). */
ir_val view_boxes(struct part *p, struct ir_b *b, const struct view *v, ir_shard to, int64_t less);
bool view_moved_along(const struct view *v, int d);         /* are elements of v elsewhere along d than in what it is made of? */
/* It, of one source, which comes as `to`, whole along the dimensions that it moves along.  0: it has others. */
ir_val view_cut_out(struct part *p, struct ir_b *b, const struct view *v, ir_shard to);
/* What each device has of it, in any order along the dimensions that it moves along, `none` where others have more; *lies: how it would lie if these
 * were whole, *l: the axes that cut them.  0: it is not elements of one value alone. */
ir_val view_some(struct part *p, struct ir_b *b, const struct view *v, ir_val none, ir_shard *lies, struct axes *l);

/* --- why.c: for the record ----------------------------------------------------------------- */

/* A way to cut o was priced; the first one cuts nothing. */
void why_try(struct part *p, const struct ir_op *o, const struct ir_axes *x, const struct axes *f, double ns);
/* Op o, whose operands lie as have, is cut by f. */
void why_cut(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, const ir_shard *have, uint32_t mesh, const struct axes *f);

/* --- choose.c --------------------------------------------------------------------------- */

enum { PART_ANY = -1, PART_NEAR = 32 };    /* operations: what is gathered again later than that would be kept all the time */
/* A part that lay as `lay` of a tensor of type t, and what it is as sh.  Not the part alone: values of different shapes, cut differently, may
 * have one part. */
struct move { ir_val from, to; ir_type t; ir_shard lay, sh; size_t at; };
/* A function on its way, by its values: their parts (0: not made yet) and how these lie, where propagation has them, and where results of
 * the function must lie (PART_ANY: no result, or anywhere). */
struct values {
	const struct ir_fn *fn;
	const ir_val *map;
	const ir_shard *sh, *want;
	ir_shard *end;
	struct ir_axes **axes;             /* by op: NULL, not asked yet */
	const struct move *moved, *kept, *turn;      /* parts that were brought elsewhere: not long ago; by value; by value, of rows */
	bool *row;                         /* by value: is it, in a loop's body, a row of a stack, seen or cast in some way? */
	int nmoved;
	const struct ir_fn *into;
	size_t at;                         /* operations emitted into it so far */
};
ir_val part_copy(const struct values *v, ir_val x, ir_shard h);     /* the part of x as h, if it was brought there and still is; 0: no */
struct values *part_values_new(struct part *p, const struct ir_fn *fn);
const struct values *part_values(struct part *p, const struct ir_fn *fn);      /* before anything of it is made; shared by who asks */
const struct values *part_body(struct part *p, const struct ir_loop *l);       /* the same of a loop's body */
const struct ir_axes *part_op_axes(struct part *p, const struct values *v, const struct ir_op *o);

/* How op o is cut: for each factor of x the axes, from how its operands lie (have), what its results are wanted as and who reads them. */
struct axes *part_choose(struct part *p, const struct values *v, const struct ir_op *o, const struct ir_axes *x, const ir_shard *have, uint32_t *mesh);
/* Is a factor behind another one of its dimension cut only where that one is cut to the end?  Else parts are not those of the dimension. */
bool part_contiguous(const struct ir_axes *x, const struct axes *f);
/* Nanoseconds that all readers of value x take if it lies as h, apart from what is the same however it lies. */
double part_readers(struct part *p, const struct values *v, ir_val x, ir_shard h);
/* Where a stack of type t that lies as h lies while a loop goes through it, whose body reads a row as its parameter row; *ns: what it takes to bring it
 * there, and all turns' readers. */
ir_shard part_stack_place(struct part *p, const struct values *body, ir_val row, ir_type t, ir_shard h, double turns, double *ns);
/* Where value x, made as h, shall lie: there, or where propagation has it. */
ir_shard part_place(struct part *p, const struct values *v, ir_val x, ir_shard h);

/* --- along.c: ops along a cut dimension that need more than the device's own part ------------------ */

/* The factors of o as they are cut: of what ir_axes_of says, dimensions that are taken from are apart from those of what was taken. */
struct ir_axes *part_rule(struct part *p, const struct ir_fn *fn, const struct ir_op *o);
/* The axes that cut factors which result k is a sum over. */
struct axes part_sums(struct part *p, const struct ir_axes *x, int k, const struct axes *f);
/* Is f a factor that the functions below know how to cut? */
bool along_can(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, int f);
/* Does o, where it is cut so, get but a little that is near? */
bool along_near(const struct ir_op *o);
/* Bytes that come to each device for it, besides operands and sums; -1: it is no better than to gather its operand. */
double along_bytes(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, const struct axes *f);
/* Windows: the operands in y get what is around the device's parts, and w attributes of an op that pads no more there. */
void along_windows(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh,
                   const struct axes *f, ir_val *y, int64_t *w);
/* The others, whole; t: types of the device's results.  False: o has no such factor cut. */
bool along_emit(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh,
                const struct axes *f, const ir_val *in, const ir_type *t, ir_val *out);
/* v of the device that has it, where all others have zeros: the same bits on all of them. */
ir_val along_one_of(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l);
/* The same, of what lies as *lie, which gets how the result does: cut as `want` (0: as before), where it can be cut while it is brought together. */
ir_val along_one_of_as(struct part *p, struct ir_b *b, ir_val v, uint32_t mesh, struct axes l, ir_shard *lie, ir_shard want);

/* The i32 scalar that start v of a slice of size of n is, within bounds. */
ir_val along_bounded(struct part *p, struct ir_b *b, ir_val v, int64_t n, int64_t size);
/* From element `start` on along d, what is v twice: as much as v has.  v: a device's part, cut there by l, if that is not empty; so is the result. */
ir_val along_turned(struct part *p, struct ir_b *b, ir_val v, int d, uint32_t mesh, struct axes l, ir_val start);

/* --- custom.c ----------------------------------------------------------------------------- */

const struct ir_blob_info *part_key(const struct ir_module *m, const struct ir_fn *fn, const struct ir_op *o);     /* of a custom call; NULL */
bool part_asks(const struct part *p, const struct ir_fn *fn, const struct ir_op *o);       /* does o's maker say how it is cut? */
bool part_of_parts(const struct part *p, const struct ir_fn *fn, const struct ir_op *o);   /* is o, as it is, what each device does on its parts? */
bool part_batches(const struct part *p, const struct ir_fn *fn, const struct ir_op *o);
/* Ask it.  sh: how o's operands, then its results, lie, and how they shall; type: of them then, with more elements behind the last ones where there
 * are dimensions that do not divide; f: what a device computes. */
struct err *part_ask(struct part *p, const struct ir_fn *fn, const struct ir_op *o, ir_shard *sh, ir_type *type, ir_fnid *f);
/* Tell who looks at o's operand that it lies as h. */
struct err *part_inspect(struct part *p, const struct ir_fn *fn, const struct ir_op *o, ir_shard h);

/* --- local.c ------------------------------------------------------------------------------ */

/* Are v's elements positions along a dimension, or made of such alone at next to no price, like an identity matrix, so that each device can make them by
 * itself as h?  Views of such only where they are wanted whole. */
bool part_counts(const struct part *p, const struct ir_fn *fn, ir_val v, ir_shard h);
/* Can each device do its part of o along factor f on its own parts of the operands? */
bool part_can(struct part *p, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, int f);
/* The places of gather or scatter o of fn, clamped as those of the whole value, or so that what is outside stays outside. */
ir_val part_places(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, ir_val places);
/* Reduction o of parts in[0], whose result is of type t on each device, made one over `sums`, with the initial value taken in once. */
ir_val part_reduce(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, uint32_t mesh, struct axes sums, const ir_val *in, ir_type t);
/* May sums be made later, where their values are wanted?  A maximum, or a sum that begins with something, may not. */
bool part_leaves(struct part *p, const struct ir_fn *fn, const struct ir_op *o);
/* Attributes w of slice o, whose result's part is of type t where it lies as h, with the extents of that along dimensions that are cut. */
void part_extents(struct part *p, const struct ir_op *o, int64_t *w, ir_shard h, ir_type t);
/* o on parts: in are the operands' parts, cut as f says; results go to out.  True: those that are sums (part_sums) are still to be made, of f32
 * where they are to be made in that.  lie: how results lie, which may change, of the first one, to what is nearer to want (0: nothing is wanted). */
bool part_emit(struct part *p, struct ir_b *b, const struct ir_fn *fn, const struct ir_op *o, const struct ir_axes *x, uint32_t mesh,
               const struct axes *f, const ir_val *in, ir_val *out, ir_shard *lie, ir_shard want);

/* --- scope.c: values on their way --------------------------------------------------------- */

/* One function on its way: what is known of its values (v, whose arrays these are), and what was brought elsewhere: kept, by value, what
 * takes no more memory there; turn, what one turn of a loop has whole of rows of stacks, which are not kept for another one. */
struct scope {
	const struct ir_fn *from;
	struct ir_b b;
	ir_val *map;
	ir_shard *sh, *end;
	struct values v;
	struct view **view;        /* of values that are not made yet (map: 0) */
	struct move moved[16], *kept, *turn;
	int last;
	uint64_t *asked, asking;   /* by value: which question it was looked at for, and how far */
	ir_shard *adds;            /* by result: the parts of a sum that are added to a parameter to make it, and to nothing else */
};
void scope_init(struct part *p, struct scope *s, const struct ir_fn *from, struct ir_fn *to);
static inline const struct ir_type_info *scope_type(struct part *p, const struct scope *s, ir_val v) { return ir_vtype(p->m, s->from, v); }
static inline ir_shard scope_wanted(const struct scope *s, ir_val v) { return s->v.want[v]; }
const struct values *scope_values(struct scope *s);          /* as it is now; until the next op is emitted */
ir_val *scope_operands(struct part *p, struct scope *s, const struct ir_op *o);       /* their parts, as they lie */
/* A sum that value x still is, is made; where dimensions shall lie as `to` has them, so. */
void scope_finish(struct part *p, struct scope *s, ir_val x, ir_shard to);
/* Value x as `to`, where that is read. */
ir_val scope_fetch(struct part *p, struct scope *s, ir_val x, ir_shard to);
/* v, which lies as h, is value x, and lies as `to` from now on. */
void scope_put(struct part *p, struct scope *s, ir_val x, ir_val v, ir_shard h, ir_shard to);
/* v, which lies as h, is value x: where x shall lie. */
void scope_give(struct part *p, struct scope *s, ir_val x, ir_val v, ir_shard h);
/* v without a sum that is still to be made. */
void scope_summed(struct part *p, struct scope *s, ir_val v);
/* What is still to be summed among o's operands is summed. */
void scope_finish_sums(struct part *p, struct scope *s, const struct ir_op *o);
/* If addition o adds parts of a sum to a parameter that nothing else reads, that is noted (adds). */
void scope_note_sum(struct part *p, struct scope *s, const struct ir_op *o);
/* Sums of parts are parts of sums: o is done on them, if it is an op of which that is true and whose operands are all partial alike. */
bool scope_keeps_sums(struct part *p, struct scope *s, const struct ir_op *o);
/* What o says, if it is a constraint to parts of a sum ("unreduced"), and what v's only reader says; else 0. */
ir_shard scope_says_parts(struct part *p, const struct ir_fn *fn, const struct ir_op *o);
ir_shard scope_read_in_parts(struct part *p, const struct ir_fn *fn, ir_val v);
/* v of the device, on all. */
ir_val scope_same(struct part *p, struct scope *s, ir_val v, int64_t device);
/* Op o of a function with values v, whose operands in lie as have says; its results, in out, lie as lie says then, perhaps as sums to be made. */
void scope_part(struct part *p, struct scope *s, const struct values *v, const struct ir_op *o, ir_val *in, const ir_shard *have, ir_val *out, ir_shard *lie);
void scope_do(struct part *p, struct scope *s, const struct ir_op *o);       /* o on parts, its results given */

/* What is done for result v of the function alone is at the line that makes it, not at that of the last op. */
void scope_at_maker(struct scope *s, ir_val v);

/* How a value lies where it is handed on: as h; with more elements behind the last ones, of type t then, unless that is 0. */
struct handed { ir_type t; ir_shard h; };

/* --- region.c: functions that ops hold -------------------------------------------------------- */

struct err *part_loop(struct part *p, struct scope *s, const struct ir_op *o);
struct err *part_case(struct part *p, struct scope *s, const struct ir_op *o);

/* --- moved.c: elements that move ------------------------------------------------------------ */

/* Is o one that moves elements?  Then all is done for it. */
bool moved_op(struct part *p, struct scope *s, const struct ir_op *o);
/* Makes value v, where only how its elements move was noted: somebody reads it. */
void moved_need(struct part *p, struct scope *s, ir_val v);
/* How value x would be handed on with more elements behind the last ones, along dimensions, but for the first `keep`, into whose parts, as propagation has
 * it, or what value `of` (0: none) is made of, they do not divide.  t is 0: there is none, or most would be more. */
struct handed moved_longer(struct part *p, struct scope *s, ir_val x, ir_val of, int keep);
/* Value v so, with `fill`, or, if that is 0, anything behind its last elements. */
ir_val moved_fetch_longer(struct part *p, struct scope *s, ir_val v, struct handed to, ir_val fill);
/* The first elements of x, which lies so, are value v. */
void moved_give_longer(struct part *p, struct scope *s, ir_val v, ir_val x, struct handed as);

/* --- longer.c: ops along what does not divide --------------------------------------------------- */

/* Is o along a dimension that does not divide because elements moved, and done on longer parts, or where its operand lies?  Then all is done for it. */
bool longer_op(struct part *p, struct scope *s, const struct ir_op *o);

#endif
