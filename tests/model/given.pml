/* A launch that waits for its arguments, and may be told to stop meanwhile (src/rt/part.c: comes_later, has_come, part_over): what it holds is given back once, by
 * the walker or by whoever makes the last argument, and not before all are made.  MUTANT 1: who leaves does not look whether the argument has come; 2: it has come
 * by two steps; 3: who leaves gives back at once; 4: it is said that the argument is yet to come when that is asked for already; 5: behind an argument that has come
 * the next one is not asked for. */
#ifndef MUTANT
#define MUTANT 0
#endif
#define N 2

mtype = { PENDING, COME, LEFT };

mtype come = PENDING;
bool made[N], asked[N], gone;             /* asked: has_come is called when it is made; gone: what the launch holds */
byte waited;

inline comes_later() {
#if MUTANT == 4
	skip;
#else
	come = PENDING;
#endif
	atomic {
		later = !made[waited];
		asked[waited] = later
	};
#if MUTANT == 4
	come = PENDING;
#endif
	if
	:: !later -> come = COME
	:: else
	fi
}

inline part_over() {
	do
	:: waited == N -> assert(!gone); gone = true; break
	:: else ->
#if MUTANT == 3
		gone = true; break;
#endif
		atomic { was = come; come = LEFT };
#if MUTANT == 1
		was = PENDING;
#endif
		if
		:: was == PENDING -> break
		:: else ->
			assert(made[waited]);
			waited++;
#if MUTANT != 5
			if
			:: waited < N -> comes_later()
			:: else
			fi
#endif
		fi
	od
}

proctype maker(byte k)
{
	mtype was;
	bool later, call;

	assert(!gone);                    /* it writes what the launch holds */
	atomic { made[k] = true; call = asked[k] };
	if
	:: call ->
#if MUTANT == 2
		was = come;
		come = COME;
#else
		atomic { was = come; come = COME };
#endif
		if
		:: was == LEFT -> part_over()
		:: else
		fi
	:: else
	fi
}

proctype walker()
{
	mtype was;
	bool later;

	do
	:: waited == N -> break
	:: else ->
		comes_later();
		if
		:: come == COME -> assert(made[waited]); waited++
		:: true -> break          /* it is told to stop */
		fi
	od;
	part_over()
}

init {
	atomic { run walker(); run maker(0); run maker(1) };
	_nr_pr == 1;
	assert(gone)
}
