"""crash: SIGSEGV"""
inputs = [('v15', 'float32', (64, 64), 'normal', 1),
          ('v8', 'float32', (64, 64), 'normal', 1)]    # name, type, shape, values
good = [(False, False, 0.0002)]    # of each result: bits, signs of zero, how far off it may be


def f(v15, v8):
    v13 = v8.T
    v16 = v13 / (jnp.sqrt(v15) + 0.1)
    v25 = ((v16 - jnp.mean(v16, (0, 1), keepdims=True)) / jnp.sqrt(jnp.var(v16, (0, 1), keepdims=True) + 1)).astype(v16.dtype)
    return v25,
