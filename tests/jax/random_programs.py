"""Random programs on Rondo and on JAX's own cpu: the same results, or the program is cut down and kept.

    python tests/jax/random_programs.py [--seed S] [--count 200 | --seconds 60] [--tier gen,ref] [--jobs 2]
    python tests/jax/random_programs.py --devices 4 [--how manual|sharded]
    python tests/jax/random_programs.py --replay tests/jax/found/*.py

A seed is a program (random_ops.py); the same seed is the same program.  Programs run in children with RONDO_CHECK=1, so a crash or a hang
is a result like any other.  With --devices over 1 a program is the body of a shard_map and communicates (manual), or its arrays are
sharded and it is compared with itself unsharded (sharded; what Rondo refuses to partition is counted, not failed).

Judged by XLA:CPU: integers, and floats that are exact whatever the order (random_ops.py says when), by their bits; other floats within
a rounding or so of their type, relative to the value and to the root mean square of its array; signs of zero, infinities and NaN in their
places.  What differs is judged by the program itself (random_model.py): XLA:CPU is wrong where its operations, one after the other, give
what Rondo gives; a program magnifies roundings where it does so in f64, too, if the results of its operations are rounded in one way or
another: Rondo may be FACTOR times as far from f64 as they are.  Sums of many elements, and NaN among many, are judged by it always.
"""
import argparse
import collections
import json
import os
import pathlib
import pickle
import re
import select
import signal
import sys
import tempfile
import threading
import time
import warnings

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE / "discover"), str(HERE)]
os.environ.setdefault("JAX_PLATFORMS", "rondo,cpu")

import numpy as np  # noqa: E402
from random_model import EPS, floats, model, up  # noqa: E402
from random_ops import GOOD, Draw, Step, free, namespace, ragged_itself, render  # noqa: E402

FACTOR = 8
EXTREME = re.compile(r"\.(arg|cum|p)?(max|min)\(|reduce_window|softmax|logsumexp")       # of many elements
FINE = ("ok", "skip", "theirs", "ill")


def fill(how, seed, dtype, shape):
    import jax.numpy as jnp
    rng = np.random.default_rng(seed)
    to = jnp.dtype(dtype)
    if how == "wide":
        bits = {"int4": 4, "uint4": 4}.get(dtype, to.itemsize * 8)
        x = rng.integers(0, 2 ** bits, size=shape, dtype=np.uint64, endpoint=False) if bits < 64 else rng.integers(0, 2 ** 63, size=shape, dtype=np.uint64)
        return (x.astype(np.int64) - (0 if dtype.startswith("u") else 2 ** (bits - 1) if bits < 64 else 2 ** 62)).astype(to)
    if dtype.startswith(("int", "uint")):
        lo, hi = (0 if dtype[0] == "u" else -8 if dtype == "int4" else -50), (15 if dtype == "uint4" else 7 if dtype == "int4" else 50)
        return rng.integers(lo, hi, size=shape, endpoint=True).astype(to)
    if how == "lat":
        return (rng.integers(-7, 8, size=shape) / 2).astype(np.float32).astype(to)
    if how == "unit":
        return rng.random(shape, np.float32).astype(to)
    x = np.asarray(rng.normal(size=shape))
    if dtype == "bool":
        return np.asarray(x > 0)
    if dtype.startswith("complex"):
        return (x + 1j * rng.normal(size=shape)).astype(to)
    if how == "special":
        odd = np.array([0., -0., np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2.5, -1.5, 100.5, 1e-6, -1e-6])
        x = np.where(rng.random(shape) < 0.4, odd[rng.integers(len(odd), size=shape)], x)
    return x.astype(np.float32).astype(to) if dtype != "float64" else x


class Case:
    """One program: its text, what goes in, how results are judged."""

    def __init__(self, **kw):
        self.__dict__.update(dict(devices=1, how="plain", x64=False, donate=[], mesh=None, specs=None, out_specs=None, good=[], why="", seed=None, tier=None), **kw)

    def fn(self, ns=None):
        ns = {**namespace(), **(ns or {})}
        exec(self.src, ns)
        return ns["f"]

    def text(self):
        lines = ['"""' + self.why.replace('"""', "'''") + '"""'] if self.why else []
        for k in ("seed", "tier", "devices", "how", "x64", "donate", "mesh", "specs", "out_specs"):
            v = getattr(self, k)
            if v is not None and (k, v) not in (("devices", 1), ("how", "plain"), ("x64", False), ("donate", [])):
                lines.append(f"{k} = {v!r}")
        lines.append("inputs = [" + ",\n          ".join(repr(tuple(i)) for i in self.inputs) + "]    # name, type, shape, values")
        lines.append(f"good = {self.good!r}    # of each result: bits, signs of zero, how far off it may be")
        return "\n".join(lines) + "\n\n\n" + self.src + "\n"

    @staticmethod
    def load(text):
        ns, at = {"inf": np.inf}, text.index("def f(")
        exec(text[:at], ns)
        return Case(src=text[at:].rstrip(), why=(re.match(r'\s*"""(.*?)"""', text, re.S) or [0, ""])[1],
                    **{k: ns[k] for k in ("seed", "tier", "devices", "how", "x64", "donate", "mesh", "specs", "out_specs", "inputs", "good") if k in ns})

    def values(self):
        return [fill(how, seed, dtype, shape) for _, dtype, shape, how, seed in self.inputs]


# --- drawing a case -----------------------------------------------------------


def spec_of(rng, shape, axes, even=True):
    """Which mesh axes cut which dimension; even: only dimensions that divide."""
    out, left = [None] * len(shape), dict(axes)
    for a in rng.permutation(list(axes)):
        a = str(a)
        ok = [d for d, e in enumerate(shape) if not even or (e and e % (left[a] * int(np.prod([axes[b] for b in out[d] or ()]))) == 0)]
        if ok and rng.random() < 0.7:
            d = ok[int(rng.integers(len(ok)))]
            out[d] = (out[d] or ()) + (a,)
    return tuple(out)


def draw(seed, devices=1, how="plain", mode=None):
    d = Draw(seed, devices if how == "manual" else 1, mode)
    if how == "sharded":
        d.most, d.mode = 20000, mode or d.pick(["sharded", "sharded", "sharded", "along", "along", "along", "exact", "any", "any", "loops", "branches", "views", "norms"])
        d.palette = [d.pick([1, 3, 8, 10, 16, 30, 64, 128]) for _ in range(2)] + [devices, 2 * devices, 8]
        if d.mode == "along":
            d.palette = [d.pick([1, 3, 8]), devices, 2 * devices, 3 * devices, 12, 24]
        d.x64, d.types = False, ["float32", "float32", "int32", "bfloat16"]
    elif how == "manual":
        d.most, d.x64 = 8000, False
        d.mode = d.mode if d.mode not in ("wide", "long", "linalg", "small") else "any"
        d.types = [t for t in d.types if t in ("float32", "bfloat16", "float16", "int32", "uint8", "int8", "bool", "int16", "uint32", "uint16", "complex64")] or ["float32"]
        d.palette += [devices, 2 * devices]
        if mode == "rings" or mode is None and d.odds(0.35):      # arrays of some KB, which are worth a loan
            d.mode, d.most, d.palette = "rings", 20000, [16, 24, 32, 64, d.pick([1, 3, 128])]
        elif mode == "sums" or mode is None and d.odds(0.35):     # of some KB to some 100, whose sums go by one way or another
            d.mode, d.most, d.types = "sums", d.pick([8000, 50000, 200000]), ["float32", "float32", "bfloat16", "float16"]
            d.palette = [devices, 2 * devices, d.pick([1, 3, 8, 33]), d.pick([64, 100, 128, 1000]), d.pick([128, 1024, 2048, 4096])]
    length = d.int(1, 14) if how == "sharded" else d.int(3, 16)
    import jax
    with jax.enable_x64(d.x64):
        keep = d.program(length)
    c = Case(seed=seed, devices=devices, how=how, x64=d.x64, inputs=d.inputs)
    if how == "sharded":
        shapes = {4: [(4,), (2, 2)], 8: [(8,), (2, 4), (2, 2, 2)], 2: [(2,)], 3: [(3,)], 6: [(6,), (2, 3), (3, 2)], 12: [(2, 2, 3), (3, 4), (12,)]}[devices]
        dims = d.pick(shapes)
        c.mesh = (dims, "xyz"[:len(dims)], [int(k) for k in d.rng.permutation(devices)] if d.odds(0.4) else list(range(devices)))
        axes = dict(zip(c.mesh[1], dims))
        c.specs = [spec_of(d.rng, i[2], axes) for i in c.inputs]
        c.out_specs = [spec_of(d.rng, d.vals[n].shape, axes) for n in keep] if d.odds(0.6) else None
        for k in range(len(d.steps) - 1, -1, -1):
            s = d.steps[k]
            shapes = any(w in s.text for w in ("tile", "repeat", "reshape", "broadcast"))      # parts of one value of different shapes
            if d.odds(0.5 if shapes else 0.2) and len(s.out) == 1:
                own = s.out[0] + "_"
                s.out[0], old = own, s.out[0]
                d.steps.insert(k + 1, Step([old], f"shard($0, *{spec_of(d.rng, d.vals[old].shape, axes, d.odds(0.4 if shapes else 0.7))!r})", [own]))
    elif how == "plain" and d.odds(0.25):
        c.donate = sorted(k for k in range(len(c.inputs)) if d.odds(0.5))
    loose = follows(d.steps, set())
    c.good = [(d.vals[n].exact, d.vals[n].zero, np.inf if n in loose else d.vals[n].good) for n in keep]
    c.steps, c.keep, c.vals = d.steps, keep, d.vals
    build(c)
    return c


def follows(steps, names):
    """Names and more: what follows from numbers that are each back end's own."""
    for s in steps:
        if "rng_uniform" in "".join(render([s])) or names & {*s.args, *free([s])}:
            names.update(s.out)
    return names


def prune(steps, need):
    """Only what is needed stays."""
    out = []
    for s in reversed(steps):
        if need & set(s.out):
            for b in s.bodies:
                b.steps = prune(b.steps, {n for r in b.results for n in re.findall(r"\w+", r)})
            need |= set(s.args) | set(free([s]))
            out.append(s)
    return out[::-1]


def build(c):
    """The text of a case from its steps."""
    c.steps = prune(c.steps, set(c.keep))
    used = set(free(c.steps)) | set(c.keep)
    at = [k for k, i in enumerate(c.inputs) if i[0] in used]
    if c.specs:
        c.specs = [c.specs[k] for k in at]
    c.donate = [at.index(k) for k in c.donate if k in at]
    c.inputs = [c.inputs[k] for k in at]
    c.src = "\n".join([f"def f({', '.join(i[0] for i in c.inputs)}):", *render(c.steps), f"    return {', '.join(c.keep)},"])


# --- running and judging it ---------------------------------------------------


def compare(got, want, good):
    """None, or what differs."""
    for k, (g, w, (exact, zero, eps)) in enumerate(zip(got, want, good, strict=True)):
        if g.shape != w.shape or g.dtype != w.dtype:
            return f"result {k}: {g.dtype}{g.shape} for {w.dtype}{w.shape}"
        if not g.size or eps == np.inf:
            continue
        if w.dtype.kind in "iub" or w.dtype.name.startswith(("int", "uint")):
            bad = g != w
        else:
            cplx = w.dtype.kind == "c"
            a, b = (g.astype(np.complex128), w.astype(np.complex128)) if cplx else (g.astype(np.float64), w.astype(np.float64))
            with np.errstate(invalid="ignore", over="ignore"):
                nan = np.isnan(a) & np.isnan(b)
                fin = np.isfinite(a) & np.isfinite(b)
                size = float(np.sqrt(np.mean(np.abs(b[fin]) ** 2))) if fin.any() else 0
                bad = a != b if exact and not cplx else np.where(fin, np.abs(a - b) > eps * (np.abs(b) + size + 1), a != b)
            bad &= ~nan
            if zero and not cplx:
                bad |= (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
        if bad.any():
            at = tuple(np.argwhere(bad)[0].tolist())
            return f"result {k} {w.dtype}{list(w.shape)} at {list(at)}: {g[at]} for {w[at]} ({int(bad.sum())} of {bad.size} differ{', bits' if exact else ''})"
    return None


def off(x, ref, ok):
    """How far x is from ref where ok, relative to the value and to the root mean square of all."""
    size = float(np.sqrt(np.mean(np.abs(ref[ok]) ** 2))) + 1e-30
    with np.errstate(all="ignore"):
        return np.where(ok, np.abs(np.where(ok, up(x), 0) - np.where(ok, ref, 0)) / (np.abs(ref) + size), 0)


def rounded(c, n=6):
    """The results of a program whose operations round to their types, to the nearest and in other ways."""
    return [model(c, wide=True, seed=k or None) for k in range(n)]


def ill(c, got, own):
    """Do results differ because the program magnifies roundings?  Then what is rounded otherwise differs as much from f64."""
    ref, near = model(c, wide=True, rounds=False), rounded(c)
    for k, (g, w, r, good) in enumerate(zip(got, own, ref, c.good, strict=True)):
        if compare([g], [w], [good]) is None:
            continue
        if good[0] or not floats(g.dtype) or r.shape != g.shape:
            return False
        eps = EPS.get(g.dtype.name, 2 ** -23)
        with np.errstate(invalid="ignore"):
            ok = np.isfinite(r) & (np.abs(r) < {"float16": 1e4, "float32": 1e30, "bfloat16": 1e30, "complex64": 1e30, "float64": 1e300, "complex128": 1e300}.get(g.dtype.name, 10))
        for n in near:
            ok &= np.isfinite(n[k])
        if ok.any() and not off(g, r, ok).max() <= FACTOR * max(off(n[k], r, ok).max() for n in near) + 64 * eps:
            return False
        lost = np.isnan(r) & ~np.isnan(up(g))
        for n in near:
            lost &= np.isnan(n[k])
        if lost.any():
            return False
    return True


def precise(c, got, want):
    """Sums of many elements: as close to f64 as the program's own roundings leave them."""
    if not any(i[3] == "unit" for i in c.inputs):
        return None
    ref, near = model(c, wide=True, rounds=False), rounded(c, 1)
    for k, (g, w, r, good) in enumerate(zip(got, want, ref, c.good, strict=True)):
        if g.dtype.name not in ("float32", "bfloat16") or not g.size or r.shape != g.shape or good[2] == np.inf:
            continue
        ok = np.isfinite(r)
        if not ok.any():
            continue

        def rms(x):
            return float(np.sqrt(np.mean(off(x, r, ok) ** 2)))
        if g.size >= 256 and g.dtype.name == "bfloat16":           # enough to tell one rounding from two
            most = 1.25 * max(rms(w), rms(near[0][k])) + 1e-5
        elif rms(g) <= (most := 8 * EPS[g.dtype.name]):
            continue
        else:
            near += rounded(c)[1:] if len(near) == 1 else []
            most += FACTOR * max(rms(n[k]) for n in near)
        if not rms(g) <= most:
            return f"result {k} {g.dtype}{list(g.shape)}: error {rms(g):.1e} against f64, of the program's roundings {rms(near[0][k]):.1e}, XLA:CPU's {rms(w):.1e}"
    return None


def lost(c, got):
    """Where a NaN is, and is not: XLA:CPU loses one as well, where it is among many and not the first."""
    if not any(i[3] == "special" for i in c.inputs) or not EXTREME.search(c.src):
        return None
    for k, (g, w, good) in enumerate(zip(got, model(c), c.good, strict=True)):
        if floats(g.dtype) and good[2] < np.inf and (np.isnan(up(g)) != np.isnan(up(w))).any():
            at = tuple(np.argwhere(np.isnan(up(g)) != np.isnan(up(w)))[0].tolist())
            return f"result {k} {g.dtype}{list(g.shape)} at {list(at)}: {g[at]} for {w[at]}, op by op"
    return None


def run_on(where, c, values):
    import jax
    import xla_cpu
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    slow = any(i[3] == "unit" or i[1].endswith("int4") for i in c.inputs)         # 4 bits: what is compiled ahead refuses them
    opts = {"compiler_options": xla_cpu.options(where[0])} if where[0].platform == "cpu" and not slow else None
    ours = where[0].platform != "cpu"
    if c.how == "manual":
        mesh, n = Mesh(np.array(where[:c.devices]), ("d",)), c.devices
        f = c.fn(ns={"ragged": ragged_itself} if ours else {})

        def body(*xs):
            return [y[None] for y in f(*[x[0] for x in xs])]
        g = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False))
        args = [jax.device_put(np.stack([np.roll(x, k) for k in range(n)]), NamedSharding(mesh, P("d"))) for x in values]
        return g(*args) if ours else g.lower(*args).compile(**opts or {})(*args)
    if c.how == "sharded" and ours:
        dims, names, order = c.mesh
        mesh = Mesh(np.array([where[k] for k in order]).reshape(dims), tuple(names), axis_types=(jax.sharding.AxisType.Auto,) * len(dims))
        f = c.fn(ns={"shard": lambda x, *spec: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))})
        kw = {"out_shardings": tuple(NamedSharding(mesh, P(*s)) for s in c.out_specs)} if c.out_specs else {}
        return jax.jit(f, **kw)(*[jax.device_put(x, NamedSharding(mesh, P(*s))) for x, s in zip(values, c.specs, strict=True)])
    args = [jax.device_put(x, where[0]) for x in values]
    if not ours:
        f = jax.jit(c.fn())
        return f.lower(*args).compile(**opts)(*args) if opts else f(*args)
    f = jax.jit(c.fn(), donate_argnums=c.donate)
    once = [np.asarray(x) for x in f(*args)]
    twice = [np.asarray(x) for x in f(*[jax.device_put(x, where[0]) if k in c.donate else a for k, (x, a) in enumerate(zip(values, args, strict=True))])]
    for k, (a, b) in enumerate(zip(once, twice, strict=True)):
        if a.tobytes() != b.tobytes() and c.good[k][2] < np.inf:
            raise RuntimeError(f"the second call gives other bits for result {k}")
    return once


def judge(c, known=None, theirs=False, ran=lambda: None):
    """(kind, why): ok, skip (XLA:CPU cannot), theirs (XLA:CPU is wrong), ill, wrong, error.  What XLA:CPU gives is kept in the file
    `known` for the next tier; theirs: nothing else is done.  ran is called when both have run."""
    import jax
    with warnings.catch_warnings(), jax.enable_x64(c.x64):
        warnings.simplefilter("ignore")
        values = c.values()
        if known and os.path.exists(known):
            want = pickle.loads(pathlib.Path(known).read_bytes())
        else:
            try:
                want = [np.asarray(x) for x in run_on(jax.devices("cpu"), c, values)]
            except Exception as e:
                return "skip", f"{type(e).__name__}: {str(e)[:300]}"
            if known:
                pathlib.Path(known).write_bytes(pickle.dumps(want))
        if theirs:
            model(c)
            return "ok", ""
        try:
            out = run_on(jax.devices(), c, values)
            got = [np.asarray(x) for x in out]
        except Exception as e:
            return "error", f"{type(e).__name__}: {str(e)[:600]}"
        ran()
        why = compare(got, want, c.good)
        if why:
            own = model(c)
            if compare(got, own, c.good) is None:
                return "theirs", why
            return "ill" if ill(c, got, own) else "wrong", why
        if c.how == "sharded":
            for k, (x, g) in enumerate(zip(out, got, strict=True)):
                for s in x.addressable_shards:
                    if np.asarray(s.data).tobytes() != np.ascontiguousarray(g[s.index]).tobytes():
                        return "wrong", f"result {k}: device {s.device.id} holds other bits for {s.index}"
        why = lost(c, got) or (precise(c, got, want) if c.how != "manual" else None)
        return ("wrong", why) if why else ("ok", "")


# --- children -----------------------------------------------------------------


class Worker:
    """A child that draws and runs programs; one that dies or hangs is replaced."""

    def __init__(self, a, tier):
        self.a, self.tier, self.pid, self.asked = a, tier, None, 0

    def start(self):
        r, there = os.pipe()
        here, w = os.pipe()
        sys.stdout.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(there), os.close(here)
                log = os.open(self.a.log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(log, 2)
                serve(self.a, self.tier, os.fdopen(r), os.fdopen(w, "w"))
            finally:
                os._exit(0)
        os.close(r), os.close(w)
        self.to, self.back, self.rest = os.fdopen(there, "w"), here, b""

    def stop(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.to.close()
            os.close(self.back)
            self.pid = None

    def ask(self, job):
        """The child's answer.  A crash or a hang is one, too, unless XLA:CPU alone does the same; that the model, in numpy, is slow to judge is none."""
        r = self.answer(job)
        if r["kind"] in ("crash", "hang"):
            t = self.answer(["theirs", *job[:2]])
            if t["kind"] in ("crash", "hang"):
                return {"kind": "skip", "why": f"XLA:CPU: {t['kind']}: {t['why']}"}
        return r

    def answer(self, job):
        if self.pid and self.asked % 400 == 0:
            self.stop()
        if not self.pid:
            self.start()
        self.asked += 1
        try:
            self.to.write(json.dumps(job) + "\n")
            self.to.flush()
        except BrokenPipeError:
            pass
        end, got, ran = time.monotonic() + self.a.limit, b"", False
        while not got.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.back], [], [], left)[0]:
                self.stop()
                return {"kind": "skip", "why": "the model has not judged it"} if ran else {"kind": "hang", "why": f"no answer in {self.a.limit} s"}
            part = os.read(self.back, 1 << 16)
            if not part:
                _, status = os.waitpid(self.pid, 0)
                self.pid = None
                self.to.close()
                os.close(self.back)
                return {"kind": "crash", "why": signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"}
            got += part
            if got.startswith(b"ran\n"):
                got, end, ran = got[4:], time.monotonic() + 5 * self.a.limit, True
        return json.loads(got)


def serve(a, tier, asks, answers):
    os.environ.update({"RONDO_TIER": tier, "RONDO_CACHE": "", "RONDO_CHECK": "" if a.no_check else "1"})
    import jax
    jax.config.update("jax_num_cpu_devices", a.devices)

    def ran():
        answers.write("ran\n")
        answers.flush()
    for k, line in enumerate(asks):
        job = json.loads(line)
        try:
            theirs = job[0] == "theirs"
            job = job[theirs:]
            c, known = draw(job[1], a.devices, a.how, a.mode) if job[0] == "seed" else Case.load(job[1]), job[2] if len(job) > 2 else None
            kind, why = judge(c, known, theirs, ran)
            answers.write(json.dumps({"kind": kind, "why": why, "text": c.text() if known else ""}) + "\n")
        except BaseException as e:
            import traceback
            answers.write(json.dumps({"kind": "generator", "why": f"{type(e).__name__}: {str(e)[:300]} {traceback.format_exc()[-700:]}"}) + "\n")
        answers.flush()
        if k % 50 == 49:
            jax.clear_caches()


# --- cutting a find down ------------------------------------------------------


def sign(r):
    """What two failures have in common."""
    return r["kind"] + ("" if r["kind"] in ("wrong", "hang") else ":" + re.sub(r"[0-9]+|'[^']*'|b\d+", "", r["why"])[:60])


def all_steps(steps):
    for s in steps:
        yield s, steps
        for b in s.bodies:
            yield from all_steps(b.steps)


class Shrinker:
    def __init__(self, c, worker, want, seconds):
        self.c, self.w, self.want, self.end, self.tried = c, worker, want, time.monotonic() + seconds, 0
        self.why = ""

    def clone(self):
        c = Case(**{k: v for k, v in self.c.__dict__.items()})
        c.inputs, c.donate, c.good, c.keep = list(c.inputs), list(c.donate), list(c.good), list(c.keep)
        c.specs, c.out_specs = c.specs and list(c.specs), c.out_specs and list(c.out_specs)
        c.steps = [s.copy() for s in c.steps]
        return c

    def valid(self, c):
        import jax
        import jax.numpy as jnp
        try:
            with warnings.catch_warnings(), jax.enable_x64(c.x64):
                warnings.simplefilter("ignore")
                args = [jax.ShapeDtypeStruct(s, jnp.dtype(d)) for _, d, s, _, _ in c.inputs]
                if c.how == "manual":
                    jax.make_jaxpr(c.fn(), axis_env=[("d", c.devices)])(*args)
                else:
                    jax.eval_shape(c.fn(), *args)
            return True
        except Exception:
            return False

    def attempt(self, c):
        if time.monotonic() > self.end:
            return False
        try:
            if hasattr(c, "steps"):
                build(c)
        except Exception:
            return False
        if c.src == self.c.src and c.inputs == self.c.inputs and c.donate == self.c.donate or not c.inputs and c.specs or not self.valid(c):
            return False
        self.tried += 1
        r = self.w.ask(["text", c.text()])
        if sign(r) != self.want:
            return False
        self.c, self.why = c, r["why"]
        return True

    def run(self):
        changed = True
        while changed and time.monotonic() < self.end:
            changed = False
            for change in (self.fewer_results, self.cut, self.alias, self.plain, self.extents):
                changed |= change()
        return self.c

    def fewer_results(self):
        done = False
        if len(self.c.keep) > 1:
            for k in range(len(self.c.keep)):
                c = self.clone()
                c.keep, c.good = [c.keep[k]], [c.good[k]]
                c.out_specs = c.out_specs and [c.out_specs[k]]
                if self.attempt(c):
                    return True
        k = 0
        while len(self.c.keep) > 1 and k < len(self.c.keep):
            c = self.clone()
            del c.keep[k], c.good[k]
            if c.out_specs:
                del c.out_specs[k]
            if self.attempt(c):
                done = True
            else:
                k += 1
        return done

    def cut(self):
        """A step's value comes in from outside."""
        done, names = False, [o for s, _ in all_steps(self.c.steps) for o in s.out[:1]]
        for n in names[::-1]:
            c = self.clone()
            for s, inside in all_steps(c.steps):
                if s.out[0] != n or any(o in c.keep for o in s.out) or any(o not in c.vals for o in s.out):
                    continue
                inside.remove(s)
                for o in s.out:
                    v = c.vals[o]
                    c.inputs.append((o, v.dtype, v.shape, "lat" if v.lat else "normal", 1))
                    if c.specs:
                        c.specs = [*c.specs, (None,) * v.rank]
                done |= self.attempt(c)
                break
        return done

    def alias(self):
        """A step's value is another one of the same type: a step less."""
        done, names = False, [o for s, _ in all_steps(self.c.steps) for o in s.out]
        for n in names[::-1]:
            here = [s for s, _ in all_steps(self.c.steps) if n in s.out]
            if not here or n not in self.c.vals:
                continue
            v, s = self.c.vals[n], here[0]
            pool = list(s.args) + [p for b in s.bodies for p in free(b.steps)]
            for o in dict.fromkeys(pool):
                w = self.c.vals.get(o)
                if w is None or w.shape != v.shape or w.dtype != v.dtype:
                    continue
                c = self.clone()
                for t, _ in all_steps(c.steps):
                    t.args = [o if x == n else x for x in t.args]
                    for b in t.bodies:
                        b.results = [re.sub(rf"\b{n}\b", o, r) for r in b.results]
                if n in c.keep:
                    if o in c.keep or o[0] != "v":
                        continue
                    c.keep = [o if x == n else x for x in c.keep]
                if self.attempt(c):
                    done = True
                    break
        return done

    def plain(self):
        done = False
        if self.c.donate:
            c = self.clone()
            c.donate = []
            done |= self.attempt(c)
        if self.c.out_specs:
            c = self.clone()
            c.out_specs = None
            done |= self.attempt(c)
        for k, s in enumerate(self.c.specs or []):
            if any(s):
                c = self.clone()
                c.specs[k] = (None,) * len(s)
                done |= self.attempt_text(c)
        return done

    def attempt_text(self, c):
        """What changes the text below a step cannot be built from steps any more."""
        c.src += " "
        return self.attempt(c)

    def extents(self):
        """Every number N of the text and the shapes becomes a smaller one."""
        done = False
        for n in sorted({d for i in self.c.inputs for d in i[2] if d > 1}, reverse=True):
            for m in dict.fromkeys([1, 2, 3, n // 2, n - 1]):
                if m >= n or m < 1:
                    continue
                c = self.clone()
                sub = lambda t: re.sub(rf"(?<![\w.]){n}(?![\w.])", str(m), t)  # noqa: E731
                c.inputs = [(a, d, tuple(m if e == n else e for e in s), h, k) for a, d, s, h, k in c.inputs]
                for s, _ in all_steps(c.steps):
                    s.text = sub(s.text)
                c.vals = {}
                if self.attempt(c):
                    done = True
                    break
        if done:
            self.retype()
        return done

    def retype(self):
        """The shapes of values after extents have changed are not known any more; those of inputs are."""
        from random_ops import Val
        self.c.vals = {a: Val(a, s, d) for a, d, s, _, _ in self.c.inputs}


def shrink(a, tier, result, seconds, case=None):
    c = case or draw(result["seed"], a.devices, a.how, a.mode)
    w = Worker(a, tier)
    s = Shrinker(c, w, sign(result), seconds)
    again = w.ask(["text", c.text()])
    if sign(again) != s.want:
        w.stop()
        c.why, c.tier = f"{result['kind']}: {result['why']} (not again alone: {again['kind']})", tier
        return c
    s.why = again["why"]
    try:
        c = s.run()
    finally:
        w.stop()
    c.why, c.tier = f"{result['kind']}: {s.why}", tier
    return c


# --- the command --------------------------------------------------------------


def campaign(a):
    lock, total, finds, seen = threading.Lock(), collections.Counter(), [], collections.Counter()
    tiers, began = a.tier.split(","), time.monotonic()
    queue = iter(range(a.seed, a.seed + a.count if a.count else 1 << 62))
    state = {"said": began}

    def jobs(workers):
        """Each seed on each tier: (seed, tier, answer); a second tier is spared the drawing and XLA:CPU."""
        with tempfile.TemporaryDirectory() as folder:
            while True:
                with lock:
                    seed = next(queue, None) if not a.seconds or time.monotonic() - began < a.seconds else None
                if seed is None:
                    return
                known, job = os.path.join(folder, str(seed)), None
                for tier in tiers:
                    r = workers[tier].ask(job or ["seed", seed, known])
                    if r.get("text"):
                        job = ["text", r["text"], known]
                    yield seed, tier, r
                    if r["kind"] == "skip":
                        break
                if os.path.exists(known):
                    os.unlink(known)

    def lane():
        workers = {t: Worker(a, t) for t in tiers}
        for seed, tier, r in jobs(workers):
            with lock:
                total[r["kind"]] += 1
                n, now = sum(total.values()), time.monotonic()
                if r["kind"] not in FINE:
                    r.update(seed=seed, tier=tier)
                    seen[sign(r)] += 1
                    print(f"\nseed={seed} tier={tier} {r['kind']}: {r['why'][:400]}", flush=True)
                    finds.append(r)
                elif a.verbose and r["kind"] != "ok":
                    print(f"seed={seed} tier={tier} {r['kind']}: {r['why'][:200]}", flush=True)
                if now - state["said"] > a.progress:
                    state["said"] = now
                    print(f"{n} programs, {n / (now - began):.1f}/s, {dict(total)}", flush=True)
        for w in workers.values():
            w.stop()

    lanes = [threading.Thread(target=lane) for _ in range(a.jobs)]
    for t in lanes:
        t.start()
    for t in lanes:
        t.join()
    s = time.monotonic() - began
    print(f"{sum(total.values())} programs from seed={a.seed} in {s:.0f} s, {dict(total)}", flush=True)
    if a.found and finds:
        folder, done = pathlib.Path(a.found), collections.Counter()
        folder.mkdir(parents=True, exist_ok=True)
        for r in finds:
            if done[sign(r)] >= a.most or r["kind"] == "generator":
                continue
            done[sign(r)] += 1
            c = shrink(a, r["tier"], r, a.shrink)
            path = folder / f"{r['kind']}_{a.how}_{r['seed']}_{r['tier']}.py"
            path.write_text(c.text())
            print(f"\n{path}\n{c.text()}", flush=True)
    if total["skip"] > sum(total.values()) / 2:
        print("most programs were skipped (--verbose says why): nothing was tried", flush=True)
        return len(finds) + 1
    return len(finds)


def replay(a):
    """Programs that once failed; `waits = "for what"` in one says that it is expected to."""
    passed = failed = 0
    jobs = collections.defaultdict(list)
    for path in a.replay:
        text = pathlib.Path(path).read_text()
        c = Case.load(text)
        for tier in [c.tier] if c.tier else a.tier.split(","):
            jobs[c.devices, tier].append((path, text))
    for (a.devices, tier), programs in jobs.items():
        w = Worker(a, tier)
        for path, text in programs:
            r = w.ask(["text", text])
            waits = re.search(r'^waits = "(.*)"', text, re.M)
            if r["kind"] in FINE and r["kind"] != "skip" or waits:
                passed += 1
                if waits:
                    print(f"{path} ({tier}) waits for {waits[1]}" + (", and passes" if r["kind"] == "ok" else ""))
            else:
                failed += 1
                print(f"{path} ({tier}) {r['kind']}: {r['why']}")
        w.stop()
    print(f"{passed} passed, {failed} failed")
    return failed


def parser():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--seed", type=int, default=None, help="the first program's; a fresh one, if not given")
    a.add_argument("--count", type=int, default=0)
    a.add_argument("--seconds", type=float, default=0)
    a.add_argument("--tier", default="gen,ref")
    a.add_argument("--devices", type=int, default=1)
    a.add_argument("--how", default=None, choices=["plain", "manual", "sharded"])
    a.add_argument("--mode", default=None, help="kind of program (random_ops.py: Draw.GROUPS)")
    a.add_argument("--jobs", type=int, default=1)
    a.add_argument("--limit", type=float, default=60, help="seconds a program may take")
    a.add_argument("--no-check", action="store_true", help="without RONDO_CHECK=1")
    a.add_argument("--found", default=None, help="folder for what fails, cut down")
    a.add_argument("--shrink", type=float, default=60, help="seconds for cutting one find down")
    a.add_argument("--most", type=int, default=3, help="finds of one sign that are cut down")
    a.add_argument("--progress", type=float, default=20)
    a.add_argument("--print", action="store_true", help="print the programs, run nothing")
    a.add_argument("--log", default=None, help="file for what children say")
    a.add_argument("--verbose", action="store_true")
    a.add_argument("--replay", nargs="+")
    return a


def main():
    a = parser().parse_args()
    a.how = a.how or ("plain" if a.devices == 1 else "manual")
    import jax  # noqa: F401  children inherit it
    if a.replay:
        return replay(a) > 0
    if a.seed is None:
        a.seed = int.from_bytes(os.urandom(4), "little")
    if not a.count and not a.seconds:
        a.count = 200
    print(f"seed={a.seed}", flush=True)
    if a.print:
        for s in range(a.seed, a.seed + a.count):
            print(draw(s, a.devices, a.how, a.mode).text())
        return 0
    return campaign(a) > 0


if __name__ == "__main__":
    sys.exit(main())
