"""JAX's own cpu, asked what is right: where it shall give the same numbers, and not fast code, it compiles in a fraction of the time."""
import contextlib
import functools

import jax
import numpy as np

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True, "xla_cpu_use_fusion_emitters": False,
         "xla_cpu_parallel_codegen_split_count": 1}


@functools.cache
def options(cpu):
    """Those of QUICK that this XLA:CPU knows."""
    known = {}
    for k, v in QUICK.items():
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            jax.jit(lambda x: x).lower(jax.device_put(np.float32(0), cpu)).compile(compiler_options={k: v})
            known[k] = v
    return known


def on_cpu(f, *args):
    """What f gives on one device of JAX's cpu."""
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu):
        args = jax.device_put(args, cpu)
        program = jax.jit(f).lower(*args)
        try:
            return program.compile(compiler_options=options(cpu))(*args)
        except jax.errors.JaxRuntimeError:              # products of some types need the code that is slow to make
            return program.compile()(*args)
