/* What the files of src/attn share: one candidate, the axes of its values, what they are in normal form, what is made of them.
 * Everything lies in the candidate's arena; ids are indices into its tables, 0 is none. */
#ifndef RONDO_ATTN_IMPL_H
#define RONDO_ATTN_IMPL_H

#include "attn.h"

enum { LAB_RANK = 10, LAB_ATOMS = 4, ATOMS = 40, FACTORS = 16, MONOMIALS = 48 };

/* An axis of the candidate: a dimension of the product q . k or a part of one, or (VEC) the dimension of a vector, whatever its extent. */
enum side { SIDE_VEC, SIDE_BATCH, SIDE_LEFT, SIDE_RIGHT, SIDE_TABLE };      /* the last: elements of a table that scores are looked up in */
enum { VEC = 0 };
struct axis { int64_t size; uint8_t side; uint8_t dim; };      /* dim: of the seed */
/* The axes of each dimension of a value, major first. */
struct lab { uint8_t rank, n[LAB_RANK], axis[LAB_RANK][LAB_ATOMS]; uint64_t set; };

/* A factor of a monomial. */
enum fac_kind { FAC_LEAF, FAC_DOT, FAC_SUM, FAC_LOG };
struct fac {
	uint8_t kind;
	bool mask;               /* 0 or 1 */
	int a, b;                /* leaf: value, lab; dot: factors, left and right; sum: polynomial (one monomial), group of axes; log: factor */
	uint64_t over;           /* of a sum: axes */
	uint64_t set;            /* axes that it has */
};
/* c times the factors' powers times exp of a polynomial. */
struct mono { double c; int exp, n; struct { int16_t f, pow; } f[FACTORS]; };
struct poly { int n; struct mono *m; };

struct node { ir_val v; int lab; int poly; };      /* poly: -1 not known yet */

/* What the check of a match said: layers are alike. */
struct verdict { const char *why; int empty; bool widen; };

/* What is asked of one function, candidate after candidate: arrays of its values and ops, of which only what a candidate touches is cleared. */
struct room {
	struct ir_axes **rule;   /* per op, made when asked for */
	int *of;                 /* per value, as in struct cand */
	bool *near, *kin, *seen;
	uint64_t *pending;       /* a bit for each op */
	ir_val *touched, *nigh;  /* values that have a lab, in order; that are near besides */
	uint8_t *mark;           /* of axes_promise */
	ir_val *queue;
	struct map checked;      /* verdicts */
	int ntouched, nnigh;
	bool looks;              /* there are gathers */
};

struct cand {
	struct arena *a;
	struct ir_module *m;
	const struct ir_fn *fn;
	struct room *room;
	ir_val seed;
	struct axis axis[ATOMS];
	int naxis;
	uint64_t left, right, batch, tables;
	uint8_t nsplit[LAB_RANK];
	int64_t split[LAB_RANK][LAB_ATOMS];      /* extents into which dimensions of the seed are taken apart */
	bool wide;               /* weights are multiplied with values that were converted to a wider type */
	bool again;              /* another split was found: start anew */
	bool parting;            /* what is no matrix may be a reason to split, too */
	bool opaque;             /* in normal forms, what is of rows is not looked into */
	int *of;                 /* per value: its lab, if it is made from the product */
	bool *near;              /* per value: of, or made element by element from one that is near */
	bool *kin;               /* per value: near, or made so from any product */
	ARR(struct lab) lab;
	ARR(struct node) node;
	ARR(struct fac) fac;
	ARR(struct poly) poly;
	struct map index;        /* of all these */
	int depth;
	const char *why;         /* why it is no attention; NULL: no reason yet */
	ir_loc where;
};

/* --- axes.c --- */
bool axes_start(struct cand *c);
int lab_add(struct cand *c, const struct lab *l);
/* Labs of all tensors of op i (operands, then results) from those that are known, 0 elsewhere.  vec: dimensions of which nothing is known
 * become VEC.  False: they cannot be told. */
bool axes_through(struct cand *c, uint32_t op, int *lab, bool vec);
/* Is what has these axes of queries and of keys, a matrix? */
static inline bool cand_is_region(const struct cand *c, uint64_t set)
{
	return !(set & 1) && set & c->right && (!c->left || set & c->left);
}
static inline const struct lab *lab_of(const struct cand *c, int l) { return &c->lab.p[l]; }
/* May the product be that of an attention: is something that an exponential of it goes into added up?  What is no such product is the most of them. */
bool axes_promise(struct cand *c);
/* Vectors v, seen through no more views, may lack a part of an axis: they are repeated below a reshape.  Then that is split. */
void axes_repeats(struct cand *c, ir_val v, int lab);
/* Elements of a table that are taken at an index: values and labs; n of them, whose axis is of SIDE_TABLE. */
struct look { ir_val table, index; int table_lab, index_lab, axis; int64_t n; };
/* Is o, a gather whose result has this lab, such? */
bool look_of(struct cand *c, const struct ir_op *o, int lab, struct look *out);
/* Is o a scatter that adds what has this lab to zeros, element by element of a table?  That is its result. */
bool look_back(struct cand *c, const struct ir_op *o, int lab, struct look *out);
/* Makes c->of, from the seed on. */
void axes_flood(struct cand *c);
void axes_near(struct cand *c);
void room_make(struct room *r, struct arena *a, const struct ir_fn *fn);
void room_clear(struct room *r);
const char *cand_fail(struct cand *c, ir_loc where, const char *why);

/* --- poly.c --- */
int poly_const(struct cand *c, double v);
int poly_fac(struct cand *c, int fac);
int poly_add(struct cand *c, int a, int b, double scale);      /* a + scale b; -1: too long, as of all that follow */
int poly_mul(struct cand *c, int a, int b);
int poly_mono(struct cand *c, const struct mono *m);
int poly_exp(struct cand *c, int a);
bool mono_mul(struct cand *c, const struct mono *a, const struct mono *b, struct mono *out);
bool mono_power(struct mono *m, int n);
void mono_take(struct mono *m, int i);                         /* factor i goes */
int mono_find(const struct mono *m, int f);                    /* -1: has it not */
uint64_t mono_set(const struct cand *c, const struct mono *m);
bool poly_is_one(const struct cand *c, int p);
uint64_t poly_set(const struct cand *c, int p);
/* The part of p that has one of the axes, and the rest. */
void poly_part(struct cand *c, int p, uint64_t axes, int *with, int *without);
int fac_add(struct cand *c, const struct fac *f);
static inline const struct fac *fac_of(const struct cand *c, int f) { return &c->fac.p[f]; }
static inline const struct poly *poly_of(const struct cand *c, int p) { return &c->poly.p[p]; }
int poly_sum(struct cand *c, int p, uint64_t over);
int poly_contract(struct cand *c, int p);

/* --- form.c --- */
int form_of(struct cand *c, ir_val v, int lab);                /* polynomial */
/* v without the views that it is seen through; lab follows. */
void form_strip(struct cand *c, ir_val *v, int *lab);
/* Are v and w the same, made by the same ops of the same values?  What loops that go back over others make again is.  false: it is not seen to be so. */
bool form_same(const struct ir_fn *fn, ir_val v, ir_val w);

/* --- match.c --- */
enum exit_kind { EXIT_NONE, EXIT_CONST, EXIT_O, EXIT_L, EXIT_M, EXIT_Z, EXIT_DELTA, EXIT_DQ, EXIT_DK, EXIT_DV, EXIT_DX, EXIT_TALLY };
/* dx summed up by an index of queries and keys, or (index 0) by their distance, apart for each head, or for all that share keys. */
struct tally { int bwd; ir_val index; int lab; int64_t n; bool apart; };
/* What leaves by way of a tally: sums over batches and heads that v has not, times functions of the distance, summed up or added to a table at what `at` says (0: it is that of the tally itself). */
struct tallied { int tally; struct look at; int nby; struct { ir_val v; int lab; } by[4]; };
/* An attention: what its function is made of. */
struct fwd { int score, masks, weight, v; bool part; };        /* polynomials; factor; part: m and z are wanted */
/* index; factor; polynomials: rest is what is added to -delta.  given: the program gives -l, less, and rest is all of -delta; d_o is multiplied with r */
struct bwd { int fwd, d_o, slope, rest; bool given; int less, r; };
/* op: of fwd or bwd; coef: polynomial of rows or keys.  What the op gives is multiplied with coef exp(lift) Z^pow, where Z = z exp(m) is the sum of
 * exponentials of scores, and lift a polynomial of rows; EXIT_Z is nothing but that.  more: the next one of those that v is the sum of, in match.more (0: no more). */
struct exit { enum exit_kind kind; ir_val v; int lab, op; int coef, lift, pow, more; double value; int tallied; };      /* of EXIT_TALLY: in match.tallied */
/* What the program makes NaN of where a row has no key: the row of o, of l, of dq, and all of dk and dv. */
enum { EMPTY_O = 1, EMPTY_L = 2, EMPTY_DQ = 4, EMPTY_DK = 8, EMPTY_DV = 16 };
enum { FILL = 10000, MOST_FILL = 4 };      /* constants from which on a score is a mask's, and of them in one score */
struct match {
	struct cand *c;
	ARR(struct fwd) fwd;
	ARR(struct bwd) bwd;
	ARR(struct exit) exit;
	ARR(struct exit) more;   /* of exits that are sums; the first one is none */
	ARR(struct tally) tally;
	ARR(struct tallied) tallied;
	bool far;                /* something depends on distances: indices are what they are in samples, too */
	int x;                   /* the product, a factor */
	bool widen;              /* vectors in the type of the sums */
	int empty;               /* what is NaN in rows without any key */
	double added;            /* of fills */
	ir_val endless[MOST_FILL];                 /* operands of scores that are made of -inf; 0: no more */
	int t;                   /* axis of the queries; those of its side but it are heads */
};
bool match_exit(struct match *m, ir_val v, int lab, struct exit *out);
/* Is v, a pred, true where a score is the highest of its row?  *fwd: the attention of these scores. */
bool match_top(struct match *m, ir_val v, int lab, int *fwd);

/* --- where ops are emitted --- */
enum { OF_FWD = 6, OF_BWD = 5 };       /* values of an attention, of a gradient, see struct env */
/* Where things are emitted: extents of axes and of vectors, and values. */
struct env {
	struct ir_b b;
	struct match *m;
	const int64_t *size;                       /* per axis */
	ir_val (*get)(struct env *e, ir_val v, int lab);
	ir_val (*index)(struct env *e, int n, const uint8_t *axis);   /* i32, one dimension an axis: the index along these axes together */
	void *user;
	enum dtype wide;                           /* not token: all floats are of this type */
	struct { int f; bool queries; ir_val v; } placed[8];          /* operands that were brought into their layout */
	int nplaced;
	struct { int fwd, coef, lift, pow; ir_val v; } lifted[4];
	int nlifted;
	bool infinite;                             /* scores may be -inf */
	ir_val (*o)[OF_FWD];                       /* per fwd: o, l, m, z, and for delta what o lacks when it is rounded, and that o; of the last four those that there are */
	ir_val (*d)[OF_BWD];                       /* per bwd: dq, dk, dv, l if it makes NaN where it is -inf, and the first of its tallies */
};

enum { MOST_EXTRA = 24, MOST_NODE = 400 };

/* --- place.c --- */
/* Axes of the side of queries that are heads. */
static inline uint64_t place_heads(const struct match *m) { return m->c->left & ~(m->t ? (uint64_t)1 << m->t : 0); }
/* v as [P] or, if it is a table, [P, n]: P: the axes of set, in order, along those that it has not it is repeated. */
ir_val place_each(struct env *e, ir_val v, int lab, uint64_t set, bool table);
/* Extent of the vector dimension of v (e's); 1: it has none. */
int64_t place_vector(const struct env *e, ir_val v, const struct lab *l);
/* Axes of a set, the batch first, then the heads of queries, queries, keys. */
int place_order(const struct match *m, uint64_t set, uint8_t *out);
/* v with a dimension for each axis of `want`, in order, and one for the vector if it has one; fill: missing ones are repeated, others are 1. */
ir_val place_as(struct env *e, ir_val v, int lab, const uint8_t *want, int nwant, uint64_t fill);
/* Extents [B.., G, T, S] of the ops; returns the number of batch dimensions. */
int place_extents(const struct env *e, int64_t *dim);

/* --- lookup.c --- */
/* Does v depend on queries and keys by their distance alone? */
bool look_by_distance(const struct match *m, ir_val v, int lab);
/* Is v, by the distance, something of a table, so that it is made once for each distance? */
bool look_is_made(const struct match *m, ir_val v, int lab);
int64_t look_distances(const struct match *m);
/* v for each distance of a key and a query, the last query and the first key first, as [P, L]: P: the axes of set, which are all that v has besides. */
ir_val look_apart(struct env *e, ir_val v, int lab, uint64_t set);
/* What that reads. */
void look_leaves(struct match *m, ir_val v, int lab, void (*leaf)(void *user, ir_val v, int lab), void *user);

/* --- score.c, emit.c --- */
/* What hides keys: numbers that take a score's place; the largest that is added to one, and the largest that operands are made of (0: none); any: an operand is
 * what nobody knows. */
struct fills { double put[MOST_FILL], added, brought; int n; bool any; };

/* A function of scalars in the making. */
struct extra { ir_val v; int lab; bool index, part, sums, apart; int64_t table; int top; enum dtype as; int n; uint8_t axis[LAB_ATOMS]; ir_val at; };      /* index: that along these axes (part: of the parts of a table); sums: the l of the rows, as such; table: so many elements are of a table, or (apart) distances that v depends on; top: 1 + the attention whose highest score it is; at: while they are found, what stands for it */
struct scalar {
	struct env *e;
	struct cand *c;
	struct ir_b b;
	bool list;               /* find the extras; nothing that is emitted is kept */
	struct extra extra[MOST_EXTRA];
	int nextra;
	struct { ir_val v; int lab; ir_val to; } node[MOST_NODE];
	int nnode;
	const char *why;
	bool infinite;           /* -inf is among what scores are made from */
	struct fills fill;
};
enum dtype score_sums(const struct env *e);    /* the type of the sums */
/* A new function of e's module for f's scores; slope: a polynomial, or 0: none is asked for; bwd: with the indices of the tallies of that, -1: of none.  s gets the
 * extras, in order of parameters.
 * With a slope, where scores are filled, weights are score_dead of l, unless that is given by the program. */
ir_fnid score_function(struct env *e, const struct fwd *f, int slope, int bwd, bool given, struct scalar *s);      /* 0: s->why */
/* May the keys of a row all be hidden by numbers beside which l says too little, for sums of type dt? */
bool score_hides(const struct fills *f, enum dtype dt);
/* What exp(score - l) is multiplied with, of a row's l, as dt: the reciprocal of its sum over the keys of a row that a mask fills, else 1. */
ir_val score_dead(struct ir_b *b, ir_val l, enum dtype dt, const struct fills *f, int64_t keys);
ir_val score_power(struct ir_b *b, ir_val x, int pow, bool *below);      /* x times itself, |pow| of them; below: pow is negative */

ir_val emit_exit(struct env *e, const struct exit *x, ir_type t);
/* All values that emit_exit reads, with their labs; calls back for each. */
bool emit_leaves(struct match *m, const struct exit *x, void (*leaf)(void *user, ir_val v, int lab), void *user);

/* --- sample.c --- */
enum { SAMPLE_LEAVES = 64 };
struct sample {
	struct match *m;
	int64_t size[ATOMS], *index[ATOMS];        /* of each axis: samples, and which indices they are */
	struct { ir_val v; int lab; double *is[2]; } leaf[SAMPLE_LEAVES];      /* what both functions read: their parameters (is: see check.c) */
	int nleaf;
	const uint8_t *known;    /* of the program's values (eval_known) */
	bool list, wide;
	int turn, depth;
	ir_val root;             /* the exit that is made: not read, though others may read it */
	struct ir_b b;
	const char *why;
};
void sample_start(struct sample *s, struct match *m);
ir_type sample_type(const struct sample *s, ir_val v, int lab);      /* of the samples of v */
bool sample_leaves(struct sample *s);          /* false: s->why */
/* New functions of the module, for the caller to drop: the region, and the ops in its place; wide: all floats are f64. */
struct ir_fn *sample_old(struct sample *s);
struct ir_fn *sample_new(struct sample *s);

/* --- check.c --- */
/* Why the ops may not take the region's place; NULL: they may.  Finds out m->empty. */
const char *check_match(struct match *m);

#endif
