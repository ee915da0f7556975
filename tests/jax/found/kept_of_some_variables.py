"""error: generated code is malformed: a value of some of a nest's variables was kept at a place of all of them"""
inputs = [('a3', 'float32', (2,), 'normal', 1954),
          ('v12', 'float32', (), 'normal', 1),
          ('v5', 'float32', (33, 2), 'lat', 1)]    # name, type, shape, values
good = [(False, False, 0.0002)]    # of each result: bits, signs of zero, how far off it may be


def f(a3, v12, v5):
    v6 = lax.broadcast_in_dim(a3, (33, 2), (1,))
    v9 = v6 / (jnp.sqrt(v6) + 0.1)
    v11 = jnp.linalg.norm(v9)
    v13 = v5 - 0.1 * v9 * (v12 / (1 + v11))
    return v13,
