"""What a program gives, as a digest of its bits: the same on any number of devices and processes, under RONDO_REPRO."""
import hashlib
import pathlib
import sys

from common import DEVICES, ME, N, NamedSharding, P, case, end, jax, mesh, np, spread

sys.argv[1:] = ["--devices", str(DEVICES), "--steps", "3", "--batch", "2", "--length", "64", "--layers", "2", "--width", "64"]
sys.path.append(str(pathlib.Path(__file__).parents[3] / "examples"))

import jax.numpy as jnp  # noqa: E402
import llama  # noqa: E402
import train_long  # noqa: E402
from jax import lax  # noqa: E402

rng = np.random.default_rng(7)
m = mesh()


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


def say(name, tree):
    whole = jax.jit(lambda *x: x, out_shardings=NamedSharding(m, P()))(*jax.tree.leaves(tree))
    if ME == 0:
        print("bits", name, hashlib.sha256(b"".join(np.asarray(x.addressable_data(0)).tobytes() for x in whole)).hexdigest()[:16], flush=True)


def everywhere(tree):
    return jax.tree.map(lambda x: spread(np.asarray(x), m, P()), tree)


def training(compute):
    llama.COMPUTE = train_long.COMPUTE = compute
    opt = llama.optimiser()
    w = jax.jit(llama.weights)(jax.random.key(0))
    w, state = everywhere((w, jax.jit(opt.init)(w)))
    step = train_long.step_of(opt, m)
    losses = []
    for _ in range(3):
        x = rng.integers(0, 256, (2, 65)).astype(np.int32)
        w, state, loss = step(w, state, spread(x[:, :-1], m, P(None, "x")), spread(x[:, 1:], m, P(None, "x")))
        losses.append(loss)
    say(f"training {compute.__name__}", (losses, w, state))


@case
def training_f32():
    training(jnp.float32)


@case
def training_bf16():
    training(jnp.bfloat16)


@case
def layers():
    """An embedding, layer norm, a bias, sums over the split dimension of every kind, a convolution."""
    def loss(w, tokens, x):
        h = w["embed"][tokens] + x.astype(w["embed"].dtype)
        h = (h - h.mean(-1, keepdims=True)) * lax.rsqrt(h.var(-1, keepdims=True) + 1e-5) * w["scale"] + w["bias"]
        h = jax.nn.gelu(h @ w["up"] + w["b1"]) @ w["down"]
        c = lax.conv_general_dilated(h, w["conv"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
        along = jax.nn.softmax(c, axis=1) * jnp.cumsum(c, axis=1) - c.mean(1, keepdims=True) / (1 + c.var(1, keepdims=True))
        return jnp.einsum("bsd,bse->de", along, jnp.sort(h, axis=1)).sum() + jnp.log(jnp.abs(h)).max()
    d = 24
    w = everywhere(dict(embed=normal(50, d), scale=normal(d), bias=normal(d), up=normal(d, 32), b1=normal(32), down=normal(32, d), conv=normal(3, d, d)))
    tokens, x = spread(rng.integers(0, 50, (3, 80)), m, P(None, "x")), spread(normal(3, 80, d), m, P(None, "x", None))
    for dtype in (jnp.float32, jnp.bfloat16):
        def f(w, tokens, x):
            return loss(jax.tree.map(lambda a: a.astype(dtype), w), tokens, x).astype(jnp.float32)
        say(f"layers {dtype.__name__}", jax.jit(jax.value_and_grad(f))(w, tokens, x))


@case
def linear_algebra():
    """LAPACK gives other bits with more threads."""
    a = spread(normal(320, 320), m)
    say("qr", jax.jit(jnp.linalg.qr)(a))
    say("solve", jax.jit(lambda a: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a @ a.T + 320 * jnp.eye(320)), a))(a))


@case
def attentions():
    """Grouped heads, long enough for a ring, with a mask that deals unevenly, and a window; a checkpoint."""
    t = 2048
    q, k, v = (spread(normal(1, t, h, 16).astype(jnp.bfloat16), m, P(None, "x")) for h in (4, 2, 2))
    for name, kw in dict(causal=dict(is_causal=True), window=dict(is_causal=True, local_window_size=(300, 0)), full={}).items():
        @jax.checkpoint
        def f(q, k, v):
            return jax.nn.dot_product_attention(q, k, v, **kw).astype(jnp.float32)
        say(f"attention {name}", jax.jit(lambda *a: (f(*a), jax.grad(lambda *b: (f(*b) ** 2).mean(), (0, 1, 2))(*a)))(q, k, v))


@case
def arrays_go_round():
    """A state cut along an inner dimension, in another layout and donated; weights that stay; results cut as arguments are."""
    @jax.jit
    def more(s, w):
        return jnp.tanh(s @ w), (s * s).sum(0)
    s, w = spread(normal(6, 8, 16, 10), m, P(None, None, "x", None)), everywhere(normal(10, 10))
    turn = jax.jit(lambda s: s.swapaxes(0, 2) * 2, out_shardings=NamedSharding(m, P("x")))       # of one device JAX knows the sharding of no result else
    give = jax.jit(lambda s, w: (s + more(s, w)[0], w + s.mean()), donate_argnums=(0,), out_shardings=(s.sharding, w.sharding))
    for _ in range(3):
        t, sums = more(s, w)
        old, (s, v) = s, give(s, w)
        assert old.is_deleted() and not w.is_deleted()
        say("round", (t, sums, s, v, turn(s), t[:, 1:], jnp.sum(s)))
    jax.tree.map(lambda x: x.delete(), (t, v))
    kept = [np.asarray(x.data) for x in s.addressable_shards]
    was = [x.copy() for x in kept]
    give(s, w)
    assert all((a == b).all() for a, b in zip(kept, was, strict=True))


if N > 1:
    @case
    def two_axes():
        both = mesh(2, N // 2, names=("data", "x"))
        x, w = spread(normal(4, 32, 16), both, P("data", "x")), spread(normal(16, 16), both, P(None, "x"))
        loss, grad = jax.jit(jax.value_and_grad(lambda w, x: jnp.sin(x @ w).var(), (0, 1)))(w, x)
        copy = jax.jit(lambda *x: x, out_shardings=NamedSharding(both, P()))(loss, *grad)
        if ME == 0:
            print("bits2", hashlib.sha256(b"".join(np.asarray(x.addressable_data(0)).tobytes() for x in copy)).hexdigest()[:16], flush=True)

end()
