"""Draws programs: text of Python over JAX, a line a step, so that a program can be printed, cut and kept in a file.

A value knows what may be asked of it: `exact` (the same bits on every back end), `lat` (m, g): its floats are multiples of 2^-g below
2^m, so that sums and products in any order are exact as long as they fit the type; `zero`: the sign of its zeros counts; `good`: how far
back ends may differ.  What jumps (an index of a maximum, a comparison) is asked of exact values only; so integers are exact always.
"""
import math
import re

import numpy as np

EXT = [1, 2, 3, 4, 5, 7, 8, 8, 16, 16, 31, 32, 32, 33, 63, 64, 64, 65, 127, 128, 129, 256]
FLOATS = ["float32", "float32", "float32", "bfloat16", "float16"]
INTS = ["int32", "int32", "uint8", "int8", "uint32", "int16", "uint16"]
WIDE = ["float64", "float64", "int64", "uint64", "complex128"]
SMALL = ["int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e3m4"]
BITS = {"float64": 53, "float32": 24, "bfloat16": 8, "float16": 11, "float8_e4m3fn": 4, "float8_e5m2": 3, "float8_e4m3b11fnuz": 4, "float8_e3m4": 5}
TURNS = 4096      # of a loop: the judge walks them one by one
MOST = {"float16": 15, "float8_e4m3fn": 8, "float8_e5m2": 15, "float8_e4m3b11fnuz": 4, "float8_e3m4": 3}
GOOD = {"float32": 2e-4, "bfloat16": 6e-2, "float16": 1e-2, "complex64": 4e-4, "float64": 2e-10, "complex128": 4e-10,
        "float8_e4m3fn": 0.3, "float8_e5m2": 0.6, "float8_e4m3b11fnuz": 0.3, "float8_e3m4": 0.2}


class Skip(Exception):
    """What was drawn does not fit."""


class Val:
    def __init__(self, name, shape, dtype, exact=True, lat=None, zero=True, good=0.0):
        self.name, self.shape, self.dtype = name, tuple(int(d) for d in shape), dtype
        self.exact, self.lat, self.zero, self.good = exact, lat, zero, good

    @property
    def rank(self):
        return len(self.shape)

    @property
    def size(self):
        return math.prod(self.shape)

    @property
    def kind(self):
        d = self.dtype
        return "b" if d == "bool" else "c" if d.startswith("complex") else "i" if d.startswith(("int", "uint")) else "f"

    def like(self, other):
        return self.shape == other.shape and self.dtype == other.dtype


class Body:
    """A function inside a program; `unpack` is its first line, if any."""

    def __init__(self, name, sig, unpack, steps, results):
        self.name, self.sig, self.unpack, self.steps, self.results = name, sig, unpack, steps, results


class Step:
    """out = text, where $0, $1, .. are args and @0, .. are bodies."""

    def __init__(self, out, text, args, bodies=()):
        self.out, self.text, self.args, self.bodies = out, text, list(args), list(bodies)

    def copy(self):
        return Step(list(self.out), self.text, self.args, [Body(b.name, b.sig, b.unpack, [s.copy() for s in b.steps], list(b.results)) for b in self.bodies])

    def expr(self):
        text = re.sub(r"\$(\d+)", lambda m: self.args[int(m[1])], self.text)
        return re.sub(r"@(\d+)", lambda m: self.bodies[int(m[1])].name, text)


def render(steps, indent="    "):
    lines = []
    for s in steps:
        for b in s.bodies:
            lines.append(f"{indent}def {b.name}({b.sig}):")
            if b.unpack:
                lines.append(f"{indent}    {b.unpack}")
            lines += render(b.steps, indent + "    ")
            lines.append(f"{indent}    return {', '.join(b.results) if len(b.results) > 1 else b.results[0] + (',' if b.unpack.startswith('(') else '')}")
        lines.append(f"{indent}{', '.join(s.out)}{',' if s.text.startswith('tuple(') else ''} = {s.expr()}")
    return lines


def namespace():
    import jax
    import jax.numpy as jnp
    from jax import lax
    return {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "P": jax.sharding.PartitionSpec, "shard": lambda x, *spec: x, "ragged": ragged}


def told(seed, n, rows, room):
    """Offsets and sizes of a ragged_all_to_all, by device: some outside, some that do not agree, some over each other."""
    rng = np.random.default_rng(seed)
    k = n * int(rng.integers(1, 4))
    i, s, o = (rng.integers(-2, most + 3, (n, k)) for most in (rows, max(rows, room) // 2, room))
    r = s.reshape(n, n, -1).swapaxes(0, 1).reshape(n, k)
    return [v.astype(np.int32) for v in (i, s, o, np.where(rng.random(r.shape) < 0.2, rng.integers(-2, rows + 3, r.shape), r))]


def ragged(x, y, seed, n):
    """What ragged_all_to_all does, which XLA:CPU does not have, by an all_gather."""
    import jax.numpy as jnp
    from jax import lax
    i, s, o, r = told(seed, n, len(x), len(y))
    k = i.shape[1] // n
    if not x.size or not y.size:
        return y
    every, me, row = lax.all_gather(x, "d"), lax.axis_index("d"), np.arange(len(y))
    for at in range(n * k):
        a, c = at // k, np.arange(n) * k + at % k          # of member a, by receiver
        of, rows = row - o[a, c][:, None] + i[a, c][:, None], row - o[a, c][:, None]
        ok = (rows >= 0) & (rows < np.minimum(s[a, c], r[:, at])[:, None]) & (of >= 0) & (of < len(x))
        mine = jnp.asarray(ok)[me].reshape(-1, *[1] * (x.ndim - 1))
        y = jnp.where(mine, every[a][jnp.asarray(np.clip(of, 0, len(x) - 1))[me]], y)
    return y


def ragged_itself(x, y, seed, n):
    import jax.numpy as jnp
    from jax import lax
    return lax.ragged_all_to_all(x, y, *[jnp.asarray(v)[lax.axis_index("d")] for v in told(seed, n, len(x), len(y))], axis_name="d")


def free(steps, bound=()):
    """Names that steps use and do not make."""
    made, out = set(bound), []
    for s in steps:
        for b in s.bodies:
            own = set(re.findall(r"\w+", b.sig + " " + b.unpack))
            inner = own | {o for t in b.steps for o in t.out}
            out += [n for n in free(b.steps, made | own) if n not in made]
            out += [n for r in b.results for n in re.findall(r"\w+", r) if n not in inner and n not in made]
        out += [n for n in s.args if n not in made]
        made.update(s.out)
    return list(dict.fromkeys(out))


class Draw:
    def __init__(self, seed, devices=1, mode=None):
        self.rng = np.random.default_rng(seed)
        self.seed, self.devices, self.count = seed, devices, 0
        self.ns = namespace()
        self.inputs, self.steps, self.scope, self.vals = [], [], [], {}
        self.depth, self.quiet = 0, False
        self.mode = mode or self.pick(["any", "any", "any", "any", "any", "loops", "loops", "branches", "views", "norms", "norms", "long", "exact", "exact", "special", "small", "linalg", "wide"])
        self.x64 = self.mode == "wide"
        self.most = 30000
        self.palette = [self.pick(EXT) for _ in range(int(self.rng.integers(2, 5)))] + [self.pick([1, 2, 3, 8])]
        if self.odds(0.03):
            self.palette.append(0)
        self.types = FLOATS * 2 + INTS + ["bool", "complex64"]
        if self.mode == "wide":
            self.types = WIDE * 2 + FLOATS + INTS
        if self.mode == "small":
            self.types = SMALL + ["float32", "int32"]
        if self.mode in ("exact", "views"):
            self.types = ["float32"] * 3 + ["bfloat16"] + INTS
        if self.mode in ("loops", "branches", "norms"):
            self.types = ["float32"] * 6 + ["bfloat16", "float16", "int32", "int32", "int8", "uint8", "bool"]
        self.types = [self.pick(self.types) for _ in range(4)] if self.odds(0.7) else self.types

    # --- chance

    def pick(self, seq):
        return seq[int(self.rng.integers(len(seq)))]

    def odds(self, p):
        return bool(self.rng.random() < p)

    def int(self, lo, hi):
        """lo <= it < hi"""
        return int(self.rng.integers(lo, max(hi, lo + 1)))

    def name(self, letter="v"):
        self.count += 1
        return f"{letter}{self.count}"

    def shape(self, rank=None, most=None):
        rank = self.pick([0, 1, 1, 2, 2, 2, 2, 3, 3, 4, 5]) if rank is None else rank
        dims = [self.pick(self.palette) for _ in range(rank)]
        while math.prod(dims) > (most or self.most):
            dims[dims.index(max(dims))] = self.pick([1, 2, 3, 4, 5, 7, 8])
        return tuple(dims)

    # --- values

    def add(self, v):
        self.vals[v.name] = v
        self.scope.append(v)
        return v

    def input(self, shape=None, dtype=None, how=None):
        shape, dtype = self.shape() if shape is None else shape, dtype or self.pick(self.types)
        v = Val(self.name("a"), shape, dtype)
        if how is None:
            how = "normal"
            if v.kind == "i":
                how = self.pick(["normal", "normal", "wide"])
            elif v.kind == "f":
                if self.mode == "exact" or self.odds(0.25):
                    how = "lat"
                elif self.mode == "special" and dtype not in SMALL:
                    how = "special"
        if how == "lat":
            v.lat = (2, 1)
        if v.kind in "fc":
            v.good = GOOD[dtype]
        self.inputs.append((v.name, dtype, v.shape, how, self.int(0, 10000)))
        self.vals[v.name] = v
        self.scope.insert(0, v) if self.depth else self.scope.append(v)
        return v

    def val(self, ok=lambda v: True):
        c = [v for v in self.scope if ok(v)]
        if not c:
            raise Skip
        return self.pick(c[-4:]) if self.odds(0.6) else self.pick(c)

    def partner(self, x):
        """A value of x's type and shape, made if need be of one that is close."""
        same = [v for v in self.scope if v.like(x)]
        if len(same) > 1 and self.odds(0.7):
            return self.pick(same)
        near = [v for v in self.scope if v.dtype == x.dtype and v.rank == x.rank > 1 and v.shape != x.shape and sorted(v.shape) == sorted(x.shape)]
        if near and self.odds(0.7):
            v, perm = self.pick(near), []
            for d in x.shape:
                perm.append(next(k for k, e in enumerate(v.shape) if e == d and k not in perm))
            return self.step("move", f"jnp.transpose($0, {tuple(perm)})", v)
        part = [v for v in self.scope if v.dtype == x.dtype and v.rank < x.rank]
        self.rng.shuffle(part)
        for v in part[:4]:
            dims, at = [], 0
            for d in v.shape:
                while at < x.rank and x.shape[at] != d:
                    at += 1
                if at == x.rank:
                    break
                dims.append(at)
                at += 1
            if len(dims) == v.rank:
                return self.step("move", f"lax.broadcast_in_dim($0, {x.shape}, {tuple(dims)})", v)
        if not same or self.odds(0.3):
            return self.input(x.shape, x.dtype) if len(self.inputs) < 8 else x
        return self.pick(same)

    def scalar_index(self, most):
        """An int32 scalar, at times out of range."""
        c = [v for v in self.scope if v.dtype == "int32" and v.shape == ()]
        if c and self.odds(0.6):
            return self.pick(c)
        if self.odds(0.3) and len(self.inputs) < 8:
            return self.input((), "int32")
        return self.step("move", f"jnp.int32({self.int(-3, most + 4)})")

    # --- steps

    def step(self, kind, text, *args, bodies=(), outs=1, check=None):
        import jax
        args = list(args)
        if kind.startswith("jump") and not all(v.exact and (v.zero or "signbit" not in text) for v in args):
            raise Skip
        s = Step([self.name() for _ in range(outs)], text, [v.name for v in args], bodies)
        names = free([s])
        src = "\n".join([f"def f({', '.join(names)}):", *render([s]), f"    return {', '.join(s.out)},"])
        avals = [jax.ShapeDtypeStruct(self.vals[n].shape, np.dtype(self.ns["jnp"].dtype(self.vals[n].dtype))) for n in names]
        try:
            exec(src, self.ns)
            if self.devices > 1:
                _, out = jax.make_jaxpr(self.ns["f"], axis_env=[("d", self.devices)], return_shape=True)(*avals)
            else:
                out = jax.eval_shape(self.ns["f"], *avals)
        except (TypeError, ValueError, NotImplementedError, OverflowError, IndexError, ZeroDivisionError, AssertionError, KeyError):
            raise Skip from None
        made = []
        for o, n in zip(out, s.out):
            v = Val(n, o.shape, o.dtype.name)
            if v.size > self.most * 4 or v.rank > 7 or v.dtype in ("float64", "int64", "uint64", "complex128") and not self.x64 or v.kind in "fc" and v.dtype not in GOOD:
                raise Skip
            self.flags(v, kind, args)
            made.append(v)
        self.steps.append(s)
        for v in made:
            self.add(v)
        return made[0] if outs == 1 else made

    def flags(self, v, kind, args):
        how, _, n = kind.partition(":")
        floats = [a for a in args if a.kind in "fc"]
        v.good = max([a.good for a in floats] + [GOOD.get(v.dtype, 0)])
        if v.kind in "ib":
            v.exact, v.good = True, 0.0
            return
        v.exact = how in ("move", "jump", "pure", "scaled") and all(a.exact for a in args)
        v.zero = how in ("move", "odd") and all(a.zero for a in floats)
        lats = [a.lat for a in floats]
        if not floats or None in lats:
            return
        m, g = max(a[0] for a in lats), max(a[1] for a in lats)
        if how in ("move", "pure"):
            lat = (m, g)
        elif how == "sum":
            lat = (m + max(0, math.ceil(math.log2(max(int(n), 1)))), g)
        elif how == "dot":
            lat = (sum(a[0] for a in lats) + max(0, math.ceil(math.log2(max(int(n), 1)))), sum(a[1] for a in lats))
        else:
            return
        bits = BITS.get(v.dtype)
        if bits and lat[0] + lat[1] <= bits and lat[0] <= MOST.get(v.dtype, 99) and lat[1] <= 6:
            v.lat, v.exact = lat, True

    def body(self, params, n, only=None, sig=None, unpack="", ops=None):
        """Draws n steps over params; gives (Body, values): the caller says the results."""
        saved, steps, depth = list(self.scope), self.steps, self.depth
        self.steps, self.depth = [], depth + 1
        for p in params:
            self.add(p)
        try:
            made = 0
            for _ in range(4 * n):
                if made >= n:
                    break
                try:
                    (ops or self.draw_op)()
                    made += 1
                except Skip:
                    pass
            b = Body(self.name("f"), sig or ", ".join(p.name for p in params), unpack, self.steps, [])
            new = [v for v in self.scope if v not in saved]
        finally:
            tops = [v for v in self.scope if v.name[0] == "a" and v not in saved and any(v.name == i[0] for i in self.inputs)]
            self.scope, self.steps, self.depth = tops + saved, steps, depth
        return b, new

    def result(self, b, new, like, prefer):
        """The name of a value of b that has like's type and shape: the last one made, or another."""
        c = [v for v in new if v.like(like)]
        if not c:
            return prefer
        v = c[-1] if self.odds(0.6) else self.pick(c)
        return v

    def program(self, length):
        for _ in range(self.int(1, 4)):
            self.input()
        if self.mode == "long":
            self.long()
        elif self.mode == "linalg":
            self.linalg()
        made = tries = 0
        if self.mode == "views" and self.odds(0.2):
            length = 150 + 10 * length
            self.most = 3000
        if self.mode in ("long", "linalg"):
            length = self.int(0, 3)
        while made < length and tries < 8 * length:
            tries += 1
            try:
                self.draw_op()
                made += 1
            except Skip:
                pass
        made = [o for s in self.steps for o in s.out]
        if not made:
            try:
                made = [self.step("pure", "jnp.abs($0)" if self.scope[-1].kind not in "b" else "jnp.logical_not($0)", self.scope[-1]).name]
            except Skip:
                made = [self.scope[-1].name]
        keep = [n for n in made if self.rng.random() < min(0.4, 6 / len(made))]
        return list(dict.fromkeys(keep + [made[-1]]))

    GROUPS = {
        "any": "unary 3 binary 4 keep 5 where 1 cast 2 reduce 4 reshape 2 transpose 2 slice 2 pad 2 concat 1 broadcast 1 dot 2 conv 0.5 take 1 scatter 1 "
               "sort 1 cum 1 window 1 dslice 1 fori 1 while_ 1 scan 1 switch 1 grad 1 norm 2 iota 0.5 argmax 1 bitcast 0.5 fft 0.3 random 0.3 template 0.7 map_ 0.4 tile 0.5 matrices 0.5",
        "loops": "unary 1 binary 2 keep 4 reduce 2 transpose 1 slice 1 pad 1 fori 5 while_ 4 scan 4 switch 1 dslice 1 concat 1 norm 1 dot 2 conv 0.5",
        "branches": "unary 1 binary 2 keep 4 reduce 2 slice 1 pad 1 switch 7 fori 1 scan 1 dslice 1 concat 1 broadcast 1",
        "views": "unary 1 binary 1 keep 1 reshape 3 transpose 3 slice 4 pad 3 concat 2 broadcast 2 reverse 4 dslice 2 cast 1 bitcast 1.5 reduce 0.5",
        "norms": "unary 1 binary 2 reduce 5 transpose 3 norm 5 template 4 reshape 1 broadcast 1 dot 2 keep 1 where 1 cum 1",
        "exact": "unary 1 binary 3 keep 4 reduce 4 transpose 2 reshape 2 slice 2 pad 2 concat 1 broadcast 1 dot 4 take 1 scatter 1 sort 2 argmax 2 where 2 cum 1 window 1 dslice 1 cast 2 conv 1 switch 1",
        "special": "unary 6 binary 2 keep 1 reduce 1 transpose 1 slice 1 pad 1 concat 1 broadcast 1 sort 1 argmax 1 where 2 cast 1",
        "sharded": "unary 3 binary 4 keep 0.5 reduce 4 pad 4 dot 3 broadcast 2 reshape 1 transpose 2 where 1 cast 1 norm 2 iota 0.5 fori 0.5 random 0.7 slice 0.5 narrow 2 matrices 1 grad 0.5 accumulate 1.5 tile 3",
        "along": "unary 1.5 binary 3 keep 3 shift 6 reverse 1 slice 1.5 pad 2 concat 1.5 window 4 conv 1.5 cum 3 argmax 2 sort 2 dslice 4 reduce 1.5 where 1 dot 0.5 transpose 0.5 "
                 "fori 0.7 scan 0.5 switch 0.3 grad 1 tile 1",
        "rings": "unary 1 binary 3 keep 2 fori 3 while_ 1.5 scan 4 handed 4 reduce 1 slice 1 transpose 0.5 concat 0.5 where 1 dot 0.5 grad 0.5 switch 1 norm 0.5 cast 0.5",
        "sums": "after 6 unary 1 binary 2 keep 1 fori 2 scan 1 norm 1 cast 1 reduce 1 transpose 0.5 where 0.5 grad 0.5",
        "small": "unary 2 binary 3 keep 2 reduce 2 transpose 2 reshape 2 slice 2 pad 2 concat 1 broadcast 1 dot 1 take 1 sort 1 argmax 1 where 1 cast 3 dslice 1 scan 1 fori 1 bitcast 1 switch 1",
    }

    def draw_op(self):
        words = self.GROUPS.get(self.mode, self.GROUPS["any"]).split()
        if not hasattr(self, "weights"):
            names, w = words[::2], np.array([float(x) for x in words[1::2]])
            if self.odds(0.5):                       # a swarm: some groups are left out, so that others meet more often
                w = w * (self.rng.random(len(w)) < 0.6)
            if self.devices > 1:
                names, w = names + ["coll"], np.append(w, 6)
            self.weights = (names, w / w.sum()) if w.sum() else (["keep"], np.ones(1))
        names, w = self.weights
        g = str(self.rng.choice(names, p=w))
        if g in ("fori", "while_", "scan", "switch", "map_", "template", "grad", "accumulate", "handed") and self.depth >= 2 or g in ("coll", "handed", "after") and self.quiet:
            raise Skip
        getattr(self, g)()

    # --- elementwise

    def unary(self, x=None):
        x = x or self.val()
        if x.kind == "f":
            t = self.pick(["odd jnp.sin(jnp.clip($0, -4, 4))", "odd jnp.tanh($0)", "approx jnp.exp(jnp.clip($0, -4, 4))", "approx jnp.log1p(jnp.abs($0))", "move jnp.abs($0)",
                           "approx jnp.sqrt(jnp.abs($0))", "approx lax.rsqrt(jnp.abs($0) + 1)", "jump jnp.floor($0)", "jump jnp.round($0)", "jump jnp.sign($0)", "approx jax.nn.sigmoid($0)",
                           "odd lax.erf($0)", "approx jnp.cos(jnp.clip($0, -4, 4))", "odd jnp.expm1(jnp.clip($0, -3, 3))", "move -$0", "mul jnp.square(jnp.clip($0, -9, 9))", "odd jnp.cbrt($0)",
                           "jump jnp.isfinite($0)", "jump jnp.ceil($0)", "odd jnp.arctan($0)", "approx jax.nn.gelu($0)", "approx jax.nn.silu($0)", "approx jnp.exp2(jnp.clip($0, -4, 4))",
                           "odd jnp.sinh(jnp.clip($0, -3, 3))", "odd jnp.arcsinh($0)", "jump jnp.signbit($0) & ~jnp.isnan($0)", "move lax.reduce_precision($0, 8, 7)", "approx jax.nn.softplus($0)", "jump jnp.trunc($0)",
                           "approx jnp.log(jnp.abs($0) + 1)", "odd jnp.tan(jnp.clip($0, -1, 1))"])
            if "reduce_precision" in t and (not x.exact or x.dtype != "float32"):
                raise Skip
            if self.mode == "special" and self.odds(0.5):
                t = self.pick(["odd jnp.tanh($0)", "odd jnp.sin($0)", "approx jnp.exp($0)", "odd jnp.expm1($0)", "odd jnp.log1p($0)", "approx jnp.sqrt($0)", "odd jnp.cbrt($0)",
                               "jump jnp.floor($0)", "jump jnp.ceil($0)", "jump jnp.round($0)", "jump jnp.sign($0)", "approx jax.nn.sigmoid($0)", "odd lax.erf($0)", "move -$0", "move jnp.abs($0)",
                               "approx lax.rsqrt($0)", "odd jnp.arctan($0)", "approx jnp.log($0)", "jump jnp.isnan($0)", "jump jnp.signbit($0) & ~jnp.isnan($0)", "approx jnp.exp2($0)", "odd jnp.sinh($0)", "approx jnp.cosh($0)"])
                if not x.exact:
                    raise Skip                        # an infinity of one rounding more is no fault
        elif x.kind == "i":
            bits = "~$0" if x.dtype == "int4" else "lax.population_count($0)"        # XLA:CPU counts those of a byte
            t = "move " + self.pick(["~$0", "jnp.abs($0)", bits, "lax.clz($0)", "-$0", "jnp.sign($0)", "$0 * $0", "$0 >> 1"])
        elif x.kind == "b":
            t = "move ~$0"
        else:
            t = self.pick(["move jnp.conj($0)", "move jnp.real($0)", "move jnp.imag($0)", "approx jnp.abs($0)", "approx $0 * $0 / (1 + jnp.abs($0))", "approx jnp.exp($0 / (1 + jnp.abs($0)))"])
        kind, text = t.split(" ", 1)
        return self.step(kind, text, x)

    def binary(self, x=None):
        x = x or self.val()
        y = self.partner(x)
        if x.kind == "f":
            t = self.pick(["sum:2 $0 + $1", "sum:2 $0 + $1", "approx $0 * jnp.tanh($1)", "sum:2 $0 - $1", "pure jnp.maximum($0, $1)", "pure jnp.minimum($0, $1)", "approx $0 / (2 + jnp.abs($1))",
                           "approx jnp.arctan2($0, 2 + jnp.abs($1))", "approx jnp.hypot($0, $1)", "jump lax.rem($0, jnp.abs($1) + 2)", "dot:1 $0 * $1", "jump $0 < $1", "jump $0 == $1",
                           "approx jnp.power(jnp.abs($0) + 0.5, jnp.clip($1, -2, 2))", "jump lax.nextafter($0, $1)", "approx jnp.logaddexp($0, $1)"])
            if t.startswith("dot") and not (x.lat and y.lat):
                t = "approx jnp.clip($0, -4, 4) * jnp.clip($1, -4, 4)"
            if self.mode == "special" and not (x.exact and y.exact):
                raise Skip
        elif x.kind == "i":
            t = "move " + self.pick(["$0 + $1", "$0 * $1", "$0 - $1", "jnp.maximum($0, $1)", "jnp.minimum($0, $1)", "$0 & $1", "$0 | $1", "$0 ^ $1", "lax.shift_left($0, $1)",
                                     "lax.shift_right_logical($0, $1)", "lax.shift_right_arithmetic($0, $1)", "lax.div($0, $1)", "lax.rem($0, $1)", "$0 // ($1 | 1)", "$0 % ($1 | 1)", "$0 < $1", "$0 == $1"])
        elif x.kind == "b":
            t = "move " + self.pick(["$0 & $1", "$0 | $1", "$0 ^ $1", "$0 == $1"])
        else:
            t = self.pick(["approx $0 + $1", "approx $0 * ($1 / (1 + jnp.abs($1)))", "approx $0 - $1", "approx $0 / (3 + jnp.abs($1))"])
        kind, text = t.split(" ", 1)
        return self.step(kind, text, x, y)

    def where(self):
        x = self.val(lambda v: v.kind != "c")
        y = self.partner(x)
        c = [v for v in self.scope if v.dtype == "bool" and v.shape in (x.shape, ())]
        if c and self.odds(0.6):
            return self.step("move", "jnp.where($2, $0, $1)", x, y, self.pick(c))
        if x.rank and self.odds(0.6):
            return self.step("move", f"jnp.where(lax.broadcasted_iota(jnp.int32, {x.shape}, {self.int(0, x.rank)}) % {self.pick([2, 3, 5])} == 1, $0, $1)", x, y)
        if x.kind == "b":
            raise Skip
        if x.exact and y.exact:
            return self.step("move", "jnp.where($0 >= $1, $0, $1)", x, y)
        return self.step("pure", "lax.clamp(jnp.asarray(0, $0.dtype), $0, jnp.asarray(3, $0.dtype))", x)

    def cast(self):
        x = self.val(lambda v: v.kind != "c")
        to = self.pick(FLOATS + INTS + ["bool"] + (WIDE[:-1] if self.x64 else []) + (SMALL * 2 if self.mode == "small" else []))
        if x.kind == "f" and to not in GOOD:
            return self.step("jump", f"jnp.clip($0, 0, 7).astype(jnp.{to})" if to != "bool" else "$0.astype(bool)", x)
        if x.kind in "ib" and to in GOOD:            # exact where it fits
            v = self.step("jump", f"($0 & {'True' if x.kind == 'b' else 3}).astype(jnp.{to})", x)
            v.lat, v.good = (2, 0), GOOD[to]
            return v
        return self.step("move", f"$0.astype({'bool' if to == 'bool' else 'jnp.' + to})", x)

    def bitcast(self):
        x = self.val(lambda v: v.exact and v.kind in "fi")
        bits = np.dtype(self.ns["jnp"].dtype(x.dtype)).itemsize * 8
        if x.dtype in SMALL:
            bits = 4 if "4" in x.dtype[:5] and x.kind == "i" else 8
        if x.kind == "f":
            return self.step("jump", f"lax.bitcast_convert_type(jnp.where(jnp.isnan($0), 1, $0).astype($0.dtype), jnp.{self.pick(['int', 'uint'])}{bits})", x)
        to = self.pick([t for t in INTS + ["int4", "uint4"] if t != x.dtype])
        return self.step("move", f"lax.bitcast_convert_type($0, jnp.{to})", x)

    # --- what keeps the shape

    def keep(self, x=None):
        x = x or self.val()
        if not x.rank:
            return self.binary(x)
        d, n = self.int(0, x.rank), 0
        n = x.shape[d]
        if not n:
            raise Skip
        k = self.int(0, n)
        t = ["move jnp.flip($0, %d)" % d, "move jnp.roll($0, %d, %d)" % (k - n // 2, d), "move lax.pad($0, jnp.zeros((), $0.dtype), %s)" % str([(1, -1, 0) if e == d else (0, 0, 0) for e in range(x.rank)]),
             "move lax.pad($0, jnp.ones((), $0.dtype), %s)" % str([(-1, 1, 0) if e == d else (0, 0, 0) for e in range(x.rank)]),
             "move jnp.concatenate([lax.slice_in_dim($0, %d, %d, axis=%d), lax.slice_in_dim($0, 0, %d, axis=%d)], %d)" % (k, n, d, k, d, d),
             "move lax.dynamic_update_slice_in_dim($0, lax.slice_in_dim($0, %d, %d, axis=%d), jnp.int32(%d), %d)" % (k, self.int(k + 1, n + 1), d, self.int(-3, n + 3), d),
             "move jnp.take($0, np.random.default_rng(%d).permutation(%d), axis=%d)" % (k, n, d), "move lax.optimization_barrier($0)",
             "move lax.sort($0, dimension=%d)" % d if x.kind != "c" else "move $0", "move jnp.swapaxes(jnp.flip(jnp.swapaxes($0, 0, %d), 0), 0, %d)" % (d, d)]
        if x.shape[0] > 1 and x.kind != "b":
            t += ["move $0.at[%d].set($0[%d])" % (self.int(0, x.shape[0]), self.int(0, x.shape[0]))]
            t += ["sum:2 $0.at[%d:].add($0[:%d])" % (x.shape[0] - x.shape[0] // 2, x.shape[0] // 2)]
        if x.kind in "fi":
            at = "".join(":, " for _ in range(d)) + "%d:%d" % (k, k + 1)
            t += ["sum:2 $0 + $0[%s]" % at] * 3 + ["sum:2 $0 - jnp.max($0, %d, keepdims=True)" % d] * 2
            some = "lax.slice_in_dim($0, %d, %d, axis=%d)" % (k, self.int(k + 1, n + 1), d)
            t += ["sum:2 $0 - jnp.%s(%s, %s, keepdims=True)" % (self.pick(["max", "min"]), some, self.pick([d, None]))] * 2
            if x.kind == "i":
                t += ["move $0 + jnp.%s(%s, %d, keepdims=True).astype($0.dtype)" % (self.pick(["argmax", "argmin"]), some, d), "move $0 - jnp.sum(%s, %s, keepdims=True).astype($0.dtype)" % (some, self.pick([d, None]))]
            z = ", ".join("z" for _ in range(x.rank))
            t += [f"sum:2 (lambda z, u: lax.dynamic_update_slice(u, u, ({z})))(jnp.int32({self.int(-1, 2)}), $0 + $0[{at}])"] * 2
            sym = [(a, b) for a in range(x.rank) for b in range(a) if x.shape[a] == x.shape[b] > 1]
            if sym:
                a, b = self.pick(sym)
                t += ["sum:2 $0 + jnp.swapaxes($0, %d, %d)" % (a, b)] * 3
        if x.kind == "f" and x.dtype not in SMALL:
            t += ["approx jax.nn.softmax($0, axis=%d)" % d, "approx $0 / (1 + jnp.linalg.norm($0))" if x.rank < 3 else "approx $0 * 0.5",
                  "approx $0 - jnp.mean($0, %d, keepdims=True)" % d, "sum:%d lax.cumsum($0, axis=%d)" % (n, d)]
        if x.kind == "i":
            t += ["move lax.cumsum($0, axis=%d)" % d, "move lax.cummax($0, axis=%d, reverse=True)" % d, "move $0 + lax.broadcasted_iota($0.dtype, $0.shape, %d)" % d]
        if x.kind == "f" and x.dtype in ("bfloat16", "float16") + tuple(SMALL) and n > 200 and not x.lat:
            t = [u for u in t if "cumsum" not in u]
        kind, text = self.pick(t).split(" ", 1)
        return self.step(kind, text, x)

    def reverse(self):
        x = self.val(lambda v: v.rank)
        return self.step("move", f"lax.rev($0, {tuple(sorted(self.rng.choice(x.rank, size=self.int(1, x.rank + 1), replace=False).tolist()))})", x)

    def shift(self):
        """Elements moved along one dimension, by one operation after another."""
        x = self.val(lambda v: v.rank and v.size)
        d = self.pick([k for k in range(x.rank) if x.shape[k] == max(x.shape)]) if self.odds(0.7) else self.int(0, x.rank)
        n, e, z = x.shape[d], "$0", "jnp.asarray(%d, $0.dtype)" % self.pick([0, 0, 0, 1])
        for _ in range(self.int(1, 5)):
            k = self.int(0, n)
            how = self.pick(["roll", "cut", "pad", "flip", "behind", "halves", "stride", "twice"])
            if how == "roll":
                e = f"jnp.roll({e}, {self.int(-n, n)}, {d})"
            elif how == "cut":
                e, n = f"lax.slice_in_dim({e}, {k}, {(to := self.int(k + 1, n + 1))}, axis={d})", to - k
            elif how == "pad":
                a, b, i = self.int(-n // 2, n + 3), self.int(-n // 2, n + 3), self.pick([0, 0, 0, 1, 2])
                if n + a + b + (n - 1) * i < 1:
                    continue
                e, n = f"lax.pad({e}, {z}, {[(a, b, i) if q == d else (0, 0, 0) for q in range(x.rank)]})", n + a + b + (n - 1) * i
            elif how == "flip":
                e = f"jnp.flip({e}, {d})"
            elif how == "behind":
                e = f"(lambda u: jnp.concatenate([jnp.zeros_like(lax.slice_in_dim(u, 0, {k}, axis={d})), lax.slice_in_dim(u, 0, {n - k}, axis={d})], {d}))({e})"
            elif how == "halves" and x.kind in "fi":
                e = f"(lambda u: jnp.concatenate([-lax.slice_in_dim(u, {k}, {n}, axis={d}), lax.slice_in_dim(u, 0, {k}, axis={d})], {d}))({e})"
            elif how == "stride":
                s = self.pick([2, 3])
                e, n = f"lax.slice_in_dim({e}, {k // 2}, {n}, {s}, {d})", -(-(n - k // 2) // s)
            elif n < 200:
                e, n = f"(lambda u: jnp.concatenate([u, u], {d}))({e})", 2 * n
        if n != x.shape[d] and self.odds(0.6):
            e = f"lax.pad({e}, {z}, {[(0, x.shape[d] - n, 0) if q == d else (0, 0, 0) for q in range(x.rank)]})"
        return self.step("move", e, x)

    # --- shapes

    def reshape(self):
        x = self.val(lambda v: v.size)
        divs = [d for d in range(1, x.size + 1) if x.size % d == 0]
        d = self.pick(divs)
        e = self.pick([k for k in divs if (x.size // d) % k == 0])
        shape = [(x.size,), (d, x.size // d), (d, e, x.size // d // e), (1,) + x.shape]
        if x.rank > 1:
            a = self.int(0, x.rank - 1)
            shape += [x.shape[:a] + (x.shape[a] * x.shape[a + 1],) + x.shape[a + 2:]] * 2
        return self.step("move", f"jnp.reshape($0, {self.pick(shape)})", x)

    def transpose(self):
        x = self.val(lambda v: v.rank > 1)
        return self.step("move", f"jnp.transpose($0, {tuple(int(p) for p in self.rng.permutation(x.rank))})", x)

    def rows(self):
        """A few rows of a stack, so large that they come alone from where they lie; some of them again behind all."""
        x = self.input((self.pick([8, 12, 16]), 48, 64), "float32", "lat")
        at = self.int(0, x.shape[0] - 1)
        part = f"$0[{at}:{self.int(at + 1, min(at + 4, x.shape[0]) + 1)}]"
        return self.step("move", self.pick([part, part + "[0]", f"jnp.concatenate([$0, {part}])", f"jnp.concatenate([{part}, $0[{at}:], {part}], 0)"]), x)

    def corner(self):
        """Little of a matrix so large that it would take long to bring what that is cut out of."""
        x = self.input((512, 256), "float32", "lat")
        a, i, j = self.int(0, 500), self.int(0, 256), self.int(0, 240)
        b, k = a + self.int(1, 13), j + self.int(1, 17)
        return self.step("move", self.pick([f"$0[{a}:{b}, {i}]", f"$0[{a}:{b}, {j}:{k}]", f"jnp.stack([$0[{a}:{b}, {i}], $0[{a}:{b}, {j}]], 1)", f"$0[{a}:{b}, {j}:{k}].T.reshape(-1)", f"$0[{a}:, {j}:{k}][::-7, ::2]",
                                            f"jnp.pad($0[{a}:{b}, {j}:{k}], ((1, 2), (0, 1)))", f"jnp.concatenate([$0[{a}:{b}, {j}], $0[{b}:, {i}][:{k}]])", f"jnp.max($0[{a}:{b}, {j}:{k}], 1)", f"$0.reshape(-1)[{a}:{b + k}]"]), x)

    def slice(self):
        if self.mode == "sharded" and self.odds(0.2):
            return self.pick([self.rows, self.corner])()
        x = self.val(lambda v: v.rank and v.size)
        lo = [self.int(0, d) if self.odds(0.5) else 0 for d in x.shape]
        hi = [self.int(a + 1, d + 1) if self.odds(0.5) else d for a, d in zip(lo, x.shape)]
        st = [self.pick([1, 1, 1, 2, 3]) for _ in x.shape]
        return self.step("move", f"lax.slice($0, {lo}, {hi}, {st})", x)

    def pad(self):
        x = self.val(lambda v: v.rank)
        cfg = [(self.int(-2, 4), self.int(-2, 4), self.pick([0, 0, 1, 2])) if self.odds(0.6) else (0, 0, 0) for _ in x.shape]
        if self.odds(0.3) or self.mode == "sharded":
            d = self.int(0, x.rank)
            if self.mode == "sharded":
                cfg = [(0, 0, 0)] * x.rank
            cfg[d] = self.pick([(0, -1, 1), (0, -2, 1), (-1, 0, 1), (1, -1, 0), (-1, 1, 0), (-1, -1, 1), (2, -2, 0)])
        return self.step("move", f"lax.pad($0, jnp.asarray({self.pick([0, 0, 1])}, $0.dtype), {cfg})", x)

    def concat(self):
        x = self.val(lambda v: v.rank)
        a = self.int(0, x.rank)
        ok = [v for v in self.scope if v.dtype == x.dtype and v.rank == x.rank and all(p == q for d, (p, q) in enumerate(zip(x.shape, v.shape)) if d != a)]
        args = [x, self.pick(ok), self.pick(ok)][:self.int(2, 4)]
        return self.step("move", f"jnp.concatenate([{', '.join(f'${k}' for k in range(len(args)))}], {a})", *args)

    def broadcast(self):
        x = self.val()
        at, d = self.int(0, x.rank + 1), self.pick(self.palette)
        return self.step("move", f"jnp.broadcast_to(jnp.expand_dims($0, {at}), {x.shape[:at] + (d,) + x.shape[at:]})", x)

    def tile(self):
        """Copies behind one another, or of each element: parts of a value, reshaped to more than all of it."""
        x = self.val(lambda v: v.rank and v.size)
        n, d = self.pick([2, 2, 3, 4]), self.int(0, x.rank)
        return self.step("move", self.pick([f"jnp.tile($0, {tuple(n if e == d else 1 for e in range(x.rank))})", f"jnp.repeat($0, {n}, axis={d})"]), x)

    def dslice(self):
        x = self.val(lambda v: v.rank and v.size)
        if self.odds(0.2):
            d = self.int(0, x.rank)
            return self.step("move", f"jnp.roll($0, $1 * {self.int(-3, 4)}, {d})", x, self.scalar_index(x.shape[d]))
        k = [self.scalar_index(d) if self.odds(0.7) else None for d in x.shape]
        size = [self.int(1, d + 1) if i else d for i, d in zip(k, x.shape)]
        given = [i for i in k if i]
        names = iter(range(1, 9))
        at = ", ".join(f"${next(names)}" if i else "jnp.int32(0)" for i in k)
        if self.odds(0.5):
            return self.step("move", f"lax.dynamic_slice($0, ({at},), {size})", x, *given)
        lo = [self.int(0, d - s + 1) for d, s in zip(x.shape, size)]
        return self.step("move", f"lax.dynamic_update_slice($0, lax.slice($0, {lo}, {[a + s for a, s in zip(lo, size)]}), ({at},))", x, *given)

    def iota(self):
        shape = self.shape(self.int(1, 4))
        return self.step("move", f"lax.broadcasted_iota(jnp.{self.pick(INTS)}, {shape}, {self.int(0, len(shape))})")

    # --- sums, products

    def reduce(self, x=None):
        x = x or self.val(lambda v: v.rank)
        axes = sorted(self.rng.choice(x.rank, size=self.int(1, x.rank + 1), replace=False).tolist())
        if self.odds(0.3):
            axes = list(range(self.int(1, x.rank + 1)))       # leading
        axes, keep = tuple(axes), self.odds(0.4)
        n = math.prod(x.shape[a] for a in axes)
        if x.dtype in SMALL and x.kind == "f" and n > 6:      # overflows where a back end rounds between two steps
            raise Skip
        tail = f"axis={axes}, keepdims={keep})"
        if x.kind == "b":
            return self.step("move", f"jnp.{self.pick(['any', 'all', 'sum'])}($0, {tail}" + ("" if not self.x64 else ".astype(jnp.int32)"), x)
        if x.kind == "c":
            return self.step("approx", f"jnp.sum($0, {tail}", x)
        f = self.pick(["sum", "sum", "max", "min"] + (["mean", "lse", "norm", "var"] if x.kind == "f" else ["prod", "and", "or", "xor"]))
        if not n and f not in ("sum", "prod"):
            raise Skip
        if f == "sum":
            return self.scaled(self.step(f"sum:{n}", f"jnp.sum($0, {tail}.astype($0.dtype)", x))
        if f in ("and", "or", "xor"):
            return self.step("move", f"lax.reduce_{f}($0, {axes})", x)
        if f == "lse":
            return self.step("approx", f"jax.nn.logsumexp($0, {tail}", x)
        if f == "norm":
            return self.step("approx", f"jnp.sqrt(jnp.sum($0 * $0, {tail})", x)
        return self.step("pure" if f in ("max", "min", "prod") else "approx", f"jnp.{f}($0, {tail}.astype($0.dtype)", x)

    def dot(self):
        x = self.val(lambda v: v.rank and v.kind != "b")
        y = self.val(lambda v: v.dtype == x.dtype and v.rank)
        free_x, free_y, batch, con = list(range(x.rank)), list(range(y.rank)), ([], []), ([], [])
        for a in self.rng.permutation(x.rank).tolist():
            ok = [b for b in free_y if y.shape[b] == x.shape[a]]
            if ok and self.odds(0.75):
                b = self.pick(ok)
                to = con if self.odds(0.7) or not con[0] else batch
                to[0].append(a), to[1].append(b)
                free_y.remove(b)
                free_x.remove(a)
        if not con[0] and x.size * y.size > self.most or x.dtype in SMALL and x.kind == "f" and not x.lat:
            raise Skip
        n = math.prod(x.shape[a] for a in con[0])
        if x.size * math.prod(y.shape[b] for b in free_y) > 8e6:
            raise Skip
        kind = f"dot:{n}" if x.lat and y.lat else "approx" if x.kind in "fc" else "move"
        scale = f" / {max(1, int(n ** 0.5))}" if kind == "approx" else ""
        wide = self.pick(["", "", ", preferred_element_type=jnp.float32"]) if x.dtype in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2") else ""
        if x.dtype in ("int8", "uint8") and self.odds(0.5):
            wide = ", preferred_element_type=jnp.int32"
        if x.kind == "c" and self.odds(0.2):
            wide = ", preferred_element_type=jnp.float32"
        return self.scaled(self.step(kind, f"lax.dot_general($0, $1, (({con[0]}, {con[1]}), ({batch[0]}, {batch[1]})){wide}){scale}", x, y))

    def scaled(self, v):
        """A sum whose parts, each scaled by that, would give another one."""
        if v.kind != "f" or not v.lat or self.odds(0.9):
            return v
        return self.step("scaled", self.pick(["$0 * jnp.inf", "$0 / 0", "$0 * -1e30 * 1e30", "$0 / 1e-30 / 1e-30", "$0 * jnp.nan", "$0 / jnp.inf"]), v)

    def conv(self):
        x = self.val(lambda v: v.kind == "f" and v.rank in (3, 4) and v.size and v.dtype not in SMALL)
        sp = x.rank - 2
        out, win = self.pick([1, 2, 5, 8]), [self.int(1, 4) for _ in range(sp)]
        order = self.pick(["N" + "C" + "HW"[:sp], "N" + "HW"[:sp] + "C"])
        cin = x.shape[order.index("C")]
        g = self.pick([k for k in (1, 1, 2, cin) if cin % k == 0]) if cin else 1
        if g == cin:
            out = cin
        elif g == 2:
            out = 4
        k = self.input(tuple([out, cin // g] + win), x.dtype, "lat" if x.lat else "normal")
        st, dil, rd = [[self.pick([1, 1, 2]) for _ in range(sp)] for _ in range(3)]
        pad = self.pick(["'SAME'", "'VALID'", str([(self.int(-1, 3), self.int(0, 3)) for _ in range(sp)])])
        if "'" in pad:
            dil = [1] * sp
        n = math.prod(win) * cin // g
        if self.mode == "along" and x.dtype == "float32" and self.odds(0.4):
            text = f"lax.conv_general_dilated(u, w, {st}, {pad}, {dil}, {rd}, ('{order}', 'OI{'HW'[:sp]}', '{order}'), {g})"
            return self.step("approx", f"(lambda g: g / (1 + jnp.max(jnp.abs(g))))(jax.grad(lambda u, w: jnp.sin({text}).sum(), {self.int(0, 2)})($0, $1))", x, k)
        return self.step(f"dot:{n}" if x.lat else "approx", f"lax.conv_general_dilated($0, $1, {st}, {pad}, {dil}, {rd}, ('{order}', 'OI{'HW'[:sp]}', '{order}'), {g})" + ("" if x.lat else f" / {max(1, int(n ** 0.5))}"), x, k)

    def cum(self):
        x = self.val(lambda v: v.rank and v.kind != "b")
        a = self.int(0, x.rank)
        f = self.pick(["cumsum", "cummax", "cumlogsumexp", "cummin"] if x.kind == "f" else ["cumsum", "cummax", "cumprod"] if x.kind == "i" else ["cumsum"])
        if f != "cumlogsumexp" and self.mode == "along" and self.odds(0.25):  # by halves, which divide or do not
            by = {"cumsum": "add", "cummax": "max", "cummin": "min", "cumprod": "mul"}[f]
            return self.step(f"sum:{x.shape[a]}" if f == "cumsum" else "pure", f"lax.associative_scan(lax.{by}, $0, axis={a}, reverse={self.odds(0.4)})", x)
        if f in ("cumsum", "cumlogsumexp") and x.kind == "f" and x.dtype not in ("float32", "float64") and x.shape[a] > 130 and not x.lat:
            raise Skip
        return self.step(f"sum:{x.shape[a]}" if f == "cumsum" else "pure" if f != "cumlogsumexp" else "approx", f"lax.{f}($0, axis={a}, reverse={self.odds(0.4)})", x)

    def window(self):
        x = self.val(lambda v: v.rank and v.kind in "fi" and v.size)
        dims, st = tuple(self.int(1, 4) for _ in x.shape), tuple(self.int(1, 3) for _ in x.shape)
        if self.mode == "along" and self.odds(0.7):  # wide ones along one dimension, without other extents
            a = self.int(0, x.rank)
            dims, st = (tuple(self.int(1, min(x.shape[a], 20) + 1) if k == a else 1 for k in range(x.rank)), tuple(self.pick([1, 1, 2, 3]) if k == a else 1 for k in range(x.rank)))
            f, lo = self.pick(["max", "add", "min"]), self.int(0, dims[a])
            init = {"add": "0", "max": "-jnp.inf" if x.kind == "f" else "jnp.iinfo($0.dtype).min", "min": "jnp.inf" if x.kind == "f" else "jnp.iinfo($0.dtype).max"}[f]
            base = self.pick([1, 1, 1, 2, 3])
            pad = [(lo, base * (st[a] - 1) + dims[a] - 1 - lo + self.pick([0, 0, 1, -1])) if k == a else (0, 0) for k in range(x.rank)]
            bd = [base if k == a else 1 for k in range(x.rank)]
            if x.dtype == "float32" and x.exact and self.odds(0.25):
                how = self.pick(["VALID", "SAME"])
                return self.step("sum:%d" % math.prod(dims), f"jax.grad(lambda u: (lax.reduce_window(u, -jnp.inf, lax.max, {dims}, {st}, '{how}') * 2).sum())($0)", x)
            return self.step(f"sum:{math.prod(dims)}" if f == "add" else "pure", f"lax.reduce_window($0, np.asarray({init}, $0.dtype), lax.{f}, {dims}, {st}, {pad}, {bd})", x)
        pad = self.pick(["'SAME'", "'VALID'", str([(self.int(0, w), self.int(0, w)) for w in dims])])
        f = self.pick(["max", "add", "min"])
        init = {"add": "0", "max": "-jnp.inf" if x.kind == "f" else "jnp.iinfo($0.dtype).min", "min": "jnp.inf" if x.kind == "f" else "jnp.iinfo($0.dtype).max"}[f]
        if x.dtype in SMALL and f != "add":
            raise Skip
        return self.step(f"sum:{math.prod(dims)}" if f == "add" else "pure", f"lax.reduce_window($0, np.asarray({init}, $0.dtype), lax.{f}, {dims}, {st}, {pad})", x)

    # --- indices

    def take(self):
        x = self.val(lambda v: v.rank and v.size)
        a = self.int(0, x.rank)
        idx = [v for v in self.scope if v.dtype in ("int32", "uint8", "int8") and v.rank < 3]
        if idx and self.odds(0.7):
            return self.step("move", f"jnp.take($0, $1, axis={a}, mode={self.pick(['clip', 'wrap', 'fill'])!r}" + (", fill_value=0)" if x.kind != "b" else ", fill_value=False)"), x, self.pick(idx))
        where = self.rng.integers(-x.shape[a], x.shape[a], size=self.pick([(3,), (2, 2), (5,), (64,)]))
        return self.step("move", f"jnp.take($0, np.array({where.tolist()}), axis={a})", x)

    def scatter(self):
        x = self.val(lambda v: v.rank and v.size and v.kind in "fi")
        if self.odds(0.4):                       # rows of another value, each to its place
            y = self.val(lambda v: v.rank == x.rank and v.shape[1:] == x.shape[1:] and v.dtype == x.dtype and v.shape[0])
            n, how = y.shape[0], self.pick(["add", "max", "min"] + ["multiply"] * (x.kind == "i"))
            return self.step(f"sum:{n + 1}" if how == "add" else "pure", f"$0.at[(jnp.arange({n}) * {self.int(1, 9)} + {self.int(0, 9)}) % {x.shape[0]}].{how}($1)", x, y)
        where = self.rng.integers(0, x.shape[0], size=self.int(1, 6))
        how = self.pick(["add", "max", "min", "set", "multiply", "apply"] if x.kind == "i" else ["add", "max", "min", "set", "apply"])
        if how == "set":
            where = np.unique(where)
        if how == "apply":
            return self.step("pure", f"$0.at[np.array({where.tolist()})].apply(lambda t: t + t)", x)
        return self.step("move" if how == "set" else "sum:8" if how == "add" else "pure", f"$0.at[np.array({where.tolist()})].{how}($0[{self.int(0, x.shape[0])}])", x)

    def large(self):
        """So much that it is worth to turn it where it is cut along what an operation needs whole."""
        return self.input((self.pick([48, 96]), self.pick([24, 36, 48])), "float32", "lat")

    def sort(self):
        x = self.large() if self.odds(0.15) else self.val(lambda v: v.rank and v.kind in "fi" and v.size)
        a = self.int(0, x.rank)
        f = self.pick(["sort", "argsort", "topk", "topk_i", "sort2", "sort_by"])
        if f == "sort":
            return self.step("move", f"lax.sort($0, dimension={a})", x)
        if f == "argsort":
            return self.step("jump", f"jnp.argsort($0, axis={a}, descending={self.odds(0.3)}).astype(jnp.int32)", x)
        if f.startswith("topk"):
            return self.step("move" if f == "topk" else "jump", f"lax.top_k($0, {self.int(1, x.shape[-1] + 1)})[{int(f == 'topk_i')}]", x)
        if f == "sort2":
            return self.step("jump", f"lax.sort(($0, $1), dimension={a}, num_keys=2)[1]", x, self.partner(x))
        k = self.val(lambda v: v.shape == x.shape and v.exact and v.kind in "fi")
        return self.step("move", f"lax.sort(($1, $0), dimension={a}, num_keys=1)[1]", x, k)

    def argmax(self):
        x = self.val(lambda v: v.rank and v.kind in "fi" and v.size and v.exact)
        return self.step("jump", f"lax.{self.pick(['argmax', 'argmin'])}($0, {self.int(0, x.rank)}, jnp.int32)", x)

    def fft(self):
        x = self.val(lambda v: v.rank and v.dtype in ("float32", "complex64") and 0 < v.shape[-1] <= 256)
        if self.odds(0.3):
            x = self.large()
            return self.step("approx", f"jnp.abs(jnp.fft.fft($0, axis={self.int(0, 2)})) / 100", x)
        return self.step("approx", "jnp.fft.rfft($0) / %d" % x.shape[-1] if x.kind == "f" else f"jnp.fft.{self.pick(['fft', 'ifft'])}($0) / {x.shape[-1]}", x)

    def matrices(self):
        """Products of many small ones."""
        b, i, j, k = self.pick([31, 32, 64, 130]), *(self.pick([1, 2, 3, 4, 6, 8, 16, 17]) for _ in range(3))
        dt = self.pick(["float32", "float32", "bfloat16", "float16"])
        left, right, out = self.pick([("bij", "bjk", "bik"), ("bji", "bkj", "bik"), ("jbi", "bjk", "kbi"), ("bij", "bj", "bi"), ("bj", "bj", "b"), ("ibj", "jk", "bik")])
        size = dict(zip("bijk", (b, i, j, k)))
        x, y = (self.input(tuple(size[c] for c in side), dt, "normal") for side in (left, right))
        return self.step("approx", f"jnp.einsum('{left},{right}->{out}', $0, $1) / {max(1, int(j ** 0.5))}", x, y)

    def narrow(self):
        """A product of bf16, rounded once."""
        x = self.input((self.pick([16, 32]), 512), "bfloat16", "unit")
        y = self.input((512, self.pick([16, 32])), "bfloat16", "unit")
        return self.step("approx", "jnp.matmul($0 - jnp.bfloat16(0.5), $1 - jnp.bfloat16(0.5))", x, y)

    def random(self):
        if self.odds(0.1):
            v = self.step("approx", f"lax.rng_uniform(jnp.float32(0), jnp.float32(1), {self.shape()})")
            v.good = np.inf              # each back end's own, but the same wherever it is replicated
            return v
        key, shape = f"jax.random.key({self.int(0, 99)})", self.shape()
        return self.step("move", f"jax.random.bits({key}, {shape}, jnp.{self.pick(['uint8', 'uint32', 'uint16'])})") if self.odds(0.6) else self.step("approx", f"jax.random.normal({key}, {shape}, jnp.float32)")

    # --- control flow

    def params(self, vals, feedback):
        out = []
        for v in vals:
            p = Val(self.name("p"), v.shape, v.dtype, v.exact, v.lat, v.zero, v.good)
            if feedback and v.kind in "fc":
                p.exact, p.lat, p.zero = False, None, False
            self.vals[p.name] = p
            out.append(p)
        return out

    def carries(self, most=3000):
        first = self.val(lambda v: v.size <= most)
        out = [first]
        for _ in range(self.int(0, 4)):
            try:
                out.append(self.val(lambda v: v.like(first)) if self.odds(0.5) else self.val(lambda v: v.size <= most))
            except Skip:
                pass
        return out

    def settle(self, b, new, params, turns):
        """Results of a loop's body: carries swapped, kept, updated; what grows is halved."""
        order = list(params)
        for k, p in enumerate(params):
            same = [j for j in range(k) if params[j].like(p)]
            if same and self.odds(0.5):
                j = self.pick(same)
                order[k], order[j] = order[j], order[k]
        b.results = []
        for p, q in zip(params, order):
            v = q if self.odds(0.3) else self.result(b, new, p, q)
            if v.kind == "f" and v.name != q.name and turns > 3:
                s = Step([self.name()], "$0 * 0.5", [v.name])
                b.steps.append(s)
                b.results.append(s.out[0])
            else:
                b.results.append(v.name)
        for k in range(len(params)):
            if self.devices > 1 and not self.quiet and self.odds(0.6 if self.mode == "rings" else 0.15):
                b.results[k] = self.hand_on(b, self.pick([b.results[k], b.results[k], params[k].name]))

    def links(self):
        """Of a permute: mostly the program's own ring, so that permutes of permutes are by the same links."""
        if not hasattr(self, "ring") or self.odds(0.2):
            at = [int(p) for p in self.rng.permutation(self.devices)]
            cut = self.int(1, self.devices + 1) if self.odds(0.3) else self.devices        # one cycle, or two
            self.ring = [(a, c[(k + 1) % len(c)]) for c in (at[:cut], at[cut:]) for k, a in enumerate(c)]
        return [(b, a) for a, b in self.ring] if self.odds(0.15) else self.ring[1:] if self.odds(0.1) else self.ring

    def hand_on(self, b, name):
        """Carry `name` as another device has it, one link or several further on."""
        for _ in range(self.pick([1, 1, 1, 2, 3])):
            s = Step([self.name()], f"lax.ppermute($0, 'd', {self.links()})", [name])
            b.steps.append(s)
            name = s.out[0]
        return name

    def handed(self):
        """A loop, forwards or its gradient, in which arrays go round the devices: as they are, or as each turn makes them; read as they were, as
        they become, or both."""
        x = self.val(lambda v: v.kind == "f" and v.rank and v.size and v.dtype not in SMALL)
        y, t = self.val(lambda v: v.like(x)) if self.odds(0.3) else x, self.int(1, 2 * self.devices + 2)

        def on(v):
            return f"lax.ppermute({v}, 'd', {self.links()})"

        k = self.pick([on("k"), on("k"), on("k"), on(on("k")), on("k * 0.5 + o"), f"{on('k')} * 0.5 + o", "v"])
        v = self.pick(["v", on("v"), on("v"), "k", on("k"), f"jnp.sin({on('v')} + k)", on("jnp.sin(v + k)")])
        o = self.pick(["jnp.tanh(o * 0.5 + k * v)", "jnp.tanh(o * 0.5 + k * v)", f"jnp.tanh({on('o')} + k)", on("jnp.tanh(o + v)"), "jnp.tanh(o + k * n)", "jnp.tanh(o + n) * v",
                       f"o * 0.5 + {on('k * v')}", f"jnp.tanh({on('k')} - {on('v')} + o)"])
        out = self.pick(["None", "None", "k", "o", "jnp.sum(n * k)"])
        turn = f"lambda c, i: (lambda k, v, o: (lambda n: ((n, {v}, {o}), {out}))({k}))(*c)"
        turn = f"jax.checkpoint({turn})" if self.odds(0.25) else turn
        end = self.pick(["r[0][2]", "r[0][2]", "r[0][0] + r[0][2]", "r[0][1] * r[0][2]"]) + ("" if out == "None" else " + jnp.sum(r[1], 0)")
        how = self.int(0, 6)
        if how == 0:                                     # python's own loop
            turns = f"(lambda r: {end})(__import__('functools').reduce(lambda r, i: (({turn})(r[0], i)[0], jnp.zeros((1,), $0.dtype)), range({min(t, 5)}), ((k, v, k * 0), jnp.zeros((1,), $0.dtype))))"
        elif how == 1:
            turns = f"(lambda r: {end})((lax.fori_loop(0, {t}, lambda i, c: ({turn})(c, i)[0], (k, v, k * 0)), jnp.zeros((1,), $0.dtype)))"
        elif how == 2:                                   # layers around the ring
            turns = f"lax.scan(lambda h, _: ((lambda r: jnp.tanh({end}).astype($0.dtype))(lax.scan({turn}, (h, v, h * 0), jnp.arange({t}))), None), k, None, length=2)[0]"
        else:
            turns = f"(lambda r: {end})(lax.scan({turn}, (k, v, k * 0), jnp.arange({t})))"
        if how != 1 and self.odds(0.4):
            return self.step("approx", f"jax.grad(lambda k, v: jnp.sum(jnp.sin({turns}).astype(np.float32)), argnums={self.pick([0, 1])})(jnp.tanh($0), jnp.tanh($1))", x, y)
        return self.step("approx", f"(lambda k, v: ({turns}).astype($0.dtype))(jnp.tanh($0), jnp.tanh($1))", x, y)

    def inside(self, i):
        """One step of a loop's body that uses the index i (a Val), else any."""
        x = self.val(lambda v: v.rank and v.size and v.kind in "fib")
        n, t = x.shape[0], self.int(0, 8)
        at = self.pick([i.name, f"{n} - 1 - {i.name}", f"{i.name} * {self.pick([2, 3, 7])} + {self.int(0, 3)}", f"({i.name} * 3) % {min(n, 100)}", f"{i.name} - {self.int(1, 4)}", f"{i.name} + {self.int(1, 4)}", f"-{i.name}", f"~{i.name}"])
        if "%" in at and i.dtype in ("int4", "uint4", "int8", "uint8"):
            at = i.name
        text = at.replace(i.name, "$1")
        size = self.int(1, n + 1)
        if t < 2:
            return self.step("move", f"lax.dynamic_index_in_dim($0, {text}, 0, keepdims=False)", x, i)
        if t < 3:
            return self.step("move", f"lax.dynamic_slice_in_dim($0, {text}, {size}, 0)", x, i)
        if t < 6 and x.kind != "b":
            d = self.int(0, x.rank)
            k = self.int(0, x.shape[d])
            return self.step("sum:2", f"lax.dynamic_update_slice_in_dim($0, lax.slice_in_dim($0, {k}, {k + 1}, axis={d}) + lax.dynamic_slice_in_dim($0, $1, 1, {d}), {text}, {d})", x, i)
        if t < 7 and x.kind != "b":
            return self.step("sum:2", f"$0 + ({text}).astype($0.dtype)" if x.kind == "i" else f"$0.at[{text}].set($0[{self.int(0, n)}])", x, i)
        return self.step("move", f"jnp.roll($0, 1, {self.int(0, x.rank)})", x)

    def loop_body(self, i):
        def op():
            return self.inside(i) if self.odds(0.45) else self.draw_op()
        return op

    def fori(self):
        init, t = self.carries(), self.int(0, 7)
        dt = self.pick(["int32", "int32", "int32", "uint8", "int8", "uint32", "int16"])
        lo = self.pick([0, 0, 0, 1, 3]) if dt.startswith("u") else self.pick([0, 0, 0, -2, 3])
        ps = self.params(init, True)
        i = Val(self.name("i"), (), dt)
        self.vals[i.name] = i
        b, new = self.body([i, *ps], self.int(1, 5), sig=f"{i.name}, c", unpack=f"({', '.join(p.name for p in ps)},) = c", ops=self.loop_body(i))
        self.settle(b, new, ps, t)
        return self.step("approx", f"lax.fori_loop(np.{dt}({lo}), np.{dt}({lo + t}), @0, ({', '.join(f'${k}' for k in range(len(init)))},)" + (f", unroll={self.pick([2, True])})" if self.odds(0.1) else ")")
                         if len(init) > 1 else f"tuple(lax.fori_loop(np.{dt}({lo}), np.{dt}({lo + t}), @0, ($0,)))", *init, bodies=[b], outs=len(init))

    def while_(self):
        init, t = self.carries(), self.int(0, 6)
        dt = self.pick(["int32", "uint32", "uint8", "int8", "uint16", "int16"])
        info, st = np.iinfo(dt), self.pick([1, 1, -1, 3, -2])
        lo = self.pick([0, info.max - 2, info.min, info.min + 1, info.max, 5])
        wrap = (lo + t * st - info.min) % 2 ** info.bits + info.min
        ps = self.params(init, True)
        i = Val(self.name("i"), (), dt)
        self.vals[i.name] = i
        quiet, whole = self.quiet, [k for k, p in enumerate(ps) if p.kind == "i" and p.size]
        extra = ""
        if whole and self.odds(0.5):
            extra, self.quiet = f" & ((s[{self.pick(whole) + 1}].ravel()[0] > 0) | (s[0] != np.{dt}({lo})))", True
        b, new = self.body([i, *ps], self.int(1, 5), sig="s", unpack=f"({', '.join([i.name] + [p.name for p in ps])},) = s", ops=self.loop_body(i))
        self.settle(b, new, ps, t)
        self.quiet = quiet
        nxt = Step([self.name()], f"$0 + np.{dt}({st})" if info.min <= st <= info.max else f"$0 - np.{dt}({-st})", [i.name])
        b.steps.append(nxt)
        b.results.insert(0, nxt.out[0])
        return self.step("approx", f"lax.while_loop(lambda s: (s[0] != np.{dt}({wrap})){extra}, @0, (np.{dt}({lo}), {', '.join(f'${k}' for k in range(len(init)))}))[1:]"
                         if len(init) > 1 else f"tuple(lax.while_loop(lambda s: (s[0] != np.{dt}({wrap})){extra}, @0, (np.{dt}({lo}), $0))[1:])", *init, bodies=[b], outs=len(init))

    def scan(self):
        xs = self.val(lambda v: v.rank and 0 < v.shape[0] <= 65)
        init = self.carries()
        rows = [xs] + [v for v in self.scope if v.rank and v.shape[0] == xs.shape[0] and v is not xs and self.odds(0.3)][:2]
        ps, rs = self.params(init, True), self.params(rows, False)
        for r in rs:
            r.shape = r.shape[1:]
        b, new = self.body([*ps, *rs], self.int(1, 5), sig="c, r", unpack=f"({', '.join(p.name for p in ps)},), ({', '.join(r.name for r in rs)},) = c, r")
        self.settle(b, new, ps, xs.shape[0])
        out = self.pick([v for v in new if v.size * xs.shape[0] <= self.most] or [ps[0]])
        b.results = [f"({', '.join(b.results)},)", out.name]
        carry, row = ", ".join(f"${k}" for k in range(len(init))), ", ".join(f"${k + len(init)}" for k in range(len(rows)))
        opts = self.pick(["", "", ", reverse=True", ", unroll=2"])
        return self.step("approx", f"(lambda c, y: (*c, y))(*lax.scan(@0, ({carry},), ({row},){opts}))", *init, *rows, bodies=[b], outs=len(init) + 1)

    def switch(self):
        n = self.pick([2, 2, 3, 4])
        x = self.val(lambda v: v.size <= 10000)
        more = [x] + [self.partner(x) if self.odds(0.5) else self.val(lambda v: v.size <= 10000) for _ in range(self.int(0, 3))]
        bodies, outs, quiet = [], [x] if self.odds(0.6) else [x, self.pick(more)], self.quiet
        self.quiet = True
        joined = [Val("", o.shape, o.dtype, lat=o.lat, good=o.good) for o in outs]
        for _ in range(n):
            ps = self.params(more, False)
            b, new = self.body(ps, self.int(0, 4), ops=lambda: self.keep() if self.odds(0.6) else self.draw_op())
            b.results = []
            for o, j in zip(outs, joined):
                v = self.result(b, new, o, next(p for p in ps if p.like(o)))
                j.exact, j.zero, j.good = j.exact and v.exact, j.zero and v.zero, max(j.good, v.good)
                j.lat = (max(j.lat[0], v.lat[0]), max(j.lat[1], v.lat[1])) if j.lat and v.lat else None
                b.results.append(v.name)
            bodies.append(b)
        self.quiet = quiet
        args = ", ".join(f"${k}" for k in range(len(more)))
        p = [v for v in self.scope if v.dtype == "bool" and v.shape == ()]
        if n == 2 and p and self.odds(0.6):
            made = self.step("approx", f"lax.cond(${len(more)}, @0, @1, {args})", *more, self.pick(p), bodies=bodies, outs=len(outs))
        else:
            at = self.scalar_index(n)
            made = self.step("approx", f"lax.switch(${len(more)}, [{', '.join(f'@{k}' for k in range(n))}], {args})", *more, at, bodies=bodies, outs=len(outs))
        for v, j in zip([made] if len(outs) == 1 else made, joined):
            if v.kind in "fc":
                v.exact, v.lat, v.zero, v.good = j.exact, j.lat, j.zero, j.good
        return made

    def map_(self):
        x = self.val(lambda v: v.rank and 0 < v.shape[0] <= 65 and v.size <= 5000)
        p = self.params([x], False)[0]
        p.shape = p.shape[1:]
        b, new = self.body([p], self.int(1, 4))
        v = new[-1]
        b.results = [v.name]
        out = self.step("approx", self.pick(["lax.map(@0, $0)", "jax.vmap(@0)($0)"]), x, bodies=[b])
        if out.kind in "fc":
            out.good = max(out.good, v.good)
        return out

    def grad(self):
        x = self.val(lambda v: v.kind == "f" and v.size and v.dtype not in SMALL)
        w = self.partner(x)
        if self.odds(0.3):
            return self.step("approx", "jax.grad(lambda a: jnp.sum(jax.checkpoint(lambda a: jnp.sin(jnp.tanh(a) * jnp.tanh($1)))(a)))($0)", x, w)
        if not x.rank:
            return self.step("approx", "jax.grad(lambda a: jnp.tanh(a * $1))($0)", x, w)
        d = self.int(0, x.rank)
        scanned = f"jax.grad(lambda a: jnp.sum(jnp.tanh(lax.cumsum(a, axis={d}) * 0.1) * $1))($0)"
        walked = "jax.grad(lambda a: jnp.sum(jnp.tanh(lax.scan(lambda c, r: (jnp.tanh(c * 0.5 + r), c), a[0] * 0, a)[1]) * $1))($0)"
        ways = [f"jax.grad(lambda a: jnp.sum(jnp.tanh(a * $1) * jax.nn.softmax(a, axis={d})))($0)", scanned, walked if x.shape[0] <= TURNS else scanned,
                f"jax.grad(lambda a: jnp.sum(jnp.sqrt(1 + jnp.sum(a * a, axis={d})) ))($0 * jnp.tanh($1))"]
        return self.step("approx", self.pick(ways), x, w)

    def accumulate(self):
        """Loops that add up, turn by turn, what are sums over dimensions that may be cut; not all may wait for their end with that."""
        x = self.val(lambda v: v.kind == "f" and v.rank and v.size and v.dtype not in SMALL)
        d, t = self.int(0, x.rank), self.pick([0, 1, 3, 3, 3])
        if x.rank == 2 and self.odds(0.4):
            h = self.pick(["jnp.tanh(h @ w + k * 0.1)", "jnp.tanh(h @ w) + h", "lax.fori_loop(0, 2, lambda i, h: jnp.tanh(h @ w), h) + k"])
            return self.step("approx", f"jax.grad(lambda w: jnp.sum(lax.scan(lambda h, k: ({h}, None), jnp.sin($0), jnp.arange({t}).astype($0.dtype))[0]))"
                             "((jnp.eye($0.shape[1]) * 0.3).astype($0.dtype))", x)
        s = f"jnp.sum(jnp.tanh($0 * (k + 1)), axis={d})"
        turn = self.pick([f"c + {s}", f"{s} + c", f"c + {s} * 0.5", f"c + {s} / 3", f"c - {s}", f"c * 0.5 + {s}", f"jnp.where(k > 1, c + {s}, c)", f"c + {s} + jnp.max(jnp.abs(c)) * 0.1",
                          f"(c + {s}) + jnp.sum(jnp.sin($0), axis={d})", f"c + ({s} - jnp.sum($0 * 0.1, axis={d}))", f"c + {s} * {s}", f"c + jnp.max(jnp.tanh($0 * k), axis={d})",
                          f"lax.fori_loop(0, 2, lambda i, c: c + {s}, c)", f"c + lax.fori_loop(0, 2, lambda i, b: b + {s}, c * 0)"])
        init = self.pick([f"jnp.sum($0 * 0, axis={d})", f"jnp.take($0, 0, axis={d})", f"jnp.sum($0, axis={d})"])
        out = self.pick(["None", "jnp.sum(c)", s])
        end = "" if out == "None" else " + jnp.sum(r[1], 0)"
        return self.step("approx", f"(lambda r: (r[0]{end}).astype($0.dtype))(lax.scan(lambda c, k: (({turn}).astype($0.dtype), {out}), ({init}).astype($0.dtype), jnp.arange({t}).astype($0.dtype)))", x)

    # --- parts of models

    def norm(self, x=None):
        x = x or self.val(lambda v: v.kind == "f" and v.rank and v.size and v.dtype not in SMALL)
        axes = tuple(sorted(self.rng.choice(x.rank, size=self.int(1, x.rank + 1), replace=False).tolist()))
        x = self.step("move", f"jnp.transpose($0, {tuple(int(p) for p in self.rng.permutation(x.rank))})", x) if x.rank > 1 and self.odds(0.4) else x
        t = self.pick(["$0 * lax.rsqrt(jnp.mean(jnp.square($0), %s, keepdims=True) + 1)", "jax.nn.softmax($0, axis=%s)", "jax.nn.log_softmax($0, axis=%s)",
                       "($0 - jnp.mean($0, %s, keepdims=True)) / jnp.sqrt(jnp.var($0, %s, keepdims=True) + 1)", "$0 / (1 + jnp.sqrt(jnp.sum($0 * $0, %s, keepdims=True)))",
                       "$0 / (1 + jnp.max(jnp.abs($0), %s, keepdims=True))", "jax.nn.standardize($0, axis=%s, epsilon=1.)"])
        return self.step("approx", "(" + t.replace("%s", str(axes)) + ").astype($0.dtype)", x)

    def template(self):
        return getattr(self, self.pick(["lamb", "adafactor", "muon", "attention", "adam", "shampoo", "sgd_loop"]))()

    def weight(self, rank=2):
        c = [v for v in self.scope if v.dtype == "float32" and v.rank == rank and v.size > 1]
        w = self.pick(c) if c and self.odds(0.7) else self.input((self.pick(EXT[4:]), self.pick(EXT[4:])) if rank == 2 else None, "float32", "normal")
        if w.size > self.most * 2:
            raise Skip
        t = [v for v in self.scope if v.dtype == "float32" and v.shape == w.shape[::-1]]
        return w, (self.step("move", "$0.T", self.pick(t)) if t and self.odds(0.5) else self.step("move", "$0.T", self.input(w.shape[::-1], "float32", "normal")) if self.odds(0.5) else self.partner(w))

    def adam(self):
        w, g = self.weight()
        m = self.step("approx", "0.9 * $0 + 0.1 * $1", self.partner(w), g)
        v = self.step("approx", "0.99 * jnp.abs($0) + 0.01 * $1 * $1", self.partner(w), g)
        u = self.step("approx", "$0 / (jnp.sqrt($1) + 0.1)", m, v)
        self.step("approx", "$0 - 0.01 * ($1 + 0.1 * $0)", w, u)
        return w, u

    def lamb(self):
        w, u = self.adam()
        r = self.step("approx", self.pick(["jnp.linalg.norm($0)", "jnp.sqrt(jnp.sum($0 * $0, axis=1, keepdims=True))", "jnp.sqrt(jnp.sum($0 * $0, axis=0, keepdims=True))"]), u)
        n = self.step("approx", "jnp.linalg.norm($0)", w)
        return self.step("approx", "$0 - 0.1 * $1 * ($2 / (1 + $3))", w, u, n, r)

    def adafactor(self):
        w, g = self.weight()
        s = self.step("approx", "$0 * $0 + 1e-3", g)
        a = self.step("approx", f"jnp.mean($0, axis={self.pick([1, -1])})", s)
        b = self.step("approx", "jnp.mean($0, axis=0)", s)
        c = self.step("approx", "jnp.mean($0)", a)
        u = self.step("approx", "$0 * lax.rsqrt($1[:, None] * $2[None, :] / $3)", g, a, b, c)
        r = self.step("approx", "jnp.sqrt(jnp.mean(jnp.square($0)))", u)
        return self.step("approx", "$0 - 0.1 * $1 / jnp.maximum(1., $2)", w, u, r)

    def muon(self):
        w, g = self.weight()
        x = self.step("approx", "$0 / (jnp.linalg.norm($0) + 1e-3)", g)
        for _ in range(self.int(1, 3)):
            a = self.step("approx", "$0 @ $0.T" if x.shape[0] <= x.shape[1] else "$0.T @ $0", x)
            b = self.step("approx", "-1.5 * $0 + 0.5 * $0 @ $0", a)
            x = self.step("approx", "1.5 * $0 + $1 @ $0" if x.shape[0] <= x.shape[1] else "1.5 * $0 + $0 @ $1", x, b)
        return self.step("approx", "$0 - 0.02 * $1 * max($1.shape) ** 0.5", w, x)

    def shampoo(self):
        w, g = self.weight()
        a = self.step("approx", "$0 @ $0.T / $0.shape[1] + 0.1 * jnp.eye($0.shape[0])", g)
        return self.step("approx", "$0 - 0.1 * ($1 / (1 + jnp.trace($1))) @ $2", w, a, g)

    def attention(self):
        h, n, d = self.pick([1, 2, 3]), self.pick([4, 16, 32, 33, 64, 65]), self.pick([8, 16, 31, 64])
        dt = self.pick(["float32", "float32", "bfloat16"])
        q, k, v = [self.input((n, h, d), dt, "normal") for _ in range(3)]
        s = self.step("approx", f"jnp.einsum('qhd,khd->hqk', $0, $1) / {d ** 0.5:.3f}", q, k)
        if self.odds(0.6):
            s = self.step("approx", f"jnp.where(jnp.tril(jnp.ones(({n}, {n}), bool)), $0, {self.pick(['-1e9', '-jnp.inf'])}).astype($0.dtype)", s)
        p = self.step("approx", "jax.nn.softmax($0, axis=-1)", s)
        return self.step("approx", "jnp.einsum('hqk,khd->qhd', $0, $1)", p, v)

    def sgd_loop(self):
        w, g = self.weight()
        return self.step("approx", f"lax.fori_loop(0, {self.int(1, 4)}, lambda i, s: (s[0] - 0.1 * s[1] / (1 + jnp.linalg.norm(s[1])), 0.9 * s[1] + 0.1 * s[0]), ($0, $1))", w, g, outs=2)

    # --- sums of many

    def long(self):
        few = self.pick([1, 2, 3, 5, 16, 64, 2100])    # whole vectors of columns are added in another way than some, and those of long rows in a third
        n = self.pick({16: [100_000, 262_144], 64: [40_001, 100_000], 2100: [130, 700]}.get(few, [10_000, 40_001, 100_000, 262_144, 500_000]))
        x = self.input((n, few) if few > 5 else self.pick([(n,), (n, few), (few, n), (n // few, few, 3)]), self.pick(["float32"] * 4 + ["bfloat16"]), "unit")
        self.most = 2_000_000
        self.palette = [1, 2, 3]
        big = x.shape.index(max(x.shape))
        f = self.pick(["sum", "sum", "sumsq", "mean", "var", "dot", "dot2", "window", "cumsum", "norm", "segment", "all", "lse", "softmax", "standard", "scan"])
        if few > n:
            big, f = 0, self.pick(["sum", "sum", "sumsq", "mean", "var", "norm", "lse", "standard"])
        if f in ("var", "norm", "lse", "softmax", "standard") and self.odds(0.5):        # computed once, and read in each pass
            x = self.step("approx", self.pick(["jnp.tanh(jnp.log($0 * $0 + 1))", "jnp.sin($0) * jax.nn.gelu($0) * 0.5", "jnp.log1p(jnp.exp($0)) * 0.5 - $0"]), x)
        if f in ("window", "cumsum") and x.dtype != "float32":
            f = "sum"
        if f == "dot":
            y = self.input(self.pick([(max(x.shape), few), (few, max(x.shape)), (max(x.shape),)]), x.dtype, "unit")
            return self.step("approx", f"lax.dot_general($0, $1, ((({big},), ({y.shape.index(max(y.shape))},)), ((), ())), preferred_element_type=jnp.float32)", x, y)
        if f == "dot2":
            return self.step("approx", f"lax.dot_general($0, $0, ((({big},), ({big},)), ((), ())), preferred_element_type=jnp.float32)", x)
        if f == "window":
            return self.step("approx", f"lax.reduce_window($0, 0., lax.add, {tuple(d if k == big else 1 for k, d in enumerate(x.shape))}, {(1,) * x.rank}, 'VALID')", x)
        if f == "segment":
            return self.step("approx", f"jax.ops.segment_sum(jnp.moveaxis($0, {big}, 0).astype(jnp.float32), jnp.arange({max(x.shape)}) % 3, 3)", x)
        t = {"sum": f"jnp.sum($0, {big})", "sumsq": f"jnp.sum($0.astype(jnp.float32) ** 2, {big})", "mean": f"jnp.mean($0, {big})", "var": f"jnp.var($0, {big})", "cumsum": f"lax.cumsum($0, {big})",
             "norm": "jnp.sqrt(jnp.sum($0 * $0))", "all": "jnp.sum($0)", "lse": f"jax.nn.logsumexp($0, {big})", "softmax": f"jax.nn.softmax($0, {big})",
             "standard": f"($0 - jnp.mean($0, {big}, keepdims=True)) / jnp.sqrt(jnp.var($0, {big}, keepdims=True) + 1)", "scan": f"jnp.sum(jnp.moveaxis($0, {big}, 0) * 0.5, 0)"}[f]
        return self.step("approx", t, x)

    # --- linear algebra, of small and of empty matrices

    def linalg(self):
        n, m = self.pick([0, 1, 2, 3, 5, 8, 16, 33]), self.pick([0, 1, 3, 7, 32])
        batch = self.pick([(), (), (2,), (0,), (3, 1)])
        dt = self.pick(["float32", "float32", "complex64"])
        a = self.input(batch + (n, n), dt, "normal")
        b = self.input(batch + (n, m), dt, "normal")
        spd = self.step("approx", f"$0 @ jnp.conj(jnp.swapaxes($0, -1, -2)) + {n + 1} * jnp.eye({n}, dtype=$0.dtype)", a)
        well = self.step("approx", f"$0 + {4 * n + 1} * jnp.eye({n}, dtype=$0.dtype)", a)
        for _ in range(self.int(1, 4)):
            t = self.pick(["s jnp.linalg.cholesky($0)", "w jnp.linalg.inv($0)", "w jnp.linalg.det($0) / %g" % (4.0 * n + 1) ** n, "w jnp.linalg.slogdet($0)[1]", "s jnp.linalg.eigvalsh($0)", "b jnp.linalg.svd($0, compute_uv=False)",
                           "b jnp.abs(jnp.linalg.qr($0)[1])", "s lax.linalg.triangular_solve($0, $1, left_side=True, lower=True)", "w jnp.linalg.solve($0, $1)", "b jnp.linalg.qr($0)[0] @ jnp.linalg.qr($0)[1]",
                           "s jnp.linalg.eigh($0)[0]", "w jax.scipy.linalg.lu($0)[2]", "s jax.scipy.linalg.cho_solve((jnp.linalg.cholesky($0), True), $1)", "b jnp.linalg.pinv($0).sum() * 0", "b jnp.linalg.matrix_rank($0)",
                           "w jnp.sort(jnp.abs(jnp.linalg.eigvals($0)))", "w jnp.linalg.matrix_power($0 / 9, 3)", "s lax.linalg.tridiagonal($0)[1] * 0"])
            which, t = t.split(" ", 1)
            try:
                self.step("approx", t, {"s": spd, "w": well, "b": b}[which], *([b] if "$1" in t else []))
            except Skip:
                pass

    # --- communication, written by hand

    def after(self):
        """A sum over devices and what reads it next, element by element, row by row or in another order; what that makes is read, too."""
        n, x = self.devices, self.val(lambda v: v.kind == "f" and v.rank and v.size and v.dtype not in SMALL)
        part = x.shape[0] % n == 0 and self.odds(0.3)
        s = self.step(f"sum:{n}", "lax.psum_scatter($0, 'd', scatter_dimension=0, tiled=True)" if part else "lax.psum($0, 'd')", x)
        for _ in range(self.pick([1, 1, 2, 3, 4])):
            f = self.pick(["residual", "residual", "scale", "step", "cast", "rows", "rows", "norm", "turned", "stats", "again"])
            if f == "residual":
                h = self.step("approx", "$0 + $1", self.partner(s), s)
                s = h if self.odds(0.6) else s
            elif f == "scale":
                self.step("approx", self.pick([f"$0 * {1 / n}", "$0 * 0.25 + 1", "jnp.tanh($0)", "jnp.maximum($0, 0)"]), s)
            elif f == "step":
                self.step("approx", "$0 - 0.25 * $1" if s.shape != x.shape or self.odds(0.5) else "$0 * 0.5 - 0.125 * $1", x if s.shape == x.shape and self.odds(0.6) else self.partner(s), s)
            elif f == "cast":
                s = self.step("approx", f"$0.astype(jnp.{self.pick(['bfloat16', 'float32', 'float16'])})", s)
            elif f == "rows":
                g = self.input(s.shape[-1:], s.dtype, "normal")
                y = self.step("approx", "($0 * lax.rsqrt(jnp.mean(jnp.square($0.astype(jnp.float32)), -1, keepdims=True) + 1e-3).astype($0.dtype)) * $1", s, g)
                s = y if self.odds(0.3) else s
            elif f == "norm":
                self.norm(s)
            elif f == "turned":
                self.step("approx", self.pick(["$0.T * 0.5", "$0[::-1] + $0", "jnp.roll($0, 1, 0) * 2", "$0 - $0[:1]"]), s)
            elif f == "stats":
                self.step("approx", self.pick(["jnp.mean(jnp.square($0), -1)", "jnp.max(jnp.abs($0), -1, keepdims=True)", "jnp.mean($0, 0)"]), s)
            elif s.shape == x.shape:
                s = self.step(f"sum:{n}", f"lax.psum($0 * {1 / n}, 'd')", s)
        return s

    def coll(self):
        n, x = self.devices, self.val()
        f = self.pick(["psum", "psum", "pmax", "ppermute", "ppermute", "all_gather", "psum_scatter", "all_to_all", "ragged", "ragged", "index", "pmean", "group", "open"])
        a = self.int(0, x.rank)
        div = [k for k, d in enumerate(x.shape) if d % n == 0 and d]
        if f in ("psum", "group") and x.kind in "b" or f == "pmax" and x.kind in "bc" or f == "pmean" and x.kind not in "fc" or f in ("psum_scatter",) and x.kind == "b":
            raise Skip
        ring = self.links() if self.odds(0.5) else [(k, int(p)) for k, p in enumerate(self.rng.permutation(n))]
        lat = f"sum:{n}"
        if f == "psum":
            return self.step(lat, "lax.psum($0, 'd')", x)
        if f == "group":
            return self.step(lat, f"lax.psum($0, 'd', axis_index_groups={[list(range(n // 2)), list(range(n // 2, n))]})", x)
        if f == "pmax":
            return self.step("pure", "lax.pmax($0, 'd')", x)
        if f == "pmean":
            return self.step("approx", "lax.pmean($0, 'd').astype($0.dtype)", x)
        if f in ("ppermute", "open"):
            return self.step("move", f"lax.ppermute($0, 'd', {ring[f == 'open':]})", x)
        if f == "index":
            return self.step("sum:9", "$0 + lax.axis_index('d').astype($0.dtype)", x) if x.kind == "i" else self.step("move", "lax.axis_index('d')")
        if f == "ragged":
            if not x.rank:
                raise Skip
            rows = [v for v in self.scope if v.dtype == x.dtype and v.rank == x.rank and v.shape[1:] == x.shape[1:]]
            y = self.pick(rows) if self.odds(0.6) else self.step("move", f"jnp.zeros(({self.pick(self.palette)}, *$0.shape[1:]), $0.dtype)", x)
            return self.step("move", f"ragged($0, $1, {self.int(0, 1 << 30)}, {n})", x, y)
        if f == "all_gather":
            if not x.rank:
                raise Skip
            return self.step("move", f"lax.all_gather($0, 'd', axis={a}, tiled={self.odds(0.5)})", x)
        if not div:
            raise Skip
        if f == "psum_scatter":
            return self.step(lat, f"lax.psum_scatter($0, 'd', scatter_dimension={self.pick(div)}, tiled=True)", x)
        return self.step("move", f"lax.all_to_all($0, 'd', {self.pick(div)}, {self.int(0, x.rank)}, tiled=True)", x)
