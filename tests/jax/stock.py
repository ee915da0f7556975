"""For scripts that run stock JAX: what it makes of a program for 8 devices, by what it writes down before and after shardings are propagated.
The script's first argument is the folder for that, the others which part it does, of how many."""
import os
import pathlib
import re
import sys

OUT = pathlib.Path(sys.argv[1])
PART, PARTS = [int(n) for n in sys.argv[2:4]] or (0, 1)
os.environ["XLA_FLAGS"] = ("--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
                           f"--xla_dump_to={OUT}/dump{PART} --xla_dump_hlo_pass_re=.*shardy.*")
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
from jax._src.interpreters import mlir  # noqa: E402
from jax._src.lib import _jax  # noqa: E402
from jaxlib.mlir import ir  # noqa: E402
from jaxlib.mlir.dialects import stablehlo  # noqa: E402

BEFORE, AFTER = "01.before_propagation.mlir", "02.after_propagation.mlir"
seen = set()


def programs(all):
    """Those of this part."""
    return list(all.items())[PART::PARTS]


def dump(name, f, args, **jit):
    """f compiled for args: the texts BEFORE and AFTER."""
    def program(*a):
        return f(*a)
    program.__name__ = name
    jax.jit(program, **jit).lower(*args).compile()
    new = [p for p in (OUT / f"dump{PART}" / "shardy").glob("*") if p not in seen and p.name.endswith("jit_" + name)]
    seen.update(new)
    folder, = new
    return {k: (folder / k).read_text() for k in (BEFORE, AFTER)}


def artifact(text):
    """The text as a plug-in gets it; functions of elements that StableHLO has none for are calls, which would be written without their shardings."""
    text = re.sub(r"mhlo\.(\w+) (%[\w#]+) (\{.*\} )?: (tensor<\S+>)$", r"stablehlo.custom_call @mhlo.\1(\2) \3: (\4) -> \4", text, flags=re.M)
    with mlir.make_ir_context():
        module = ir.Module.parse(text.replace("sdy.constant", "stablehlo.constant"))
        return _jax.mlir.serialize_portable_artifact(mlir.module_to_bytecode(module), stablehlo.get_current_version(), True)
