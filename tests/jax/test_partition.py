"""Values that are sharded outside manual computations: the same numbers as unsharded, or an error that names the operation."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

N = 4


def mesh(*shape, names=("x",)):
    return jax.make_mesh(shape or (N,), names, devices=jax.devices()[:N], axis_types=(AxisType.Auto,) * len(names))


def on(x, *spec, m=None):
    return jax.device_put(x, NamedSharding(m or mesh(), P(*spec)))


def all_shards_right(got, want):
    for s in got.addressable_shards:
        np.testing.assert_array_equal(s.data, want[s.index])


X = np.arange(64, dtype=np.float32).reshape(8, 8) + 1
# Extents stay as they were, elements do not stay in their places.
STILL = {
    "pad": lambda x: lax.pad(x, np.float32(0), [(1, -1, 0), (0, 0, 0)]),
    "pad_back": lambda x: lax.pad(x, np.float32(0), [(-3, 3, 0), (0, 0, 0)]),
    "pad_interior": lambda x: lax.pad(x, np.float32(0), [(0, -7, 1), (0, 0, 0)]),
    "reverse": lambda x: lax.rev(x, (0,)),
    "concatenate": lambda x: jnp.concatenate([x[4:], x[:4]]),
    "roll": lambda x: jnp.roll(x, 1, 0),
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (3, 1), (8, 4)),
    "dynamic_update": lambda x: lax.dynamic_update_slice(x, jnp.zeros((3, 8)), (2, 0)),
    "gather": lambda x: jnp.take(x, jnp.arange(8)[::-1], axis=0),
    "scatter": lambda x: x.at[jnp.array([1, 5])].add(3),
    "sort": lambda x: -jnp.sort(-x, axis=0),
    "cumsum": lambda x: jnp.cumsum(x, 0),
    "window": lambda x: lax.reduce_window(x, np.float32(0), lax.add, (3, 1), (1, 1), "SAME"),
    "convolution": lambda x: lax.conv_general_dilated(x[None, None], jnp.ones((1, 1, 3, 1)), (1, 1), "SAME")[0, 0],
    "transpose": lambda x: x.T,
    "reshape": lambda x: x.reshape(4, 2, 8).transpose(1, 0, 2).reshape(8, 8),
    "reshape_narrow": lambda x: x.reshape(2, 32) + 1,
    "reshape_wide": lambda x: x.reshape(16, 4).sum(1).reshape(4, 4),
    "fft": lambda x: jnp.fft.fft(x, axis=0).real.astype(np.float32),
    "cholesky": lambda x: jnp.linalg.cholesky(x @ x.T + 1e4 * jnp.eye(8)),
}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", STILL)
def test_equal_extents(name, axis):
    want = np.asarray(STILL[name](jnp.asarray(X)))
    try:
        got = jax.jit(STILL[name])(on(X, *[None] * axis, "x"))
    except Exception as e:
        assert "automatic partitioning of" in str(e)
        return
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)
    for s in got.addressable_shards:
        np.testing.assert_allclose(s.data, want[s.index], rtol=1e-5, atol=1e-3)


def test_pad_of_one_device():
    x = jnp.arange(5.0)
    np.testing.assert_array_equal(jax.jit(lambda x: lax.pad(x, 0.0, [(0, -4, 1)]))(x), [0, 0, 1, 0, 2])
    np.testing.assert_array_equal(jax.jit(lambda x: lax.pad(x[:3], 0.0, [(0, -2, 1)]))(x), [0, 0, 1])
    np.testing.assert_array_equal(jax.jit(lambda x: lax.pad(x, 0.0, [(1, -1, 0)]))(x), [0, 0, 1, 2, 3])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float8_e5m2])
@pytest.mark.only_rondo("XLA:CPU rounds each part")
def test_partial_sums_round_once(dtype):
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=s), dtype) for s in ((32, 256), (256, 32)))
    wide = [np.asarray(x, np.float64) for x in (a, b)]
    for f, exact, args in (
            (lambda a, b: lax.dot(a, b, preferred_element_type=dtype), wide[0] @ wide[1], (on(a, None, "x"), on(b, "x"))),
            (lambda a: lax.reduce(a, dtype(0), lax.add, (1,)), wide[0].sum(1), (on(a, None, "x"),))):
        got = np.asarray(jax.jit(f)(*args), np.float64)
        best = np.asarray(jnp.asarray(exact, np.float32).astype(dtype), np.float64)     # rounded once
        fine = np.isfinite(best)
        assert np.abs(got - exact)[fine].max() <= 1.01 * np.abs(best - exact)[fine].max() + 1e-6
        assert (got != best)[fine].mean() < 0.02


SCALED = {"inf": lambda x: x * np.inf, "zero": lambda x: x / 0, "large": lambda x: x * 1e30 * 1e30, "small": lambda x: x / 1e-30 / 1e-30, "half": lambda x: x * 0.5,
          "all": lambda x: x / np.inf, "three": lambda x: x * -3, "seventh": lambda x: x / 7, "tenth": lambda x: x * 0.1}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16, np.float16])
@pytest.mark.parametrize("name", SCALED)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_a_sum_is_scaled_as_a_whole(name, dtype):
    a, b = np.array([[1, -1, 2, 3, -4, 1, 1, 1], [1, -1, 1, -1, 2, -2, 3, -3]]), np.ones((8, 2))      # parts cancel
    with jax.enable_x64(dtype == np.float64):
        f, a, b = lambda a, b: SCALED[name](a @ b), jnp.asarray(a, dtype), jnp.asarray(b, dtype)
        got, want = (np.asarray(x, np.float64) for x in (jax.jit(f)(on(a, None, "x"), on(b, "x")), jax.jit(f)(a, b)))
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_a_mean_of_whole_numbers_is_exact(dtype):
    for n in (2, 4):
        for rows in (3, 5, 6, 7, 100, 125):
            x = np.random.default_rng(rows).integers(-9, 9, rows * n) * 1000
            x[0] -= x.sum() - 7 * len(x)                 # parts cancel
            got = jax.jit(lambda x: (x.mean(), x - x.mean().astype(x.dtype), x.sum() * np.float32(1 / len(x))))(on(x.astype(dtype), "x", m=mesh(n, names=("x",))))
            assert got[0] == 7 and abs(got[2] - 7) < 1e-6
            np.testing.assert_array_equal(got[1], x - 7)


KEEPING = {
    "constant": lambda v, s: v * 0.3 + np.arange(v.shape[1], dtype=np.float32), "factor": lambda v, s: v * s, "sum": lambda v, s: v + s * s, "ones": lambda v, s: v * jnp.ones_like(v) * s, "arange": lambda v, s: v * jnp.arange(v.shape[0]).reshape(-1, 1),
    "exp": lambda v, s: v * jnp.exp(jnp.arange(v.shape[1]) * s), "triangle": lambda v, s: jnp.tril(v) * s, "outer": lambda v, s: v + jnp.outer(jnp.arange(v.shape[0]) * s, jnp.ones(v.shape[1])),
    "noise": lambda v, s: v + jax.random.normal(jax.random.key(0), v.shape) * s,
}


@pytest.mark.parametrize("what", KEEPING)
def test_leaves_of_one_shape_keep_their_shardings(what):
    """What a program makes of scalars for one is not shared with another that lies otherwise."""
    specs = [P("x"), P(), P(None, "x"), P("x", None), P("y", "x")]
    m = mesh(2, 2, names=("x", "y"))
    for n in (8, 16, 64):
        leaves = [jax.device_put(jnp.ones((n, n)) * k, jax.sharding.NamedSharding(m, s)) for k, s in enumerate(specs)]
        got = jax.jit(lambda l, s: [KEEPING[what](v, s) for v in l])(leaves, 0.5)
        for v, g in zip(leaves, got, strict=True):
            assert g.sharding.is_equivalent_to(v.sharding, 2), (n, g.sharding, v.sharding)


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_gradient_of_a_loop_in_a_loop(rows, dtype):
    def f(x):
        step = lambda w: lambda h, k: (lax.fori_loop(0, 2, lambda i, h: jnp.tanh(h @ w), h) + k, None)
        return jax.grad(lambda w: jnp.sum(lax.scan(step(w), jnp.sin(x), jnp.arange(3).astype(x.dtype))[0]))(jnp.eye(x.shape[1], dtype=x.dtype) * dtype(0.3))
    x = jnp.linspace(0, 1, rows * 2).reshape(rows, 2).astype(dtype)
    for x in (x, x[:, :1]):
        got = jax.jit(f)(on(x, "x", m=mesh(2, 2, names=("x", "y"))))
        np.testing.assert_allclose(got.astype(np.float32), jax.jit(f)(x).astype(np.float32), rtol=2e-2 if dtype == jnp.bfloat16 else 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, jnp.bfloat16, np.complex64, np.int32])
def test_product(dtype):
    x = np.array([1, 2, 3, 4, 5, 2, 1, 3])
    with jax.enable_x64(dtype == np.float64):
        got = jax.jit(jnp.prod)(on(x.astype(dtype), "x"))
    assert got.dtype == dtype
    np.testing.assert_array_equal(np.asarray(got).astype(np.complex128), 720)


def test_sum_of_an_explicit_sharding_rounds_once():
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(4, 4096)), jnp.bfloat16)
    m = jax.make_mesh((N,), ("x",), devices=jax.devices()[:N], axis_types=(AxisType.Explicit,))
    with jax.set_mesh(m):
        got = jax.jit(lambda x: jax.sharding.reshard(lax.dot(x, jnp.ones((4096, 1), jnp.bfloat16), out_sharding=P()), P()))(jax.device_put(x, P(None, "x")))
    exact = np.asarray(x, np.float64).sum(1)
    best = np.asarray(jnp.asarray(exact, np.float32).astype(jnp.bfloat16), np.float64)
    np.testing.assert_array_equal(np.asarray(got, np.float64)[:, 0], best)


@pytest.mark.parametrize("compute", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("stacked", [False, True])
def test_unreduced_gradients_are_summed_once(stacked, compute):
    """Explicit axes, gradients accumulated over microbatches as parts of sums: one sum behind the loop, in one exchange."""
    rng = np.random.default_rng(3)
    ws = tuple(np.eye(8, dtype=np.float32) + 0.1 * rng.standard_normal((8, 8), np.float32) for _ in range(3))
    xs = rng.standard_normal((4, 16, 8), np.float32)

    def model(ws, x):
        if stacked:
            return jnp.sum(lax.scan(lambda h, w: (jnp.dot(h.astype(compute), w.astype(compute)), None), x.astype(compute), ws)[0].astype(jnp.float32))
        for w in ws:
            x = jnp.dot(x.astype(compute), w.astype(compute))
        return jnp.sum(x.astype(jnp.float32))

    def step(ws, xs, place=lambda v, s: v):
        none = place(jax.tree.map(jnp.zeros_like, ws), P(unreduced={"x"}))
        sums, _ = lax.scan(lambda a, x: (jax.tree.map(jnp.add, a, jax.grad(model)(ws, x)), None), none, xs)
        return place(sums, P())

    want = jax.jit(step)(np.stack(ws) if stacked else ws, xs)
    m = jax.make_mesh((N,), ("x",), devices=jax.devices()[:N], axis_types=(AxisType.Explicit,))
    with jax.set_mesh(m):
        put = jax.device_put(np.stack(ws) if stacked else ws, P(reduced={"x"})), jax.device_put(xs, P(None, "x"))
        f = jax.jit(functools.partial(step, place=jax.sharding.reshard)).lower(*put).compile()
        got = f(*put)
    assert f.as_text().count("all-reduce(") == 1
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5 if compute == jnp.float32 else 5e-2, atol=1e-5 if compute == jnp.float32 else 0.5)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_old_random_numbers_are_replicated(dtype):
    lo, hi = dtype(0), dtype(1 if dtype == np.float32 else 1 << 30)
    f = jax.jit(lambda x: (lax.rng_uniform(lo, hi, (64,)), lax.fori_loop(0, 2, lambda i, a: a + lax.rng_uniform(lo, hi, (64,)), jnp.zeros(64, dtype)), x + 1))
    for r in f(on(np.arange(8.0), "x"))[:2]:
        for s in r.addressable_shards:
            np.testing.assert_array_equal(s.data, np.asarray(r))
        assert len(np.unique(np.asarray(r))) > 32


# --- constraints -----------------------------------------------------------------------------------------------------


def constrained(x, *spec, m=None):
    return lax.with_sharding_constraint(x, NamedSharding(m or mesh(), P(*spec)))


def laid_out(got, want, *spec, m=None):
    assert got.sharding.is_equivalent_to(NamedSharding(m or mesh(), P(*spec)), got.ndim), got.sharding
    np.testing.assert_allclose(got, want, rtol=1e-6)
    for s in got.addressable_shards:
        np.testing.assert_allclose(s.data, want[s.index], rtol=1e-6)
    shape = NamedSharding(m or mesh(), P(*spec)).shard_shape(got.shape)
    assert {s.data.shape for s in got.addressable_shards} == {shape}


@pytest.mark.parametrize("spec", [("x",), (None, "x"), ()])
def test_constraint_alone(spec):
    laid_out(jax.jit(lambda x: constrained(x * 2, *spec))(X), X * 2, *spec)
    laid_out(jax.jit(lambda x: constrained(x, *spec) + 1)(X), X + 1, *spec)


def test_constraint_of_two_axes():
    m = mesh(2, 2, names=("x", "y"))
    laid_out(jax.jit(lambda x: constrained(x * 2, "y", "x", m=m))(X), X * 2, "y", "x", m=m)
    laid_out(jax.jit(lambda x: constrained(x * 2, ("y", "x"), m=m))(X), X * 2, ("y", "x"), m=m)


def test_constraint_changes_a_sharding():
    laid_out(jax.jit(lambda x: constrained(x * 2, None, "x"))(on(X, "x")), X * 2, None, "x")
    laid_out(jax.jit(lambda x: constrained(x * 2))(on(X, "x")), X * 2)


def test_constraint_leaves_open_what_it_does_not_name():
    m = mesh(2, 2, names=("x", "y"))
    f = jax.jit(lambda x: constrained(x * 2, P.UNCONSTRAINED, "y", m=m))
    laid_out(f(on(X, "x", m=m)), X * 2, "x", "y", m=m)
    laid_out(f(on(X, "y", m=m)), X * 2, None, "y", m=m)


@pytest.mark.parametrize("name", STILL)
def test_constraint_refuses_nothing(name):
    """Whatever follows one runs: a sharding that only a constraint asks for is given up before an operation is refused."""
    want = np.asarray(STILL[name](jnp.asarray(X)))
    np.testing.assert_allclose(jax.jit(lambda x: STILL[name](constrained(x, "x")))(X), want, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(jax.jit(lambda x, y: STILL[name](constrained(x, "x") + y))(X, on(X * 0)), want, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(jax.jit(lambda x: lax.scan(lambda c, _: (STILL[name](c), None), constrained(x, None, "x"), None, 1)[0] if want.shape == X.shape else STILL[name](x))(X),
                               want, rtol=1e-5, atol=1e-3)


def test_constraint_between_sharded_values():
    f = lambda a, b: (constrained(a @ b, "x") * 2).sum(0)
    np.testing.assert_allclose(jax.jit(f)(on(X, None, "x"), on(X, "x")), (X @ X * 2).sum(0), rtol=1e-5)
    g = lambda a, b: jnp.where(b > 0, constrained(a, None, "x"), b)
    np.testing.assert_allclose(jax.jit(g)(on(X, "x"), on(X, "x")), X, rtol=1e-5)


# --- places in cut dimensions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32])
@pytest.mark.parametrize("spec", [("x",), (None, "x"), ("y", "x"), (("x", "y"),)])
def test_places_in_cut_dimensions(spec, dtype):
    m = mesh(2, 2, names=("x", "y"))
    i = np.array([[0, 7], [3, 3], [7, 0], [-1, 2], [100, 1], [4, 120]]).astype(dtype)
    pick = lambda mode: lambda x, i: (x.at[i[:, 0]].get(mode=mode), x.at[i[:, 0], i[:, 1]].get(mode=mode), x.at[:, i[:, 1]].get(mode=mode))
    put = lambda x, i: (x.at[i[:, 0]].add(x[:6], mode="drop"), x.at[i[:, 0], i[:, 1]].max(9), x.at[:, i[:, 1]].set(0), x.at[i[:, 0]].mul(2))
    for f in (pick("clip"), pick("fill"), put):
        want = jax.jit(f)(X, i)
        for g, w in zip(jax.jit(lambda x, i: f(x, i))(on(X, *spec, m=m), i), want):
            np.testing.assert_allclose(g, w, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int32, np.bool_])
@pytest.mark.parametrize("specs", [(("x",), ("x",)), (("y",), ("y", "x")), ((("x", "y"),), (("x", "y"),))])
def test_updates_on_several_devices(specs, dtype):
    """Each device takes its own into the extremes, or products: what is there is taken in once."""
    m = mesh(2, 2, names=("x", "y"))
    r = np.random.default_rng(0)
    i, u, x = r.integers(0, 9, 40).astype(np.int32), (r.integers(-1, 3, (40, 6))).astype(dtype), np.full((8, 6), 2).astype(dtype)
    put = lambda i, u, x: (x.at[i].max(u), x.at[i].min(u), jax.ops.segment_max(u, i, 9), *(() if dtype == np.bool_ else (x.at[i].mul(u), jax.ops.segment_prod(u, i, 8))))
    a, b = specs
    for g, w in zip(jax.jit(put)(on(i, *a, m=m), on(u, *b, m=m), x), jax.jit(put)(i, u, x), strict=True):
        all_shards_right(g, w)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, jnp.bfloat16, np.complex64])
def test_gather_of_any_type_from_a_cut_dimension(dtype):
    x = (X % 3).astype(dtype)
    np.testing.assert_array_equal(jax.jit(lambda x: x[jnp.array([5, 0, 7, 5])])(on(x, "x")), x[[5, 0, 7, 5]])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "float32"])
def test_counting(dtype):
    """What a type cannot hold is rounded, or cut, as where one device counts."""
    n = 8192
    got = jax.jit(lambda x: x + lax.iota(dtype, n))(on(jnp.zeros(n, dtype), "x"))
    all_shards_right(got, jnp.arange(n, dtype=np.int32).astype(dtype))


# --- borders ---------------------------------------------------------------------------------------------------------


def test_nothing_is_sharded_as_asked():
    x = on(np.zeros((0, 8), np.float32), "x")
    for f, shape in ((lambda x: x * 2, (0, 8)), (lambda x: x.reshape(8, 0), (8, 0)), (lambda x: x.T @ x, (8, 8)), (lambda x: jnp.concatenate([x, X]), (8, 8))):
        got = jax.jit(f, out_shardings=NamedSharding(mesh(), P("x")))(x)
        assert got.shape == shape and got.sharding.spec == P("x")


def test_a_looked_at_sharding_stops_nothing():
    f = jax.jit(lambda x: (jax.debug.inspect_array_sharding(x * 2, callback=lambda s: None), x + 1)[1])
    np.testing.assert_array_equal(f(on(X, "x")), X + 1)
    jax.effects_barrier()


@pytest.mark.parametrize("last", [16, 32, 64, 128])
@pytest.mark.parametrize("to", [(), (None, "x"), (None, None, None, "x"), ("x",)], ids=str)
@pytest.mark.parametrize("of", [(None, "x"), (None, None, None, "x"), ("x",)], ids=str)
def test_large_arrays_in_short_rows(of, to, last):
    """Each device's part is larger than a cache, and in pieces of some bytes or lines in others' parts, or theirs in it."""
    x = np.arange(1 << 22, dtype=np.float32).reshape(16, 16, -1, last)
    all_shards_right(jax.jit(lambda v: v, out_shardings=NamedSharding(mesh(), P(*to)))(on(x, *of)), x)


@pytest.mark.parametrize("last", [16, 48, 64])
@pytest.mark.parametrize("kind", [np.float32, np.float16, np.uint8])
def test_large_arrays_whose_lines_come_from_several_devices(kind, last):
    """Rows of some bytes of each device, which make up the lines of a part that is larger than a cache."""
    rows = (32 << 20) // np.dtype(kind).itemsize // (16 * 32 * last)
    x = (np.arange(16 * rows * 32 * last) % 60013).astype(kind).reshape(16, rows, 32, last)
    all_shards_right(jax.jit(lambda v: v, out_shardings=NamedSharding(mesh(), P(None, None, "x")))(on(x, None, None, None, "x")), x)
