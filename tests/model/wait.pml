/* One wait as a whole, from docs/sym.md (Waiting): SYM_WAIT around sym_wait_turn (src/sym/wait.c).  It looks, polls, goes away where it is in a lane, looks whether there
 * is hope, helps, yields, and sleeps: for a moment first, then behind a membarrier for good (in the library for a tenth of a second, so that what is found here
 * to sleep for ever is slow there).
 *
 * SCENE 1: of a device for its peer, which does its part when this device has done the jobs that others give it, and may leave behind that; it may die
 * before, and the launch may be told to stop.  2: the same in a lane; what the device's thread has to do itself takes the place of the jobs.  3: of the network, which brings
 * what is waited for in pieces, or stops bringing it.
 *
 * Nobody sleeps for ever; an error is right (who has done its part may be gone); who is told to stop does so soon; nothing stays behind.
 * MUTANT 1: behind an error it is not looked once more; 2: it helps before it looks whether there is hope; 3: it sleeps without a look behind the bell; 4: its flag stays
 * raised; 5: it is sure without a membarrier; 6: it reads the bell when it sleeps; 7: who gives a job does not look for sleepers; 8: who tells to stop does not ring; 9: a
 * lane sleeps before it goes away; 10: it goes away though it is waited for; 11: pieces that come do not put off that it is late; 12: it polls on while pieces
 * come, whoever says stop; 13: it is never late. */
#ifndef SCENE
#define SCENE 1
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#define SPINS 2                                   /* polls before it rests; yields are not told from them */
#define JOBS 2
#define LOOKS 2                                   /* of the network, before there is a look at anything else */
#define PIECES 5
#define PATIENCE 2                                /* naps */

bool word, done_its_part, dead, stop, wanted, over;       /* over: the wait is */
byte bell, sleepers, jobs, given, helped;         /* given: of them, so far */
bool fence;                                       /* writers have one, since there is no membarrier here */
bool waiting;                                     /* in the kernel, on the bell */
chan buffer = [1] of { byte };                    /* the peer's store on its way */
byte pieces, taken, naps;                         /* naps: since the last piece */
byte since_stop;                                  /* jobs, looks or turns since it was told to stop */

inline ring() { atomic { bell++; waiting = false } }

#if SCENE == 3
#define CAME (taken == PIECES)
#else
#define CAME word
#endif

proctype peer()
{
	byte n;

#if SCENE == 1
	helped == JOBS || dead || over || stop;
#endif
#if SCENE == 2
	wanted || dead || over || stop;                           /* the device has done its own work: it sent what the peer needs */
#endif
	atomic {
		if
		:: dead || over || stop -> goto gone      /* it may have heard of that, too */
		:: !dead && !over -> buffer ! 1; done_its_part = true
		fi
	};
	if
	:: fence -> len(buffer) == 0
	:: else
	fi;
	n = sleepers;                             /* may overtake the store, without a fence */
	if
	:: n -> len(buffer) == 0; ring()          /* a locked instruction: the buffer is empty after it */
	:: else
	fi;
	if
	:: len(buffer) == 0 -> dead = true; ring()        /* it leaves */
	:: true
	fi;
gone:	skip
}

proctype drain()
{
	byte v;

end:	do
	:: atomic { buffer ? v -> word = true }
	od
}

/* The peer dies before it has done its part. */
proctype killer()
{
	if
	:: atomic { !done_its_part -> dead = true }; ring()
	:: true
	fi
}

proctype stopper()
{
	if
	:: stop = true;
#if MUTANT != 8
	   ring()
#endif
	:: true
	fi
}

proctype giver()
{
	do
	:: given == JOBS -> break
	:: else ->
		atomic { jobs++; given++ };
#if MUTANT != 7
		if
		:: sleepers -> ring()
		:: else
		fi
#endif
	od
}

proctype sender()
{
	byte sent;

	do
	:: sent == PIECES -> break
	:: atomic { sent < PIECES -> pieces++; sent++ }
	:: break                                  /* nothing comes any more */
	od
}

proctype waiter()
{
	byte n, seen, since, own;
	bool armed, sure, some, failed;

	do
	:: CAME -> break
	:: else ->
		failed = false;
#if SCENE == 3
		atomic {
			some = pieces > 0;
			if
			:: some -> pieces--; taken++; naps = 0; n = (n < LOOKS -> n : LOOKS);
#if MUTANT != 11
				since = 0
#endif
			:: else
			fi;
			n++;
			since_stop = since_stop + stop;
			assert(since_stop <= LOOKS + 1)
		};
		if
#if MUTANT == 12
		:: n < LOOKS || some -> goto next
#else
		:: n < LOOKS || (some && !stop) -> goto next
#endif
		:: else
		fi;
#endif
#if SCENE == 2
#if MUTANT != 9
		if
#if MUTANT == 10
		:: true ->
#else
		:: !wanted ->
#endif
			atomic {                      /* the device's thread works, and enters the lane again */
				if
				:: own == JOBS -> wanted = true
				:: else -> own++
				fi;
				since_stop = since_stop + (stop && wanted);
				assert(since_stop <= 2)
			};
			goto next
		:: else
		fi;
#endif
#endif
#if SCENE != 3
		n++;
		if
		:: n < SPINS -> goto next
		:: else
		fi;
#endif
#if MUTANT == 2
		goto help;
hope:
#endif
		if
		:: stop || dead -> failed = true; goto next
		:: else
		fi;
#if MUTANT == 2
		goto rest;
#endif
help:
#if SCENE == 1
		if
		:: atomic { jobs -> jobs-- };
			atomic {
				helped++;
				since_stop = since_stop + stop;
				assert(since_stop <= 1)
			};
			n = 0;
			if
			:: armed -> sleepers--; armed = false
			:: else
			fi;
			goto next
		:: else
		fi;
#endif
#if MUTANT == 2
		goto hope;
#endif
rest:
#if SCENE == 3
		atomic {                          /* a nap ends by itself */
			naps++;
			since++;
			assert(naps <= PATIENCE + 1)
		};
		if
#if MUTANT != 13
		:: since > PATIENCE -> assert(naps > PATIENCE); failed = true
#endif
		:: else
		fi;
#else
		if
		:: !armed ->
			seen = bell;
			sleepers++;
			armed = true;
			sure = fence;
#if MUTANT != 3
			goto next
#endif
		:: else
		fi;
#if MUTANT == 6
		seen = bell;
#endif
		if
		:: sure ->
			atomic {
				if
				:: bell == seen -> waiting = true
				:: else
				fi
			};
			!waiting
		:: else                           /* ends by itself */
		fi;
		if
		:: !sure && bell == seen ->
#if MUTANT != 5
			len(buffer) == 0;         /* membarrier */
#endif
			sure = true
		:: else ->
			sleepers--;
			armed = false;
			n = SPINS
		fi;
#endif
next:		if
		:: failed ->
#if MUTANT != 1
			if
			:: CAME -> break
			:: else
			fi;
#endif
			assert(SCENE == 3 || stop || !done_its_part);
			break
		:: else
		fi
	od;
#if MUTANT != 4
	if
	:: armed -> sleepers--
	:: else
	fi;
#endif
	assert(!sleepers);
	over = true
}

init {
	atomic {
		if
		:: fence = true
		:: true
		fi;
		run waiter();
		run stopper();
#if SCENE == 3
		run sender()
#else
		run peer();
		run drain();
#if SCENE == 1
		run giver();
#endif
		run killer()
#endif
	}
}
