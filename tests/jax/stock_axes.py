"""Programs that use each operation once, compiled by stock JAX for 8 devices, which writes down the rule of dimensions of each operation.
    stock_axes.py FOLDER        leaves in FOLDER, for each program, NAME.mlirbc (what was compiled) and NAME.rules: a JSON list of
                                [operation, rule], of those whose rule has a factor"""
import json
import re

import stock  # first: it says which platform
import jax
import jax.extend
import jax.numpy as jnp
from jax import lax
from jax._src.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec as P
from jaxlib.mlir.dialects import stablehlo

f32 = jnp.float32
X, Y, V = jnp.ones((16, 24)), jnp.ones((24, 8)), jnp.ones((16,))
I = jnp.zeros((6, 1), jnp.int32)
CUBE = jnp.ones((4, 6, 10))


def dims(lc, rc, lb=(), rb=()):
    return ((lc, rc), (lb, rb))


def gathers(offset, collapsed, index_map, ob=(), ib=()):
    return lax.GatherDimensionNumbers(offset, collapsed, index_map, ob, ib)


def scatters(window, inserted, to, ob=(), sb=()):
    return lax.ScatterDimensionNumbers(window, inserted, to, ob, sb)


def conv(n, lhs, rhs, out, **kw):
    return lambda a, b: lax.conv_general_dilated(a, b, (1,) * n, "SAME", dimension_numbers=(lhs, rhs, out), **kw)


def primitive(name, like, make):
    """An operation that JAX on the CPU leaves to LAPACK."""
    p = jax.extend.core.Primitive(name)
    p.def_abstract_eval(lambda *a: a[like])
    mlir.register_lowering(p, lambda ctx, *a: [make(*a).result])
    return p.bind


def solves(left, trans):
    return primitive(f"triangular_solve_{left}_{trans}", 1, lambda a, b: stablehlo.TriangularSolveOp(
        a, b, left, True, False, stablehlo.TransposeAttr.get(trans)))


PROGRAMS = {
    "elementwise": (lambda a, b: jnp.where(a > b, jnp.sin(a) * b, lax.clamp(a, b, a)), X, X + 1),
    "convert": (lambda a: lax.reduce_precision(a, 5, 10).astype(jnp.int32), X),
    "complex": (lambda a: jnp.real(lax.complex(a, a) * 1j), X),
    "broadcast": (lambda a, b: (lax.broadcast_in_dim(a, (3, 16, 5), (1,)) * 2, lax.broadcast_in_dim(b, (7, 4), (0, 1)) * 2), V, jnp.ones((7, 1))),
    "transpose": (lambda a: a.transpose(2, 0, 1), CUBE),
    "reverse": (lambda a: lax.rev(a, (0, 2)), CUBE),
    "slice": (lambda a: a[1:3, :, ::2], CUBE),
    "dynamic_slice": (lambda a, i: lax.dynamic_slice(a, (i, 0, i), (2, 6, 5)), CUBE, 1),
    "dynamic_slice_vector": (lambda a, i: lax.dynamic_slice(a, (i,), (3,)), V, 1),
    "dynamic_update_slice": (lambda a, u, i: lax.dynamic_update_slice(a, u, (i, i, 0)), CUBE, jnp.ones((2, 6, 5)), 1),
    "dynamic_update_known": (lambda a, u: lax.dynamic_update_slice(a, u, (1, 0, 2)), CUBE, jnp.ones((2, 6, 5))),
    "concatenate": (lambda a, b: jnp.concatenate([a, b], 1), X, jnp.ones((16, 3))),
    "concatenate_slices": (lambda a: jnp.concatenate([a[:, 5:], a[:, :5]], 1), X),
    "concatenate_self": (lambda a: jnp.concatenate([a[:, 20:], a, a[:, :5]], 1), X),
    "pad": (lambda a: lax.pad(a, f32(0), [(1, 2, 0), (0, 0, 0)]), X),
    "reduce": (lambda a: (a.sum(1), a.max((0, 2))), CUBE),
    "argmax": (lambda a: jnp.argmax(a, 1), CUBE),
    "reduce_window": (lambda a: lax.reduce_window(a, f32(0), lax.add, (1, 3, 2), (1, 1, 2), "SAME"), CUBE),
    "cumsum": (lambda a: jnp.cumsum(a, 1), CUBE),
    "max_pool_gradient": (jax.grad(lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (1, 3, 2), (1, 3, 2), "VALID").sum()), CUBE),
    "sort": (lambda a: lax.sort(a, dimension=1), CUBE),
    "sort_two": (lambda a, b: lax.sort((a, b), dimension=0, num_keys=1), X, X.astype(jnp.int32)),
    "sort_vector": (lambda a: lax.sort(a), V),
    "top_k": (lambda a: lax.top_k(a, 3), X),
    "dot": (lambda a, b: a @ b, X, Y),
    "dot_vector": (lambda a, b: a.T @ b, X, V),
    "dot_batch": (lambda a, b: lax.dot_general(a, b, dims((2,), (1,), (0,), (2,))), CUBE, jnp.ones((7, 10, 4))),
    "dot_many": (lambda a, b: lax.dot_general(a, b, dims((1, 3), (2, 0))), jnp.ones((3, 4, 5, 6)), jnp.ones((6, 7, 4))),
    "convolution": (conv(2, "NHWC", "HWIO", "NHWC"), jnp.ones((2, 16, 9, 3)), jnp.ones((3, 3, 3, 8))),
    "convolution_wide": (lambda a, b: lax.conv_general_dilated(a, b, (1,), [(0, 0)], dimension_numbers=("NCH", "OIH", "NCH")), jnp.ones((2, 3, 16)),
                         jnp.ones((8, 3, 14))),
    "convolution_depthwise": (conv(1, "NHC", "HIO", "NHC", feature_group_count=4), jnp.ones((2, 16, 4)), jnp.ones((3, 1, 12))),
    "convolution_batches": (conv(1, "NHC", "HIO", "NHC", batch_group_count=2), jnp.ones((6, 16, 4)), jnp.ones((3, 4, 8))),
    "cholesky": (primitive("cholesky_", 0, lambda a: stablehlo.CholeskyOp(a, lower=True)), jnp.ones((5, 4, 4))),
    "triangular_solve": (solves(True, "NO_TRANSPOSE"), jnp.ones((5, 4, 4)), jnp.ones((5, 4, 3))),
    "triangular_solve_transposed": (solves(True, "TRANSPOSE"), jnp.ones((5, 4, 4)), jnp.ones((5, 4, 3))),
    "triangular_solve_right": (solves(False, "NO_TRANSPOSE"), jnp.ones((5, 4, 4)), jnp.ones((5, 3, 4))),
    "triangular_solve_right_adjoint": (solves(False, "ADJOINT"), jnp.ones((5, 4, 4)), jnp.ones((5, 3, 4))),
    "fft": (lambda a: jnp.fft.fft2(a), CUBE.astype(jnp.complex64)),
    "rfft": (lambda a: jnp.fft.rfft(a), CUBE),
    "rng_bits": (lambda s: lax.rng_bit_generator(s, (4, 6), jnp.uint32), jnp.zeros(4, jnp.uint32)),
    "bitcast": (lambda a: (lax.bitcast_convert_type(a, jnp.uint8), lax.bitcast_convert_type(a, jnp.int32)), X),
    "bitcast_wide": (lambda a: lax.bitcast_convert_type(a, jnp.float32), jnp.zeros((5, 4), jnp.uint8)),
    "take": (lambda a, i: lax.gather(a, i, gathers((1,), (0,), (0,)), (1, 24)), X, I),
    "take_part": (lambda a, i: lax.gather(a, i, gathers((1, 2), (), (0,)), (3, 24)), X, I),
    "take_one": (lambda a, i: lax.gather(a, i, gathers((1, 2), (), (0,)), (1, 24)), X, I),
    "take_batched": (lambda a, i: lax.gather(a, i, gathers((2,), (1,), (1,), (0,), (0,)), (1, 1, 10)), CUBE, jnp.zeros((4, 5, 1), jnp.int32)),
    "take_of_one": (lambda a, i: lax.gather(a, i, gathers((1,), (0,), (0,)), (1, 24)), X[:1] * 2, I),
    "scatter_add": (lambda a, i, u: lax.scatter_add(a, i, u, scatters((1,), (0,), (0,))), X, I, jnp.ones((6, 24))),
    "scatter": (lambda a, i, u: lax.scatter(a, i, u, scatters((1,), (0,), (0,))), X, I, jnp.ones((6, 24))),
    "scatter_part": (lambda a, i, u: lax.scatter_add(a, i, u, scatters((1, 2), (), (0,))), X, I, jnp.ones((6, 3, 24))),
    "scatter_batched": (lambda a, i, u: lax.scatter_add(a, i, u, scatters((2,), (1,), (1,), (0,), (0,))), CUBE, jnp.zeros((4, 5, 1), jnp.int32),
                        jnp.ones((4, 5, 10))),
}
for n, (a, b) in enumerate([((32,), (4, 8)), ((4, 8), (32,)), ((6, 4), (4, 6)), ((16, 24), (8, 2, 3, 8)), ((2, 3, 4), (24,)), ((1, 8), (8, 1)),
                            ((16, 24), (16, 1, 24)), ((12, 10), (8, 15)), ((5, 6), (15, 2)), ((4, 9), (6, 6)), ((2, 15, 7), (6, 35)), ((8, 8, 3), (4, 48))]):
    PROGRAMS[f"reshape_{n}"] = (lambda x, b=b: x.reshape(b) * 2, jnp.ones(a))


def rules(text):
    """Of each operation that is printed with one: the line that ends it may come after its regions."""
    out, begun = [], []
    for line in text.splitlines():
        line = line.strip()
        name = re.match(r'(?:%[^=]+ = |)"?stablehlo\.(\w+)"?', line)
        if name and line.endswith("({"):
            begun.append(name.group(1))
            continue
        name = begun.pop() if line.startswith("})") and begun else name and name.group(1)
        rule = re.search(r"sdy\.sharding_rule = #sdy\.op_sharding_rule<(\(.*?\)->\(.*?\).*?)>[},]", line)
        if rule and name and "{" in rule.group(1):
            out.append([name, rule.group(1)])
    return out


def main():
    cut = NamedSharding(jax.make_mesh((4, 2), ("x", "y")), P())
    for name, (f, *args) in stock.programs(PROGRAMS):
        text = stock.dump(name, f, args, in_shardings=cut)
        (stock.OUT / f"{name}.rules").write_text(json.dumps(rules(text[stock.AFTER])))
        (stock.OUT / f"{name}.mlirbc").write_bytes(stock.artifact(text[stock.BEFORE]))


main()
