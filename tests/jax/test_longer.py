"""Loops, branches, checkpoints and constraints along a cut length that does not divide: the values of the unsharded program."""
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

from test_halo import MESHES, mesh, moved

pytestmark = [pytest.mark.many, pytest.mark.usefixtures("x64")]
F = 16
UNEVEN = {
    "first": lambda x: x[:, :-1], "rest": lambda x: x[:, 1:], "inner": lambda x: x[:, 2:-1], "pad": lambda x: jnp.pad(x, ((0, 0), (1, 0), (0, 0))), "both": lambda x: x[:1, 1:],
    "more": lambda x: jnp.concatenate([jnp.ones_like(x[:, :1]), x, x[:, :2]], 1), "constraint": None,
}


def norm(x):
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-3)


def attention(x, w, causal):
    q, k, v = jnp.split(x @ w[:, :24], 3, -1)
    s = jnp.einsum("btd,bsd->bts", q, k)
    if causal:
        t = jnp.arange(x.shape[1])
        s = jnp.where(t[:, None] >= t, s, -1e9)
    return jnp.einsum("bts,bsd->btd", jax.nn.softmax(s, -1), v) @ w[:8, :F]


# What a turn does to a carry [b, t, F], with weights [F, 3 F], a row of what the loop goes through and the number of the turn.
TURNS = {
    "product": lambda c, w, i: jnp.tanh(c @ w[:, :F]),
    "residual": lambda c, w, i: c + jax.nn.gelu(norm(c) @ w) @ w.T,
    "attention": lambda c, w, i: c + attention(norm(c), w, False),
    "causal": lambda c, w, i: c + attention(norm(c), w, True),
    "shift": lambda c, w, i: c + jnp.pad(c[:, :-1], ((0, 0), (1, 0), (0, 0))) * w[0, :F],
    "roll": lambda c, w, i: jnp.roll(c, 1, 1) * .9,
    "cumsum": lambda c, w, i: norm(jnp.cumsum(c, 1)),
    "softmax": lambda c, w, i: jax.nn.softmax(c, 1) * c.shape[1] - c / 2,
    "middle": lambda c, w, i: c - c.mean((0, 1)) * w[0, :F],
    "one": lambda c, w, i: c * .5 + lax.dynamic_slice_in_dim(c, i + 1, 1, 1),
    "set": lambda c, w, i: c.at[:, i].set(w[0, :F]),
    "behind": lambda c, w, i: lax.dynamic_update_slice(c, c[:, :2] * 2, (0, c.shape[1] - 1 + i, 0)),
    "taken": lambda c, w, i: c + c[:, jnp.arange(c.shape[1]) // 2],
    "picked": lambda c, w, i: c + c.at[:, jnp.array([3, 40, -50, 0]) + i].get(mode="clip").sum(1, keepdims=True),
    "added": lambda c, w, i: c.at[:, jnp.array([3, 40, -1, 3]) + i].add(c[:, :4] * w[0, :F]),
    "flat": lambda c, w, i: jnp.tanh(c.reshape(-1, F) @ w[:, :F]).reshape(c.shape) + c.ravel().mean(),
    "each": lambda c, w, i: jax.vmap(lambda c, k, n: lax.dynamic_update_index_in_dim(c, k, n, 0))(c, c[:, 0] * .5, jnp.arange(c.shape[0]) * 17 + i),
    "beams": lambda c, w, i: c[jnp.array([1, 0, 1]) % c.shape[0]][:c.shape[0]] * .9 + c[..., ::-1] * .1,
    "sorted": lambda c, w, i: jnp.sort(c, 1) * .8,
    "flip": lambda c, w, i: c[:, ::-1] * .7 + 1,
    "place": lambda c, w, i: jnp.where(jnp.arange(c.shape[1])[:, None] > i + 1, c * .5, -c),
    "most": lambda c, w, i: c - jnp.take_along_axis(c, jnp.argmax(c, 1)[:, None], 1) * .1,
    "narrow": lambda c, w, i: (c.astype(jnp.bfloat16) * 2).astype(c.dtype) * .4,
    "turned": lambda c, w, i: jnp.swapaxes(jnp.swapaxes(c, 1, 2) * .9 + w[:, :1], 1, 2),
    "branch": lambda c, w, i: lax.cond(i % 2 == 0, lambda c: jnp.tanh(c @ w[:, :F]), lambda c: -c, c),
    "switch": lambda c, w, i: lax.switch(i % 3, [lambda c: c * 2, lambda c: jnp.roll(c, 1, 1), norm], c),
    "inner": lambda c, w, i: lax.fori_loop(0, 2, lambda j, c: jnp.tanh(c @ w[:, :F]) + c, c),
    "scaled": lambda c, w, i: c / jnp.sqrt((c * c).sum() + 1),
}


def loop(kind, turn, c, ws):
    n = ws.shape[0]
    body = jax.checkpoint(turn) if "remat" in kind else turn
    if kind.startswith("scan"):
        return lax.scan(lambda c, a: (body(c, *a), None), c, (ws, jnp.arange(n)), reverse="back" in kind)[0]
    if kind == "rows":
        c, y = lax.scan(lambda c, a: (body(c, *a),) * 2, c, (ws, jnp.arange(n)))
        return c + (y * jnp.arange(1, n + 1)[:, None, None, None]).sum(0)
    if kind == "along":         # through what was made by another
        y = lax.scan(lambda c, a: (body(c, *a), c), c, (ws, jnp.arange(n)))[1]
        return lax.scan(lambda d, a: (body(d + a[0], *a[1:]), None), c * .1, (y, ws, jnp.arange(n)), reverse=True)[0]
    if kind == "for":
        return lax.fori_loop(0, n, lambda i, c: body(c, ws[i], i), c)
    if kind == "while":
        return lax.while_loop(lambda s: (s[0] < n) & (jnp.abs(s[1]).max() < 1e6), lambda s: (s[0] + 1, body(s[1], ws[s[0]], s[0])), (0, c))[1]
    if kind == "sum":           # beside it what is added up
        s, c = lax.scan(lambda s, a: ((s[0] + s[1].sum((0, 1)), body(s[1], *a)), None), (jnp.zeros(F, c.dtype), c), (ws, jnp.arange(n)))[0]
        return c * s
    for i in range(n):
        c = body(c, ws[i], i)
    return c


KINDS = ["scan", "scan back", "scan remat", "rows", "along", "for", "while", "sum", "remat"]
WITHOUT_GRADIENT = {"while", "for"}
CUTS = [(mesh(2), (None, "x")), (mesh(3), (None, "x")), (mesh(4), (None, "x")), (mesh(2, 2), ("x", "y")), (mesh(2, 2), (None, ("y", "x"))), (mesh(2, 2), (None, "y", "x"))]


def begun(uneven, m, spec):
    if uneven == "constraint":
        return lambda x: lax.with_sharding_constraint((x * 2)[:, :-1], NamedSharding(m, P(*spec)))
    return UNEVEN[uneven]


def compare(f, x, ws, m, spec, gradient, most=1e-7):
    put = [jax.device_put(a, NamedSharding(m, P(*s))) for a, s in ((x, spec), (ws, ()))]
    for g in [f] + gradient * [jax.grad(lambda x, ws: (f(x, ws) ** 2).mean(), (0, 1))]:
        for got, want in zip(*(jax.tree.leaves(jax.jit(g)(*a)) for a in (put, (x, ws))), strict=True):
            want = np.asarray(want)
            for s in got.addressable_shards:
                np.testing.assert_allclose(np.asarray(s.data), want[s.index], rtol=most, atol=most / 10 * np.abs(want).max() + 1e-12)


def values(seed, t, n=3):
    r = np.random.default_rng(seed)
    return r.standard_normal((2, t, F)), r.standard_normal((n, F, 3 * F)) / 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turn", TURNS)
def test_turns(turn, kind):
    k = (sorted(TURNS).index(turn) * 7 + KINDS.index(kind) * 5)
    m, spec = CUTS[k % len(CUTS)]
    uneven = sorted(UNEVEN)[k % len(UNEVEN)]
    x, ws = values(k, 24)
    few = turn in ("attention", "causal")        # one op, of such
    if few:
        x, ws = x.astype(np.float32), ws.astype(np.float32)
    compare(lambda x, ws: loop(kind, TURNS[turn], begun(uneven, m, spec)(x), ws), x, ws, m, spec, kind not in WITHOUT_GRADIENT, 1e-4 if few else 1e-7)


@pytest.mark.parametrize("draw", range(int(os.environ.get("PROGRAMS", 24))))
def test_drawn(draw):
    """Two loops of several turns each, one after the other, on carries of other lengths."""
    r = np.random.default_rng([int(os.environ["SEED"]), draw])
    m, spec = CUTS[r.integers(len(CUTS))]
    uneven, again, *turns = r.choice(sorted(UNEVEN), 2).tolist() + r.choice(sorted(TURNS), 4).tolist()
    kinds, more = r.choice(KINDS, 2).tolist(), r.integers(2)
    print(os.environ["SEED"], draw, m.shape, spec, uneven, again, turns, kinds)

    def f(x, ws):
        y = loop(kinds[0], lambda c, w, i: TURNS[turns[1]](TURNS[turns[0]](c, w, i), w, i), begun(uneven, m, spec)(x), ws)
        if more:
            y = begun(again, m, spec)(y)
        return loop(kinds[1], lambda c, w, i: TURNS[turns[3]](TURNS[turns[2]](c, w, i), w, i), norm(y), ws)
    x, ws = values(draw, int(r.choice([12, 24, 36])), 2)
    compare(f, x, ws, m, spec, not WITHOUT_GRADIENT & {*kinds})


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("n", MESHES)
def test_bytes(n):
    """No rows are gathered; a sum over all, and of a gradient that of weights, is all that travels."""
    x, ws, m = np.zeros((2, 64 * n, F)), np.zeros((3, F, 3 * F)), mesh(n)
    for kind in KINDS:
        for gradient in (False, True)[:2 - (kind in WITHOUT_GRADIENT)]:
            def f(ws, x):
                return (loop(kind, TURNS["residual"], x[:, :-1], ws) ** 2).mean()  # noqa: B023
            sent, sorts = moved(jax.grad(f) if gradient else f, [ws, x], [(), (None, "x")], m, ())
            assert sent <= 2 * ws.nbytes * gradient + 1024, (kind, gradient, sorts, sent)


@pytest.mark.parametrize("m,spec", [(mesh(2, 2), ("x", "y")), (mesh(2, 2), ("y", "x")), (mesh(2, 2), (("x", "y"),)), (mesh(2, 2), ("x", None, "y")), (mesh(3), ("x",)), (mesh(3), (None, "x"))], ids=str)
def test_through_what_is_cut_in_front(m, spec):
    """The rows of a stack come whole, whatever cuts the dimension along which a loop goes."""
    x = np.random.default_rng(3).standard_normal((12, 24, 12))

    def f(x, ws):
        y = lax.map(jnp.sin, x[:, 1:, :-1])
        z = lax.scan(lambda c, r: (c + r.sum(0), c * r), jnp.zeros(11, x.dtype), y, reverse=True)[1]
        return lax.fori_loop(0, 2, lambda i, c: lax.map(jnp.cos, c) + ws[i, 0, 0], z)
    compare(f, x, values(0, 4)[1], m, spec, True)


FLAT = {
    "ravel": lambda x: jnp.tanh(x[:-1].ravel()),
    "rows": lambda x: jnp.tanh(x[1:].reshape(-1, x.shape[2])) @ jnp.ones((x.shape[2], 3)),
    "back": lambda x: jnp.tanh(x[:-2].reshape(-1, x.shape[2])).reshape(-1, *x.shape[1:]) * 2,
    "split": lambda x: x[:-3].reshape(-1, 3, *x.shape[1:]) * 2,
    "both": lambda x: (lambda y: jnp.tanh(y.reshape(-1, 2, y.shape[1] // 2, y.shape[2])) + 1)(jnp.pad(x, ((1, 0), (0, 0), (0, 0)))),
    "again": lambda x: jnp.cumsum(x[1:].ravel())[3:] * 2,
    "mean": lambda x: (lambda y: y - y.mean())(x[1:].ravel()) * x[0, 0, 0],
}


@pytest.mark.parametrize("m,spec", [(mesh(2), ("x",)), (mesh(3), ("x",)), (mesh(4), ("x",)), (mesh(2, 2), ("x", "y")), (mesh(2, 2), (("y", "x"),)), (mesh(2, 2), ("y", None, "x"))], ids=str)
@pytest.mark.parametrize("name", FLAT)
def test_flattened(name, m, spec):
    x = np.random.default_rng(5).standard_normal((24, 4, 6))
    compare(lambda x, ws: (lambda y: (y, jnp.sin(y) * 3, y.sum(0), jnp.sort(y, 0)[:2], (y * ws[0, 0, 0]).max()))(FLAT[name](x)), x, values(0, 4)[1], m, spec, False)
    compare(lambda x, ws: (jnp.sin(FLAT[name](x)) * ws[0, 0, 1]).sum(0), x, values(0, 4)[1], m, spec, True)


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("n", MESHES)
def test_bytes_of_what_is_flattened(n):
    x = np.zeros((24 * n, 16, 8))
    for name in ("ravel", "rows", "back", "mean"):
        sent, kinds = moved(lambda x: (jnp.sin(FLAT[name](x)) ** 2).mean(), [x], [("x",)], mesh(n), ())
        assert sent <= 3 * x[0].nbytes, (name, sent, kinds)


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("n", MESHES)
def test_bytes_of_places(n):
    """Each sequence writes at a place of its own into a cache that is cut along the sequence; beams go on from others."""
    k, u, at, m = np.zeros((4, 48 * n, 4, 8)), np.zeros((4, 4, 8)), np.zeros(4, np.int32), mesh(n)
    for rows in (slice(None), slice(1, None)):
        sent, _ = moved(lambda k, u, at: jax.vmap(lambda k, u, at: lax.dynamic_update_index_in_dim(k, u, at, 0))(k[:, rows], u, at).sum(1), [k, u, at], [(None, "x"), (), ()], m, ())  # noqa: B023
        assert sent <= 2 * u.nbytes + 2 * k[:, 0].nbytes
        sent, _ = moved(lambda k, at: jnp.sin(k[:, rows])[at].sum(1), [k, at], [(None, "x"), ()], m, ())  # noqa: B023
        assert sent <= 4 * k[:, 0].nbytes
