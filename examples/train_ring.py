#!/usr/bin/env python3
"""Train a small Llama on bytes, its sequence split over several devices with ring attention.

Plain JAX: nothing here knows which plug-in runs it.  The text is the Python standard library's own
sources.  Each device holds a piece of every sequence; keys and values go round the ring with ppermute
while queries stay, and a running softmax joins the pieces.  The whole step, optimiser included, is one
shard_map: weights are replicated, tokens are split, gradients are summed.

    python train_ring.py --platform rondo --devices 4 --steps 240 --out demo_out

With --processes P it is started P times (by `rondo launch -n P`, mpirun, Slurm, ..), and the devices are spread
over the processes.
"""
import argparse
import pathlib
import resource
import sys
import sysconfig
import time

import numpy as np


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--platform", default="", help="rondo or cpu; what JAX chooses by itself if not given")
    p.add_argument("--devices", type=int, default=4)
    p.add_argument("--processes", type=int, default=1, help="processes that this one is one of")
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--batch", type=int, default=4, help="sequences a step")
    p.add_argument("--length", type=int, default=512, help="bytes of a sequence, over all devices")
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", default="demo_out", help="folder of loss.tsv and loss.png")
    a = p.parse_args()
    if a.devices % a.processes:
        p.error(f"{a.devices} devices cannot be spread over {a.processes} processes")
    if a.length % a.devices:
        p.error(f"--length {a.length} cannot be split over {a.devices} devices")
    return a


ARGS = arguments()
import jax  # noqa: E402  (the platform is chosen before the first device is looked at)

if ARGS.platform:
    jax.config.update("jax_platforms", "cpu" if ARGS.platform == "cpu" else f"{ARGS.platform},cpu")
jax.config.update("jax_num_cpu_devices", ARGS.devices // ARGS.processes)
if ARGS.processes > 1:
    jax.distributed.initialize()

import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

HEADS, KV_HEADS, VOCAB = 4, 2, 256
COMPUTE = jnp.bfloat16


# --- data -------------------------------------------------------------------


def corpus():
    """The standard library's sources, in order of name, as one array of bytes."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    skip = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
    text = bytearray()
    for f in sorted(root.rglob("*.py"), key=lambda f: f.relative_to(root).as_posix()):
        if not skip & set(f.relative_to(root).parts):
            text += f.read_bytes() + b"\0"
    return np.frombuffer(bytes(text), np.uint8)


def batches(text, steps):
    """The same windows in the same order on every run."""
    rng = np.random.default_rng(ARGS.seed)
    for _ in range(steps):
        start = rng.integers(0, len(text) - ARGS.length - 1, ARGS.batch)
        window = np.stack([text[s:s + ARGS.length + 1] for s in start]).astype(np.int32)
        yield window[:, :-1], window[:, 1:]


# --- model ------------------------------------------------------------------


def weights(key):
    d, n, h = ARGS.width, ARGS.layers, 8 * ARGS.width // 3 // 32 * 32
    kv = d * KV_HEADS // HEADS
    shapes = dict(wq=(n, d, d), wk=(n, d, kv), wv=(n, d, kv), wo=(n, d, d), gate=(n, d, h), up=(n, d, h), down=(n, h, d))
    keys = jax.random.split(key, len(shapes) + 1)
    layers = {k: jax.random.normal(r, s, jnp.float32) * s[1] ** -0.5 for (k, s), r in zip(shapes.items(), keys)}
    layers |= dict(norm1=jnp.ones((n, d)), norm2=jnp.ones((n, d)))
    return dict(embed=jax.random.normal(keys[-1], (VOCAB, d), jnp.float32) * 0.02, layers=layers, norm=jnp.ones(d))


def rms_norm(x, scale):
    x = x.astype(jnp.float32)
    return (x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale).astype(COMPUTE)


def rotary(x, position):
    """x: [batch, time, heads, size]."""
    half = x.shape[-1] // 2
    angle = position[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
    a, b = jnp.split(x.astype(jnp.float32), 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def ring_attention(q, k, v):
    """Causal attention; q: [batch, time, kv heads, group, size], k, v: [batch, time, kv heads, size].

    In turn i this device sees the keys of the device i places before it.  A running maximum m, sum l and
    weighted values acc make the softmax exact without ever holding a row of it.
    """
    n, me = lax.axis_size("cp"), lax.axis_index("cp")
    time_ = q.shape[1]
    scale = q.shape[-1] ** -0.5
    row = me * time_ + jnp.arange(time_)
    ring = [(i, (i + 1) % n) for i in range(n)]

    def block(k, v, owner, m, l, acc):
        score = jnp.einsum("btkgd,bskd->bkgts", q, k, preferred_element_type=jnp.float32) * scale
        column = owner * time_ + jnp.arange(time_)
        score = jnp.where(row[:, None] >= column, score, -1e30)
        m2 = jnp.maximum(m, score.max(-1))
        p = jnp.exp(score - m2[..., None])
        old = jnp.exp(m - m2)
        part = jnp.einsum("bkgts,bskd->bkgtd", p.astype(COMPUTE), v, preferred_element_type=jnp.float32)
        return m2, l * old + p.sum(-1), acc * old[..., None] + part

    def turn(carry, i):
        k, v, m, l, acc = carry
        owner = (me - i) % n
        # Keys of later devices lie in the future of every row here.
        m, l, acc = lax.cond(owner <= me, block, lambda k, v, o, *rest: rest, k, v, owner, m, l, acc)
        k, v = (lax.ppermute(x, "cp", ring) for x in (k, v))
        return (k, v, m, l, acc), None

    b, t, h, g, d = q.shape
    start = jnp.full((b, h, g, t), -1e30), jnp.zeros((b, h, g, t)), jnp.zeros((b, h, g, t, d))
    (_, _, _, l, acc), _ = lax.scan(turn, (k, v, *start), jnp.arange(n))
    return (acc / l[..., None]).transpose(0, 3, 1, 2, 4).reshape(b, t, -1).astype(COMPUTE)


def layer(x, w):
    b, t, d = x.shape
    size = d // HEADS
    w = {k: a.astype(COMPUTE) if a.ndim > 1 else a for k, a in w.items()}
    position = (lax.axis_index("cp") * t + jnp.arange(t)).astype(jnp.float32)
    y = rms_norm(x, w["norm1"])
    q = rotary((y @ w["wq"]).reshape(b, t, HEADS, size), position)
    k = rotary((y @ w["wk"]).reshape(b, t, KV_HEADS, size), position)
    v = (y @ w["wv"]).reshape(b, t, KV_HEADS, size)
    x = x + ring_attention(q.reshape(b, t, KV_HEADS, HEADS // KV_HEADS, size), k, v) @ w["wo"]
    y = rms_norm(x, w["norm2"])
    return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]


def loss_of(w, tokens, targets):
    """This device's share of the mean loss: shares add up to it."""
    x = w["embed"].astype(COMPUTE)[tokens]
    x, _ = lax.scan(lambda x, w: (jax.checkpoint(layer)(x, w), None), x, w["layers"])
    logits = jnp.einsum("btd,vd->btv", rms_norm(x, w["norm"]), w["embed"].astype(COMPUTE),
                        preferred_element_type=jnp.float32)
    of_target = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - of_target).sum() / (ARGS.batch * ARGS.length)


def optimiser():
    warm = min(20, ARGS.steps // 5)
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, warm, ARGS.steps, 3e-4)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, weight_decay=0.1))


def step_of(opt, mesh):
    def step(w, state, tokens, targets):
        loss, grad = jax.value_and_grad(loss_of)(w, tokens, targets)
        loss, grad = lax.psum((loss, grad), "cp")
        update, state = opt.update(grad, state, w)
        return optax.apply_updates(w, update), state, loss

    split = P(None, "cp")
    whole = jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), split, split), out_specs=(P(), P(), P()), check_vma=False)
    return jax.jit(whole, donate_argnums=(0, 1))


# --- run --------------------------------------------------------------------


def say(text):
    if jax.process_index() == 0:
        print(text, file=sys.stderr, flush=True)


def memory_text(devices):
    try:
        stats = [d.memory_stats() for d in devices]
        if all(stats):
            return f"{sum(s['peak_bytes_in_use'] for s in stats) / 2**20:.0f} MB on {len(devices)} devices"
    except (RuntimeError, KeyError):
        pass
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MB resident"


class Progress:
    """One line that changes on a terminal; a line every tenth of the way elsewhere."""

    def __init__(self, total):
        self.total, self.live, self.last = total, sys.stderr.isatty(), -1

    def show(self, done, text):
        if self.live:
            full = 24 * done // self.total
            sys.stderr.write(f"\r[{'#' * full}{'.' * (24 - full)}] {done}/{self.total}  {text}\033[K")
            sys.stderr.write("\n" if done == self.total else "")
            sys.stderr.flush()
        elif 10 * done // self.total != self.last or done == self.total:
            self.last = 10 * done // self.total
            print(f"{done}/{self.total}  {text}", file=sys.stderr, flush=True)


def draw(losses, path, title):
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("matplotlib is not installed: no picture of the loss", file=sys.stderr)
        return
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(range(1, len(losses) + 1), losses)
    axes.set(xlabel="step", ylabel="loss (nats a byte)", title=title)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    devices = jax.devices()
    if len(devices) < ARGS.devices:
        sys.exit(f"{ARGS.devices} devices wanted, '{devices[0].platform}' has {len(devices)}")
    mesh = Mesh(np.array(devices[:ARGS.devices]), ("cp",))
    replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P(None, "cp"))
    text = corpus()
    w = jax.jit(weights)(jax.random.key(ARGS.seed))
    opt = optimiser()
    state = jax.jit(opt.init)(w)
    w, state = jax.device_put((w, state), replicated)
    count = sum(x.size for x in jax.tree.leaves(w))
    of = f" of {ARGS.processes} processes" if ARGS.processes > 1 else ""
    say(f"{devices[0].platform}: {ARGS.devices} devices{of}, {count / 1e6:.2f} M weights, {len(text) / 1e6:.1f} MB of text, "
        f"{ARGS.batch} x {ARGS.length} bytes a step")

    step = step_of(opt, mesh)
    def put(x):
        return jax.make_array_from_callback(x.shape, split, lambda index: x[index])

    begin = time.perf_counter()
    losses, bar, first = [], Progress(ARGS.steps), begin
    for i, (x, y) in enumerate(batches(text, ARGS.steps)):
        w, state, loss = step(w, state, put(x), put(y))
        losses.append(float(loss))
        now = time.perf_counter()
        if i == 0:
            first = now
            say(f"compiled and ran the first step in {now - begin:.1f} s")
        rate = i * ARGS.batch * ARGS.length / (now - first) if i else 0.0
        if jax.process_index() == 0:
            bar.show(i + 1, f"loss {losses[-1]:.4f}  {rate:,.0f} tokens/s  {memory_text(mesh.local_devices)}")

    if jax.process_index():
        return
    out = pathlib.Path(ARGS.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "loss.tsv").write_text("".join(f"{i + 1}\t{x:.9g}\n" for i, x in enumerate(losses)))
    draw(losses, out / "loss.png", f"ring attention over {ARGS.devices} devices on {devices[0].platform}")
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {time.perf_counter() - begin:.1f} s; "
          f"{out / 'loss.tsv'}, {out / 'loss.png'}")
    if not losses[-1] < 0.75 * losses[0]:
        sys.exit(f"the loss fell by less than a quarter: {len(losses)} steps are too few for that, or something is wrong")


if __name__ == "__main__":
    main()
