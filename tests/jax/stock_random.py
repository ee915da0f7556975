"""Random programs for 8 devices with few shardings, of which those are kept that meet no conflict in stock JAX: in each operation all dimensions of
a factor, as it writes its own rules down, have the same axes.  PROGRAMS are drawn, from SEED."""
import os
import re

import stock
import jax
import numpy as np
import random_programs
from jax._src.interpreters import mlir
from jax.sharding import AxisType, Mesh, NamedSharding as NS, PartitionSpec as P
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

CONSTANT = ("sdy.constant", "stablehlo.constant", "stablehlo.iota")     # repeated where they are read


def axes_of(sharding, rank):
    return [tuple(str(a) for a in sdy.DimensionShardingAttr(d).axes) for d in sdy.TensorShardingAttr(sharding).dimension_shardings] if sharding else [()] * rank


def attribute(op, which, n):
    """sdy.sharding of argument or result n of a function."""
    if which not in op.attributes:
        return None
    d = ir.DictAttr(ir.ArrayAttr(op.attributes[which])[n])
    return d["sdy.sharding"] if "sdy.sharding" in d else None


def of_result(op, n, rank):
    if "sdy.sharding" not in op.attributes:
        return [()] * rank
    a = op.attributes["sdy.sharding"]
    return axes_of(sdy.TensorShardingPerValueAttr(a).shardings[n] if sdy.TensorShardingPerValueAttr.isinstance(a) else a, rank)


def of_value(v):
    """Axes of each dimension; None of what is repeated where it is read, and of the numbers that a sort or sum is made of."""
    rank = ir.RankedTensorType(v.type).rank
    if isinstance(v.owner, ir.Block):
        op, n = v.owner.owner.operation, ir.BlockArgument(v).arg_number
        if op.name == "func.func":
            return axes_of(attribute(op, "arg_attrs", n), rank)
        return of_result(op, n, rank) if op.name == "stablehlo.while" else None
    op = v.owner.operation
    return None if op.name in CONSTANT else of_result(op, ir.OpResult(v).result_number, rank)


def split(axes, sizes, size):
    """The axes of a dimension, each to the factor that it cuts, from the major one; size gives what each factor has."""
    out, axes = [], list(axes)
    for k, room in enumerate(sizes):
        mine = []
        while axes and (k == len(sizes) - 1 or room % size(axes[0]) == 0 and room >= size(axes[0])):
            room //= size(axes[0])
            mine.append(axes.pop(0))
        out.append(tuple(mine))
    return out


def last(region):
    return list(region.blocks[0].operations)[-1]


def agrees(op, size):
    """Whether what goes into op and comes out of it needs no change."""
    pairs = []
    if op.name == "stablehlo.while":
        ends = [op.operands, last(op.regions[1]).operands]
        pairs = [(of_value(v), of_value(r)) for e in ends for v, r in zip(e, op.results)]
    elif op.name in ("stablehlo.case", "stablehlo.if"):
        pairs = [(of_value(v), of_value(r)) for branch in op.regions for v, r in zip(last(branch).operands, op.results)]
    elif op.name == "sdy.sharding_constraint":
        pairs = [(of_value(op.operands[0]), axes_of(op.attributes["sharding"], 0))]
    elif op.name == "sdy.reshard":
        pairs = [(of_value(op.operands[0]), of_value(op.results[0]))]
    elif op.name == "func.return":
        pairs = [(of_value(v), axes_of(attribute(op.parent, "res_attrs", n), ir.RankedTensorType(v.type).rank)) for n, v in enumerate(op.operands)]
    if any(a is not None and a != b for a, b in pairs):
        return False
    if "sdy.sharding_rule" not in op.attributes:
        return True
    rule, seen = sdy.OpShardingRuleAttr(op.attributes["sdy.sharding_rule"]), {}
    for v, mapping in [*zip(op.operands, rule.operand_mappings), *zip(op.results, rule.result_mappings)]:
        for axes, d in zip(of_value(v) or [], sdy.TensorMappingAttr(mapping).dim_mappings):
            factors = list(sdy.DimMappingAttr(d).factor_indices)
            for f, mine in zip(factors, split(axes, [rule.factor_sizes[f] for f in factors], size)):
                if seen.setdefault(f, mine) != mine:
                    return False
    return True


def conflict_free(text):
    sizes = {k: int(v) for body in re.findall(r"sdy\.mesh @\w+ = <\[(.*?)\]", text) for k, v in re.findall(r'"(\w+)"=(\d+)', body)}

    def size(axis):
        name, part = re.search(r'"(\w+)"(?::\(\d+\)(\d+))?', axis).groups()
        return int(part or sizes[name])

    def walk(op):
        return (op.name in CONSTANT or agrees(op, size)) and all(walk(o.operation) for r in op.regions for b in r.blocks for o in b.operations)
    with mlir.make_ir_context():
        return walk(ir.Module.parse(text).operation)


def drawn(seed):
    """The program of seed with few of its shardings: what stock JAX makes of it, and whether it meets no conflict."""
    c, few = random_programs.draw(seed, 8, "sharded"), np.random.default_rng(seed)
    dims, names, order = c.mesh
    mesh = Mesh(np.array([jax.devices()[k] for k in order]).reshape(dims), tuple(names), axis_types=(AxisType.Auto,) * len(dims))
    own, more, one = few.choice([0, 0, 0.15, 0.4]), few.choice([0, 0, 0.3]), few.integers(max(1, len(c.specs)))
    f = c.fn(ns={"shard": lambda x, *spec: jax.lax.with_sharding_constraint(x, NS(mesh, P(*spec))) if few.random() < own else x})
    given = tuple(NS(mesh, P(*s)) if k == one or few.random() < more else None for k, s in enumerate(c.specs))
    text = stock.dump(f"r{seed}", f, [jax.ShapeDtypeStruct(np.shape(x), x.dtype) for x in c.values()], in_shardings=given)
    return text, conflict_free(text[stock.AFTER])


def main():
    first, count = int(os.environ["SEED"]) % 10 ** 9, int(os.environ.get("PROGRAMS", 150))
    seeds = range(first + stock.PART, first + count, stock.PARTS)
    for k in range(0, len(seeds), 25):
        child = os.fork()
        if child:           # XLA aborts at some programs, later than what is asked of it here
            os.waitpid(child, 0)
            continue
        for seed in seeds[k:k + 25]:
            try:
                text, free = drawn(seed)
            except (jax.errors.JaxRuntimeError, ValueError):       # stock does not compile it, or it has no shardings and so is not written down
                continue
            if free:
                for kind, which in (("in", stock.BEFORE), ("out", stock.AFTER)):
                    (stock.OUT / f"r{seed}.{kind}.mlirbc").write_bytes(stock.artifact(text[which]))
        os._exit(0)


main()
