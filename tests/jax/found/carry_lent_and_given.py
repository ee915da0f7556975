"""crash: SIGABRT"""
seed = 30258
tier = 'gen'
devices = 3
how = 'manual'
inputs = [('a1', 'uint32', (1, 24), 'normal', 6529),
          ('a2', 'bfloat16', (24, 32, 1), 'normal', 115),
          ('v78', 'uint32', (1, 2, 24), 'normal', 1),
          ('v68', 'bfloat16', (24, 32, 1), 'normal', 1),
          ('v69', 'bfloat16', (24, 32, 1), 'normal', 1),
          ('v70', 'uint32', (1, 2, 24), 'normal', 1),
          ('v25', 'uint32', (2, 24), 'normal', 1),
          ('v16', 'bfloat16', (7, 9, 1), 'normal', 1),
          ('v15', 'uint32', (24,), 'normal', 1)]    # name, type, shape, values
good = [(False, False, 0.06)]    # of each result: bits, signs of zero, how far off it may be


def f(a1, a2, v78, v68, v69, v70, v25, v16, v15):
    def f27(c, r):
        (p3, p4, p5, p6,), (p7,) = c, r
        def f17(c, r):
            (p9, p10, p11,), (p12, p13, p14,) = c, r
            v18 = lax.ppermute(p10, 'd', [(0, 2), (2, 1), (1, 0)])
            v19 = lax.ppermute(v18, 'd', [(0, 2), (2, 1), (1, 0)])
            v20 = lax.ppermute(v19, 'd', [(0, 2), (2, 1), (1, 0)])
            return (p11, v20, v15,), v16
        v21, v22, v23, v24 = (lambda c, y: (*c, y))(*lax.scan(f17, (p7, p6, p7,), (p5, a2, p3,), unroll=2))
        v28 = lax.ppermute(p4, 'd', [(0, 2), (2, 1), (1, 0)])
        v29 = lax.ppermute(v22, 'd', [(0, 2), (2, 1), (1, 0)])
        v30 = lax.ppermute(v29, 'd', [(0, 2), (2, 1), (1, 0)])
        v31 = lax.ppermute(v30, 'd', [(1, 0), (0, 1), (2, 2)])
        return (v22, v28, v31, v22,), v25
    v32, v33, v34, v35, v36 = (lambda c, y: (*c, y))(*lax.scan(f27, (a2, a2, a2, a2,), (a1,)))
    def f79(c, r):
        (p72, p73, p74,), (p75, p76, p77,) = c, r
        v80 = p74 * 0.5
        v81 = lax.ppermute(p74, 'd', [(2, 0), (0, 1), (1, 2)])
        v82 = lax.ppermute(v81, 'd', [(0, 2), (2, 0), (1, 1)])
        v83 = lax.ppermute(v78, 'd', [(0, 2), (2, 0), (1, 1)])
        return (v82, v83, v80,), p74
    v84, v85, v86, v87 = (lambda c, y: (*c, y))(*lax.scan(f79, (v68, v70, v35,), (v69, a2, a2,)))
    return v87,
