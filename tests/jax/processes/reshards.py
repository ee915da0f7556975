"""From one sharding to another between hosts: what a host's devices want of the others comes once, and they pass it on."""
from common import ALL, DEVICES, ME, blocks_into, case, end, mesh, same, spread

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P


def bytes_of_reshards():
    x, m = np.arange(1024 * 1024, dtype=np.float32).reshape(1024, 1024), mesh(ALL, DEVICES, names=("x", "y"))
    for frm, to in ((P("x"), P(None, "x")), (P("x", "y"), P(None, "x")), (P(("x", "y")), P(None, "x")), (P("x", "y"), P()), (P("y", "x"), P("x"))):
        f = jax.jit(lambda v: v, out_shardings=NamedSharding(m, to))
        a = spread(x, m, frm)
        same(f(a), x, what=f"{frm} to {to}")
        has, want = np.zeros(x.shape, bool), np.zeros(x.shape, bool)
        for all, spec in ((has, frm), (want, to)):
            for index in NamedSharding(m, spec).addressable_devices_indices_map(x.shape).values():
                all[index] = True
        each, lacks = blocks_into(f, [a], 20, x.nbytes), (want & ~has).mean()
        print(f"{frm} to {to}: {each:.3f} of the array into host {ME}, which lacks {lacks:.3f}", flush=True)
        assert lacks <= each <= 1.1 * lacks + 0.02


case(bytes_of_reshards)
end()
