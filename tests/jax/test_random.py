"""Random programs against JAX's own cpu; `python tests/jax/random_programs.py` runs as many as one has time for."""
import jax
import pytest
from random_programs import once


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("seed", range(0, 60, 20))
def test_random(seed, devices):
    for k in range(seed, seed + 20 // devices):
        program, why = once(k, devices, 3 + k % 17, jax.devices())
        assert why is None, "\n".join([why, *program.text])


@pytest.mark.parametrize("seed", range(0, 20, 10))
def test_random_gradients(seed):
    for k in range(seed, seed + 10):
        program, why = once(k, 1, 3 + k % 17, jax.devices(), grad=True)
        assert why is None, "\n".join([why, *program.text])
