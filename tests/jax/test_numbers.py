"""Elementwise functions at special values: as XLA:CPU's but for what docs/numbers.md lists; subnormals as it says."""
import itertools
import pathlib
import re

import jax
import numpy as np
import pytest
import special_values as sv
from rondo import library
from xla_cpu import on_cpu

DOC = pathlib.Path(__file__).parents[2] / "docs" / "numbers.md"


def listed():
    """Rows of the table of differences: functions, types."""
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", DOC.read_text(), re.M)
    return [(re.findall(r"`([^`]+)`", k), re.findall(r"`([^`]+)`", t)) for k, t in rows]


# One type of each kind: programs of XLA:CPU are what takes the time.
@pytest.mark.parametrize("t", ["float32", "bfloat16", "float8_e8m0fnu", "int32", "int4", "complex64"])
@pytest.mark.only_rondo("compares Rondo with JAX's cpu")
def test_as_xla_cpu(t, x64):
    found = [(tier, k, what) for tier, k, _, what in sv.differences([t])]
    rows = listed()
    new = [f"{tier} {k} {t}: {what}" for tier, k, what in found if not any(k in ks and t in ts for ks, ts in rows)]
    assert not new, "\n".join(new)


LIBM = {"pow", "atan2"}        # the exceptions
MOVES = {"abs", "neg", "is_finite", "select", "lt total", "le total", "nextafter", "reduce_precision", "integer_pow"}


@pytest.mark.parametrize("tier", ["gen", "ref"])
@pytest.mark.parametrize("t", ["float32", "float64", "bfloat16"])
@pytest.mark.only_rondo("Rondo's rule")
def test_subnormals(t, tier, x64):
    """What calculates gives for a subnormal what it gives for zero, and gives none itself."""
    library.set_option("tier", tier)
    try:
        for table, n in ((sv.ONE, 1), (sv.TWO, 2)):
            names = [k for k, (_, ts, _) in table.items() if t in ts and k not in MOVES | LIBM and not k.startswith("to ")]
            args = sv.grid(sv.specials(t, subnormal=True), n)
            device = jax.devices("rondo")[0]
            got = sv.run(table, names, device, sv.LAYOUTS, args)
            zero = sv.run(table, names, device, sv.LAYOUTS, [sv.flush(a) for a in args])
            for k in names:
                for g, z in zip(got[k], zero[k]):
                    assert not sv.low(g).any(), k
                    assert not sv.ulps(g, z).any(), (k, g, z)
        x = sv.specials(t, subnormal=True)
        moved = {k: np.asarray(jax.jit(f)(x)) for k, f in
                 {"abs": jax.lax.abs, "neg": jax.lax.neg, "select": lambda v: jax.lax.select(v == v, v, v)}.items()}
        for k, g in moved.items():
            want = {"abs": np.abs, "neg": np.negative, "select": lambda v: v}[k](x)
            assert not sv.ulps(g, want).any(), k
    finally:
        library.set_option("tier", "auto")


@pytest.mark.parametrize("t", ["float32", "float64"])
def test_folded(t, platform, x64):
    """Constants that the compiler folds have the bits that running gives."""
    x = sv.specials(t, subnormal=True)
    names = [k for k, (_, ts, _) in sv.ONE.items() if t in ts and "4_" not in k]
    args = sv.grid(x)
    run = sv.run(sv.ONE, names, jax.devices()[0], sv.LAYOUTS[:1], args)
    folded = jax.jit(lambda: [sv.ONE[k][0](args[0]) for k in names])()
    for k, v in zip(names, folded):
        assert sv.ulps(np.asarray(v), run[k][0]).max() <= sv.ONE[k][2], k


@pytest.mark.parametrize("t", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "int2", "uint4"])
def test_top_k(t):
    x = np.random.default_rng(0).permutation(sv.specials(t))
    x = x[x.astype("f8") == x.astype("f8")]
    v, i = jax.jit(lambda a: jax.lax.top_k(a, 4))(x)
    order = np.argsort(-x.astype("f8") + 1e-9 * np.signbit(x.astype("f8")), kind="stable")[:4]
    assert np.array_equal(np.asarray(i), order) and np.array_equal(np.asarray(v).astype("f8"), x[order].astype("f8"))


@pytest.mark.parametrize("wide,narrow", [("int8", "int2"), ("uint8", "float4_e2m1fn"), ("float8_e4m3fn", "float4_e2m1fn"), ("uint4", "int2"),
                                         ("float4_e2m1fn", "uint2"), ("bfloat16", "float4_e2m1fn"), ("float32", "float4_e2m1fn")])
def test_bitcast(wide, narrow):
    """Narrow elements are the wide one's bits, the lowest first; and back."""
    import jax.numpy as jnp
    w, n = sv.width(wide), sv.width(narrow)
    bits = np.random.default_rng(0).integers(0, 1 << w, 24, np.uint64)
    x = (bits.astype({8: "u1", 16: "u2", 32: "u4"}[max(w, 8)]).view(jnp.dtype(wide)) if w >= 8 or "float" in wide
         else bits.astype(jnp.dtype(wide)))
    parts = jax.jit(lambda a: jax.lax.bitcast_convert_type(a, jnp.dtype(narrow)))(x)
    want = bits[:, None] >> np.arange(0, w, n, dtype=np.uint64) & np.uint64((1 << n) - 1)
    assert np.array_equal(np.asarray(parts).view("u1") & (1 << n) - 1, want)
    back = jax.jit(lambda a: jax.lax.bitcast_convert_type(a, jnp.dtype(wide)))(parts)
    assert np.array_equal(np.asarray(back).view("u1"), np.asarray(x).view("u1"))


@pytest.mark.parametrize("tier", ["gen", "ref"])
@pytest.mark.only_rondo("a bound that is below XLA:CPU's errors")
def test_sums_are_rounded_about_once(tier, platform):
    """Of f32, in the rms of all results: one rounding gives up to 3.4e-8, rows along the densest dimension are a tree."""
    rng = np.random.default_rng(9)
    near = lambda got, want: np.sqrt((((np.asarray(got, np.float64) - want) / want) ** 2).mean())
    library.set_option("tier", tier)
    try:
        for shape, axis in [((32, 512), 0), ((100, 512), 0), ((4096, 256), 0), ((100000, 16), 0), ((16, 500, 64), 1), ((64, 50, 300), (0, 1)), ((2000, 64, 3), 0),
                            ((35003, 31), 0), ((32, 64, 64, 16), (0, 1, 2)), ((70000, 2, 16), (0, 1)), ((1003, 3000), 0), ((3, 200, 1025), 1)]:
            x = rng.random(shape, np.float32)
            assert near(jax.jit(lambda x: x.sum(axis))(x), x.astype(np.float64).sum(axis)) < 4.5e-8, (shape, axis)
            assert near(jax.jit(lambda x: (x * x).sum(axis))(x), np.square(x.astype(np.float64)).sum(axis)) < 5e-8, (shape, axis)
        for shape, axis in [((1000, 100), 0), ((128, 128), 0), ((4096, 64), 0), ((100, 100), 1), ((50, 1000), 1), ((8, 300, 40), 1), ((1 << 18,), 0), ((4, 20000), 1),
                            ((2000, 3), 1), ((5, 70, 50), 2), ((600, 200), 1)]:
            x = rng.random(shape, np.float32) + np.float32(0.1)
            assert near(jax.jit(lambda x: jax.numpy.cumsum(x, axis))(x), x.astype(np.float64).cumsum(axis)) < 5e-8, (shape, axis)
            assert near(jax.jit(lambda x: jax.lax.cumsum(x, axis, reverse=True))(x), np.flip(np.flip(x.astype(np.float64), axis).cumsum(axis), axis)) < 5e-8, (shape, axis)
    finally:
        library.set_option("tier", "auto")


LONG = {"vector": ((1 << 17,), (0,)), "uneven": (((1 << 16) + 77,), (0,)), "matrix": ((4096, 64), (0, 1)), "outer and inner": ((1024, 4, 64), (0, 2)),
        "columns": ((1 << 18, 4), (0,)), "more columns": ((16, 1 << 14, 4), (0, 1))}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("t", [jax.numpy.bfloat16, np.float16], ids=["bf16", "f16"])
@pytest.mark.only_rondo("a bound that is below XLA:CPU's errors")
def test_long_reductions_of_halves_are_rounded_once(t, name, platform):
    """In the rms of all results of some draws; one rounding alone gives 0.42 of half an ulp of 1."""
    shape, axis = LONG[name]
    unit, n = float(jax.numpy.finfo(t).eps) / 2, np.prod([shape[d] for d in axis])
    for op, identity, of in ((jax.lax.add, 0, np.sum), (jax.lax.mul, 1, np.prod)):
        reduce, error = jax.jit(lambda x: jax.lax.reduce(x, np.array(identity, x.dtype), op, axis)), []
        for seed in range(12):
            rng = np.random.default_rng(seed)
            x = rng.random(shape, np.float32) if of is np.sum else np.where(rng.random(shape) < 64 / n, rng.random(shape) + 0.5, 1)
            x = np.asarray(x * (min(1, 30000 / n) if of is np.sum else 1), t)
            want = of(x.astype(np.float64), axis)
            error += list(np.ravel((np.asarray(reduce(x), np.float64) - want) / want))
        assert np.sqrt(np.mean(np.square(error))) < 0.66 * unit, of


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("of", ["sum", "prod"])
def test_long_reductions_are_as_exact_as_xla(of, name):
    """Of f32, in the rms of all results of some draws."""
    shape, axis = LONG[name]
    n, error, reduce = np.prod([shape[d] for d in axis]), np.zeros(2), jax.jit(lambda x: getattr(jax.numpy, of)(x, axis))
    for seed in range(48 if len(axis) == len(shape) else 12):
        x = np.random.default_rng(seed).standard_normal(shape, np.float32)
        x = x if of == "sum" else np.exp(x / np.float32(n ** 0.5))
        want = getattr(np, of)(x.astype(np.float64), axis)
        for i, where in enumerate((jax.devices()[0], jax.devices("cpu")[0])):
            got = reduce(jax.device_put(x, where))
            error[i] += np.mean(((np.asarray(got, np.float64) - want) / (np.sqrt(n) if of == "sum" else want)) ** 2)
    assert error[0] <= 1.2 ** 2 * error[1]


@pytest.mark.parametrize("numbers", ["standard_normal", "random"])
@pytest.mark.parametrize("rows,k,columns", [(256, 128, 256), (256, 640, 256), (1000, 1000, 1000), (512, 1280, 512), (4, 640, 640), (8, 640, 640), (16, 640, 640), (64, 640, 64), (16, 10000, 16),
                                            (1, 4096, 512), (512, 4096, 1), (8, 8, 4000), (100, 64, 100), (100, 100, 100), (32, 10000, 10), (512, 16384, 512), (64, 4096, 64)])
def test_products_are_as_exact_as_xla(rows, k, columns, numbers):
    """Of f32, in the rms of all results."""
    rng = np.random.default_rng(k)
    a, b = (getattr(rng, numbers)(shape).astype(np.float32) for shape in ((rows, k), (k, columns)))
    want, error = a.astype(np.float64) @ b, []
    for where in (jax.devices()[0], jax.devices("cpu")[0]):
        got = jax.jit(lambda a, b: a @ b)(jax.device_put(a, where), jax.device_put(b, where))
        error.append(np.sqrt(np.mean((np.asarray(got, np.float64) - want) ** 2) / np.mean(want ** 2)))
    assert error[0] <= 1.1 * error[1]


def test_a_product_of_vectors_is_as_exact_as_xla():
    rng = np.random.default_rng(3)
    error, dot = np.zeros((2, 20)), jax.jit(lambda a, b: a @ b)
    for i in range(20):
        a, b = rng.standard_normal((2, 300_000)).astype(np.float32)
        for j, where in enumerate((jax.devices()[0], jax.devices("cpu")[0])):
            error[j, i] = float(dot(jax.device_put(a, where), jax.device_put(b, where))) - a.astype(np.float64) @ b
    assert np.square(error[0]).sum() <= 1.2 * np.square(error[1]).sum()


SUMS = {
    "rows": lambda m, a, v: a.T @ v,                           # few columns of results, many of sums
    "taps": lambda m, a, v: m.convolve(a[:, 0], v[:51]),
    "many taps": lambda m, a, v: m.convolve(a.reshape(-1)[:3000], v[:200]),
    "scan": lambda m, a, v: jax.lax.cumlogsumexp(v) if m is jax.numpy else np.logaddexp.accumulate(v),
}


@pytest.mark.parametrize("numbers", ["random", "standard_normal"])
@pytest.mark.parametrize("rows, columns", [(256, 100), (512, 300), (1000, 128)])
@pytest.mark.parametrize("name", SUMS)
def test_sums_are_as_exact_as_xla(name, rows, columns, numbers):
    """In the rms of all results of some draws."""
    error, run = np.zeros(2), jax.jit(lambda a, v: SUMS[name](jax.numpy, a, v))
    for seed in range(6):
        rng = np.random.default_rng(seed)
        a, v = (getattr(rng, numbers)(shape).astype(np.float32) for shape in ((rows, columns), (rows,)))
        want = SUMS[name](np, a.astype(np.float64), v.astype(np.float64))
        for i, where in enumerate((jax.devices()[0], jax.devices("cpu")[0])):
            got = run(jax.device_put(a, where), jax.device_put(v, where))
            error[i] += np.mean((np.asarray(got, np.float64) - want) ** 2)
    assert error[0] <= 1.3 ** 2 * error[1]


SPELLED = {
    "plain": lambda np, a, b: a @ b,
    "adjoint": lambda np, a, b: a.T.conj().T @ b,
    "turned": lambda np, a, b: np.einsum("ij,kj->ki", a, b.T),
    "many": lambda np, a, b: np.einsum("gij,gjk->gik", np.stack([a, a + 1]), np.stack([b, b - 1])),
    "vdot": lambda np, a, b: np.vdot(a, a + 1j),
}


@pytest.mark.parametrize("m,k,n", [(64, 64, 64), (200, 300, 8), (1, 300, 200), (3, 700, 100), (100, 50, 1), (1, 5000, 1), (5, 6, 7)])
def test_complex_products(m, k, n):
    """However they are written, no less exact than XLA:CPU's."""
    rng = np.random.default_rng(0)
    a, b = ((rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(np.complex64) for s in ((m, k), (k, n)))
    for name, f in SPELLED.items():
        if name == "vdot" and m > 1:
            continue
        want = f(np, a.astype(np.complex128), b.astype(np.complex128))
        got = [np.asarray(jax.jit(lambda a, b: f(jax.numpy, a, b))(*jax.device_put((a, b), d))) for d in (jax.devices()[0], jax.devices("cpu")[0])]
        error = [np.sqrt(np.mean(np.abs(x - want) ** 2)) for x in got]
        assert got[0].dtype == np.complex64
        most = np.abs(f(np, np.abs(a), np.abs(b))).max()      # one number may be exact by chance
        assert error[0] <= max(1.3 * error[1], 2e-8 * most), name


WIDTHS = ["float32", "float64", "complex64", "complex128", "int32", "int8", "bfloat16", "float16"]


@pytest.mark.parametrize("left", WIDTHS)
def test_products_of_any_types(left):
    """Of small integers, which all of them hold: what XLA:CPU gives, also where an operand or the result alone is complex."""
    rng = np.random.default_rng(0)
    runs = 0

    def numbers(shape, dtype):
        x = rng.integers(-3, 4, shape)
        return (x + 1j * rng.integers(-3, 4, shape) if dtype.startswith("c") else x).astype(jax.numpy.dtype(dtype))
    with jax.enable_x64(True):
        for right in WIDTHS:
            def product(x, y, to):
                return jax.lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=to)
            x, y = numbers((3, 4), left), numbers((4, 2), right)
            has = []
            for to in WIDTHS:
                try:
                    jax.eval_shape(lambda x, y: product(x, y, to), x, y)
                    has.append(to)
                except TypeError:
                    pass

            def products(x, y):
                return [product(x, y, to) for to in has]
            for to, got, want in zip(has, jax.jit(products)(x, y), on_cpu(products, x, y)):
                assert got.dtype == want.dtype == jax.numpy.dtype(to)
                np.testing.assert_array_equal(np.asarray(got).astype(np.complex128), np.asarray(want).astype(np.complex128), err_msg=f"{left} {right} {to}")
            runs += len(has)
    assert runs > 10


@pytest.mark.parametrize("left, right", itertools.product(["int8", "uint8"], repeat=2))
def test_products_of_bytes(left, right):
    """Of few rows or columns, of all numbers there are, modulo what the result holds; each operand may lie along the contraction or across."""
    rng = np.random.default_rng(1)

    def numbers(shape, dtype):
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(dtype)
    for (m, k, n), over, to in itertools.product([(1, 2048, 300), (3, 1000, 70), (8, 257, 33), (2, 64, 513), (5, 300, 1), (1, 20000, 9)],
                                                 [(1, 1), (1, 0), (0, 1)], ["int32", "uint8", "int8"]):
        x, y = numbers((m, k) if over[0] else (k, m), left), numbers((n, k) if over[1] else (k, n), right)
        got = jax.jit(lambda x, y, over=over, to=to: jax.lax.dot_general(x, y, (((over[0],), (over[1],)), ((), ())), preferred_element_type=to))(x, y)
        want = (x if over[0] else x.T).astype(np.int64) @ (y.T if over[1] else y).astype(np.int64)
        np.testing.assert_array_equal(got, want.astype(to), err_msg=f"{m} {k} {n} {over} {to}")


@pytest.mark.parametrize("name", ["F16_F16_F32", "BF16_BF16_F32", "BF16_BF16_BF16", "BF16_BF16_F32_X9", "TF32_TF32_F32", "F64_F64_F64"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_products_as_told(name, dtype):
    """JAX's rule for its cpu refuses some of these; jax.nn.dot_product_attention says the first for f16."""
    r = np.random.default_rng(5)
    a, b = (np.asarray(jax.numpy.asarray(r.standard_normal((33, 700)), dtype)) for _ in "ab")
    got = jax.jit(lambda a, b: jax.lax.dot_general(a, b, (((1,), (1,)), ((), ())), precision=jax.lax.DotAlgorithmPreset[name],
                                                   preferred_element_type=np.float32))(a, b)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    exact = name[:4] in ("TF32", "F64_") or name.endswith("X9") or (name, dtype) in (("F16_F16_F32", "float16"), ("BF16_BF16_F32", "bfloat16"))
    assert got.dtype == np.float32 and np.abs(np.asarray(got) - want).max() < (1e-6 if exact else 1e-2) * np.abs(want).max()


def test_attention_of_halves():
    r = np.random.default_rng(6)
    q, k, v = (r.standard_normal((1, 64, 2, 16)).astype(np.float16) for _ in "qkv")
    got = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True))(q, k, v)
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.where(np.tril(np.ones((64, 64), bool)), np.einsum("bthd,bshd->bhts", q, k) / 4, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    np.testing.assert_allclose(np.asarray(got, np.float64), np.einsum("bhts,bshd->bthd", p / p.sum(-1, keepdims=True), v), atol=3e-3)
