"""What hangs on JAX's version, as small programs of every kind, each beside XLA:CPU in the same process.  They run on the pinned JAX
with all others, and on the newest one (scripts/newest)."""
import contextlib
import io
import os
import subprocess
import sys

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

PROGRAMS = {}


def program(f):
    PROGRAMS[f.__name__] = f
    return f


def matrix(*shape, seed=0, dtype=np.float32):
    r = np.random.default_rng(seed)
    x = r.standard_normal(shape) + (1j * r.standard_normal(shape) if np.issubdtype(dtype, np.complexfloating) else 0)
    return x.astype(dtype)


def definite(n, *batch, dtype=np.float32):
    x = matrix(*batch, n, n, dtype=dtype)
    return (x @ np.conj(np.swapaxes(x, -1, -2)) + n * np.eye(n)).astype(dtype)


def row(devices, axis="x"):
    return jax.make_mesh((len(devices),), (axis,), axis_types=(AxisType.Auto,), devices=devices)


def square(devices, kind=AxisType.Auto):
    return jax.make_mesh((2, len(devices) // 2), ("a", "b"), axis_types=(kind,) * 2, devices=devices)


def sorted_values(w):
    w = np.asarray(w)
    return np.take_along_axis(w, np.lexsort((w.imag.round(4), w.real.round(4))), -1)


# --- linear algebra: jaxlib's handlers, through the FFI of this version ------------------------


@program
def factorisations(_):
    a, b = matrix(3, 6, 6) + 4 * np.eye(6, dtype=np.float32), matrix(3, 6, 2, seed=1)
    yield jnp.linalg.solve(a, b), jnp.linalg.inv(a), *jnp.linalg.slogdet(a), jax.vmap(jnp.linalg.det)(a)
    yield jnp.linalg.cholesky(definite(5, dtype=np.complex64)), jax.scipy.linalg.solve_triangular(definite(6), b[0], lower=True)
    yield jax.grad(lambda a: jnp.linalg.cholesky(a).sum())(definite(4, 2)), jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(definite(6)), True), b[0])
    for m in (matrix(8, 5), matrix(6, 6, dtype=np.complex64)):
        q, r = jnp.linalg.qr(m)
        yield q @ r, jnp.abs(r)
    yield jnp.abs(jax.scipy.linalg.qr(matrix(6, 4), pivoting=True)[1]), [jnp.abs(x) for x in jax.scipy.linalg.lu(a[0])]


@program
def spectra(_):
    w, v = jnp.linalg.eigh(definite(6, 2))
    yield w, jnp.abs(v), jnp.linalg.eigvalsh(definite(5, dtype=np.complex64)), jnp.linalg.svd(matrix(2, 6, 4), compute_uv=False)
    u, s, v = jnp.linalg.svd(matrix(4, 6, dtype=np.complex64), full_matrices=False)
    yield s, (u * s) @ v, jax.grad(lambda a: jnp.linalg.svd(a, compute_uv=False)[0])(matrix(4, 3))
    yield sorted_values(jnp.linalg.eigvals(matrix(5, 5))), sorted_values(jnp.linalg.eig(matrix(4, 4, dtype=np.complex64))[0])
    t, z = jax.scipy.linalg.schur(matrix(5, 5))
    yield z @ t @ z.T, jnp.abs(jax.scipy.linalg.hessenberg(matrix(5, 5))), jax.scipy.linalg.sqrtm(definite(4)), jax.scipy.linalg.expm(matrix(4, 4) / 4)
    yield jnp.linalg.lstsq(matrix(8, 3), matrix(8, 2, seed=1))[0], jnp.linalg.pinv(matrix(8, 3)), jnp.linalg.cond(matrix(4, 4)), jax.scipy.linalg.polar(matrix(4, 4))[0]
    d, e = np.full(6, 4, np.float32), np.r_[0, np.ones(5)].astype(np.float32)
    yield jax.lax.linalg.tridiagonal_solve(e, d, e[::-1].copy(), matrix(6, 2)), jax.scipy.linalg.eigh_tridiagonal(matrix(6), matrix(5, seed=1), eigvals_only=True)


@program
def wide_linalg(_):
    with jax.enable_x64(True):
        c = matrix(5, 5, dtype=np.complex128)
        yield jnp.linalg.inv(c), jnp.linalg.svd(c, compute_uv=False), jnp.linalg.eigvalsh(definite(5, dtype=np.complex128)), jnp.linalg.det(matrix(6, 6, dtype=np.float64))
        yield jnp.linalg.cholesky(definite(4, dtype=np.float64)), sorted_values(jnp.linalg.eigvals(c)), jnp.fft.fft(matrix(64, dtype=np.complex128)), jnp.fft.irfft(matrix(33, dtype=np.complex128))


@program
def linalg_in_parts(devices):
    a = np.concatenate([definite(4, 4), definite(4, 4) * 2])
    f = jax.shard_map(lambda a: (jnp.linalg.inv(a), jnp.linalg.eigh(a)[0], jnp.linalg.svd(a, compute_uv=False), jnp.linalg.qr(a)[1] ** 2, jnp.linalg.solve(a, a[..., :1])),
                      mesh=row(devices), in_specs=P("x"), out_specs=P("x"))
    yield jax.jit(f)(a), jax.jit(lambda a: (jnp.linalg.cholesky(a), jnp.linalg.det(a)), in_shardings=NamedSharding(row(devices), P("x")))(a)
    yield jax.jit(lambda xs: jax.lax.scan(lambda c, x: (jnp.linalg.solve(x, c), jnp.linalg.eigh(x)[0]), jnp.ones(4), xs))(a)


@program
def foreign(_):
    call = jax.ffi.ffi_call("lapack_spotrf_ffi", (jax.ShapeDtypeStruct((4, 4), np.float32), jax.ShapeDtypeStruct((), np.int32)))
    yield jnp.triu(jax.jit(lambda a: call(a, uplo=np.uint8(ord("U"))))(definite(4))[0])
    from jax.experimental import sparse
    dense = matrix(6, 5) * (matrix(6, 5, seed=3) > 0)
    yield sparse.BCOO.fromdense(dense) @ matrix(5, 3), sparse.BCSR.fromdense(dense) @ matrix(5, 2), sparse.CSR.fromdense(dense) @ matrix(5, 3)


# --- Python, called back ----------------------------------------------------------------------


@program
def callbacks(devices):
    from jax.experimental import io_callback
    seen = []

    def host(x):
        seen.append(float(np.asarray(x)))
        return np.float32(len(seen))

    def counted(x):
        a = io_callback(host, jax.ShapeDtypeStruct((), np.float32), x, ordered=True)
        return jax.lax.fori_loop(0, 3, lambda i, c: c + io_callback(host, jax.ShapeDtypeStruct((), np.float32), c, ordered=True), a)

    def pure(x):
        return jax.pure_callback(lambda x: np.sin(np.asarray(x)), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")

    yield jax.jit(counted)(np.float32(10)), jax.jit(pure)(matrix(4, 3)), jax.vmap(pure)(matrix(4, 3))
    yield np.array(seen)
    x = jax.device_put(np.arange(16, dtype=np.float32), NamedSharding(row(devices), P("x")))
    yield jax.jit(lambda x: pure(jnp.sin(x)) + x)(x), jax.jit(jax.shard_map(pure, mesh=row(devices), in_specs=P("x"), out_specs=P("x")))(x)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        @jax.jit
        def f(x):
            jax.debug.print("{} of {}", x.sum(), x, ordered=True)
            jax.debug.callback(lambda v: print("called", v), x[0], ordered=True)
            return x
        f(jnp.arange(3.0)).block_until_ready()
        jax.effects_barrier()
    yield np.frombuffer(out.getvalue().encode(), np.uint8)


@program
def checks(_):
    from jax.experimental import checkify

    def f(x, i):
        checkify.check(x.sum() > 0, "the sum is {s}", s=x.sum())
        return jnp.log(x[i])
    g = jax.jit(checkify.checkify(f, errors=checkify.user_checks | checkify.index_checks | checkify.float_checks))
    for a in ((jnp.ones(3), 1), (-jnp.ones(3), 1), (jnp.ones(3), 5)):
        yield np.frombuffer(str(g(*a)[0].get()).split("\n")[0].encode(), np.uint8)


# --- devices -----------------------------------------------------------------------------------


@program
def collectives(devices):
    def f(x):
        return (jax.lax.psum(x, "a"), jax.lax.psum(x, ("a", "b")), jax.lax.psum(x, ("b", "a")), jax.lax.ppermute(x, "a", [(0, 1), (1, 0)]), jax.lax.pmax(x, "b"),
                jax.lax.all_gather(x, ("b", "a"), tiled=True), jax.lax.psum_scatter(x, "b", tiled=True), jax.lax.all_to_all(x, "a", 1, 0, tiled=True))
    yield jax.jit(jax.shard_map(f, mesh=square(devices), in_specs=P(("a", "b")), out_specs=P(("a", "b")), check_vma=False))(matrix(16, 4))
    g = jax.shard_map(lambda x, w: jax.lax.psum(x @ w, "a"), mesh=square(devices), in_specs=(P(None, "a"), P("a", None)), out_specs=P(), axis_names={"a"})
    yield jax.jit(g)(matrix(4, 8), matrix(8, 6)), jax.jit(jax.grad(lambda x, w: g(x, w).sum(), argnums=(0, 1)))(matrix(4, 8), matrix(8, 6))
    yield jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=row(devices), in_specs=P("x"), out_specs=P()))(matrix(8, 3))


@program
def sharded(devices):
    s = lambda *p: NamedSharding(square(devices), P(*p))  # noqa: E731

    def loss(w, v, x):
        return jnp.square(jax.lax.with_sharding_constraint(jnp.tanh(x @ w), s("a", "b")) @ v).mean()
    yield jax.jit(jax.value_and_grad(loss, argnums=(0, 1)), in_shardings=(s(None, "b"), s("b", None), s("a", None)))(matrix(8, 16), matrix(16, 8), matrix(4, 8))
    with jax.set_mesh(square(devices, AxisType.Explicit)):
        x, w = jax.device_put(matrix(4, 8), P("a", "b")), jax.device_put(matrix(8, 4), P("b", None))
        yield jax.jit(lambda x, w: jnp.einsum("ij,jk->ik", x, w, out_sharding=P("a", None)))(x, w), jax.sharding.reshard(x, P(None, "a"))


@program
def partitioned(devices):
    from jax.experimental.custom_partitioning import custom_partitioning

    @custom_partitioning
    def f(x):
        return jnp.fft.fft(x).real
    f.def_partition(partition=lambda mesh, args, result: (mesh, lambda x: jnp.fft.fft(x).real, args[0].sharding, (args[0].sharding,)),
                    infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding, sharding_rule="i j -> i j")
    s = NamedSharding(row(devices), P("x", None))
    yield jax.jit(f, in_shardings=s, out_shardings=s)(matrix(8, 6))


# --- programs that are kept ------------------------------------------------------------------------


@program
def exported(devices):
    from jax import export
    a, b = export.symbolic_shape("a, b")
    name = devices[0].platform
    f = export.export(jax.jit(lambda x: (jnp.sin(x).sum(0) + x.shape[0], jnp.concatenate([x, x]))), platforms=[name])(jax.ShapeDtypeStruct((a, b), np.float32))
    f = export.deserialize(f.serialize())
    yield f.call(matrix(3, 4)), f.call(matrix(5, 2)), jax.jit(lambda x: f.call(x)[0] * 2)(matrix(2, 2))
    g = export.export(jax.jit(jnp.linalg.solve), platforms=[name])(jax.ShapeDtypeStruct((3, 3), np.float32), jax.ShapeDtypeStruct((3,), np.float32))
    yield export.deserialize(g.serialize()).call(definite(3), matrix(3))
    x = jax.device_put(matrix(8, 4), NamedSharding(row(devices), P("x")))
    yield export.deserialize(export.export(jax.jit(lambda x: (x.sum(0), x @ x.T)), platforms=[name])(x).serialize()).call(x)


@program
def ahead(devices):
    from jax.experimental import serialize_executable
    compiled = jax.jit(lambda x: jnp.linalg.solve(x, x[0]) * 2).lower(definite(4)).compile()
    yield serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled), backend=devices[0].client, execution_devices=devices[:1])(definite(4))


# --- the rest ---------------------------------------------------------------------------------------


@program
def draws(_):
    r = jax.random
    for impl in ("threefry2x32", "rbg", "unsafe_rbg"):
        k = r.key(7, impl=impl)
        yield r.bits(k, (5, 7)), r.uniform(k, (9,)), r.normal(k, (4, 4)), r.randint(k, (20,), -5, 90), r.permutation(k, 17), r.key_data(r.split(k, 3)), r.key_data(r.fold_in(k, 5))
    k = r.key(3)
    yield r.gamma(k, 2.5, (8,)), r.categorical(k, matrix(3, 5), shape=(2, 3)), r.choice(k, 10, (4,), replace=False)


@program
def transforms(_):
    x, c = matrix(6, 10), matrix(5, 12, dtype=np.complex64)
    yield jnp.fft.fft(c), jnp.fft.rfft(x), jnp.fft.irfft(jnp.fft.rfft(x)), jnp.fft.fftn(matrix(3, 4, 5, dtype=np.complex64)), jnp.fft.fft(matrix(17, dtype=np.complex64)), jax.grad(lambda x: jnp.abs(jnp.fft.rfft(x)).sum())(x)


@program
def types(_):
    x = matrix(8, 8)
    for t in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e8m0fnu", "int4", "uint4", "int2", "float4_e2m1fn", "int8", "uint16"):
        yield jnp.asarray(x * 2).astype(t).astype(np.float32)
    b = jnp.asarray(x, jnp.bfloat16)
    yield jnp.dot(b, b, preferred_element_type=np.float32), jax.lax.bitcast_convert_type(x, np.uint32), jax.lax.reduce_precision(x, 5, 7)


@program
def choices(_):
    x = matrix(3, 20)
    yield jnp.argsort((x * 4).astype(np.int32), stable=True), jax.lax.top_k(x, 4), jax.lax.approx_max_k(x, 3), jnp.unique((x * 4).astype(np.int32), size=12), jax.lax.sort((x.astype(np.int32), x), num_keys=2)
    yield jax.scipy.special.erfinv(x / 9), jax.scipy.special.digamma(np.abs(x) + 1), jax.scipy.special.gammainc(2.0, np.abs(x)), jax.lax.cumlogsumexp(x, 1), jax.lax.associative_scan(jnp.multiply, 1 + x / 9, axis=1)
    yield jax.lax.ragged_dot(matrix(7, 4), matrix(3, 4, 5), np.array([2, 4, 1], np.int32)), jax.image.resize(matrix(2, 5, 4, 3), (2, 7, 3, 3), "bilinear")


@program
def kernels(devices):
    from jax.experimental import pallas as pl

    def kernel(x, y, o):
        o[...] = x[...] * 2 + y[...]
    spec = pl.BlockSpec((4, 16), lambda i: (i, 0))
    yield pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((8, 16), np.float32), grid=(2,), in_specs=[spec] * 2, out_specs=spec,
                         interpret=devices[0].platform == "cpu")(matrix(8, 16), matrix(8, 16, seed=1))
    q, k, v = matrix(2, 33, 4, 16), matrix(2, 33, 2, 16, seed=1), matrix(2, 33, 2, 16, seed=2)
    yield jax.jit(jax.grad(lambda *a: (jax.nn.dot_product_attention(*a, is_causal=True) ** 2).sum(), (0, 1, 2)))(q, k, v)


@program
def references(_):
    r = jax.new_ref(jnp.zeros(4))

    @jax.jit
    def f(x):
        r[...] += x
        r[1] = x[0]
        return r[...].sum()
    yield f(jnp.arange(4.0)), f(jnp.arange(4.0)), r[...]
    g = jax.jit(lambda x, y: (x + 1, y * 2), donate_argnums=0)
    x = jnp.arange(1000.0)
    yield g(x, x + 1), x.is_deleted()


def run(f, devices):
    with jax.default_device(devices[0]):
        return [np.asarray(x) for x in jax.tree.leaves([jax.block_until_ready(x) for x in f(devices)])]


def alike(ours, theirs):
    assert len(ours) == len(theirs)
    for i, (x, y) in enumerate(zip(ours, theirs)):
        assert x.shape == y.shape and x.dtype == y.dtype, (i, x.shape, y.shape, x.dtype, y.dtype)
        if x.dtype.kind not in "fc":
            np.testing.assert_array_equal(x, y, f"result {i}")
            continue
        some = np.isfinite(y)
        np.testing.assert_array_equal(np.isfinite(x), some, f"result {i}")
        size = np.abs(y[some]).max(initial=1e-30)
        single = x.dtype.itemsize <= (4 if x.dtype.kind == "f" else 8)
        np.testing.assert_allclose(x[some] / size, y[some] / size, rtol=0, atol=3e-5 if single else 1e-11, err_msg=f"result {i}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    alike(run(PROGRAMS[name], jax.devices()), run(PROGRAMS[name], jax.devices("cpu")))


def started(x, what):
    """A collective in two halves, whatever this JAX calls them."""
    from jax._src.lax import parallel
    start, *how = what
    return getattr(parallel, start + "_start")(x, *how[:-1], **how[-1]).done()


@pytest.mark.only_rondo("XLA:CPU of JAX 0.10 takes no all_to_all in halves")
def test_collectives_in_halves():
    mesh = square(jax.devices())
    halves = [("psum", "a", {}), ("all_gather", "a", {"tiled": True}), ("psum_scatter", "a", {"tiled": True}), ("all_to_all", "a", 1, 0, {"tiled": True}), ("ppermute", "a", [(0, 1), (1, 0)], {})]

    def f(x):
        return [started(x, h) for h in halves]

    def g(x):
        return [getattr(jax.lax, h[0])(x, *h[1:-1], **h[-1]) for h in halves]
    x = matrix(16, 4)
    both = [jax.jit(jax.shard_map(h, mesh=mesh, in_specs=P("a"), out_specs=[P()] + [P("a")] * 4))(x) for h in (f, g)]
    for a, b in zip(*both):
        np.testing.assert_array_equal(a, b)


@pytest.mark.only_rondo("JAX has no rule for XLA:CPU")
def test_broadcast_from_one():
    from jax._src.lax import parallel
    x = np.where(np.arange(32).reshape(8, 4) % 5, matrix(8, 4), np.float32(-0.0))
    x[3, 1] = np.nan
    sources = [2] + [jnp.int32(2)] * hasattr(parallel, "pbroadcast_dynamic_p")
    for source in sources:
        y = jax.jit(jax.shard_map(lambda x, s=source: jax.lax.pbroadcast(x, "x", s), mesh=row(jax.devices()), in_specs=P("x"), out_specs=P("x"), check_vma=False))(x)
        assert np.asarray(y).tobytes() == np.concatenate([x[4:6]] * 4).tobytes()


def test_persistent_cache(tmp_path):
    code = ("import jax, jax.numpy as jnp; jax.config.update('jax_compilation_cache_dir', %r); jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
            "print(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((4, 4)) / 8).sum())") % str(tmp_path)
    first, second = (subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first == second and float(first) > 0 and os.listdir(tmp_path)


def test_trace(tmp_path):
    with jax.profiler.trace(tmp_path):
        jax.jit(lambda x: x @ x)(matrix(8, 8)).block_until_ready()
    assert list(tmp_path.rglob("*.pb"))
