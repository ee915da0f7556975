"""Single-device programs, compared with numpy, SciPy or JAX's own cpu."""
import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax


def host(f, *args):
    """f on JAX's cpu."""
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu):
        return jax.tree.map(np.asarray, jax.jit(f)(*jax.device_put(args, cpu)))


def same(f, *args, rtol=2e-6, atol=1e-6):
    got, want = jax.tree.leaves(jax.jit(f)(*args)), jax.tree.leaves(host(f, *args))
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert g.dtype == w.dtype and g.shape == w.shape
        np.testing.assert_allclose(np.asarray(g).astype(np.complex128), w.astype(np.complex128), rtol=rtol, atol=atol)


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


# --- random numbers: the same bits ------------------------------------------


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_bits(impl):
    def f():
        key = jax.random.key(7, impl=impl)
        a, b = jax.random.split(key)
        return jax.random.bits(a, (129,)), jax.random.randint(b, (33,), -5, 1000), jax.random.permutation(a, 50)
    same(f, rtol=0, atol=0)


def test_random_distributions():
    def f():
        k = jax.random.key(1)
        return (jax.random.uniform(k, (100,)), jax.random.normal(k, (100,)), jax.random.bernoulli(k, 0.3, (100,)),
                jax.random.categorical(k, jnp.arange(5.0), shape=(40,)), jax.random.gumbel(k, (50,)))
    same(f, rtol=2e-5, atol=2e-6)


# --- linear algebra ----------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_linalg(dtype, batch):
    a = normal(*batch, 6, 6).astype(dtype)
    if dtype == np.complex64:
        a = a + 1j * normal(*batch, 6, 6, seed=1)
    h = a @ np.conj(np.swapaxes(a, -1, -2)) + 6 * np.eye(6, dtype=dtype)
    close = functools.partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-4)
    t = lambda x: np.conj(np.swapaxes(x, -1, -2))
    l = np.asarray(jnp.linalg.cholesky(h))
    close(l @ t(l), h)
    q, r = map(np.asarray, jnp.linalg.qr(a))
    close(q @ r, a)
    u, s, vt = map(np.asarray, jnp.linalg.svd(a))
    close((u * s[..., None, :]) @ vt, a)
    w, v = map(np.asarray, jnp.linalg.eigh(h))
    close((v * w[..., None, :]) @ t(v), h)
    close(np.asarray(jnp.linalg.inv(h)) @ h, np.broadcast_to(np.eye(6), h.shape))
    close(jnp.linalg.solve(h, a), np.linalg.solve(h, a))
    close(jnp.linalg.det(h), np.linalg.det(h))
    w, v = map(np.asarray, jnp.linalg.eig(a))
    close(a @ v, v * w[..., None, :])


def test_linalg_gradient():
    a = normal(4, 4)
    h = a @ a.T + 4 * np.eye(4, dtype=np.float32)
    same(jax.grad(lambda h: jnp.linalg.slogdet(h)[1] + jnp.linalg.eigh(h)[0][0]), h, rtol=1e-4, atol=1e-4)


SQUARE = [(0, 0), (2, 0, 0), (0, 3, 3)]
MATRIX = [*SQUARE, (3, 0), (0, 3), (2, 3, 0)]
EMPTY = {
    "qr": (jnp.linalg.qr, MATRIX), "qr complete": (lambda a: jnp.linalg.qr(a, mode="complete"), MATRIX),
    "qr pivoting": (lambda a: jax.scipy.linalg.qr(a, pivoting=True), MATRIX), "svd": (jnp.linalg.svd, MATRIX),
    "singular values": (lambda a: jnp.linalg.svd(a, compute_uv=False), MATRIX),
    "lu": (jax.scipy.linalg.lu_factor, MATRIX), "eig": (jnp.linalg.eig, SQUARE), "eigvals": (jnp.linalg.eigvals, SQUARE),
    "eigh": (jnp.linalg.eigh, SQUARE), "det": (lambda a: (jnp.linalg.det(a), jnp.linalg.inv(a)), SQUARE),
    "cholesky": (jnp.linalg.cholesky, SQUARE), "solve": (lambda a: jnp.linalg.solve(a, jnp.zeros((*a.shape[:-1], 2))), SQUARE),
    "schur": (jax.scipy.linalg.schur, SQUARE), "hessenberg": (jax.scipy.linalg.hessenberg, SQUARE),
    "no right sides": (lambda a: jnp.linalg.solve(jnp.eye(3), jnp.zeros((3, 0))), [(1,)]),
}


@pytest.mark.parametrize("name", EMPTY)
def test_linalg_empty(name, capfd):
    f, shapes = EMPTY[name]
    for shape in shapes:
        same(f, np.zeros(shape, np.float32))
    text = capfd.readouterr()
    assert "On entry" not in text.out + text.err          # what LAPACK says of sizes that it does not take


@pytest.mark.parametrize("large", [False, True])          # on the caller's thread, on the device's
def test_handler_throws(large):
    jnp.linalg.eigvals(jnp.eye(2))                        # its handler is taken in

    def f(a, x):
        n = a.shape[-1]
        s = jax.ShapeDtypeStruct
        call = jax.ffi.ffi_call("lapack_sgeev_ffi", (s((n,), np.float32), s((n,), np.float32), s((n, n), np.complex64), s((n, n), np.complex64), s((), np.int32)))
        return call(a, compute_left=np.uint8(ord("N")), compute_right=np.uint8(ord("N")))[-1], jnp.sin(x) @ x

    x = np.ones((600, 600) if large else (2, 2), np.float32)
    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match="XLA FFI call failed: std::bad_alloc"):
            jax.block_until_ready(jax.jit(f)(np.zeros((0, 0), np.float32), x))
        assert jax.jit(lambda x: x + 1)(np.float32(1)) == 2


# --- fft, sort, conv ----------------------------------------------------------


@pytest.mark.parametrize("shape", [(8,), (3, 12), (2, 5, 7)])
def test_fft(shape):
    x = normal(*shape)
    for name in ("fft", "ifft", "rfft", "fftn"):
        np.testing.assert_allclose(getattr(jnp.fft, name)(x), getattr(np.fft, name)(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jnp.fft.irfft(jnp.fft.rfft(x), n=shape[-1]), x, rtol=1e-4, atol=1e-5)


def test_sort():
    x = np.round(normal(7, 50), 1)
    x[0, :3] = np.nan, -0.0, 0.0
    same(lambda x: (jnp.sort(x), jnp.argsort(x, stable=True), jnp.sort(x, descending=True), jnp.sort(x, axis=0)), x)
    same(lambda x: lax.top_k(x, 5), normal(4, 30))
    same(lambda x: lax.sort((x, jnp.arange(50)), num_keys=1), np.round(normal(50)))


def test_top_k_approximate():
    x = normal(100)
    v, _ = jax.jit(lambda x: lax.approx_max_k(x, 4))(x)
    np.testing.assert_allclose(np.sort(v), np.sort(x)[-4:])


@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(groups):
    same(lambda x, w: lax.conv_general_dilated(x, w, (2, 1), "SAME", feature_group_count=groups,
                                               dimension_numbers=("NHWC", "HWIO", "NHWC")),
         normal(2, 9, 8, 4), normal(3, 3, 4 // groups, 6, seed=1), rtol=1e-4, atol=1e-5)


# --- control flow, derivatives -------------------------------------------------


def test_scan_and_gradient():
    def f(w, xs):
        c, ys = lax.scan(lambda c, x: (jnp.tanh(c @ w + x), c.sum()), jnp.zeros(5), xs)
        return c.sum() + (ys ** 2).sum()
    same(jax.value_and_grad(f), normal(5, 5), normal(12, 5, seed=1), rtol=1e-4, atol=1e-5)


def test_while_cond_switch():
    def f(n, x):
        y = lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 1.5), (0, x))[1]
        z = lax.cond(n > 3, lambda y: y + 1, lambda y: y - 1, y)
        return lax.switch(n % 3, [lambda z: z, lambda z: -z, lambda z: z * z], z), lax.map(jnp.sin, x)
    for n in (0, 1, 5, 8):
        same(f, np.int32(n), normal(4))


def test_checkpoint():
    def f(x):
        for _ in range(3):
            x = jax.checkpoint(lambda x: jnp.sin(x @ x))(x)
        return x.sum()
    same(jax.grad(f), normal(8, 8), rtol=1e-4, atol=1e-5)


def test_custom_derivatives():
    @jax.custom_vjp
    def clip(x):
        return x
    clip.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1, 1),))
    same(jax.grad(lambda x: (clip(x) ** 3).sum()), normal(5))


def test_gather_scatter():
    def f(x, i):
        return (x[i], x.at[i].add(1.0), x.at[i, 2].set(5.0), jnp.take(x, i, axis=1, mode="fill"), x[::-1, 1::2],
                jax.ops.segment_sum(x, i % 3, 3))
    same(f, normal(6, 6), np.array([0, 5, 2, 2, 9, -1], np.int32))


def test_integers():
    x = np.array([7, -7, 0, 2**31 - 1, -2**31], np.int32)
    y = np.array([2, -2, 0, -1, -1], np.int32)
    same(lambda x, y: (lax.div(x, y), lax.rem(x, y), x // 3, x << 3, lax.shift_right_logical(x, 5), x ** 2,
                       lax.population_count(x), lax.clz(x), x.astype(jnp.int8)), x, y)


def test_wide(x64):
    x = normal(20, dtype=np.float64)
    same(lambda x: (jnp.exp(x), jnp.cumsum(x), jnp.sort(x), x.astype(jnp.int64) << 33, (x + 1j) ** 2), x, rtol=1e-13, atol=1e-13)


def test_bf16_product():
    a, b = jnp.asarray(normal(33, 65), jnp.bfloat16), jnp.asarray(normal(65, 17, seed=1), jnp.bfloat16)
    got = jax.jit(lambda a, b: jnp.dot(a, b, preferred_element_type=jnp.float32))(a, b)
    want = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_denormals_are_flushed():
    assert float(jax.jit(lambda x: x * 0.5)(np.float32(2.0 ** -126))) == 0.0


def test_many_small_programs():
    for n in range(60):
        x = np.arange(n + 1, dtype=np.float32)
        np.testing.assert_array_equal(jnp.asarray(x) * 2 + n, x * 2 + n)


def test_program_without_outputs_or_inputs():
    assert jax.jit(lambda x: ())(1.0) == ()
    assert float(jax.jit(lambda: jnp.float32(4.0))()) == 4.0
    a, b, c = jax.jit(lambda x: (x, x, 1.0))(jnp.ones(3))
    np.testing.assert_array_equal(np.asarray(a) + np.asarray(b), [2, 2, 2])
    assert float(c) == 1.0


def test_llama_step():
    def f(w, x):
        def layer(x, w):
            y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
            q, k, v = jnp.split(y @ w["qkv"], 3, -1)
            p = jax.nn.softmax(jnp.where(jnp.tri(16, dtype=bool), q @ k.swapaxes(-1, -2) * 0.25, -1e30))
            x = x + p @ v
            return x + jax.nn.silu(x @ w["up"]) @ w["up"].T, None
        x, _ = lax.scan(jax.checkpoint(layer), x, w)
        return (x ** 2).mean()
    w = dict(qkv=normal(3, 16, 48) / 4, up=normal(3, 16, 32, seed=1) / 4)
    same(jax.value_and_grad(f), w, normal(2, 16, 16, seed=2), rtol=1e-3, atol=1e-4)


def test_pallas():
    """Kernels of Pallas run as they are: by JAX's interpreter, compiled."""
    from jax.experimental import pallas as pl

    def product(a, b, out):
        @pl.when(pl.program_id(2) == 0)
        def _():
            out[...] = jnp.zeros_like(out)
        out[...] += a[...] @ b[...]

    def call(a, b):
        return pl.pallas_call(product, grid=(3, 2, 4), in_specs=[pl.BlockSpec((16, 8), lambda i, j, k: (i, k)), pl.BlockSpec((8, 32), lambda i, j, k: (k, j))],
                              out_specs=pl.BlockSpec((16, 32), lambda i, j, k: (i, j)), out_shape=jax.ShapeDtypeStruct((48, 64), jnp.float32))(a, b)

    a, b = normal(48, 32), normal(32, 64)
    np.testing.assert_allclose(jax.jit(call)(a, b), a @ b, rtol=1e-5, atol=1e-5)

    def twice(x, out):
        out[...] = 2 * x[...] ** 2

    def doubled(x):
        return pl.pallas_call(twice, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
    np.testing.assert_allclose(jax.jit(jax.vmap(doubled))(a), 2 * a**2, rtol=1e-6)
    with pytest.raises(ValueError, match="interpret"):      # elsewhere JAX says what it says
        jax.jit(doubled)(jax.device_put(a, jax.devices("cpu")[0]))


def test_sort_in_a_branch():
    """Its comparator uses constants from outside the branch."""
    x = np.array([3, 1, 2, 1, 0], np.float32)
    rank = jax.jit(lambda x: jax.scipy.stats.rankdata(x, method="dense"))
    np.testing.assert_array_equal(rank(x), [4, 2, 3, 2, 1])


LONG_SUMS = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax
rng = np.random.default_rng(0)
def check(name, f, *a, bound=1e-6):
    with jax.enable_x64(True):
        want = np.asarray(jax.jit(f)(*[jax.device_put(x.astype(np.float64), jax.devices("cpu")[0]) for x in a]))
    got = np.asarray(jax.jit(f)(*a)).astype(np.float64)
    error = np.max(np.abs(got - want)) / np.max(np.abs(want))
    if not error < bound:
        print(name, error)
u = lambda *s: rng.random(s, np.float32)
wide, high, cube = u(70, 1 << 17), u(1 << 15, 70), u(257, 33, 130)
check("rows", lambda x: x.sum(1), wide)
check("columns", lambda x: x.sum(0), high)
check("first and last", lambda x: x.sum((0, 2)), cube)
check("all", lambda x: jnp.stack([x.sum(), x.mean(), x.var()]), wide)
check("mean and variance of rows", lambda x: jnp.stack([x.mean(1), x.var(1)]), wide)
check("norm", lambda x: jnp.linalg.norm(x, axis=0), high)
check("of squares", lambda x: (x * x + 1).sum(0), high)
check("logsumexp", lambda x: jax.nn.logsumexp(x, axis=1), wide)
check("softmax", lambda x: jax.nn.softmax(x, axis=1), wide)
check("layer norm", lambda x: (x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1, keepdims=True)), wide, bound=3e-6)
check("normal", lambda x: x.sum(0), rng.normal(size=(1 << 15, 70)).astype(np.float32) * 100, bound=2e-6)
check("cumsum", lambda x: jnp.cumsum(x, 0), high)
check("product", lambda x: x.T @ x, high)
check("vdot", jnp.vdot, wide[:16].ravel(), wide[16:32].ravel())
print("end")
"""


@pytest.mark.parametrize("env", [{}, {"RONDO_ISA": "avx2"}, {"RONDO_TIER": "ref"}], ids=lambda e: "-".join(e.values()) or "here")
def test_long_sums(env):
    run = subprocess.run([sys.executable, "-c", LONG_SUMS], env={**os.environ, **env}, capture_output=True, text=True, timeout=600)
    assert run.stdout == "end\n", run.stdout + run.stderr


# --- rows that are combined with those they go to, windows: bit for bit ------------------------------------


def special(*shape, dtype="float32", seed=0):
    """Numbers, some of them NaN, infinite, -0, 0 or subnormal (as float32, as float16)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    for v in (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 5e-7, -5e-7):
        x[rng.random(shape) < 0.03] = v
    x[rng.random(shape) < 0.2] = 0
    return x.astype(np.float32).astype(dtype)


def bits(f, *args):
    for g, w in zip(jax.tree.leaves(jax.jit(f)(*args)), jax.tree.leaves(host(f, *args))):
        g, nan = np.asarray(g), np.isnan(w.astype(np.float64))
        assert g.dtype == w.dtype
        np.testing.assert_array_equal(np.isnan(g.astype(np.float64)), nan)
        np.testing.assert_array_equal(*(np.where(nan, 0, a.view(f"u{a.itemsize}")) for a in (g, w)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int8", "uint16", "int32", "int64", "bool"])
@pytest.mark.parametrize("shape, axis", [((140001,), 0), ((3, 131075), 1), ((131073, 2), 0)])
def test_sort_long_rows(shape, axis, dtype, x64):
    """Elements that compare alike keep their order, also zeros of both signs and NaN of any bits; a row takes as much memory again."""
    rng = np.random.default_rng(len(dtype))
    x = np.asarray(rng.normal(size=shape) * 30).astype(jnp.dtype(dtype))
    if jnp.issubdtype(dtype, jnp.floating):
        bits = x.view(f"u{x.itemsize}")
        bits |= np.where(rng.random(shape) < 0.1, np.array(np.nan, x.dtype).view(bits.dtype), 0).astype(bits.dtype)
        bits &= np.where(rng.random(shape) < 0.1, 1 << 8 * x.itemsize - 1, -1 & (1 << 8 * x.itemsize) - 1).astype(bits.dtype)
    place = np.broadcast_to(np.arange(shape[axis], dtype=np.int32).reshape([-1 if d == axis else 1 for d in range(len(shape))]), shape)
    for f in (lambda x, _: jnp.sort(x, axis), lambda x, _: jnp.sort(x, axis, descending=True), lambda x, _: jnp.argsort(x, axis), lambda x, p: lax.sort((p % 7, x, p), dimension=axis)):
        got, want = (jax.tree.leaves(jax.jit(f)(jax.device_put(x, d), jax.device_put(place, d))) for d in (jax.devices()[0], jax.devices("cpu")[0]))
        for g, w in zip(got, want, strict=True):
            g, w = np.asarray(g), np.asarray(w)
            bad = g.view(f"u{g.itemsize}") != w.view(f"u{g.itemsize}")
            bad = np.argwhere(bad if dtype != "bfloat16" else bad & ~((g != g) & (w != w)))      # XLA:CPU sorts them as f32, which takes a NaN's bits
            assert not bad.size, (bad[:3], g[tuple(bad[0])], w[tuple(bad[0])])
    if jax.devices()[0].platform == "rondo":
        c = jax.jit(lambda x: jnp.sort(x, axis)).lower(x).compile().memory_analysis()
        assert c.temp_size_in_bytes <= (1 if axis == len(shape) - 1 else 2) * x.nbytes / (x.size / x.shape[axis]) + 2 ** 19


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 8, 12, 16, 20, 32, 37, 64, 100, 300])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "int8"])
def test_rows_that_are_combined(dtype, width):
    ids = np.random.default_rng(3).integers(-2, 32, size=1000).astype(np.int32)
    x = special(1000, width, dtype=jnp.dtype(dtype)) if "float" in dtype else np.random.default_rng(1).integers(-100, 100, size=(1000, width)).astype(dtype)
    bits(lambda x, i: [getattr(x[:30].at[i], name)(x) for name in ("max", "min", "add", "multiply")] + [x[:30].at[i].set(x).at[i].set(x)], x, ids)


@pytest.mark.many
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int8", "float64", "complex64"])
@pytest.mark.parametrize("shape, places", [((1000,), 50), ((1000,), 1000), ((64, 3), 64), ((40, 70), 40), ((5, 30), 5), ((1,), 1)])
def test_elements_that_are_changed(dtype, shape, places, x64):
    """As often as they are named, one after the other, in whatever rows, columns or elements."""
    rng = np.random.default_rng(places)
    x = (rng.normal(size=shape) * 8).astype(jnp.dtype(dtype))
    i = rng.integers(-2, places + 2, size=700).astype(np.int32)
    change = (lambda t: t * 3 + 1) if "int" in dtype else (lambda t: t * -2)
    few = i[:60]                        # of floats many times -2 is infinite, or not

    def f(x, i):
        ways = [x.at[i].apply(change), x.at[i[:20].reshape(4, 5)].apply(change)]
        if x.ndim > 1:
            ways += [x.at[:, i % x.shape[1]].apply(change), x.at[i, (i * 7) % x.shape[1]].apply(change), x.at[i, :2].apply(change)]
        return ways
    for g, w in zip(jax.jit(f)(x, few), host(f, x, few)):
        np.testing.assert_array_equal(np.asarray(g), np.asarray(w))


@pytest.mark.many
@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 64, 100, 1000, 40001])
def test_few_rows_or_columns_change_places(n, dtype, x64):
    """Of 2 to 9; also some of those that there are, and of several images."""
    rng = np.random.default_rng(n)
    x = [rng.integers(-100, 100, size=(2, k + 1, n)).astype(jnp.dtype(dtype)) for k in range(2, 10)]

    def turned(np):
        return lambda *x: [y for a in x for y in (a[0].T, a[:, :-1].swapaxes(1, 2), a[1, 1:].T[::2], a.swapaxes(1, 2), a[:, ::-1].swapaxes(1, 2),
                                                  a.transpose(1, 2, 0), np.concatenate([a[0].T, a[1].T], 1))]
    for g, w in zip(jax.jit(turned(jnp))(*x), turned(np)(*x)):
        np.testing.assert_array_equal(np.asarray(g), w)


SMALL = ["bij,bjk->bik", "bij,bjkl->bikl", "bjil,bjk->bilk", "bij,bkj->bik", "bji,bjk->bki", "bij,bj->bi", "bi,bi->b", "ijb,jkb->ikb", "abij,abjk->abik", "bijk,bjkl->bil", "bij,bkji->bk", "bij,jk->bik", "bi,bj->bij"]


@pytest.mark.many
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32", "uint8", "complex64"])
@pytest.mark.parametrize("batch", [31, 32, 100, 1000])
def test_products_of_many_small_matrices(dtype, batch, x64):
    """Of integers that all types hold, however they are written."""
    rng = np.random.default_rng(batch)
    size = [dict(zip("abijkl", e)) for e in ((2, batch, 3, 3, 3, 3), (1, batch, 2, 5, 1, 4), (3, batch, 4, 16, 2, 2), (2, batch, 1, 17, 3, 8))]
    cases = [(how, *(rng.integers(0, 4, size=[n[c] for c in side]).astype(jnp.dtype(dtype)) for side in how.split("->")[0].split(","))) for how in SMALL for n in size]

    def f(pairs):
        return [jnp.einsum(how, *p) for (how, _, _), p in zip(cases, pairs)]
    for (how, a, b), got in zip(cases, jax.jit(f)([c[1:] for c in cases])):
        assert got.dtype == jnp.dtype(dtype)
        want = np.einsum(how, a.astype(np.complex128), b.astype(np.complex128))
        np.testing.assert_array_equal(np.asarray(got).astype(np.complex128), want.real % 256 if dtype == "uint8" else want, err_msg=how)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_of_many_small_matrices_round_once(dtype):
    a, b = (np.random.default_rng(0).normal(size=shape).astype(jnp.dtype(dtype)) for shape in ((100, 3, 16), (100, 16, 2)))
    got = np.asarray(jax.jit(jnp.matmul)(a, b)).astype(np.float64)
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert np.max(np.abs(got - want) / np.maximum(np.abs(want), 1)) <= 0.51 * float(jnp.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape, window, stride", [((2, 9, 11, 5), (1, 2, 2, 1), (1, 2, 2, 1)), ((2, 13, 12, 64), (1, 3, 3, 1), (1, 2, 2, 1)), ((2, 3, 14, 14), (1, 1, 3, 3), (1, 1, 2, 2)),
                                                   ((2, 3, 28, 28), (1, 1, 2, 2), (1, 1, 2, 2)), ((3, 500), (1, 3), (1, 1)), ((3, 4000), (1, 2), (1, 2)), ((2, 100, 32), (1, 3, 1), (1, 1, 1))])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_largest_of_windows(shape, window, stride, dtype, padding):
    def f(x):
        return [lax.reduce_window(x, jnp.array(init, x.dtype), op, window, stride, padding) for init, op in ((-jnp.inf, lax.max), (jnp.inf, lax.min))]

    x = special(*shape, dtype=jnp.dtype(dtype))
    nan = np.isnan(x.astype(np.float32))
    plain = np.where(nan | (np.abs(x.astype(np.float32)) < 1e-30), 0, x).astype(x.dtype)              # XLA:CPU takes the first of 0 and -0
    bits(f, plain)
    some = host(lambda n: lax.reduce_window(n, 0.0, lax.add, window, stride, padding), nan.astype(np.float32)) > 0       # XLA:CPU loses some
    for got in jax.jit(f)(x):
        np.testing.assert_array_equal(np.isnan(np.asarray(got).astype(np.float32)), some)
    top, least = (np.asarray(v) for v in jax.jit(f)(np.where(np.arange(x.size).reshape(x.shape) % 3, 0.0, -0.0).astype(x.dtype)))
    assert not np.signbit(top.astype(np.float32)).all() and np.signbit(least.astype(np.float32)).any()
