"""RONDO_REPRO: the same bits on any number of devices, of processes and of workers."""
import os
import pathlib
import subprocess
import sys

import pytest
from test_processes import run

pytestmark = pytest.mark.only_rondo("jaxlib's own clients do otherwise")


def bits(processes, devices, **env):
    lines = []
    for code, out, err in run(processes, devices, "repro", RONDO_REPRO="8", RONDO_CACHE="", **env):
        assert code == 0 and "failed" not in out and "rondo:" not in err, out + err
        lines += [line for line in out.splitlines() if line.startswith("bits")]
    return lines


@pytest.fixture(scope="module")
def of_eight():
    return bits(1, 8)


@pytest.mark.parametrize("processes, devices, env", [
    (1, 1, {}), (4, 1, {}),
    (1, 2, {"RONDO_CORES": "24"}),             # two workers each
    *(pytest.param(*how, marks=pytest.mark.many) for how in ((1, 4, {}), (2, 2, {}), (2, 1, {"RONDO_TRANSPORT": "tcp"})))])       # tcp: as on two hosts
def test_bits(of_eight, processes, devices, env):
    got = bits(processes, devices, **env)
    assert got == [line for line in of_eight if processes * devices > 1 or not line.startswith("bits2")]


@pytest.mark.many
def test_random():
    done = subprocess.run([sys.executable, str(pathlib.Path(__file__).parent / "random_repro.py"), "--count", "3"], capture_output=True, text=True, timeout=600)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


PROGRAM = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
def on(f, n, names=("x",), shape=None, spec=P("x"), size=24):
    mesh = Mesh(np.array(jax.devices()[:n]).reshape(shape or (n,)), names)
    try:
        print(np.asarray(f(mesh)(jax.device_put(np.ones(size, np.float32), NamedSharding(mesh, spec)))).sum())
    except Exception as e:
        print(str(e).splitlines()[0])
double = lambda mesh: jax.jit(lambda x: x * 2)
"""


def said(program, **env):
    env = {**os.environ, "RONDO_DEVICES": "4", "RONDO_CACHE": "", **env}
    r = subprocess.run([sys.executable, "-c", PROGRAM + program], env=env, capture_output=True, text=True, timeout=300)
    return r.stdout, r.stderr


def test_what_cannot_be():
    out, err = said("""
on(double, 4)
on(double, 2)
on(double, 4, size=12)
on(double, 4, ("x", "y"), (2, 2), P(("y", "x")))
on(lambda mesh: jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P())), 4)
""", RONDO_REPRO="8")
    *lines, by_hand = [line.split(": ", 1)[-1] for line in out.splitlines()]
    assert lines == [
        "48.0",
        "program 'jit__lambda' has a mesh of 2 of 4 devices: under RONDO_REPRO=8 a mesh has all of them",
        "in 8 parts (RONDO_REPRO): argument 0: dimension 0 of size 12 does not divide into the 8 parts of P('x')",
        "argument 0 of the program is cut along a dimension by the last axis of the mesh and another one behind it, which RONDO_REPRO does not know: "
        "let the axis of which devices are counted come last there"], out + err
    assert by_hand == "24.0" and "its bits are those of 4 devices, whatever RONDO_REPRO says" in err, out + err        # a manual computation is for the devices that there are


def test_numbers_of_devices():
    out, err = said("on(double, 3)", RONDO_REPRO="8", RONDO_DEVICES="3")
    assert "setting 'RONDO_REPRO' is 8: as many parts cannot be dealt to 3 devices, let it be a multiple of all numbers of devices that are to be compared" in err, out + err
    assert said("on(double, 3)", RONDO_REPRO="6", RONDO_DEVICES="3") == ("48.0\n", "")


@pytest.mark.parametrize("name, values", [("REPRO", "84"), ("RING", ["gather", "auto"]), ("ATTENTION", ["off", "auto"]), ("EXCESS_PRECISION", "01")])
def test_processes_have_one_setting(name, values):
    for _, out, err in run(2, 1, "repro", **{f"RONDO_{name}": list(values)}):
        assert f"setting 'RONDO_{name}' is" in out + err and "all processes of a job must have the same" in out + err, out + err
