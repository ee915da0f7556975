"""The same bits whatever is delayed, whoever is stopped for a while, and wherever the devices live."""
import os
import pathlib
import re
import subprocess
import sys

SOAK = pathlib.Path(__file__).with_name("soak.py")
RONDO = pathlib.Path(os.environ["RONDO_LIBRARY"]).with_name("rondo") if "RONDO_LIBRARY" in os.environ else "rondo"


def digests(processes, devices, *args, **env):
    cmd = [sys.executable, str(SOAK), "--steps", "200", *args]
    if processes > 1:
        cmd = [str(RONDO), "launch", "-n", str(processes), *cmd]
    out = subprocess.run(cmd, env={**os.environ, "RONDO_DEVICES": str(devices), **env}, timeout=600, check=True, capture_output=True, text=True).stdout
    found = re.findall(r"stopped (\d+) times, losses ([0-9a-f]{16}), last", out)       # lines of several processes may run into each other
    assert len(found) == processes and ("--stops" not in args or any(int(n) for n, _ in found)), out
    return {digest for _, digest in found}


def test_same_bits():
    plain = digests(1, 4)
    assert len(plain) == 1
    assert digests(1, 4, RONDO_CHAOS="5") == plain
    assert digests(2, 2) == plain
    assert digests(4, 1, RONDO_CHAOS="6") == plain


def test_context_parallel():
    """A sequence over four processes, of which any stops at any moment, beside one process with one device."""
    how = {"RONDO_REPRO": "4", "RONDO_ATTENTION": "on"}
    plain = digests(1, 1, "--model", "long", **how)
    assert len(plain) == 1
    assert digests(4, 1, "--model", "long", "--stops", "0.3", RONDO_CHAOS="7", **how) == plain
