/* Teams: who belongs to them, and how their members meet.
 *
 * Nothing central knows a team, and it has no number that could clash: what its members share are offsets into each
 * other's heaps.  To make one, a member takes a few words of its own heap and mails their offset to each other one, into
 * the sender's mail boxes in the other's control zone, under a key drawn from the list of members and from how many
 * teams of this list there were before: so others may make other teams at the same time.  The key is for finding: the mail is the
 * one if the list at its sender is the same, word for word.  Who has read it wipes it, so no mail is taken for one of a later team;
 * the first sync of the new team shows that all were read.
 *
 * Sync is dissemination (Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988): in round k each
 * rank tells the one 2^k further on, and waits for the one 2^k before.  A word counts syncs and has one writer, so nothing
 * is ever reset.  When a sync is over, all words of it that will ever be written to this PE are there: its memory
 * may be freed. */
#include <stdlib.h>

#include "impl.h"

void sym_word_put(struct sym_world *w, int from, int pe, size_t off, uint64_t v)
{
	const struct sym_peer *p = &w->peer[pe];

	if (p->mapped) {
		atomic_store_explicit((_Atomic uint64_t *)(p->base + off), v, memory_order_release);
		sym_notify(w, pe);
	} else
		w->tr->line(w, from, pe, off, &v, 1);
}

void sym_quiet_all(struct sym_world *w, int pe)
{
	sym_full_fence();
	if (w->tr)
		w->tr->quiet(w, pe);
}

static inline char *heap_at(const struct sym_team *t, size_t off) { return t->w->peer[t->pe].base + off; }

static int rounds(int n)
{
	int k = 0;

	for (; 1 << k < n; k++) { }
	return k;
}

/* Once failed, always failed: the counts of the members no longer agree. */
static struct err *fail(struct sym_team *t, struct err *e)
{
	if (e && !t->failed)
		t->failed = err_copy(e);
	return e;
}

static struct err *meet(struct sym_team *t, const char *what)
{
	struct sym_watch x = { t->w, t->pe, t, -1, what };
	struct err *e = NULL;

	if (t->failed)
		return err_copy(t->failed);
	t->syncs++;
	for (int k = 0, d = 1; d < t->n; k++, d *= 2) {
		int to = (t->me + d) % t->n;
		const struct sym_word *word = (struct sym_word *)heap_at(t, t->word[t->me]) + k;
		sym_word_put(t->w, t->pe, t->pe_of[to], t->word[to] + (size_t)k * sizeof *word, t->syncs);
		x.from = t->pe_of[(t->me - d + t->n) % t->n];
		SYM_WAIT(e, atomic_load_explicit(&word->v, memory_order_acquire) >= t->syncs, sym_wait_watch(&x), -1);
		if (e)
			return fail(t, e);
	}
	return NULL;
}

struct err *sym_team_sync(struct sym_team *t) { return t ? meet(t, "a sync") : ERR(INVALID, "a sync of no team"); }

struct err *sym_team_barrier(struct sym_team *t)
{
	if (!t)
		return ERR(INVALID, "a barrier of no team");
	sym_quiet_all(t->w, t->pe);
	return meet(t, "a barrier");
}

/* Give a and b to all members; all[2 * r], all[2 * r + 1]: what rank r gave.  What was given two exchanges ago is overwritten:
 * all have read it, since they came to the one between. */
static struct err *exchange(struct sym_team *t, uint64_t a, uint64_t b, uint64_t *all)
{
	size_t odd = t->turns++ % 2 * t->give_step;
	uint64_t v[2] = { a, b };

	for (int r = 0; r < t->n; r++) {
		const struct sym_peer *p = &t->w->peer[t->pe_of[r]];
		if (p->mapped)
			memcpy(p->base + t->give[r] + odd, v, sizeof v);
		else
			t->w->tr->line(t->w, t->pe, t->pe_of[r], t->give[r] + odd, v, 2);
	}
	sym_quiet_all(t->w, t->pe);
	TRY(meet(t, "an exchange with its team"));
	for (int r = 0; r < t->n; r++)
		memcpy(all + 2 * r, heap_at(t, t->mine + (size_t)r * t->mine_step + odd), sizeof v);
	return NULL;
}

/* --- making them ------------------------------------------------------------------ */

static struct sym_team *blank(struct sym_world *w, int pe, const int *list, int n)
{
	struct sym_team *t = mem_alloc(sizeof *t);

	t->w = w;
	t->pe = pe;
	t->n = n;
	t->uses = 1;
	t->pe_of = mem_alloc((size_t)n * sizeof *t->pe_of);
	t->rank_of = mem_alloc((size_t)w->npe * sizeof *t->rank_of);
	t->word = mem_alloc((size_t)n * sizeof *t->word);
	t->give = mem_alloc((size_t)n * sizeof *t->give);
	for (int i = 0; i < w->npe; i++)
		t->rank_of[i] = -1;
	for (int i = 0; i < n; i++) {
		t->pe_of[i] = list ? list[i] : i;
		t->rank_of[t->pe_of[i]] = i;
	}
	t->me = t->rank_of[pe];
	return t;
}

static void drop(struct sym_team *t)
{
	free(t->pe_of);
	free(t->rank_of);
	free(t->word);
	free(t->give);
	err_free(t->failed);
	free(t);
}

/* The words of the world's team are at offsets that all know. */
static struct sym_team *world_team(struct sym_world *w, int pe)
{
	struct sym_team *t = blank(w, pe, NULL, w->npe);
	size_t give = offsetof(struct sym_from, give);

	for (int i = 0; i < t->n; i++) {
		t->word[i] = offsetof(struct sym_control, sync);
		t->give[i] = sym_from_off(w->npe, 0, pe) + give;
	}
	t->give_step = sizeof(uint64_t[2]);
	t->mine = sym_from_off(w->npe, 0, 0) + give;
	t->mine_step = sizeof(struct sym_from);
	return t;
}

struct err *sym_sides(struct sym_world *w)
{
	if (w->npe > 1 << SYM_ROUNDS)
		return ERR(EXHAUSTED, "%d PEs are more than a sync can serve (%d)", w->npe, 1 << SYM_ROUNDS);
	w->side = mem_alloc((size_t)w->nlocal * sizeof *w->side);
	for (int i = 0; i < w->nlocal; i++) {
		struct sym_side *s = &w->side[i];
		pthread_mutex_init(&s->lock, NULL);
		pthread_mutex_init(&s->turn_lock, NULL);
		pthread_cond_init(&s->turn_cond, NULL);
		s->mail = mem_alloc((size_t)w->npe * sizeof *s->mail);
		s->world = world_team(w, w->first + i);
	}
	return NULL;
}

void sym_sides_free(struct sym_world *w)
{
	for (int i = 0; i < w->nlocal && w->side; i++) {
		struct sym_side *s = &w->side[i];
		if (s->world)
			drop(s->world);
		map_free(&s->made);
		free(s->mail);
		pthread_mutex_destroy(&s->lock);
		pthread_mutex_destroy(&s->turn_lock);
		pthread_cond_destroy(&s->turn_cond);
	}
	free(w->side);
}

struct sym_team *sym_team_world(struct sym_world *w, int pe) { return sym_local(w, pe) ? w->side[pe - w->first].world : NULL; }

/* A mail box in pe's control zone that no other team of this PE uses; -1 if there is none. */
static int box_take(struct sym_side *s, int pe)
{
	pthread_mutex_lock(&s->lock);
	int k = ~s->mail[pe] ? __builtin_ctz(~s->mail[pe]) : -1;
	if (k >= 0)
		s->mail[pe] |= 1u << k;
	pthread_mutex_unlock(&s->lock);
	return k;
}

/* What one team is known by, and where a member's list lies behind its words. */
struct made { uint64_t key, count; size_t list; };

/* Is it of this team?  The list of a sender that has no room for it is taken for the same. */
static bool mail_fits(const struct sym_team *t, int pe, const struct sym_mail *m, const struct made *id)
{
	size_t bytes = (size_t)t->n * sizeof *t->pe_of;
	const struct sym_peer *p = &t->w->peer[pe];

	if (m->count != id->count || m->n != (uint64_t)t->n)
		return false;
	if (m->off == UINT64_MAX)
		return true;
	if (p->mapped)
		return !memcmp(p->base + m->off + id->list, t->pe_of, bytes);
	int *its = mem_alloc(bytes);
	t->w->tr->get(t->w, t->pe, pe, its, m->off + id->list, bytes);
	bool same = !memcmp(its, t->pe_of, bytes);
	free(its);
	return same;
}

/* Take the mail of this team, if it has come: *off is what it says.  Under the lock, for its box is written again when it was taken. */
static bool mail_take(struct sym_team *t, int pe, const struct made *id, uint64_t *off)
{
	struct sym_mail *m = t->w->ep[t->pe - t->w->first].from[pe].mail, *end = m + SYM_MAILS;
	struct sym_side *side = &t->w->side[t->pe - t->w->first];
	bool taken = false;

	while (m < end && atomic_load_explicit(&m->key, memory_order_acquire) != id->key)
		m++;
	if (m == end)
		return false;
	pthread_mutex_lock(&side->lock);
	for (; m < end && !taken; m++)
		if (atomic_load_explicit(&m->key, memory_order_acquire) == id->key && mail_fits(t, pe, m, id)) {
			*off = m->off;
			atomic_store_explicit(&m->key, 0, memory_order_relaxed);
			taken = true;
		}
	pthread_mutex_unlock(&side->lock);
	return taken;
}

static struct err *check_list(struct sym_world *w, int pe, const int *list, int n)
{
	bool *seen;
	int bad = -1;

	if (!sym_local(w, pe))
		return ERR(INVALID, "PE %d is not of this process", pe);
	if (!list || n < 1 || n > w->npe)
		return ERR(INVALID, "a team of %d in a world of %d", n, w->npe);
	seen = mem_alloc((size_t)w->npe);
	for (int i = 0; i < n && bad < 0; i++)
		if (list[i] < 0 || list[i] >= w->npe || seen[list[i]])
			bad = i;
		else
			seen[list[i]] = true;
	bool in = seen[pe];
	free(seen);
	if (bad >= 0)
		return ERR(INVALID, "member %d of the team, PE %d, is out of range or there twice", bad, list[bad]);
	return in ? NULL : ERR(INVALID, "PE %d is no member of the team that it makes", pe);
}

struct err *sym_team_new(struct sym_world *w, int pe, const int *list, int n, struct sym_team **out)
{
	*out = NULL;
	TRY(check_list(w, pe, list, n));
	struct sym_team *t = blank(w, pe, list, n);
	struct sym_side *side = &w->side[pe - w->first];
	size_t give = (size_t)rounds(n) * sizeof(struct sym_word);
	int *box = mem_alloc((size_t)n * sizeof *box);
	struct err *e = NULL, *poor;

	t->give_step = (size_t)n * sizeof(uint64_t[2]);
	t->mine_step = sizeof(uint64_t[2]);
	/* One that has no room says so to the others.  That is for ever: nobody can tell when the mails were read.  So there is room, beyond any limit. */
	struct made id = { .list = give + 2 * t->give_step };
	poor = sym_take(&w->heap[pe - w->first], id.list + (size_t)n * sizeof *list, 0, "a team", -1, &t->area);
	if (!poor) {
		memset(heap_at(t, t->area->off), 0, t->area->bytes);
		memcpy(heap_at(t, t->area->off + id.list), list, (size_t)n * sizeof *list);
	}
	uint64_t area = poor ? UINT64_MAX : t->area->off;
	t->mine = area + give;

	pthread_mutex_lock(&side->lock);
	id.count = ++*map_put(&side->made, list, (size_t)n * sizeof *list);
	pthread_mutex_unlock(&side->lock);
	id.key = hash_bytes(list, (size_t)n * sizeof *list, id.count) | 1;
	for (int r = 0; r < n; r++)
		box[r] = -1;
	for (int r = 0; r < n; r++) {
		int to = t->pe_of[r];
		uint64_t v[8] = { id.key, id.count, (uint64_t)n, area };
		if (r == t->me)
			continue;
		if ((box[r] = box_take(side, to)) < 0) {
			e = ERR(EXHAUSTED, "PE %d makes more than %d teams at once with PE %d", pe, SYM_MAILS, to);
			goto out;
		}
		size_t at = sym_from_off(w->npe, 0, pe) + offsetof(struct sym_from, mail) + (size_t)box[r] * sizeof(struct sym_mail);
		if (w->peer[to].mapped) {
			struct sym_mail *m = (struct sym_mail *)(w->peer[to].base + at);
			memcpy(&m->count, v + 1, 56);
			sym_word_put(w, pe, to, at, id.key);
		} else
			w->tr->line(w, pe, to, at, v, 8);
	}
	for (int r = 0; r < n; r++) {
		struct sym_watch x = { w, pe, t, t->pe_of[r], "making a team" };
		uint64_t off = area;
		if (r != t->me) {
			SYM_WAIT(e, mail_take(t, t->pe_of[r], &id, &off), sym_wait_watch(&x), -1);
			if (e)
				goto out;
			if (off == UINT64_MAX && !poor)
				poor = ERR(EXHAUSTED, "PE %d has no room for a team", t->pe_of[r]);
		}
		t->word[r] = off;
		t->give[r] = t->word[r] + give + (size_t)t->me * t->mine_step;
	}
	TRY_GOTO(e, poor, out);
	TRY_GOTO(e, meet(t, "making a team"), out);
	pthread_mutex_lock(&side->lock);
	for (int r = 0; r < n; r++)
		if (box[r] >= 0)
			side->mail[t->pe_of[r]] &= ~(1u << box[r]);
	pthread_mutex_unlock(&side->lock);
out:
	free(box);
	if (e) {
		/* A peer may still write to the area and read the mails: they stay until the world is closed. */
		if (poor != e)
			err_free(poor);
		drop(t);
		return e;
	}
	*out = t;
	return NULL;
}

struct err *sym_team_split(const struct sym_team *t, int start, int stride, int n, struct sym_team **out)
{
	int64_t last = (int64_t)start + (int64_t)stride * (n - 1);

	*out = NULL;
	if (!t)
		return ERR(INVALID, "a part of no team");
	if (n < 1 || start < 0 || start >= t->n || last < 0 || last >= t->n || (n > 1 && !stride))
		return ERR(INVALID, "no team: %d ranks from %d in steps of %d, of %d", n, start, stride, t->n);
	int *list = mem_alloc((size_t)n * sizeof *list);
	bool in = false;
	for (int i = 0; i < n; i++) {
		list[i] = t->pe_of[start + i * stride];
		in |= list[i] == t->pe;
	}
	struct err *e = in ? sym_team_new(t->w, t->pe, list, n, out) : NULL;
	free(list);
	return e;
}

struct err *sym_team_split_2d(const struct sym_team *t, int nx, struct sym_team **row, struct sym_team **col)
{
	*row = *col = NULL;
	if (!t)
		return ERR(INVALID, "a matrix of no team");
	if (nx < 1)
		return ERR(INVALID, "no matrix of %d ranks with rows of %d", t->n, nx);
	nx = MIN(nx, t->n);
	int x = t->me % nx, y = t->me / nx;
	TRY(sym_team_split(t, y * nx, 1, MIN(nx, t->n - y * nx), row));
	struct err *e = sym_team_split(t, x, nx, (t->n - x + nx - 1) / nx, col);
	if (e) {
		sym_team_free(*row);
		*row = NULL;
	}
	return e;
}

static void let_go(struct sym_team *t)
{
	if (--t->uses)
		return;
	struct err *e = meet(t, "freeing a team");
	if (!e)
		sym_free(t->area);        /* else a member may still write there */
	err_free(e);
	drop(t);
}

void sym_team_free(struct sym_team *t)
{
	if (t && t->area)
		let_go(t);
}

int sym_team_me(const struct sym_team *t) { return t ? t->me : -1; }
int sym_team_n(const struct sym_team *t) { return t ? t->n : 0; }
int sym_team_pe(const struct sym_team *t, int rank) { return rank < 0 || rank >= sym_team_n(t) ? -1 : t->pe_of[rank]; }
int sym_team_rank(const struct sym_team *t, int pe) { return !t || pe < 0 || pe >= t->w->npe ? -1 : t->rank_of[pe]; }
int sym_team_translate(const struct sym_team *from, int rank, const struct sym_team *to) { return sym_team_rank(to, sym_team_pe(from, rank)); }

/* --- symmetric memory ---------------------------------------------------------------- */

struct err *sym_mem_new(struct sym_team *t, size_t n, const char *what, struct sym_mem **out)
{
	struct err *mine, *e = NULL;
	bool agreed = false;

	*out = NULL;
	if (!t || t->failed)
		return t ? err_copy(t->failed) : ERR(INVALID, "symmetric memory of no team");
	struct sym_mem *m = mem_alloc(sizeof *m);
	uint64_t *all = mem_alloc((size_t)t->n * sizeof(uint64_t[2]));
	m->team = t;
	m->bytes = n;
	m->off = mem_alloc((size_t)t->n * sizeof *m->off);
	m->at = mem_alloc((size_t)t->n * sizeof *m->at);
	mine = sym_alloc(&t->w->heap[t->pe - t->w->first], n, what, -1, &m->block);
	if (!mine && n)
		memset(heap_at(t, m->block->off), 0, n);
	TRY_GOTO(e, exchange(t, mine ? UINT64_MAX : m->block->off, n, all), out);
	agreed = true;                    /* all see the same words, so all decide alike */
	for (int r = 0; r < t->n && !e; r++) {
		if (all[2 * r + 1] != all[1])
			e = ERR(INVALID, "PE %d asks for %llu bytes of symmetric memory, PE %d for %llu", t->pe_of[0], (unsigned long long)all[1],
			        t->pe_of[r], (unsigned long long)all[2 * r + 1]);
		else if (all[2 * r] == UINT64_MAX && r != t->me)
			e = ERR(EXHAUSTED, "PE %d has no room for %zu bytes of symmetric memory", t->pe_of[r], n);
		else if (all[2 * r] == UINT64_MAX)
			e = err_copy(mine);
		m->off[r] = all[2 * r];
		const struct sym_peer *p = &t->w->peer[t->pe_of[r]];
		m->at[r] = p->mapped ? p->base + m->off[r] : NULL;
	}
out:
	free(all);
	err_free(mine);
	if (e) {
		if (agreed)               /* else a member may know the block, and write there: it stays until the world is closed */
			sym_free(m->block);
		free(m->off);
		free(m->at);
		free(m);
		return e;
	}
	t->uses++;
	*out = m;
	return NULL;
}

void sym_mem_free(struct sym_mem *m)
{
	if (!m)
		return;
	struct err *e = sym_team_barrier(m->team);
	if (!e)
		sym_free(m->block);       /* else a member may still write there: it stays until the world is closed */
	err_free(e);
	let_go(m->team);
	free(m->off);
	free(m->at);
	free(m);
}

void *sym_mem_at(const struct sym_mem *m) { return heap_at(m->team, m->off[m->team->me]); }
size_t sym_mem_bytes(const struct sym_mem *m) { return m->bytes; }
size_t sym_mem_off(const struct sym_mem *m, int rank) { return rank < 0 || rank >= m->team->n ? SIZE_MAX : m->off[rank]; }
struct sym_team *sym_mem_team(const struct sym_mem *m) { return m->team; }
void *sym_ptr(const struct sym_mem *m, int rank) { return !m || rank < 0 || rank >= m->team->n ? NULL : m->at[rank]; }
