/* Walkers that sleep on one word of their client, each by a bit of its own, and are woken by one call (src/rt/queue.c: walker_rest; src/rt/device.c).
 * Two launches, each for both walkers, by two threads.  MUTANT 1: a walker looks at the word behind its own bell; 2: it says that it sleeps behind
 * its last look; 3: the word stays as it is; 4: it does not look at its bell again.  Spin must find that it then sleeps for ever. */
#ifndef MUTANT
#define MUTANT 0
#endif
#define N 2

byte queue[N], bell[N], word;
bool asleep[N], waiting[N];                       /* waiting: in the kernel, on the word */

proctype walker(byte me)
{
	byte done, seen, all;

	do
	:: done == N -> break
	:: else ->
		seen = bell[me];
		if
		:: queue[me] -> queue[me]--; done++
		:: else ->
#if MUTANT != 2
			asleep[me] = true;
#endif
again:
#if MUTANT != 1
			all = word;
#endif
#if MUTANT == 4
			if
			:: true -> skip
			fi;
#else
			if
			:: bell[me] != seen -> goto awake
			:: else
			fi;
#endif
#if MUTANT == 1
			all = word;
#endif
#if MUTANT == 2
			asleep[me] = true;
#endif
			atomic {
				if
				:: word == all -> waiting[me] = true
				:: else
				fi
			};
			!waiting[me];
			if
			:: bell[me] == seen -> goto again
			:: else
			fi;
awake:			asleep[me] = false
		fi
	od
}

proctype launcher()
{
	byte i;
	bool who[N], any;

	for (i : 0 .. N - 1) {
		atomic { queue[i]++ };
		atomic { bell[i]++ };
		if
		:: asleep[i] -> who[i] = true; any = true
		:: else
		fi
	};
	if
	:: any ->
#if MUTANT != 3
		atomic { word++ };
#endif
		for (i : 0 .. N - 1) {
			if
			:: who[i] -> waiting[i] = false
			:: else
			fi
		}
	:: else
	fi
}

init { atomic { run walker(0); run walker(1); run launcher(); run launcher() } }
