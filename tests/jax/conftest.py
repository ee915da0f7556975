"""Tests through the plug-in: JAX_PLATFORMS says which platform (rondo,cpu by run.sh); they pass on cpu as well."""
import gc
import os
import pathlib
import random
import subprocess
import sys

os.environ.setdefault("RONDO_CACHE", "")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")      # XLA:CPU is asked what is right, and compiles in half the time so
HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE / "discover")]

import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", 4)

import pytest  # noqa: E402

gc.freeze()       # what is imported stays
DRAWS, SEED = int(os.environ.get("DRAWS", 100)), os.environ.setdefault("SEED", str(int.from_bytes(os.urandom(4), "little")))


def leave(config, items, out):
    config.hook.pytest_deselected(items=out)
    out = set(out)
    items[:] = [i for i in items if i not in out]


def pytest_collection_modifyitems(config, items):
    """What only Rondo promises is not asked of another platform.  Of files marked `many`, DRAWS percent of the cases are run, drawn by SEED."""
    if not (jax.config.jax_platforms or "rondo").startswith("rondo"):
        leave(config, items, [i for i in items if i.get_closest_marker("only_rondo")])
    many = [i for i in items if i.get_closest_marker("many")]
    if many and DRAWS < 100:
        number = random.Random(SEED).random
        leave(config, items, [i for i in many if number() * 100 >= DRAWS])


def pytest_terminal_summary(terminalreporter):
    if DRAWS < 100:
        terminalreporter.write_line(f"of what has many cases: DRAWS={DRAWS} SEED={SEED}")


@pytest.fixture
def platform():
    return jax.devices()[0].platform


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def rondo():
    """The tool that belongs to the library under test."""
    tool = pathlib.Path(os.environ.get("RONDO_LIBRARY", HERE.parents[1] / "build" / "librondo.so")).parent / "rondo"
    assert tool.exists(), f"{tool} is not built"
    return tool


@pytest.fixture
def stock(tmp_path):
    """Run a script of this folder with JAX as it comes, in two processes: the folder that it filled."""
    def run(script, seconds=300):
        env = {k: v for k, v in os.environ.items() if not k.startswith("RONDO") and k != "PYTHONPATH"}
        parts = [subprocess.Popen([sys.executable, str(HERE / script), str(tmp_path), str(i), "2"], env=env, stderr=subprocess.PIPE, text=True)
                 for i in range(2)]
        errors = [p.communicate(timeout=seconds)[1] for p in parts]
        assert not any(p.returncode for p in parts), "\n".join(errors)[-3000:]
        return tmp_path
    return run
