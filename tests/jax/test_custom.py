"""Users who decide how their operations are cut, and who look at how values lie."""
import functools

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

X = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)


@functools.lru_cache
def mesh():
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def on(value, *spec):
    return jax.device_put(value, NamedSharding(mesh(), P(*spec)))


def custom(fun, rule, local=None, arguments=None, result=None, seen=None, **how):
    """fun, of which a device computes local on its parts; arguments, result: how these shall lie (None: as they do)."""
    f = custom_partitioning(lambda *a: fun(*a))

    def partition(mesh, args, out):
        spec = jax.tree.map(lambda s: s.sharding.spec, out)
        if seen is not None:
            seen.append(([a.sharding.spec for a in args], spec))
        out = jax.tree.map(lambda s: s.sharding, out) if result is None else NamedSharding(mesh, result)
        lie = [NamedSharding(mesh, s) for s in arguments] if arguments else [a.sharding for a in args]
        return mesh, local or fun, out, tuple(lie)

    f.def_partition(partition, sharding_rule=rule, **how)
    return f


def product(seen=None):
    return custom(lambda x, y: x @ y, "i j, j k -> i k", lambda x, y: jax.lax.psum(x @ y, "y"), seen=seen, reduction_factors=("j",))


def test_the_user_decides():
    seen = []
    got = jax.jit(lambda x, y: jnp.sin(product(seen)(x, y) / 4096))(on(X, "x", "y"), on(X.T.copy(), "y", None))
    np.testing.assert_allclose(got, np.sin(X @ X.T / 4096), rtol=1e-4, atol=1e-5)
    assert seen == [([P("x", "y"), P("y", None)], P("x", None))]
    assert got.sharding.spec == P("x")


CASES = {
    "elementwise": (lambda a: a * 2, "i j -> i j", {}, ("x", "y")),
    "needs all of a dimension": (lambda a: jnp.cumsum(a, 1), "i j -> i j", {"need_replication_factors": ("j",)}, ("y",)),
    "is not cut where the rule would": (lambda a: jnp.cumsum(a, 1), "i j -> i j", {"arguments": [P("x", None)], "result": P("x", None)}, ("x", "y")),
    "wants axes in another order": (lambda a: a + 1, "i j -> i j", {"arguments": [P(("y", "x"))], "result": P(("y", "x"))}, (("x", "y"),)),
    "wants what nobody has": (lambda a: a + 1, "i j -> i j", {"arguments": [P("y", "x")], "result": P("y", "x")}, ()),
    "two results": (lambda a: (a + 1, a.sum(1)), "i j -> i j, i", {"need_replication_factors": ("j",)}, ("x",)),
    "a sum over devices": (lambda a: a.sum(), "i j -> ", {"local": lambda a: jax.lax.psum(a.sum(), ("x", "y")), "arguments": [P("x", "y")], "result": P()}, ("x", "y")),
    "a loop": (lambda a: jax.lax.fori_loop(0, 5, lambda i, c: jnp.sin(c) + i, a), "i j -> i j", {}, ("x", "y")),
    "calls, and what JAX has no StableHLO for": (lambda a: jax.jit(lambda b: jax.lax.erf(jax.lax.top_k(b, 3)[0]))(a / 100), "i j -> i k", {"need_replication_factors": ("j", "k")}, ("x",)),
    "where the device is": (lambda a: a, "i j -> i j", {"local": lambda a: a + 0 * jax.lax.axis_index("x").astype(a.dtype)}, ("x", "y")),
    "no rule": (lambda a: a * 3, None, {"arguments": [P("y")], "result": P("y")}, ("x",)),
}


@pytest.mark.parametrize("name", CASES)
def test_partition(name):
    fun, rule, how, spec = CASES[name]
    f = custom(fun, rule, **how)
    want = jax.tree.map(np.asarray, fun(jnp.asarray(X)))
    for g, w in ((f, want), (lambda a: jax.tree.map(lambda v: v * 2, f(a * 1)), jax.tree.map(lambda v: v * 2, want))):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), jax.jit(g)(on(X, *spec)), w)


def test_an_operand_made_of_one_number():
    """It lies as the others want it, in each place where it is read."""
    seen = []
    ones = jnp.ones((8, 4))
    got = jax.jit(lambda a: product(seen)(a, jnp.ones((8, 4))) + product(seen)(a + 1, jnp.ones((8, 4))))(on(X, "x", "y"))
    np.testing.assert_array_equal(got, X @ ones + (X + 1) @ ones)
    assert seen == [([P("x", "y"), P("y", None)], P("x", None))] * 2


def draw_spec(rng, rank):
    """Axes of the mesh in any order, on any dimensions."""
    dims = [[] for _ in range(rank)]
    for axis in rng.permutation(["x", "y"]):
        if rng.random() < 0.75:
            dims[rng.integers(rank)].append(str(axis))
    return P(*[tuple(d) or None for d in dims])


def drawn(seed, least):
    """A generator, operands of one shape, of numbers from least on, how a partition has them, and one: twice the first and the second."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in 4 * rng.integers(1, 4, rng.integers(1, 4)))
    names = " ".join("ijk"[:len(shape)])
    a, b = (rng.integers(least, 100, shape).astype(np.float32) for _ in range(2))
    inner = draw_spec(rng, len(shape))
    return rng, a, b, inner, names, custom(lambda a, b: a * 2 + b, f"{names}, {names} -> {names}", arguments=[inner] * 2, result=inner)


@pytest.mark.parametrize("seed", range(10))
def test_any_sharding_to_any_other(seed):
    """Operands come as they lie, are brought to where a partition wants them, and its results from there to where they shall lie."""
    rng, a, b, _, _, f = drawn(seed, 0)
    rank = a.ndim
    out = NamedSharding(mesh(), draw_spec(rng, rank))
    got = jax.jit(lambda a, b: f(a, b - 1) * 2, out_shardings=out)(on(a, *draw_spec(rng, rank)), on(b, *draw_spec(rng, rank)))
    assert got.sharding.is_equivalent_to(out, rank)
    for part in got.addressable_shards:
        np.testing.assert_array_equal(part.data, ((a * 2 + b - 1) * 2)[part.index])


@pytest.mark.parametrize("seed", range(20))
def test_dimensions_that_do_not_divide(seed):
    """A partition is told how they are cut, and may cut them: the last parts have zeros behind the last elements (XLA:CPU's anything)."""
    rng, a, b, inner, names, f = drawn(seed, 1)
    rank = a.ndim
    some = tuple(slice(int(k), int(rng.integers(k + 1, n + 1))) for n in a.shape for k in [rng.integers(n)])
    axes = [x for dim in inner for x in dim or ()]
    total = custom(lambda a: a.sum(), f"{names} -> ", local=lambda a: jax.lax.psum(a.sum(), axes), arguments=[inner], result=P())

    def g(a, b):
        x = f(a[some], b[some] - 1)
        return x[1:] + x[:-1], total(x), x.T

    x = a[some] * 2 + b[some] - 1
    got = jax.jit(g)(on(a, *draw_spec(rng, rank)), on(b, *draw_spec(rng, rank)))
    for g, w in zip(got, (x[1:] + x[:-1], x.sum(), x.T), strict=True):
        np.testing.assert_array_equal(g, w)


def test_what_a_partition_sees_of_a_dimension_that_does_not_divide():
    seen = []
    got = jax.jit(lambda a: custom(lambda a: a + 1, "i j -> i j", seen=seen, local=lambda a: seen.append(a.shape) or a + 1)(a[1:]))(on(X, ("x", "y")))
    np.testing.assert_array_equal(got, X[1:] + 1)
    assert seen == [([P(("x", "y"), None)], P(("x", "y"), None)), (4, 8)]


def test_operands_that_disagree():
    seen = []
    f = custom(lambda a, b: a + b, "i j, i j -> i j", arguments=[P("x", None)] * 2, result=P("x", None), seen=seen)
    np.testing.assert_array_equal(jax.jit(f)(on(X, "x", None), on(X, None, "x")), X * 2)
    assert seen == [([P("x", None), P(None, "x")], P("x", None))]


def test_in_a_loop_and_its_gradient():
    f = custom(lambda a: a * 2, "i j -> i j")
    got = jax.jit(lambda a: jax.lax.scan(lambda c, _: (f(c), c.sum()), a, None, length=3))(on(X, "y", "x"))
    np.testing.assert_array_equal(got[0], X * 8)
    np.testing.assert_allclose(got[1], X.sum() * np.array([1, 2, 4]))
    g = jax.custom_vjp(f)
    g.defvjp(lambda a: (f(a), None), lambda _, d: (f(d),))
    np.testing.assert_array_equal(jax.jit(jax.grad(lambda a: (g(a) * X).sum()))(on(X, "x", "y")), X * 2)


def test_an_exception_is_the_users():
    def partition(mesh, args, out):
        raise RuntimeError("not on a Monday")

    f = custom_partitioning(lambda a: a)
    f.def_partition(partition, sharding_rule="i j -> i j")
    for _ in range(2):
        with pytest.raises(Exception, match="(?s)custom_partitioner.*not on a Monday"):
            jax.jit(f)(on(X, "x"))
    with pytest.raises(Exception, match="Mismatch in result shapes"):
        jax.jit(custom(lambda a: a, "i j -> i j", result=P("x", "y")))(on(X, "x"))
    np.testing.assert_array_equal(jax.jit(custom(lambda a: a, "i j -> i j"))(on(X, "x")), X)


def test_a_large_program():
    """It is compiled on a stack of its own."""
    def f(a):
        for k in range(300):
            a = jnp.sin(a) + k
        return custom(lambda a: a * 2, "i j -> i j")(a)

    np.testing.assert_allclose(jax.jit(f)(on(X, "x", "y")), f(X), rtol=1e-6)


def test_a_partition_that_compiles_itself():
    def partition(mesh, args, out):
        three = float(jax.jit(lambda v: v.sum())(np.ones(3, np.float32)))
        return mesh, lambda a: a + three, out.sharding, tuple(a.sharding for a in args)

    f = custom_partitioning(lambda a: a + 3)
    f.def_partition(partition, sharding_rule="i j -> i j")
    np.testing.assert_array_equal(jax.jit(f)(on(X, "x")), X + 3)


# --- looking at shardings ----------------------------------------------------------------------------------------------


def looks(f, *args, **how):
    """[(name, spec)] of what f, called with a function that looks, looks at."""
    seen = []
    jax.block_until_ready(jax.jit(lambda *a: f(
        lambda name, v: jax.debug.inspect_array_sharding(v, callback=lambda s: seen.append((name, s.spec))), *a), **how)(*args))
    return seen


def test_arguments_and_what_is_made_of_them():
    def f(look, a):
        look("argument", a)
        look("transpose", a.T)
        look("product", a @ a.T)
        look("reshape", a.reshape(-1))
        look("sum", a.sum(0))
        look("number", a.sum())
        look("constraint", jax.lax.with_sharding_constraint(a, NamedSharding(mesh(), P("y", "x"))))
        return a

    assert looks(f, on(X, "x", "y")) == [("argument", P("x", "y")), ("transpose", P("y", "x")), ("product", P("x")), ("reshape", P("x")),
                                         ("sum", P("y")), ("number", P()), ("constraint", P("y", "x"))]


def test_where_a_sharding_comes_from_behind():
    def f(look, a):
        b = a * 2
        look("made", b)
        return b

    assert looks(f, on(X), out_shardings=NamedSharding(mesh(), P("y", "x"))) == [("made", P("y", "x"))]


def test_in_loops_branches_and_manual_computations():
    def f(look, a):
        c, s = jax.lax.scan(lambda c, _: (look("carry", c), (jnp.tanh(c), c.sum()))[1], a, None, length=3)
        look("stack", s)
        c = jax.lax.cond(c[0, 0] > 0, lambda z: (look("branch", z), z * 2)[1], lambda z: z, c)
        for axes, name in (({"x", "y"}, "manual"), ({"x"}, "partly manual")):
            spec = P("x", "y") if "y" in axes else P("x")
            c = jax.shard_map(lambda b, name=name: (look(name, b), b)[1], mesh=mesh(), in_specs=spec, out_specs=spec, axis_names=axes)(c)
        return c

    assert sorted(looks(f, on(X, "x", "y"))) == [("branch", P("x", "y")), ("carry", P("x", "y")), ("manual", P()), ("partly manual", P(None, "y")), ("stack", P())]


def test_other_orders_of_devices_and_axes():
    turned = jax.sharding.Mesh(np.array(jax.devices())[[3, 1, 2, 0]].reshape(2, 2), ("a", "b"))
    assert looks(lambda look, a: (look("", a.T), a)[1], jax.device_put(X, NamedSharding(turned, P(("b", "a"))))) == [("", P(None, ("b", "a")))]


def test_eager_and_once_per_compilation():
    seen = []
    jax.debug.inspect_array_sharding(on(X, "x"), callback=lambda s: seen.append(s.spec))
    assert seen == [P("x")]
    f = jax.jit(lambda a: (jax.debug.inspect_array_sharding(a * 2, callback=lambda s: seen.append(s.spec)), a + 1)[1])
    for _ in range(3):
        np.testing.assert_array_equal(f(on(X, "x")), X + 1)
    assert seen == [P("x")] * 2


def test_who_looks_may_object():
    def no(sharding):
        raise ValueError("I do not like it")

    with pytest.raises(Exception, match="(?s)inspect_sharding.*I do not like it"):
        jax.jit(lambda a: (jax.debug.inspect_array_sharding(a, callback=no), a)[1])(on(X, "x"))


def test_a_picture(capsys):
    jax.jit(lambda a: (jax.debug.visualize_array_sharding(a), a)[1])(on(X, "x"))
    assert capsys.readouterr().out


# --- calls that may be made on parts of a batch ------------------------------------------------------------------------


def test_lapack_on_parts_of_a_batch():
    a = np.random.default_rng(1).standard_normal((8, 3, 3)).astype(np.float32)
    a = a + a.swapaxes(1, 2)
    f = jax.jit(lambda a: jnp.linalg.eigh(a))
    x = jax.device_put(a, NamedSharding(mesh(), P(("x", "y"))))
    w, v = f(x)
    np.testing.assert_allclose(w, np.linalg.eigh(a)[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(v @ (w[..., None] * v.swapaxes(1, 2)), a, rtol=1e-3, atol=1e-4)
    if jax.devices()[0].platform == "rondo":
        assert w.sharding.spec[0] == ("x", "y")
        assert "all_gather" not in f.lower(x).compile().as_text()


@pytest.mark.only_rondo("jaxlib's own client leaves them all cores")
def test_lapack_has_the_threads_of_a_device():
    """While it is called; before and after SciPy has what it had.  More, on several devices at once, wait for each other for long."""
    import ctypes
    import pathlib
    import threading

    import scipy.linalg.lapack  # noqa: F401

    def of(lib, what):
        names = [f"{p}openblas_{what}_num_threads{q}" for p in ("", "scipy_") for q in ("", "64_")]
        return next((getattr(lib, n) for n in names if hasattr(lib, n)), None)

    maps = pathlib.Path("/proc/self/maps").read_text().split()
    libs = [ctypes.CDLL(at) for at in sorted({w for w in maps if "openblas" in pathlib.Path(w).name})]
    all_ = [(of(lib, "get"), of(lib, "set")) for lib in libs]
    assert all_ and all(get and set_ for get, set_ in all_), maps
    had, seen, over = [get() for get, _ in all_], [set() for _ in all_], threading.Event()
    share = max(int(os.environ.get("RONDO_CORES") or 0) or len(os.sched_getaffinity(0)), 1) // len(jax.devices())
    try:
        for _, set_ in all_:
            set_(3)

        def look():
            while not over.is_set():
                for (get, _), s in zip(all_, seen):
                    s.add(get())
        watcher = threading.Thread(target=look)
        f = jax.jit(jnp.linalg.svd)
        x = jax.device_put(np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32), NamedSharding(mesh(), P()))
        watcher.start()
        jax.block_until_ready(f(x))
        over.set()
        watcher.join()
        for s in seen:
            assert min(max(share, 1), 3) in s and not s - {min(max(share, 1), 3), 3}, seen
        assert [get() for get, _ in all_] == [3] * len(all_)
    finally:
        over.set()
        for n, (_, set_) in zip(had, all_):
            set_(n)


def partly_manual(f, spec):
    return jax.jit(jax.shard_map(f, mesh=mesh(), in_specs=P("x"), out_specs=spec, axis_names={"x"}, check_vma=False))


def test_inside_a_computation_manual_over_some_axes():
    """Along the others it is done on whole values."""
    f = custom_partitioning(lambda a: jnp.cumsum(a, 1))
    f.def_partition(lambda _, args, out: (mesh(), lambda a: jnp.cumsum(a, 1), out.sharding, (args[0].sharding,)), sharding_rule="i j -> i j")
    g = partly_manual(lambda a: jax.lax.psum(f(a) * 2, "x"), P())
    for spec in ((), ("x", "y"), ("y",)):
        np.testing.assert_array_equal(g(on(X, *spec)), 2 * (np.cumsum(X[:8], 1) + np.cumsum(X[8:], 1)))


def test_what_cuts_inside_a_computation_manual_over_some_axes_is_refused():
    cut = NamedSharding(mesh(), P(None, "y"))
    f = custom_partitioning(lambda a: a + 1)
    f.def_partition(lambda *_: (mesh(), lambda a: a + 1, cut, (cut,)), sharding_rule="i j -> i j")
    with pytest.raises(Exception, match="cuts what is whole"):
        partly_manual(f, P("x"))(on(X, "x"))
