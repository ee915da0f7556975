"""What the compiler simplifies, on programs where the simplification next to the right one would show."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

X = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
I = np.arange(-4, 12, dtype=np.int32)


@pytest.mark.parametrize("start, got", [(0, 0), (4, 4), (5, 5), (7, 5), (100, 5)])
def test_known_start_of_a_slice(start, got):
    f = jax.jit(lambda x: lax.dynamic_slice(x, (jnp.int32(start), np.int32(2)), (1, 3), allow_negative_indices=False))
    np.testing.assert_array_equal(f(X), X[got:got + 1, 2:5])
    g = jax.jit(lambda x: lax.dynamic_slice(x, (np.int32(start), np.int32(7)), (3, 3), allow_negative_indices=False))
    np.testing.assert_array_equal(g(X), X[min(max(start, 0), 3):][:3, 5:8])


def test_running_sums_both_ways():
    f = jax.jit(lambda x: (lax.cumsum(x, 1), lax.cumsum(x, 1, reverse=True), lax.cummax(x, 1), lax.cummin(x, 1, reverse=True)))
    back = lambda g: g(X[:, ::-1])[:, ::-1]
    for g, w in zip(f(X), (np.cumsum(X, 1), back(lambda x: np.cumsum(x, 1)), np.maximum.accumulate(X, 1), back(lambda x: np.minimum.accumulate(x, 1)))):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)
    window = lambda x, low, high: lax.reduce_window(x, np.float32(0), lax.add, (1, 8), (1, 1), ((0, 0), (low, high)))
    got = jax.jit(lambda x: (window(x, 7, 0), window(x, 0, 7)))(X)
    np.testing.assert_allclose(got[0], np.cumsum(X, 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], back(lambda x: np.cumsum(x, 1)), rtol=1e-5, atol=1e-6)


def test_truth_that_is_known():
    yes, no = np.ones(X.shape, bool), np.zeros(X.shape, bool)
    f = jax.jit(lambda x: (lax.bitwise_and(x > 0, yes), lax.bitwise_and(no, x > 0), lax.bitwise_or(x > 0, no), lax.bitwise_or(yes, x > 0), ~~(x > 0)))
    for g, w in zip(f(X), (X > 0, X > 9, X > 0, X > -9, X > 0)):
        np.testing.assert_array_equal(g, np.broadcast_to(w, X.shape))


def test_neutral_numbers():
    f = jax.jit(lambda x: (x - 0, x - 1, x + 0, 1 - x, 0 + x, x * 1, x * 0, x // 1, x ^ 0, x | 1, x << 0, x << 1, 1 * x, 0 - x))
    for g, w in zip(f(I), (I, I - 1, I, 1 - I, I, I, I * 0, I, I, I | 1, I, I << 1, I, -I)):
        np.testing.assert_array_equal(g, w)
    f = jax.jit(lambda x: (x * 1, x / 1, 1 / x, x - 0, 0 - x, x * -1))
    for g, w in zip(f(X), (X, X, 1 / X, X, -X, -X)):
        np.testing.assert_allclose(g, w, rtol=1e-6)


@pytest.mark.parametrize("spec", ["ib,jb->bij", "ib,jb->bji", "bi,jb->ijb", "i,j->ij", "i,j->ji", "abi,jab->abij", "bai,jab->ijab"])
def test_products_without_a_contraction(spec):
    a, b = spec.split("->")[0].split(",")
    size = dict(a=2, b=3, i=4, j=5)
    x, y = (np.random.default_rng(len(s)).normal(size=[size[c] for c in s]).astype(np.float32) for s in (a, b))
    np.testing.assert_allclose(jax.jit(lambda x, y: jnp.einsum(spec, x, y))(x, y), np.einsum(spec, x, y), rtol=1e-5)


def test_almost_equal_operations():
    """Pairs that differ in one attribute, or in the result's type alone."""
    pairs = [(lambda x: x[0:7:2], lambda x: x[0:4]), (lambda x: x[1:5], lambda x: x[0:4]), (lambda x: lax.cumsum(x, 0), lambda x: lax.cumsum(x, 0, reverse=True)),
             (lambda x: lax.cumsum(x, 0), lambda x: lax.cummax(x, 0)), (lambda x: lax.rev(x, (0,)), lambda x: x), (lambda x: x.astype(np.int8), lambda x: x.astype(np.int16)),
             (lambda x: lax.pad(x, np.int32(0), [(1, 2, 0)]), lambda x: lax.pad(x, np.int32(0), [(2, 1, 0)])),
             (lambda x: lax.pad(x, np.int32(0), [(0, 15, 0)]), lambda x: lax.pad(x, np.int32(0), [(0, 0, 1)])),
             (lambda x: x.reshape(4, 4), lambda x: x.reshape(2, 8)), (lambda x: lax.bitcast_convert_type(x, jnp.float32), lambda x: lax.bitcast_convert_type(x, jnp.uint32)),
             (lambda x: jnp.sum(x.reshape(4, 4), 0), lambda x: jnp.sum(x.reshape(4, 4), 1)), (lambda x: x.reshape(4, 4).T.ravel(), lambda x: x.reshape(4, 4).ravel()),
             (lambda x: x.argsort(), lambda x: (-x).argsort()), (lambda x: lax.top_k(x, 3)[0], lambda x: lax.top_k(x, 3)[1])]
    for n, (f, g) in enumerate(pairs):
        both = jax.jit(lambda x, f=f, g=g: (f(x), g(x)))(I)
        for got, h in zip(both, (f, g)):
            want = jax.jit(h)(I)
            assert got.dtype == want.dtype, n
            np.testing.assert_array_equal(np.asarray(got).view(np.uint8), np.asarray(want).view(np.uint8), err_msg=str(n))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape,axis", [((65,), 0), ((100_000,), 0), ((3, 1000, 2), 1), ((300, 7), 0)])
def test_scans_of_a_function(shape, axis, reverse):
    """By levels: neither a running value, whose error grows with the extent, nor all windows, whose number does with its square."""
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    y = np.asarray(jax.jit(lambda x: lax.cumlogsumexp(x, axis, reverse))(x))
    flip = (lambda a: np.flip(a, axis)) if reverse else (lambda a: a)
    want = flip(np.logaddexp.accumulate(flip(x.astype(np.float64)), axis))
    assert np.abs(y - want).max() < 4e-6


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_of_two_operands(reverse):
    """The largest so far and where it is; the function does not commute."""
    n = 1000
    x = np.random.default_rng(2).integers(0, 50, n).astype(np.int32)

    def later(a, b):
        take = b[0] > a[0]
        return jnp.where(take, b[0], a[0]), jnp.where(take, b[1], a[1])

    pad = ((0, n - 1),) if reverse else ((n - 1, 0),)
    low = (np.iinfo(np.int32).min, np.int32(-1))
    most, at = jax.jit(lambda x: lax.reduce_window((x, lax.iota(np.int32, n)), low, later, (n,), (1,), pad))(x)
    part = [x[i:] if reverse else x[:i + 1] for i in range(n)]
    assert (np.asarray(most) == [p.max() for p in part]).all()
    assert (np.asarray(at) == [p.argmax() + (i if reverse else 0) for i, p in enumerate(part)]).all()


def test_scan_of_maxima_with_another_start():
    """Of float8, whose least number is no infinity: the initial value is none that leaves all as it is."""
    x = np.random.default_rng(3).standard_normal(60_000).astype(np.float32)
    f = jax.jit(lambda x: (lax.cummax(x.astype(jnp.float8_e4m3fn)).astype(np.float32), lax.cummax(x.astype(jnp.float8_e4m3fn), reverse=True).astype(np.float32)))
    y = np.asarray(x.astype(jnp.float8_e4m3fn)).astype(np.float32)
    np.testing.assert_array_equal(f(x)[0], np.maximum.accumulate(y))
    np.testing.assert_array_equal(f(x)[1], np.maximum.accumulate(y[::-1])[::-1])
    g = jax.jit(lambda x: lax.reduce_window(x, np.float32(0.5), lax.max, (x.size,), (1,), ((x.size - 1, 0),)))
    np.testing.assert_array_equal(g(x), np.maximum(np.maximum.accumulate(x), np.float32(0.5)))


def test_gradient_of_a_recurrence():
    """Chains of slices and pads in which each value is read at two places of the next: the code must not double with each."""
    def f(a):
        return lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, a), axis=a.ndim // 2)[1].sum()

    for x in (np.full(4096, 0.5, np.float32), np.full((2, 512, 8), 0.5, np.float32)):
        n = x.shape[x.ndim // 2]
        p, q = np.zeros(n + 1), np.zeros(n + 1)                # y[t] = a[t] y[t-1] + a[t], and its derivative from the right
        for t in range(n):
            p[t + 1] = 0.5 * p[t] + 0.5
        for t in range(n - 1, -1, -1):
            q[t] = 1 + (0.5 * q[t + 1] if t + 1 < n else 0)
        want = (q[:n] * (p[:n] + 1)).reshape([-1 if d == x.ndim // 2 else 1 for d in range(x.ndim)])
        np.testing.assert_allclose(jax.jit(jax.grad(f))(x), np.broadcast_to(want, x.shape), rtol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_spread_convolution(seed):
    """lhs_dilation, in any layout, with padding of either sign: as the convolution of an operand with zeros in between, and no more NaN."""
    r = np.random.RandomState(seed)
    n = r.randint(1, 3)
    by, k, e = r.randint(1, 5, n), r.randint(1, 8, n), r.randint(1, 7, n)
    if seed % 2:
        k = by * r.randint(1, 3, n)
    low, wide = r.randint(-2, 8, n), (e - 1) * by + 1
    high = np.maximum(r.randint(-2, 8, n), k - wide - low)
    x, w = r.randint(-5, 6, (2, 3, *e)).astype(np.float32), r.randint(-5, 6, (4, 3, *k)).astype(np.float32)
    if seed % 3 == 0:
        x.flat[r.randint(x.size)] = np.inf
    pl, pr, po = (r.permutation(n + 2) for _ in range(3))
    dn = jax.lax.ConvDimensionNumbers(*(tuple(map(int, p)) for p in (pl, pr, po)))
    got = jax.jit(lambda x, w: jax.lax.conv_general_dilated(x, w, (1,) * n, [*zip(map(int, low), map(int, high))], tuple(map(int, by)), dimension_numbers=dn))(
        x.transpose(np.argsort(pl)), w.transpose(np.argsort(pr)))
    want = np.zeros((2, 4, *(wide + low + high - k + 1)), np.float32)
    for y in np.ndindex(*want.shape[2:]):
        for t in np.ndindex(*k):
            at = np.add(y, t) - low
            if (at % by == 0).all() and (at >= 0).all() and (at < wide).all():
                with np.errstate(invalid="ignore"):
                    want[(..., *y)] += (x[(..., *(at // by))][:, None] * w[(..., *t)]).sum(2)
    np.testing.assert_array_equal(np.asarray(got).transpose(po), want)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bfloat16"])
@pytest.mark.parametrize("seed", range(3))
def test_convolution_of_few_places(seed, dtype):
    """One feature and a short kernel, strided, spread, turned, in any layout, with padding of either sign; what is infinite there spreads no further."""
    r = np.random.RandomState(seed)
    n = 1 + seed % 2
    k, e, stride, apart = (r.randint(lo, hi, n) for lo, hi in ((1, 4), (20, 40), (1, 3), (1, 3)))
    low, high = r.randint(-2, 5, n), r.randint(-2, 5, n)
    batch = 20 if n == 1 else 3
    dt = jnp.dtype(dtype)
    x, w = r.randint(-5, 6, (batch, 1, *e)).astype(dt), r.randint(-5, 6, (1, 1, *k)).astype(dt)
    if dtype[0] == "f" and seed:
        w.flat[0] = np.inf
        x[x == 0] = 1
    pl, pr, po = (r.permutation(n + 2) for _ in range(3))
    dn = jax.lax.ConvDimensionNumbers(*(tuple(map(int, p)) for p in (pl, pr, po)))
    pad = [*zip(map(int, low), map(int, high))]

    def f(x, w):
        return jax.lax.conv_general_dilated(x, w, tuple(map(int, stride)), pad, (1,) * n, tuple(map(int, apart)), dimension_numbers=dn)

    with jax.enable_x64(dtype == "float64"):
        got = jax.jit(f)(x.transpose(np.argsort(pl)), w.transpose(np.argsort(pr)))
    want = np.zeros((batch, 1, *((e + low + high - (k - 1) * apart - 1) // stride + 1)))
    for y in np.ndindex(*want.shape[2:]):
        for t in np.ndindex(*k):
            at = np.multiply(y, stride) + np.multiply(t, apart) - low
            if (at >= 0).all() and (at < e).all():
                with np.errstate(invalid="ignore"):
                    want[(..., *y)] += x[(..., *at)].astype(float) * w[(..., *t)].astype(float)
    assert want.size > 128
    np.testing.assert_array_equal(np.asarray(got).transpose(po).astype(float), want.astype(dt).astype(float))
