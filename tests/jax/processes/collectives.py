"""Every collective between devices of several processes, beside numpy."""
import os

import numpy as np
from common import DEVICES, ME, N, P, case, mesh, same, sharded, spread

import jax
import jax.numpy as jnp
from jax import lax

RING = [(i, (i + 1) % N) for i in range(N)]
SIZES = [0, 1, 1000, 1025, 200001]          # of one device; in the message, lent, in chunks


def numbers(shape, dtype, seed=0):
    x = np.random.default_rng(seed).integers(0, 5, shape)
    return x.astype(jnp.dtype(dtype)) if dtype != "bool" else x > 2


def each(dtypes=("float32",), sizes=SIZES):
    for dtype in dtypes:
        for n in sizes:
            yield dtype, n


@case
def sums():
    f = sharded(lambda x: (lax.psum(x, "x"), lax.pmax(x, "x"), lax.pmin(x, "x")), outs=(P(), P(), P()))
    for dtype, n in [*each(), *each(("bfloat16", "int8", "int32", "float16"), [5, 70001])]:
        x = numbers((N, n), dtype)
        a, b, c = f(spread(x))
        wide = x.astype(np.float64)
        same(a, wide.sum(0, keepdims=True).astype(x.dtype), what=f"psum {dtype} {n}")
        same(b, x.max(0, keepdims=True), what=f"pmax {dtype} {n}")
        same(c, x.min(0, keepdims=True), what=f"pmin {dtype} {n}")
    x = (numbers((N, 999), "float32") + 1j * numbers((N, 999), "float32", 1)).astype(np.complex64)
    same(sharded(lambda x: lax.psum(x, "x"), outs=P())(spread(x)), x.sum(0, keepdims=True))


@case
def permutes():
    f = sharded(lambda x: lax.ppermute(x, "x", RING))
    g = sharded(lambda x: lax.ppermute(x, "x", [(0, N - 1)]))
    for dtype, n in [*each(), *each(("bfloat16", "bool"), [1, 70001])]:
        x = numbers((N, n), dtype)
        same(f(spread(x)), np.roll(x, 1, 0), what=f"ppermute {dtype} {n}")
        want = np.zeros_like(x)
        want[N - 1] = x[0]
        same(g(spread(x)), want, what=f"one pair {dtype} {n}")


@case
def gathers():
    f = sharded(lambda x: lax.all_gather(x, "x", axis=1, tiled=True))
    for dtype, n in [*each(sizes=SIZES[1:]), *each(("bfloat16", "int32"), [4099])]:
        x = numbers((N, n), dtype)
        same(f(spread(x)), np.tile(x.reshape(1, -1), (N, 1)), what=f"all_gather {dtype} {n}")


@case
def scatters():
    f = sharded(lambda x: lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True), outs=P(None, "x"))
    for dtype, n in [*each(sizes=[1, 1000, 70000]), *each(("bfloat16", "int32"), [4099])]:
        x = numbers((N, n * N), dtype)
        same(f(spread(x)), x.astype(np.float64).sum(0, keepdims=True).astype(x.dtype), what=f"psum_scatter {dtype} {n}")


@case
def exchanges():
    f = sharded(lambda x: lax.all_to_all(x, "x", split_axis=1, concat_axis=0, tiled=True), outs=P(None, "x"))
    for dtype, n in [*each(sizes=[1, 1000, 20001]), *each(("bfloat16", "int8"), [4099])]:
        x = numbers((2 * N, n * N), dtype)
        same(f(spread(x)), x, what=f"all_to_all {dtype} {n}")


@case
def ragged():
    """Rows that data name; in every other trial they may lie over each other, or outside.  XLA:CPU does not have it."""
    if jax.devices()[0].platform == "cpu":
        return
    f = sharded(lambda x, y, *w: lax.ragged_all_to_all(x[0], y[0], *(v[0] for v in w), axis_name="x")[None], ins=(P("x"),) * 6)
    for k, (dtype, rows, wide) in enumerate([("float32", 9, 3), ("bfloat16", 9, 5), ("float32", 400, 70), ("int8", 4000, 129), ("float32", 3000, 256), ("complex64", 0, 2)]):
        rng = np.random.default_rng(k)
        room = rows + 20
        x, y = numbers((N, rows, wide), dtype), numbers((N, room, wide), dtype, 1)
        if k % 2:
            i, s, o = rng.integers(-3, rows + 9, (3, N, 2 * N))
            r = np.where(rng.random(s.shape) < 0.8, s.reshape(N, N, 2).swapaxes(0, 1).reshape(N, 2 * N), rng.integers(-3, rows + 9, s.shape))
        else:
            s = rng.integers(0, rows // N + 1, (N, N))
            i, o, r = np.cumsum(s, 1) - s, np.cumsum(s, 0) - s + 3, s.T
        want = y.copy()
        each = i.shape[1] // N
        for me in range(N):
            for at in range(N * each):
                of, c = at // each, me * each + at % each
                n = min(s[of, c], r[me, at])
                lo, hi = max(0, -i[of, c], -o[of, c]), min(n, rows - i[of, c], room - o[of, c])
                if hi > lo:
                    want[me, o[of, c] + lo:o[of, c] + hi] = x[of, i[of, c] + lo:i[of, c] + hi]
        for _ in range(2):
            same(f(*map(spread, (x, y, *(v.astype(np.int32) for v in (i, s, o, r))))), want, what=f"ragged {dtype} {rows} {wide}")


@case
def in_loops():
    f = sharded(lambda x: lax.fori_loop(0, 3 * N, lambda i, x: lax.ppermute(x, "x", RING) + i, x))
    g = sharded(lambda x: lax.fori_loop(0, 50, lambda i, x: lax.psum(x, "x") / N, x))
    h = sharded(lambda x: lax.while_loop(lambda x: lax.psum(x.sum(), "x") < 1e6, lambda x: x * 2, x))
    for n in (1, 1025, 70001):
        x = numbers((N, n), "float32") + 1
        same(f(spread(x)), x + sum(range(3 * N)), what=f"permute {n}")
        same(g(spread(x)), np.tile(x.mean(0, keepdims=True), (N, 1)), tolerance=1e-5, what=f"psum {n}")
        want = x.copy()
        while want.sum() < 1e6:
            want *= 2
        same(h(spread(x)), want, what=f"while {n}")


@case
def part_of_the_devices():
    if N < 4:
        return
    m = mesh(2, N // 2, names=("a", "b"))
    f = jax.jit(jax.shard_map(lambda x: (lax.psum(x, "a"), lax.psum(x, "b"), lax.all_gather(x, "b", axis=1, tiled=True)), mesh=m,
                              in_specs=P("a", "b"), out_specs=(P(None, "b"), P("a"), P("a")), check_vma=False))
    for n in (1, 1025, 70001):
        x = numbers((2, N // 2 * n), "float32")
        a, b, c = f(spread(x, m, P("a", "b")))
        same(a, x.sum(0, keepdims=True), what="over a")
        same(b, x.reshape(2, -1, n).sum(1), what="over b")
        same(c, x, what="gather over b")
    g = sharded(lambda x: lax.psum(x, "x", axis_index_groups=[list(range(0, N, 2)), list(range(1, N, 2))]))
    x = numbers((N, 3000), "float32")
    same(g(spread(x)), np.stack([x[i % 2::2].sum(0) for i in range(N)]), what="groups")


@case
def backwards():
    m = jax.sharding.Mesh(np.array(jax.devices())[::-1], ("x",))
    x = numbers((N, 2000), "float32")
    same(sharded(lambda x: lax.ppermute(x, "x", RING) + lax.axis_index("x"), m=m)(spread(x, m)), np.roll(x, 1, 0) + np.arange(N)[:, None])


@case
def several_in_flight():
    f = sharded(lambda x: lax.psum(x, "x") * 0.5)
    g = sharded(lambda x: lax.ppermute(x, "x", RING))
    x, y = numbers((N, 5000), "float32"), numbers((N, 50000), "float32", 1)
    a, b = spread(x), spread(y)
    for _ in range(40):
        a, b = f(a), g(b)
    same(b, np.roll(y, 40, 0))
    want = x.astype(np.float64)
    for _ in range(40):
        want = np.tile(want.sum(0, keepdims=True) * 0.5, (N, 1))
    same(a, want.astype(np.float32), tolerance=1e-4)


@case
def some_meshes_overlap():
    if N < 4:
        return
    m = [jax.sharding.Mesh(np.array(jax.devices())[list(ids)], ("x",)) for ids in ((0, N - 1), (1, N - 2), tuple(range(N)))]
    f = [sharded(lambda x: lax.psum(x, "x"), outs=P(), m=k) for k in m]
    for _ in range(10):
        for k, mk in enumerate(m):
            x = numbers((mk.size, 3000), "float32", k)
            y = f[k](spread(x, mk))
            same(y, x.sum(0, keepdims=True), what=f"mesh {k}")


@case
def donation():
    f = sharded(lambda x: lax.ppermute(x, "x", RING) + 1, donate_argnums=0)
    x = numbers((N, 40000), "float32")
    a = spread(x)
    for i in range(9):
        old, a = a, f(a)
        assert old.is_deleted()
    same(a, np.roll(x, 9, 0) + 9)


@case
def gradients():
    f = sharded(lambda x: jnp.sin(lax.psum(x, "x")), outs=P())
    x = numbers((N, 300), "float32") * 0.1
    s = x.sum(0, keepdims=True)
    same(jax.jit(jax.grad(lambda x: (f(x) ** 2).sum()))(spread(x)), np.tile(2 * np.sin(s) * np.cos(s), (N, 1)), tolerance=1e-4)


@case
def scalars_and_shapes():
    f = sharded(lambda x: lax.psum(x.reshape(()), "x"), outs=P())
    assert float(f(spread(np.arange(N, dtype=np.float32)))) == N * (N - 1) / 2
    assert jax.process_index() == ME and len(jax.local_devices()) == DEVICES


@case
def no_bytes_are_copied():
    """A permute whose consumer reads in place."""
    if jax.devices()[0].platform != "rondo":
        return
    from rondo import library
    x = numbers((N, 1 << 18), "float32")
    a = spread(x)
    f = sharded(lambda x: lax.ppermute(x, "x", RING) * 2 + x)
    same(f(a), np.roll(x, 1, 0) * 2 + x)
    before = library.permuted()
    same(f(a), np.roll(x, 1, 0) * 2 + x)
    after = library.permuted()
    copied, lent = after[0] - before[0], after[1] - before[1]
    assert copied + lent == DEVICES << 20, (before, after)
    if not os.environ.get("FAR"):                    # between hosts some must be
        assert copied == (DEVICES << 20 if os.environ.get("RONDO_CHAOS") else 0), (before, after)


def apart(f, g, k, *args):
    """k turns of x -> g(f(x), ..), each of the two a program of its own."""
    x, *rest = args
    for _ in range(k):
        x, *rest = g(f(x), x, *rest)
    return [x, *rest]


@case
def what_is_made_of_a_sum():
    """It runs on each part of the sum as it comes: the same bits as in a pass of its own."""
    ins = {1: P("x"), 2: (P("x"), P("x"))}
    ways = {
        "scaled": (1, lambda x: x, lambda s, x: (s * (1 / N),)),
        "another type": (1, lambda x: x.astype(jnp.bfloat16), lambda s, x: ((s.astype(jnp.float32) * 0.125 + 1).astype(x.dtype),)),
        "dear": (1, lambda x: x, lambda s, x: (jnp.tanh(s * 0.1) * 3,)),
        "the operand too": (1, lambda x: x * 0.25 + 1, lambda s, x: (x - s * 0.125,)),
        "momentum": (2, lambda x: x * 0.25 + 1, lambda s, x, m: (x - 0.25 * (0.5 * m + s), 0.5 * m + s)),
        "flipped": (1, lambda x: x, lambda s, x: (s[::-1] * (1 / N),)),
        "with its first": (1, lambda x: x, lambda s, x: (s * (1 / N) + s[:1],)),
    }
    took = 0
    if jax.devices()[0].platform == "rondo":
        from rondo import library
        took = library.followed()
    for name, (count, before, after) in ways.items():
        for dtype, n in [("float32", 1 << 16), ("float32", 70001), ("float32", 300001), ("bfloat16", 150000), ("float32", 5 << 20)]:
            if n > 1 << 20 and name not in ("scaled", "momentum"):
                continue
            args = [spread(numbers((N * n,), dtype, i)) for i in range(count)]
            outs = ins[count] if count > 1 else (P("x"),)
            total = sharded(lambda x: lax.psum(before(x), "x"))
            update = sharded(after, (P("x"), *outs), outs)
            want = apart(total, update, 3, *args)

            def turns(*args):
                def turn(_, c):
                    return tuple(after(lax.psum(before(c[0]), "x"), *c))
                return lax.fori_loop(0, 3, turn, args)

            straight = sharded(lambda *a: after(lax.psum(before(a[0]), "x"), *a), outs, outs)
            given = sharded(turns, outs, outs, donate_argnums=tuple(range(count)))
            once = straight(*args)
            for got, x in [*zip(once, apart(total, update, 1, *args)), *zip(sharded(turns, outs, outs)(*args), want), *zip(given(*args), want)]:
                for a, b in zip(got.addressable_shards, x.addressable_shards):
                    assert np.asarray(a.data).tobytes() == np.asarray(b.data).tobytes(), (name, dtype, n, a.device)
    if jax.devices()[0].platform == "rondo" and N > 1 and not os.environ.get("FAR") and not os.environ.get("RONDO_CHAOS") and os.environ.get("RONDO_TIER") != "ref":
        assert library.followed() > took


@case
def parts_that_are_carried():
    """A loop that goes on with a part of what was gathered, or exchanged."""
    for n in [3, 2048, 70001]:
        x = numbers((N * n,), "float32")
        rows = x.reshape(N, n)
        for at in {0, N - 1}:
            f = sharded(lambda x, at=at, n=n: lax.fori_loop(0, 5, lambda i, x: lax.all_gather(x, "x", tiled=True)[at * n:(at + 1) * n], x))
            same(f(spread(x)), np.tile(rows[at], N), what=f"all_gather {n} {at}")
            c, seen = sharded(lambda x, at=at, n=n: lax.scan(lambda c, i: (lax.all_gather(c, "x")[at].reshape(1, n)[0], c[:2]), x, None, 4),
                              outs=(P("x"), P(None, "x")))(spread(x))
            same(c, np.tile(rows[at], N), what=f"scan {n} {at}")
            same(seen, np.concatenate([np.stack([r[:2]] + [rows[at][:2]] * 3) for r in rows], 1), what=f"seen {n} {at}")

        def turn(i, c, n=n):
            a, b = c
            whole = lax.all_gather(a + b, "x", tiled=True)
            return whole[:n], whole[-n:] * 0.5
        a, b = sharded(lambda x: lax.fori_loop(0, 4, turn, (x, x * 2)), outs=(P("x"), P("x")))(spread(x))
        u, v = rows, rows * 2
        for _ in range(4):
            u, v = np.stack([u[0] + v[0]] * N), np.stack([u[-1] + v[-1]] * N) * np.float32(0.5)
        same(a, u.reshape(-1))
        same(b, v.reshape(-1))
