"""wrong: a concatenation that a permute reads was handed on as its first part"""
devices = 8
how = 'sharded'
mesh = ((2, 2, 2), 'xyz', [3, 4, 0, 7, 2, 5, 1, 6])
specs = [(('y', 'x'), None)]
out_specs = [(('x', 'z'), ('y',))]
inputs = [('a1', 'float32', (12, 2), 'lat', 1914)]    # name, type, shape, values
good = [(True, True, 0.0002)]    # of each result: bits, signs of zero, how far off it may be


def f(a1):
    v3_ = jnp.concatenate([a1, a1], 0)
    v3 = shard(v3_, *(('z', 'x'), ('y',)))
    return v3,
