/* Loans that go back by count, from docs/sym.md and docs/prog.md: N devices in a ring, every order of steps and of stores leaving the store
 * buffers (first in, first out, as on x86).
 *
 * SCENE 1: each turn lends one half of a buffer to the next device, reads the one before's, writes the other half, gives back.
 * SCENE 2: each turn of an outer loop lends to all, reads the others' one after the other, gives back, awaits all, and writes; two launches, each
 *          of which begins with words of 0.
 * What is read is what its owner had there when it lent it, however late it is looked at; and nobody waits for ever.
 *
 * MUTANT breaks one rule: spin must find that. */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef SCENE
#define SCENE 1
#endif
#define N 3
#define TURNS 3

#define DATA(d, h)   ((d) * 2 + (h))
#define LINE(r, s)   (2 * N + (r) * N + (s))               /* how often s has lent to r: lines of a channel, in order */
#define WORD(d, r)   (2 * N + N * N + (d) * N + (r))       /* in d's heap: how often r has given back what d lent */
#define FROM(d)      (((d) + N - 1) % N)
#define TO(d)        (((d) + 1) % N)

byte mem[2 * N + 2 * N * N];
chan buffer[N] = [10] of { byte, byte };

#define STORE(a, v)  buffer[me] ! a, v
/* A device sees its own stores at once: it never reads what another may not see yet, but its own bytes, which it knows. */

active [N] proctype flush()
{
	byte a, v;
end:	do
	:: atomic { buffer[_pid] ? a, v -> mem[a] = v }
	od
}

#define VALUE(d, t)  (8 * (d) + (t) + 1)

/* It lies there now, and still when the reader is done. */
#define READ(a, v)   assert(mem[a] == v); assert(mem[a] == v)

#if SCENE == 1
proctype device(byte me)
{
	byte t;

	STORE(DATA(me, 0), VALUE(me, 0));
	for (t : 0 .. TURNS - 1) {
		STORE(LINE(TO(me), me), t + 1);
		mem[LINE(me, FROM(me))] > t;
#if MUTANT == 1                                            /* gives back what it has not read */
		STORE(WORD(FROM(me), me), t + 1);
#endif
#if MUTANT == 3                                            /* waits for what the next device gives back only behind its own wait */
		mem[WORD(me, TO(me))] >= t + 1;
#elif MUTANT != 2                                          /* 2: waits for nothing */
		mem[WORD(me, TO(me))] >= t;
#endif
		READ(DATA(FROM(me), t % 2), VALUE(FROM(me), t));
		STORE(DATA(me, (t + 1) % 2), VALUE(me, t + 1));
#if MUTANT != 1
		STORE(WORD(FROM(me), me), t + 1)
#endif
	}
	mem[WORD(me, TO(me))] >= TURNS
}
#else
proctype device(byte me)
{
	byte launch, t, k, d, lines;

	for (launch : 0 .. 1) {
#if MUTANT != 5
		for (k : 1 .. N - 1) {
			STORE(WORD(me, (me + k) % N), 0)
		}
		for (k : 1 .. N - 1) {                     /* seen by this device, as its own stores are */
			mem[WORD(me, (me + k) % N)] == 0
		}
#endif
		for (t : 0 .. 1) {
			STORE(DATA(me, 0), VALUE(me, lines));
			lines++;
			for (k : 1 .. N - 1) {
				STORE(LINE((me + k) % N, me), lines)
			}
			for (k : 1 .. N - 1) {
				mem[LINE(me, (me + k) % N)] >= lines
			}
			for (k : 1 .. N - 1) {
				d = (me + N - k) % N;
				READ(DATA(d, 0), VALUE(d, lines - 1))
			}
			for (k : 1 .. N - 1) {
				STORE(WORD((me + N - k) % N, me), t + 1)
			}
#if MUTANT == 4                                            /* awaits one reader */
			mem[WORD(me, (me + 1) % N)] >= t + 1
#else
			for (k : 1 .. N - 1) {
				mem[WORD(me, (me + k) % N)] >= t + 1
			}
#endif
		}
	}
}
#endif

init {
	byte k;
	atomic {
		for (k : 0 .. N - 1) {
			run device(k)
		}
	}
}
