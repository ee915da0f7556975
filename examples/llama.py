"""What the two examples share: a byte-level Llama, its text, its optimiser, and the loop that trains it.

The text is the Python standard library's own sources.  An example brings its attention and says how the work is split.
"""
import argparse
import pathlib
import resource
import sys
import sysconfig
import time

import numpy as np

HEADS, KV_HEADS, VOCAB = 4, 2, 256


def arguments():
    import __main__
    p = argparse.ArgumentParser(description=__main__.__doc__.split("\n")[0])
    p.add_argument("--platform", default="", help="rondo or cpu; what JAX chooses by itself if not given")
    p.add_argument("--devices", type=int, default=4)
    p.add_argument("--processes", type=int, default=1, help="processes that this one is one of")
    p.add_argument("--steps", type=int, default=240)
    p.add_argument("--batch", type=int, default=4, help="sequences a step")
    p.add_argument("--length", type=int, default=512, help="bytes of a sequence, over all devices")
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--width", type=int, default=128)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", default="demo_out", help="folder of loss.PLATFORM.tsv and loss.png")
    a = p.parse_args()
    for name in "devices", "processes", "steps", "batch", "length", "layers", "width":
        if getattr(a, name) < 1:
            p.error(f"--{name} {getattr(a, name)}: at least 1")
    if a.width % (2 * HEADS):
        p.error(f"--width {a.width} is not {HEADS} heads of an even size")
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
    try:
        jax.distributed.initialize()
    except ValueError as e:
        sys.exit(f"--processes {ARGS.processes}: nobody has started this as one of them ({e}): rondo launch -n {ARGS.processes} python {' '.join(sys.argv)}")
    if jax.process_count() != ARGS.processes:
        sys.exit(f"--processes {ARGS.processes}, but {jax.process_count()} were started")

import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

COMPUTE = jnp.bfloat16
LEARNS = 100              # so many steps lower the loss by a quarter


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
    if ARGS.length >= len(text):
        sys.exit(f"--length {ARGS.length}: there are {len(text)} bytes of text")
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


def layer(x, w, first, attention):
    b, t, d = x.shape
    size = d // HEADS
    w = {k: a.astype(COMPUTE) if a.ndim > 1 else a for k, a in w.items()}
    position = (first + jnp.arange(t)).astype(jnp.float32)
    y = rms_norm(x, w["norm1"])
    q = rotary((y @ w["wq"]).reshape(b, t, HEADS, size), position)
    k = rotary((y @ w["wk"]).reshape(b, t, KV_HEADS, size), position)
    v = (y @ w["wv"]).reshape(b, t, KV_HEADS, size)
    x = x + attention(q.reshape(b, t, KV_HEADS, HEADS // KV_HEADS, size), k, v) @ w["wo"]
    y = rms_norm(x, w["norm2"])
    return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]


def loss_of(w, tokens, targets, attention, first=0):
    """What these tokens, the first of which is the first-th of each sequence, add to the mean loss of the step.

    attention(q, k, v): causal; q: [batch, time, kv heads, group, size], k, v: [batch, time, kv heads, size];
    returns [batch, time, width].
    """
    x = w["embed"].astype(COMPUTE)[tokens]
    block = jax.checkpoint(lambda x, w: layer(x, w, first, attention))
    x, _ = lax.scan(lambda x, w: (block(x, w), None), x, w["layers"])
    logits = jnp.einsum("btd,vd->btv", rms_norm(x, w["norm"]), w["embed"].astype(COMPUTE),
                        preferred_element_type=jnp.float32)
    of_target = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - of_target).sum() / (ARGS.batch * ARGS.length)


def optimiser():
    warm = min(20, ARGS.steps // 5)
    rate = optax.warmup_cosine_decay_schedule(0.0, 3e-3, warm, ARGS.steps, 3e-4)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95, weight_decay=0.1))



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


def mean(losses, n=10):
    """Of each step and up to n on either side."""
    total = np.cumsum([0, *losses])
    step = np.arange(len(losses))
    begin, end = np.maximum(step - n, 0), np.minimum(step + n + 1, len(losses))
    return (total[end] - total[begin]) / (end - begin)


def store(out, platform, losses):
    """The losses as a file of this platform's; gives those of all that did the same work into that folder, by platform."""
    did = f"# {ARGS.batch} x {ARGS.length} bytes a step, {ARGS.layers} layers of {ARGS.width}, seed {ARGS.seed}"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"loss.{platform}.tsv").write_text("\n".join([did, *(f"{i + 1}\t{x:.9g}" for i, x in enumerate(losses))]) + "\n")
    texts = {f.suffixes[0][1:]: f.read_text().splitlines() for f in sorted(out.glob("loss.*.tsv"))}
    return {platform: [float(line.split("\t")[1]) for line in lines[1:]] for platform, lines in texts.items() if lines[0] == did}


def draw(of, path, title):
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("matplotlib is not installed: no picture of the loss", file=sys.stderr)
        return
    figure, axes = plt.subplots(figsize=(7, 4))
    for i, (platform, losses) in enumerate(reversed(of.items())):
        steps = range(1, len(losses) + 1)
        axes.plot(steps, losses, f"C{i}", alpha=0.25, linewidth=0.8)
        axes.plot(steps, mean(losses), f"C{i}", linestyle="--" if i else "-", label={"cpu": "XLA:CPU", "rondo": "Rondo"}.get(platform, platform))
    axes.set(xlabel="step", ylabel="loss (nats a byte), mean of 21 steps", title=title)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def shown(bar, losses, first, mesh):
    if jax.process_index() == 0:
        done = len(losses)
        rate = (done - 1) * ARGS.batch * ARGS.length / (time.perf_counter() - first)
        bar.show(done, f"loss {losses[-1]:.4f}  {rate:,.0f} tokens/s  {memory_text(mesh.local_devices)}")


def train(step_of, how):
    """step_of(optimiser, mesh) -> step(weights, state, tokens, targets) -> weights, state, loss; tokens lie split along the
    sequence.  how: what the picture of the loss says of it."""
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
    losses, bar, first, before = [], Progress(ARGS.steps), begin, None
    for i, (x, y) in enumerate(batches(text, ARGS.steps)):
        w, state, loss = step(w, state, put(x), put(y))
        if i == 0:
            loss.block_until_ready()
            first = time.perf_counter()
            say(f"compiled and ran the first step in {first - begin:.1f} s")
        else:               # read when the next step has been launched: no device waits for the host
            losses.append(float(before))
            shown(bar, losses, first, mesh)
        before = loss
    losses.append(float(before))
    shown(bar, losses, first, mesh)

    if jax.process_index():
        return
    out, platform = pathlib.Path(ARGS.out), devices[0].platform
    draw(store(out, platform, losses), out / "loss.png", f"{how} over {ARGS.devices} devices")
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {time.perf_counter() - begin:.1f} s; "
          f"{out / f'loss.{platform}.tsv'}, {out / 'loss.png'}")
    if len(losses) >= LEARNS and not losses[-1] < 0.75 * losses[0]:
        sys.exit(f"the loss fell by less than a quarter: {len(losses)} steps should do more")
