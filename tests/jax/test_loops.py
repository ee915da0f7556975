"""Counted loops at the ends of their counter's type, against the same turns in Python: what wraps must wrap, and no row may be
taken for another."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

KINDS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
COMPARE = {"lt": lambda i, n: i < n, "le": lambda i, n: i <= n, "ne": lambda i, n: i != n, "gt": lambda i, n: n > i}
ROWS = 16


def typed(value, kind):
    """value modulo the type."""
    bits = 8 * np.dtype(kind).itemsize
    return np.array(int(value) % 2**bits, f"uint{bits}").view(kind)


def draw(rng):
    """A loop of few turns whose counter begins near an end, or the middle, of its type; None: it would turn for long."""
    kind = rng.choice(KINDS)
    info = np.iinfo(kind)
    first = typed([info.min, info.max, 0][rng.integers(3)] + int(rng.integers(-12, 13)), kind)
    step = int(rng.choice([1, 1, 2, 3, 5, 7]))
    if rng.random() < 0.2:
        step = int(info.max) // (1 + int(rng.integers(2))) - int(rng.integers(3))
    limit = typed(int(first) + int(rng.integers(14)) * min(step, 8) - int(rng.integers(2)), kind)
    p = dict(kind=kind, first=first, step=typed(step, kind), limit=limit, op=rng.choice(list(COMPARE)), add=int(rng.integers(-15, 16)),
             mul=int(rng.choice([1, 1, 2, 3, -1])), to=rng.choice(["int32", "uint32", "int64", "uint64"]))
    i, turns = p["first"], 0
    while COMPARE[p["op"]](i, p["limit"]):
        i, turns = typed(int(i) + int(p["step"]), kind), turns + 1
        if turns > 40:
            return None
    return p


def expected(p, x):
    """Counter, sum of what the indices name, turns, rows written."""
    i, total, turns, out = p["first"], 0, 0, np.zeros((ROWS, 2), np.int32)
    at = lambda j: min(max(int(j) + ROWS if j < 0 else int(j), 0), ROWS - 1)      # JAX counts from the end, then starts clamp
    while COMPARE[p["op"]](i, p["limit"]):
        j = typed(int(i) * p["mul"] + p["add"], p["kind"])
        k = typed(j, p["to"])
        m = typed(int(typed(i, p["to"])) + p["add"], p["to"])
        total = total * 3 + int(x[at(k)].sum()) + int(x[at(j), 0]) + (5 if j < i else 9) + int(typed(max(int(j), int(i)), "int32"))
        out[at(m)] = turns
        i, turns = typed(int(i) + int(p["step"]), p["kind"]), turns + 1
    return i, typed(total, "int32"), turns, out


def looped(p, x):
    kind = p["kind"]

    def body(s):
        i, total, turns, out = s
        j = i * typed(p["mul"], kind) + typed(p["add"], kind)
        k = j.astype(p["to"])
        m = i.astype(p["to"]) + typed(p["add"], p["to"])
        out = lax.dynamic_update_slice(out, jnp.full((1, 2), turns), (m, jnp.zeros_like(m)))
        row = lax.dynamic_slice(x, (k, jnp.zeros_like(k)), (1, 2)).sum(dtype=jnp.int32)
        one = lax.dynamic_index_in_dim(x, j, 0)[0, 0]
        total = total * 3 + row + one + jnp.where(j < i, np.int32(5), np.int32(9)) + jnp.maximum(j, i).astype(jnp.int32)
        return i + p["step"], total, turns + np.int32(1), out
    start = (jnp.asarray(p["first"]), jnp.int32(0), jnp.int32(0), jnp.zeros((ROWS, 2), jnp.int32))
    return lax.while_loop(lambda s: COMPARE[p["op"]](s[0], p["limit"]), body, start)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.only_rondo("XLA:CPU takes one turn where there is none")
def test_counters(seed, x64):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 1000, (ROWS, 2)).astype(np.int32)
    for n in range(30):
        p = draw(rng)
        if p is None:
            continue
        got = jax.jit(lambda x, p=p: looped(p, x))(x)
        for g, w in zip(got, expected(p, x)):
            np.testing.assert_array_equal(g, w, err_msg=f"seed {seed}, loop {n}: {p}")


@pytest.mark.parametrize("kind, first, step, limit, turns", [
    ("uint32", 0, 2**31 + 1, 2**31 + 2, 3), ("int64", -2**63, 2**62 + 2**61, 47 * 10**17, 5), ("int32", -2**31, 3 * 2**29, 2**30 + 9, 5),
    ("uint32", 0, 7, 50, 8), ("int32", -20, 7, 8, 4), ("int64", 3, 5, 18, 3)])
def test_counters_that_come_round(kind, first, step, limit, turns, x64):
    f = jax.jit(lambda: lax.while_loop(lambda s: s[0] < typed(limit, kind), lambda s: (s[0] + typed(step, kind), s[1] + 1), (jnp.asarray(typed(first, kind)), 0)))
    assert f()[1] == turns


@pytest.mark.parametrize("kind", ["uint32", "uint64"])
def test_index_that_wraps_before_it_is_cut(kind, x64):
    x = np.arange(9.0)
    f = jax.jit(lambda x: lax.fori_loop(jnp.asarray(0, kind), jnp.asarray(8, kind),
                                        lambda i, a: a * 10 + lax.dynamic_slice(x, (jnp.minimum(i - typed(1, kind), typed(7, kind)) + typed(1, kind),), (1,))[0], 0.0))
    assert f(x) == 81234567


@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_rows_beside_the_turn(way, offset):
    """Forwards and backwards, and one off: a start outside clamps."""
    x = np.arange(8, dtype=np.int32)
    at = lambda i: i * way + (7 if way < 0 else 0) + offset
    f = jax.jit(lambda x: lax.fori_loop(0, 8, lambda i, s: (s[0] * 8 + lax.dynamic_slice(x, (at(i),), (1,), allow_negative_indices=False)[0],
                                                            lax.dynamic_update_slice(s[1], i[None] + 1, (at(i),), allow_negative_indices=False)), (np.int32(0), jnp.zeros(8, np.int32))))
    total, out = 0, np.zeros(8, np.int32)
    for i in range(8):
        k = min(max(at(i), 0), 7)
        total, out[k] = total * 8 + k, i + 1
    got = f(x)
    assert got[0] == total
    np.testing.assert_array_equal(got[1], out)


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("bound", [-1, 0, 1, 7, 8, 9])
def test_rows_that_a_comparison_chooses(op, bound):
    """At most the first or the last turn differs."""
    x = np.arange(9, dtype=np.int32)
    f = jax.jit(lambda x: lax.fori_loop(0, 9, lambda i, a: a * 3 + lax.dynamic_slice(x, (jnp.where(getattr(lax, op)(i, np.int32(bound)), i, np.int32(4)),), (1,),
                                                                                     allow_negative_indices=False)[0], np.int32(0)))
    total = 0
    for i in range(9):
        total = total * 3 + (i if {"lt": i < bound, "le": i <= bound, "gt": i > bound, "ge": i >= bound}[op] else 4)
    assert f(x) == total


def test_fori_of_unsigned_indices_that_wrap():
    x = np.arange(16, dtype=np.int32)
    f = lambda x: lax.fori_loop(np.uint32(0), np.uint32(3), lambda i, a: a + lax.dynamic_slice(x, (i - np.uint32(2),), (1,))[0], np.int32(0))
    assert jax.jit(f)(x) == 15 + 15 + 0                    # 2^32 - 2, 2^32 - 1 and 0: a start that lies outside clamps


@pytest.mark.parametrize("first, limit", [(0, 256), (250, 3), (-3, 129)])
def test_fori_in_a_narrow_type(first, limit):
    f = lambda a: lax.fori_loop(jnp.int32(first), jnp.int32(limit), lambda i, a: a + i.astype(jnp.uint8).astype(jnp.int32), a)
    assert jax.jit(f)(jnp.int32(0)) == sum(i % 256 for i in range(first, limit))
