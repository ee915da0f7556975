"""A slice of what has more elements behind its last one, taken by way of another value: its view is not that of its operation (an assertion)."""
seed = 1611292502
tier = 'gen'
devices = 8
how = 'sharded'
mesh = ((2, 2, 2), 'xyz', [4, 2, 6, 3, 7, 0, 1, 5])
specs = [(('y', 'z'), None), (('y',), None, None, None), (None, None)]
out_specs = [(None, None, ('z',), None)]
inputs = [('a1', 'bfloat16', (8, 2), 'lat', 3761),
          ('a8', 'bfloat16', (2, 1, 3, 1), 'lat', 1357),
          ('v5', 'bfloat16', (8, 2), 'lat', 1)]    # name, type, shape, values
good = [(False, False, 0.06)]    # of each result: bits, signs of zero, how far off it may be


def f(a1, a8, v5):
    v4 = lax.slice(a1, [6, 0], [8, 1], [1, 1])
    v6 = lax.dot_general(v5, v4, (([], []), ([], [])))
    v9 = lax.conv_general_dilated(v6, a8, [1, 1], 'SAME', [1, 1], [1, 1], ('NCHW', 'OIHW', 'NCHW'), 2)
    v10 = jnp.max(v9, axis=(1, 3), keepdims=True).astype(v9.dtype)
    v11 = lax.pad(v10, jnp.asarray(1, v10.dtype), [(1, -1, 1), (0, 0, 0), (0, 0, 0), (0, 0, 0)])
    v12 = jnp.take(v11, np.array([0, -1, 0]), axis=3)
    return v12,
