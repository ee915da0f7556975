"""Operations that look along a dimension that is cut: the values of the unsharded program, on every device."""
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import bytes_moved

pytestmark = pytest.mark.many


def mesh(*shape):
    n = int(np.prod(shape))
    return jax.make_mesh(shape, ("x", "y", "z")[:len(shape)], devices=jax.devices()[:n], axis_types=(AxisType.Auto,) * len(shape))


def check(f, args, specs, m, out=None, rtol=0.0):
    """f of sharded args is f of the whole ones, in all shards."""
    want = jax.tree.leaves(jax.jit(f)(*args))
    put = [jax.device_put(x, NamedSharding(m, P(*s))) for x, s in zip(args, specs, strict=True)]
    how = {} if out is None else {"out_shardings": NamedSharding(m, P(*out))}
    got = jax.tree.leaves(jax.jit(f, **how)(*put))
    for g, w in zip(got, want, strict=True):
        w = np.asarray(w)
        assert g.dtype == w.dtype and g.shape == w.shape
        for s in g.addressable_shards:
            a, b = np.asarray(s.data), w[s.index]
            if rtol and g.dtype != np.int32:
                np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=rtol * 10)
            else:
                np.testing.assert_array_equal(a, b)
                np.testing.assert_array_equal(np.signbit(a.astype(np.float64)), np.signbit(b.astype(np.float64)))


def whole(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)


MESHES = [3, 4]


# --- moved elements ------------------------------------------------------------------------------------------------------

MOVES = {
    "roll": lambda x: jnp.roll(x, 1, 0),
    "roll_back_far": lambda x: jnp.roll(x, -7, 0),
    "token_shift": lambda x: jnp.concatenate([jnp.zeros((1, 8), x.dtype), x[:-1]]),
    "shift_of_other": lambda x: jnp.concatenate([x[-2:] * 3, x[:-2]]),
    "pad": lambda x: lax.pad(x, np.float32(7), [(2, -2, 0), (0, 0, 0)]),
    "pad_far": lambda x: lax.pad(x, np.float32(7), [(-11, 11, 0), (0, 0, 0)]),
    "pad_interior": lambda x: lax.pad(x, np.float32(-1), [(1, 0, 1), (0, 0, 0)]),
    "pad_interior_uneven": lambda x: lax.pad(x, np.float32(-1), [(3, -1, 2), (1, 0, 0)]),
    "pad_by_value": lambda x: lax.pad(x, x[3, 3], [(1, -1, 0), (0, 0, 0)]),
    "reverse": lambda x: lax.rev(x, (0, 1)),
    "strided": lambda x: x[::2],
    "strided_back": lambda x: x[::-2],
    "strided_pads": lambda x: lax.pad(x[1::3], np.float32(1), [(4, 4, 1), (0, 0, 0)])[:16],
    "slice_of_both": lambda x: x[12:, 4:],
    "rotate_half": lambda x: jnp.concatenate([-x[12:], x[:12]]),
    "twice": lambda x: jnp.concatenate([x, x]),
    "with_other": lambda x: jnp.concatenate([x[:, :4], x[:, 4:] + 1]),
    "difference": lambda x: jnp.pad(x[1:] - x[:-1], ((1, 0), (0, 0))),
    "sum_of_difference": lambda x: jnp.sum((x[1:] - x[:-1]) ** 2, axis=0),
    "chain": lambda x: jnp.roll(lax.rev(jnp.pad(x[3:21], ((2, 4), (0, 0)), constant_values=5), (0,)), 5, 0)[::2],
    "shared": lambda x: (jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0) - 2 * x, jnp.roll(jnp.roll(x, 2, 0) + 1, 3, 0)),
}


@pytest.mark.parametrize("n", MESHES)
@pytest.mark.parametrize("name", MOVES)
def test_moved(name, n):
    m = mesh(n)
    check(MOVES[name], [whole(24, 8)], [("x",)], m)
    check(lambda x: jax.tree.map(lambda y: y * 2, MOVES[name](x)), [whole(24, 8)], [("x",)], m)


@pytest.mark.parametrize("spec", [("x", "y"), (("y", "x"), None), ("y", None)])
def test_moved_along_two(spec):
    m = mesh(2, 2)
    for f in (lambda x: jnp.pad(x, ((1, 2), (2, 1)))[:12, :12], lambda x: jnp.roll(x, (1, -2), (0, 1)), lambda x: lax.rev(x, (0, 1))[::2, ::2]):
        check(f, [whole(12, 12)], [spec], m)


def life(x):
    near = sum(jnp.roll(x, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
    return ((near == 3) | ((near == 2) & (x == 1))).astype(x.dtype)


DIAGONAL = {
    "roll": lambda x: jnp.roll(x, (1, 1), (0, 1)), "far": lambda x: jnp.roll(jnp.roll(x, -3, 0), 5, 1), "corners": lambda x: sum(k * jnp.roll(x, s, (0, 1)) for k, s in enumerate(((1, 1), (-1, 1), (1, -1), (-1, -1)))),
    "life": life, "life in a loop": lambda x: lax.fori_loop(0, 3, lambda _, x: life(x), x), "three": lambda x: jnp.roll(jnp.roll(x, (1, 2), (0, 1)) * 2, (-1, 3), (1, 0)),
    "gradient": jax.grad(lambda x: (jnp.roll(x, (1, -1), (0, 1)) * x).sum()),
}


@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (4, 2)])
@pytest.mark.parametrize("name", DIAGONAL)
def test_turned_along_two(name, shape):
    """Borders travel, and nothing else: no device gets rows or columns that it does not border on."""
    m, x = mesh(*shape) if np.prod(shape) <= len(jax.devices()) else mesh(2, 2), whole(32, 48) % 2
    check(DIAGONAL[name], [x], [("x", "y")], m, rtol=0 if name != "gradient" else 1e-6)
    if jax.default_backend() == "rondo":
        text = jax.jit(DIAGONAL[name]).lower(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(m, P("x", "y")))).compile().as_text()
        assert {*re.findall(r"^coll \d+ (\w+)", text, re.M)} == {"permute"}, text


OVER_EDGES = {
    "product of diagonals": lambda x: (x[1:, 1:] * x[:-1, :-1]).sum(), "mixed derivative": lambda x: jnp.pad(x[2:, 2:] - x[2:, :-2] - x[:-2, 2:] + x[:-2, :-2], 1),
    "edge": lambda x: jnp.pad(x, 1, mode="edge").sum(1), "stencil": lambda x: (lambda p: sum(p[i:i + 32, j:j + 48] for i in range(3) for j in range(3)))(jnp.pad(x, 1, mode="edge")),
    "wrap": lambda x: (lambda p: sum(p[i:i + 32, j:j + 48] * (i + 3 * j) for i in range(3) for j in range(3)))(jnp.pad(x, 1, mode="wrap")),
    "edge of squares": lambda x: (jnp.pad(x, 1, mode="edge") ** 2).sum(0), "wrap and extremes": lambda x: jnp.pad(x, 1, mode="wrap").max(0), "reflect and pool": lambda x: lax.reduce_window(jnp.pad(x, 2, mode="reflect"), -np.inf, lax.max, (3, 3), (1, 1), "VALID").sum(1),
    "gram": lambda x: x[1:, 1:] @ x[:-1, :-1].T, "extremes": lambda x: (x[1:, 3:].max(), x[3:, :-1].min(0)),
}


@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (4, 2), (1, 3)])
@pytest.mark.parametrize("name", OVER_EDGES)
def test_over_edges_along_two(name, shape):
    """Neither dimension divides; what is gathered is less than a fourth of the argument."""
    m, x = mesh(*shape) if np.prod(shape) <= len(jax.devices()) else mesh(2, 2), whole(32, 48) % 5
    check(OVER_EDGES[name], [x], [("x", "y")], m)
    if jax.default_backend() == "rondo" and name != "gram":
        for c in bytes_moved.of_rondo(jax.jit(OVER_EDGES[name]).lower(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(m, P("x", "y")))).compile().as_text()):
            assert c[2] <= x.nbytes / 4, c


def drawn(seed):
    """A function that moves elements along both dimensions in several ways, one after the other, and what stands between."""
    r = np.random.default_rng(seed)
    steps = [(str(r.choice(["slice", "slice", "roll", "edge", "wrap", "reflect", "zeros", "stride", "flip", "halves", "scale", "neighbours", "pool", "sum", "max", "readers", "gram"])), *r.integers(1, 4, 4).tolist()) for _ in range(r.integers(2, 6))]

    def f(x):
        out = []
        for k, a, b, c, d in steps:
            n, m = x.shape
            if k == "slice" and n > 9 and m > 9:
                x = x[a:n - b, c:m - d]
            elif k == "roll":
                x = jnp.roll(x, (a - 2, c - 2), (0, 1))
            elif k in ("edge", "wrap", "reflect"):
                x = jnp.pad(x, ((a, b), (c, d)), mode=k)
            elif k == "zeros":
                x = jnp.pad(x, ((a, b), (c, d)), constant_values=a)
            elif k == "stride" and n > 12 and m > 12:
                x = x[a::2, b::c]
            elif k == "flip":
                x = x[::-1, ::-1] if a > 1 else x[:, ::-1]
            elif k == "halves":
                x = jnp.concatenate([x[n // 2:, :-c] - 1, x[:n // 2, c:]], 0)
            elif k == "scale":
                x = x * a - x[:1] + x[:, -1:]
            elif k == "neighbours":
                x = x[1:, 1:] * 2 - x[:-1, :-1] + x[1:, :-1]
            elif k == "pool" and n > 12 and m > 12:
                x = lax.reduce_window(x, np.int32(-2**31), lax.max, (a + 1, b), (2, 1), "VALID")
            elif k == "readers":                 # each wants it to lie elsewhere
                out += [jnp.sort(x, a % 2), jnp.cumsum(x, b % 2) % 1000]
            elif k == "gram":
                out += [x @ x.T % 1000, x.T @ x % 1000][:c]
            elif k in ("sum", "max"):
                out.append(getattr(x, k)(a % 2) % 1000)
            x = x % 1000
        return x, out
    return f


@pytest.mark.parametrize("seed", range(48))
def test_drawn_along_two(seed):
    m = mesh(*[(2, 2), (2, 4), (3, 2), (4, 2), (2, 3), (1, 3)][seed % 6]) if len(jax.devices()) >= 8 else mesh(2, 2)
    x = np.random.default_rng(seed).integers(0, 1000, (24, 48)).astype(np.int32)
    check(drawn(seed), [x], [[("x", "y"), ("y", "x"), (("x", "y"),), (None, ("x", "y"))][seed % 4 if seed % 3 else 0]], m)


BORDERS = ["edge", "wrap", "reflect", "symmetric", "zeros", "roll", "slice", "square", "square", "neighbours", "window"]


def bordered(seed):
    """The same, of steps of which each needs what borders on a part and nothing else, and a sum or the most of it."""
    r = np.random.default_rng(seed)
    steps = [(str(r.choice(BORDERS)), *r.integers(1, 3, 2).tolist()) for _ in range(r.integers(1, 4))]
    end = str(r.choice(["sum", "max", "all"]))

    def f(x):
        for k, a, b in steps:
            if k in ("edge", "wrap", "reflect", "symmetric"):
                x = jnp.pad(x, (1, 1) if k == "edge" else (a, b), mode=k)      # an edge twice is a broadcast
            elif k == "zeros":
                x = jnp.pad(x, (a, b))
            elif k == "roll":
                x = jnp.roll(x, (a, -b, a)[:x.ndim], range(x.ndim))
            elif k == "slice":
                x = x[(slice(a, -b),) * x.ndim]
            elif k == "neighbours":
                x = sum(lax.slice_in_dim(x, i, x.shape[a - 1] - 2 + i, axis=a - 1) for i in range(3))
            elif k == "window":
                x = lax.reduce_window(x, np.int32(0), lax.add, (3,) * x.ndim, (1,) * x.ndim, "VALID")
            x = (x * x if k == "square" else x) % 1000
        return x.sum() if end == "all" else x.sum(a - 1) if end == "sum" else x.max(b - 1)
    return f


@pytest.mark.parametrize("seed", range(48))
def test_drawn_borders(seed):
    """Bit by bit; of no device's elements much comes at once."""
    shape, spec = [((2, 2), "xy"), ((2, 4), "xy"), ((4, 2), "yx"), ((4, 2), "xy"), ((2, 2, 2), "xyz"), ((2, 4), "xy-"), ((3, 2), "x-y")][seed % 7]
    m = mesh(*shape) if np.prod(shape) <= len(jax.devices()) else mesh(*[1] * (len(shape) - 2), 2, 2)
    spec = P(*(None if a == "-" else a for a in spec))
    x = np.random.default_rng(seed).integers(0, 1000, (96, 72, 60)[:len(spec)]).astype(np.int32)
    check(bordered(seed), [x], [spec], m)
    if jax.default_backend() == "rondo":
        text = jax.jit(bordered(seed)).lower(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(m, spec))).compile().as_text()
        assert all(c[2] <= x.nbytes / 8 for c in bytes_moved.of_rondo(text)), text


@pytest.mark.parametrize("w,s,pad", [((3, 3), (2, 2), "SAME"), ((3, 4), (2, 1), "SAME"), ((3, 3), (1, 1), "SAME"), ((3, 3), (2, 2), "VALID"), ((2, 5), (2, 2), "VALID")], ids=str)
def test_gradient_of_a_pool_along_two(w, s, pad):
    m, x = mesh(2, 4) if len(jax.devices()) >= 8 else mesh(2, 2), np.random.default_rng(0).permutation(48 * 64).reshape(48, 64).astype(np.float32)
    f = jax.grad(lambda x: (lax.reduce_window(x, -np.inf, lax.max, w, s, pad) ** 2).sum())
    check(f, [x], [("x", "y")], m)
    if jax.default_backend() == "rondo":
        for c in bytes_moved.of_rondo(jax.jit(f).lower(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(m, P("x", "y")))).compile().as_text()):
            assert c[2] <= x.nbytes / 4, c


def test_moved_in_loops():
    m = mesh(4)
    check(lambda x: lax.fori_loop(0, 5, lambda i, a: a + jnp.roll(a, i % 2 + 1, 0) - jnp.roll(a, 1, 0), x), [whole(8, 4)], [("x",)], m)
    check(lambda x: lax.scan(lambda c, _: (jnp.concatenate([c[-1:], c[:-1]]) % 7, c.sum()), x, None, 3), [whole(8, 4)], [("x",)], m)
    check(lambda x, i: lax.cond(i > 0, lambda a: jnp.roll(a, 1), lambda a: a[::-1], jnp.roll(x, 2)), [whole(8), np.int32(1)], [("x",), ()], m)


# --- windows ---------------------------------------------------------------------------------------------------------------

WINDOWS = {
    "same": dict(w=3, s=1, pad=(1, 1)), "causal": dict(w=4, s=1, pad=(3, 0)), "wide": dict(w=9, s=1, pad=(4, 4)), "stride": dict(w=3, s=2, pad=(0, 1)),
    "stride_low": dict(w=3, s=2, pad=(1, 0)), "pool": dict(w=2, s=2, pad=(0, 0)), "dilated": dict(w=3, s=1, pad=(3, 3), wd=3), "base": dict(w=3, s=1, pad=(2, 1), bd=2),
    "base_stride": dict(w=4, s=2, pad=(2, 1), bd=2), "base_uneven": dict(w=4, s=3, pad=(2, 1), bd=2), "cut": dict(w=3, s=1, pad=(-1, 3)),
}


@pytest.mark.parametrize("n", MESHES)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, n):
    k = WINDOWS[name]
    for init, op in ((np.float32(0), lax.add), (np.float32(-np.inf), lax.max), (np.float32(2), lax.mul)):
        def f(x):
            return lax.reduce_window(x, init, op, (k["w"], 1), (k["s"], 1), [k["pad"], (0, 0)], (k.get("bd", 1), 1), (k.get("wd", 1), 1))
        check(f, [whole(24, 4) / 4], [("x",)], mesh(n), rtol=1e-5)


@pytest.mark.parametrize("n,w,s,parts", [(24, 2, 2, 4), (24, 3, 3, 4), (26, 4, 2, 2), (24, 2, 2, 3), (28, 6, 2, 4), (24, 3, 2, 2)])
def test_gradient_of_a_pool(n, w, s, parts):
    def f(x):
        return (lax.reduce_window(x, -np.inf, lax.max, (w, 2), (s, 2), "VALID" if (n, w) != (24, 3) or s == 3 else "SAME") ** 2).sum()
    x = whole(n, 4)                          # with equal ones
    check(jax.grad(f), [x], [("x",)], mesh(parts))
    check(jax.grad(f), [x], [("x", "y")], mesh(2, 2))


def conv(k, dims):
    def f(x, w):
        return lax.conv_general_dilated(x, w, (k["s"],) * dims, [k["pad"]] * dims, (k.get("bd", 1),) * dims, (k.get("wd", 1),) * dims, feature_group_count=k.get("fg", 1))
    return f


@pytest.mark.parametrize("n", MESHES)
@pytest.mark.parametrize("name", WINDOWS)
def test_convolution_along_space(name, n):
    k = WINDOWS[name]
    x, w, m = whole(2, 3, 24), whole(5, 3, k["w"], seed=1), mesh(n)
    check(conv(k, 1), [x, w], [(None, None, "x"), ()], m)
    check(jax.grad(lambda x, w: (conv(k, 1)(x, w) ** 2).sum(), (0, 1)), [x, w], [(None, None, "x"), ()], m)
    check(jax.grad(lambda x, w: (conv(k, 1)(x, w) ** 2).sum(), (0, 1)), [whole(24, 3, 8), w], [("x",), ()], m)


@pytest.mark.parametrize("spec", [("x", None, "y"), (None, None, "x", "y"), (None, "x", "y"), (None, None, ("y", "x"))])
def test_convolution_along_two(spec):
    m, x, w = mesh(2, 2), whole(4, 4, 8, 16), whole(6, 4, 3, 3, seed=1)
    for k in (dict(s=1, pad=(1, 1)), dict(s=2, pad=(0, 1))):
        check(conv(k, 2), [x, w], [spec, ()], m)
        check(jax.grad(lambda x, w: (conv(k, 2)(x, w) ** 2).sum(), (0, 1)), [x, w], [spec, ()], m)
    check(conv(dict(s=1, pad=(1, 1), fg=4), 2), [x, whole(4, 1, 3, 3)], [spec, ()], m)


@pytest.mark.parametrize("groups, depth", [(8, 8), (8, 16), (4, 8), (2, 12)])
@pytest.mark.parametrize("spec", [("x",), (None, "x"), (None, None, "x"), ("x", None, "y"), (None, "y", "x")])
def test_convolution_in_groups(groups, depth, spec):
    """Of batch, space and channels any are cut: a device has some of the groups, and of the kernel's gradient parts are summed."""
    m, x, w = mesh(2, 2) if "y" in spec else mesh(4), whole(8, 24, 8), whole(3, 8 // groups, depth, seed=1)
    def f(x, w):
        return lax.conv_general_dilated(x, w, (1,), [(2, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=groups)
    check(f, [x, w], [spec, ()], m)
    check(jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)), [x, w], [spec, ()], m)


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("spec, most", [(("x",), 1), ((None, "x"), 40), ((None, None, "x"), 0)])
def test_bytes_of_a_depthwise_convolution(spec, most):
    """The kernel's gradient is what travels, and rows at the edges: not what was convolved."""
    x, w = np.zeros((16, 1024, 64), np.float32), np.zeros((4, 1, 64), np.float32)
    def f(x, w):
        return (lax.conv_general_dilated(x, w, (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=64) ** 2).sum()
    sent, _ = moved(jax.grad(f, 1), [x, w], [spec, ()], mesh(4))
    assert sent <= most * 2 * w.nbytes


# --- scans, selections ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("n", MESHES)
@pytest.mark.parametrize("f", [jnp.cumsum, jnp.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp])
def test_scans(f, n):
    x = whole(24, 4)
    x = np.where(x == 0, 1, np.sign(x)) if f is jnp.cumprod else x
    check(lambda x: f(x, 0), [x], [("x",)], mesh(n), rtol=1e-5)
    if f in (lax.cummax, lax.cummin):
        check(lambda x: f(x, 0, reverse=True), [x.astype(np.int32)], [("x",)], mesh(n))
    check(lambda x: jax.grad(lambda y: (f(y, 0) * jnp.arange(4)).sum())(x), [x], [("x",)], mesh(n), rtol=1e-5)


def recurrent(a, b):
    return lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (a, b))[1]


@pytest.mark.parametrize("rows", [24, 60])
@pytest.mark.parametrize("n", MESHES)
def test_scans_in_halves(n, rows):
    """What odd and even elements make by turns, which divide into parts at some turns only."""
    x, y = whole(rows, 4), whole(rows, 4, seed=1) / 16
    for reverse in (False, True):
        check(lambda x, reverse=reverse: lax.associative_scan(jnp.add, x, reverse=reverse), [x], [("x",)], mesh(n), ("x",))
    check(recurrent, [y, x], [("x",), ("x",)], mesh(n), ("x",), rtol=1e-5)
    check(jax.grad(lambda a, b: (recurrent(a, b) * jnp.arange(4)).sum(), (0, 1)), [y, x], [("x",), ("x",)], mesh(n), rtol=1e-4)


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("rows", [960, 1000 * 4])
def test_bytes_of_scans_in_halves(rows):
    """Of each turn what is at the edges, not the rows."""
    x = np.zeros((rows, 64), np.float32)
    for f, args in ((lambda x: lax.associative_scan(jnp.add, x), [x]), (recurrent, [x, x])):
        sent, _ = moved(f, args, [("x",)] * len(args), mesh(4), ("x",))
        assert sent <= 200 * x.nbytes / rows


def test_scan_rounds_once():
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(jnp.bfloat16)
    check(lambda x: jnp.cumsum(x, 0), [x], [("x",)], mesh(4), rtol=2e-2)


@pytest.mark.parametrize("n", MESHES)
def test_extremes(n):
    x = whole(5, 24)                         # with equal ones
    for y in (x, np.full_like(x, -np.inf), np.where(x > 7, np.nan, x), x.astype(np.int32), np.zeros_like(x)):
        check(lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 1), jnp.argmax(x)), [y], [(None, "x")], mesh(n))
    for k in (1, 2, 7, 24):
        check(lambda x: lax.top_k(x, k), [x], [(None, "x")], mesh(n))
        check(lambda x: lax.top_k(x.astype(jnp.bfloat16), k)[1], [x], [(None, "x")], mesh(n))
    check(lambda x: (jnp.sort(x, 1), jnp.argsort(x, 1)), [x], [(None, "x")], mesh(n))


# --- slices at places that are not known ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("dtype", [np.float32, np.int32, jnp.bfloat16, np.bool_, np.complex64, np.int8])
def test_dynamic_slices(dtype):
    x = np.where(whole(24, 4) == 0, -0.0, whole(24, 4)).astype(dtype)
    for n in MESHES:
        for size in (1, 2, 7, 13):
            f = jax.jit(lambda x, i: lax.dynamic_slice(x, (i, 1), (size, 2)))
            y = jax.device_put(x, NamedSharding(mesh(n), P("x")))
            for i in (-5, 0, 3, 11, 23, 30):
                got, want = np.asarray(f(y, i)), np.asarray(f(x, i))
                np.testing.assert_array_equal(got, want)
                np.testing.assert_array_equal(np.signbit(got.real.astype(np.float32)), np.signbit(want.real.astype(np.float32)))


@pytest.mark.parametrize("at", [np.int32, np.int8, np.uint32])
@pytest.mark.parametrize("n", MESHES)
def test_dynamic_updates(n, at):
    x, m = whole(24, 4), mesh(n)
    for size in (1, 2, 7, 13, 24):
        f = jax.jit(lambda x, u, i: lax.dynamic_update_slice(x, u, (i, at(1))))
        y, u = jax.device_put(x, NamedSharding(m, P("x"))), whole(size, 2, seed=1)
        for i in (-5, 0, 3, 11, 23, 30):
            i = at(i if at != np.uint32 else abs(i))
            got, want = f(y, u, i), np.asarray(f(x, u, i))
            assert got.sharding.spec == P("x")
            np.testing.assert_array_equal(got, want)


def test_cache_of_decoding():
    m = mesh(2, 2)
    k, q = whole(2, 32, 4, 8), whole(2, 1, 4, 8)

    def f(k, q):
        def turn(c, i):
            k, q = c
            k = lax.dynamic_update_slice(k, q + i, (0, i, 0, 0))
            s = jnp.where(jnp.arange(32) <= i, jnp.einsum("bshd,bqhd->bhs", k, q), -1e9)
            q = jnp.einsum("bhs,bshd->bhd", jnp.round(jax.nn.softmax(s / 1000) * 8), k)[:, None] % 5
            return (k, q), q
        return lax.scan(turn, (k, q), jnp.arange(20, 32))
    check(f, [k, q], [("x", "y"), ("x",)], m)


# --- along others ----------------------------------------------------------------------------------------------------------------

def by_key(x):
    return lax.sort((jnp.round(x), x, lax.broadcasted_iota(jnp.int32, x.shape, 0)), dimension=0, num_keys=2)


TURNS = {                                   # of an array that is cut along dimension 0
    "sort": lambda x: jnp.sort(x, 0), "descending": lambda x: jnp.sort(x, 0, descending=True), "by_key": by_key, "argsort": lambda x: jnp.argsort(x, 0),
    "median": lambda x: jnp.median(x, 0), "top_k": lambda x: jnp.swapaxes(lax.top_k(jnp.swapaxes(x, 0, -1), 5)[0], 0, -1),
    "scan": lambda x: lax.associative_scan(jnp.logaddexp, x, axis=0), "cumlogsumexp": lambda x: lax.cumlogsumexp(x, 0),
    "fft": lambda x: jnp.abs(jnp.fft.fft(x, axis=0)), "rfft": lambda x: jnp.abs(jnp.fft.rfft(x, axis=0)),
    "twice": lambda x: jnp.sort(jnp.sin(jnp.sort(x, 0)), 0), "function": lambda x: lax.reduce_window(x, np.float32(0), jnp.hypot, (3,) + (1,) * (x.ndim - 1), (1,) * x.ndim, "SAME"),
}
SHAPES = [(96, 24), (96, 12, 4), (96, 2, 6), (24, 12), (24, 7), (48,), (48, 1, 2)]       # the first ones are worth it


def ordered(order):
    """A mesh whose devices come in that order."""
    return jax.sharding.Mesh(np.array([jax.devices()[i] for i in order]), ("x",), axis_types=(AxisType.Auto,))


@pytest.mark.parametrize("m", [mesh(2), mesh(3), mesh(4), ordered((2, 0, 1)), ordered((3, 0, 2, 1)), mesh(2, 2)], ids=str)
@pytest.mark.parametrize("name", TURNS)
def test_turned(name, m):
    r = np.random.default_rng(1)
    for shape in SHAPES:
        x = r.integers(-9, 10, shape).astype(np.float32) / 4
        for spec in [("x",)] if len(m.axis_names) == 1 else [("x", "y"), (("y", "x"),), ("y",)]:
            if len(spec) <= x.ndim and all(x.shape[d] % (m.size if isinstance(a, tuple) else m.shape[a]) == 0 for d, a in enumerate(spec)):
                check(TURNS[name], [x], [spec], m, rtol=1e-5 if name in ("scan", "cumlogsumexp", "fft", "rfft", "function", "twice") else 0.0)


@pytest.mark.parametrize("f", [jnp.linalg.cholesky, jnp.linalg.eigvalsh, lambda x: jnp.linalg.svd(x, compute_uv=False), lambda x: jnp.linalg.solve(x, jnp.ones((8, 3), x.dtype))])
def test_turned_matrices(f):
    x = np.random.default_rng(2).standard_normal((12, 8, 8)).astype(np.float32)
    x = x @ x.transpose(0, 2, 1) + 8 * np.eye(8, dtype=np.float32)
    for spec in [(None, "x"), (None, "x", "y"), ("y", None, "x")]:
        check(f, [x], [spec], mesh(2, 2), rtol=1e-4)


def moved(f, args, specs, m, out=None):
    """Bytes into each device, and the kinds of collectives."""
    put = tuple(NamedSharding(m, P(*s)) for s in specs)
    sent = bytes_moved.of_rondo(jax.jit(f, in_shardings=put, out_shardings=None if out is None else NamedSharding(m, P(*out))).lower(*args).compile().as_text())
    return sum(c[2] * n for c, n in sent.items()), {c[0] for c in sent}


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int64"])
@pytest.mark.parametrize("n", MESHES)
def test_bytes_of_rows_that_lie_as_their_numbers(n, dtype):
    """An embedding, of which table and tokens are cut along one axis: each device gets its own rows, not all; bit by bit, with zeros that have signs."""
    table, t, m = whole(48000, 64).astype(dtype), np.random.default_rng(2).integers(0, 48000, (24, 10)).astype(np.int32), mesh(n)
    table[::7] *= 0 if dtype.startswith("int") else np.asarray(-0.0, dtype)
    f = lambda e, t: e.at[t].get(mode="clip")
    rows = 240 * 64 * table.itemsize
    sent, kinds = moved(f, [table, t], [("x",)] * 2, m, ("x",))
    assert "all_reduce" not in kinds and sent <= (rows + t.nbytes) * (n - 1) / n * 1.001
    got = jax.jit(f, out_shardings=NamedSharding(m, P("x")))(*(jax.device_put(a, NamedSharding(m, P("x"))) for a in (table, t)))
    assert np.asarray(got).tobytes() == np.asarray(table)[t].astype(got.dtype).tobytes()


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("n", MESHES)
def test_bytes_of_turns(n):
    x, m = np.zeros((480, 960), np.float32), mesh(n)
    one = x.nbytes / n * (n - 1) / n
    for f, times in ((TURNS["sort"], 2), (TURNS["argsort"], 2), (TURNS["by_key"], 5), (TURNS["twice"], 2)):
        sent, kinds = moved(f, [x], [("x",)], m, ("x",))
        assert kinds == {"all_to_all"} and sent <= times * one * 1.001
    sent, kinds = moved(TURNS["sort"], [x[:, 0]], [("x",)], m, ("x",))
    assert kinds == {"all_gather"}            # there is no other dimension


@pytest.mark.only_rondo("Rondo's collectives")
def test_bytes_of_what_is_turned_round():
    """Along two dimensions a part goes once."""
    x = np.zeros((64, 96), np.float32)
    assert moved(lambda x: x[::-1, ::-1], [x], [("x", "y")], mesh(2, 2), ("x", "y")) == (x.nbytes / 4, {"permute"})


@pytest.mark.only_rondo("Rondo's collectives")
def test_bytes_of_what_comes_once():
    """Of a roll along another dimension, too, and of what an op reads twice."""
    x, m = np.zeros((96, 64), np.float32), mesh(4)
    for shift in (5, -3, 24, 30):
        sent, kinds = moved(lambda x, k=shift: jnp.roll(x, (k, -3), (0, 1)), [x], [("x",)], m, ("x",))
        assert kinds == {"permute"} and sent <= min(abs(shift), 24) * x[0].nbytes
    check(lambda x: jnp.roll(x, (5, -3), (0, 1)), [whole(96, 64)], [("x",)], m)
    for f in (lambda x: jnp.nansum(x[1:], 0), lambda x: (x[1:] * x[1:]).sum(0)):
        assert moved(f, [x], [("x",)], m, ())[0] <= 4 * x[0].nbytes


IDENTITY = {
    "hessian": (jax.hessian(lambda r: jnp.log(r @ r + 1) + (r[1:] * r[:-1]).sum()), 32), "jacobian": (jax.jacfwd(lambda r: jnp.sort(r) * r), 8),
    "mask": (lambda r: (jnp.tril(jnp.ones((r.size, r.size), r.dtype), -3) @ r, r @ jnp.eye(r.size, k=5, dtype=r.dtype)), 16),
}


@pytest.mark.parametrize("n", MESHES)
@pytest.mark.parametrize("name", IDENTITY)
def test_identity(name, n):
    """What is made of positions alone each device makes."""
    (f, vectors), m, x = IDENTITY[name], mesh(n), np.random.default_rng(5).permutation(480).astype(np.float32) / 64
    check(f, [x], [("x",)], m, rtol=1e-5)
    assert jax.default_backend() != "rondo" or moved(f, [x], [("x",)], m)[0] <= vectors * x.nbytes


@pytest.mark.only_rondo("Rondo's collectives")
def test_bytes_of_rows():
    """Rows of a stack come alone; what is there twice comes once."""
    w, m = np.zeros((8, 128, 256), np.float32), mesh(4)
    row = w.nbytes / 8
    for f, rows in ((lambda w: w[3], 1), (lambda w: w[5:7], 2), (lambda w: (w[0], w[7]), 2)):
        assert moved(f, [w], [("x",)], m, ())[0] <= rows * row
    x = np.zeros((1024, 256), np.float32)
    for f in (lambda x: jnp.concatenate([x, x[:66]]), lambda x: jnp.pad(x, 33, mode="wrap")):
        sent, kinds = moved(f, [x], [(("x", "y"),)], mesh(2, 2), ("x",))
        assert "all_gather" not in kinds or sent <= 1.5 * x.nbytes
    assert moved(lambda x: jnp.concatenate([x, x]), [x], [(("x", "y"),)], mesh(2, 2), (("x", "y"),)) == (x.nbytes / 2, {"permute"})
    for k in (515, 701, 898):                # the most that a device can lack
        f = lambda x, k=k: x[-k:] if k == 701 else x[:k]
        assert moved(f, [x], [(("x", "y"),)], mesh(2, 2), ())[0] <= k * x[0].nbytes * 1.001
        check(f, [whole(1024, 256)], [(("x", "y"),)], mesh(2, 2), ())
    for f, rows in ((lambda x: x[8:10] @ x.T, 2), (lambda x: x[301:304] @ x.T, 3), (lambda x: jnp.sin(x[254:257]) @ x.T, 6)):
        assert moved(f, [x], [(("x", "y"),)], mesh(2, 2))[0] <= rows * x[0].nbytes
        check(f, [whole(1024, 256)], [(("x", "y"),)], mesh(2, 2), rtol=1e-5)
    i = np.zeros(4096, np.int32)
    for f in (jax.ops.segment_max, jax.ops.segment_min, jax.ops.segment_prod):
        assert moved(lambda i, f=f: f(i, i, 50), [i], [("x",)], m)[0] <= 2 * 50 * 4
    assert moved(lambda i: jnp.isin(i, i[::100]), [i], [("x",)], m)[0] <= 2 * 41 * 4


ROUND = {
    "one": lambda x, i: jnp.roll(x, i, 0), "other": lambda x, i: jnp.roll(x, i, 1), "both": lambda x, i: jnp.roll(x, (i, 2 * i), (0, 1)), "flat": lambda x, i: jnp.roll(x, i) * 2, "read twice": lambda x, i: (jnp.roll(x, i, 0) + x, jnp.roll(x, i, 0).sum(1)),
    "loop": lambda x, i: lax.fori_loop(0, 5, lambda k, y: jnp.roll(y, k * i, 0) + 1, x), "branch": lambda x, i: lax.cond(i > 2, lambda y: jnp.roll(y, i, 0), lambda y: y + 1, x), "gradient": jax.grad(lambda x, i: (jnp.roll(x, i, 0) * x * x).sum()),
    "of two": lambda x, i: lax.dynamic_slice_in_dim(jnp.concatenate([x, x]), i, 24, 0), "not all": lambda x, i: lax.dynamic_slice_in_dim(jnp.concatenate([x, x]), i, 12, 0), "of others": lambda x, i: lax.dynamic_slice_in_dim(jnp.concatenate([x, x * 2]), i, 24, 0),
}


@pytest.mark.parametrize("name", ROUND)
def test_turned_by_a_number(name):
    """By one that is not known before, of any size and sign."""
    f = ROUND[name]
    for m, spec in ((mesh(3), ("x",)), (mesh(4), ("x",)), (mesh(2, 2), ("x", "y")), (mesh(2, 2), (("y", "x"),)), (ordered((3, 0, 2, 1)), (None, "x"))):
        for out in (None, spec):
            turn = jax.jit(f, out_shardings=None if out is None or name == "read twice" else NamedSharding(m, P(*out)))
            x = whole(24, 12)
            for i in (0, 1, 5, 6, 11, 24, 25, -1, -7, 100, -(1 << 31), (1 << 31) - 1):
                got = turn(jax.device_put(x, NamedSharding(m, P(*spec))), np.int32(i))
                for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(jax.jit(f)(x, np.int32(i))), strict=True):
                    for s in g.addressable_shards:
                        np.testing.assert_array_equal(np.asarray(s.data), np.asarray(w)[s.index])


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "bool", "complex64", "int4", "float8_e4m3fn"])
def test_turned_by_a_number_of_types(dtype):
    x = (whole(24, 4) % 2 if dtype == "bool" else whole(24, 4) / 2).astype(dtype)
    for d in (0, 1):
        got = jax.jit(lambda x, i, d=d: jnp.roll(x, i, d), out_shardings=(h := NamedSharding(mesh(4), P(*[None] * d, "x"))))(jax.device_put(x, h), np.int32(7))
        assert np.asarray(got).tobytes() == np.roll(x, 7, d).tobytes()


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("n", MESHES)
def test_bytes_of_turned_by_a_number(n):
    """A part comes, or, if all is wanted, what is missing of that."""
    x, i, m = np.zeros((960, 240), np.float32), np.int32(3), mesh(n)
    for d in (0, 1):
        spec = (None,) * d + ("x",)
        assert moved(lambda x, i, d=d: jnp.roll(x, i, d), [x, i], [spec, ()], m, spec) == (x.nbytes / n, {"all_to_all"})
        assert moved(lambda x, i, d=d: jnp.roll(x, i, d), [x, i], [spec, ()], m, ()) == (x.nbytes * (n - 1) / n, {"all_gather"})


@pytest.mark.parametrize("m,one", [(mesh(4), "x"), (mesh(2, 2), ("x", "y"))], ids=str)
def test_slices_of_sums(m, one):
    """Of a sum over devices that comes which is read, not what was cut away."""
    x, w, k = whole(96, 64), whole(96, 64, seed=1), whole(3, 3, 16, 16, seed=2)
    image = whole(8, 8, 8, 16, seed=3)
    for f, least in ((lambda x, w: (x.T @ w)[:5, 3:6], 5 * 3), (lambda x, w: (x.T @ w)[::2, 1:][3], 63), (lambda x, w: x.sum(0)[7:20:3] + w.sum(0)[:5], 5), (lambda x, w: -(x.T @ w).reshape(8, 8, 64)[1, :, 5:].T, 8 * 59)):
        check(f, [x, w], [(one,)] * 2, m)
        assert jax.default_backend() != "rondo" or moved(f, [x, w], [(one,)] * 2, m)[0] <= 2 * least * 4
    for f in (lambda x, w: (x.T @ w, (x.T @ w)[3]), lambda x, w: (lambda y: (y[:5], y[3:9] * 2))(x.T @ w), lambda x, w: (lambda y: jnp.tanh(y[:5] / 999) + y[1:6].max())(x.T @ w)):
        check(f, [x, w], [(one,)] * 2, m, rtol=1e-5)

    def f(k, x):
        return (lax.conv_transpose(x, k, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2).sum()
    check(jax.grad(f), [k, image], [(), (one,)], m, rtol=1e-6)
    assert jax.default_backend() != "rondo" or moved(jax.grad(f), [k, image], [(), (one,)], m)[0] <= 2 * k.nbytes


CORNERS = {
    "column": lambda x: x[:7, 1], "long column": lambda x: x[7:300, 1], "columns": lambda x: jnp.stack([x[:9, 1], x[:9, 2]], 1), "product": lambda x: x[5:9, 3:20] @ x[3:20, 5:9], "polynomial": lambda x: jnp.polyval(x[:5, 2], x[:, 1] / 16),
    "sums": lambda x: (x[5:9, 3:20].sum(1), x[5:9, 3:20].max(0)), "padded": lambda x: jnp.pad(x[9:2:-1, 30:33], ((1, 2), (0, 1)), constant_values=3) * 2, "strided": lambda x: x[3:90:5, 7] + 1,
    "joined": lambda x: jnp.concatenate([x[:9, 1], x[490:, 255] + 1, x[40:42, 3]]), "placed": lambda x: jnp.zeros(400).at[jnp.arange(210)].set(x[:210, 200]), "turned": lambda x: x[:6, 4:9].T.reshape(-1)[1:],
}


@pytest.mark.parametrize("spec", [("x", "y"), ("x",), (None, "x"), (("y", "x"),), (None, ("x", "y"))], ids=str)
@pytest.mark.parametrize("name", CORNERS)
def test_corners(name, spec):
    """Of what is small after a slice, that is brought, not what it is cut out of."""
    f, x, m = CORNERS[name], whole(512, 256), mesh(2, 2)
    check(f, [x], [spec], m, rtol=1e-4 if name == "polynomial" else 0)
    if jax.default_backend() == "rondo":
        assert moved(f, [x], [spec], m)[0] <= 12 << 10


@pytest.mark.parametrize("spec", [(("x", "y"),), (("y", "x"),), ("y",)], ids=str)
def test_few_of_a_long_one(spec):
    x, m = whole(1 << 17), mesh(2, 2)
    for f in (lambda v: jnp.zeros(400).at[jnp.arange(210)].set(v[:210]), lambda v: jnp.zeros((20, 20)).at[jnp.triu_indices(20)].set(v[300:510]), lambda v: jnp.pad(v[70000:70100], (3, 1)).reshape(8, 13) * 2):
        check(f, [x], [spec], m)
        assert jax.default_backend() != "rondo" or moved(f, [x], [spec], m)[0] <= 4 << 10


ENDS = {"both": lambda x: jnp.vstack([x[:2], x[-2:]]), "beside": lambda x: jnp.concatenate([x[:4], x[-4:]], 1), "of two": lambda x: jnp.concatenate([x[-2:], (x * 2)[:2]]), "three": lambda x: jnp.concatenate([x[900:902], x[:1], x[5:6]])}


@pytest.mark.parametrize("spec", [(("x", "y"),), (("y", "x"),)], ids=str)
@pytest.mark.parametrize("name", ENDS)
def test_ends_of_a_long_one(name, spec):
    """What is put together of its ends is, and nothing between them is brought."""
    x, m = whole(1024, 256), mesh(2, 2)
    for out in (None, ("x",), ()):
        check(ENDS[name], [x], [spec], m, out)
        assert jax.default_backend() != "rondo" or moved(ENDS[name], [x], [spec], m, out)[0] <= (12 if name == "beside" else 8) * x[0].nbytes


@pytest.mark.only_rondo("Rondo's collectives")
def test_bytes_of_loops_over_rows():
    """Rows that are spread over devices are cut along the dimension that has least sent in the turns."""
    w = np.zeros((64, 256, 256), np.float32)
    sent, kinds = moved(lambda w: lax.scan(lambda c, r: (c @ r, None), jnp.ones((256, 256)), w)[0], [w], [("x",)], mesh(4))
    assert kinds <= {"all_gather", "all_to_all"} and sent <= 1.001 * w.nbytes


@pytest.mark.only_rondo("Rondo's collectives")
def test_bytes_of_idle_axes():
    """Devices that would make the same product make parts of it: less of an operand comes to them, too."""
    x = np.zeros((1024, 1024), np.float32)
    sent, _ = moved(lambda x: x @ x, [x], [("x",)], mesh(2, 2), ("x",))
    assert sent <= 0.5 * x.nbytes
    y = whole(1024, 1024) % 3
    check(lambda x: x @ x, [y], [("x",)], mesh(2, 2), ("x",))


def test_rows():
    w = whole(8, 96, 128)
    m = mesh(4)
    for f in (lambda w: w[3], lambda w: w[5:7] + 1, lambda w: (w[0], w[7] * 2), lambda w: jnp.concatenate([w[6:], w[:1], w[3:5]]), lambda w: jnp.concatenate([w, w[:4]], 0)):
        for out in (None, ()):
            check(f, [w], [("x",)], m, out)
        check(f, [w], [("x", None, "y")], mesh(2, 2))


READ_BY_ALL = {                                  # and rows of a device's bytes, at most
    "last token": (lambda x: x[-1] @ x.T, 1), "class token": (lambda x: x @ x[0], 1), "boundary": (lambda x: x - x[0], 1), "rows": (lambda x: x * x[-2:].prod(0), 2), "over a border": (lambda x: x[8:11], 4),
    "edges": (lambda x: x + jnp.vstack([x[:2], x[-2:]]).max(0), 4), "padded": (lambda x: x * jnp.pad(x[5:6], ((1, 1), (0, 0)))[1], 1), "gradient": (jax.grad(lambda x: ((x - x[3]) ** 2).sum()), 3),
    "mean": (lambda x: x - x[:1].mean(), .04), "row's mean": (lambda x: x - x[7].mean(), .04), "scaled": (lambda x: x / (1 + abs(x[-1].max())), .04), "least": (lambda x: (x[3:].min(), x[:-5:].prod(), x[2:20:3].sum(), x[22:5:-1].max()), .2),
    "sums": (lambda x: (x[5:].sum(0)[:3], x[::-1][1:22].sum((0, 1)), x[2:].max()), .2), "begins with something": (lambda x: lax.reduce(x[3:9], np.float32(3), lax.add, (0, 1)) + lax.reduce(x[3:9], np.float32(3), lax.max, (0, 1)), .1),
}


@pytest.mark.parametrize("m,spec", [(mesh(2), ("x",)), (mesh(3), ("x",)), (mesh(4), ("x",)), (mesh(2, 2), (("y", "x"),)), (mesh(2, 2), ("x", "y"))], ids=str)
@pytest.mark.parametrize("name", READ_BY_ALL)
def test_rows_that_all_read(name, m, spec):
    """Of few rows that all devices read, those come, and nothing else; of a sum or the greatest of them, each device's part."""
    f, rows = READ_BY_ALL[name]
    x = whole(24, 96) / 2
    check(f, [x if name != "least" else np.where(abs(x) < 1, 1, np.sign(x)).astype(np.float32)], [spec], m, rtol=1e-5)
    if jax.default_backend() == "rondo" and spec != ("x", "y"):
        assert moved(f, [x], [spec], m, () if name == "over a border" else None)[0] <= rows * 96 * 4


def extremes(x, d):
    k = min(3, x.shape[d] - 2)
    top = [lax.top_k(jnp.moveaxis(y, d, -1), k) for y in (lax.slice_in_dim(x, 1, None, axis=d), jnp.flip(x, d)[(slice(None),) * d + (slice(0, -1),)])]
    places = [f(y, d) for f in (jnp.argmax, jnp.argmin) for y in (lax.slice_in_dim(x, 1, None, axis=d), lax.slice_in_dim(x, 0, x.shape[d] - 1, axis=d))]
    return top, places, jnp.argmax(x[1:-2]), jnp.argmin(jnp.concatenate([x[3:], x[:1]]), d)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.bool_, jnp.bfloat16])
@pytest.mark.parametrize("m,spec", [(mesh(2), ("x",)), (mesh(3), ("x",)), (mesh(4), (None, "x")), (mesh(2, 2), ("x", "y")), (mesh(2, 2), (("y", "x"),))], ids=str)
def test_extremes_where_it_does_not_divide(m, spec, dtype):
    """Those of a device's elements, with what is behind the last ones none of them: equal ones, the least of the type, NaN of either sign."""
    x = whole(12, 24)
    kinds = [x, np.zeros_like(x), np.minimum(x, -5)]
    if dtype == np.float32:
        kinds += [np.full_like(x, -np.inf), np.full_like(x, np.inf), np.where(x > 5, np.nan, x), np.copysign(np.full_like(x, np.nan), -1), np.where(x > 5, -np.inf, np.copysign(np.nan, -1)).astype(x.dtype)]
    elif dtype == np.int32:
        kinds += [np.full(x.shape, np.iinfo(dtype).min), np.full(x.shape, np.iinfo(dtype).max)]
    for y in kinds:
        for d in (0, 1):
            check(lambda x, d=d: extremes(x, d), [y.astype(dtype)], [spec], m)


@pytest.mark.parametrize("n", MESHES)
def test_reductions_by_functions_where_it_does_not_divide(n):
    m, x = mesh(n), whole(24, 8) / 4

    def f(x):
        pair = lax.reduce((x[1:], x[1:] * 2), (np.float32(0), np.float32(0)), lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])), (0,))
        return pair, lax.reduce((x[:-3], lax.broadcasted_iota(np.int32, (21, 8), 0)), (np.float32(-np.inf), np.int32(0)), lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1]), (0,))
    check(f, [x], [("x",)], m)


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("n", MESHES)
def test_bytes_of_extremes(n):
    x, v, m = np.zeros((1200, 600), np.float32), np.zeros(1 << 16, np.float32), mesh(n)
    for f in (lambda x: jnp.argmax(x[3:], 0), lambda x: jnp.argmin(x[:-5], 0), lambda x: jnp.argmax(jnp.diff(x, axis=0), 0)):
        assert moved(f, [x], [("x",)], m, ())[0] <= (2 * (n - 1) + 5) * x[0].nbytes
    for f in (lambda v: jnp.argmax(jnp.diff(v)), lambda v: jnp.argmin(v[7:]), lambda v: lax.top_k(v[3:], 5), lambda v: lax.top_k(jnp.abs(jnp.diff(v[:-100])), 3)[1]):
        assert moved(f, [v[:(1 << 16) // n * n]], [("x",)], m, ())[0] <= 1 << 10


def attends(kind, x, w, seg, d):
    q, k, v = (jnp.einsum("bsd,dhe->bhse", x, w[i]) for i in range(3))
    t = jnp.arange(x.shape[1])
    s = jnp.einsum("bhqe,bhke->bhqk", q, k)
    if kind in ("causal", "window"):
        s = jnp.where(t[:, None] >= t, s, -1e30)
    if kind == "window":
        s = jnp.where(t[:, None] - t < 5, s, -jnp.inf)
    if kind == "documents":
        seg = seg[:, :t.size]
        s = jnp.where(seg[:, None, :, None] == seg[:, None, None], s, -1e9)
    if kind == "divided":         # by what would be 0 behind the last row
        s = s / d[:t.size, None]
    p = jax.nn.softmax(s, -1)
    if kind == "dropout":
        p = p * jax.random.bernoulli(jax.random.key(3), .7, p.shape)
    return jnp.einsum("bhqk,bhke->bqhe", p, v)


@pytest.mark.parametrize("rows", [slice(0, -1), slice(1, -2)], ids=str)
@pytest.mark.parametrize("kind", ["plain", "causal", "window", "documents", "divided", "dropout"])
@pytest.mark.parametrize("m,spec", [(mesh(2), (None, "x")), (mesh(3), (None, "x")), (mesh(2, 2), ("x", "y")), (mesh(2, 2), (None, ("y", "x")))], ids=str)
def test_gradient_of_attention_where_it_does_not_divide(m, spec, kind, rows):
    r = np.random.default_rng(1)
    args = [r.standard_normal((2, 24, 16), np.float32), r.standard_normal((3, 16, 2, 8), np.float32) / 4, np.sort(r.integers(0, 3, (2, 24)), 1), 1 + r.random(24, np.float32)]

    def f(x, w, seg, d):
        return (attends(kind, jnp.tanh(x[:, rows]), w, seg, d) ** 2).sum()
    check(jax.value_and_grad(f, (0, 1)), args, [spec, (), (), ()], m, rtol=1e-5)


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("n", MESHES)
def test_bytes_of_gradients_where_it_does_not_divide(n):
    """What devices have of rows stays there: sums are of weights, and of the rows of keys and values that all rows read."""
    x, w, v, m = np.zeros((24 * n, 32), np.float32), np.zeros((32, 64), np.float32), np.zeros((64, 16), np.float32), mesh(n)
    for f in (lambda w, v, x: (jnp.tanh(x[1:] @ w) @ v).sum(), lambda w, v, x: ((jnp.tanh(jnp.pad(x, ((1, 0), (0, 0))) @ w) @ v) ** 2).sum()):
        sent, kinds = moved(jax.grad(f, (0, 1)), [w, v, x], [(), (), ("x",)], m, ())
        assert "all_gather" not in kinds and sent <= 2 * (w.nbytes + v.nbytes) + 4 * x[0].nbytes + 64
    x, w = np.zeros((2, 24 * n, 16), np.float32), np.zeros((3, 16, 2, 8), np.float32)
    sent, _ = moved(jax.grad(lambda w, x: (attends("causal", x[:, :-1], w, None, None) ** 2).sum()), [w, x], [(), (None, "x")], m, ())
    assert sent <= 4 * x.nbytes + 2 * w.nbytes


@pytest.mark.parametrize("unique,dtype", [(False, np.int32), (True, np.int32), (True, np.uint8), (False, np.uint8)])
@pytest.mark.parametrize("how", ["add", "max", "min", "multiply"])
@pytest.mark.parametrize("n", MESHES)
def test_updates_where_they_do_not_divide(n, how, unique, dtype):
    """What is behind the last update goes nowhere, not to a place that another one has."""
    m, r = mesh(n), np.random.default_rng(n)
    e, u, i = whole(150, 4), whole(8 * n, 4), r.permutation(100)[:8 * n]
    i = (i if unique else i % 7).astype(dtype)
    for rows in (slice(1, None), slice(0, -3)):
        check(lambda e, u, i: getattr(e.at[i[rows]], how)(u[rows] + 1, unique_indices=unique), [e, u, i], [(), ("x",), ("x",)], m)  # noqa: B023


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
@pytest.mark.parametrize("n", MESHES)
def test_counts_where_it_does_not_divide(n, dtype):
    """What all updates add is one number: the places alone lie in parts."""
    m, i = mesh(n), np.random.default_rng(n).integers(0, 40, 64 * n).astype(dtype)
    for f in (lambda i: jnp.bincount(i[:-1], length=50), lambda i: jnp.zeros(30).at[i[3:]].add(2.5), lambda i: jnp.full(30, 3).at[i[1:]].min(1)):
        check(f, [i], [("x",)], m)
        sent, kinds = moved(f, [i], [("x",)], m, ())
        assert sent <= 2 * 4 * 50 + 32 and "all_gather" not in kinds


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("n", MESHES)
def test_bytes_of_the_gradient_of_an_embedding(n):
    e, t, m = np.zeros((64, 32), np.float32), np.zeros((8, 64 * n), np.int32), mesh(n)
    sent, kinds = moved(jax.grad(lambda e, t: (jnp.tanh(e[t[:, :-1]]) ** 2).sum()), [e, t], [(), (None, "x")], m, ())
    assert kinds == {"all_reduce"} and sent <= 2 * e.nbytes


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("n", MESHES)
def test_bytes_of_products_of_columns(n):
    """An operand that is cut along what is summed over becomes rows where the result is much larger: no parts of that are added up."""
    x, w, m = np.zeros((128 * n, 32 * n), np.float32), np.zeros((32 * n, 256 * n), np.float32), mesh(n)
    y = 128 * n * 256 * n * 4
    for f, more in ((lambda x, w: jnp.tanh(x @ w).mean(), 16), (lambda x, w: jnp.tanh(x @ w), y)):
        assert moved(f, [x, w], [(None, "x"), ()], m, ())[0] <= x.nbytes / n + more


@pytest.mark.only_rondo("Rondo's collectives")
def test_bytes_of_a_product_made_symmetric():
    """Its parts are added up once, though it and its transpose are cut otherwise."""
    x, c = np.zeros((256, 128), np.float32), 128 * 128 * 4

    def f(x):
        c = x.T @ x
        return (c + c.T) / 2
    assert moved(f, [x], [("x", "y")], mesh(2, 2), ())[0] <= c + c / 4 + x.nbytes / 4


# --- windows that do not divide --------------------------------------------------------------------------------------------------

LONGER = {
    "valid": dict(w=3, s=1, pad=(0, 0)), "wide": dict(w=6, s=1, pad=(0, 0)), "stride": dict(w=3, s=2, pad=(0, 0)), "far": dict(w=7, s=2, pad=(1, 0)), "odd": dict(w=4, s=1, pad=(2, 1)),
    "more": dict(w=2, s=1, pad=(3, 3)), "base": dict(w=3, s=2, pad=(0, 0), bd=2), "dilated": dict(w=3, s=1, pad=(0, 0), wd=2), "few": dict(w=5, s=5, pad=(0, 0)), "cut": dict(w=3, s=1, pad=(-2, 0)),
}


@pytest.mark.parametrize("m", [mesh(2), mesh(3), mesh(4), ordered((3, 0, 2, 1))], ids=str)
@pytest.mark.parametrize("name", LONGER)
def test_windows_that_do_not_divide(name, m):
    k, x = LONGER[name], whole(24, 4) / 4
    for init, op in ((np.float32(0), lax.add), (np.float32(-np.inf), lax.max), (np.float32(2), lax.mul), (np.float32(0), jnp.hypot)):
        def f(x):
            return lax.reduce_window(x, init, op, (k["w"], 1), (k["s"], 1), [k["pad"], (0, 0)], (k.get("bd", 1), 1), (k.get("wd", 1), 1))
        check(f, [x], [("x",)], m, rtol=1e-5)
        check(lambda x: (jnp.cos(f(jnp.sin(f(x) / 16))).sum(0), f(x)[1:-1] * 2), [x], [("x",)], m, rtol=1e-4)
        check(lambda x: f(x[1:-2] / 2 + 1), [x], [("x",)], m, rtol=1e-5)


@pytest.mark.parametrize("m", [mesh(2), mesh(3), mesh(4), ordered((2, 0, 1))], ids=str)
@pytest.mark.parametrize("name", LONGER)
def test_convolutions_that_do_not_divide(name, m):
    k, x = LONGER[name], whole(2, 3, 24)
    w, v = whole(5, 3, k["w"], seed=1), whole(2, 5, k["w"], seed=2)
    check(conv(k, 1), [x, w], [(None, None, "x"), ()], m)
    check(jax.grad(lambda x, w: (conv(k, 1)(x, w) ** 2).sum(), (0, 1)), [x, w], [(None, None, "x"), ()], m)
    small = dict(k, s=1)
    check(jax.grad(lambda x, w, v: (jnp.maximum(conv(small, 1)(jnp.maximum(conv(small, 1)(x, w), 0), v), 0)).sum(), (0, 1, 2)), [x, w, v], [(None, None, "x"), (), ()], m)


@pytest.mark.parametrize("spec", [("x", None, "y"), (None, None, "x", "y"), (None, None, ("y", "x")), (None, "x", "y")])
def test_convolutions_that_do_not_divide_along_two(spec):
    m, x, w = mesh(2, 2), whole(4, 4, 8, 16), whole(6, 4, 3, 4, seed=1)
    for k in (dict(s=1, pad=(0, 0)), dict(s=1, pad=(1, 0))):
        check(conv(k, 2), [x, w], [spec, ()], m)
        check(jax.grad(lambda x, w: (conv(k, 2)(x, w) ** 2).sum(), (0, 1)), [x, w], [spec, ()], m)


@pytest.mark.parametrize("n,w,s", [(24, 3, 2), (24, 3, 1), (24, 5, 5), (22, 2, 2), (25, 3, 2)])
def test_gradient_of_a_padded_pool(n, w, s):
    for pad in ("SAME", "VALID"):
        for m in (mesh(2), mesh(3), mesh(4)):
            def f(x):
                return (lax.reduce_window(x[:n], -np.inf, lax.max, (w, 1), (s, 1), pad) ** 2).sum()
            check(jax.grad(f), [whole(36, 4)], [("x",)], m)


@pytest.mark.only_rondo("Rondo's collectives")
@pytest.mark.parametrize("n", MESHES)
def test_bytes_of_windows_that_do_not_divide(n):
    x, w, m = np.zeros((2, 96, 48, 16), np.float32), np.zeros((3, 3, 16, 16), np.float32), mesh(n)
    row = x[:, 0].nbytes

    def f(x, w):
        return (lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2).sum()
    args, specs = [x, w], [(None, "x"), ()]
    sent, kinds = moved(f, args, specs, m)
    assert kinds == {"permute", "all_reduce"} and sent <= 2 * row + 16
    sent, kinds = moved(jax.grad(f, (0, 1)), args, specs, m)
    assert kinds == {"permute", "all_reduce"} and sent <= 6 * row + 2 * w.nbytes
