"""wrong: result 0 float32[1]: error 3.5e-06 against f64, XLA:CPU's 9.8e-09"""
inputs = [('a4', 'float32', (9979,), 'unit', 5551)]    # name, type, shape, values
good = [(False, False, 0.0002)]    # of each result: bits, signs of zero, how far off it may be


def f(a4):
    v5 = lax.reduce_window(a4, 0., lax.add, (9979,), (1,), 'VALID')
    return v5,
