"""Parts of a sum, cut along the minor of two dimensions that become one: they were joined where they stood."""
seed = 567
tier = 'gen'
devices = 8
how = 'sharded'
mesh = ((2, 2, 2), 'xyz', [6, 5, 2, 3, 4, 1, 0, 7])
specs = [(('y',), ('z',)), (None, ('y', 'x'))]
out_specs = [(('y', 'z'),)]
inputs = [('a4', 'bfloat16', (16, 512), 'unit', 3004),
          ('a5', 'bfloat16', (512, 32), 'unit', 2284)]    # name, type, shape, values
good = [(False, False, 0.06)]    # of each result: bits, signs of zero, how far off it may be


def f(a4, a5):
    v6 = jnp.matmul(a4 - jnp.bfloat16(0.5), a5 - jnp.bfloat16(0.5))
    v9_ = jnp.reshape(v6, (512,))
    v9 = shard(v9_, *(('z', 'x', 'y'),))
    return v9,
