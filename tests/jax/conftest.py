"""Tests through the plug-in: JAX_PLATFORMS says which platform (rondo,cpu by run.sh); they pass on cpu as well."""
import os
import pathlib
import sys

os.environ.setdefault("RONDO_CACHE", "")
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "python"))

import jax  # noqa: E402

if "cpu" != os.environ.get("JAX_PLATFORMS"):
    import rondo
    rondo.initialize()
jax.config.update("jax_num_cpu_devices", 4)

import pytest  # noqa: E402


@pytest.fixture
def platform():
    return jax.devices()[0].platform


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield
