"""Random programs on Rondo and on JAX's own cpu: the same results, or the program is printed.

    JAX_PLATFORMS=rondo,cpu python tests/jax/random_programs.py [--seed 0] [--count 200] [--devices 4] [--large] [--grad]

A program is a chain of ops drawn by a seed, over arrays of odd shapes and many element types: elementwise, reductions, products,
reshapes, slices, gathers, scatters, sorts, windows, control flow, and gradients; with --devices over 1 it is the body of a
shard_map and communicates.  Integers must be equal; floats agree to what one rounding of their type amounts to in a chain.
"""
import argparse
import sys

import numpy as np

FLOATS = ["float32", "bfloat16", "float16"]
INTS = ["int32", "uint8", "int8", "uint32", "int16"]
SHAPES = [(), (1,), (7,), (33,), (3, 5), (8, 16), (1, 9), (4, 1, 6), (2, 3, 4), (5, 32), (2, 2, 3, 3), (129,), (16, 16), (3, 0)]
LARGE = [(), (1000,), (64, 129), (3, 257, 65), (512, 512), (7, 1025), (50021,), (16, 16, 16, 17), (1, 4096), (260, 8, 33)]
GOOD = {"float32": 2e-4, "bfloat16": 6e-2, "float16": 1e-2, "complex64": 4e-4}
# What only moves elements leaves them exact; what jumps (an index of a maximum) may be asked of exact values only.
MOVES = {"reshape", "transpose", "slice", "pad", "concat", "reverse", "broadcast", "take", "dslice", "dupdate", "sort", "topk", "iota", "onehot", "clamp",
         "where_iota", "max", "min", "neg", "abs", "conj", "real", "imag", "coll_ppermute", "coll_ppermute_open", "coll_all_gather", "coll_all_to_all"}
JUMPS = {"argsort", "argmax", "argmin", "sort2", "floor", "cast_jump", "rem"}


class Program:
    """Draws ops until the wanted number stands; `run` evaluates them on any platform."""

    def __init__(self, seed, devices, large=False):
        self.rng = np.random.default_rng(seed)
        self.devices, self.shapes, self.most = devices, LARGE if large else SHAPES, 1000000 if large else 20000
        self.text, self.steps, self.inputs = [], [], []

    def pick(self, seq):
        return seq[int(self.rng.integers(len(seq)))]

    def input(self, shape, dtype):
        x = self.rng.normal(size=shape)
        if dtype.startswith(("int", "uint")):
            info = np.iinfo(dtype)
            x = self.rng.integers(max(info.min, -50), min(info.max, 50), size=shape, endpoint=True)
        if dtype == "bool":
            x = x > 0
        if dtype == "complex64":
            x = x + 1j * self.rng.normal(size=shape)
        import jax.numpy as jnp
        return np.asarray(x).astype(jnp.dtype(dtype))

    def draw(self, length):
        import jax
        import jax.numpy as jnp
        n = int(self.rng.integers(1, 4))
        for _ in range(n):
            shape = self.pick(self.shapes)
            dtype = self.pick(FLOATS * 3 + INTS + ["bool", "complex64"])
            self.inputs.append(self.input(shape, dtype))
        env = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in self.inputs]
        self.exact = [True] * n                                          # the same bits everywhere
        self.good = [GOOD.get(x.dtype.name, 0) for x in self.inputs]     # how well a value agrees: no better than what it was made of
        tries = 0
        while len(self.steps) < length and tries < 20 * length:
            tries += 1
            made = self.op(env)
            if made is None:
                continue
            name, f, args = made
            kind, whole = name.split("[")[0], env[args[0]].dtype.kind in "iub" and all(self.exact[k] for k in args)
            if kind in JUMPS and not all(self.exact[k] for k in args):
                continue
            try:
                out = jax.eval_shape(f, *[env[i] for i in args]) if not name.startswith("coll") else f.shape
            except (TypeError, ValueError, NotImplementedError, OverflowError, IndexError, ZeroDivisionError, AssertionError):
                continue
            if not hasattr(out, "shape") or np.prod(out.shape, dtype=np.int64) > self.most or len(out.shape) > 6:
                continue
            if out.dtype in (jnp.float64, jnp.int64, jnp.complex128):
                continue
            self.steps.append((f, args))
            self.exact.append(whole and out.dtype.kind in "iub" or kind in MOVES | JUMPS and all(self.exact[k] for k in args))
            self.good.append(max([self.good[k] for k in args] + [GOOD.get(out.dtype.name, 0)]))
            self.text.append(f"v{len(env)} = {name}({', '.join(f'v{i}' for i in args)})  # {out.dtype.name}{list(out.shape)}")
            env.append(out)
        self.kept = [i for i in range(len(env)) if self.rng.random() < 0.4] or [len(env) - 1]
        if len(env) - 1 not in self.kept:
            self.kept.append(len(env) - 1)

    def run(self, *inputs):
        env = list(inputs)
        for f, args in self.steps:
            env.append(f(*[env[i] for i in args]))
        return [env[i] for i in self.kept]

    # One op over what there is; None: it does not fit what was drawn.
    def op(self, env):
        import jax
        import jax.numpy as jnp
        from jax import lax
        rng, pick = self.rng, self.pick
        i = int(rng.integers(len(env)))
        x = env[i]
        same = [k for k, y in enumerate(env) if y.dtype == x.dtype and y.shape == x.shape]
        j = pick(same)
        rank, kind = len(x.shape), "b" if x.dtype == bool else "c" if x.dtype == jnp.complex64 else "f" if jnp.issubdtype(x.dtype, jnp.floating) else "i"
        axis = int(rng.integers(rank)) if rank else None
        group = pick(["unary", "unary", "binary", "binary", "where", "cast", "reduce", "reduce", "reshape", "transpose", "slice", "pad", "concat",
                      "reverse", "broadcast", "dot", "take", "scatter", "sort", "cum", "window", "dslice", "dupdate", "scan", "while", "cond", "grad",
                      "norm", "map", "iota", "onehot", "argmax", "bits", "coll", "coll", "remat", "clamp", "einsum", "fori_slice"])
        if group == "unary":
            if kind == "f":
                name = pick(["sin", "tanh", "exp", "log1p", "abs", "sqrt", "rsqrt", "floor", "round", "sign", "logistic", "erf", "cos", "expm1", "neg", "square",
                             "cbrt", "isfinite", "ceil", "atan"])
                f = {"sin": lambda x: jnp.sin(jnp.clip(x, -4, 4)), "tanh": jnp.tanh, "exp": lambda x: jnp.exp(jnp.clip(x, -4, 4)), "log1p": lambda x: jnp.log1p(jnp.abs(x)), "abs": jnp.abs,
                     "sqrt": lambda x: jnp.sqrt(jnp.abs(x)), "rsqrt": lambda x: lax.rsqrt(jnp.abs(x) + 1), "floor": lambda x: jnp.floor(x * 3),
                     "round": lambda x: jnp.round(x * 0 + 2.5), "sign": lambda x: jnp.sign(x * 0 + 1), "logistic": jax.nn.sigmoid,
                     "erf": lax.erf, "cos": lambda x: jnp.cos(jnp.clip(x, -4, 4)), "expm1": lambda x: jnp.expm1(jnp.clip(x, -3, 3)), "neg": jnp.negative, "square": lambda x: jnp.square(jnp.clip(x, -9, 9)),
                     "cbrt": jnp.cbrt, "isfinite": jnp.isfinite, "ceil": lambda x: jnp.ceil(x * 0 + 0.5), "atan": jnp.arctan}[name]
            elif kind == "i":
                name = pick(["not", "abs", "popcount", "clz", "neg", "sign"])
                f = {"not": jnp.bitwise_not, "abs": jnp.abs, "popcount": lax.population_count, "clz": lax.clz, "neg": jnp.negative, "sign": jnp.sign}[name]
            elif kind == "b":
                name, f = "not", jnp.logical_not
            else:
                name = pick(["conj", "real", "imag", "cabs", "csquare", "cexp"])
                f = {"conj": jnp.conj, "real": jnp.real, "imag": jnp.imag, "cabs": jnp.abs, "csquare": lambda x: x * x / (1 + jnp.abs(x)),
                     "cexp": lambda x: jnp.exp(x / (1 + jnp.abs(x)))}[name]
            return name, f, [i]
        if group == "binary":
            if kind == "f":
                name = pick(["add", "mul", "sub", "max", "min", "div", "atan2", "hypot", "rem"])
                f = {"add": jnp.add, "mul": lambda a, b: a * jnp.tanh(b), "sub": jnp.subtract, "max": jnp.maximum, "min": jnp.minimum,
                     "div": lambda a, b: a / (2 + jnp.abs(b)), "atan2": lambda a, b: jnp.arctan2(a, 2 + jnp.abs(b)), "hypot": jnp.hypot,
                     "rem": lambda a, b: lax.rem(a, jnp.abs(b) + 2)}[name]
            elif kind == "i":
                name = pick(["add", "mul", "sub", "max", "min", "and", "or", "xor", "shl", "shr", "sar", "div", "rem"])
                f = {"add": jnp.add, "mul": jnp.multiply, "sub": jnp.subtract, "max": jnp.maximum, "min": jnp.minimum, "and": jnp.bitwise_and,
                     "or": jnp.bitwise_or, "xor": jnp.bitwise_xor, "shl": lax.shift_left, "shr": lax.shift_right_logical,
                     "sar": lax.shift_right_arithmetic, "div": lax.div, "rem": lax.rem}[name]
            elif kind == "b":
                name = pick(["and", "or", "xor"])
                f = {"and": jnp.logical_and, "or": jnp.logical_or, "xor": jnp.logical_xor}[name]
            else:
                name = pick(["add", "mul", "sub"])
                f = {"add": jnp.add, "mul": lambda a, b: a * (b / (1 + jnp.abs(b))), "sub": jnp.subtract}[name]
            return name, f, [i, j]
        if group == "where":
            name = pick(["where_gt", "where_iota"])
            if kind == "c":
                return None
            if name == "where_gt":
                return name, (lambda a, b: jnp.where(a >= b, a, b)) if kind != "b" else (lambda a, b: jnp.where(a, b, a)), [i, j]
            if not rank:
                return None
            return f"where_iota[{axis}]", lambda a, b: jnp.where(lax.broadcasted_iota(jnp.int32, a.shape, axis) % 3 == 1, a, b), [i, j]
        if group == "cast":
            to = pick(FLOATS + INTS + ["bool"])
            if kind == "c":
                return None
            if kind == "f" and to not in FLOATS:
                return f"cast_jump[{to}]", lambda x: jnp.clip(x, 0, 100).astype(to), [i]
            return f"cast[{to}]", lambda x: x.astype(to), [i]
        if group == "reduce":
            if not rank:
                return None
            axes = tuple(sorted(rng.choice(rank, size=int(rng.integers(1, rank + 1)), replace=False).tolist()))
            keep = bool(rng.random() < 0.3)
            if kind == "b":
                name = pick(["any", "all"])
            elif kind == "c":
                name = "sum"
            else:
                name = pick(["sum", "max", "min", "mean" if kind == "f" else "sum", "prod" if kind == "i" else "logsumexp"])
            f = {"any": jnp.any, "all": jnp.all, "sum": jnp.sum, "max": jnp.max, "min": jnp.min, "mean": jnp.mean, "prod": jnp.prod,
                 "logsumexp": lambda x, axis, keepdims: jax.nn.logsumexp(x, axis=axis, keepdims=keepdims)}[name]
            if 0 in x.shape and name in ("max", "min", "logsumexp", "mean"):
                return None
            return f"{name}[{axes},{keep}]", (lambda x: f(x, axis=axes, keepdims=keep).astype(x.dtype)), [i]
        if group == "reshape":
            size = int(np.prod(x.shape))
            if not size:
                return None
            divs = [d for d in range(1, size + 1) if size % d == 0]
            d = pick(divs)
            e = pick([k for k in divs if (size // d) % k == 0])
            shape = pick([(size,), (d, size // d), (d, e, size // d // e), (1,) + tuple(x.shape)])
            return f"reshape[{shape}]", lambda x: jnp.reshape(x, shape), [i]
        if group == "transpose":
            perm = tuple(int(p) for p in rng.permutation(rank))
            return f"transpose[{perm}]", lambda x: jnp.transpose(x, perm), [i]
        if group == "slice":
            if not rank or 0 in x.shape:
                return None
            lo = [int(rng.integers(0, d)) for d in x.shape]
            hi = [int(rng.integers(a + 1, d + 1)) for a, d in zip(lo, x.shape)]
            st = [int(rng.integers(1, 4)) for _ in x.shape]
            return f"slice[{lo},{hi},{st}]", lambda x: lax.slice(x, lo, hi, st), [i]
        if group == "pad":
            cfg = [(int(rng.integers(-1, 3)), int(rng.integers(-1, 3)), int(rng.integers(0, 2))) for _ in x.shape]
            return f"pad[{cfg}]", lambda x: lax.pad(x, jnp.zeros((), x.dtype), cfg), [i]
        if group == "concat":
            if not rank:
                return None
            ok = [k for k, y in enumerate(env) if y.dtype == x.dtype and len(y.shape) == rank and all(a == b for d, (a, b) in enumerate(zip(x.shape, y.shape)) if d != axis)]
            args = [i, pick(ok), pick(ok)][:int(rng.integers(2, 4))]
            return f"concat[{axis}]", lambda *a: jnp.concatenate(a, axis), args
        if group == "reverse":
            return (f"reverse[{axis}]", lambda x: jnp.flip(x, axis), [i]) if rank else None
        if group == "broadcast":
            d = int(rng.integers(1, 5))
            at = int(rng.integers(rank + 1))
            return f"broadcast[{at},{d}]", lambda x: jnp.broadcast_to(jnp.expand_dims(x, at), x.shape[:at] + (d,) + x.shape[at:]), [i]
        if group == "dot":
            if not rank or kind == "b":
                return None
            ok = [k for k, y in enumerate(env) if y.dtype == x.dtype and y.shape and y.shape[0] == x.shape[-1]]
            if not ok:
                return None
            return "dot", lambda a, b: jnp.tensordot(a, b, 1) / jnp.asarray(1 if kind == "i" else 4, a.dtype) if kind != "i" else jnp.tensordot(a, b, 1), [i, pick(ok)]
        if group == "einsum":
            if rank < 2 or kind not in "f":
                return None
            return "gram", lambda a, b: jnp.einsum("...ij,...kj->...ik", a, b) / max(1, x.shape[-1]), [i, j]
        if group == "take":
            if not rank or 0 in x.shape:
                return None
            idx = [k for k, y in enumerate(env) if y.dtype == jnp.int32]
            if idx and rng.random() < 0.7:
                mode = pick(["clip", "wrap", "fill"])
                if mode == "fill" and kind in "c":
                    mode = "clip"
                return f"take[{axis},{mode}]", lambda x, k: jnp.take(x, k, axis=axis, mode=mode, fill_value=0 if kind != "b" else False), [i, pick(idx)]
            where = rng.integers(-x.shape[axis], x.shape[axis], size=pick([(3,), (2, 2), (5,)])).astype(np.int32)
            return f"take[{axis},{where.tolist()}]", lambda x: jnp.take(x, where, axis=axis), [i]
        if group == "scatter":
            if not rank or 0 in x.shape or kind in "bc":
                return None
            where = rng.integers(0, x.shape[0], size=int(rng.integers(1, 6))).astype(np.int32)
            how = pick(["add", "max", "min", "set"])
            if how == "set":
                where = np.unique(where)
            return f"scatter_{how}[{where.tolist()}]", lambda x: getattr(x.at[where], how)((x[:1] * 0 + 2) if how != "set" else x[0] + x[-1]), [i]
        if group == "sort":
            if not rank or kind in "bc":
                return None
            name = pick(["sort", "argsort", "topk", "sort2"])
            if name == "topk":
                k = int(rng.integers(1, x.shape[-1] + 1)) if x.shape[-1] else 0
                if not k:
                    return None
                return f"topk[{k}]", lambda x: lax.top_k(x, k)[0], [i]
            if name == "sort2":
                return f"sort2[{axis}]", lambda a, b: lax.sort((a, b), dimension=axis, num_keys=2)[1], [i, j]
            return f"{name}[{axis}]", (lambda x: jnp.sort(x, axis)) if name == "sort" else (lambda x: jnp.argsort(x, axis).astype(jnp.int32)), [i]
        if group == "cum":
            if not rank or kind == "b":
                return None
            name = pick(["cumsum", "cummax", "cumlogsumexp"] if kind == "f" else ["cumsum", "cummax"] if kind == "i" else ["cumsum"])
            if name != "cummax" and x.dtype.itemsize < 4 and kind == "f" and x.shape[axis] > 200:
                return None              # roundings add up
            f = getattr(lax, name)
            rev = bool(rng.random() < 0.3)
            return f"{name}[{axis},{rev}]", lambda x: f(x if name != "cumsum" or kind == "i" else x / 4, axis=axis, reverse=rev), [i]
        if group == "window":
            if rank < 1 or kind in "bc" or 0 in x.shape:
                return None
            dims = tuple(int(rng.integers(1, 4)) for _ in x.shape)
            strides = tuple(int(rng.integers(1, 3)) for _ in x.shape)
            pad = pick(["SAME", "VALID"])
            how = pick(["max", "add", "min"])
            comp, init = {"max": (lax.max, -np.inf if kind == "f" else jnp.iinfo(x.dtype).min), "add": (lax.add, 0),
                          "min": (lax.min, np.inf if kind == "f" else jnp.iinfo(x.dtype).max)}[how]
            return f"window_{how}[{dims},{strides},{pad}]", lambda x: lax.reduce_window(x, np.asarray(init, x.dtype), comp, dims, strides, pad), [i]
        if group == "dslice":
            idx = [k for k, y in enumerate(env) if y.dtype == jnp.int32 and y.shape == ()]
            if not rank or 0 in x.shape:
                return None
            size = int(rng.integers(1, x.shape[axis] + 1))
            if idx:
                return f"dslice[{axis},{size}]", lambda x, k: lax.dynamic_slice_in_dim(x, k, size, axis), [i, pick(idx)]
            k = int(rng.integers(-3, 9))
            return f"dslice[{axis},{size},{k}]", lambda x: lax.dynamic_slice_in_dim(x, jnp.int32(k), size, axis), [i]
        if group == "dupdate":
            if not rank or 0 in x.shape:
                return None
            k = int(rng.integers(0, 9))
            return f"dupdate[{axis},{k}]", lambda x: lax.dynamic_update_slice_in_dim(x, lax.slice_in_dim(x, 0, 1, axis=axis), jnp.int32(k), axis), [i]
        if group == "scan":
            if not rank or kind not in "fi":
                return None
            rev = bool(rng.random() < 0.3)
            unroll = pick([1, 1, 2])
            if kind == "f":
                return f"scan[{rev},{unroll}]", lambda x: lax.scan(lambda c, r: (jnp.tanh(c * jnp.asarray(0.5, x.dtype) + r), c + r), jnp.zeros(x.shape[1:], x.dtype), x, reverse=rev, unroll=unroll)[1], [i]
            return f"scan[{rev},{unroll}]", lambda x: lax.scan(lambda c, r: (c ^ (r + 1), c & r), jnp.zeros(x.shape[1:], x.dtype), x, reverse=rev, unroll=unroll)[1], [i]
        if group == "while":
            n = int(rng.integers(0, 6))
            if kind == "f":
                if rng.random() < 0.5:      # as a scan, which has a gradient
                    return f"fori[{n}]", lambda x: lax.fori_loop(0, n, lambda k, a: jnp.tanh(a) + a * 0.5, x), [i]
                return f"while[{n}]", lambda x: lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, jnp.tanh(s[1]) + s[1] * 0.5), (0, x))[1], [i]
            if kind == "i":
                return f"fori[{n}]", lambda x: lax.fori_loop(0, n, lambda k, a: a + k.astype(a.dtype) * 3, x), [i]
            return None
        if group == "fori_slice":
            if rank < 1 or kind != "f" or 0 in x.shape:
                return None
            return "fori_update", lambda x: lax.fori_loop(0, x.shape[0], lambda k, a: a.at[k].set(a[(k * 7 + 1) % x.shape[0]] * 0.5 + a[k]), x), [i]
        if group == "cond":
            if kind in "bc":
                return None
            which = int(rng.integers(3))
            idx = [k for k, y in enumerate(env) if y.dtype == bool and y.shape == ()]
            if idx:
                return "cond", lambda p, a, b: lax.cond(p, lambda a, b: a + b, lambda a, b: jnp.maximum(a, b), a, b), [pick(idx), i, j]
            return f"switch[{which}]", lambda a, b: lax.switch(jnp.int32(which) + 0 * jnp.sum(a, dtype=jnp.int32) if kind == "i" else jnp.int32(which), [lambda a, b: a, lambda a, b: b + a, lambda a, b: jnp.minimum(a, b)], a, b), [i, j]
        if group == "grad":
            if kind != "f" or 0 in x.shape:
                return None
            def loss(x, w):
                return jnp.sum(jnp.tanh(x * w) * jax.nn.softmax(x, axis=-1) if x.ndim else jnp.tanh(x * w))
            return "grad", lambda a, b: jax.grad(loss)(a, b), [i, j]
        if group == "norm":
            if kind != "f" or not rank or 0 in x.shape:
                return None
            name = pick(["rms", "softmax", "layer"])
            f = {"rms": lambda x: x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1), "softmax": lambda x: jax.nn.softmax(x, axis),
                 "layer": lambda x: (x - x.mean(axis, keepdims=True)) / jnp.sqrt(x.var(axis, keepdims=True) + 1)}[name]
            return f"{name}[{axis}]", lambda x: f(x).astype(x.dtype), [i]
        if group == "map":
            if not rank or kind != "f" or not x.shape[0]:
                return None
            return "map", lambda x: lax.map(lambda r: jnp.tanh(r) * jnp.mean(r), x), [i]
        if group == "iota":
            if not rank:
                return None
            return f"iota[{axis}]", lambda x: lax.broadcasted_iota(jnp.int32, x.shape, axis), [i]
        if group == "onehot":
            if x.dtype != jnp.int32 or rank > 2:
                return None
            return "onehot", lambda x: jax.nn.one_hot(x, 5, dtype=jnp.float32), [i]
        if group == "argmax":
            if not rank or kind in "bc" or not x.shape[axis]:
                return None
            name = pick(["argmax", "argmin"])
            return f"{name}[{axis}]", lambda x: getattr(lax, name)(x, axis, jnp.int32), [i]
        if group == "bits":
            if x.dtype == jnp.float32:
                return "bitcast", lambda x: lax.bitcast_convert_type(x * 0 + 1.5, jnp.int32), [i]
            return None
        if group == "remat":
            if kind != "f":
                return None
            return "remat", lambda a, b: jax.grad(lambda a: jnp.sum(jax.checkpoint(lambda a: jnp.sin(jnp.tanh(a) * jnp.tanh(b)))(a)))(a), [i, j]
        if group == "clamp":
            if kind not in "fi":
                return None
            return "clamp", lambda x: lax.clamp(jnp.asarray(0, x.dtype), x, jnp.asarray(3, x.dtype)), [i]
        if group == "coll" and self.devices > 1:
            return self.coll(i, x, kind, rank, axis)
        return None

    def coll(self, i, x, kind, rank, axis):
        import jax
        import jax.numpy as jnp
        from jax import lax
        n, pick, rng = self.devices, self.pick, self.rng
        name = pick(["psum", "pmax", "ppermute", "all_gather", "psum_scatter", "all_to_all", "axis_index", "pmean", "psum_group", "ppermute_open"])
        shape = tuple(x.shape)
        if name in ("psum", "pmax", "psum_group") and kind == "b" or name == "pmax" and kind == "c" or name == "pmean" and kind not in "fc":
            return None
        out = shape
        groups = [list(range(0, n // 2)), list(range(n // 2, n))]
        ring = [(k, int(p)) for k, p in enumerate(rng.permutation(n))]
        if name == "psum":
            f = lambda x: lax.psum(x, "d")
        elif name == "psum_group":
            f = lambda x: lax.psum(x, "d", axis_index_groups=groups)
        elif name == "pmax":
            f = lambda x: lax.pmax(x, "d")
        elif name == "pmean":
            f = lambda x: lax.pmean(x, "d").astype(x.dtype)
        elif name == "ppermute":
            f = lambda x: lax.ppermute(x, "d", ring)
        elif name == "ppermute_open":
            f = lambda x: lax.ppermute(x, "d", ring[1:])
        elif name == "axis_index":
            if kind != "i":
                return None
            f = lambda x: x + lax.axis_index("d").astype(x.dtype)
        elif name == "all_gather":
            if not rank:
                return None
            tiled = bool(rng.random() < 0.5)
            f = lambda x: lax.all_gather(x, "d", axis=axis, tiled=tiled)
            out = shape[:axis] + ((shape[axis] * n,) + shape[axis + 1:] if tiled else (n,) + shape[axis:])
        elif name == "psum_scatter":
            if not rank or shape[axis] % n or kind == "b" or 0 in shape:
                return None
            f = lambda x: lax.psum_scatter(x, "d", scatter_dimension=axis, tiled=True)
            out = shape[:axis] + (shape[axis] // n,) + shape[axis + 1:]
        else:
            if not rank or shape[axis] % n:
                return None
            other = int(rng.integers(rank))
            f = lambda x: lax.all_to_all(x, "d", axis, other, tiled=True)
            out = list(shape)
            out[axis] //= n
            out[other] *= n
            out = tuple(out)
        if np.prod(out, dtype=np.int64) > self.most:
            return None
        g = lambda x: f(x)
        g.shape = jax.ShapeDtypeStruct(out, x.dtype)
        return f"coll_{name}[{axis}]", g, [i]


def compare(got, want, good):
    """None, or what differs."""
    for k, (g, w, eps) in enumerate(zip(got, want, good, strict=True)):
        if g.shape != w.shape or g.dtype != w.dtype:
            return f"result {k}: {g.dtype}{g.shape} for {w.dtype}{w.shape}"
        if not g.size:
            continue
        if w.dtype.kind in "iub":
            if not np.array_equal(g, w):
                at = tuple(np.argwhere(g != w)[0].tolist())
                return f"result {k} {w.dtype}{w.shape}: at {at}: {g[at]} for {w[at]}"
            continue
        a, b = g.astype(np.complex128), w.astype(np.complex128)
        bad = np.isnan(a) != np.isnan(b)
        fin = np.isfinite(a) & np.isfinite(b)
        bad |= ~np.isnan(b) & (np.isfinite(a) != np.isfinite(b))
        size = float(np.sqrt(np.mean(np.abs(b[fin]) ** 2))) if fin.any() else 0
        with np.errstate(invalid="ignore"):
            bad |= fin & (np.abs(a - b) > eps * (np.abs(b) + size + 1))
        if bad.any():
            at = tuple(np.argwhere(bad)[0].tolist())
            return f"result {k} {w.dtype}{w.shape}: at {at}: {a[at]} for {b[at]} ({int(bad.sum())} of {bad.size})"
    return None


def once(seed, devices, length, ours, large=False, grad=False):
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    p = Program(seed, devices, large)
    p.draw(length)
    run, good = p.run, [p.good[k] for k in p.kept]
    if grad:
        floats = [k for k, x in enumerate(p.inputs) if jnp.issubdtype(x.dtype, jnp.floating)]
        if not floats:
            return p, None

        def loss(*xs):
            return sum(jnp.sum(jnp.tanh(y.astype(jnp.float32))) for y in p.run(*xs) if jnp.issubdtype(y.dtype, jnp.floating))

        def run(*xs):
            return jax.grad(loss, floats)(*xs)
        good = [4 * max(p.good)] * len(floats)
    def results(where):
        if devices == 1:
            out = jax.jit(run)(*[jax.device_put(x, where[0]) for x in p.inputs])
            return [np.asarray(x) for x in out]
        mesh = Mesh(np.array(where[:devices]), ("d",))

        def body(*xs):
            return [y[None] for y in run(*[x[0] for x in xs])]
        f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
        rolled = [np.stack([np.roll(x, k) for k in range(devices)]) for x in p.inputs]
        return [np.asarray(x) for x in f(*[jax.device_put(x, NamedSharding(mesh, P("d"))) for x in rolled])]

    try:
        want = results(jax.devices("cpu"))
    except (ValueError, NotImplementedError, TypeError):
        if grad:
            return p, None               # JAX has no gradient of it
        raise
    return p, compare(results(ours), want, good)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--seed", type=int, default=0)
    a.add_argument("--count", type=int, default=200)
    a.add_argument("--length", type=int, default=0, help="ops of a program (0: drawn)")
    a.add_argument("--devices", type=int, default=1)
    a.add_argument("--large", action="store_true", help="arrays of up to a million elements")
    a.add_argument("--grad", action="store_true", help="the gradient of each program")
    a.add_argument("--verbose", action="store_true")
    a = a.parse_args()
    import jax
    jax.config.update("jax_num_cpu_devices", max(a.devices, 1))
    ours = jax.devices()
    failed = 0
    for seed in range(a.seed, a.seed + a.count):
        length = a.length or 3 + seed % 17
        try:
            p, why = once(seed, a.devices, length, ours, a.large, a.grad)
        except Exception as e:
            p, why = None, f"{type(e).__name__}: {str(e)[:600]}"
        if why:
            failed += 1
            print(f"seed {seed} (length {length}, {a.devices} devices): {why}", flush=True)
            if p and a.verbose:
                print("  inputs: " + ", ".join(f"{x.dtype.name}{list(x.shape)}" for x in p.inputs))
                print("\n".join("  " + t for t in p.text) + f"\n  kept {p.kept}")
    print(f"{a.count - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
