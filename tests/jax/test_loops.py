"""Counted loops at the ends of their counter's type, against the same turns in Python: what wraps must wrap, and no row may be
taken for another."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from xla_cpu import on_cpu

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


# --- loops that read and write parts of large values: one kernel, in which these are memory -----------

TURNS = 700
DTYPES = ["float32", "bfloat16", "float16", "int8", "uint8", "int32", "bool"]
rng = np.random.default_rng(5)
numbers = lambda *s: rng.normal(size=s).astype(np.float32)
places = lambda high, *s: rng.integers(0, high, size=s).astype(np.int32)


def same(f, *args):
    """Bit for bit what XLA:CPU gives, but for which NaN."""
    for got, want in zip(jax.tree.leaves(jax.jit(f)(*args)), jax.tree.leaves(on_cpu(f, *args))):
        got, want = np.asarray(got), np.asarray(want)
        assert got.dtype == want.dtype
        if got.dtype.kind not in "biu":
            nan = np.isnan(want.astype(np.float32))
            np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
            got, want = (np.where(nan, 0, a.view(f"u{a.itemsize}")) for a in (got, want))
        np.testing.assert_array_equal(got, want)


UPDATES = {
    "set": lambda x, i, v: x.at[i].set(v),
    "add": lambda x, i, v: x.at[i].add(v),
    "max": lambda x, i, v: x.at[i].max(v),
    "min": lambda x, i, v: x.at[i].min(v),
    "drop": lambda x, i, v: x.at[i].set(v, mode="drop", wrap_negative_indices=False),
    "get": lambda x, i, v: x.at[(i * 7) % x.shape[0]].set(x.at[i].get(mode="fill", fill_value=1)),
    "apply": lambda x, i, v: x.at[i].apply(lambda t: t - t // 3 if t.dtype.kind in "iu" else t * t / (1 + t * t)),
}


@pytest.mark.parametrize("n", [1, 5, 16, 17, 100, 129, 1000])        # in a register, in several, in memory
@pytest.mark.parametrize("dtype", DTYPES)
def test_updates_of_an_element(dtype, n):
    """Places outside, too; values with NaN and -0."""
    dt = jnp.dtype(dtype)
    x, v = (numbers(n) * 10).astype(dt), (numbers(TURNS) * 5).astype(dt)
    if dt.kind not in "biu":
        v[::7], v[1::5], x[::3] = np.nan, -0.0, -0.0
    at = rng.integers(-n - 3, n + 5, size=TURNS).astype(np.int32)
    updates = [update for name, update in UPDATES.items() if dtype != "bool" or name in ("set", "drop", "get")]
    same(lambda x, at, v: [lax.fori_loop(0, TURNS, lambda i, x, update=update: update(x, at[i], v[i]), x) for update in updates], x, at, v)


M, X = numbers(60, 70), numbers(1000)
A, B, C = places(60, TURNS), places(70, TURNS), places(900, TURNS)
loop = lambda body, x: lax.fori_loop(0, TURNS, body, x)
PARTS = {
    "rows": (lambda m, a, b: loop(lambda i, m: m.at[a[i]].set(m[b[i] % 60] * 0.5 + 1), m), M, A, B),
    "columns": (lambda m, a, b: loop(lambda i, m: m.at[:, b[i]].set(m[:, a[i]] * 0.5 + 1), m), M, A, B),
    "elements": (lambda m, a, b: loop(lambda i, m: m.at[a[i], b[i]].add(m[b[i] % 60, a[i]] * 0.5), m), M, A, B),
    "boxes": (lambda m, a, b: loop(lambda i, m: lax.dynamic_update_slice(m, lax.dynamic_slice(m, (a[i], b[i]), (3, 5)) * 0.5, (b[i], a[i])), m), M, A, B),
    "several rows": (lambda m, a: loop(lambda i, m: m.at[a[i]].add(1.5), m), M, places(60, TURNS, 4)),
    "several elements": (lambda m, a, b: loop(lambda i, m: m.at[a[i], b[i]].add(m[b[i] % 60, a[i]]), m), M, places(60, TURNS, 4), places(70, TURNS, 4)),
    "several taken": (lambda m, a: loop(lambda i, m: m.at[i % 60].set(m[a[i]].max(0) * 0.5), m), M, places(60, TURNS, 3)),
    "both of two": (lambda x, y, c: loop(lambda i, s: (s[0].at[c[i]].set(s[1][c[i] + 1]), s[1].at[c[i] + 3].set(s[0][c[i]] * 0.5)), (x, y)), X, X * 2, C),
    "both of one": (lambda x, c: loop(lambda i, s: (s[0].at[c[i]].set(s[1][c[i] + 1]), s[1].at[c[i] + 3].set(s[0][c[i]] * 0.5)), (x, x)), X, C),
    "changing places": (lambda x, y, c: loop(lambda i, s: (s[1], s[0].at[c[i]].set(s[1][c[i]])), (x, y)), X, X * 2, C),
    "and what it was": (lambda x, c: (loop(lambda i, y: y.at[c[i]].set(x[c[i] + 1] + y[c[i] + 2] * 0.5), x), x * 2), X, C),
    "the old one read": (lambda x: loop(lambda i, s: (s[0].at[i].set(s[1]), s[0][(i * 3) % 1000]), (x, x[0])), X),
    "of no avail": (lambda x: loop(lambda i, s: s + x.at[i].set(s)[3], x[0]), X),
    "swapped": (lambda x, c: loop(lambda i, x: x.at[i].set(x[c[i]]).at[c[i]].set(x[i]), x), X, C),
    "reshaped": (lambda m: loop(lambda i, m: m.reshape(-1).at[i].set(m[i % 60, 3]).reshape(m.shape), m), M),
    "one branch": (lambda x, c: loop(lambda i, x: lax.cond(x[c[i]] > 0, lambda x: x.at[c[i]].set(-x[c[i] + 2]), lambda x: x, x), x), X, C),
    "both branches": (lambda x, c: loop(lambda i, x: lax.cond(x[c[i]] > 0, lambda x: x.at[c[i]].set(-x[c[i] + 2]),
                                                              lambda x: x.at[c[i]].add(1).at[c[i] + 1].set(x[5]), x), x), X, C),
    "one of two": (lambda x, c: loop(lambda i, s: lax.switch(c[i] % 3, [lambda x, y: (x.at[c[i]].set(3.0), y), lambda x, y: (x, y.at[c[i]].set(x[c[i]])),
                                                                        lambda x, y: (x, y)], *s), (x, x * 2)), X, C),
    "crosswise": (lambda x, c: loop(lambda i, s: lax.switch(c[i] % 2, [lambda x, y: (y.at[c[i]].set(3.0), x), lambda x, y: (x, y)], *s), (x, x * 2)), X, C),
    "loops in loops": (lambda m: lax.fori_loop(0, 20, lambda k, m: lax.fori_loop(0, 20, lambda i, m: lax.fori_loop(0, 20, lambda j, m: m.at[i, j].min(m[i, k] + m[k, j]), m), m), m), M),
    "a row in turn": (lambda m: lax.fori_loop(1, 60, lambda i, m: m.at[i].set(lax.fori_loop(0, 70, lambda j, r: r.at[j].set(m[i - 1, 69 - j] + j), m[i])), m), M),
    "wide outside": (lambda m: lax.fori_loop(0, 9, lambda i, m: lax.fori_loop(0, 500, lambda j, m: m.at[j % 60, j % 70].add(1.0), m * 0.5), m), M),
    "wide beside": (lambda m: lax.fori_loop(0, 9, lambda i, m: m * 0.5 + lax.fori_loop(0, 500, lambda j, m: m.at[j % 60, j % 70].add(1.0), m), m), M),
    "while": (lambda x: lax.while_loop(lambda s: (s[0] < 900) & (s[1][s[0]] > -9), lambda s: (s[0] + 1, s[1].at[s[0] + 1].add(s[1][s[0]] * 0.5)), (0, x)), X),
    "from zeros": (lambda x: loop(lambda i, y: y.at[i % 500].add(x[i % 1000]), jnp.zeros(500)), X),
    "rows out": (lambda x: lax.scan(lambda s, t: (s.at[jnp.int32(jnp.abs(t) * 100) % 300].add(t), (s[3], s[:2])), jnp.zeros(300), x), X),
    "rows in and out": (lambda x: lax.scan(lambda s, t: (s * 0.5 + t, (s, s[:3])), jnp.zeros(40), x), numbers(500, 40)),
    "rows of rows": (lambda m: lax.scan(lambda s, t: ((s[0] + 1, s[1] * 0.5 + t[s[0] % 5]), s[1][0]), (0, jnp.zeros(70)), m), numbers(9, 5, 70)),
    "rows of turned rows": (lambda m: lax.scan(lambda s, t: ((s[0] + 1, s[1] * 0.5 + t[s[0] % 5]), s[1][0]), (0, jnp.zeros(70)), m.T, reverse=True), numbers(70, 5, 9)),
    "rows of rows in a loop": (lambda m: lax.fori_loop(0, 4, lambda k, v: lax.scan(lambda s, t: ((s[0] + 1, s[1] * 0.5 + t[(s[0] + k) % 40]), None), (0, v), m)[0][1], jnp.zeros(8)), numbers(9, 40, 8)),
    "backwards": (lambda x: lax.scan(lambda s, t: (s * 0.5 + t, (s, s * 2)), jnp.zeros(8), x, reverse=True), numbers(500, 8)),
    "turned": (lambda x: lax.scan(lambda s, t: (s * 0.5 + t, s), jnp.zeros(8), x.T), numbers(8, 500)),
    "many at once": (jax.vmap(lambda x, i: lax.fori_loop(0, 300, lambda t, x: x.at[(i * t) % 50].add(x[(i + t) % 50] * 0.5), x)), numbers(6, 50), places(50, 6)),
    "narrow places": (lambda x, c: loop(lambda i, x: x.at[c[i]].add(1.0), x), X[:100], rng.integers(-128, 128, size=TURNS).astype(np.int8)),
    "unsigned places": (lambda x, c: loop(lambda i, x: x.at[c[i]].add(1.0), x), X, rng.integers(0, 1100, size=TURNS).astype(np.uint32)),
    "no turn": (lambda x: lax.fori_loop(0, 0, lambda i, x: x.at[i].set(1.0), x), X),
    "so many turns": (lambda x, n: lax.fori_loop(0, n, lambda i, x: x.at[i].set(x[i - 1] * 0.5), x), X, np.int32(700)),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_large_values(name):
    same(*PARTS[name])


@pytest.mark.parametrize("n", [2, 3, 7, 16, 37, 100, 128])
def test_reductions_in_a_loop(n):
    x = (rng.integers(-8, 9, size=(300, n)) / 8).astype(np.float32)       # sums are exact in any order
    x[5:9, n // 2] = np.nan
    same(lambda x: lax.scan(lambda s, t: (s * 0.5, (jnp.argmax(t + s), jnp.max(t), jnp.min(t), t.sum(), jnp.argmin(t))), jnp.float32(0), x), x)


@pytest.mark.parametrize("width", [6, 640])
@pytest.mark.parametrize("depth", [2, 3, 4, 5])
def test_gradients_of_nests(depth, width):
    """Rows that a loop of a loop of a loop stacks, and goes back through."""
    w = np.random.default_rng(depth).standard_normal((*(2, 3, 2, 2, 2)[:depth], width))
    c = np.random.default_rng(9).standard_normal((4, width))

    def run(c, w):
        return (jnp.sin(c * w) + c, c.mean(0)) if w.ndim == 1 else lax.scan(run, c, w, reverse=w.ndim % 2 == 0)

    def f(c, w):
        c, y = run(c, w)
        return (c ** 2).sum() + jnp.cos(y).sum()
    g = jax.jit(jax.value_and_grad(f, (0, 1)))
    with jax.enable_x64(True):
        with jax.default_device(jax.devices("cpu")[0]):
            want = g(c, w)
        for a, b in zip(jax.tree.leaves(g(c, w)), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
