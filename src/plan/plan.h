/* What work takes on a machine, and which of several ways to do it pays.  Every choice between ways asks here.
 *
 * All numbers come from one *machine table*.  Process 0 reads its own and publishes it, so that the processes of a job choose alike;
 * what is chosen depends on the program, the devices and that table: the same in all processes and runs, whatever is in a cache.
 * What is given a table or a struct plan_on looks at nothing else; a table of NULL is plan_default().
 *
 * Times are estimates in nanoseconds of one core. */
#ifndef RONDO_PLAN_H
#define RONDO_PLAN_H

#include "../base/base.h"
#include "../prog/prog.h"

/* --- table.c: the machine table ------------------------------------------------ */

enum plan_way {
#define RATE(id, dflt, least, most, meaning)
#define WAY(id, start, op, point, add, byte, meaning) PLAN_##id,
#include "rates.def"
#undef WAY
#undef RATE
	PLAN_WAYS
};
enum plan_rate {
#define WAY(id, start, op, point, add, byte, meaning)
#define RATE(id, dflt, least, most, meaning) PLAN_##id,
#include "rates.def"
#undef RATE
#undef WAY
	PLAN_RATES
};
extern const char *const plan_way_name[PLAN_WAYS], *const plan_way_meaning[PLAN_WAYS], *const plan_rate_name[PLAN_RATES], *const plan_rate_meaning[PLAN_RATES];

enum { PLAN_PARTS = 5, PLAN_SIZES = 12 };
extern const int64_t plan_size[PLAN_SIZES];  /* bytes (as struct coll_rule has them) at which curves have points, ascending */
enum plan_source { PLAN_DEFAULT, PLAN_MEASURED, PLAN_FILE, PLAN_JOB };
struct plan_table {
	uint8_t source;                          /* enum plan_source; not part of what the table says */
	double way[PLAN_WAYS][PLAN_PARTS];       /* start, op, point, add, byte */
	double rate[PLAN_RATES];
	/* Time of a collective among `members` devices, by size; 0: not measured.  Beyond the last point it goes on straight. */
	int members[COLL_TOPOS];
	float ns[COLL_TOPOS][COLL_COUNT][COLL_ALGOS][PLAN_SIZES];
	/* Which algorithm is taken: of what was measured the one of least price (plan_rules), else prog_rules_init's; then RONDO_COLL. */
	struct coll_rule rule[COLL_TOPOS][COLL_COUNT][COLL_RULES];
};
/* Where nothing was measured; lives for ever. */
const struct plan_table *plan_default(void);
/* The table that this process would use if it were alone: the file that RONDO_TABLE names, or the default; else what was measured on a machine like
 * this one, if it was; else the default with the products of this machine's instruction set.  A file of the cache folder that is no table, or of another machine, is not used, and a line says why; one that the user
 * names is an error, and its machine may be another.  Then RONDO_COLL.  INVALID names setting and line, and *t is the table without that setting. */
struct err *plan_table_get(struct plan_table *t);
/* The same, for who goes on: a setting that is wrong is ignored, with a line. */
void plan_table_use(struct plan_table *t);
/* What a text says: version, machine, rates, curves; *t stays as it is if it fails.  INVALID names the line; PRECONDITION if here and the
 * table is of a machine that is not like this one. */
struct err *plan_table_parse(struct plan_table *t, const char *text, size_t n, bool here);
void plan_table_print(struct str *s, const struct plan_table *t);            /* reads back to the same hash */
uint64_t plan_table_hash(const struct plan_table *t);                        /* of all that decides */
/* What this machine is: what a measured table is known by. */
void plan_machine(struct str *s);
void plan_table_path(struct str *s, bool make);              /* of this machine's file; empty without a cache */
/* Where t is from, in words: "the default", "measured, PATH". */
void plan_table_where(struct str *s, const struct plan_table *t);

/* --- road.c: which algorithm a collective takes ------------------------------------ */

/* Time of k by algorithm a among the members that were measured; 0: not measured.  bytes: as struct coll_rule has them. */
double plan_curve(const struct plan_table *t, enum coll_topo topo, enum coll_kind k, enum coll_algo a, double bytes);
/* The thresholds at which algorithms of least price change; false: nothing was measured, and rule is as it was. */
bool plan_rules(const struct plan_table *t, enum coll_topo topo, enum coll_kind k, struct coll_rule rule[COLL_RULES]);
/* All rules of t, from its curves; what was not measured gets the default's. */
void plan_rules_all(struct plan_table *t);
/* What RONDO_COLL says: "ring", or "all_reduce=ring,permute=slot".  A later word counts before an earlier one; one that has no effect is
 * refused, INVALID. */
struct err *plan_table_override(struct plan_table *t, const char *text);

/* --- measure.c: what is kept of a measurement ------------------------------------ */

/* How steady it was: whoever measures the same thing several times says so. */
struct plan_gauge { int n, unsteady; double others; };       /* things; of these, such whose repeats disagree; cores that others took */
/* The median of n times of one thing, which are sorted; of fewer than 3 times nobody knows whether they agree. */
double plan_gauge_add(struct plan_gauge *g, double *sample, int n);
/* PRECONDITION says why the machine was not quiet; _load: by what others took alone, before anything was measured. */
struct err *plan_gauge_load(const struct plan_gauge *g);
struct err *plan_gauge_quiet(const struct plan_gauge *g);
/* Make t this machine's table, rounded to what a measurement is worth, and its rules anew; of a machine that was not quiet nothing is kept.
 * path: gets where it is. */
struct err *plan_table_store(struct plan_table *t, const struct plan_gauge *g, struct str *path);

/* --- plan.c: prices ---------------------------------------------------------------- */

/* How an attention over a sequence that devices share gets what the others have, by RONDO_RING: its words, in order (conf.def). */
enum plan_ring { PLAN_RING_AUTO, PLAN_RING_IN_ORDER, PLAN_RING_HEADS, PLAN_RING_GATHER, PLAN_RING_SENT, PLAN_RING_BARRIER };
enum plan_ring plan_ring(void);

/* What a program is compiled for.  Zeros: one device, or any number on one host with a core each. */
struct plan_on {
	const struct plan_table *table;
	int ndev, cores;          /* devices of the job; cores of all its hosts, 0: as many as devices */
	const int *host;          /* by position: which host it is on; NULL: all on one */
	enum plan_ring ring;
};
uint64_t plan_hash(const struct plan_on *p, int npos);          /* of all that a choice may depend on; npos: positions of the program */

/* One run of it.  flops: operations on elements; adds: how long they take, in additions of f32; bytes that it reads and writes; ops
 * that run. */
struct plan_work { double flops, adds, bytes, ops; };

double plan_time(const struct plan_table *t, const struct plan_work *w, enum plan_way way);
/* Making code of nops ops, which for an element take adds additions. */
double plan_compile_time(const struct plan_table *t, double nops, double adds);
/* Launches that a program is compiled for, one of which takes ns and runs so many ops: JAX users jit what they call again and again, a
 * step of training or decoding some thousand times at least, and what is short more often, until all its launches have taken LIFE.  A
 * program of one op or a few is a call that JAX makes eagerly, of which there are hundreds: it should be there at once. */
double plan_launches(double ns, double ops);
/* Does what a run saves outweigh, over all runs, the time to compile? */
bool plan_worth_compiling(const struct plan_table *t, const struct plan_work *w, enum plan_way otherwise, double nops, double adds, double runs);
/* Work of a part of an op, apart from where it runs: operations of a product of such elements, bytes that are read or written. */
double plan_part_time(const struct plan_table *t, enum dtype dt, double products, double bytes);
/* One run of a kernel whose operands are in no cache, for who splits or sends away what takes long: it may be much faster. */
double plan_kern_time(const struct plan_table *t, const struct prog_kern *k);
/* The same where they are in caches near, if that is known of its kind and they fit in there: what a second core can take over at least. */
double plan_kern_near(const struct plan_table *t, const struct prog_kern *k);

/* What one core takes for a kernel at least, at the rates of the table: its operations, or its bytes, whichever takes longer.  0: nobody knows. */
double plan_kern_limit(const struct plan_table *t, const struct prog_kern *k);
/* The most that one core does in a nanosecond: operations of the type that goes fastest; bytes of the memory. */
double plan_peak_flops(const struct plan_table *t);
double plan_peak_bytes(const struct plan_table *t);

/* The members of a group: how many, on how many hosts, and on the host that has most of them; levels: bit k: by algorithm levels fewer bytes go
 * between hosts (prog_topo_far, of sums that need no more room on their way); beside: other groups that go over the link of one host with it. */
struct plan_group { int n, hosts, most; uint32_t levels; int beside; };
/* Of rows of n positions, which do the same at the same time: the one on the most hosts.  A group whose members are on one host: { n, 1, n, 0 }. */
struct plan_group plan_groups_of(const struct plan_on *p, int rows, int n, const int64_t *pos);
/* Of n pairs of positions, of which at the same time the first of each gives the second something: one between hosts, if any is. */
struct plan_group plan_pairs_of(const struct plan_on *p, int n, const int64_t *pair);
/* A collective among such a group.  bytes: as struct coll_rule has them.  By the algorithm that is taken (COLL_auto), or by a; 0: by that it was
 * not measured. */
double plan_coll_time(const struct plan_on *p, enum coll_kind k, struct plan_group g, double bytes, enum coll_algo a);
/* Bytes that come into each of n devices of one host by it. */
double plan_coll_bytes(enum coll_kind k, int n, double bytes);
/* The algorithm that is taken, and of the others that were measured the best; COLL_auto: there is none. */
enum coll_algo plan_coll_algo(const struct plan_on *p, enum coll_kind k, struct plan_group g, double bytes);
enum coll_algo plan_coll_other(const struct plan_on *p, enum coll_kind k, struct plan_group g, double bytes);
/* Each of a group gets that many bytes from the others by a collective of kind k (all_gather, reduce_scatter, all_to_all, permute). */
double plan_move_time(const struct plan_on *p, enum coll_kind k, struct plan_group g, double bytes);
/* What each has, of that many bytes, is summed for all. */
double plan_sum_time(const struct plan_on *p, struct plan_group g, double bytes);
/* One run of a collective of a compiled program at a position: about what it takes where nobody is late, and the bytes that that device gets.
 * *in_place: it is a loan within a host, whose readers read these bytes where they lie: nothing is copied, and what it takes is the waits. */
double plan_prog_coll(const struct plan_on *on, const struct prog *p, const struct prog_coll *c, int pos, double *bytes, bool *in_place);

#endif
