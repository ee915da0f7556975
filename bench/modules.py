"""How long large modules take to compile, from bytecode to a program, without JAX: time and memory of `rondo prog --stats`."""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
from jax import lax
from jax._src.interpreters import mlir
from jaxlib import _jax
from jaxlib.mlir.dialects import stablehlo

ROOT = pathlib.Path(__file__).parents[1]
F32 = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)  # noqa: E731


def sines(x):
    for i in range(10_000):
        x = jnp.sin(x) + i * 1e-4
    return x


def tanh(x, w):
    for _ in range(50_000):
        x = jnp.tanh(x @ w)
    return x


def scans(x):
    for i in range(1200):
        x = lax.scan(lambda c, _: (jnp.sin(c) * (1 + i * 1e-4), None), x, None, length=8)[0]
    return x


def layers(x, *weights):
    def loss(weights):
        h = x
        for up, down in zip(weights[::2], weights[1::2]):
            h = h + jax.nn.silu((h * lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-6)) @ up) @ down
        return (h * h).mean()
    return jax.grad(loss)(weights)


def mixed(n):
    def f(x, w):
        y, k = x, 0
        while k < n:
            i = k // 10 % 10
            y, ops = ((jnp.sin(y) + k * 1e-6, 2), (y @ w, 1), (y.T * 0.5, 2), (y - y.mean(0), 5), (jnp.concatenate([y[1:], y[:1]]), 3), (jnp.where(y > 0, y, -y), 4),
                      (jnp.cumsum(y, 1), 1), (jnp.maximum(y, x), 1), (y.reshape(4, 256).sum(0).reshape(16, 16)[:, ::-1].repeat(2, 0).repeat(2, 1), 8), (lax.rev(y, (0,)), 1))[i]
            k += ops
        return y
    return f


# function, arguments, seconds and megabytes that are wanted
MODULES = {
    "sines": (sines, (F32(64),), 2, None),
    "tanh": (tanh, (F32(8, 8), F32(8, 8)), 30, 1000),
    "scans": (scans, (F32(16),), 1, None),
    "layers": (layers, (F32(64, 64), *(F32(64, 256), F32(256, 64)) * 192), 1.5, 300),
    "mixed10k": (mixed(10_000), (F32(32, 32), F32(32, 32)), 5, None),
    "mixed100k": (mixed(100_000), (F32(32, 32), F32(32, 32)), 60, 1000),
}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)}; all, if none is given")
    a = p.parse_args()
    if unknown := set(a.names) - set(MODULES):
        p.error(f"there is no module {', '.join(sorted(unknown))}")
    sys.setrecursionlimit(1 << 20)
    print(f"{'module':10} {'bytecode':>9} {'seconds':>8} {'wanted':>7} {'CPU':>7} {'MB':>6} {'wanted':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for name in a.names or MODULES:
            f, args, most, room = MODULES[name]
            module = jax.jit(f).lower(*args).compiler_ir("stablehlo")
            code = _jax.mlir.serialize_portable_artifact(mlir.module_to_bytecode(module), stablehlo.get_current_version(), True)
            path = pathlib.Path(folder) / f"{name}.mlirbc"
            path.write_bytes(code)
            t = time.perf_counter()
            p = subprocess.Popen([ROOT / "build" / "rondo", "prog", "--stats", path], stdout=subprocess.DEVNULL, env=os.environ | {"RONDO_CACHE": ""})
            peak, done = 0, 0
            while not done:              # its own peak: what wait4 says counts the memory of who started it
                try:
                    peak = max(peak, int(pathlib.Path(f"/proc/{p.pid}/status").read_text().partition("VmHWM:")[2].split()[0]))
                except (OSError, IndexError):
                    pass
                done, status, used = os.wait4(p.pid, os.WNOHANG)
                time.sleep(0.002)
            t = time.perf_counter() - t
            if status:
                sys.exit(f"{name}: exit {os.waitstatus_to_exitcode(status)}")
            print(f"{name:10} {len(code) / 1e6:6.1f} MB {t:8.2f} {most:>7} {used.ru_utime + used.ru_stime:7.2f} {peak / 1024:6.0f} {room or '':>7}", flush=True)


if __name__ == "__main__":
    main()
