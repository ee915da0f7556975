"""What JAX writes of programs, as the portable bytecode that the command `rondo` reads, to standard output; or why that cannot be, and status 1.

    python -m rondo.portable <newest StableHLO that is read> <file>

The file: text of `lowered.as_text()` or of JAX_DUMP_IR_TO, or what `jax.export.export(..)(..).serialize()` gives.
"""
import pathlib
import sys


def module_of(file):
    """The program of a text, whose lines are those of the file unless it says others, or of an export; the platforms of an export."""
    from jaxlib.mlir import ir
    data = pathlib.Path(file).read_bytes()
    if b"func.func" in data:
        return ir.Module.parseFile(file), ()
    from jax import export
    try:
        exported = export.deserialize(bytearray(data))
    except Exception as e:
        raise ValueError("this is neither StableHLO, as text or bytecode, nor what jax.export serializes") from e
    for k, aval in enumerate(exported.in_avals):
        if not all(isinstance(n, int) for n in aval.shape):
            raise ValueError(f"argument {k} of this export is {aval}, of any size: export it with numbers")
    return ir.Module.parse(exported.mlir_module()), exported.platforms


def here(module, platforms):
    """Where a program of several platforms asks which one it is on: on Rondo, or on what is said of cpu."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo
    main = next(op for op in module.body.operations if op.operation.name == "func.func" and op.name.value == "main")
    attrs, kind = list(main.arg_attrs), main.type
    asks = [i for i, a in enumerate(attrs) if "jax.global_constant" in a and ir.StringAttr(a["jax.global_constant"]).value == "_platform_index"]
    if not asks or not platforms:
        return
    mine = next((p for p in ("rondo", "cpu") if p in platforms), None)
    if mine is None:
        raise ValueError(f"this export is for {', '.join(platforms)}: export it for rondo, or for cpu")
    at, block = asks[0], main.entry_block
    with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
        number = ir.IntegerAttr.get(ir.RankedTensorType(kind.inputs[at]).element_type, platforms.index(mine))
        which = stablehlo.constant(ir.DenseElementsAttr.get_splat(kind.inputs[at], number))
    block.arguments[at].replace_all_uses_with(which)
    block.erase_argument(at)
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get([t for i, t in enumerate(kind.inputs) if i != at], kind.results))
    main.arg_attrs = ir.ArrayAttr.get([a for i, a in enumerate(attrs) if i != at])


def portable(file, newest):
    from jax._src.interpreters import mlir
    from jaxlib import _jax
    from jaxlib.mlir.dialects import stablehlo
    with mlir.make_ir_context():
        module, platforms = module_of(file)
        here(module, platforms)
        return _jax.mlir.serialize_portable_artifact(mlir.module_to_bytecode(module), stablehlo.get_smaller_version(newest, stablehlo.get_current_version()), True)


def main(newest, file):
    try:
        sys.stdout.buffer.write(portable(file, newest))
    except BaseException as e:  # noqa: BLE001  (whatever it is, the command tells it)
        sys.stdout.write(" ".join(f"{'' if isinstance(e, ValueError) else type(e).__name__ + ': '}{e}".split())[:500])
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
