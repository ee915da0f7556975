/* Which algorithm a collective takes where nothing was measured. */
#include "prog.h"

const char *const prog_topo_name[COLL_TOPOS] = {
#define TOPO(id, name, meaning) [COLL_##id] = name,
#include "../base/topo.def"
#undef TOPO
};

static const uint32_t kinds_of[COLL_ALGOS] = {
#define ALGO(id, name, kinds, meaning) [COLL_##id] = kinds,
#include "../base/algo.def"
#undef ALGO
};

bool prog_algo_has(enum coll_algo a, enum coll_kind k) { return a < COLL_ALGOS && k < COLL_COUNT && kinds_of[a] >> k & 1; }

/* Shaped by measurements on two kinds of machines.  Up to a few lines the data travels in the message; then the copy
 * through the ring is cheaper than lines that are written again while the other side still holds them, or a wait for a
 * loan to come back; where the caches are full anyway a copy less counts. */
#define K(n) ((n) << 10)
#define END INT64_MAX
#define SHORT (K(1) + 1)
static const struct coll_rule pair_rule[COLL_COUNT][COLL_RULES] = {
	[COLL_all_reduce]     = { { SHORT, COLL_slot }, { K(56), COLL_stage }, { K(16384), COLL_two_shot }, { END, COLL_ring } },
	[COLL_reduce_scatter] = { { SHORT, COLL_slot }, { K(128), COLL_stage }, { END, COLL_loan } },
	[COLL_all_gather]     = { { SHORT, COLL_slot }, { K(192), COLL_stage }, { END, COLL_direct } },
	[COLL_all_to_all]     = { { SHORT, COLL_slot }, { K(192), COLL_stage }, { END, COLL_direct } },
	[COLL_permute]        = { { SHORT, COLL_slot }, { K(64), COLL_stage }, { END, COLL_direct } },
	[COLL_broadcast]      = { { 128, COLL_slot }, { END, COLL_stage } },
	[COLL_scan]           = { { 128, COLL_slot }, { K(2048), COLL_stage }, { END, COLL_ring } },
	[COLL_barrier]        = { { END, COLL_slot } },
};
static const struct coll_rule more_rule[COLL_COUNT][COLL_RULES] = {
	[COLL_all_reduce]     = { { SHORT, COLL_slot }, { K(8), COLL_stage }, { K(16384), COLL_two_shot }, { END, COLL_ring } },
	[COLL_reduce_scatter] = { { K(8), COLL_slot }, { END, COLL_loan } },
	[COLL_all_gather]     = { { 64, COLL_slot }, { K(128), COLL_stage }, { END, COLL_direct } },
	[COLL_all_to_all]     = { { K(6), COLL_slot }, { END, COLL_direct } },
	[COLL_permute]        = { { SHORT, COLL_slot }, { K(24), COLL_stage }, { END, COLL_direct } },
	[COLL_broadcast]      = { { 64, COLL_slot }, { K(256), COLL_stage }, { END, COLL_direct } },
	[COLL_scan]           = { { 64, COLL_slot }, { K(256), COLL_stage }, { END, COLL_ring } },
	[COLL_barrier]        = { { END, COLL_slot } },
};
/* More PEs than cores: a message that waits costs no more than one that comes at once, since all wait for their core; no
 * ring was found to be faster, each step of it waits until somebody has left a core. */
static const struct coll_rule crowd_rule[COLL_COUNT][COLL_RULES] = {
	[COLL_all_reduce]     = { { SHORT, COLL_slot }, { END, COLL_two_shot } },
	[COLL_reduce_scatter] = { { K(24), COLL_slot }, { END, COLL_loan } },
	[COLL_all_gather]     = { { SHORT, COLL_slot }, { K(3), COLL_stage }, { END, COLL_direct } },
	[COLL_all_to_all]     = { { K(10), COLL_slot }, { END, COLL_direct } },
	[COLL_permute]        = { { K(40), COLL_slot }, { END, COLL_direct } },
	[COLL_broadcast]      = { { 64, COLL_slot }, { K(256), COLL_stage }, { END, COLL_direct } },
	[COLL_scan]           = { { 64, COLL_slot }, { K(256), COLL_stage }, { END, COLL_ring } },
	[COLL_barrier]        = { { END, COLL_slot } },
};

/* What each member tells all others goes in rounds: in few bytes, for all of them travel in the last one. */
static const struct coll_rule many_rule[COLL_COUNT][COLL_RULES] = {
	[COLL_all_reduce]     = { { 128, COLL_doubling }, { END, COLL_two_shot } },
	[COLL_reduce_scatter] = { { END, COLL_loan } },
	[COLL_all_gather]     = { { 128, COLL_doubling }, { END, COLL_direct } },
	[COLL_all_to_all]     = { { END, COLL_direct } },
	[COLL_permute]        = { { K(40), COLL_slot }, { END, COLL_direct } },
	[COLL_broadcast]      = { { END, COLL_direct } },
	[COLL_scan]           = { { END, COLL_ring } },
	[COLL_barrier]        = { { END, COLL_doubling } },
};

/* Through a network (TCP was measured) a message that carries its data saves those that speak of it; of long data a
 * copy less counts, and what is put needs one message less than what is asked for. */
static const struct coll_rule far_rule[COLL_COUNT][COLL_RULES] = {
	[COLL_all_reduce]     = { { K(192), COLL_slot }, { END, COLL_push } },
	[COLL_reduce_scatter] = { { K(192), COLL_slot }, { END, COLL_loan } },
	[COLL_all_gather]     = { { K(192), COLL_slot }, { END, COLL_direct } },
	[COLL_all_to_all]     = { { K(128), COLL_slot }, { END, COLL_direct } },
	[COLL_permute]        = { { K(128), COLL_slot }, { END, COLL_push } },
	[COLL_broadcast]      = { { K(256), COLL_slot }, { END, COLL_direct } },
	[COLL_scan]           = { { END, COLL_slot } },
	[COLL_barrier]        = { { END, COLL_slot } },
};

/* Where some share a host, what goes between hosts goes once; all else as above. */
static const struct coll_rule hosts_rule[COLL_COUNT][COLL_RULES] = {
	[COLL_all_reduce]     = { { K(2), COLL_slot }, { END, COLL_levels } },
	[COLL_reduce_scatter] = { { K(16), COLL_slot }, { END, COLL_levels } },
	[COLL_all_gather]     = { { END, COLL_levels } },
};

void prog_rules_init(struct coll_rule rule[COLL_TOPOS][COLL_COUNT][COLL_RULES])
{
	static const struct coll_rule (*const of[COLL_TOPOS])[COLL_RULES] = {
		[COLL_PAIR] = pair_rule, [COLL_GROUP] = more_rule, [COLL_CROWD] = crowd_rule, [COLL_MANY] = many_rule, [COLL_FAR] = far_rule, [COLL_HOSTS] = far_rule,
	};

	for (int topo = 0; topo < COLL_TOPOS; topo++)
		memcpy(rule[topo], of[topo], sizeof rule[topo]);
	for (int k = 0; k < COLL_COUNT; k++)
		if (hosts_rule[k][0].algo)
			memcpy(rule[COLL_HOSTS][k], hosts_rule[k], sizeof hosts_rule[k]);
}

enum coll_topo prog_topo_far(enum coll_kind k, int spread, int n, const int *host)
{
	int id[COLL_ROW], size[COLL_ROW], on[COLL_ROW], nhost = 0;     /* hosts as they come in rank order; of each member, which */
	int64_t in[COLL_ROW], out[COLL_ROW], most = 0, flat = 0, sum = 0;

	if (!prog_algo_has(COLL_levels, k) || n > COLL_ROW)
		return COLL_FAR;
	for (int i = 0; i < n; i++) {
		int h = i ? on[i - 1] : 0;
		if (!i || id[h] != host[i])
			for (h = 0; h < nhost && id[h] != host[i]; h++) { }
		if (h == nhost) {
			id[nhost] = host[i];
			size[nhost++] = 0;
		}
		on[i] = h;
		size[h]++;
	}
	/* In blocks: what each member has for each of another host; of an all_reduce, slices to who reduces them, and back. */
	for (int h = 0; h < nhost; h++) {
		int64_t cross = (int64_t)size[h] * (n - size[h]) * (k == COLL_all_reduce ? 2 : 1);
		in[h] = out[h] = 0;
		flat = MAX(flat, cross);
		sum += cross;
	}
	if (k == COLL_all_gather)
		return (int64_t)n * (nhost - 1) < sum ? COLL_HOSTS : COLL_FAR;
	for (int i = 0; i + 1 < n; i++)          /* a sum climbs from host to host, as ranks have them */
		if (on[i] != on[i + 1]) {
			out[on[i]] += (int64_t)n * spread;
			in[on[i + 1]] += (int64_t)n * spread;
		}
	int last = on[n - 1];
	for (int i = 1; i < nhost; i++) {
		int h = (last + i) % nhost, below = k == COLL_all_reduce ? (last + i - 1) % nhost : last, some = k == COLL_all_reduce ? n : size[h];
		out[below] += some;
		in[h] += some;
	}
	for (int h = 0; h < nhost; h++)
		most = MAX(most, MAX(in[h], out[h]));
	return most < flat ? COLL_HOSTS : COLL_FAR;
}
