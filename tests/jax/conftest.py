"""Tests through the plug-in: JAX_PLATFORMS says which platform (rondo,cpu by run.sh); they pass on cpu as well."""
import os
import pathlib
import sys

os.environ.setdefault("RONDO_CACHE", "")
HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE / "discover")]

import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", 4)

import pytest  # noqa: E402


@pytest.fixture
def platform():
    return jax.devices()[0].platform


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield
