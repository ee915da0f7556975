/* Posts, from docs/sym.md: N devices, 2 places each, every order of steps and of stores leaving the store buffers (first in,
 * first out, as on x86).  Two launches of up to 2 posts each behind a first message to each of the others, which stands for a
 * line of a channel; in the first launch one device may leave early.
 *
 * MUTANT breaks one rule: spin must find that. */
#ifndef MUTANT
#define MUTANT 0
#endif
#define N 3
#if MUTANT == 1
#define P 1                                        /* places: the last post is still being read */
#else
#define P 2
#endif
#define LAUNCHES 2
#if MUTANT                                         /* found without the rest */
#define LEAST    2
#define NOBODY   N
#else
#define LEAST    0
#define NOBODY   0
#endif

#define TICK(d, t)   ((d) * P + (t) % P)
#define SAYS(d, t)   (N * P + (d) * P + (t) % P)
#define BEFORE(d)    (2 * N * P + (d))             /* posts of d before this launch */
#define LINE(r, s)   (2 * N * P + N + (r) * N + (s))       /* the launch of the first message from s to r */
#define CLOSED(d)    (2 * N * P + N + N * N + (d)) /* launches that d has closed */

byte mem[2 * N * P + N + N * N + N];
chan buffer[N] = [12] of { byte, byte };
byte count[LAUNCHES + 1];                          /* posts of a launch, the same for all */
byte fails;                                        /* the device that leaves the first launch early, N: none */

#define STORE(a, v)  buffer[me] ! a, v

active [N] proctype flush()
{
	byte a, v;
end:	do
	:: atomic { buffer[_pid] ? a, v -> mem[a] = v }
	od
}

proctype device(byte me)
{
	byte posts, beyond[N], launch, k, d, t;
	bool gone;

	for (launch : 1 .. LAUNCHES) {
		gone = false;
		STORE(BEFORE(me), posts);
		for (d : 0 .. N - 1) {
			if
			:: d != me -> STORE(LINE(d, me), launch)
			:: else
			fi
		}
		for (d : 0 .. N - 1) {
			if
			:: d != me ->
#if MUTANT != 2
				mem[LINE(me, d)] >= launch;
#endif
				beyond[d] = mem[BEFORE(d)] - posts
			:: else
			fi
		}
		k = 1;
		do
		:: k > count[launch] || gone -> break
		:: else ->
			if
			:: launch == 1 && me == fails -> gone = true; break
			:: true
			fi;
			posts++;
			STORE(SAYS(me, posts), launch * 8 + k);
			STORE(TICK(me, posts), posts);
			for (d : 0 .. N - 1) {
				if
				:: d != me && !gone ->
					t = beyond[d] + posts;
					if
					:: mem[TICK(d, t)] == t ->
						assert(mem[SAYS(d, t)] == launch * 8 + k);
						assert(mem[TICK(d, t)] == t)                    /* it was not overwritten meanwhile */
					:: mem[CLOSED(d)] >= launch && mem[TICK(d, t)] != t -> gone = true
					fi
				:: else
				fi
			}
			k++
		od;
		STORE(CLOSED(me), launch);
		if
		:: gone ->
			for (d : 0 .. N - 1) {
				d == me || mem[CLOSED(d)] >= launch
			}
		:: else
		fi
	}
}

init {
	byte k;
	atomic {
		select(fails : NOBODY .. N);
		select(k : LEAST .. 2);
		count[1] = k;
		select(k : LEAST .. 2);
		count[2] = k;
		for (k : 0 .. N - 1) {
			run device(k)
		}
	}
}
