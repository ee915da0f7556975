"""A convolution that cuts at one end, pads at the other and strides: XLA:CPU is wrong, which the judge must see."""
seed = 881003457
inputs = [('a2', 'float32', (2, 16, 2), 'lat', 527),
          ('a16', 'float32', (2, 8, 2), 'lat', 5571)]    # name, type, shape, values
good = [(True, False, 0.0002)]    # of each result: bits, signs of zero, how far off it may be


def f(a2, a16):
    v17 = lax.conv_general_dilated(a2, a16, [2], [(-1, 2)], [1], [1], ('NCH', 'OIH', 'NCH'), 2)
    v18 = jnp.concatenate([v17, v17, v17], 2)
    return v18,
