"""Moves whose permutes are the first of their group: the list of groups moved while it was read (SIGSEGV, or permutes of other devices)."""
seed = 1511291506
tier = 'gen'
devices = 8
how = 'sharded'
mesh = ((2, 2, 2), 'xyz', [0, 1, 2, 3, 4, 5, 6, 7])
specs = [(('y', 'x'),), (('z', 'x', 'y'),)]
inputs = [('a1', 'float32', (8,), 'lat', 8925),
          ('a2', 'float32', (8,), 'lat', 7773)]    # name, type, shape, values
good = [(False, False, 0.0002), (False, False, 0.0002), (True, False, 0.0002), (True, True, 0.0002), (True, True, 0.0), (True, True, 0.0)]    # of each result: bits, signs of zero, how far off it may be


def f(a1, a2):
    v3 = lax.nextafter(a1, a2)
    v4 = lax.dot_general(v3, v3, (([], []), ([], []))) / 1
    v5 = v4.at[np.array([2, 5, 6, 2])].min(v4[5])
    v6 = lax.pad(v3, jnp.zeros((), v3.dtype), [(1, -1, 0)])
    v7_ = jnp.argsort(a1, axis=0, descending=True).astype(jnp.int32)
    v7 = shard(v7_, *(('z', 'y', 'x'),))
    v8 = jnp.where(a1 >= a1, a1, a1)
    v9_ = jnp.reshape(v7, (8,))
    v9 = shard(v9_, *(('y', 'z'),))
    v11 = lax.reduce_and(v9, (0,))
    v12 = jnp.take(v9, v11, axis=0, mode='clip', fill_value=0)
    v13 = v9.at[np.array([3])].set(v9[2])
    return v4, v5, v6, v8, v12, v13,
