"""What a layer of a sharded Llama step sends, forward and backward: bytes into a device, by kind of collective, for layouts as MaxText and flax
users write them; for Rondo, for XLA:CPU, and the least that is known (Megatron-LM, ZeRO-3).
    bytes_moved.py [NAME ..]        the table; NAME: patterns of layouts, all if none is given
    bytes_moved.py --json [NAME ..] what the platform of JAX_PLATFORMS sends
    bytes_moved.py --values [NAME ..]  smaller ones are run in f64, on 1, 2, 4 and 8 devices
    bytes_moved.py --golden         bytes_moved.txt anew: the collectives of each layout's layer, and what XLA:CPU's sends
A layer's bytes are the difference between programs of 3 and of 2 layers: what comes before and after is no part of them."""
import collections
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys

N = 8
if __name__ == "__main__":
    os.environ.setdefault("RONDO_DEVICES", str(N))
    os.environ.setdefault("RONDO_CACHE", "")
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count={N}"
    sys.path[:0] = [str(pathlib.Path(__file__).parents[2] / "python"), str(pathlib.Path(__file__).parent / "discover")]

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import AxisType, NamedSharding as NS, PartitionSpec as P  # noqa: E402

# --- texts of programs --------------------------------------------------------------------

SIZE = {"c128": 16, "c64": 8, "f64": 8, "s64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "s8": 1, "u8": 1, "pred": 1}


def into(kind, devices, result):
    """Bytes that come into each device of a group, if each gives and gets what it must; result: bytes of what each has afterwards."""
    share = (devices - 1) / devices
    return {"all_reduce": 2 * share * result, "all_gather": share * result, "all_to_all": share * result,
            "reduce_scatter": (devices - 1) * result, "permute": result, "broadcast": result}[kind]


def into_boxes(v, operand):
    """The same of the boxes of an all_to_all: of the device that gets most."""
    rank, size, come = v[0], operand // int(np.prod(v[1:1 + v[0]])), collections.Counter()
    for r in range(1 + 2 * rank, len(v), 2 + 3 * rank):
        come[v[r]] += size * int(np.prod(v[r + 2 + 2 * rank:r + 2 + 3 * rank])) * (v[r] != v[r + 1])
    return float(max(come.values()))


def of_rondo(text):
    """Collectives of a compiled program: (kind, devices, bytes into each): how often."""
    group = {m[1]: int(m[2]) for m in re.finditer(r"^group (\d+) \d+ (\d+) ", text, re.M)}
    coll, sent = {}, collections.Counter()
    for m in re.finditer(r"^coll (\d+) (\w+) \w+ n (\d+) algo \S+ (?:pairs|group) (\d+)(?: pairs \d+)? redop \S+ outer (\d+) inner (\d+)(?: to \d+ (\d+)(?: boxes \[(.*?)\])?( slices)?)?", text, re.M):
        i, kind, n, g, outer, inner, result, boxes, slices = m.groups()
        k, b = 2 if kind == "permute" else group[g], int(n) * int(outer) * int(inner)
        coll[i] = kind, k, into(kind, k, b * k if kind in ("all_gather", "all_to_all") else b)
        if boxes:
            coll[i] = kind, k, into_boxes([int(n) for n in boxes.split(",")], int(inner))
        if slices:                           # data tell which rows come, of the operand's and the result's the fewer
            coll[i] = kind, k, min(float(inner), float(result))
    turns = []
    for line in text[text.index("\nrun {"):].splitlines():
        w = line.split()
        if w[:1] == ["}"] and turns:
            turns.pop()
            if w[-1] == "{":
                turns.append(1)
        elif w and w[-1] == "{":
            turns.append(int(w[3]) if w[0] == "loop" else 1)
        elif w[:1] == ["coll"] or (w[:1] == ["next"] and w[2] != "by"):      # what is read where it lies comes into the device as it is read
            sent[coll[w[1]]] += int(np.prod(turns))
    return sent


def of_xla(text):
    found, calls, entry, name = collections.defaultdict(list), collections.defaultdict(list), None, None
    for line in text.splitlines():
        m = re.match(r"(ENTRY )?%?([\w.-]+) \(.*\{$", line)
        if m:
            name, entry = m[2], m[2] if m[1] else entry
            continue
        m = re.search(r" (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute|while|conditional|call)\(", line)
        if not m:
            continue
        kind = m[1].replace("-", "_").replace("collective_", "")
        if kind in ("while", "conditional", "call"):
            turns = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
            for c in re.findall(r"(?:body|to_apply|true_computation|false_computation)=%([\w.-]+)|branch_computations=\{(.*?)\}", line):      # of a choice all, as in of_rondo
                calls[name] += [(b.strip(" %"), int(turns[1]) if turns else 1) for b in (c[0] or c[1]).split(",")]
            continue
        b = sum(SIZE[t] * int(np.prod([int(n) for n in d.split(",") if n])) for t, d in re.findall(r"(\w+)\[([\d,]*)\]", line[:m.start()].split(" = ")[1]))
        k = 2
        if kind != "permute":
            g = (re.search(r"replica_groups=\[\d+,(\d+)\]", line) or re.search(r"replica_groups=\{\{([\d,]+)\}", line)
                 or re.search(r"replica_groups=mesh(\[.*?\])(?:, device_ids=\([^{]*\))? ?(\{.*?\})", line))
            if g[0].startswith("replica_groups=["):
                k = int(g[1])
            elif g[0].startswith("replica_groups={"):
                k = len(g[1].split(","))
            else:
                size = dict(re.findall(r"'(\w+)'=(\d+)", g[1]))
                k = int(np.prod([int(part or size[a]) for a, part in re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", g[2])]))
        found[name].append((kind, k, into(kind, k, b)))
    sent = collections.Counter()

    def walk(name, turns):
        for c in found[name]:
            sent[c] += turns
        for c, n in calls[name]:
            walk(c, turns * n)
    walk(entry, 1)
    return sent


def collectives(compiled):
    text = compiled.as_text()
    return of_xla(text) if text.startswith("HloModule") else of_rondo(text)


# --- the model ------------------------------------------------------------------------------

def sizes(**kw):
    """Extents of the model, as names of this module.  C: tokens of a row that an expert takes, at most."""
    g = globals()
    g.update(kw)
    g["DH"] = D // H
    g["DENSE"] = {"n1": (D,), "q": (D, H, DH), "k": (D, K, DH), "v": (D, K, DH), "o": (H, DH, D), "n2": (D,), "g": (D, F), "u": (D, F), "w": (F, D)}
    g["SPARSE"] = {k: v for k, v in DENSE.items() if k not in "guw"} | {"r": (D, E), "g": (E, D, F // 4), "u": (E, D, F // 4), "w": (E, F // 4, D)}


sizes(B=16, S=1024, D=1024, H=8, K=8, F=4096, E=8, C=320)


def rms(x, g):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g


def dense(p, a, at):
    return at("ff", jax.nn.silu(at("ff", a @ p["g"])) * at("ff", a @ p["u"])) @ p["w"]


def sparse(p, a, at):
    """Two experts for each token, by products with their places (GShard)."""
    gate = jax.nn.softmax(a @ p["r"])
    top, who = lax.top_k(gate, 2)
    one = jax.nn.one_hot(who, E, dtype=a.dtype).sum(2)
    place = jnp.cumsum(one, 1) - one
    goes = one[..., None] * jax.nn.one_hot(place.astype(jnp.int32), C, dtype=a.dtype)
    x = at("experts", jnp.einsum("bsec,bsd->ebcd", goes, a))
    y = jax.nn.silu(jnp.einsum("ebcd,edf->ebcf", x, p["g"])) * jnp.einsum("ebcd,edf->ebcf", x, p["u"])
    y = at("experts", jnp.einsum("ebcf,efd->ebcd", y, p["w"]))
    return jnp.einsum("bsec,ebcd->bsd", goes * gate[..., None], y)


def layer(p, h, at):
    a = at("in", rms(h, p["n1"]))
    q, k, v = (at("heads", jnp.einsum("bsd,dhe->bshe", a, p[n])) for n in "qkv")
    s = jnp.einsum("bshe,bthe->bhst", q, k) / np.sqrt(q.shape[-1])
    s = jnp.where(jnp.tril(jnp.ones((s.shape[-2], s.shape[-1]), bool)), s, -1e30)
    o = at("heads", jnp.einsum("bhst,bthe->bshe", jax.nn.softmax(s, -1), v))
    h = at("out", h + jnp.einsum("bshe,hed->bsd", o, p["o"]))
    a = at("in", rms(h, p["n2"]))
    return at("out", h + (sparse if "r" in p else dense)(p, a, at))


def model(layers, at, scan, again=False):
    """A step of gradient descent through the layers, with SGD: the arguments are stacked for a scan.  again: layers are made again for their gradients."""
    def one(q, h):
        return layer(q, h, at)
    one = jax.checkpoint(one) if again else one

    def loss(p, x, y):
        h = at("out", x)
        if scan:
            h = lax.scan(lambda h, q: (one(q, h), None), h, p)[0]
        else:
            for q in p:
                h = one(q, h)
        return ((h - y) ** 2).mean()

    def step(p, x, y):
        l, g = jax.value_and_grad(loss)(p, x, y)
        return l, jax.tree.map(lambda p, g: p - 0.1 * g, p, g)
    return step


# --- layouts ----------------------------------------------------------------------------------

class Layout:
    """axes: of the mesh; p: weights' specs; x: of the layers' input and output; at: of activations, where the user says so."""
    def __init__(self, axes, x, p, at, sparse=False, least=None):
        self.axes, self.x, self.sparse, self.least = axes, x, sparse, least
        self.p = {k: p.get(k, P()) for k in (SPARSE if sparse else DENSE)}
        self.at = at

    def mesh(self, devices=N):
        """Of fewer devices: axes are shorter, the first ones first."""
        size = list(self.axes.values())
        for i in range(len(size)):
            while size[i] > 1 and np.prod(size) > devices:
                size[i] //= 2
        return jax.make_mesh(size, tuple(self.axes), devices=jax.devices()[:devices], axis_types=(AxisType.Auto,) * len(size))

    def step(self, layers, scan, constrained, again=False, devices=N):
        m = self.mesh(devices)

        def at(what, x):
            return lax.with_sharding_constraint(x, NS(m, self.at[what])) if constrained and what in self.at else x
        p = {k: NS(m, P(None, *v) if scan else v) for k, v in self.p.items()}
        shard = (p if scan else [p] * layers, NS(m, self.x), NS(m, self.x))
        return jax.jit(model(layers, at, scan, again), in_shardings=shard)

    def args(self, layers, scan, like=lambda s: jax.ShapeDtypeStruct(s, jnp.float32)):
        shapes = SPARSE if self.sparse else DENSE
        p = {k: like((layers, *v)) for k, v in shapes.items()} if scan else [{k: like(v) for k, v in shapes.items()} for _ in range(layers)]
        return p, like((B, S, D)), like((B, S, D))


def layout(axes, batch=None, fsdp=None, tensor=None, seq=None, context=None, expert=None, **kw):
    """Specs by what the axes are for, as rules of logical axes give them.  seq: of rows between layers' halves; context: of rows all the way."""
    rows = (batch,) if isinstance(batch, str) else batch
    p = {k: P(fsdp, tensor, None) for k in "qkv"} | {"o": P(tensor, None, fsdp)}
    p |= {"g": P(expert, fsdp, tensor), "u": P(expert, fsdp, tensor), "w": P(expert, tensor, fsdp)} if expert else \
        {"g": P(fsdp, tensor), "u": P(fsdp, tensor), "w": P(tensor, fsdp)}
    groups = tuple(a for a in rows or () if a != expert) or None  # rows that lie on the axis of the experts go to them
    at = {"in": P(rows, context, None), "out": P(rows, seq or context, None), "heads": P(rows, context, tensor, None), "ff": P(rows, context, tensor),
          "experts": P(expert, groups, None, None)}
    return Layout(axes, sparse=bool(expert), x=P(rows, seq or context, None), p=p, at=at, **kw)


def bytes_of(shapes, names):
    return 4 * sum(int(np.prod(shapes[n])) for n in names)


A, WEIGHTS, NORMS = 4 * B * S * D, bytes_of(DENSE, "qkvoguw"), bytes_of(DENSE, ("n1", "n2"))
SHARE = (N - 1) / N
LAYOUTS = {
    # gradients are summed
    "data": layout({"x": 8}, batch="x", least=2 * SHARE * (WEIGHTS + NORMS)),
    # weights are gathered twice, their gradients reduced and scattered
    "fsdp": layout({"x": 8}, batch="x", fsdp="x", least=3 * SHARE * WEIGHTS + 2 * SHARE * NORMS),
    # four sums of activations
    "tensor": layout({"x": 8}, tensor="x", least=4 * 2 * SHARE * A),
    # each of them in its two halves; Megatron-LM gathers again what gradients of weights need
    "tensor_sequence": layout({"x": 8}, tensor="x", seq="x", least=(4 * 2 + 2) * SHARE * A + 2 * SHARE * NORMS),
    # tokens go to experts and back, and so do their gradients; what all experts share is as data
    "expert": layout({"x": 8}, batch="x", expert="x",
                     least=4 * SHARE * 4 * B * C * E * D / N + 2 * SHARE * bytes_of(SPARSE, ("q", "k", "v", "o", "n1", "n2", "r"))),
    # keys and values are gathered, and again for the gradient, and theirs reduced and scattered; weights are as data
    "context": layout({"x": 8}, context="x", least=6 * SHARE * A + 2 * SHARE * (WEIGHTS + NORMS)),
    "data_fsdp": layout({"d": 2, "f": 4}, batch=("d", "f"), fsdp="f"),
    "data_tensor": layout({"d": 4, "t": 2}, batch="d", tensor="t"),
    "fsdp_tensor": layout({"f": 4, "t": 2}, batch="f", fsdp="f", tensor="t"),
    "data_fsdp_tensor": layout({"d": 2, "f": 2, "t": 2}, batch=("d", "f"), fsdp="f", tensor="t"),
    "fsdp_tensor_sequence": layout({"f": 2, "t": 4}, batch="f", fsdp="f", tensor="t", seq="t"),
    "data_expert": layout({"d": 2, "e": 4}, batch=("d", "e"), expert="e"),
    "context_tensor": layout({"c": 4, "t": 2}, context="c", tensor="t"),
    "fsdp_context_tensor": layout({"f": 2, "c": 2, "t": 2}, batch="f", fsdp="f", context="c", tensor="t"),
    "expert_tensor": layout({"e": 4, "t": 2}, batch="e", expert="e", tensor="t"),
    "fsdp_expert": layout({"f": 2, "e": 4}, batch=("f", "e"), fsdp="f", expert="e"),
}


class Pipeline:
    """Stages by hand: each device has a part of the layers, and rows go round in 8 pieces.  What is given is for one piece."""
    least = (2 * N - 1) / N * 2 * (A / N)

    def step(self, layers, *_):
        m = jax.make_mesh((N,), ("x",), axis_types=(AxisType.Auto,))

        def stages(p, x, y):
            me = lax.axis_index("x")

            def turn(c, i):
                h, out = c
                h = jnp.where(me == 0, lax.dynamic_index_in_dim(x, jnp.minimum(i, N - 1), keepdims=False), h)
                h = lax.scan(lambda h, q: (layer(q, h, lambda w, x: x), None), h, p)[0]
                out = jnp.where((me == N - 1) & (i >= N - 1), lax.dynamic_update_index_in_dim(out, h, jnp.maximum(i - N + 1, 0), 0), out)
                return (lax.ppermute(h, "x", [(k, k + 1) for k in range(N - 1)]), out), None
            vary = lambda v: lax.pcast(v, ("x",), to="varying")  # noqa: E731
            out = lax.scan(turn, (vary(jnp.zeros_like(x[0])), vary(jnp.zeros_like(x))), jnp.arange(2 * N - 1))[0][1]
            return lax.psum(jnp.where(me == N - 1, ((out - y) ** 2).mean(), 0), "x")
        loss = jax.shard_map(stages, mesh=m, in_specs=(P("x"), P(), P()), out_specs=P())

        def step(p, x, y):
            l, g = jax.value_and_grad(loss)(p, x, y)
            return l, jax.tree.map(lambda p, g: p - 0.1 * g, p, g)
        return jax.jit(step, in_shardings=({k: NS(m, P("x")) for k in DENSE}, NS(m, P()), NS(m, P())))

    def args(self, *_, like=lambda s: jax.ShapeDtypeStruct(s, jnp.float32)):
        x = like((N, B // N, S, D))
        return {k: like((N, *v)) for k, v in DENSE.items()}, x, x


LAYOUTS["pipeline"] = Pipeline()
WAYS = {"": (False, False), " scan": (True, False), " said": (False, True), " scan said": (True, True), " scan said again": (True, True, True)}
NAMES = [k + w for k in LAYOUTS for w in WAYS if k != "pipeline" or not w]


def one_sum(sent):
    """Small sums are counted in KB: several of them may be one exchange."""
    r = collections.Counter()
    for (kind, devices, size), n in sent.items():
        small = kind == "all_reduce" and size < 500_000
        r[kind, devices, SMALL if small else size] += n * size / SMALL if small else n
    return r


SMALL = 1024


def per_layer(name):
    """(kind, devices, bytes into each): how often, for one layer."""
    k, _, w = name.partition(" ")
    way = WAYS[(w and " ") + w]

    def sent(n):
        return collectives(LAYOUTS[k].step(n, *way).lower(*LAYOUTS[k].args(n, way[0])).compile())
    if k == "pipeline":
        return {c: n / N for c, n in sent(N).items()}
    few, many = one_sum(sent(2)), one_sum(sent(3))
    return {c: many[c] - few[c] for c in sorted(few.keys() | many.keys()) if many[c] != few[c]}


def values(name):
    """The largest difference between what 1 and what 2, 4 and 8 devices calculate in f64, of the largest element; two runs are equal bit by bit."""
    k, _, w = name.partition(" ")
    way = WAYS[(w and " ") + w]
    rng = np.random.default_rng(0)
    args, results, worst = LAYOUTS[k].args(2, way[0], like=lambda s: rng.standard_normal(s) / 4), [], 0
    for n in (1, 2, 4, 8):
        step = LAYOUTS[k].step(2, *way, devices=n)
        one, two = ([np.asarray(x) for x in jax.tree.leaves(step(*args))] for _ in range(2))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(one, two)), f"{name}: two runs on {n} devices differ"
        results.append(one)
        worst = max(worst, *(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(one, results[0])))
    return worst


def kinds(sent):
    by = collections.Counter()
    for (kind, _, b), n in sent.items():
        by[kind] += b * n
    return by


GOLDEN = pathlib.Path(__file__).with_suffix(".txt")
ALSO = [n for n in NAMES if n.partition(" ")[2] in ("", "scan said") or n in ("fsdp scan said again", "fsdp_tensor scan said again")]  # those of which there are goldens


def as_line(sent):
    return "; ".join(f"{kind} {b:.0f} of {k} x {n:g}" for (kind, k, b), n in sorted(sent.items()))


def child(platform, names, how="--json"):
    env = os.environ | {"JAX_PLATFORMS": platform, "RONDO_DEVICES": str(N), "RONDO_MEMORY": "1T"}         # nothing is run
    r = subprocess.run([sys.executable, __file__, how, *names], env=env, stdout=subprocess.PIPE, text=True, check=True)
    return {n: {(k, d, b): t for (k, d, b), t in sent} if isinstance(sent, list) else sent for n, sent in map(json.loads, r.stdout.splitlines())}


def goldens():
    """Name: XLA:CPU's bytes, Rondo's collectives."""
    lines = (l.split(" | ") for l in GOLDEN.read_text().splitlines() if not l.startswith("#"))
    return {n: (float(xla), sent) for n, xla, sent in lines}


def main():
    how, names = (sys.argv[1], sys.argv[2:]) if sys.argv[1:2] and sys.argv[1].startswith("--") else ("", sys.argv[1:])
    names = [n for n in NAMES if not names or any(fnmatch.fnmatch(n, p) for p in names)]
    if how == "--values":
        jax.config.update("jax_enable_x64", True)
        sizes(B=8, S=16, D=32, H=8, K=8, F=64, E=8, C=6)
        for n in names:
            print(json.dumps([n, values(n)]), flush=True)
        return
    if how == "--json":
        for n in names:
            try:
                print(json.dumps([n, [[list(c), t] for c, t in per_layer(n).items()]]), flush=True)
            except Exception as e:
                print(json.dumps([n, str(e)[:200]]), flush=True)
        return
    if how == "--golden":
        names = ALSO
    ours, xla = (child(p, names) for p in ("rondo,cpu", "cpu"))
    if how == "--golden":
        text = "# A layer of each layout: bytes that XLA:CPU's sends into a device, Rondo's collectives (bytes_moved.py --golden)\n"
        GOLDEN.write_text(text + "".join(f"{n} | {sum(kinds(xla[n]).values()):.0f} | {as_line(ours[n])}\n" for n in names))
        return
    print(f"{'MB into a device, a layer':32} {'Rondo':>8} {'XLA:CPU':>8} {'least':>8}  Rondo's; XLA's")
    for n in names:
        cells, says = [], []
        for sent in (ours[n], xla[n]):
            if isinstance(sent, str):
                cells.append("fails")
                says.append(sent[:60])
                continue
            by = kinds(sent)
            cells.append(f"{sum(by.values()) / 1e6:.1f}")
            says.append(" ".join(f"{k} {v / 1e6:.1f}" for k, v in by.items()))
        least = LAYOUTS[n.split()[0]].least
        print(f"{n:32} {cells[0]:>8} {cells[1]:>8} {f'{least / 1e6:.1f}' if least else '':>8}  {'; '.join(says)}", flush=True)


if __name__ == "__main__":
    main()
