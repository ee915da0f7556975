"""Out of memory in a job of two processes (RONDO_MEMORY=128M): each says where it heard of it, and whether what was to be donated is still there.

    memory.py <file>"""
import os
import sys
import time

import numpy as np
from common import ME, N, case, end, sharded, spread

import jax
import jax.numpy as jnp
from jax import lax

x = spread(np.ones((N, 1 << 18), np.float32))
total = sharded(lambda x: lax.psum(x, "x"))
total(x).block_until_ready()


def ones():
    return jax.device_put(np.ones(1 << 20, np.float32), jax.local_devices()[0])


def heard(f, a):
    """"fine", or where and how it failed."""
    at = "call"
    try:
        y = f(a)
        at = "read"
        jax.block_until_ready(y)
    except Exception as e:  # noqa: BLE001
        assert not a.is_deleted() or at == "read"
        return at, str(e)
    return "fine", ""


def most():
    """Of the memory, so that nothing large has room beside it."""
    return jax.device_put(np.ones(25 << 20, np.float32), jax.local_devices()[0]).block_until_ready()


def local(a, times=10):
    return a + 1, jnp.tile(a, times)


def everywhere(a, times=40):
    return a * 2, jnp.tile(a, (1, times)) + lax.psum(a[0, 0], "x")


def refused(f, a):
    at, text = heard(f, a)
    assert at == "call" and text.startswith("RESOURCE_EXHAUSTED") and not a.is_deleted(), (at, text)


@case
def of_any_memory():
    """It is larger than what RONDO_MEMORY says: nothing is compiled, so nobody waits for who is told so."""
    for donated in (), 0:
        refused(jax.jit(lambda a: local(a, 60), donate_argnums=donated), ones())
    for donated in (), 0:
        refused(sharded(lambda a: everywhere(a, 150), donate_argnums=donated), x)


@case
def of_one_process():
    held = most()
    for donated in (), 0:
        refused(jax.jit(local, donate_argnums=donated), ones())
    del held


@case
def behind_what_waits_for_another_process():
    if ME:
        time.sleep(1)
    held = most()
    y = total(x)
    refused(jax.jit(local, donate_argnums=0), ones())
    del held
    assert float(y.addressable_shards[0].data[0, 0]) == N


@case
def of_all_processes():
    held = most()
    for donated in (), 0:
        refused(sharded(everywhere, donate_argnums=donated), x)
    del held
    assert float(total(x).addressable_shards[0].data[0, 0]) == N


@case
def of_one_of_them():
    """The other hears of it at once, as of any failure: whose memory lacks launches nothing more until the other has heard."""
    some = sharded(lambda a: jnp.tile(a, (1, 40)) + lax.psum(a[0, 0], "x"))
    keep = [most()] if ME else []
    at, text = heard(some, x)
    if keep:
        assert at == "call" and text.startswith("RESOURCE_EXHAUSTED"), (at, text)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        keep.clear()
    else:
        assert at == "read" and text.startswith("ABORTED") and "out of memory" in text, (at, text)
        open(sys.argv[1], "w").close()
    assert heard(some, x)[0] == "fine"


@case
def another_process_waits_for_what_follows():
    """What is queued before cannot end before this call is back."""
    if ME:
        while not os.path.exists(sys.argv[1] + " 2"):
            time.sleep(0.01)
    y = total(x)
    if not ME:
        held = most()
        late = jax.jit(local)(ones())
        open(sys.argv[1] + " 2", "w").close()
        _, text = heard(lambda _: jax.block_until_ready(late), x)
        assert text.startswith("RESOURCE_EXHAUSTED"), text
        del held
    assert float(y.addressable_shards[0].data[0, 0]) == N


end()
