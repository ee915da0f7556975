/* Sleeping and waking, from docs/sym.md: a writer stores a word and then looks for sleepers without a fence between; the
 * sleeper pays for that.  Two writers, store buffers as on x86.  MUTANT 1: the sleeper has no membarrier; 2: it does not
 * look again; 3: it sleeps without having seen the bell.  Spin must find that it then sleeps for ever (in the library a
 * sleep has a limit, so such a bug would be slowness only; what sleeps for a moment before the membarrier wakes by itself, which changes
 * nothing here). */
#ifndef MUTANT
#define MUTANT 0
#endif
#define WRITERS 2

byte word[WRITERS], sleepers, bell;
bool waiting;                                     /* in the kernel, on the bell */
chan buffer[WRITERS] = [1] of { byte };           /* a writer's store on its way */

proctype writer(byte me)
{
	byte n;

	buffer[me] ! 1;
	n = sleepers;                             /* may overtake the store */
	if
	:: n -> atomic { len(buffer[me]) == 0 -> bell++ };       /* a locked instruction: the buffer is empty after it */
	   waiting = false                        /* wake */
	:: else
	fi
}

proctype drain(byte me)
{
	byte v;

end:	do
	:: atomic { buffer[me] ? v -> word[me] = v }
	od
}

#define SEEN (word[0] && word[1])

proctype sleeper()
{
	byte seen;

	do
	:: SEEN -> break
	:: else ->
#if MUTANT != 3
		seen = bell;
#endif
		sleepers++;
#if MUTANT != 1
		len(buffer[0]) == 0;              /* membarrier: each running thread executes a fence, one after the other */
		len(buffer[1]) == 0;
#endif
		if
#if MUTANT != 2
		:: SEEN -> sleepers--; break
#endif
		:: else ->
#if MUTANT == 3
			seen = bell;
#endif
			atomic {
				if
				:: bell == seen -> waiting = true
				:: else
				fi
			};
			!waiting;
			sleepers--
		fi
	od;
	assert(SEEN)
}

init { atomic { run writer(0); run writer(1); run drain(0); run drain(1); run sleeper() } }
