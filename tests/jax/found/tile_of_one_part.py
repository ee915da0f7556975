"""wrong: result 0: int32(16,) for int32(8,)"""
seed = 6180
tier = 'gen'
devices = 6
how = 'sharded'
mesh = ((6,), 'x', [0, 1, 2, 3, 4, 5])
specs = [()]
out_specs = [(None,), (None,)]
inputs = [('a1', 'int32', (), 'wide', 6146)]    # name, type, shape, values
good = [(True, True, 0.0), (True, True, 0.0)]    # of each result: bits, signs of zero, how far off it may be


def f(a1):
    v2 = jnp.broadcast_to(jnp.expand_dims(a1, 0), (8,))
    v4_ = jnp.tile(v2, (2,))
    v4 = shard(v4_, *(('x',),))
    return v2, v4,
