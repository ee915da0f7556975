/* Products: which form runs, which micro-kernel, in what blocks. */
#include "matmul_impl.h"
#include "micro.h"

enum { FEW_COLS = 512, FEW_K = 32, FEW_DOT = 8192, FEW_TURN = 32, MOST_K = 1 << 20, SMALL = 24 * 24 * 24, SMALL_ROWS = 32 * 32 * 32, SMALL_ROW = 16 * 16 * 16, SMALL_K = 256, FEW_ROWS = 64, LONG_COLS = 1024,
       SHORT_COLS = 256, BLOCK_KO = 1280, BLOCK_KC = 640, BLOCK_SUM = 128, SMALL_SUM = 32, SHORT_SUM = 16, PAIRS_SUM = 256, RUNS_IN_ROW = 4,
       SMALL_WORK = 1 << 22, BLOCK_BYTES = 5 << 18, MOST_ROWS = 4096, KEEP_ROWS = 1024, KEEP_COLS = 2048, TILE_RUN = 4, STORE_APART = 100,
       FEW_BYTES = 1 << 18, BESIDE = 16 };

const struct matmul_variant *matmul_force;
int matmul_habits = -1;

static bool pays(bool here) { return matmul_habits < 0 ? here : matmul_habits; }

/* Those of the contracted dimensions; false: too many that are not even. */
static bool contracted(struct arena *a, int c, const int64_t *dim, const int64_t *stride, int64_t *n, struct matmul_side *o)
{
	int64_t count = 1, some = MATMUL_K;
	bool even = true;
	for (int i = c; i-- > 0;) {
		if (dim[i] == 1)
			continue;
		if (count == 1)
			o->k_step = stride[i];
		else
			even &= stride[i] == o->k_step * count;
		count *= dim[i];
	}
	o->k_even = even && count > MATMUL_K;
	*n = count;
	if (!even && count > MOST_K)
		return false;
	if (o->k_even)
		o->k = matmul_offsets(a, 1, &some, &o->k_step, n);
	else
		o->k = matmul_offsets(a, c, dim, stride, n);
	*n = count;
	return true;
}

static bool unit(const int64_t *o, int64_t n)
{
	for (int64_t i = 1; i < n; i++)
		if (o[i] != i)
			return false;
	return true;
}

static bool unit_axis(const struct matmul_axis *x)
{
	return x->n <= 1 || (x->even && x->step == 1);
}

static bool starts_unit(const struct matmul_axis *x, int64_t n)
{
	for (int64_t i = 1; i < n; i++)
		if (matmul_at(x, i) != i)
			return false;
	return true;
}


/* Products of these modulo 2^32 are what is asked for. */
static bool int_ok(enum dtype dt)
{
	int cls = dtype_info[dt].cls, bits = dtype_info[dt].bits;
	return (cls == DT_INT || cls == DT_UINT) && (bits == 8 || bits == 16 || bits == 32);
}

static bool fits(const struct matmul_variant *v, const struct matmul_tables *t)
{
	return t->ints ? false : t->i8 ? v->es == 1 : v->es == 4 || (v->es == 2 && t->bf16);
}

static const struct matmul_variant *choose(const struct matmul_tables *t)
{
	if (matmul_force && fits(matmul_force, t))
		return matmul_force;
	for (int i = 0; i < matmul_nvariant; i++)
		if (fits(&matmul_variant[i], t) && matmul_variant[i].has() && matmul_variant[i].best())
			return &matmul_variant[i];
	return NULL;
}

/* n in equal parts of at most `most`, in whole steps. */
static int64_t blocks(int64_t n, int64_t most, int64_t step)
{
	int64_t parts = (n + most - 1) / most;
	return matmul_pad((n + parts - 1) / parts, step);
}

/* Are there so few columns that their panels would be empty for the most part, and rows would fill such?  What that saves must pay for elements
 * of the result that are stored one by one. */
static bool narrow(const struct matmul *p)
{
	if (!p->v || p->v->es != 4)
		return false;
	int64_t nr = p->v->nr, as_is = matmul_pad(p->m, 4) * matmul_pad(p->n, nr / 2), turned = matmul_pad(p->n, 4) * matmul_pad(p->m, nr / 2);
	return (as_is - turned) * p->k > STORE_APART * p->m * p->n;
}

/* What is from one element of the contraction to the next; 0: not the same everywhere. */
static int64_t apart_k(const struct matmul_side *o, int64_t k, int64_t alone)
{
	int64_t far = k > 1 ? o->k[1] - o->k[0] : alone;
	for (int64_t x = 1; x < (o->k_even ? MATMUL_K : k); x++)
		if (o->k[x] != o->k[0] + x * far)
			return 0;
	return far;
}

/* Can whole panels of rhs be read where they lie?  Sets ldb. */
static bool reads_in_place(struct matmul *p)
{
	const struct matmul_variant *v = p->v;
	if (!v || !v->in_place || p->m > FEW_ROWS || p->n < v->nr || p->k % v->kstep || !p->r.free_unit || p->r.dt != (v->es == 4 ? DT_f32 : v->es == 2 ? DT_bf16 : DT_i8))
		return false;
	int64_t far = apart_k(&p->r, p->k, p->n);
	p->ldb = far * p->r.es;
	return far >= p->n;
}

/* Are there enough columns for one panel, and rows that can be read where they lie? */
static bool stands_tall(const struct matmul *p, const struct matmul_side *l, int64_t m, int64_t n)
{
	const struct matmul_variant *v = p->v;
	return v && v->tall && n >= (v->es == 2 ? 3 : MATMUL_FEW + 1) && n <= v->nr && m >= 4 * v->mr && p->k % v->kstep == 0 && l->k_unit && l->free.even &&
	       l->dt == (v->es == 4 ? DT_f32 : DT_bf16);
}

/* Rows of lhs that lie in runs along k, each a long way beside the one before, as an image's do below the kernel of a convolution: can they be read where
 * they lie?  The length of a run; 0: no. */
static int64_t runs(const struct matmul *p)
{
	enum { LEAST = 16, PANELS = 4, APART = 8 };
	const struct matmul_variant *v = p->v;
	const struct matmul_side *l = &p->l;
	int64_t n = 1, along = l->free.even ? p->m : l->free.dim[l->free.rank - 1];
	if (!v || !v->tall || v->es != 4 || l->dt != DT_f32 || l->parts != MATMUL_WHOLE || l->k_even || p->n <= MATMUL_FEW || p->n > PANELS * v->nr ||
	    p->m < 4 * v->mr || (!l->free.even && along % v->mr && along < APART * v->mr))
		return 0;
	while (n < p->k && l->k[n] == l->k[0] + n)
		n++;
	for (int64_t x = 0; x < p->k; x++)
		if (x % n && l->k[x] != l->k[x - 1] + 1)
			return 0;
	return n >= LEAST && p->k % n == 0 ? n : 0;
}

/* What is asked about an operand's offsets again and again. */
static void look_at(struct arena *a, struct matmul_side *o, int64_t k)
{
	bool times_i = o->parts == MATMUL_TIMES_I;
	int64_t known = o->k_even ? MATMUL_K : times_i ? k / 2 : k, next = o->parts == MATMUL_WHOLE ? 1 : 2;
	uint8_t *run = arena_alloc(a, (size_t)(known / 32 + 1));

	for (int64_t x = 0; x + 32 <= known; x += 32) {
		run[x / 32] = 1;
		for (int64_t y = x + 1; y < x + 32; y++)
			run[x / 32] &= o->k[y] == o->k[y - 1] + next;
	}
	o->es = dtype_info[o->dt].bytes;
	o->run = run;
	o->k_unit = !times_i && unit(o->k, known);
	o->free_unit = !times_i && unit_axis(&o->free);
}

/* Few columns, or rows of the result that lie side by side: the transposed problem.  Sets tall. */
static void orient(struct matmul *p)
{
	bool tall = stands_tall(p, &p->l, p->m, p->n), turned = !tall && stands_tall(p, &p->r, p->n, p->m);
	bool across = !starts_unit(&p->on, MIN(p->n, 16)) && p->m >= 16 && starts_unit(&p->om, 16);

	p->tall = tall || turned;
	bool few = p->n <= MATMUL_FEW && (p->r.parts == MATMUL_TIMES_I || (p->n < p->m && p->l.parts != MATMUL_TIMES_I));
	if (!turned && (tall || !(few || across || narrow(p))))
		return;
	struct matmul_side side = p->l;
	struct matmul_axis axis = p->om;
	int64_t n = p->m;
	p->l = p->r;
	p->r = side;
	p->m = p->n;
	p->n = n;
	p->om = p->on;
	p->on = axis;
	p->il = 1;
	p->ir = 0;
}

/* Few rows: long runs of each row, and tiles for all. */
static void plan_few(struct matmul *p, struct kern_state *s)
{
	bool short_rows = p->n < 16 && p->r.k_unit;
	p->few = p->r.free_unit && !short_rows ? BY_ROWS : p->k < FEW_TURN && !short_rows ? BY_TURNED : BY_DOTS;
	p->ahead = pays(micro_fetch_pays());
	p->nb = MAX(FEW_COLS, MIN(MATMUL_FEW_COLS, (p->n / (p->ahead ? 8 : 2 * cpu_get()->cores) + 63) / 64 * 64));
	if (p->few == BY_DOTS)       /* each is read by itself: several tiles for each core, if they are no short ones */
		p->nb = MIN(p->nb, MAX(MAX(1, FEW_BYTES / (p->k * p->r.es)), p->b * p->n / (4 * cpu_get()->cores)));
	p->nblk = (p->n + p->nb - 1) / p->nb;
	p->nb = MIN(p->nb, p->n);
	bool one = p->few == BY_DOTS && p->m == 1 && p->n == 1 && p->l.es == 4 && p->l.k_unit;      /* number, nothing is read twice */
	bool once = p->n == 1 && p->l.parts == MATMUL_TIMES_I;      /* what is made of lhs is read once, and so near */
	p->kc = one ? p->k : MIN(p->k, p->few == BY_ROWS ? FEW_K : once ? FEW_DOT / 8 : FEW_DOT);
	p->l_turn = p->l.es == 4 && p->l.parts == MATMUL_WHOLE && p->m > 1 && p->l.free_unit && !p->l.k_unit ? apart_k(&p->l, p->k, 0) : 0;
	s->tiles = p->b * p->nblk;
	s->phases = p->lay ? 2 : 1;
	s->shared = p->lay ? p->lay_bytes + 64 : 0;
	s->scratch = (size_t)(p->m * (p->kc + 3 * p->nb) + (p->few == BY_TURNED ? p->k * p->nb : 0)) * 4 + 128;
	s->run = matmul_run_few;
}

static size_t packed_lhs(const struct matmul *p)
{
	return (size_t)(p->b * p->npanel) * matmul_pad(p->k, p->v->kstep) * p->v->mr * matmul_es(p);
}

/* Blocks of the contraction, and how their sums add up. */
static void plan_sums(struct matmul *p)
{
	const struct matmul_variant *v = p->v;
	/* equal parts of k, in whole steps; slabs are two steps of the widest kernel: sums are read and written with each, which costs as much as two
	 * steps, but packed columns of more would not stay in L1 */
	int64_t step = MAX(MATMUL_SLAB, v->kstep), wide = v->es == 1 ? 2 : 1;
	bool small = (double)p->b * (double)p->m * (double)p->n * (double)p->k <= SMALL_WORK;      /* of few, a rounding counts for more */
	int64_t sum = !small ? BLOCK_SUM : p->k <= BLOCK_SUM ? SHORT_SUM : SMALL_SUM;

	p->chain = v->es == 4 ? sum : PAIRS_SUM;
	p->ko = blocks(p->k, BLOCK_KO * wide, step);
	p->kc = p->along ? MATMUL_ALONG : p->slab ? MIN(p->ko, MATMUL_SLAB * 2 * wide) : v->tiles ? blocks(p->ko, BLOCK_KC * wide, step) : p->ko;
	p->ko = matmul_pad(p->ko, p->kc);
	p->run = v->tiles ? TILE_RUN : 1;
	/* where f32 is long, a sum of some thousand products goes beside them too: else one number would take in all blocks of kc */
	p->apart = v->es == 4 ? p->k > p->ko * (small ? 1 : RUNS_IN_ROW) : v->es == 2 && v->tiles && p->k > p->ko * p->run;
	p->levels = v->es == 1 ? 1 : sum_levels((p->k + p->ko * p->run - 1) / (p->ko * p->run)) + p->apart;      /* integers wrap */
}

/* Blocks of columns (nb, nblk) and of rows (mblk). */
static void plan_blocks(struct matmul *p, int64_t cores)
{
	const struct matmul_variant *v = p->v;
	/* machines with tiles have 2 MB of L2 or more, others perhaps 1 MB */
	int64_t block = v->tiles ? BLOCK_BYTES : BLOCK_BYTES / 2, high = v->tiles ? MOST_ROWS : MOST_ROWS / 4;
	int64_t most = MAX(v->nr, (int64_t)(block / (p->ko * (int64_t)matmul_es(p))) / v->nr * v->nr), parts, want;

	if (p->slab)
		most = p->along ? 4 * LONG_COLS : p->in_place ? LONG_COLS : (p->n + 15) / 16 <= 128 ? 128 : 256;
	else if (v->tiles && p->m <= 4 * FEW_ROWS)       /* packed and used few times: what stays in the nearer half of L2 */
		most = MAX(v->nr, most / 4 / v->nr * v->nr);
	p->nb = MIN(matmul_pad(p->n, v->nr), p->in_place ? most : MIN(most, matmul_pad(512, v->nr)));
	p->nblk = parts = (p->n + p->nb - 1) / p->nb;
	if (p->in_place) {
		/* several for each core, but long rows */
		p->nblk = MAX(parts, MIN(2 * cores, p->n / SHORT_COLS));
		want = 1;
	} else if (v->tiles && !p->slab) {
		/* Each core its own columns, all rows: lhs is read from far as often as there are blocks of columns, and what one
		 * core packs another has far to read.  Rows are cut where columns do not suffice, and if the blocks stay high. */
		if (parts < cores)
			parts = MAX(parts, MIN(cores, p->n / 256));
		else if (parts > 1)
			parts = (parts + cores - 1) / cores * cores;
		p->nb = matmul_pad((p->n + parts - 1) / parts, v->nr);
		p->nblk = parts = (p->n + p->nb - 1) / p->nb;
		want = MAX((cores + p->b * parts - 1) / (p->b * parts), MIN(4 * cores / (p->b * parts), p->m / 1024));
	} else {
		/* enough tiles for all */
		want = p->slab ? 1 : (4 * cores + p->b * parts - 1) / (p->b * parts);
	}
	/* not more rows than keep sums of several blocks of k in cache */
	if (p->ko < p->k && !p->slab)
		want = MAX(want, (p->m + high - 1) / high);
	p->mblk = MAX(1, MIN(want, p->npanel / 4));
	while (p->mblk > 1 && !v->tiles && p->b * p->nblk * p->mblk % cores && p->mblk < p->npanel / 3)       /* as many for each core */
		p->mblk++;
}

/* What is packed once for all, and what by each tile; then the blocks are made even. */
static void plan_packing(struct matmul *p, int64_t cores)
{
	const struct matmul_variant *v = p->v;
	bool cheap = p->l.k_unit || p->l.run[0];

	p->panel = ((size_t)(matmul_pad(p->k, v->kstep) * v->mr) * matmul_es(p) + 63) & ~(size_t)63;
	p->rpanel = ((size_t)(matmul_pad(p->k, v->kstep) * v->nr) * matmul_es(p) + 63) & ~(size_t)63;
	p->share_rhs = p->mblk > 1 && !v->tiles;
	/* copying rows is cheap, if not done by each core many times; turning or converting them is not, unless few columns pass by */
	p->lazy = p->tall || (!p->slab && (p->nblk == 1 || (cheap && p->l.dt == (v->es == 2 ? DT_bf16 : DT_i8) && v->tiles && p->nblk < 2 * cores)));
	p->nc = p->nb;
	if (!p->slab && ((p->lazy ? 0 : packed_lhs(p)) + (p->share_rhs ? (size_t)(p->b * p->npanel_r) * p->rpanel : 0) > MATMUL_PACK_MOST)) {
		/* too much to pack it all: a tile packs rows of lhs for some blocks of its columns, and its columns again */
		p->lazy = true;
		p->share_rhs = false;
		p->keep = true;
		int64_t wide_cols = MAX(1, KEEP_COLS / p->levels / p->nc), panels = MAX(1, KEEP_ROWS / v->mr);
		p->nb = MIN(wide_cols, (p->n + p->nc - 1) / p->nc) * p->nc;
		p->mblk = (p->npanel + panels - 1) / panels;
		while (p->nb > p->nc && p->b * ((p->n + p->nb - 1) / p->nb) * p->mblk < 4 * cores)
			p->nb = (p->nb / p->nc + 1) / 2 * p->nc;
		p->nblk = (p->n + p->nb - 1) / p->nb;
	}
	/* as many for each core */
	while (p->nblk > 1 && p->b * p->nblk * p->mblk % cores && p->nblk < p->npanel_r)
		p->nblk++;
	p->nb = (p->npanel_r + p->nblk - 1) / p->nblk * v->nr;
	p->mb = (p->npanel + p->mblk - 1) / p->mblk * v->mr;
	p->nc = MIN(p->nc, p->nb);
}

/* Memory: of a thread, and packed for all. */
static void plan_room(struct matmul *p, struct kern_state *s)
{
	const struct matmul_variant *v = p->v;

	p->apanel = ((size_t)(matmul_pad(p->keep ? p->ko : p->kc, v->kstep) * v->mr) * matmul_es(p) + 63) & ~(size_t)63;
	p->a_bytes = !p->lazy || p->tall ? 0 : p->keep ? (size_t)(p->mb / v->mr) * p->apanel : p->apanel;
	p->b_bytes = p->share_rhs ? 0 : ((size_t)(matmul_pad(p->slab ? p->kc : p->ko, v->kstep) * p->nc) * matmul_es(p) + 63) & ~(size_t)63;
	p->c_level = (size_t)(p->slab || p->ko < p->k ? p->mb * p->nb : v->mr * p->nc) * 4;
	p->c_bytes = p->c_level * (size_t)p->levels;
	s->tiles = p->b * p->nblk * p->mblk;
	s->phases = (p->lay ? 1 : 0) + (p->lazy && !p->share_rhs ? 1 : 2);
	s->shared = p->lay_bytes + (p->lazy ? 0 : (size_t)(p->b * p->npanel) * p->panel) + (p->share_rhs ? (size_t)(p->b * p->npanel_r) * p->rpanel : 0) + 64;
	s->scratch = p->a_bytes + p->b_bytes + p->c_bytes + 128;
	s->run = matmul_run_packed;
}

bool matmul_plan(const struct prog_kern *k, const struct matmul_tables *t, struct kern_state *s)
{
	struct matmul *p = ARENA_NEW(&s->a, struct matmul, 1);
	int64_t cores = cpu_get()->cores;

	*p = (struct matmul){ .b = t->b, .m = t->m, .n = t->n, .k = t->k, .l = t->l, .r = t->r, .om = t->om, .on = t->on, .ob = t->ob, .out = t->out,
	                      .lay = t->lay, .lay_arg = t->lay_arg, .lay_bytes = t->lay_bytes, .lay_of = t->lay_of, .il = 0, .ir = 1 };
	if (p->m * p->n * p->k < t->least || !p->b || (p->b > 1 && p->m * p->n * p->k < 512))
		return false;
	s->priv = p;
	p->v = choose(t);
	p->oes = dtype_info[p->out].bytes;
	p->sum = t->i8 || t->ints ? DT_i32 : DT_f32;
	look_at(&s->a, &p->l, p->k);
	look_at(&s->a, &p->r, p->k);
	orient(p);
	p->together = p->tall ? p->k : runs(p);
	p->tall = p->together > 0;
	p->on_unit = unit_axis(&p->on);
	p->in_place = !p->tall && reads_in_place(p);
	int64_t few = p->in_place && p->v->es > 1 ? (p->v->es != 4 ? 0 : p->l.parts == MATMUL_PARTS ? 2 : 1) : p->v && p->v->es <= 2 ? 2 : MATMUL_FEW;      /* one row of f32 is summed in f64 */
	if (p->m <= few && !t->rounds && (p->r.free_unit || p->r.k_unit) && !matmul_force) {
		plan_few(p, s);
		return true;
	}
	if (!p->v || (t->rounds && p->v->es != 2))
		return false;
	p->npanel = (p->m + p->v->mr - 1) / p->v->mr;
	p->npanel_r = (p->n + p->v->nr - 1) / p->v->nr;
	p->l_step = p->m > 1 && p->l.free.even ? p->l.free.step : 0;
	p->slab = !p->tall && p->m <= FEW_ROWS && (p->in_place || (p->n > FEW_ROWS && (p->r.free_unit || !p->v->tiles))) && packed_lhs(p) <= MATMUL_PACK_MOST;
	p->in_place &= p->slab;
	p->along = p->in_place && p->v->along && p->m <= (p->v->es == 4 ? 8 : 6) && pays(micro_streams_pay());
	p->next = pays(micro_next_pays());
	plan_sums(p);
	plan_blocks(p, cores);
	plan_packing(p, cores);
	plan_room(p, s);
	return true;
}

struct group { int n; int64_t dim[64], stride[64]; };
static void group_add(struct group *g, int64_t dim, int64_t stride)
{
	g->dim[g->n] = dim;
	g->stride[g->n++] = stride;
}
static int64_t group_count(const struct group *g)
{
	int64_t n = 1;
	for (int i = 0; i < g->n; i++)
		n *= g->dim[i];
	return n;
}
/* Are its positions neighbours? */
static bool group_unit(const struct group *g)
{
	int64_t next = 1;
	for (int i = g->n; i-- > 0; next *= g->dim[i])
		if (g->dim[i] != 1 && g->stride[i] != next)
			return false;
	return true;
}
static struct matmul_axis group_axis(struct arena *a, const struct group *g) { return matmul_axis_make(a, g->n, g->dim, g->stride); }

/* Complex numbers as floats.  Which operand's parts lie along the contraction, beside few of the other; -1: none.  Of as many the right one, since
 * few rows are taken by dots. */
static void as_floats(struct group *batch, struct group *free, struct group *con, struct group *res, struct group *ob, struct matmul_side *const *side)
{
	int64_t n[2] = { group_count(&free[0]), group_count(&free[1]) };
	int along = -1;
	for (int q = 0; q < 2; q++)
		if (group_unit(&con[q]) && n[q] >= n[!q] && n[!q] <= BESIDE)
			along = q;
	for (int q = 0; q < 2; q++) {
		struct group *all[] = { &batch[q], &free[q], &con[q], &res[q] };
		for (int g = 0; g < 4; g++)
			for (int i = 0; i < all[g]->n; i++)
				all[g]->stride[i] *= 2;
		side[q]->parts = along < 0 ? MATMUL_PARTS : along == q ? MATMUL_WHOLE : MATMUL_TIMES_I;
		if (along == q) {
			group_add(&con[q], 2, 1);
		} else {
			group_add(&free[q], 2, 1);
			group_add(&res[q], 2, 1);
		}
	}
	for (int i = 0; i < ob->n; i++)
		ob->stride[i] *= 2;
}

/* Products of numbers that are worth a plan: few rows of f32 are taken where they lie by dot.c, too, in f32 alone, and one of 16 bits is widened there. */
static int64_t least_of(const struct matmul_tables *t)
{
	int64_t rows = MIN(t->m, t->n);
	bool floats = t->l.dt == DT_f32 && t->r.dt == DT_f32 && t->out == DT_f32, narrow = dtype_info[t->l.dt].bytes == 2 || dtype_info[t->r.dt].bytes == 2;
	return floats && rows <= MATMUL_FEW && t->k <= SMALL_K ? SMALL_ROWS : narrow && rows == 1 ? SMALL_ROW : SMALL;
}

bool kern_matmul(const struct prog_kern *k, struct kern_state *s)
{
	const struct prog_view *v[2] = { &k->v[0], &k->v[1] }, *o = &k->v[2];
	const int64_t *a = k->attr;
	int nb = (int)a[0];
	const int64_t *batch[2] = { a + 1, a + 1 + nb };
	a += 1 + 2 * nb;
	int nc = (int)a[0];
	const int64_t *contract[2] = { a + 1, a + 1 + nc };
	a += 1 + 2 * nc;
	enum dtype acc = (enum dtype)a[1], ltype = (enum dtype)a[2], rtype = (enum dtype)a[3];
	bool i8 = v[0]->dtype == DT_i8 && v[1]->dtype == DT_i8 && (o->dtype == DT_i32 || o->dtype == DT_i8);
	bool ints = !i8 && int_ok(v[0]->dtype) && int_ok(v[1]->dtype) && int_ok(o->dtype);
	bool complex = v[0]->dtype == DT_c64 && v[1]->dtype == DT_c64 && o->dtype == DT_c64;
	if (a[4] > 1 || (!i8 && !ints && !complex && (!matmul_float(v[0]->dtype) || !matmul_float(v[1]->dtype) || !matmul_float(o->dtype) || (acc != DT_f32 && acc != DT_token))))
		return false;
	if (!i8 && !ints && ((ltype != DT_token && ltype != DT_bf16 && ltype != DT_f32) || (rtype != DT_token && rtype != DT_bf16 && rtype != DT_f32)))
		return false;
	bool b0 = v[0]->dtype == DT_bf16 || ltype == DT_bf16, b1 = v[1]->dtype == DT_bf16 || rtype == DT_bf16;
	bool rounds = (ltype == DT_bf16 && v[0]->dtype != DT_bf16) || (rtype == DT_bf16 && v[1]->dtype != DT_bf16);

	struct matmul_tables p[1] = { { .out = complex ? DT_f32 : o->dtype, .i8 = i8, .ints = ints, .bf16 = b0 && b1, .rounds = rounds } };
	struct matmul_side *side[2] = { &p->l, &p->r };
	struct group ob = { 0 }, many[2] = { 0 }, free[2] = { 0 }, con[2] = { 0 }, res[2] = { 0 };
	int at = nb;
	for (int x = 0; x < nb; x++)
		group_add(&ob, o->dim[x], o->stride[x]);
	for (int q = 0; q < 2; q++) {
		for (int d = 0; d < v[q]->rank; d++) {
			bool used = false;
			for (int x = 0; x < nb; x++)
				used |= batch[q][x] == d;
			for (int x = 0; x < nc; x++)
				used |= contract[q][x] == d;
			if (used)
				continue;
			group_add(&free[q], v[q]->dim[d], v[q]->stride[d]);
			group_add(&res[q], o->dim[at], o->stride[at]);
			at++;
		}
		for (int x = 0; x < nc; x++)
			group_add(&con[q], v[q]->dim[contract[q][x]], v[q]->stride[contract[q][x]]);
		for (int x = 0; x < nb; x++)
			group_add(&many[q], v[q]->dim[batch[q][x]], v[q]->stride[batch[q][x]]);
	}
	if (complex)
		as_floats(many, free, con, res, &ob, side);
	for (int q = 0; q < 2; q++) {
		side[q]->dt = complex ? DT_f32 : v[q]->dtype;
		side[q]->free = group_axis(&s->a, &free[q]);
		if (!contracted(&s->a, con[q].n, con[q].dim, con[q].stride, &p->k, side[q]))
			return false;
		if (side[q]->parts == MATMUL_TIMES_I)
			p->k *= 2;
		side[q]->batch = group_axis(&s->a, &many[q]);
	}
	p->ob = group_axis(&s->a, &ob);
	p->om = group_axis(&s->a, &res[0]);
	p->on = group_axis(&s->a, &res[1]);
	p->b = p->ob.n;
	p->m = p->om.n;
	p->n = p->on.n;
	p->least = least_of(p);
	return matmul_plan(k, p, s);
}
