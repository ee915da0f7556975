"""Random programs against JAX's own cpu, a fresh seed each time (random_programs.py runs as many as one has time for); those that once failed."""
import os
import pathlib
import subprocess
import sys
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import random_programs

HERE = pathlib.Path(__file__).parent


def programs(*args):
    done = subprocess.run([sys.executable, str(HERE / "random_programs.py"), *map(str, args)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"random_programs.py {' '.join(map(str, args))}\n{done.stdout[-8000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("devices,how,seconds", [(1, "plain", 15), (4, "manual", 8), (4, "sharded", 8)])
def test_random(devices, how, seconds, tmp_path):
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed={seed}")
    print(programs("--seed", seed, "--seconds", seconds, "--devices", devices, "--how", how, "--jobs", 2, "--found", tmp_path, "--most", 1).splitlines()[-1])


@pytest.mark.only_rondo
@pytest.mark.parametrize("how,seed", [("loops", None), ("rings", None), ("loops", 305914697)])
def test_turns(how, seed, rondo, tmp_path):
    """What goes round, as programs of a device: one host or several, run beside the oracle.  The seeds listed have failed once: a loop without values."""
    which = ["--seed", str(seed), "--count", "1"] if seed else ["--seed", str(int.from_bytes(os.urandom(4), "little")), "--seconds", "6"]
    print(which)
    done = subprocess.run([sys.executable, str(HERE / "random_turns.py"), *which, "--how", how, "--keep", str(tmp_path)],
                          env={**os.environ, "RONDO_LIBRARY": str(rondo.parent / "librondo.so")}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:] + "".join(f"{f.name}\n{f.read_text()}" for f in list(tmp_path.glob("*.in"))[:1])
    print(done.stdout.splitlines()[-1])


def test_found():
    programs("--replay", *sorted(HERE.glob("found/*.py")))


def narrow(x):
    return x.astype(jnp.bfloat16).astype(np.float32)


def running(x):
    return np.cumsum(x[:, 0], dtype=np.float32)[-1:]


def twice(x, y):
    """A product of bf16 whose two halves are rounded before they are added."""
    return (narrow(narrow(x[:, :256]) @ narrow(y[:256])) + narrow(narrow(x[:, 256:]) @ narrow(y[256:]))).astype(jnp.bfloat16)


FAULTS = {
    "running": ("jnp.sum(a, 0)", [("a", "float32", (1 << 18, 1), "unit", 1)], 2e-4, running),
    "twice": ("jnp.matmul(a - jnp.bfloat16(0.5), b - jnp.bfloat16(0.5))", [("a", "bfloat16", (32, 512), "unit", 1), ("b", "bfloat16", (512, 32), "unit", 2)], 6e-2,
              lambda a, b: twice(a - jnp.bfloat16(0.5), b - jnp.bfloat16(0.5))),
    "sum": ("jnp.sum(jnp.sin(a * 0.5), 0)", [("a", "float32", (50, 5), "normal", 1)], 2e-4, lambda a: np.sin(a * np.float32(0.5)).sum(0) * np.float32(1.001)),
    "max": ("jnp.max(a, 1)", [("a", "float32", (7, 100), "special", 1)], 2e-4, lambda a: np.nanmax(a, 1)),
    "cummax": ("lax.cummax(a, 0)", [("a", "bfloat16", (70, 3), "special", 3)], 6e-2, lambda a: np.fmax.accumulate(a.astype(np.float32), 0).astype(a.dtype)),
    "window": ("lax.reduce_window(a, np.float32(-np.inf), lax.max, (3,), (1,), 'VALID')", [("a", "float32", (50,), "special", 1)], 2e-4,
               lambda a: np.fmax(np.fmax(a[:-2], a[1:-1]), a[2:])),
    "where": ("jnp.where(a > 0, a, -a)", [("a", "float32", (50,), "special", 1)], 2e-4, lambda a: np.nan_to_num(np.where(a > 0, a, -a))),
    "ill": ("jnp.sum(a * 1e4, 0) - jnp.sum(a * 1e4 + 1e-2, 0)", [("a", "float32", (50, 5), "normal", 1)], 2e-4, lambda a: -np.full(5, 50 * 3e-2, np.float32)),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("both", [False, True])
def test_judgement(name, both, monkeypatch):
    """What must not pass, even where XLA:CPU has the same fault; and what Rondo gives does."""
    text, inputs, good, fault = FAULTS[name]
    run = random_programs.run_on
    c = random_programs.Case(src=f"def f({', '.join(i[0] for i in inputs)}):\n    return {text},", inputs=inputs, good=[(False, False, good)])
    assert random_programs.judge(c)[0] in ("ok", "theirs", "ill")
    if both and name not in ("running", "max", "cummax", "window"):
        return
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = [fault(*c.values())]
    turn = iter([wrong if both else None, wrong])            # XLA:CPU's, Rondo's
    monkeypatch.setattr(random_programs, "run_on", lambda *args: next(turn) or run(*args))
    assert random_programs.judge(c)[0] == "wrong"


@pytest.mark.parametrize("n", [1000, 1 << 17, 1 << 18])
def test_copied_while_donated(n):
    """A copy to the host in one thread, a launch that may take the same array in another: all of the copy is old, or there is none."""
    rng, turn = np.random.default_rng(int.from_bytes(os.urandom(4), "little")), threading.Barrier(2, timeout=600)
    f, state, wrong = jax.jit(lambda x: -x, donate_argnums=0), {}, []

    def copies():
        for _ in range(300):
            turn.wait()
            try:
                seen = np.array(state["x"], copy=True)
                if not (seen == 1).all():
                    wrong.append(int((seen != 1).sum()))
            except (RuntimeError, ValueError):
                pass                     # it was deleted
            turn.wait()

    reader = threading.Thread(target=copies)
    reader.start()
    f(jax.device_put(np.ones(n, np.float32))).block_until_ready()
    for spin in rng.integers(0, 3000, 300):
        state["x"] = jax.device_put(np.ones(n, np.float32))
        turn.wait()
        for _ in range(spin):
            pass
        assert (np.asarray(f(state["x"])) == -1).all()
        turn.wait()
    reader.join()
    assert not wrong
