"""error: JaxRuntimeError: FAILED_PRECONDITION: device 0, 'kern 10 copy (b5) -> (b17) site 6' (<string>:7 multiply): bytes 0..6 of b5 are read but another buffer has overwritten them on some path"""
x64 = True
donate = [0, 1]
inputs = [('a17', 'int16', (1, 3), 'normal', 7502),
          ('a30', 'int32', (), 'wide', 8471),
          ('v40', 'int16', (1, 3), 'normal', 1),
          ('v31', 'int16', (1, 3), 'normal', 1),
          ('v32', 'int16', (1, 3), 'normal', 1)]    # name, type, shape, values
good = [(True, True, 0.0), (True, True, 0.0), (True, True, 0.0)]    # of each result: bits, signs of zero, how far off it may be


def f(a17, a30, v40, v31, v32):
    def f42(s):
        (i37, p33, p34, p35, p36,) = s
        v43 = i37 + np.uint8(1)
        return v43, p36, v40, p34, p36
    v44, v45, v46, v47 = lax.while_loop(lambda s: (s[0] != np.uint8(254)), f42, (np.uint8(253), a30, v31, a17, a30))[1:]
    v48 = lax.dot_general(v32, v31, (([], []), ([], [])))
    return v31, v46, v48,
