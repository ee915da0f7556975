"""Random programs against JAX's own cpu, a fresh seed each time (random_programs.py runs as many as one has time for); those that once failed."""
import os
import pathlib
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest

HERE = pathlib.Path(__file__).parent


def programs(*args):
    done = subprocess.run([sys.executable, str(HERE / "random_programs.py"), *map(str, args)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"random_programs.py {' '.join(map(str, args))}\n{done.stdout[-8000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("devices,how,known,fresh", [(1, "plain", 300, 15), (4, "manual", 20, 5), (4, "sharded", 20, 5)])
def test_random(devices, how, known, fresh, tmp_path):
    """The same programs each time, and a few that never ran."""
    for seed, count in ((77000200, known), (int.from_bytes(os.urandom(4), "little"), fresh)):
        print(f"seed={seed}")
        programs("--seed", seed, "--count", count, "--devices", devices, "--how", how, "--jobs", 2, "--found", tmp_path, "--most", 1)


def test_found():
    programs("--replay", *sorted(HERE.glob("found/*.py")))


@pytest.mark.parametrize("n", [1000, 1 << 17, 1 << 18])
def test_copied_while_donated(n):
    """A copy to the host in one thread, a launch that may take the same array in another: all of the copy is old, or there is none."""
    rng, turn = np.random.default_rng(int.from_bytes(os.urandom(4), "little")), threading.Barrier(2, timeout=60)
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
