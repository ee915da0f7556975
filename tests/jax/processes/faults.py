"""What becomes of the others when one process dies, stops, or goes another way.

    faults.py <what> <victim> <file>

Each process prints what it saw; the moment of a death is written to the file."""
import os
import signal
import sys
import threading
import time

import numpy as np
from common import ALL, ME, N, NamedSharding, P, mesh, sharded, spread

import jax
from jax import lax

what, victim, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if what == "join":                      # it dies before it has devices, which the others wait for
    if ME == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(2):                  # JAX asks again for what has failed
        began = time.time()
        try:
            jax.devices()
        except Exception as e:  # noqa: BLE001
            print(f"after {time.time() - began:.3f} s: {type(e).__name__}: {e}", flush=True)
    sys.exit(0)
ring = [(i, (i + 1) % N) for i in range(N)]
x = spread(np.ones((N, 1 << 16), np.float32))
turns = 10**6


def permutes(x):
    return lax.fori_loop(0, turns, lambda i, x: lax.ppermute(x + 1, "x", ring), x)     # anew in each turn, or one loan would do for all


def sums(x):
    return lax.fori_loop(0, turns, lambda i, x: lax.psum(x, "x") / N, x)


def once(x):
    return lax.psum(x, "x")


def other(x):
    return lax.pmax(x, "x")


def long_to_compile(x):
    for i in range(3000):
        x = jax.numpy.sin(x) * (1 + i)
    return lax.psum(x, "x")


def die():
    with open(file, "w") as f:
        f.write(repr(time.time()))
    os.kill(os.getpid(), signal.SIGKILL)


def soon(action, seconds=0.4):
    if ME == victim:
        threading.Thread(target=lambda: (time.sleep(seconds), action()), daemon=True).start()


def stop():
    """Another process wakes it."""
    with open(file, "w") as f:
        f.write(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


f = sharded(once)
f(x).block_until_ready()            # all have met
try:
    if what == "permute":
        soon(die)
        sharded(permutes)(x).block_until_ready()
    elif what == "blocks":            # of an attention go round, several at a time, launch after launch
        seq = NamedSharding(mesh(), P(None, "x"))
        def blocks(q, k, v):
            loss = lambda *a: (jax.nn.dot_product_attention(*a, is_causal=True) ** 2).sum()
            return [a - 0.01 * b for a, b in zip((q, k, v), jax.grad(loss, (0, 1, 2))(q, k, v))]
        g, part = jax.jit(blocks), np.ones((1, 4096, 4, 64), np.float32)
        a = [jax.make_array_from_callback(part.shape, seq, lambda at: part[at]) for _ in range(3)]
        a = jax.block_until_ready(g(*a))
        soon(die)
        while True:
            a = jax.block_until_ready(g(*g(*g(*a))))
    elif what == "unread":            # nobody asks for the result
        soon(die)
        y = sharded(permutes)(x)
        y = f(f(y))
        while not os.path.exists(file):
            time.sleep(0.01)
        time.sleep(3)
        print("went on", flush=True)
        sys.exit(0)
    elif what == "sum":
        soon(die)
        sharded(sums)(x).block_until_ready()
    elif what == "compile":           # the victim compiles while the others wait for it in the program
        if ME == victim:
            soon(die, 0.2)
            sharded(long_to_compile)(x)
        else:
            sharded(once)(x[:, :9]).block_until_ready() if ME < 0 else f(x).block_until_ready()
    elif what == "between":
        if ME == victim:
            die()
        while not os.path.exists(file):
            time.sleep(0.01)
        time.sleep(0.3)
        began = time.time()
        f(x).block_until_ready()
    elif what == "stop":
        turns = 2000
        soon(stop, 0.05)
        y = sharded(permutes)(x)
        f(y).block_until_ready()
        time.sleep(0.5)               # for what ends it only now
        print("went on", flush=True)
        sys.exit(0)
    elif what == "swapped":
        g = sharded(other)
        for h in ((g, f) if ME == victim else (f, g)):
            h(x).block_until_ready()
    elif what in ("leave", "viewed"): # one process ends in order while the others wait for it; numpy has something of it to the end
        if what == "viewed":
            last = np.asarray(jax.jit(lambda a: a * 2)(np.ones(1000, "bfloat16")))
        if ME != victim:
            f(x).block_until_ready()
    elif what == "diverged":          # the same name, another program
        sharded(once if ME != victim else lambda x: lax.psum(lax.ppermute(x, "x", ring), "x"))
        def step(x):
            x = lax.psum(x, "x")
            return lax.ppermute(x, "x", ring) if ME == victim else lax.pmax(x, "x")
        sharded(step)(x).block_until_ready()
    elif what == "pairs":             # the same name, the ring the other way round: two wait for each other, and no message tells
        way = [(b, a) for a, b in ring] if ME == victim else ring
        sharded(lambda x: lax.ppermute(x, "x", way))(x).block_until_ready()
    elif what in ("order", "order_pairs"):        # the same program, over a mesh whose devices one process has the other way round
        turned = jax.sharding.Mesh(np.array(jax.devices()[::-1 if ME == victim else 1]), "x")
        x = jax.make_array_from_callback((4 * N,), NamedSharding(turned, P("x")), lambda at: np.arange(4.0 * N, dtype=np.float32)[at])
        pairs = jax.shard_map(lambda x: lax.ppermute(x, "x", ring), mesh=turned, in_specs=P("x"), out_specs=P("x"))
        jax.jit(jax.numpy.sum if what == "order" else pairs)(x).block_until_ready()
    elif what in ("sides", "constant"):           # what is communicated is the same
        x = spread(np.ones((N, N), np.float32), spec=P("x") if what == "constant" or ME != victim else P(None, "x"))
        jax.jit(lambda x: x.sum() * (2 if what == "constant" and ME == victim else 3))(x).block_until_ready()
    elif what == "donated":
        x = spread(np.ones((N, N), np.float32), spec=P("x"))
        jax.jit(lambda x: x + x.sum(), donate_argnums=0 if ME == victim else ())(x).block_until_ready()
    elif what == "decided":           # who is asked how an operation is cut answers otherwise in one process
        from jax.experimental.custom_partitioning import custom_partitioning
        total = custom_partitioning(lambda a: a.sum(0))

        def partition(m, args, out):
            return m, lambda a: lax.psum(a.sum(0) * (2 if ME == victim else 1), "x"), NamedSharding(m, P()), (NamedSharding(m, P("x")),)
        total.def_partition(partition, sharding_rule="i j -> j")
        with jax.set_mesh(mesh()):
            jax.jit(lambda a: total(a))(x).block_until_ready()
    print("nothing happened", flush=True)
except Exception as e:  # noqa: BLE001
    if what in ("permute", "sum", "compile", "blocks"):
        with open(file) as t:
            began = float(t.read())
    print(f"after {time.time() - began if what not in ('swapped', 'leave', 'viewed', 'diverged', 'pairs', 'order', 'order_pairs', 'sides', 'constant', 'donated', 'decided') else 0:.3f} s: {type(e).__name__}: {e}", flush=True)
