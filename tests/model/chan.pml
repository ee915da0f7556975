/* Pair channels, from docs/sym.md: N devices, rings of 2 lines, every order of steps and of stores leaving the store
 * buffers (first in, first out, as on x86).
 *
 * SCENE says what the devices do; spin looks at all states for a failed assertion, and for a device that waits for ever.
 * MUTANT breaks one rule of the protocol: spin must find that. */
#ifndef SCENE
#define SCENE 1
#endif
#ifndef MUTANT
#define MUTANT 0
#endif
#if SCENE == 5 || SCENE == 7
#define N 3
#else
#define N 2
#endif
#define R 2
#if SCENE == 8                                    /* ticks know an epoch modulo MOD; what was written is wiped twice in that time */
#define MOD      4
#define START    2                                /* launches before these */
#define LAUNCHES 5
#else
#define MOD      32
#define START    0
#define LAUNCHES 2
#endif
#if MUTANT == 10
#define WIPES(e) ((e + 1) % MOD == 0)             /* once only */
#else
#define WIPES(e) ((e + 1) % (MOD / 2) == 0)
#endif

/* What sender s writes in the heap of receiver r: a ring of lines (first, what, ack, last), a word of returns, one of closes. */
#define W        (R * 4 + 2)
#define PAIR(r, s)    (((r) * N + (s)) * W)
#define FIRST(r, s, k) (PAIR(r, s) + ((k) - 1) % R * 4)
#define WHAT(r, s, k)  (FIRST(r, s, k) + 1)
#define ACK(r, s, k)   (FIRST(r, s, k) + 2)
#define LAST(r, s, k)  (FIRST(r, s, k) + 3)
#define RET(r, s)      (PAIR(r, s) + R * 4)
#define CLOSED(r, s)   (PAIR(r, s) + R * 4 + 1)
#define DATA(r)        (N * N * W + (r))          /* what is lent, or put there */

byte mem[N * N * W + N];
chan buffer[N] = [10] of { byte, byte };          /* stores on their way: address, value */

#define TICK(p, n)    (epoch[p] % MOD * 8 + (n))
#define STORE(a, v)   buffer[me] ! a, v
#define MAX(a, b)     ((a) > (b) -> (a) : (b))

/* Has line k of peer p arrived? */
#define HAS(p, k)     (mem[FIRST(me, p, k)] == TICK(p, k) && mem[LAST(me, p, k)] == TICK(p, k))
/* Lines known to be returned: by the word, and by lines that have arrived but were not taken. */
#if MUTANT == 7
#define BY_WORD(p)    (mem[RET(me, p)] / 8 == epoch[p] -> mem[RET(me, p)] % 8 : 0)            /* a part of an epoch, and all of it */
#else
#define BY_WORD(p)    (mem[RET(me, p)] / 8 == epoch[p] % MOD -> mem[RET(me, p)] % 8 : 0)
#endif
#define BY_1(p)       (HAS(p, rx[p] + 1) -> mem[ACK(me, p, rx[p] + 1)] : 0)
#define BY_2(p)       (HAS(p, rx[p] + 1) && HAS(p, rx[p] + 2) -> mem[ACK(me, p, rx[p] + 2)] : 0)
#define KNOWN(p)      MAX(MAX(acked[p], BY_WORD(p)), MAX(BY_1(p), BY_2(p)))
#define LEFT(p)       (mem[CLOSED(me, p)] >= epoch[p])
#if MUTANT == 1
#define OPEN(p)       true                         /* a line of the next launch need not wait for the close */
#elif MUTANT == 11
#define OPEN(p)       (mem[CLOSED(me, p)] % MOD + 1 >= epoch[p] % MOD)        /* parts of epochs have no order */
#else
#define OPEN(p)       (mem[CLOSED(me, p)] + 1 >= epoch[p])
#endif
#if MUTANT == 2
#define CREDIT(p)     (tx[p] - KNOWN(p) <= R)      /* one line too many */
#else
#define CREDIT(p)     (tx[p] - KNOWN(p) < R)
#endif

inline launch_begin(p) { d_step { epoch[p]++; tx[p] = 0; acked[p] = 0; rx[p] = 0; done[p] = 0; told[p] = 0 } }
inline wipe(p)
{
	STORE(FIRST(me, p, 1), 0);
	STORE(LAST(me, p, 1), 0);
	STORE(FIRST(me, p, 2), 0);
	STORE(LAST(me, p, 2), 0);
	STORE(RET(me, p), 0)
}

inline launch_end(p)
{
#if SCENE == 8 && MUTANT != 8 && MUTANT != 9
	if
	:: WIPES(epoch[p]) -> wipe(p)
	:: else
	fi;
#endif
	STORE(CLOSED(p, me), epoch[p])
#if MUTANT == 9                                   /* the next launch may have begun */
	if
	:: WIPES(epoch[p]) -> wipe(p)
	:: else
	fi
#endif
}

inline send(p, v)
{
#if SCENE == 7 && MUTANT != 6                     /* who waits tells of all that it has returned */
	do
	:: atomic { OPEN(p) && CREDIT(p) -> acked[p] = KNOWN(p); tx[p]++; told[p] = done[p]; break }
	:: !CREDIT(p) && told[q] != done[q] -> told[q] = done[q]; STORE(RET(q, me), TICK(q, done[q]))
	od;
#else
	atomic { OPEN(p) && CREDIT(p) -> acked[p] = KNOWN(p); tx[p]++; told[p] = done[p] };
#endif
#if MUTANT == 3
	STORE(FIRST(p, me, tx[p]), TICK(p, tx[p]));    /* the first word first */
	STORE(LAST(p, me, tx[p]), TICK(p, tx[p]));
#endif
	STORE(WHAT(p, me, tx[p]), v);
	STORE(ACK(p, me, tx[p]), done[p]);
#if MUTANT != 3
	STORE(LAST(p, me, tx[p]), TICK(p, tx[p]));
	STORE(FIRST(p, me, tx[p]), TICK(p, tx[p]))
#endif
}

/* The next line; gone is set if the peer has left the launch without sending it. */
inline recv(p)
{
	gone = false;
	if
	:: atomic { HAS(p, rx[p] + 1) -> rx[p]++ };
	   got = mem[WHAT(me, p, rx[p])];
	   d_step { acked[p] = MAX(acked[p], mem[ACK(me, p, rx[p])]) }
	:: LEFT(p) && !HAS(p, rx[p] + 1) -> gone = true
	fi
}

inline give_back(p, now)
{
	done[p] = rx[p];
	if
	:: done[p] != told[p] && (now || done[p] - told[p] > R / 2) -> told[p] = done[p]; STORE(RET(p, me), TICK(p, done[p]))
	:: else
	fi
}

inline settle(p) { atomic { KNOWN(p) == tx[p] || LEFT(p) -> acked[p] = KNOWN(p) } }

/* A value that says who sent it, in which launch, and which it is. */
#define VALUE(who, n) (16 * (who) + 4 * (launch - 1) + (n))

proctype device(byte me)
{
	byte epoch[N], tx[N], acked[N], rx[N], done[N], told[N];
	byte got, launch, i, p;
	bool gone, now;

	if                                        /* returns at once, or when half the ring is owed */
	:: now = true
	:: now = false
	fi;
	p = 1 - me;
#if START
	epoch[p] = START;
#endif
#if SCENE == 5 || SCENE == 7
	p = (me + 1) % N;                         /* where it sends */
	byte q = (me + N - 1) % N;                /* from where it receives */
#endif
	for (launch : 1 .. LAUNCHES) {
#if SCENE == 5 || SCENE == 7
		launch_begin(p);
		launch_begin(q);
#if SCENE == 5
		for (i : 0 .. 1) {                /* a ring of three */
			send(p, VALUE(me, i));
			recv(q);
			assert(!gone && got == VALUE(q, i));
			give_back(q, false)
		}
#else
		send(p, VALUE(me, 0));            /* the same; then each sends a ring full before it takes one */
		recv(q);
		give_back(q, false);
		for (i : 1 .. R) {
			send(p, VALUE(me, i))
		}
		for (i : 1 .. R) {
			recv(q);
			assert(!gone && got == VALUE(q, i));
			give_back(q, false)
		}
#endif
		launch_end(p);
		launch_end(q)
#else
		launch_begin(p);
#if SCENE == 1                                    /* both send three lines and take three; returns ride along */
		for (i : 0 .. 2) {
			send(p, VALUE(me, i));
			recv(p);
			assert(!gone && got == VALUE(p, i));
			give_back(p, now)
		}
#elif SCENE == 2                                  /* four lines one way */
		for (i : 0 .. 3) {
			if
			:: me == 0 -> send(p, VALUE(me, i))
			:: else -> recv(p); assert(!gone && got == VALUE(p, i)); give_back(p, now)
			fi
		}
#elif SCENE == 3                                  /* 0 lends twice; what is lent changes only when it is back */
		for (i : 0 .. 1) {
			if
			:: me == 0 -> STORE(DATA(0), VALUE(0, i)); send(p, VALUE(0, i));
#if MUTANT != 4
			   settle(p)
#endif
			:: else -> recv(p); assert(!gone && got == VALUE(p, i)); assert(mem[DATA(0)] == got);
			   assert(mem[DATA(0)] == got); give_back(p, true)
			fi
		}
#elif SCENE == 4                                  /* 1 grants, 0 puts and says so, twice */
		for (i : 0 .. 1) {
			if
			:: me == 1 -> send(p, VALUE(1, i)); recv(p); assert(!gone && got == VALUE(p, i)); assert(mem[DATA(1)] == got);
			   assert(mem[DATA(1)] == got); give_back(p, false)
#if MUTANT == 5
			:: else -> STORE(DATA(1), VALUE(0, i)); recv(p); assert(!gone && got == VALUE(p, i)); give_back(p, false);
			   send(p, VALUE(0, i))
#else
			:: else -> recv(p); assert(!gone && got == VALUE(p, i)); give_back(p, false); STORE(DATA(1), VALUE(0, i));
			   send(p, VALUE(0, i))
#endif
			fi
		}
#elif SCENE == 6                                  /* 0 may give up at any point of the first launch; 1 learns of it, and the next one goes well */
		for (i : 0 .. 2) {
			if
			:: me == 0 ->
				if
				:: launch == 1 -> break
				:: send(p, VALUE(me, i))
				fi
			:: else ->
				recv(p);
				if
				:: gone -> assert(launch == 1); break
				:: else -> assert(got == VALUE(p, i)); give_back(p, false)
				fi
			fi
		}
#elif SCENE == 8                                  /* the last one uses again what the first one did, which 1 may leave early */
		for (i : 0 .. (launch == 1 -> 1 : (launch == LAUNCHES -> 2 : 0))) {
			if
			:: me == 0 -> send(p, VALUE(me, i))
			:: me == 1 && launch == 1 -> break
			:: me == 1 -> recv(p); assert(!gone && got == VALUE(p, i)); give_back(p, now)
			fi
		}
#endif
		launch_end(p);
#if SCENE == 6
		if
		:: launch == 1 && (me == 0 || gone) -> LEFT(p)     /* it failed here: nothing of it is in use when it is over */
		:: else
		fi
#endif
#endif
	}
}

/* Stores leave the buffer of a device, in order. */
proctype drain(byte me)
{
	byte a, v;

end:	do
	:: atomic { buffer[me] ? a, v -> mem[a] = v; a = 0; v = 0 }
	od
}

init
{
	byte k;

	atomic {
#if START
		mem[CLOSED(0, 1)] = START;
		mem[CLOSED(1, 0)] = START;
#endif
		for (k : 0 .. N - 1) {
			run device(k);
			run drain(k)
		}
	}
}
