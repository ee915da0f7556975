"""Arrays that no process sees whole, and what JAX offers for them."""
import numpy as np
from common import ALL, DEVICES, ME, N, P, NamedSharding, case, mesh, same, sharded, spread

import jax
from jax import lax
from jax.experimental import multihost_utils

X = np.arange(8 * N * 6, dtype=np.float32).reshape(8 * N, 6)


def refused(kind, text, f):
    try:
        f()
    except kind as e:
        assert text in str(e), e
    else:
        raise RuntimeError(f"no error that says '{text}'")


@case
def devices():
    all_, mine = jax.devices(), jax.local_devices()
    assert [d.id for d in all_] == list(range(N)) and len({str(d) for d in all_}) == N
    assert [d.process_index for d in all_] == [i // DEVICES for i in range(N)]
    assert mine == all_[ME * DEVICES:(ME + 1) * DEVICES] and jax.process_count() == ALL
    for d in all_:
        assert d.device_kind and d.platform == all_[0].platform
        assert d.local_hardware_id == (d.id % DEVICES if d in mine else None)
    assert all(d.memory_stats()["bytes_limit"] > 0 for d in mine)


@case
def making():
    s = NamedSharding(mesh(), P("x"))
    rows = len(X) // ALL
    same(jax.make_array_from_process_local_data(s, X[ME * rows:(ME + 1) * rows]), X)
    same(jax.make_array_from_callback(X.shape, s, lambda i: X[i]), X)
    pieces = [jax.device_put(X[i], d) for d, i in s.addressable_devices_indices_map(X.shape).items()]
    x = jax.make_array_from_single_device_arrays(X.shape, s, pieces)
    same(x, X)
    same(jax.device_put(X, s), X)
    same(jax.device_put(X, NamedSharding(mesh(), P())), X)
    assert x.is_fully_addressable == (ALL == 1) and not x.is_fully_replicated
    assert len(x.addressable_shards) == DEVICES and len(x.global_shards) == N
    assert all((s.data is None) == (s.device.process_index != ME) for s in x.global_shards)
    if ALL > 1:
        refused(RuntimeError, "addressable", lambda: np.asarray(x))


@case
def replicated_results_are_numpy():
    y = sharded(lambda x: lax.psum(x, "x"), outs=P())(spread(X))
    np.testing.assert_array_equal(np.asarray(y), X.reshape(N, 8, 6).sum(0))


@case
def elementwise_stays_where_it_is():
    x = spread(X)
    same(jax.jit(lambda x: x * 2 + 1)(x), X * 2 + 1)
    same(x + x, X + X)


@case
def moving():
    """device_put between shardings is a compiled identity."""
    x = spread(X)
    same(jax.device_put(x, NamedSharding(mesh(), P())), X)
    same(jax.device_put(x, NamedSharding(jax.sharding.Mesh(np.array(jax.devices())[::-1], ("x",)), P("x"))), X)
    same(jax.jit(lambda x: x, out_shardings=NamedSharding(mesh(), P()))(x), X)
    y = np.arange(float(2 * N * 3 * N), dtype=np.float32).reshape(2 * N, 3 * N)
    same(jax.device_put(spread(y), NamedSharding(mesh(), P(None, "x"))), y)


@case
def utilities():
    multihost_utils.sync_global_devices("here")
    np.testing.assert_array_equal(multihost_utils.broadcast_one_to_all(np.arange(5) + ME), np.arange(5))
    got = multihost_utils.process_allgather(np.arange(3) + 10 * ME)
    np.testing.assert_array_equal(got, np.arange(3) + 10 * np.arange(ALL)[:, None])
    np.testing.assert_array_equal(multihost_utils.process_allgather(spread(X), tiled=True), X)
    multihost_utils.assert_equal({"a": np.ones(3), "b": 2}, "equal")
    if ALL > 1:
        refused(AssertionError, "they differ", lambda: multihost_utils.assert_equal(ME, "they differ"))
    local = multihost_utils.global_array_to_host_local_array(spread(X), mesh(), P("x"))
    np.testing.assert_array_equal(local, X[ME * len(X) // ALL:(ME + 1) * len(X) // ALL])
    same(multihost_utils.host_local_array_to_global_array(np.asarray(local), mesh(), P("x")), X)


@case
def checkpoints():
    """As Orbax saves and restores: each process copies its shards to the host, asynchronously, and back."""
    x = sharded(lambda x: lax.ppermute(x, "x", [(i, (i + 1) % N) for i in range(N)]))(spread(X))
    for s in x.addressable_shards:
        s.data.copy_to_host_async()
    saved = {str(s.index): np.array(s.data) for s in x.addressable_shards if s.replica_id == 0}
    y = jax.make_array_from_callback(x.shape, x.sharding, lambda i: saved[str(i)])
    same(y, np.roll(X.reshape(N, 8, 6), 1, 0).reshape(X.shape))
    host = jax.device_put(x, x.sharding.with_memory_kind("pinned_host"))
    assert {s.data.sharding.memory_kind for s in host.addressable_shards} == {"pinned_host"}
    same(jax.device_put(host, x.sharding), np.roll(X.reshape(N, 8, 6), 1, 0).reshape(X.shape))


@case
def callbacks():
    seen = []
    f = sharded(lambda x: (jax.debug.callback(lambda v: seen.append(float(v)), x.sum()), lax.psum(x, "x"))[1])
    f(spread(np.arange(N, dtype=np.float32))).block_until_ready()
    jax.effects_barrier()
    assert sorted(seen) == [float(i) for i in range(ME * DEVICES, (ME + 1) * DEVICES)], seen


@case
def local_work_beside():
    y = jax.jit(lambda x: (x @ x.T).sum())(X[:8])
    np.testing.assert_allclose(y, (X[:8] @ X[:8].T).sum(), rtol=1e-5)
    if ME == 0:           # what only one process does
        jax.jit(lambda x: x + 1)(np.arange(7.0))
    same(sharded(lambda x: lax.psum(x, "x"), outs=P())(spread(X)), X.reshape(N, 8, 6).sum(0))
