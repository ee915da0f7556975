"""What goes round the devices, written by hand: nothing of it is copied where devices map each other's memory."""
import functools
import os

import numpy as np
from common import DEVICES, N, P, case, end, same, sharded, spread

import jax
import jax.numpy as jnp
from jax import lax

RING = [(i, (i + 1) % N) for i in range(N)]
HEADS, ROWS, DEPTH = 2, 64, 64                      # of one device: 32 KB in f32
FAR = bool(os.environ.get("FAR") or os.environ.get("RONDO_CHAOS"))        # between hosts all is copied
RONDO = jax.devices()[0].platform == "rondo"


def on(x):
    return lax.ppermute(x, "x", RING)


def permuted(f, *args):
    """f(*args), and the bytes that permutes of this process' devices copied for it, and that were read where they lay."""
    if not RONDO:
        return f(*args), None
    from rondo import library
    before = library.permuted()
    out = jax.block_until_ready(f(*args))
    return out, tuple(b - a for a, b in zip(before, library.permuted()))


def nothing_copied(moved, read=None):
    """read: bytes that are read where they lie; None: some."""
    if not RONDO or N == 1:
        return
    copied, lent = moved
    assert (FAR or copied == 0 and lent > 0) and (read is None or copied + lent == read), (copied, lent, read)


# --- attention


def attention(turns, first, stacked, remat, q, k, v, save=None):
    """save: hands k and v on in all turns but one, a function of the turn's number as well."""
    def step(c, i):
        k, v, m, l, o = c
        if first:
            k, v = save(i, k, v) if save else (on(k), on(v))
        a, b = (k[0], k[1]) if stacked else (k, v)
        s = jnp.einsum("hqd,hkd->hqk", q, a).astype(np.float32)
        most = jnp.maximum(m, s.max(-1))
        p, scale = jnp.exp(s - most[..., None]), jnp.exp(m - most)
        o = o * scale[..., None] + jnp.einsum("hqk,hkd->hqd", p.astype(b.dtype), b)
        if not first:
            k, v = save(i, k, v) if save else (on(k), on(v))
        return (k, v, most, l * scale + p.sum(-1), o), None

    k, v = (jnp.stack([k, v]), jnp.zeros((1,))) if stacked else (k, v)
    c = k, v, jnp.full(q.shape[:-1], -1e30), jnp.zeros(q.shape[:-1]), jnp.zeros(q.shape)
    _, _, _, l, o = turns(jax.checkpoint(step) if remat else step, c)
    return (o / l[..., None]).astype(q.dtype)


def scanned(step, c):
    return lax.scan(step, c, None, length=N)[0]


def numbered(step, c):
    return lax.scan(step, c, jnp.arange(N))[0]


def counted(step, c):
    return lax.fori_loop(0, N, lambda i, c: step(c, i)[0], c)


def unrolled(step, c):
    for _ in range(N):
        c, _ = step(c, None)
    return c


def drawn(seed, dtype="float32"):
    return (np.random.default_rng(seed).normal(size=(HEADS, N * ROWS, DEPTH)) * 0.3).astype(np.float32).astype(jnp.dtype(dtype))


def reference(q, k, v, w):
    """Attention, and the gradients of its product with w."""
    q, k, v, w = (np.asarray(x, np.float64) for x in (q, k, v, w))
    s = np.einsum("hqd,hkd->hqk", q, k)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = np.einsum("hqd,hkd->hqk", w, v)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True))
    return p @ v, np.einsum("hqk,hkd->hqd", ds, k), np.einsum("hqk,hqd->hkd", ds, q), np.einsum("hqk,hqd->hkd", p, w)


def whole(x):
    return spread(x, spec=P(None, "x"))


def rings(turns, first, stacked=False, remat=False, dtype="float32", copies=False, save=None):
    q, k, v = (drawn(i, dtype) for i in range(3))
    w = drawn(3)
    f = sharded(functools.partial(attention, turns, first, stacked, remat, save=save), P(None, "x"), P(None, "x"))
    want = reference(q, k, v, w)
    tolerance = 2e-5 if dtype == "float32" else 2e-2
    args = whole(q), whole(k), whole(v)
    o, moved = permuted(f, *args)
    same(o, want[0].astype(np.float32), tolerance, "attention")
    each = HEADS * ROWS * DEPTH * q.itemsize
    nothing_copied(moved, 2 * N * each * DEVICES if turns is scanned and not stacked else None)
    w = whole(w)
    g = jax.jit(jax.grad(lambda w, *x: (f(*x).astype(np.float32) * w).sum(), argnums=(1, 2, 3)))
    got, moved = permuted(g, w, *args)
    for a, b, name in zip(got, want[1:], "qkv"):
        same(a, b.astype(np.float32), 5e-5 if dtype == "float32" else 5e-2, "gradient of " + name)
    if copies:                                       # the last turn's go to the result
        assert not RONDO or N == 1 or FAR or moved[0] == 2 * each * DEVICES, moved
    else:
        nothing_copied(moved)


@case
def attention_scanned():
    rings(scanned, False)
    rings(scanned, True)


@case
def attention_in_bf16():
    rings(scanned, False, dtype="bfloat16")


@case
def attention_with_keys_and_values_in_one():
    rings(scanned, False, stacked=True)


@case
def attention_recomputed():
    rings(scanned, True, remat=True)


@case
def attention_that_saves_a_turn():
    """One permute of N is saved by a cond, however it is spelled: it is none."""
    both, neither = (lambda k, v: (on(k), on(v))), (lambda k, v: (k, v))
    rings(numbered, False, save=lambda i, k, v: lax.cond(i < N - 1, both, neither, k, v))
    rings(counted, False, save=lambda i, k, v: lax.cond(i != N - 1, both, neither, k, v))
    rings(numbered, False, remat=True, save=lambda i, k, v: lax.cond(i == N - 1, neither, both, k, v))
    rings(numbered, True, save=lambda i, k, v: lax.cond(i > 0, both, neither, k, v))
    rings(counted, True, save=lambda i, k, v: lax.cond(i == 0, neither, both, k, v))
    rings(counted, False, save=lambda i, k, v: tuple(lax.switch(jnp.clip(i - N + 2, 0, 1), [on, lambda x: x], x) for x in (k, v)))


@case
def attention_unrolled():
    rings(unrolled, False)
    rings(unrolled, True, copies=True)


@case
def layers_around_the_ring():
    """Forwards and backwards, beside the same with all keys gathered."""
    def layers(inner):
        def f(x, w):
            def layer(h, w):
                q, k, v = (h @ w[i] for i in range(3))
                return jnp.tanh(inner(q, k, v) + h), None
            return lax.scan(jax.checkpoint(layer), x, w)[0]
        return jax.jit(jax.value_and_grad(lambda x, w: (sharded(f, (P(None, "x"), P()), P(None, "x"))(x, w) ** 2).sum()))

    def dense(q, k, v):
        k, v = (lax.all_gather(x, "x", axis=1, tiled=True) for x in (k, v))
        return jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k)) @ v

    x = whole(drawn(5))
    w = spread((np.random.default_rng(6).normal(size=(3, 3, DEPTH, DEPTH)) / DEPTH ** 0.5).astype(np.float32), spec=P())
    want, dwant = layers(dense)(x, w)
    (got, dgot), moved = permuted(layers(functools.partial(attention, scanned, False, False, False)), x, w)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4)
    for a, b in zip(dgot.addressable_shards, dwant.addressable_shards):
        np.testing.assert_allclose(np.asarray(a.data), np.asarray(b.data), rtol=2e-3, atol=2e-3)
    nothing_copied(moved)


# --- turns


NUMBERS = np.arange(N * 1024, dtype=np.float32).reshape(N, 1024) % 97


def turns_of(k, t):
    """What device d has after t turns of a ring, for each d."""
    return np.roll(k, t, 0)


@case
def fewer_and_more_turns_than_devices():
    x = spread(NUMBERS)
    for t in sorted({2, 3, N - 1, N, N + 1, 2 * N + 3} - {0, 1}):
        f = sharded(lambda x: lax.fori_loop(0, t, lambda i, c: (on(c[0]), c[1] + c[0] * (i + 1)), (x, x * 0)), outs=(P("x"), P("x")))
        (k, o), moved = permuted(f, x)
        same(k, turns_of(NUMBERS, t), what=f"{t} turns")
        same(o, sum(turns_of(NUMBERS, i) * (i + 1) for i in range(t)), what=f"sum of {t} turns")
        nothing_copied(moved, t * 4096 * DEVICES)


@case
def several_links_a_turn():
    """What is between is read, or not; a scan that is unrolled; a ring in each turn of another, which goes on with what that one ends with."""
    x = spread(NUMBERS)
    for t in sorted({1, 2, N}):
        f = sharded(lambda x, t=t: lax.fori_loop(0, t, lambda i, c: (on(on(c[0])), c[1] + c[0] * (i + 1)), (x, x * 0)), outs=(P("x"), P("x")))
        (k, o), moved = permuted(f, x)
        same(k, turns_of(NUMBERS, 2 * t), what=f"{t} turns of two links")
        same(o, sum(turns_of(NUMBERS, 2 * i) * (i + 1) for i in range(t)), what=f"sum of {t} turns of two links")
        if t > 1:
            nothing_copied(moved)
        for links in (2, 3):
            f = sharded(lambda x, t=t, links=links: lax.scan(lambda c, i: ((on(c[0]), c[1] + c[0] * (i + 1)), None), (x, x * 0), jnp.arange(t * links), unroll=links)[0][1])
            o, moved = permuted(f, x)
            same(o, sum(turns_of(NUMBERS, i) * (i + 1) for i in range(t * links)), what=f"{t * links} turns, unrolled by {links}")
            if t > 1:
                nothing_copied(moved)

    def outer(c, _):
        k, o = lax.fori_loop(0, 3, lambda i, c: (on(c[0]), c[1] * 2 + c[0]), c)
        return (lax.ppermute(k, "x", [(i, (i - 1) % N) for i in range(N)]), o), None

    o, moved = permuted(sharded(lambda x: lax.scan(outer, (x, x * 0), None, length=4)[0][1]), x)
    want = NUMBERS * 0
    for j in range(4):
        for i in range(3):
            want = want * 2 + turns_of(NUMBERS, 2 * j + i)
    same(o, want, what="rings in a ring")
    nothing_copied(moved)


@case
def turns_that_are_told_apart():
    """A cond that all turns but one decide alike is one still where somebody sees what that turn gives."""
    x = spread(NUMBERS)
    for t in sorted({0, 1, 2, N, N + 3}):
        for but, at in ((0, "first"), (t - 1, "last")):
            for seen in (False, True):
                def turn(c, i, but=but):
                    k, o = c
                    if but == 0:
                        k = lax.cond(i != but, on, lambda k: k, k)
                    o = o + k * (i + 1)
                    if but:
                        k = lax.cond(i != but, on, lambda k: k, k)
                    return (k, o), None

                f = sharded(lambda x, turn=turn, t=t, seen=seen: lax.scan(turn, (x, x * 0), jnp.arange(t))[0][0 if seen else 1:], outs=(P("x"),) * (1 + seen))
                got = f(x)
                same(got[-1], sum((turns_of(NUMBERS, i) * (i + 1) for i in range(t)), NUMBERS * 0), what=f"sum of {t} turns, the {at} one saved")
                if seen:
                    same(got[0], turns_of(NUMBERS, max(t - 1, 0)), what=f"{t} turns, the {at} one saved")
        f = sharded(lambda x, t=t: lax.fori_loop(0, t, lambda i, a: lax.cond(i < t - 1, on, lambda a: a, a + x * (i + 1)), jnp.zeros(x.shape)))
        got, moved = permuted(f, x)
        want = NUMBERS * 0
        for i in range(t):
            want = turns_of(want, 1) + NUMBERS * (i + 1)
        same(got, want, what=f"{t} turns that add, the last one saved")
        if t > 1:
            nothing_copied(moved)


@case
def sums_that_go_round():
    """Handed on before something is added, and after."""
    x = spread(NUMBERS)
    for t in sorted({2, N, N + 2}):
        for last in (False, True):
            turn = (lambda i, a, x: on(a + x * (i + 1))) if last else (lambda i, a, x: on(a) + x * (i + 1))
            a, moved = permuted(sharded(lambda x: lax.fori_loop(0, t, lambda i, a: turn(i, a, x), x)), x)
            want = NUMBERS
            for i in range(t):
                want = turns_of(want + NUMBERS * (i + 1), 1) if last else turns_of(want, 1) + NUMBERS * (i + 1)
            same(a, want, what=f"{t} turns, handed on {'last' if last else 'first'}")
            nothing_copied(moved, t * 4096 * DEVICES)


@case
def what_was_and_what_comes():
    """Both read in one turn; two at once; further than one link; a while whose end only data knows."""
    x = spread(NUMBERS)

    def both(c, _):
        k, n, o = c[0], on(c[0]), c[1]
        return (n, o + k * n), k[:, :2]

    f = sharded(lambda x: lax.scan(both, (x, x * 0), None, length=N), outs=((P("x"), P("x")), P(None, "x")))
    ((k, o), rows), moved = permuted(f, x)
    same(k, NUMBERS)
    same(o, sum(turns_of(NUMBERS, i) * turns_of(NUMBERS, i + 1) for i in range(N)))
    same(rows, np.stack([turns_of(NUMBERS, i)[:, :2] for i in range(N)]))
    nothing_copied(moved, N * 4096 * DEVICES)
    f = sharded(lambda x: lax.fori_loop(0, 4, lambda i, c: (lax.ppermute(c[0], "x", [(b, a) for a, b in RING]), on(on(c[1])), c[2] + c[0] * c[1]), (x, x, x * 0))[2])
    o, moved = permuted(f, x)
    same(o, sum(turns_of(NUMBERS, -i) * turns_of(NUMBERS, 2 * i) for i in range(4)))
    f = sharded(lambda x, n: lax.while_loop(lambda c: c[0] < n[0, 0], lambda c: (c[0] + 1, on(c[1]), c[2] + c[1]), (0, x, x * 0))[2], (P("x"), P()))
    for n in (0, 1, N + 1):
        o, moved = permuted(f, x, spread(np.full((1, 1), n, np.int32), spec=P()))
        same(o, sum((turns_of(NUMBERS, i) for i in range(n)), NUMBERS * 0), what=f"{n} turns of a while")
        if n:
            nothing_copied(moved, n * 4096 * DEVICES)


if __name__ == "__main__":
    end()
