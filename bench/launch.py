#!/usr/bin/env python3
"""What a launch takes: programs of which all parameters are donated, each call on the results of the call before.

    bench/launch.py                     1 and 2 devices: through JAX beside XLA:CPU, and at the interface to JAX alone
    bench/launch.py --devices 1 --arrays 30

jax      the same function on Rondo and on XLA:CPU, in one process, in turns; the ratio is the median of each round's time over that of XLA:CPU in
         the same round.  Calls follow each other without waiting; the last one is waited for.
execute  the same program at PJRT's Execute (bench/launch.c), us a device: all of a call with the end of the buffers that it has used up, and what of
         that is within Execute; in turns with calls that find one array shown twice, and take all others one by one."""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ELEMENTS = 16


def function(mesh, arrays):
    import jax
    from jax.sharding import NamedSharding, PartitionSpec as P

    where = NamedSharding(mesh, P("i"))
    return jax.jit(lambda s: [x + 1 for x in s], donate_argnums=0, in_shardings=([where] * arrays,), out_shardings=[where] * arrays), where


def through_jax(n, arrays, rounds, calls):
    import jax
    import numpy as np
    from jax.sharding import Mesh

    sides = {}
    for platform in ("rondo", "cpu"):
        f, where = function(Mesh(np.array(jax.devices(platform)[:n]), ("i",)), arrays)
        sides[platform] = [f, [jax.device_put(np.zeros(n * ELEMENTS, np.float32), where) for _ in range(arrays)]]
    took = {platform: [] for platform in sides}
    for k in range(rounds + 1):
        for platform, side in sides.items():
            f, state = side
            start = time.perf_counter()
            for _ in range(calls):
                state = f(state)
            jax.block_until_ready(state)
            side[1] = state
            if k:                                     # the first one warms up
                took[platform].append((time.perf_counter() - start) / calls)
    for f, state in sides.values():
        assert all((np.asarray(x) == (rounds + 1) * calls).all() for x in state)
    ours, theirs = took["rondo"], took["cpu"]
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    print(f"jax, {n} devices, {arrays} donated: {1e6 * statistics.median(ours):8.1f} us, XLA:CPU {1e6 * statistics.median(theirs):8.1f} us, ratio {ratio:.3f}", flush=True)


def at_execute(n, arrays, rounds, calls):
    import jax
    import numpy as np
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax.sharding import Mesh
    from jaxlib import _jax
    from jaxlib.mlir.dialects import stablehlo

    f, _ = function(Mesh(np.array(jax.devices("rondo")[:n]), ("i",)), arrays)
    text = f.lower([jax.ShapeDtypeStruct((n * ELEMENTS,), np.float32)] * arrays).compiler_ir()
    options = compiler.get_compile_options(num_replicas=1, num_partitions=n, device_assignment=np.arange(n).reshape(1, n))
    with tempfile.TemporaryDirectory() as temp:
        temp = pathlib.Path(temp)
        (temp / "program").write_bytes(_jax.mlir.serialize_portable_artifact(mlir.module_to_bytecode(text), stablehlo.get_current_version(), True))
        (temp / "options").write_bytes(options.SerializeAsString())
        subprocess.run(["cc", "-O2", "-std=c17", "-D_GNU_SOURCE", "-o", temp / "launch", HERE / "launch.c", "-ldl"], check=True)
        plugin = os.environ.get("RONDO_LIBRARY") or HERE.parent / "build" / "librondo.so"
        out = subprocess.run([temp / "launch", plugin, temp / "program", temp / "options", *map(str, (n, arrays, ELEMENTS, calls, rounds))],
                             capture_output=True, text=True, check=True).stdout
    columns = zip(*(map(float, line.split()) for line in out.splitlines()), strict=True)
    again, inside, apart, inside_apart = (statistics.median(c) / n for c in columns)
    print(f"execute, {n} devices, {arrays} donated: {again:8.2f} us a device, within Execute {inside:.2f}; one by one {apart:.2f}, within Execute {inside_apart:.2f}", flush=True)


ROWS = {"jax": through_jax, "execute": at_execute}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--only", default=",".join(ROWS), help="some of " + ", ".join(ROWS))
    a.add_argument("--devices", default="1,2")
    a.add_argument("--arrays", type=int, default=300)
    a.add_argument("--rounds", type=int, default=101)
    a.add_argument("--calls", type=int, default=20)
    a.add_argument("--inside", help=argparse.SUPPRESS)
    o = a.parse_args()
    if o.inside:
        ROWS[o.inside](int(o.devices), o.arrays, o.rounds, o.calls)
        return
    for what in o.only.split(","):
        if what not in ROWS:
            a.error(f"no row '{what}': it is one of {', '.join(ROWS)}")
        for n in o.devices.split(","):
            env = dict(os.environ, JAX_PLATFORMS="rondo,cpu", RONDO_DEVICES=n, XLA_FLAGS=f"--xla_force_host_platform_device_count={n}")
            subprocess.run([sys.executable, __file__, "--inside", what, "--devices", n, "--arrays", str(o.arrays), "--rounds", str(o.rounds), "--calls", str(o.calls)],
                           env=env, check=True)


if __name__ == "__main__":
    main()
