"""Programs under as much memory as compiled.memory_analysis() says that they take, and 1 %, and under 0.85 of it.

    python peak.py [FOLDER [NAME ...]]       products of its own; or the programs of a corpus, NAME: a group or group/program

What is left of the memory is held by an array; so programs of a few bytes are told as well.  The last line says "N passed, N failed"."""
import os
import sys

FOLDER, NAMES = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else (None, [])
os.environ |= {"RONDO_MEMORY": "64M" if FOLDER else "512M", "RONDO_DEVICES": "8" if FOLDER else "1", "RONDO_CACHE": ""}
sys.path[:0] = [FOLDER] if FOLDER else []

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

UNIT = 64                                                       # what an array is rounded up to


class Own:
    x64 = False

    def __init__(self, name, fn, *shapes, dtype=np.float32):
        self.name, self.fn, self.shapes, self.dtype = name, fn, shapes, dtype

    def build(self):
        return self.fn, tuple(np.ones(s, self.dtype) for s in self.shapes)


OWN = [
    Own("product f32", lambda a, b: a @ b, (3000, 2777), (2777, 3333)),
    Own("products bf16", lambda a, b: ((a @ b) @ (b @ a)).astype(jnp.float32), (2048, 2048), (2048, 2048), dtype=jnp.bfloat16),
    Own("product of transposed", lambda a, b: jnp.einsum("ki,kj->ij", a, b), (4096, 2100), (4096, 1900)),
    Own("many products", lambda a, b: jnp.einsum("bij,bkj->bik", a, b), (12, 777, 513), (12, 901, 513)),
    Own("products of few rows", lambda a, b: jnp.tanh(a @ b) @ b.T, (9, 4096), (4096, 8192)),
    Own("long product", lambda a, b: a @ b, (96, 300000), (300000, 80)),
    Own("sort", lambda a: jnp.sort(a * 2), (1 << 22,)),
    Own("gradient", jax.grad(lambda w, x: sum((jnp.tanh(x @ a) ** 2).sum() for a in w)), (4, 1000, 1500), (3000, 1000)),
    Own("bytes", lambda a, b: [a + k for k in range(9)] + [(b > k).sum() for k in range(9)], (3,), (5, 7)),
    Own("nothing", lambda a: (a[:0], a[1:2]), (3,)),
]


def free():
    """Of the memory that all devices share."""
    stats = [d.memory_stats() for d in jax.devices()]
    return stats[0]["bytes_limit"] - sum(s["bytes_in_use"] for s in stats)


def zone_back():
    """What programs before worked in is given back when memory is short."""
    try:
        jax.device_put(np.zeros(free() + UNIT, np.uint8), jax.devices()[0]).delete()
    except (jax.errors.JaxRuntimeError, ValueError):
        pass


def under(compiled, build, room):
    """What becomes of a launch with so much room beside its arguments."""
    args = build()
    zone_back()
    fill = jax.device_put(np.zeros(free() - (room + UNIT - 1) // UNIT * UNIT, np.uint8), jax.devices()[0])
    try:
        jax.block_until_ready(compiled(*args))
    except (jax.errors.JaxRuntimeError, ValueError) as e:
        return str(e).split(":")[0]
    finally:
        fill.delete()
    return "runs"


def check(p):
    fn, args = p.build()
    compiled = (fn if hasattr(fn, "lower") else jax.jit(fn)).lower(*args).compile()
    m = compiled.memory_analysis()
    lies = jax.tree.leaves(compiled.input_shardings[0])
    ndev = len(lies[0].device_set) if lies else 1
    said = m.output_size_in_bytes - m.alias_size_in_bytes + m.temp_size_in_bytes

    def build():
        leaves, tree = jax.tree.flatten(args)
        at = [None] * len(leaves)
        for k, s in zip(range(len(leaves)) if len(lies) == len(leaves) else sorted(compiled._executable._kept_var_idx), lies):
            at[k] = s
        return jax.tree.unflatten(tree, [x if s is None else jax.block_until_ready(jax.device_put(x, s)) for x, s in zip(leaves, at)])

    less, enough = under(compiled, build, (int(.85 * said) - UNIT) * ndev), under(compiled, build, int(1.01 * said) * ndev)
    alive = float(jax.jit(lambda x: x.sum())(np.ones(8, np.float32))) == 8
    right = enough == "runs" and (less == "RESOURCE_EXHAUSTED" or not said or ndev > 1) and alive       # what collectives stage may be less
    print(f"{'ok' if right else 'WRONG':6} {p.name}: said {said}, with that {enough}, with less {less}", flush=True)
    return right


def main():
    programs = OWN
    if FOLDER:
        from make import chosen                                # which would have it run elsewhere
        jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "rondo,cpu"))
        programs = list(chosen(NAMES))
    wrong = 0
    for p in programs:                                          # each in a process of its own: what collectives stage stays
        pid = os.fork()
        if not pid:
            right = False
            try:
                with jax.enable_x64(p.x64):
                    right = check(p)
            except ModuleNotFoundError as e:
                right = print(f"SKIP   {p.name}: {e}", flush=True) is None
            except BaseException as e:
                print(f"WRONG  {p.name}: {type(e).__name__}: {e}", flush=True)
            finally:
                os._exit(not right)
        wrong += os.waitpid(pid, 0)[1] != 0
    print(f"{len(programs) - wrong} passed, {wrong} failed")
    sys.exit(wrong > 0)


main()
