"""What a program gives by its own text: its operations one after the other, for judging where back ends differ.

XLA:CPU computes each operation alone, in the types of the program ("own"), or in f64 whatever its type ("wide"), the result rounded to its
type or not.  A convolution's padding is an operation of its own.  Only extremes of many elements are NumPy's, since XLA:CPU loses a NaN
there that is not the first, and f64 that becomes narrow is rounded once, and not to f32 first.
"""
import itertools

import jax
import numpy as np
from jax.extend import core

EPS = {"float32": 2 ** -23, "bfloat16": 2 ** -8, "float16": 2 ** -10, "float64": 2 ** -52, "float8_e4m3fn": 2 ** -3, "float8_e5m2": 2 ** -2,
       "float8_e4m3b11fnuz": 2 ** -3, "float8_e3m4": 2 ** -4}
INSIDE = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr",
          "custom_vjp_call": "call_jaxpr", "checkpoint": "jaxpr", "remat2": "jaxpr"}
SUMS = ("reduce_window_sum",)              # XLA:CPU is wrong where a window of two reaches into the padding of a dimension of one
EXTREMES = ("reduce_max", "reduce_min", "cummax", "cummin", "argmax", "argmin", "reduce_window_max", "reduce_window_min")
COLLECTIVES = ("psum", "psum_invariant", "pmax", "pmin", "ppermute", "all_gather", "reduce_scatter", "all_to_all", "axis_index")
OWN = ("bitcast_convert_type", "nextafter", "rng_uniform")       # mean the bits of a type
KEEP = ("rem", "expm1", "tanh", "sin", "tan", "cbrt")            # XLA:CPU calculates with subnormals, as its code happens to be


def floats(dtype):
    return dtype.name in EPS or dtype.kind == "c"


def up(x):
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) if floats(x.dtype) else x


def narrow(x, dtype):
    """Rounded once: f64 goes to the narrow types by f32, here with what f32 leaves out as its last bit."""
    if x.dtype != np.float64 or dtype.name in ("float64", "float32"):
        return x.astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        y = np.atleast_1d(x.astype(np.float32))
        more = np.abs(y) > np.abs(np.atleast_1d(x))
        y = np.where(more, np.nextafter(y, np.float32(0)), y)
        y = np.where((y != np.atleast_1d(x)) & np.isfinite(x), (y.view(np.uint32) | 1).view(np.float32), y)
        return y.reshape(x.shape).astype(dtype)


def flushed(x):
    """Subnormals are zeros in what calculates (docs/numbers.md); XLA:CPU leaves out a reduction of one element."""
    x = np.asarray(x)
    least = {"float32": 2.0 ** -126, "bfloat16": 2.0 ** -126, "float64": 2.0 ** -1022}.get(x.dtype.name)
    return np.where(np.abs(x) < least, np.copysign(x * 0, x), x) if least else x


def extreme(name, x, p):
    """Extremes of many elements, NaN where one of them is; sums of windows."""
    if name not in EXTREMES + SUMS or np.asarray(x).dtype.name not in EPS:
        return None
    how = np.add if name in SUMS else np.maximum if "max" in name else np.minimum
    none = 0 if name in SUMS else -np.inf if how is np.maximum else np.inf
    x = np.asarray(x)
    y = x.astype(np.float64)
    if name in ("reduce_max", "reduce_min"):
        y = how.reduce(y, axis=tuple(p["axes"]), initial=none)
    elif name in ("cummax", "cummin"):
        a, r = p["axis"], p["reverse"]
        y = np.flip(y, a) if r else y
        y = how.accumulate(y, axis=a)
        y = np.flip(y, a) if r else y
    elif name in ("argmax", "argmin"):
        return getattr(np, name)(y, axis=p["axes"][0]).astype(p["index_dtype"])
    else:
        if any(d != 1 for d in (*p["base_dilation"], *p["window_dilation"])):
            return None
        y = np.pad(y, p["padding"], constant_values=none)
        size, step = p["window_dimensions"], p["window_strides"]
        many = [(e - w) // s + 1 for e, w, s in zip(y.shape, size, step)]
        parts = [y[tuple(slice(o, o + (m - 1) * s + 1, s) for o, m, s in zip(at, many, step))] for at in itertools.product(*map(range, size))]
        y = how.reduce(parts)
    return y.astype(x.dtype)


def collective(name, x, n, p):
    """x of each of n devices; what each has then."""
    if name == "axis_index":
        return [np.int32(d) for d in range(n)]
    x = [np.asarray(v) for v in x]
    if name == "ppermute":
        come = {d: s for s, d in p["perm"]}
        return [x[come[d]] if d in come else np.zeros_like(x[d]) for d in range(n)]
    out = [None] * n
    for g in p.get("axis_index_groups") or [range(n)]:
        of = [x[d] for d in g]
        if name in ("psum", "psum_invariant", "reduce_scatter"):
            total = np.add.reduce([up(v) for v in of]).astype(of[0].dtype)
            if name == "reduce_scatter":
                a = p["scatter_dimension"]
                made = np.split(total, len(g), a) if p["tiled"] else np.moveaxis(total, a, 0)
            else:
                made = [total] * len(g)
        elif name in ("pmax", "pmin"):
            made = [(np.maximum if name == "pmax" else np.minimum).reduce([v.astype(np.float64) if v.dtype.name in EPS else v for v in of]).astype(of[0].dtype)] * len(g)
        elif name == "all_gather":
            a = p["all_gather_dimension"]
            made = [np.concatenate(of, a) if p["tiled"] else np.stack(of, a)] * len(g)
        else:
            parts = [np.split(v, len(g), p["split_axis"]) for v in of]
            made = [np.concatenate([q[k] for q in parts], p["concat_axis"]) for k in range(len(g))]
            assert p["tiled"]
        for d, v in zip(g, made, strict=True):
            out[d] = v
    return out


class Model:
    """A value is a list of what each of n devices has.  wide: in f64.  rounds: results are rounded to their type.  rng: but first moved by
    up to a unit in the last place, if they are not exact, as if what is computed within an operation were not, either."""

    def __init__(self, n=1, wide=False, rounds=True, rng=None):
        self.n, self.wide, self.rounds, self.rng = n, wide, rounds, rng

    def rounded(self, v, aval):
        v = up(np.asarray(v))
        if not self.rounds or aval.dtype.kind == "c":
            return v
        r = narrow(v, aval.dtype).astype(np.float64)
        if self.rng is not None:
            moved = v * (1 + EPS[aval.dtype.name] * self.rng.uniform(-1, 1, v.shape))
            r = np.where(r == v, r, narrow(moved, aval.dtype).astype(np.float64))
        return r

    def run(self, j, args):
        j, consts = getattr(j, "jaxpr", j), getattr(j, "consts", [])
        env = dict(zip([*j.constvars, *j.invars], [*([self.given(c)] * self.n for c in consts), *args]))

        def read(a):
            return [self.given(np.asarray(a.val, a.aval.dtype))] * self.n if isinstance(a, core.Literal) else env[a]
        for e in j.eqns:
            for v, x in zip(e.outvars, self.eqn(e, [read(a) for a in e.invars]), strict=True):
                env[v] = x
        return [read(a) for a in j.outvars]

    def given(self, x):
        return up(np.asarray(x)) if self.wide and plain(x) and floats(np.dtype(x.dtype)) else x

    def eqn(self, e, args):
        """args[k][d]: operand k of device d."""
        name, p = e.primitive.name, e.params
        if name in INSIDE:
            return self.run(p[INSIDE[name]], args)
        if name == "cond":
            one = Model(1, self.wide, self.rounds, self.rng)
            made = [one.run(p["branches"][int(np.clip(int(args[0][d]), 0, len(p["branches"]) - 1))], [[a[d]] for a in args[1:]]) for d in range(self.n)]
            return [[m[k][0] for m in made] for k in range(len(e.outvars))]
        if name == "while":
            nc, nb = p["cond_nconsts"], p["body_nconsts"]
            s = args[nc + nb:]
            while any(on := [bool(c) for c in self.run(p["cond_jaxpr"], [*args[:nc], *s])[0]]):
                new = self.run(p["body_jaxpr"], [*args[nc:nc + nb], *s])
                s = [[y if c else x for c, x, y in zip(on, old, v)] for old, v in zip(s, new)]
            return s
        if name == "scan":
            nk, nc = (p["num_consts"], p["num_carry"]) if "num_consts" in p else (len(list(x)) for x in p["ft_in"].unpack()[:2])       # JAX 0.11 and later
            made = []
            s, rows = args[nk:nk + nc], [[np.asarray(x) for x in a] for a in args[nk + nc:]]
            for i in reversed(range(p["length"])) if p["reverse"] else range(p["length"]):
                r = self.run(p["jaxpr"], [*args[:nk], *s, *[[x[i] for x in a] for a in rows]])
                s = r[:nc]
                made.append(r[nc:])
            made = made[::-1] if p["reverse"] else made
            return [*s, *[[np.stack([np.asarray(m[k][d]) for m in made]) if made else np.zeros(v.aval.shape, v.aval.dtype) for d in range(self.n)]
                          for k, v in enumerate(e.outvars[nc:])]]
        wants = [v.aval for v in e.outvars]
        if name in COLLECTIVES:
            out = [collective(name, x, self.n, p) for x in args or [None]]
            return [[self.rounded(x, w) if self.wide and floats(w.dtype) else x for x in o] for o, w in zip(out, wants, strict=True)]
        made = [self.alone(e, name, [a[d] for a in args], p, wants) for d in range(self.n)]
        return [list(o) for o in zip(*made)]

    def alone(self, e, name, args, p, wants):
        if name == "conv_general_dilated":      # XLA:CPU is wrong if it cuts at one end, pads at the other, and strides
            own = [(0, 0, 0)] * np.ndim(args[0])
            for d, (lo, hi), k in zip(p["dimension_numbers"].lhs_spec[2:], p["padding"], p["lhs_dilation"], strict=True):
                own[d] = (lo, hi, k - 1)
            args = [jax.lax.pad(args[0], np.zeros((), args[0].dtype), own), args[1]]
            p = p | {"padding": ((0, 0),) * len(p["padding"]), "lhs_dilation": (1,) * len(p["padding"])}
        if name in ("dynamic_slice", "dynamic_update_slice"):       # XLA:CPU writes elsewhere if a dimension is longer than i8 counts
            k = 1 if name == "dynamic_slice" else 2
            args = [*args[:k], *(np.asarray(a).astype(np.int32) if np.asarray(a).itemsize < 4 else a for a in args[k:])]
        if args and (y := extreme(name, args[0], p)) is not None:
            return [self.rounded(y, wants[0]) if name in SUMS and self.wide else flushed(y)]
        if name == "convert_element_type" and args[0].dtype == np.float64 and p["new_dtype"].name in EPS and not self.wide:
            return [narrow(np.asarray(args[0]), p["new_dtype"])]
        if name in KEEP and not self.wide:
            args = [flushed(a) for a in args]
        types = [a.aval.dtype for a in [*e.invars, *e.outvars]]
        if not self.wide or not any(plain(a.aval) and floats(a.aval.dtype) for a in [*e.invars, *e.outvars]):
            out = self.bind(e, args, p)
            return [flushed(x) for x in out] if name.startswith(("reduce_", "cum")) and name != "reduce_precision" else out
        own = [a.astype(t) if plain(a) and floats(t) else a for a, t in zip(args, types)]
        q = {k: np.dtype(np.complex128 if np.dtype(v).kind == "c" else np.float64) if k in ("new_dtype", "preferred_element_type", "dtype") and v is not None and floats(np.dtype(v)) else v
             for k, v in p.items()}
        try:
            out = self.bind(e, own if name in OWN else args, p if name in OWN else q)
        except Exception:             # it holds a function of its own, in the program's types
            out = self.bind(e, own, p)
        return [self.rounded(x, w) if plain(w) and floats(w.dtype) else x for x, w in zip(out, wants)]

    @staticmethod
    def bind(e, args, params):
        out = e.primitive.bind(*args, **e.primitive.get_bind_params(params))
        return list(out) if e.primitive.multiple_results else [out]


def plain(x):
    return not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)


def model(c, wide=False, rounds=True, seed=None):
    """The results of case c, in f64 where they are floats if wide; of several devices, in a leading dimension."""
    n = c.devices if c.how == "manual" else 1
    values = [[np.roll(x, k) if n > 1 else x for k in range(n)] for x in c.values()]
    with jax.default_device(jax.devices("cpu")[0]):
        with jax.enable_x64(c.x64):
            j = jax.make_jaxpr(c.fn(), axis_env=[("d", n)] if n > 1 else None)(*[v[0] for v in values])
        with jax.enable_x64(wide or c.x64):
            m = Model(n, wide, rounds, None if seed is None else np.random.default_rng(seed))
            out = m.run(j, [[m.given(jax.numpy.asarray(x)) for x in v] for v in values])
            return [np.stack([np.asarray(x) for x in v]) if n > 1 else np.asarray(v[0]) for v in out]
