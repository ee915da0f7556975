"""What a layer of a sharded step sends: the set of its collectives, no more than XLA:CPU's program and the least that is known."""
import pytest

import bytes_moved as m

pytestmark = pytest.mark.only_rondo("Rondo's collectives")


@pytest.fixture(scope="module")
def sent():
    return m.child("rondo,cpu", m.ALSO)


@pytest.mark.parametrize("name", m.ALSO)
def test_layer(sent, name):
    xla, want = m.goldens()[name]
    assert m.as_line(sent[name]) == want
    total = sum(m.kinds(sent[name]).values())
    assert total <= xla * 1.0001
    least = m.LAYOUTS[name.split()[0]].least
    assert not least or total <= least * 1.0001


def test_values():
    """The same numbers on 1, 2, 4 and 8 devices."""
    names = ["data scan", "fsdp scan said", "fsdp scan said again", "tensor", "tensor_sequence said", "expert scan", "data_fsdp_tensor scan", "fsdp_tensor_sequence"]
    off = m.child("rondo,cpu", names, "--values")
    assert off.keys() == set(names) and max(off.values()) < 1e-12
