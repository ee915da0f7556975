"""Random programs of what goes round: loops with cases and permutes, and attentions whose keys or queries are gathered.  Compiled, they give what the oracle gives.

    python tests/jax/random_turns.py [--seed S] [--count 100 | --seconds 60] [--how loops,rings] [--keep FOLDER]

They are programs of a device (docs/ir.md), since StableHLO has no attention: no JAX here.  A seed is a program; each is run as for one host and for several.
Its race check is made as well (RONDO_CHECK=1).  What fails is printed, and kept in the folder.
"""
import argparse
import os
import pathlib
import random
import re
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).parent
RONDO = pathlib.Path(os.environ.get("RONDO_LIBRARY", HERE.parents[1] / "build" / "librondo.so")).parent / "rondo"
TOLERANCE = {"bf16": 3e-2, "f32": 2e-4, "f64": 2e-4}


def words(x):
    return ",".join(map(str, x))


def shape(dtype, *dim):
    return f"{dtype}[{words(dim)}]"


def rows(groups):
    return "[" + ",".join(f"[{words(g)}]" for g in groups) + "]"


class Fn:
    """A function that is being written; values are names, and know their types."""

    def __init__(self, module, name, params):
        self.module, self.name, self.lines, self.type = module, name, [], {}
        self.params = [self.value(t) for t in params]

    def value(self, t):
        v = f"%{len(self.type) + 1}"
        self.type[v] = t
        return v

    def ops(self, text, *types):
        out = [self.value(t) for t in types]
        self.lines.append(f"  {', '.join(out)} = {text} : {', '.join(types)}")
        return out

    def op(self, text, t):
        return self.ops(text, t)[0]

    def end(self, *results):
        params = ", ".join(f"{v}: {self.type[v]}" for v in self.params)
        self.module.append("\n".join([f"fn @{self.name}({params}) -> ({', '.join(self.type[v] for v in results)}) {{", *self.lines, f"  return {', '.join(results)}", "}", ""]))
        return self.name


def own(f, t):
    """A parameter's values, other ones on each device: f32."""
    if not hasattr(f, "id"):
        f.id = f.op(f"convert {f.op('partition_id', 'u32[]')}", "f32[]")
    x = f.op(f"add {f.param(t)}, {f.op(f'broadcast {f.id} dims=[]', t)}", t)
    return f.op(f"sine {x}", t)


class Main(Fn):
    def __init__(self, module):
        super().__init__(module, "main", [])

    def param(self, t):
        """Parameters are numbered when it ends."""
        v = f"%p{len(self.params)}"
        self.params.append(v)
        self.type[v] = t
        return v

    def value(self, t):
        v = f"%v{len(self.type)}"
        self.type[v] = t
        return v

    def end(self, *results):
        super().end(*results)
        body = [re.sub(r"^  (.*?) = .*", r"\1", line).split(", ") for line in self.lines]
        number = {v: f"%{i + 1}" for i, v in enumerate(self.params + [v for out in body for v in out])}
        self.module[-1] = re.sub(r"%[pv]\d+", lambda m: number[m[0]], self.module[-1])

    def shown(self, devices, *values):
        """The values of all devices, which all devices have."""
        out = []
        for v in values:
            dim = [int(x) for x in re.search(r"\[(.*)\]", self.type[v])[1].split(",")]
            v = self.op(f"convert {v}", shape("f32", *dim)) if not self.type[v].startswith("f32") else v
            out.append(self.op(f"all_gather {v} dim=0 group={rows([range(devices)])}", shape("f32", devices * dim[0], *dim[1:])))
        self.end(*out)


# --- loops


class Loops:
    def __init__(self, seed):
        self.rng = r = random.Random(seed)
        self.devices, self.dtype, self.module = r.choice([2, 2, 3, 4, 4, 5]), "f32", []
        self.dim = r.choice([(8, 16), (32, 16), (128, 64), (64, 64)])
        self.ring, self.step, self.names = r.random() < 0.7, r.choice([1, 1, self.devices - 1]), 0
        self.t, self.turned = shape("f32", *self.dim), shape("f32", *self.dim[::-1])
        f = Main(self.module)
        values = [own(f, self.t) for _ in range(3)]
        made = [v for _ in range(r.randint(1, 2)) for v in self.loop(f, values, 0)]
        f.shown(self.devices, *r.sample(made, min(len(made), r.randint(1, 3))))
        self.hosts = {1, self.devices} if self.devices in (2, 4) else {1}

    def name(self, kind):
        self.names += 1
        return f"{kind}{self.names}"

    def permute(self, f, x, on=False):
        r, n = self.rng, self.devices
        pairs = [(i, (i + self.step) % n) for i in range(n)]
        if not on and r.random() < 0.4:
            pairs = list(zip(range(n), r.sample(range(n), n)))
        if not on and r.random() < 0.15:
            pairs = r.sample(pairs, r.randint(1, n))
        return f.op(f"collective_permute {x} pairs=[{words(p for pair in pairs for p in pair)}]", f.type[x])

    def ragged(self, f, x, y):
        """Rows of x of all devices, or of those in one group, over y: of some numbers that are the same everywhere, and the number of the device."""
        r, n = self.rng, self.devices
        group = rows([range(n)] if n % 2 or r.random() < 0.6 else [range(0, n, 2), range(1, n, 2)])
        k = n * r.choice([1, 1, 2, 3])
        most = self.dim[0] + 2
        all = f.op(f"constant data=[{words(r.randint(-2, most) if j % 3 < 2 else r.randint(-1, most // 2) for j in range(3 * n * k))}]", f"i64[{n},{k},3]")
        first = f.op(f"convert {f.op('partition_id', 'u32[]')}", "i64[]")
        zero = f.op("constant data=0", "i64[]")
        own = f.op(f"dynamic_slice {all}, {first}, {zero}, {zero} size=[1,{k},3]", f"i64[1,{k},3]")
        return f.op(f"ragged_all_to_all {x}, {y}, {f.op(f'reshape {own}', f'i64[{k},3]')} group={group}", self.t)

    def mixed(self, f, x, y):
        if self.rng.random() < 0.25:
            return self.ragged(f, x, y)
        return f.op(f"sine {f.op(f'add {x}, {y}', self.t)}", self.t)

    def branch(self, nin, nout):
        r, f = self.rng, Fn(self.module, self.name("branch"), [self.t] * nin)
        kind, out = r.random() * (0.75 if self.ring else 1), []
        for k in range(nout):
            x = f.params[k] if nin == nout and r.random() < 0.8 else r.choice(f.params)
            out.append(x if kind < 0.35 else self.permute(f, x) if kind < 0.75 else f.op("constant data=0", self.t) if kind < 0.8 else self.mixed(f, x, r.choice(f.params)))
        return f.end(*out)

    def index(self, f, counts, trip):
        r = self.rng
        at = r.choice(counts) if counts and r.random() < 0.3 else f.params[0]
        if not self.ring and r.random() < 0.4:
            return at
        how, n = r.choice([("eq", 0), ("ne", 0), ("lt", trip - 1), ("ge", 1), ("eq", trip - 1), ("le", trip), ("ne", trip - 2)])
        return f.op(f"convert {f.op(f'compare_{how} {at}, ' + f.op(f'constant data={n}', 'i32[]'), 'pred[]')}", "i32[]")

    def counted(self, f, trip):
        """A stack of numbers, one for each turn."""
        r = self.rng
        n = max(1, trip + r.choice([0, 0, 1]))
        t = f"i32[{n}]"
        kind = r.random()
        if kind < 0.3:
            return f.op(f"constant data=[{words(r.choice([0, 1]) for _ in range(n))}]", t)
        if kind < 0.5 and n % 2 == 0:
            x = f.op(f"reshape {f.op('iota dim=0', t)}", f"i32[2,{n // 2}]")
            return f.op(f"reshape {f.op(f'broadcast {x} dims=[1,0]', f'i32[{n // 2},2]')}", t)
        x = f.op("iota dim=0", t)
        return x if kind < 0.75 else f.op(f"reverse {x} dims=[0]", t)

    def loop(self, f, values, depth):
        r, n = self.rng, self.devices
        trip = r.choice([0, 1, 2, 3, 4, n - 1, n, n, n + 1])
        asks = r.random() < 0.15                         # a while, whose turns nobody counts
        ncarry, nconst, nin, nout = r.randint(1, 4), r.randint(0, 2), r.randint(0, 2), r.randint(0, 1) if trip else 0
        nin, nout = (0, 0) if asks else (nin, nout)
        rows_of = shape("f32", trip, *self.dim)
        operands = [r.choice(values) if r.random() < 0.7 else f.op(f"constant data={r.choice([0, 0, 1])}", self.t) for _ in range(ncarry)]
        operands += [r.choice(values) for _ in range(nconst)] + [self.counted(f, trip) for _ in range(nin)] + [f.op("constant data=0", rows_of) for _ in range(nout)]
        role = ["carry"] * ncarry + ["const"] * nconst + [r.choice(["in", "in_rev"]) for _ in range(nin)] + [r.choice(["out", "out_rev"]) for _ in range(nout)]
        turns = f"trip={trip}"
        if asks:
            operands, role = operands + [f.op("constant data=1", "i32[]")], role + ["carry"]
            c = Fn(self.module, self.name("asks"), [self.t] * (ncarry + nconst) + ["i32[]"])
            turns = "trip=-1 cond=@" + c.end(c.op(f"compare_lt {c.params[-1]}, " + c.op(f"constant data={1 << trip}", "i32[]"), "pred[]"))
        g = Fn(self.module, self.name("body"), ["i32[]"] + [self.t] * (ncarry + nconst) + ["i32[]"] * (nin + asks))
        old, counts = g.params[1:1 + ncarry + nconst], g.params[1 + ncarry + nconst:]
        new, on = list(old), {}
        for k in range(ncarry):
            if r.random() < 0.15:                        # goes on by one link or several, perhaps behind a ring of its own
                on[k] = r.choice(self.loop(g, [old[k]], depth + 1)) if depth < 2 and r.random() < 0.3 else old[k]
                for _ in range(r.randint(1, 3)):
                    on[k] = self.permute(g, on[k], on=True)
                    new += [on[k]] * (r.random() < 0.5)
        for _ in range(r.randint(1, 6)):
            kind, x = r.random(), r.choice(new)
            if kind < 0.4:
                nargs, nmade = r.choice([(1, 1), (1, 1), (2, 2), (2, 2), (2, 1)])
                branches = [self.branch(nargs, nmade) for _ in range(r.choice([2, 2, 2, 3]))]
                args = [r.choice(old if r.random() < 0.6 else new) for _ in range(nargs)]
                new += g.ops(f"case {self.index(g, counts, trip)}, {', '.join(args)} branch=[{words('@' + b for b in branches)}]", *[self.t] * nmade)
            elif kind < 0.6:
                new.append(self.permute(g, x))
            elif kind < 0.75:
                y = g.op(f"transpose {x} perm=[1,0]", self.turned)
                y = self.permute(g, y) if r.random() < 0.7 else y
                y = g.op(f"all_reduce {y} group={rows([range(n)])} redop=add", self.turned) if r.random() < 0.5 else y
                new.append(g.op(f"sine {g.op(f'transpose {y} perm=[1,0]', self.t)}", self.t))
            elif kind < 0.85 and depth < 2:
                new += self.loop(g, new, depth + 1)
            else:
                new.append(self.mixed(g, x, r.choice(new)))
        g.end(*[on[k] if k in on else r.choice(new[ncarry:] or new) if r.random() < 0.8 else r.choice(new) for k in range(ncarry)], *[g.op(f"add {x}, {x}", "i32[]") for x in counts * asks],
              *[r.choice(new) for _ in range(nout)])
        got = []
        for _ in range(r.choice([1, 1, 1, 2])):          # loops may share a body
            made = f.ops(f"loop {', '.join(operands)} {turns} body=@{g.name} role=[{words(role)}]", *[self.t] * ncarry, *["i32[]"] * asks, *[rows_of] * nout)
            got += made[:ncarry]
            for x in made[ncarry + asks:]:
                at = r.randrange(trip)
                x = f.op(f"slice {x} start=[{at},0,0] limit=[{at + 1},{self.dim[0]},{self.dim[1]}] stride=[1,1,1]", shape("f32", 1, *self.dim))
                got.append(f.op(f"reshape {x}", self.t))
            operands[:ncarry] = [r.choice([a, b]) for a, b in zip(operands, made[:ncarry])]
        return [x for x in got if r.random() < 0.7] or got[:1]


# --- rings


class Rings:
    """One attention or two of the same keys, a gradient, or both, with a mask by positions (a triangle, a window, either aside of the diagonal) and a bias; gathered as
    they are, through views, for others as well."""

    def __init__(self, seed):
        self.rng = r = random.Random(seed)
        n, hosts = r.choice([(2, 2), (3, 3), (4, 1), (4, 2), (4, 4), (5, 1), (6, 2), (6, 3), (8, 2), (8, 4)])
        self.devices, self.hosts, self.module, self.dtype = n, {hosts}, [], r.choice(["f32", "f32", "bf16", "f64"])
        self.group = self.rows(n, n // hosts)
        self.acc = "f64" if self.dtype == "f64" else "f32"
        self.f = f = Main(self.module)
        kind, members = r.choice(["forward", "forward", "keys", "queries", "queries"]), len(self.group[0])
        batch, heads, t, s, (d, e) = r.choice([1, 2, n // hosts, 2 * hosts, hosts, 3]), r.choice([1, 2]), r.choice([16, 48, 256, 256, 512]), r.choice([16, 48, 64, 256]), r.choice([(8, 8), (16, 16), (8, 16)])
        self.q, self.k, self.v, self.l = (batch, heads, t, d), (batch, s, d), (batch, s, e), (batch, heads, t)
        o, queries = (batch, heads, t, e), kind == "queries"
        q, k, v = (self.own(self.dtype, x) for x in (self.q, self.k, self.v))
        v = k if d == e and r.random() < 0.2 else v
        if queries:
            q, t = self.gathered(q, 2), t * members
        else:
            one = r.random()                         # one array, or both in one, that is gathered
            if one < 0.15:
                k, v = self.parts(self.gathered(self.own(self.dtype, (batch, s, d + e)), 1), d)
            else:
                same, k = v is k and one < 0.6, self.gathered(k, 1)
                v = k if same else self.gathered(v, 1)
            s *= members
        self.full = batch, heads, t, s
        more, grad = self.scores(queries), kind in ("keys", "queries")
        score = self.score(more, grad)
        shown = []
        if not queries:
            shown += [k] * (r.random() < 0.1)
        shown += more[-1:] * (r.random() < 0.15)
        for _ in range(0 if queries else 1 + (r.random() < 0.2) if not grad else r.choice([0, 1])):
            a = self.score(more, False) if grad else score
            apart = self.dtype == "bf16" and r.random() < 0.4
            made = f.ops(f"attention {', '.join([q, k, v, *more])} fn=@{a}", shape("f32" if apart else self.dtype, batch, heads, t, e), shape(self.acc, batch, heads, t))[0]
            shown += [self.two_parts(made) if apart else made]
            q = q if grad else self.own(self.dtype, self.q)
        if grad:
            do, l, delta = self.own(self.dtype, o), self.own(self.acc, self.l), self.own(self.acc, self.l)
            if queries:
                do, l, delta = (self.gathered(x, 2) for x in (do, l, delta))
            to = r.choice([self.acc, self.dtype])
            made = f.ops(f"attention_grad {', '.join([q, k, v, l, do, delta, *more])} fn=@{score}", shape(to, batch, heads, t, d), shape(to, batch, s, d), shape(to, batch, s, e))
            shown += [self.scattered(made[0], 2), *made[1:]] if queries else [made[0], *(self.scattered(x, 1) for x in made[1:])]
        f.shown(n, *shown)

    def rows(self, n, host):
        """The order of devices, and perhaps two groups of them."""
        r, ids = self.rng, list(range(n))
        kind = r.random()
        if kind < 0.2:
            hosts = r.sample(range(n // host), n // host)
            ids = [h * host + k for h in hosts for k in r.sample(range(host), host)]
        elif kind < 0.3:
            ids = ids[::2] + ids[1::2]
        elif kind < 0.35:
            ids = r.sample(ids, n)
        return [ids[:n // 2], ids[n // 2:]] if n % 2 == 0 and n > 2 and r.random() < 0.25 else [ids]

    def dims(self, x):
        return [int(v) for v in re.search(r"\[(.*)\]", self.f.type[x])[1].split(",")]

    def typed(self, x, dim):
        return shape(self.f.type[x].split("[")[0], *dim)

    def own(self, dtype, dim):
        x = own(self.f, shape("f32", *dim))
        return x if dtype == "f32" else self.f.op(f"convert {x}", shape(dtype, *dim))

    def moved(self, kind, x, dim, extra):
        """A collective along dim of x, perhaps between views."""
        r, f, way, n = self.rng, self.f, self.rng.random(), len(self.group[0])
        full = self.dims(x)
        size = lambda d, at: [v if i != at else v * n if kind == "all_gather" else v // n for i, v in enumerate(d)]
        text = lambda v, at: f.op(f"{kind} {v} dim={at} group={rows(self.group)}{extra}", self.typed(x, size(self.dims(v), at)))
        if way < 0.6:
            return text(x, dim)
        if way < 0.8:
            p = r.sample(range(len(full)), len(full))
            y = text(f.op(f"transpose {x} perm=[{words(p)}]", self.typed(x, [full[i] for i in p])), p.index(dim))
            back = [p.index(i) for i in range(len(full))]
            return f.op(f"transpose {y} perm=[{words(back)}]", self.typed(x, size(full, dim)))
        y = text(f.op(f"reshape {x}", self.typed(x, [1, *full])), dim + 1)
        return f.op(f"reshape {y}", self.typed(x, size(full, dim)))

    def gathered(self, x, dim):
        return self.moved("all_gather", x, dim, "")

    def parts(self, x, at):
        """The first ones along the last dimension, and the others."""
        *dim, n = self.dims(x)
        cut = lambda a, b: self.f.op(f"slice {x} start=[{words([0] * len(dim) + [a])}] limit=[{words(dim + [b])}] stride=[{words([1] * len(dim) + [1])}]", self.typed(x, [*dim, b - a]))
        return cut(0, at), cut(at, n)

    def two_parts(self, o):
        """What a gradient has of an o of f32: a bf16 and a byte; put together again."""
        f, dim = self.f, self.dims(o)
        op = lambda text, dtype: f.op(text, shape(dtype, *dim))
        number = lambda n: op(f"constant data={n}", "i32")
        high = op(f"convert {o}", "bf16")
        lacks = op(f"subtract {op(f'bitcast {o}', 'i32')}, {op('bitcast ' + op(f'convert {high}', 'f32'), 'i32')}", "i32")
        lacks = op(f"shift_right_arithmetic {lacks}, {number(8)}", "i32")
        lacks = op(f"convert {op(f'minimum {lacks}, {number(127)}', 'i32')}", "i8")
        high, low = f.ops(f"optimization_barrier {high}, {lacks}", shape("bf16", *dim), shape("i8", *dim))
        below = op(f"shift_left {op(f'convert {low}', 'i32')}, {number(8)}", "i32")
        whole = op(f"bitcast {op('add ' + op('bitcast ' + op(f'convert {high}', 'f32'), 'i32') + ', ' + below, 'i32')}", "f32")
        return whole

    def scattered(self, x, dim):
        return self.moved("reduce_scatter", x, dim, " redop=add")

    def scores(self, queries):
        """What scores are made from: positions of queries and of keys, a bias."""
        r, f, (batch, heads, t, s) = self.rng, self.f, self.full
        self.mask, self.bias, self.fill, more = self.edges(), r.random() < 0.3, r.choice(["-inf", "-inf", "-2.38e38", "-1e30"]), []
        if self.mask:
            types, moves = [f"i32[1,1,{t},1]", f"i32[1,1,1,{s}]"], 0 if queries else 1
            at = [f.op(f"iota dim={k + 2}", types[k]) for k in range(2)]
            x = self.placed(at[1 - moves], types[1 - moves])
            if r.random() < 0.3:                     # positions that are gathered, too
                dim = self.dims(at[moves])
                dim[2 + moves] //= len(self.group[0])
                y = f.op(f"iota dim={2 + moves}", shape("i32", *dim))
                at[moves] = self.gathered(self.placed(y, f.type[y]), 2 + moves)
            at[1 - moves] = x
            more += at
        if self.bias:
            part, dim = ((1, heads, self.q[2], 1), 2) if queries else ((batch, 1, 1, self.k[1]), 3)
            more.append(self.gathered(self.own("f32", part), dim) if r.random() < 0.5 else self.own("f32", (r.choice([1, batch]), heads, r.choice([1, t]), r.choice([1, s]))))
        return more

    def edges(self):
        """How far the key is behind the query, and before it, at most: nowhere, inside of blocks, at their ends, beyond all."""
        r, each = self.rng, (self.q[2], self.k[1])
        blocks = r.choice(each) * r.choice([1, 1, 2, len(self.group[0]) // len(self.hosts)])
        far = lambda: r.choice([0, 0, 1, r.randint(0, 2 * max(each)), blocks, blocks - 1, blocks + 1, 2 * blocks, -r.randint(1, max(each)), 1 << 20])
        kind = r.random()
        if kind > 0.9:
            return dict.fromkeys(("before", "behind"), abs(far()))
        return {} if kind < 0.3 else {"before": 0} if kind < 0.5 else {k: far() for k in r.choice([["before"], ["behind"], ["before", "behind"], ["before", "behind"]])}

    def placed(self, x, t):
        """Positions of a device, which are its number's."""
        f, len_of = self.f, max(self.dims(x))
        if self.rng.random() < 0.3:
            n = self.devices * len_of
            every = f.op(f"constant data=[{words(range(n))}]", f"i32[{n}]")
            of = f.op(f"dynamic_slice {every}, {self.first(len_of)} size=[{len_of}]", f"i32[{len_of}]")
            return f.op(f"reshape {of}", t)
        return f.op(f"add {x}, {f.op(f'broadcast {self.first(len_of)} dims=[]', t)}", t)

    def first(self, each):
        number = self.f.op(f"convert {self.f.op('partition_id', 'u32[]')}", "i32[]")
        return self.f.op(f"multiply {number}, {self.f.op(f'constant data={each}', 'i32[]')}", "i32[]")

    def keeps(self, f, t, s):
        """Is the key s one that the query t sees?"""
        keep, number = [], lambda n: f.op(f"constant data={n}", "i32[]")
        if len(self.mask) == 2 and self.mask["before"] == self.mask["behind"] and self.rng.random() < 0.7:
            apart = f.op(f"subtract {t}, {s}", "i32[]")
            return f.op(f"compare_le {f.op(f'abs {apart}', 'i32[]')}, {number(self.mask['before'])}", "pred[]")
        for k, n in self.mask.items():
            a, b = (s, t) if k == "before" else (t, s)
            way = self.rng.random()
            if way < 0.4:
                keep.append(f.op(f"compare_le {a}, {f.op(f'add {b}, {number(n)}', 'i32[]')}", "pred[]"))
            elif way < 0.8:
                keep.append(f.op(f"compare_lt {f.op(f'subtract {a}, {b}', 'i32[]')}, {number(n + 1)}", "pred[]"))
            else:
                less = f.op(f"subtract {a}, {number(n)}", "i32[]")
                keep.append(f.op(f"not {f.op(f'compare_gt {less}, {b}', 'pred[]')}", "pred[]"))
        return keep[0] if len(keep) == 1 else f.op(f"and {keep[0]}, {keep[1]}", "pred[]")

    def score(self, more, grad):
        f = Fn(self.module, f"score{len(self.module)}", [f"{self.acc}[]"] + [self.f.type[x].split("[")[0] + "[]" for x in more])
        one = f"{self.acc}[]"
        x, *more = f.params
        slope = f.op("constant data=0.25", one)
        x = f.op(f"multiply {x}, {slope}", one)
        if self.rng.random() < 0.2:
            x = f.op(f"add {x}, {f.op(f'tanh {x}', one)}", one) if self.rng.random() < 0.3 else f.op(f"tanh {x}", one)
        if self.bias:
            x = f.op(f"add {x}, {f.op(f'convert {more[-1]}', one) if self.acc != 'f32' else more[-1]}", one)
        if self.mask:
            keep = self.keeps(f, *more[:2])
            x = f.op(f"select {keep}, {x}, {f.op(f'constant data={self.fill}', one)}", one)
            slope = f.op(f"select {keep}, {slope}, {f.op('constant data=0', one)}", one)
        return f.end(*([x, slope] if grad else [x]))


HOW = {"loops": Loops, "rings": Rings}


def rondo(*args, attention="auto", road="auto"):
    done = subprocess.run([str(RONDO), *map(str, args)], capture_output=True, text=True, timeout=300, env={**os.environ, "RONDO_CHECK": "1", "RONDO_ATTENTION": attention, "RONDO_RING": road})
    return done.returncode, done.stdout + done.stderr + (f"ended by signal {-done.returncode}" if done.returncode < 0 else "")


def checked(how, seed, folder):
    """What is wrong, and by which roads that are asked for something goes round, or is exchanged, that was gathered."""
    p = HOW[how](seed)
    file, want = folder / f"{how}-{seed}.in", folder / f"{how}-{seed}.npz"
    file.write_text(f"module @m partitions={p.devices} replicas=1\n\n" + "\n".join(p.module[::-1]))
    wrong, round = [], set()
    small = {"attention": "auto" if seed % 4 == 0 else "on"}        # on: what is too small to gain goes round, too
    code, out = rondo("run", file, "--devices", p.devices, "--eval", "--out", want, "--quiet")
    if code:
        return [f"{how} {seed} is no program: {out}"], set()
    for hosts in sorted(p.hosts):
        for road in ("auto", "heads") if how == "rings" else ("auto",):
            if how == "rings":
                become = rondo("opt", file, "-p", "ring", "--devices", p.devices, "--hosts", hosts, **small, road=road)[1]
                round |= {road} if ("collective_permute" if road == "auto" else "all_to_all") in become else set()
                if road not in round and road == "heads":
                    break
            code, out = rondo("run", file, "--devices", p.devices, "--hosts", hosts, "--check", want, "--quiet", "--tol", TOLERANCE[p.dtype], **small, road=road)
            if code:
                wrong.append(f"{how} {seed}, {p.devices} devices, {hosts} hosts, {road}: {out}")
    want.unlink()
    if not wrong:
        file.unlink()
    return wrong, round


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--count", type=int, default=1 << 30)
    parse.add_argument("--seconds", type=float, default=60)
    parse.add_argument("--how", default="loops,rings")
    parse.add_argument("--keep", type=pathlib.Path)
    a = parse.parse_args()
    end, wrong, ran, rings = time.monotonic() + (a.seconds if a.count == 1 << 30 else 1e9), [], 0, {"auto": 0, "heads": 0}
    with tempfile.TemporaryDirectory() as d:
        folder = a.keep or pathlib.Path(d)
        folder.mkdir(exist_ok=True, parents=True)
        while ran < a.count and time.monotonic() < end:
            for how in a.how.split(","):
                w, round = checked(how, a.seed + ran, folder)
                wrong += w
                for road in round:
                    rings[road] += 1
                for line in w:
                    print(line, flush=True)
            ran += 1
    print(f"{ran} seeds from {a.seed}, {rings['auto']} rings, {rings['heads']} exchanges for heads, {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
