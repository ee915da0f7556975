"""Programs that are sharded in part, compiled by stock JAX for 8 devices, which writes down the sharding of each value.
    stock_shardings.py FOLDER       leaves in FOLDER, for each program, NAME.in.mlirbc and NAME.out.mlirbc: before and after shardings are propagated"""
import stock  # first: it says which platform
import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.shard_alike import shard_alike
from jax.sharding import AxisType, NamedSharding as NS, PartitionSpec as P

MESH = {n: jax.make_mesh(s, tuple(a), axis_types=(AxisType.Auto,) * len(s)) for n, s, a in
        (("xy", (4, 2), "xy"), ("abc", (2, 2, 2), "abc"), ("d", (8,), "d"), ("six", (3, 2), "pq"), ("rev", (2, 4), "yx"))}
OPEN = P.UNCONSTRAINED
PROGRAMS = {}


def a(*shape, at=None, dtype=jnp.float32):
    """An argument; at: how it is sharded."""
    return jax.ShapeDtypeStruct(shape, dtype), at


def ints(*shape, at=None):
    return a(*shape, at=at, dtype=jnp.int32)


def program(name, f, *args, mesh="xy", out=None):
    PROGRAMS[name] = f, args, MESH[mesh], out


def shard(x, *spec, mesh="xy"):
    return lax.with_sharding_constraint(x, NS(MESH[mesh], P(*spec)))


# --- operations -------------------------------------------------------------------------

XY, XN, NX, YN, NY = P("x", "y"), P("x", None), P(None, "x"), P("y", None), P(None, "y")

program("elements", lambda x, y: jnp.where(x > y, jnp.sin(x), lax.clamp(0.0, y, 1.0)), a(16, 8, at=XN), a(16, 8, at=NY))
program("elements_conflict_free", lambda x, y, z: x * y + z, a(16, 8, at=XN), a(16, 8), a(16, 8, at=NY))
program("broadcast", lambda x, b: x + b[None, :] * jnp.arange(16.)[:, None], a(16, 8, at=XN), a(8, at=P("y")))
program("broadcast_scalar", lambda x: x / jnp.sum(x) + jnp.max(x), a(16, 8, at=XY))
program("transpose", lambda x: jnp.sin(x.transpose(2, 0, 1)) * 2, a(8, 4, 6, at=P("x", "y", None)))
program("two_axes_of_a_dimension", lambda x, u, w: jnp.exp((x @ u) @ w), a(8, 16, 64, at=P(("x", "y"))), a(64, 32), a(32, 64, at=NY))
program("reduce", lambda x: (x.sum(0), x.max(1), x.sum(), jnp.argmin(x, 1)), a(16, 8, at=XY))
program("reduce_back", lambda x: x.sum(0) * 2, a(16, 8), out=P("y"))
program("argmax_top_k", lambda x: (jnp.argmax(x, 1), x.max(0), lax.top_k(x, 2)), a(16, 8, at=XY))
program("dot", lambda x, w: x @ w, a(32, 16, at=XN), a(16, 8, at=NY))
program("dot_contracted", lambda x, w: (x @ w) + 1, a(32, 16, at=NX), a(16, 8))
program("dot_from_result", lambda x, w: x @ w, a(32, 16), a(16, 8), out=XY)
program("dot_batch", lambda x, y: jnp.einsum("bij,bjk->bik", x, y), a(8, 4, 6, at=P("x", None, None)), a(8, 6, 2, at=P(None, None, "y")))
program("concatenate", lambda x, y: jnp.concatenate([x, y], 0) * 2, a(16, 8, at=XY), a(16, 8))
program("roll", lambda x: jnp.roll(x, 1, 0) + x[::-1], a(16, 8, at=XY))
program("slices", lambda x: (x[2:10] * 2, x[:, ::2] + 1, x[4:6, 1:5]), a(16, 8, at=XY))
program("pad", lambda x: jnp.pad(x, ((1, 3), (0, 0))) * 2, a(16, 8, at=XY))
program("dynamic_update", lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)) + 1, a(16, 8, at=XY), a(1, 8), ints())
program("dynamic_update_from_update", lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)) + 1, a(16, 8), a(1, 8, at=NY), ints())
program("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, 0), (4, 8)) + 1, a(16, 8, at=XY), ints())
program("cumsum_sort", lambda x: jnp.cumsum(x, 0) + jnp.sort(x, 1), a(16, 8, at=XY))
program("sort_pairs", lambda x, y: lax.sort((x, y), dimension=1, num_keys=1), a(16, 8, at=XN), ints(16, 8))
program("sort_vector", lambda x: jnp.sort(x) * 2, a(64, at=P("x")))
program("fft", lambda x: jnp.fft.fft(x, axis=1).real, a(16, 8, at=XY))
program("barrier", lambda x: lax.optimization_barrier((jnp.sin(x), x * 2)), a(16, 8, at=XY))
program("bits", lambda x: lax.bitcast_convert_type(x, jnp.int32) + 1, a(16, 8, at=XY))
program("iota", lambda x: x * lax.broadcasted_iota(jnp.float32, (16, 8), 0) + jnp.eye(16, 8), a(16, 8, at=XY))
program("threefry", lambda k, x: x + jax.random.normal(k, (16, 8)), a(2, dtype=jnp.uint32), a(16, 8, at=XY))
program("uneven", lambda x: shard(jnp.sin(x)[:6], "x", None) * 2, a(8, 8))
program("pool", lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") * 2, a(8, 16, 16, 4, at=P("x", "y", None, None)))
program("pool_gradient", jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").sum()),
        a(8, 16, 16, 4, at=P("x", None, None, "y")))
program("gather_rows", lambda t, i: jnp.take(t, i, axis=0) * 2, a(128, 64, at=NY), ints(8, 16, at=XN))
program("gather_vocabulary", lambda t, i: jnp.take(t, i, axis=0) * 2, a(128, 64, at=YN), ints(8, 16, at=XN))
program("gather_along", lambda x, i: jnp.take_along_axis(x, i, 1), a(16, 8, at=XN), ints(16, 3))
program("scatter_rows", lambda t, i, u: t.at[i].add(u), a(128, 64, at=P(None, "y")), ints(32), a(32, 64, at=XN))
program("scatter_set", lambda t, i, u: t.at[i].set(u) * 2, a(128, 64, at=XN), ints(32), a(32, 64, at=NY))
program("scatter_back", jax.grad(lambda t, i: jnp.take(t, i, axis=0).sum()), a(128, 64), ints(32, at=P("x")), out=NY)
NHWC = ("NHWC", "HWIO", "NHWC")


def conv(x, w, stride=1, groups=1):
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=NHWC, feature_group_count=groups)


program("conv", conv, a(8, 16, 16, 4, at=P("x", None, None, None)), a(3, 3, 4, 8, at=P(None, None, None, "y")))
program("conv_space", lambda x, w: conv(x, w) + 1, a(8, 16, 16, 4, at=P("y", "x", None, None)), a(3, 3, 4, 8))
program("conv_contracted", lambda x, w: conv(x, w) + 1, a(8, 16, 16, 4, at=P("x", None, None, "y")), a(3, 3, 4, 8))
program("conv_depthwise", lambda x, w: conv(x, w, groups=4) + 1, a(8, 16, 16, 4, at=P("x", None, None, None)), a(3, 3, 1, 8))
program("conv_gradient", jax.grad(lambda w, x: (conv(x, w, 2) ** 2).sum()), a(3, 3, 4, 8, at=P(None, None, None, "y")),
        a(8, 16, 16, 4, at=P("x", None, None, None)))

# --- reshapes ------------------------------------------------------------------------------

program("split_merge", lambda x: jnp.sin(x.reshape(8, 4, 16).transpose(1, 0, 2).reshape(4, 128)), a(32, 16, at=XY))
program("merge_all", lambda x: jnp.sin(x.reshape(32 * 16)) * 2, a(32, 16, at=XY))
program("merge_major", lambda x: jnp.sin(x.reshape(32 * 16)) * 2, a(32, 16, at=P(("x", "y"), None)))
program("merge_filled", lambda x: jnp.sin(x.reshape(4 * 16)) * 2, a(4, 16, at=XY))
program("split_small", lambda x: jnp.cos(x.reshape(2, 16, 16)), a(32, 16, at=P(("x", "y"), None)))
program("split_heads", lambda x: jnp.cos(x.reshape(8, 16, 4, 8)), a(8, 16, 32, at=P("x", None, "y")))
program("merge_heads", lambda x: jnp.cos(x.reshape(8, 16, 32)), a(8, 16, 4, 8, at=P("x", None, "y", None)))
program("split_back", lambda x: x.reshape(4, 8) * 2, a(32), out=P("x", "y"))
program("merge_back", lambda x: x.reshape(32) * 2, a(4, 8), out=P("x"))
program("merge_both_back", lambda x: x.reshape(32) * 2, a(4, 8), out=P(("x", "y")))
program("prime", lambda x: x.reshape(6, 15) * 2, a(9, 10, at=P("p", None)), mesh="six")
program("coprime", lambda x: jnp.sin(x.reshape(2, 3, 12)), a(6, 12, at=P(("p", "q"), None)), mesh="six")
program("one", lambda x: x.reshape(16, 1, 8)[:, 0] + 1, a(16, 8, at=XY))

# --- constraints ---------------------------------------------------------------------------

program("closed", lambda x, y: shard(x @ y, "x", "y") + 1, a(32, 16), a(16, 8))
program("open", lambda x, y: shard(x @ y, "x", OPEN) + 1, a(32, 16), a(16, 8, at=NY))
program("replicated", lambda x: jnp.cos(shard(jnp.sin(x), None, None)) * 2, a(32, 16, at=XY))
program("chain", lambda x: shard(jnp.sin(shard(jnp.cos(x), "x", None)), None, "x"), a(32, 16, at=YN))
program("chain_directly", lambda x: jnp.sin(shard(shard(jnp.cos(x), "x", None), None, "x")), a(32, 16))
program("two_readers", lambda x: (shard(jnp.cos(x), "x", None) * 2, shard(jnp.cos(x), None, "y") + 1), a(32, 16))
program("one_value_two_ways", lambda x: (lambda y: (shard(y, "x", None) * 2, shard(y, None, "y") + 1))(jnp.sin(x)), a(32, 16))
program("of_an_argument", lambda x: (shard(x, "x", None) * 2, jnp.sin(x)), a(32, 16))
program("in_a_loop", lambda x: lax.fori_loop(0, 5, lambda i, c: shard(jnp.sin(c), "x", None), x), a(32, 16))
program("results_given", lambda x: (jnp.sin(x), jnp.cos(x)), a(32, 16), out=(XN, NY))
program("argument_and_result", lambda x: x, a(32, 16, at=XN), out=NY)
program("alike", lambda x, y: (lambda p: (p[0] * 2, p[1] + 1))(shard_alike(jnp.sin(x), jnp.cos(y))), a(16, 8, at=XN), a(16, 8))
program("alike_given", lambda x, y: jnp.sin(shard_alike(x, y)[0]), a(16, 8, at=XN), a(16, 8, at=NY))
program("alike_back", lambda x, y: (lambda p: p[0] * 2 @ p[1].T)(shard_alike(jnp.sin(x), jnp.cos(y))), a(16, 8), a(16, 8, at=NY))
program("alike_three", lambda x, y, z: (lambda p, q: (p[0] * 2, p[1] + 1, q[1] + 3))(shard_alike(jnp.sin(x), y), shard_alike(y, jnp.cos(z))), a(16, 8), a(16, 8), a(16, 8, at=XY))
program("alike_in_a_loop", lambda x, y: lax.fori_loop(0, 3, lambda i, c: shard_alike(jnp.sin(c), c)[0], x) + jnp.cos(y), a(16, 8), a(16, 8, at=XN))

# --- regions -------------------------------------------------------------------------------

program("cond", lambda p, x: lax.cond(p > 0, lambda a: jnp.sin(a), lambda a: a * 2, x), ints(), a(16, 8, at=XY))
program("cond_from_branch", lambda p, x, y: lax.cond(p > 0, lambda a, b: jnp.sin(a), lambda a, b: b * 2, x, y), ints(), a(16, 8, at=XN), a(16, 8))
program("while", lambda x: lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1], a(16, 8, at=XY))
program("while_from_body", lambda x, w: lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.sin(c[1] @ w)), (0, x))[1], a(16, 8), a(8, 8, at=NY))
program("while_asks", lambda x: lax.while_loop(lambda c: c.sum() < 5, lambda c: c + 1, x), a(16, 8, at=XY))
program("while_constrained", lambda x: shard(lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1], None, "y"), a(16, 8, at=XN))
program("cond_constrained", lambda p, x: shard(lax.cond(p > 0, lambda a: jnp.sin(a), lambda a: a * 2, x), None, "y"), ints(), a(16, 8, at=XN))
program("barrier_constrained", lambda x: shard(lax.optimization_barrier(jnp.sin(x)), None, "y"), a(16, 8, at=XN))
program("scan", lambda ws, x: lax.scan(lambda c, w: (jnp.tanh(c @ w), c.sum()), x, ws), a(6, 64, 64, at=P(None, None, "y")), a(32, 64, at=XN))
program("scan_gradient", jax.grad(lambda ws, x: lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0].sum()), a(6, 64, 64, at=P(None, "x", "y")),
        a(32, 64, at=XN))
program("scan_stack_sharded", lambda xs: lax.scan(lambda c, x: (c + x.sum(0), jnp.sin(x)), jnp.zeros(8), xs), a(8, 4, 8, at=P("x", None, "y")))
program("scan_nested", lambda x: lax.scan(lambda c, _: lax.scan(lambda d, _: (jnp.sin(d), None), c, None, length=3), x, None, length=2)[0], a(16, 8, at=XY))
program("scan_accumulates", jax.grad(lambda w, xs: lax.scan(lambda c, x: (c + jnp.tanh(x @ w).sum(), None), 0., xs)[0]), a(16, 8),
        a(4, 32, 16, at=P(None, "x", None)), out=NY)
program("shard_map", lambda x, w: jax.shard_map(lambda p, q: lax.psum(p @ q, "x"), mesh=MESH["xy"], in_specs=(NX, XN), out_specs=P())(x, w) + 1,
        a(8, 16), a(16, 4))
program("shard_map_part", lambda x, w: jax.shard_map(lambda p, q: jnp.sin(p @ q), mesh=MESH["xy"], in_specs=(XN, P()), out_specs=XN, axis_names={"x"})(x, w) + 1,
        a(16, 16, at=NY), a(16, 4, at=NY))
program("shard_map_part_out", lambda x: jax.shard_map(lambda p: jnp.sin(p) + lax.psum(p, "x"), mesh=MESH["xy"], in_specs=XN, out_specs=XN, axis_names={"x"})(x) + 1,
        a(16, 8), out=XY)
program("shard_map_part_loop", lambda x: jax.shard_map(lambda p: lax.fori_loop(0, 3, lambda i, c: lax.ppermute(jnp.sin(c), "x", [(0, 1), (1, 2), (2, 3), (3, 0)]), p),
                                                       mesh=MESH["xy"], in_specs=XN, out_specs=XN, axis_names={"x"})(x) * 2, a(16, 8, at=NY))

# --- models ----------------------------------------------------------------------------------


def mlp(w1, w2, x):
    return jnp.tanh(x @ w1) @ w2


def norm(x, g):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * g


def attention(q, k, v):
    s = jnp.einsum("bshd,bthd->bhst", q, k) / 8
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -1e9)
    return jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(s, -1), v)


def block(p, x, constrain=lambda x: x):
    b, s, e = x.shape
    h = norm(x, p["g"])
    q, k, v = (jnp.einsum("bse,ehd->bshd", h, p[n]) for n in "qkv")
    x = constrain(x + jnp.einsum("bshd,hde->bse", attention(q, k, v), p["o"]))
    h = norm(x, p["g"])
    return constrain(x + jax.nn.gelu(h @ p["up"]) @ p["down"])


def weights(g=None, qkv=None, o=None, up=None, down=None):
    spec = dict(g=g, q=qkv, k=qkv, v=qkv, o=o, up=up, down=down)
    shape = dict(g=(32,), q=(32, 4, 8), k=(32, 4, 8), v=(32, 4, 8), o=(4, 8, 32), up=(32, 64), down=(64, 32))
    return {n: jax.ShapeDtypeStruct(shape[n], jnp.float32) for n in shape}, spec


S = a(8, 16, 4, 8)
program("mlp", mlp, a(64, 128, at=NX), a(128, 64, at=XN), a(32, 64, at=YN))
program("mlp_from_one", mlp, a(64, 128), a(128, 64, at=XN), a(32, 64))
program("mlp_gradient", jax.grad(lambda p, q, x: mlp(p, q, x).sum(), argnums=(0, 1)), a(64, 128, at=NY), a(128, 64, at=YN), a(32, 64, at=XN))
program("mlp_8", jax.grad(lambda p, q, x: mlp(p, q, x).sum(), argnums=(0, 1)), a(64, 128, at=P(None, "d")), a(128, 64), a(32, 64), mesh="d")
program("norm", norm, a(8, 16, 64, at=P("x", "y", None)), a(64))
program("norm_features", norm, a(8, 16, 64, at=P("x", None, "y")), a(64))
program("attention", attention, a(8, 16, 4, 8, at=P("x", None, "y", None)), S, S)
program("attention_sequence", attention, a(8, 16, 4, 8, at=P(None, "x", None, None)), a(8, 16, 4, 8, at=P(None, None, "y")), S)
program("attention_gradient", jax.grad(lambda q, k, v: attention(q, k, v).sum(), argnums=(0, 1, 2)), a(8, 16, 4, 8, at=P("x", None, "y", None)), S, S)
program("loss", lambda h, w, y: -jnp.take_along_axis(jax.nn.log_softmax(h @ w), y[:, None], 1).mean(), a(32, 16, at=XN), a(16, 64, at=NY), ints(32, at=P("x")))
program("loss_gradient", jax.grad(lambda w, h, y: -jnp.take_along_axis(jax.nn.log_softmax(h @ w), y[:, None], 1).mean()), a(16, 64, at=NY), a(32, 16, at=XN),
        ints(32, at=P("x")))
DATA = a(8, 16, 32, at=P("x", None, None))
TENSOR = weights(qkv=P(None, "y", None), o=P("y", None, None), up=NY, down=YN)
FSDP = weights(g=P("x"), qkv=P("x", None, None), o=P(None, None, "x"), up=XN, down=NX)
SEQUENCE = lambda x: shard(x, "x", "y", None)  # noqa: E731
for name, p, make in (("data", weights(), block), ("tensor", TENSOR, block), ("fsdp", FSDP, block), ("sequence", TENSOR, lambda p, x: block(p, x, SEQUENCE))):
    program("block_" + name, make, p, DATA)
    program(f"block_{name}_gradient", jax.grad(lambda p, x, make=make: (make(p, x) ** 2).mean()), p, DATA, out=p[1] if name != "data" else None)
program("block_cube", block, weights(qkv=P(None, "b", None), o=P("b", None, None), up=P(None, ("b", "c")), down=P(("b", "c"), None)),
        a(8, 16, 32, at=P("a", "c", None)), mesh="abc")
program("block_reversed", block, TENSOR, DATA, mesh="rev")


def main():
    for name, (f, args, mesh, out) in stock.programs(PROGRAMS):
        def on(spec, mesh=mesh):
            return jax.tree.map(lambda s: None if s is None else NS(mesh, s), spec, is_leaf=lambda s: s is None or isinstance(s, P))
        given = {} if out is None else {"out_shardings": on(out)}
        text = stock.dump(name, f, [x for x, _ in args], in_shardings=tuple(on(s) for _, s in args), **given)
        for k, which in (("in", stock.BEFORE), ("out", stock.AFTER)):
            (stock.OUT / f"{name}.{k}.mlirbc").write_bytes(stock.artifact(text[which]))


main()
