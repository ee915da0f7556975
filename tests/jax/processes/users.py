"""Where the user's Python is asked, or called, by a program of several processes."""
import numpy as np
from common import DEVICES, ME, N, P, NamedSharding, case, mesh, same, spread

import jax
import jax.numpy as jnp
from jax.experimental import io_callback
from jax.experimental.custom_partitioning import custom_partitioning

X = np.arange(4 * N * 6, dtype=np.float32).reshape(4 * N, 6)


@case
def who_decides():
    seen = []

    @custom_partitioning
    def total(a):
        return a.sum(0)

    def partition(mesh, args, out):
        seen.append((args[0].sharding.spec, out.sharding.spec))
        return mesh, lambda a: jax.lax.psum(a.sum(0), "x"), NamedSharding(mesh, P()), (NamedSharding(mesh, P("x")),)

    total.def_partition(partition, sharding_rule="i j -> j", reduction_factors=("i",))
    with jax.set_mesh(mesh()):
        for k in range(2):
            same(jax.jit(lambda a: total(a * 2) + k)(spread(X)), X.sum(0) * 2 + k)
    assert seen == ([(P("x", None), P(None))] * 2 if N > 1 else []), seen


@case
def who_raises():
    @custom_partitioning
    def no(a):
        return a

    def partition(mesh, args, out):
        raise RuntimeError(f"not in process {ME}")

    no.def_partition(partition, sharding_rule="i j -> i j")
    try:
        jax.jit(no)(spread(X))
    except Exception as e:  # noqa: BLE001
        assert f"not in process {ME}" in str(e), e
    else:
        assert N == 1
    same(jax.jit(lambda a: a + a.sum())(spread(X)), X + X.sum())


@case
def who_looks():
    seen = []
    y = jax.jit(lambda a: (jax.debug.inspect_array_sharding(a.T, callback=lambda s: seen.append(s.spec)), a * 2)[1])(spread(X))
    same(y, X * 2)
    assert seen == ([P(None, "x")] if N > 1 else [P()]), seen


@case
def who_is_called():
    """One process, with the whole value; all get what it gave."""
    calls = []

    def note(*values):
        calls.append([np.array(v) for v in values])

    def called(f, device=0):
        calls.clear()
        y = jax.jit(f)(spread(X))
        jax.block_until_ready(y)
        jax.effects_barrier()
        assert len(calls) == (device // DEVICES == ME), (device, calls)
        for value, in calls:
            np.testing.assert_array_equal(value, X)
        return y

    if ME == N // DEVICES - 1:    # what a process calls on its own moves no numbers of others
        jax.jit(lambda a: (jax.debug.callback(note, a), a)[1])(np.float32(1))
        jax.effects_barrier()
    same(called(lambda a: (jax.debug.callback(note, a), a + a.sum())[1]), X + X.sum())
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    same(called(lambda a: jax.pure_callback(lambda v: (note(v), np.asarray(v) * 2)[1], shape, a) + 1), X * 2 + 1)
    same(called(lambda a: (io_callback(note, None, a), a - 1)[1]), X - 1)
    last = jax.sharding.SingleDeviceSharding(jax.devices()[-1])
    same(called(lambda a: io_callback(lambda v: (note(v), np.asarray(v) * 3)[1], shape, a, sharding=last).T, N - 1), X.T * 3)


@case
def who_is_called_with_parts():
    got = []
    jax.jit(lambda a: (jax.debug.callback(lambda v: got.append(np.array(v)), a, partitioned=True), a)[1])(spread(X))
    jax.effects_barrier()
    want = [np.asarray(s.data) for s in spread(X).addressable_shards]
    assert sorted(v.tobytes() for v in got) == sorted(v.tobytes() for v in want)


@case
def who_fails_when_called():
    def boom(v):
        raise ValueError("the callback failed")

    f = jax.jit(lambda a: jax.pure_callback(boom, jax.ShapeDtypeStruct(X.shape, X.dtype), a) + a.sum())
    if jax.devices()[0].platform == "rondo":      # XLA:CPU ends the process
        try:
            jax.block_until_ready(f(spread(X)))
        except Exception as e:  # noqa: BLE001
            assert ME or "the callback failed" in str(e), e
        else:
            raise AssertionError("no error")
    same(jax.jit(lambda a: a * jnp.float32(2))(spread(X)), X * 2)
