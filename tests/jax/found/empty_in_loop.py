"""crash: SIGSEGV, of a part without elements in a loop that is compiled whole"""
inputs = [('v12', 'uint8', (1, 1), 'normal', 1),
          ('v11', 'uint8', (1, 1), 'normal', 1),
          ('v10', 'float32', (), 'normal', 1),
          ('v7', 'int32', (), 'normal', 1)]    # name, type, shape, values
good = [(True, True, 0.0)]    # of each result: bits, signs of zero, how far off it may be


def f(v12, v11, v10, v7):
    def f29(s):
        (i16, p13, p14, p15,) = s
        v17 = lax.dynamic_update_slice(p14, lax.slice(p14, [0, 0], [1, 1]), (v7, v7,))
        v28 = jnp.roll(v17, 1, 1)
        v30 = i16 + np.uint16(1)
        return v30, p14, v28, p15
    v31, v32, v33 = lax.while_loop(lambda s: (s[0] != np.uint16(3)) & ((s[2].ravel()[0] > 0) | (s[0] != np.uint16(0))), f29, (np.uint16(0), v11, v12, v10))[1:]
    return v31,
