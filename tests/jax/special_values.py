"""Every elementwise function of every element type at special values, Rondo against XLA:CPU; see test_numbers.py.

    python tests/jax/special_values.py [dtype ..]      one line for each tier, function and type that differs
"""
import sys
import warnings

import jax
import jax._src.lax.lax as lax_internal
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from rondo import library

warnings.filterwarnings("ignore")

FLOATS = ["float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz",
          "float8_e5m2fnuz", "float8_e3m4", "float8_e4m3", "float8_e8m0fnu", "float4_e2m1fn"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "int4", "uint4", "int2", "uint2"]
COMPLEX = ["complex64", "complex128"]
BOOL = ["bool"]
TYPES = FLOATS + INTS + COMPLEX + BOOL

even = lax.RoundingMethod.TO_NEAREST_EVEN
# name: (function, types, ulp).  The tolerance is of f32; of f64 it is 4 at least where it is not 0 (both call libraries).
f, i, c, b = FLOATS, INTS, COMPLEX, BOOL
ONE = {
    "abs": (lax.abs, f + i + c, 0), "neg": (lax.neg, f + i + c, 0), "sign": (lax.sign, f + i + c, 0), "not": (lax.bitwise_not, i + b, 0),
    "ceil": (lax.ceil, f, 0), "floor": (lax.floor, f, 0), "round": (lax.round, f, 0), "round_even": (lambda x: lax.round(x, even), f, 0),
    "exp": (lax.exp, f + c, 3), "expm1": (lax.expm1, f + c, 4), "log": (lax.log, f + c, 3), "log1p": (lax.log1p, f + c, 4),
    "logistic": (lax.logistic, f + c, 4), "tanh": (lax.tanh, f + c, 6), "tan": (lax.tan, f + c, 4), "sin": (lax.sin, f + c, 3),
    "cos": (lax.cos, f + c, 3), "sqrt": (lax.sqrt, f + c, 1), "rsqrt": (lax.rsqrt, f + c, 2), "cbrt": (lax.cbrt, f, 3), "erf": (lax.erf, f, 8),
    "is_finite": (lax.is_finite, f, 0), "popcnt": (lax.population_count, i, 0), "clz": (lax.clz, i, 0),
    "real": (lax.real, c, 0), "imag": (lax.imag, c, 0), "conj": (lax.conj, c, 0),
    "reduce_precision": (lambda x: lax.reduce_precision(x, 4, 2), f, 0), "integer_pow": (lambda x: lax.integer_pow(x, 3), f + i, 1),
    **{"to " + t: (lambda x, t=t: lax.convert_element_type(x, jnp.dtype(t)), f + i + b, 0) for t in TYPES if t not in COMPLEX},
}
TWO = {
    "add": (lax.add, f + i + c, 0), "sub": (lax.sub, f + i + c, 0), "mul": (lax.mul, f + i + c, 0), "div": (lax.div, f + i + c, 0),
    "rem": (lax.rem, f + i, 0), "max": (lax.max, f + i + c + b, 0), "min": (lax.min, f + i + c + b, 0), "pow": (lax.pow, f + c, 2),
    "atan2": (lax.atan2, f, 3), "and": (lax.bitwise_and, i + b, 0), "or": (lax.bitwise_or, i + b, 0), "xor": (lax.bitwise_xor, i + b, 0),
    "shift_left": (lax.shift_left, i, 0), "shift_right_logical": (lax.shift_right_logical, i, 0),
    "shift_right_arithmetic": (lax.shift_right_arithmetic, i, 0),
    "eq": (lax.eq, TYPES, 0), "ne": (lax.ne, TYPES, 0), "lt": (lax.lt, f + i + b, 0), "ge": (lax.ge, f + i + b, 0),
    "lt total": (lambda x, y: lax_internal.lt_to_p.bind(x, y), f, 0), "le total": (lambda x, y: lax_internal.le_to_p.bind(x, y), f, 0),
    "select": (lambda x, y: lax.select(lax.ne(x, x), y, x), f, 0), "clamp": (lambda x, y: lax.clamp(y, x, x), f + i, 0),
    "nextafter": (lax.nextafter, ["float32", "float64", "bfloat16", "float16"], 0),
}


def width(t):
    return 2 if t.endswith("int2") else 4 if t.endswith("int4") or t.startswith("float4") else 8 * jnp.dtype(t).itemsize


def specials(t, subnormal=False):
    """Special values of a type: all of them, of the small ones."""
    dt = jnp.dtype(t)
    if t == "bool":
        return np.array([False, True])
    if t in COMPLEX:
        part = np.array([0., -0., 1, -1, .5, -2, 3, 88, -100, np.inf, -np.inf, np.nan, 1e30], "f4" if t == "complex64" else "f8")
        return np.array([complex(x, y) for x in part for y in part], dt)
    if t in INTS:
        w = width(t)
        if w < 8:
            return np.arange(-(1 << w - 1), 1 << w - 1).astype(dt) if t[0] == "i" else np.arange(1 << w).astype(dt)
        lo, hi = (-(1 << w - 1), (1 << w - 1) - 1) if t[0] == "i" else (0, (1 << w) - 1)
        v = {lo, lo + 1, hi, hi - 1, hi // 2, hi // 3, 0, 1, 2, 3, 5, 7, 8, 31, 32, 63, 64, 100, w - 1, w, w + 1}
        v |= {-x for x in v if -x >= lo} if lo else set()
        return np.array(sorted(x for x in v if lo <= x <= hi), dt)
    if dt.itemsize == 1:
        bits = np.arange(1 << width(t)).astype(np.uint8)
        return bits.view(dt)
    fi = ml_dtypes.finfo(dt)
    tiny, big = float(fi.smallest_normal), float(fi.max)
    v = [0, 1, .5, .25, 1.5, 2, 2.5, 3, .1, .7, 1 - float(fi.epsneg), 1 + float(fi.eps), 1e-3, 10, 88, 88.5, 89, 87, 103, 104, 126, 127, 128, 129, 150, 255, 256,
         709, 710, 745, 746, 1e4, 32767, 32768, 65504, 65535, 65536, 2.**24, 2.**31, 2.**32, 2.**63, 2.**64, 1e30, big, big / 2, tiny, tiny * 1.5, tiny * 4,
         3.14159265, 1.5707963, 0.7853982, 100.5, np.inf]
    if subnormal:
        v = [float(fi.smallest_subnormal), tiny - float(fi.smallest_subnormal), tiny / 2, 0, 1, 2, tiny, big, np.inf]
    v += [-x for x in v] + [np.nan]
    a = np.array(v, "f8").astype(dt)
    return a if subnormal else a[~low(a)]


def low(a):
    """Subnormal numbers of types that have none here."""
    if a.dtype.kind == "c":
        return low(a.real) | low(a.imag)
    if str(a.dtype) not in ("float32", "float64", "bfloat16"):
        return np.zeros(a.shape, bool)
    return (a != 0) & (np.abs(a.astype("f8")) < float(ml_dtypes.finfo(a.dtype).smallest_normal))


def flush(a):
    return np.where(low(a), np.copysign(0, a.astype("f8")).astype(a.dtype), a)


def ulps(a, r):
    """Distance of a from r in units of the last place of r; 0 for equal ones, NaN for NaN; signs of zero count."""
    a, r = np.broadcast_arrays(a, r)
    if a.dtype.kind == "c":
        p = "f4" if a.dtype == np.complex64 else "f8"
        return np.maximum(ulps(a.real.astype(p), r.real.astype(p)), ulps(a.imag.astype(p), r.imag.astype(p)))
    if a.dtype.kind in "iub" or "int" in str(a.dtype):      # ml_dtypes' small integers too
        return np.where(a == r, 0., np.inf)
    x, y = a.astype("f8"), r.astype("f8")
    fi = ml_dtypes.finfo(a.dtype)
    with np.errstate(all="ignore"):
        _, e = np.frexp(np.maximum(np.abs(y), float(fi.smallest_normal)))
        d = np.abs(x - y) / np.ldexp(1., e - 1 - fi.nmant)
    d = np.where(np.isfinite(x) & np.isfinite(y), d, np.inf)
    d = np.where((x == y) & (np.signbit(x) == np.signbit(y)), 0, d)
    d = np.where(np.isnan(x) & np.isnan(y), 0, d)
    return np.where((x == 0) & (y == 0) & (np.signbit(x) != np.signbit(y)) & ~np.isnan(x), np.inf, d)


# --- layouts: the operand is read as it lies, turned, from every other column, or one element for all --------

def broadcast(x):
    return (np if isinstance(x, np.ndarray) else jnp).broadcast_to(x[:1], x.shape)


LAYOUTS = [lambda x: x, lambda x: x.T, lambda x: x[1:, ::2], broadcast]


def compiled(functions, layouts, device, *args):
    """All of functions over all layouts, as one program."""
    def program(*a):
        return [[fn(*(lay(x) for x in a)) for lay in layouts] for fn in functions]
    out = jax.jit(program)(*(jax.device_put(a, device) for a in args))
    return [[np.asarray(v) for v in o] for o in out]


def grid(v, n=1):
    """Values, or all pairs of them, as arrays of two dimensions."""
    if n == 1:
        v = np.resize(v, -(-max(len(v), 64) // 8) * 8)
        return [v.reshape(8, -1)]
    if len(v) > 64:
        v = v[:: len(v) // 48 + 1] if len(v) <= 128 else np.concatenate([v[::7], v[-3:], v[126:130]])
    return [np.repeat(v, len(v)).reshape(len(v), -1), np.tile(v, len(v)).reshape(len(v), -1)]


def run(table, names, device, layouts, args):
    """Results by name; where a program of all of them is refused, one by one."""
    try:
        return dict(zip(names, compiled([table[n][0] for n in names], layouts, device, *args)))
    except Exception:  # noqa: BLE001
        out = {}
        for n in names:
            try:
                out[n] = compiled([table[n][0]], layouts, device, *args)[0]
            except Exception as e:  # noqa: BLE001
                out[n] = str(e).replace("\n", " ")
        return out


def differences(types):
    cpu, own = jax.devices("cpu")[0], jax.devices("rondo")[0]
    for t in types:
        for table, n in ((ONE, 1), (TWO, 2)):
            names = [k for k, (_, ts, _) in table.items() if t in ts]
            args = grid(specials(t), n)
            want, got = run(table, names, cpu, LAYOUTS[:1], args), {}
            for tier in ("gen", "ref"):
                library.set_option("tier", tier)
                got |= {(tier, k): v for k, v in run(table, names, own, LAYOUTS, args).items()}
            for tier, k in got:
                tol = table[k][2] * (2 if t in ("float64", "complex128") else 1)
                if t in FLOATS[2:]:
                    tol = min(tol, 1)
                if isinstance(want[k], str):
                    continue
                if isinstance(got[tier, k], str):
                    yield tier, k, t, "refused: " + got[tier, k][:90]
                    continue
                worst, what = 0, ""
                for lay, g in zip(LAYOUTS, got[tier, k]):
                    w = lay(want[k][0])
                    if w.dtype != g.dtype or w.shape != g.shape:
                        worst, what = np.inf, f"{g.dtype}{g.shape} for {w.dtype}{w.shape}"
                        continue
                    d = np.where(low(w), 0, ulps(g, w))
                    if d.max() > max(worst, tol):
                        worst, at = d.max(), np.unravel_index(d.argmax(), d.shape)
                        xs = [lay(a)[at] for a in args]
                        what = f"{(d > tol).sum()} of {d.size}: {k}({', '.join(str(x) for x in xs)}) is {g[at]}, XLA:CPU {w[at]} ({d.max():.3g} ulp)"
                if worst > tol:
                    yield tier, k, t, what


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for tier, k, t, what in differences(sys.argv[1:] or TYPES):
        print(f"{tier} {k} {t}: {what}", flush=True)
