/* The compiled program: what the compiler half hands to the run half.
 *
 * A tree of commands over tables of buffers, kernels, groups and sites.  One
 * prog for all devices: what differs per device is a table indexed by the
 * device's position (0 .. ndev-1).  It prints, parses, saves, loads and checks
 * itself for races.  A prog is immutable once made and may then be used by any
 * number of threads. */
#ifndef RONDO_PROG_H
#define RONDO_PROG_H

#include "../base/base.h"

/* --- kernels ------------------------------------------------------------ */

enum kern_id {
#define KERN(id, operands, attrs, meaning) KERN_##id,
#include "kern.def"
#undef KERN
	KERN_COUNT
};
extern const char *const prog_kern_name[KERN_COUNT];

/* An operand of a kernel: an array inside a buffer.  Element (i0, i1, ..) lies at
 * base + (off + sum i_d * stride[d]) * bytes of dtype.  Strides are in elements, may be 0 or
 * negative for operands; results never overlap themselves. */
struct prog_view {
	uint8_t dtype;
	uint8_t rank;
	int64_t off;              /* elements */
	int64_t *dim, *stride;    /* rank entries each */
};

/* A scalar function in straight-line form.  Registers 0 .. nin-1 are the inputs (types in_type),
 * register nin+i is the result of instruction i. */
enum { EXPR_IMM = ELEM_COUNT,     /* constant: imm holds the element's bytes */
       EXPR_ROUND,                /* reduce_precision: imm[0] exponent bits, imm[1] mantissa bits */
       EXPR_LOOK };               /* of a table, an input that is nothing else, the element at an i32 index, clamped; imm: its length, an i32.  Attention alone has such */
struct prog_ins {
	uint16_t fn;              /* enum elem, or EXPR_* */
	uint8_t from;             /* dtype of the operands (of operands 1.. for select, of the table) */
	uint8_t to;               /* dtype of the result */
	uint16_t src[3];          /* registers */
	uint8_t imm[16];
};
/* Operands of an instruction; -1 if there is no such function. */
static inline int prog_ins_nin(unsigned fn) { return fn < ELEM_COUNT ? elem_info[fn].nin : fn == EXPR_IMM ? 0 : fn == EXPR_ROUND ? 1 : fn == EXPR_LOOK ? 2 : -1; }
struct prog_expr {
	uint16_t nin, nout, n;
	uint8_t *in_type;         /* nin */
	struct prog_ins *ins;     /* n */
	uint16_t *out;            /* nout registers */
};

struct prog_kern {
	uint16_t id;              /* enum kern_id */
	uint16_t nin, nout;
	struct prog_view *v;      /* nin operands, then nout results */
	uint32_t nattr;
	int64_t *attr;
	struct prog_expr *expr;   /* or NULL */
	uint8_t imm[16];          /* fill's element */
	int32_t code;             /* gen: index into prog->code, else -1 */
	int64_t tiles;            /* gen: size of the grid; 0 else (kern_tiles decides) */
	int64_t block, times;     /* gen: of operands that have as many elements as the largest array, or, of what is made several times over, as the
	                           * largest operand, tile t reads elements [t * block, (t + 1) * block) alone, and it makes these of each
	                           * result, or of a smaller one the same part, all dense.  Smaller operands it may read as it likes.  times > 1:
	                           * results are so many times the same, tile t * times + k makes tile t of repetition k.  0: no such rule */
	bool open;                /* gen: how often a loop in it turns only data tell; flops and bytes are a guess then */
	int64_t flops, bytes;     /* estimate of the work: additions, of a product additions and multiplications; bytes read and written at least */
};

/* Generated code: an object, as the loader in rt takes it, with one function per symbol, signature prog_code_fn. */
struct prog_code { char *symbol; void *obj; size_t nobj; uint64_t key; };
/* ptr: base address of each operand then each result; tiles t0 .. t1-1 of the grid are done. */
typedef void prog_code_fn(char *const *ptr, int64_t t0, int64_t t1);

/* --- buffers ------------------------------------------------------------ */

enum prog_buf_kind { BUF_ARG, BUF_OUT, BUF_TEMP, BUF_CONST, BUF_LENT };
enum { BUF_PEER = 1 };            /* another device touches it */
struct prog_buf {
	uint8_t kind, bits;
	uint32_t index;           /* ARG: parameter; OUT: result; LENT: the loan (collective) that it belongs to */
	int64_t size;             /* bytes */
	int64_t off;              /* TEMP: offset in the program zone, or in its alias; CONST: in prog->data; LENT: in the zone and what is behind it, of
	                           * storage that is used where what is lent must be copied.  64-byte aligned */
	int32_t alias;            /* TEMP: the OUT buffer in whose storage it lies, which is written when it is done with, or -1: in the zone.
	                           * OUT: the donated ARG buffer whose storage it takes, or -1.  If at run time the
	                           * donation is declined, the runtime allocates the output and copies the argument into it. */
};

/* base(buf) + off + sum reg * mul, in bytes. */
struct prog_opnd { uint32_t buf; int64_t off; uint16_t reg[2]; int64_t mul[2]; };   /* reg 0 = none */

/* --- commands ------------------------------------------------------------ */

/* Loans.  A permute or an all_gather (coll) whose `hops` is not 0 is no command CMD_COLL but these, in this order; what moves is read where
 * it lies on devices that map each other's memory, and is copied elsewhere: the program is the same.
 *
 *   lend coll (X)                X may be read by the next `hops` devices along the permute's links, and those before this one lend theirs.
 *   next coll by K (A) -> (B)    B, a LENT buffer of coll, is what the device that this one receives from has in A; zeros if it receives
 *                                from nobody.  A is what was lent, or a LENT buffer of coll, also B itself.  By 0: B is A of this
 *                                device; what is no LENT buffer need not be lent then, but is to be returned.  A LENT buffer that is
 *                                both, or another one is it by 0, has two halves, each of a multiple of 64 bytes.
 *   next coll (A) -> (B0, ..)    of an all_gather: each B, a LENT buffer of coll, is what one of the group has lent, in rank order.
 *   back coll                    This device has read what it was lent: the LENT buffers of coll have no value any more.
 *   wait coll but K              What this device lent has come back, but for the last K times (0 or 1): it may be written.
 *
 * What is lent may be a LENT buffer of another loan, which then goes back when this one has come back.  A loan is lent again after its own
 * back, and at most once more before the wait.  Of what was returned each waits for what comes before it in the program alone: back before
 * wait.  So whoever is at the earliest command of all can go on, and nobody waits for ever. */
enum prog_op {
	CMD_KERN,      /* id = kernel; opnd: its operands then its results; imm: enum prog_then */
	CMD_SET,       /* reg[0] = imm */
	CMD_ADD,       /* reg[0] = reg[1] + reg[2] + imm */
	CMD_MUL,       /* reg[0] = reg[1] * imm */
	CMD_MIN, CMD_MAX,  /* reg[0] = min/max(reg[1], imm) */
	CMD_LD,        /* reg[0] = the integer scalar of dtype at opnd[0], sign- or zero-extended */
	CMD_ST,        /* the integer scalar of dtype at opnd[0] = reg[1] + imm */
	CMD_TABLE,     /* reg[0] = table imm at this device's position */
	CMD_LOOP,      /* reg[0] runs 0 .. imm-1 (imm < 0: reg[1] is the count); block[0] is the body */
	CMD_WHILE,     /* run block[0] (the condition, which sets reg[0]); while reg[0] != 0 run block[1], block[0] */
	CMD_CASE,      /* run block[clamp(reg[0])]; outside 0 .. nblock-1 takes the last */
	CMD_COLL,      /* collective: coll, see prog_coll; opnd: nin operands, slices if it has such, then nin results */
	CMD_CUSTOM,    /* host code: custom; opnd: operands then results */
	CMD_MARK, CMD_AWAIT,   /* across lanes: AWAIT imm on a lane comes after MARK imm on another */
	CMD_LEND,      /* id = coll; opnd: X */
	CMD_NEXT,      /* id = coll, imm 1 or 0: by; opnd: A then B, or of an all_gather as many as are in the group */
	CMD_BACK,      /* id = coll */
	CMD_WAIT,      /* id = coll, imm 0 or 1: but */
};

/* A kernel may follow the all_reduce or reduce_scatter that is the command before it part by part: each tile when what it reads of the sum is
 * there, while peers may still read other parts of the operand of that.  So what it makes lies apart from the operand, or over it part for
 * part; repetitions of a block that was scattered, one for each member, may lie over it, too.  It makes what it makes without that, but with THEN_all the sum itself has no value any more, unless the result lies there: behind an all_reduce who has
 * reduced a part runs it for all; other operands are constants then. */
enum prog_then { THEN_none, THEN_each, THEN_all };
/* Bytes that parts of a sum consist of, where one device makes them for all: a multiple of what a tile of THEN_all makes. */
enum { PROG_UNIT = 16384 };

struct prog_coll {
	uint8_t kind;             /* enum coll_kind */
	uint8_t algo;             /* enum coll_algo; COLL_auto: the machine's table decides when it runs */
	uint8_t dtype, redop;     /* element type; reduction */
	uint16_t nin;             /* operands (each with its result): reduced or moved together */
	uint16_t hops;            /* a loan, of which so many devices along the links read what each lends; of an all_gather all others; 0: it is none */
	uint32_t group;           /* table index; permute: unused */
	uint32_t pairs;           /* permute, loan: index into prog->table of "receive from" (-1 none), +1 of "send to"; of an all_gather the group as a ring */
	struct prog_expr *expr;   /* redop fn: (acc, x) -> acc */
	/* all_gather: operand is [outer] rows of inner bytes, result [outer][n] of them.  reduce_scatter: the
	 * reverse.  all_to_all: operand [outer][n] of inner bytes -> block j; result [outer2][n] of inner2
	 * bytes; elements of a block keep row-major order.  Others: outer 1, inner = all bytes. */
	int64_t outer, inner, outer2, inner2;
	/* all_to_all whose blocks are boxes (nbox > 0 numbers, else none): rank, extents of the operand, of the result; then rows: target
	 * and source position, first element in the operand, in the result, extents.  inner and inner2 are the bytes of both. */
	uint32_t nbox;
	int64_t *box;
	/* all_to_all whose blocks are rows that data name (slices > 0 of them, else none), of so many bytes each: operands are rows, then the slices, i64
	 * [slices][SLICE_NUMBERS], of each member as many, in rank order; the result keeps what no slice is written over.  Of nin 1;
	 * inner and inner2 are as of boxes. */
	int64_t slices, row;
};
/* w: the same, of those rows alone that are in an operand of `have` rows and in a result of `room`; zeros, if there are none. */
void prog_slice_clip(int64_t w[SLICE_NUMBERS], int64_t have, int64_t room);
enum { PROG_BOX_RANK = MAX_RANK };     /* dimensions of boxes at most */
enum coll_kind {
#define COLL(id, text) COLL_##id,
#include "../base/coll.def"
#undef COLL
	COLL_COUNT
};
extern const char *const prog_coll_name[COLL_COUNT];
/* How a collective is done: rows of algo.def. */
enum coll_algo {
#define ALGO(id, name, kinds, meaning) COLL_##id,
#include "../base/algo.def"
#undef ALGO
	COLL_ALGOS
};
extern const char *const prog_algo_name[COLL_ALGOS];
/* Who takes part: rows of topo.def. */
enum coll_topo {
#define TOPO(id, name, meaning) COLL_##id,
#include "../base/topo.def"
#undef TOPO
	COLL_TOPOS
};
extern const char *const prog_topo_name[COLL_TOPOS];

/* --- rule.c: which algorithm a collective takes ------------------------------ */

bool prog_algo_has(enum coll_algo a, enum coll_kind k);      /* can it do k? */
/* From so many members on (COLL_MANY) no member sends to each other one: what all tell all goes in rounds. */
enum { COLL_ROUNDS = 17 };
/* far: the group reaches beyond what maps each other's heaps.  npe: devices of the job, on so many cores; members: of the group. */
static inline enum coll_topo prog_topo(bool far, int npe, int cores, int members)
{
	return far ? COLL_FAR : members >= COLL_ROUNDS ? COLL_MANY : npe > cores ? COLL_CROWD : members == 2 ? COLL_PAIR : COLL_GROUP;
}
/* COLL_HOSTS or COLL_FAR, of n <= COLL_ROW members, of which the k-th in rank order is on host[k], not all on one: do fewer bytes go between
 * hosts by algorithm levels than by the others?  Of a reduction: into, or out of, the host that has the most of them, for a sum that climbs
 * waits for those below.  spread: times the bytes of an element that a sum so far has. */
enum { COLL_ROW = 1024 };
enum coll_topo prog_topo_far(enum coll_kind k, int spread, int n, const int *host);
/* The first row with bytes < below; the last one has INT64_MAX.  bytes: of an operand (all_reduce, permute, broadcast, scan), or of what two
 * devices exchange (all_gather, reduce_scatter, all_to_all). */
enum { COLL_RULES = 8 };
struct coll_rule { int64_t below; uint8_t algo; };
/* Where nothing was measured: XLA's rule for NVSHMEM (all_reduce below 16 MiB through symmetric memory, from there on ring; permute always
 * symmetric); within it as two kinds of machines had it. */
void prog_rules_init(struct coll_rule rule[COLL_TOPOS][COLL_COUNT][COLL_RULES]);
static inline enum coll_algo prog_rule_pick(const struct coll_rule *r, int64_t bytes)
{
	while (bytes >= r->below && r->below != INT64_MAX)
		r++;
	return (enum coll_algo)r->algo;
}

struct prog_custom {
	char *target;
	int api;                  /* custom-call API version; 4 = typed FFI */
	bool effect;
	void *dict; size_t ndict; /* attributes: a dictionary blob (ir.h describes the bytes) */
	uint16_t nin, nout;
	struct prog_view *v;      /* dense shapes of operands then results */
};

enum { PROG_LANES = 4, PROG_MARKS = 1 << 24 };      /* lanes that a program may have; numbers of marks are below that */
struct prog_cmd {
	uint8_t op, lane, dtype;
	uint16_t reg[3];
	uint32_t site;            /* index into prog->site */
	uint32_t id;              /* CMD_KERN: kernel, CMD_COLL and loans: prog->coll, CMD_CUSTOM: prog->custom */
	int64_t imm;
	uint32_t nopnd, opnd;     /* range of prog->opnd */
	uint32_t nblock, block;   /* range of prog->sub: block ids */
};
struct prog_block { uint32_t n; struct prog_cmd *cmd; };

struct prog_group { int nrow, ncol; int64_t *id; int32_t *row, *rank; /* per position, -1 = alone */ };
struct prog_site { char *text, *scope; };        /* "train.py:31 dot"; the name that JAX gives it, "jit(step)/block/dot_general", or NULL */
struct prog_table { int64_t *v; };       /* ndev entries */

/* A parameter or result. */
struct prog_arg {
	uint8_t dtype, rank;
	int64_t *dim;             /* of the shard each device holds */
	int64_t *global_dim;      /* of the whole array */
	int64_t bytes;
	int32_t alias;            /* parameter: result it is donated to, -1; -2 donated to none in particular */
	void *sharding; size_t nsharding;     /* serialized xla.OpSharding */
	char *memory_kind;        /* "device" if NULL */
	char *layout;             /* how it lies (base.h); row-major if NULL */
};

/* Where launches are counted, in a mapping that prog_free ends; zeros: nowhere. */
struct prog_count { _Atomic int64_t *n; void *map; size_t size; };

struct prog {
	struct arena arena;       /* everything below lives here */
	char *name;
	int ndev;
	uint32_t nreg;            /* registers 1 .. nreg-1; 0 reads as 0 */
	uint32_t nbuf;   struct prog_buf *buf;
	uint32_t nkern;  struct prog_kern *kern;
	uint32_t nopnd;  struct prog_opnd *opnd;
	uint32_t nsub;   uint32_t *sub;
	uint32_t nblock; struct prog_block *block;   /* block 0 is the program */
	uint32_t ngroup; struct prog_group *group;
	uint32_t ncoll;  struct prog_coll *coll;
	uint32_t ncustom; struct prog_custom *custom;
	uint32_t nsite;  struct prog_site *site;
	uint32_t ntable; struct prog_table *table;
	uint32_t ncode;  struct prog_code *code;
	uint32_t narg;   struct prog_arg *arg;
	uint32_t nres;   struct prog_arg *res;
	int64_t zone;             /* bytes of TEMP storage */
	int64_t far;              /* bytes behind it, of LENT storage alone, which no device needs that reads all its loans in place */
	int64_t ndata; void *data;/* constants, 64-byte aligned */
	int64_t flops;            /* operations on elements of a launch */
	uint64_t fingerprint;     /* of the program's source, equal in all processes */
	uint64_t comm_hash;       /* of its communication commands */
	struct prog_count launches;
	int64_t needs;            /* bytes that a launch takes of each device at most, as it was asked on that machine (struct pass_opts); 0: not known */
};

/* --- live.c: memory of a device, command by command ---------------------------- */

struct prog_held { int64_t first, last; uint32_t site; };        /* a buffer: from which command to which it is needed; whose it is */
struct prog_like { int64_t bytes, n; const char *site; };        /* n temporaries of so many bytes each, from one line */
struct prog_live {
	int64_t ncmd, *live;      /* commands, in their order, those of a loop once; bytes of temporaries during each */
	int64_t peak, most;       /* the command with most of them; how many */
	struct prog_held *held;   /* by buffer; first -1: never */
	struct prog_like *like;   /* alive at the peak, the largest first */
	size_t nlike;
};
void prog_live(struct arena *a, const struct prog *p, struct prog_live *to);       /* arrays are the arena's, texts p's */
const char *prog_site_text(const struct prog *p, uint32_t site);         /* "(no line)" if it has none */

/* How often a launch runs each kernel, each collective (NULL: not asked), where a while is taken to make so many turns. */
void prog_runs(const struct prog *p, int64_t turns, int64_t *kern, int64_t *coll);
struct prog *prog_new(void);
void prog_free(struct prog *p);              /* NULL is fine */
/* Does each result of this collective command lie where its operand lies, on all devices? */
bool prog_in_place(const struct prog *p, const struct prog_cmd *c);
bool prog_same_opnd(const struct prog_opnd *a, const struct prog_opnd *b);
/* Why kernel command c cannot follow command r part by part, as far as the two say where nothing overlaps (prog_check looks at that): a static
 * text; NULL: it can.  Both are sound by themselves. */
const char *prog_follows_not(const struct prog *p, const struct prog_cmd *r, const struct prog_cmd *c, enum prog_then how);
/* If result i of such a c begins where the operand of r begins: does each part that it makes lie over one that peers do not read any more? */
bool prog_then_over(const struct prog *p, const struct prog_cmd *r, const struct prog_cmd *c, uint32_t i);
/* The piece of storage that holds a buffer, and the byte where the buffer begins in it: -1 the constants, 0 the zone, then arguments, then results
 * that lie in no argument. */
int prog_space(const struct prog *p, uint32_t buf, int64_t *base);
int64_t prog_view_count(const struct prog_view *v);          /* elements */
/* May a sort of so many operands, of that type, leave its result over its operand, of the same view? */
static inline bool prog_sort_over(int nin, enum dtype dt) { return nin == 1 && (dtype_info[dt].bytes == 2 || dtype_info[dt].bytes == 4); }
/* The positions that a permute (its two tables) links with pos, in the order of sending, equal for all of them; open: the
 * first receives nothing.  Returns their number; 0 if there are more than COLL_CYCLE. */
enum { COLL_CYCLE = 8 };
int prog_cycle(const int64_t *from, const int64_t *to, int pos, int *out, bool *open);
/* The position k links along `link` (a table of a permute) from pos, where k > 0; -1 if the links end before, or pos if they have come round. */
int prog_link(const int64_t *link, int pos, int k);
void prog_print(struct str *s, const struct prog *p);        /* code objects as their keys */
/* ERR_INVALID with line; objects cannot be given as text: such a program is refused at load. */
struct err *prog_parse(const char *text, size_t n, struct prog **out);
void prog_save(struct str *s, const struct prog *p);         /* binary, self-contained, versioned, with a checksum */
struct err *prog_load(const void *p, size_t n, struct prog **out);   /* validates every index: bad bytes are ERR_DATA_LOSS */
/* Offsets inside buffers, registers set before use, groups that agree; then the race check: all devices
 * with vector clocks over (device, lane), every conflicting pair of accesses ordered, collectives matched. */
struct err *prog_check(const struct prog *p);
uint64_t prog_comm_hash(const struct prog *p);
/* Bytes of a device's arguments, of its results, and of those results that lie in the storage of arguments. */
void prog_sizes(const struct prog *p, int64_t *arg, int64_t *res, int64_t *shared);
int64_t prog_view_bytes(const struct prog_view *v);          /* extent from the lowest to past the highest byte */
bool prog_view_dense(const struct prog_view *v);             /* row-major without gaps */
void prog_view_make(struct arena *a, struct prog_view *v, enum dtype dt, int rank, const int64_t *dim);   /* dense */
/* A group from its rows of positions (-1 pads): id is copied, row and rank of ndev positions are filled. */
void prog_group_make(struct arena *a, struct prog_group *g, int ndev, int nrow, int ncol, const int64_t *id);

#endif
