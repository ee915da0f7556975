"""wrong: float32 at [1, 0, 0]: 1.401298464324817e-45 for 0.0: a scan copied its first element, which counts as zero where it calculates"""
inputs = [('a3', 'float32', (1, 4), 'lat', 7278),
          ('a4', 'float32', (1, 4), 'lat', 1487)]    # name, type, shape, values
good = [(True, False, 0.0002), (True, False, 0.0002), (True, False, 0.0002)]    # of each result: bits, signs of zero, how far off it may be


def f(a3, a4):
    v5 = lax.nextafter(jnp.where(a3 > 0, 0, a3), a4)
    v6 = lax.cumsum(v5, axis=1)
    v7 = lax.cummax(v5, axis=1, reverse=True)
    v8 = lax.cummin(jnp.broadcast_to(v5.T, (4, 9)), axis=0)
    return v6, v7, v8,
