"""Settings of no use, and too little memory, each in a process of its own: a line that says so, and a program that still runs."""
import os
import subprocess
import sys

import jax
import pytest

pytestmark = pytest.mark.skipif(jax.devices()[0].platform != "rondo", reason="settings of Rondo")

PROGRAM = "import jax, jax.numpy as jnp; print(len(jax.devices()), float(jax.jit(lambda x: jnp.sin(x * 2).sum())(jnp.ones((512, 512)))))"


def run(program=PROGRAM, **env):
    env = {k: v for k, v in os.environ.items() if not k.startswith("RONDO_") or k in ("RONDO_LIBRARY", "RONDO_CACHE")} | env
    r = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120)
    lines = [line for line in r.stderr.splitlines() if line.startswith("rondo:")]
    return r.returncode, r.stdout.split(), lines, r.stderr


@pytest.mark.parametrize("setting, value, text", [
    ("DEVICES", "-1", "cannot be '-1', which is ignored: 0..1024"),
    ("DEVICES", "abc", "cannot be 'abc', which is ignored: 0..1024"),
    ("TIER", "fast", "cannot be 'fast', which is ignored: auto, ref, gen"),
    ("MEMORY", "900T", "more than the"),
    ("TRACE", "/nowhere/at/all.json", "there will be no timeline"),
    ("CACHE", "/proc/nowhere", "compiled programs are not kept"),
    ("GEN_PATH", "/nowhere/gen.so", "reference kernels run instead"),
    ("PROCESSES", "two", "cannot be 'two', which is ignored: 0..65536"),
])
def test_useless(setting, value, text):
    code, out, lines, err = run(**{"RONDO_" + setting: value}, RONDO_PROCESS="0") if setting == "PROCESSES" else run(**{"RONDO_" + setting: value})
    assert code == 0, err
    assert out[0] == "1" and abs(float(out[1]) / (512 * 512) - 0.9092974) < 1e-6
    assert len(lines) == 1 and "RONDO_" + setting in lines[0] and value in lines[0] and text in lines[0], lines


def test_dump_nowhere():
    code, _, _, err = run(RONDO_DUMP="/proc/nowhere")
    assert code == 1 and "RONDO_DUMP" in err and "/proc/nowhere" in err


LIMITED = """
import resource, jax, jax.numpy as jnp, numpy as np
f = jax.jit(lambda x: x + 1)
one = f(np.float32(1))
n = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
many = np.ones((64, 64), np.float32)
def deep(x):
    for k in range(300): x = jnp.sin(x) * k + x @ x
    return x
went = 0
for more in (40, 80, 160, 640):                 # less, and jaxlib ends the process
    resource.setrlimit(resource.RLIMIT_AS, (n + (more << 20), resource.RLIM_INFINITY))
    try:
        jax.block_until_ready(jax.jit(lambda x: deep(x) + more)(many))
        went += 1
    except (jax.errors.JaxRuntimeError, MemoryError) as e:
        print("failed", str(e)[:80].replace(" ", "_"))
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert f(one) == 3
jax.block_until_ready(jax.jit(deep)(many))
print("done")
"""


def test_address_space():
    code, out, _, err = run(LIMITED, RONDO_TIER="gen")          # LLVM, which ends the process if it finds no memory, is not entered
    assert code == 0 and out[-1] == "done" and "failed" in out, (out, err)
