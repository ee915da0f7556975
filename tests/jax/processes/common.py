"""What the programs of this folder share: they are started as several processes by ../test_processes.py, with
PROCESS, PROCESSES, DEVICES (of one process) and COORDINATOR in the environment."""
import os
import pathlib
import random
import sys

import jax

ME, ALL, DEVICES = (int(os.environ[k]) for k in ("PROCESS", "PROCESSES", "DEVICES"))
jax.config.update("jax_num_cpu_devices", DEVICES)
if ALL > 1:
    jax.distributed.initialize(os.environ["COORDINATOR"], ALL, ME)

import numpy as np  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

N = ALL * DEVICES
DRAWS = int(os.environ.get("DRAWS", 100))
number = random.Random(os.environ.get("SEED")).random       # the same in all processes
failures = 0


def mesh(*shape, names=("x",)):
    return Mesh(np.array(jax.devices()).reshape(shape or (N,)), names)


def spread(x, m=None, spec=P("x")):
    """The same numpy array on every process -> a global array."""
    return jax.make_array_from_callback(x.shape, NamedSharding(m or mesh(), spec), lambda index: x[index], dtype=x.dtype)


def sharded(f, ins=P("x"), outs=P("x"), m=None, **kwargs):
    return jax.jit(jax.shard_map(f, mesh=m or mesh(), in_specs=ins, out_specs=outs, check_vma=False), **kwargs)


def same(got, want, tolerance=0.0, what=""):
    """Every local shard of a global array is that part of want."""
    for s in got.addressable_shards:
        a, b = np.asarray(s.data), want[s.index]
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(a.astype(wide), b.astype(wide), rtol=tolerance, atol=tolerance, err_msg=f"{what} on {s.device}")
        assert a.shape == b.shape, (what, a.shape, b.shape)


def received():
    return int(pathlib.Path("/sys/class/net/wire/statistics/rx_bytes").read_text())


def blocks_into(g, x, times, block):
    """How many blocks, of so many bytes, come into this host, each time that g(*x) runs; the host has a cable of its own."""
    jax.block_until_ready(g(*x))
    multihost_utils.sync_global_devices("still")
    before = received()
    multihost_utils.sync_global_devices("begin")        # nobody sends before all have read
    for _ in range(times):
        jax.block_until_ready(g(*x))
    multihost_utils.sync_global_devices("end")
    return (received() - before) / times / block


def case(f):
    """Run it now, or DRAWS percent of such; a failure is printed and counted."""
    global failures
    if DRAWS < 100 and number() * 100 >= DRAWS:
        return
    try:
        f()
        print("passed", f.__name__, flush=True)
    except Exception:  # noqa: BLE001
        import traceback
        failures += 1
        print("failed", f.__name__, flush=True)
        traceback.print_exc()


def end():
    sys.exit(1 if failures else 0)
