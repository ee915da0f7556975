"""Random programs against JAX's own cpu, a fresh seed each time (random_programs.py runs as many as one has time for); those that once failed."""
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


def programs(*args):
    done = subprocess.run([sys.executable, str(HERE / "random_programs.py"), *map(str, args)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"random_programs.py {' '.join(map(str, args))}\n{done.stdout[-8000:]}{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("devices,how,seconds", [(1, "plain", 40), (4, "manual", 15), (4, "sharded", 15)])
def test_random(devices, how, seconds, tmp_path):
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed={seed}")
    programs("--seed", seed, "--devices", devices, "--how", how, "--seconds", seconds, "--jobs", 2, "--found", tmp_path, "--most", 1)


def test_found():
    programs("--replay", *sorted(HERE.glob("found/*.py")))
