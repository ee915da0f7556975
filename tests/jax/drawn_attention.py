"""Attention over a sequence that devices share, as drawn: of test_attention.py on one process, of processes/attention.py on several."""
import jax
import jax.numpy as jnp
from jax import lax
import numpy as np
from jax.sharding import PartitionSpec as P
from xla_cpu import on_cpu

bf16, f32 = jnp.bfloat16, jnp.float32


def back(f):
    """Floats among the arguments, and cotangents -> output and gradients."""
    def g(*args):
        diff = [i for i, a in enumerate(args) if jnp.issubdtype(a.dtype, jnp.floating)]
        put = lambda x: f(*[x[diff.index(i)] if i in diff else a for i, a in enumerate(args)])
        out, pull = jax.vjp(put, [args[i] for i in diff])
        ct = jax.tree.map(lambda o: jnp.asarray(np.cos(np.arange(o.size)).astype(bf16).reshape(o.shape), o.dtype), out)      # the same in any type
        return out, pull(ct)
    return g


def bucket(d, both=True, n=32, most=128):
    """T5's, of the distance of a key from a query."""
    n = n // 2 if both else n
    side, d = ((d > 0) * n, jnp.abs(d)) if both else (0, -jnp.minimum(d, 0))
    far = n // 2 + (jnp.log(d.astype(f32) / (n // 2)) / np.log(most / (n // 2)) * (n - n // 2)).astype(jnp.int32)
    return side + jnp.where(d < n // 2, d, jnp.minimum(far, n - 1))


def lies(mesh, *specs):
    m = jax.make_mesh(tuple(mesh.values()), tuple(mesh), axis_types=(jax.sharding.AxisType.Auto,) * len(mesh))
    return [s if s is None else jax.sharding.NamedSharding(m, s) for s in specs]


def wanted(f, args):
    """Output and gradients as XLA:CPU gives them in f32; and of each array how far its own result in the operands' type is off, twice, or 3e-2 of the largest number if
    that is more; in f32 1e-4 of it."""
    low = args[0].dtype == bf16
    want = on_cpu(back(f), *[a.astype(np.float32) if a.dtype == bf16 else a for a in args])
    try:
        own = jax.block_until_ready(on_cpu(back(f), *args)) if low else want
    except jax.errors.JaxRuntimeError as e:              # XLA:CPU has no small products of bf16 whose result is f32
        if "UNIMPLEMENTED" not in str(e):
            raise
        own = want

    def allowed(w, o):
        if not w.size:
            return 0
        w, o = (np.asarray(a).astype(np.float32) for a in (w, o))
        largest = lambda a: np.max(a[~np.isnan(a)], initial=0)      # XLA:CPU's own may be NaN throughout: some of its products of bf16 are, with AMX
        return max((3e-2 if low else 1e-4) * max(largest(np.abs(w)), 1e-6), 2 * largest(np.abs(o - w)))
    return want, jax.tree.map(allowed, want, own)


def drawn(rng):
    """A sequence that is cut, anyhow: text for who looks at it, function, operands, mesh and how they lie."""
    pick = lambda *of: of[rng.integers(len(of))]
    first, causal_, window, fill = rng.integers(2), rng.integers(2), pick(0, 0, 100), pick(-np.inf, -1e30, -1e9, -1e6, -1e4)
    many = rng.integers(5) == 0      # batches, so that a kernel's tile has several groups of rows
    t, d = pick(64, 96, 128, 256) if many else pick(64, 96, 256, 1024, 1024, 1040, 1280, 2048), pick(8, 16, 64)
    s = t if causal_ or rng.integers(3) else pick(64, 128, 384) if many else pick(64, 1024, 1536)
    b, (h, kv) = 32 if many else pick(1, 2), pick((1, 1), (2, 2), (4, 2), (4, 1))
    dtype, again = pick(f32, f32, bf16), rng.integers(2)
    extra, cap = pick("", "", "segments", "bias", "lengths", "positions", "keep", "sinks", "dropout", "buckets", "buckets", "slopes", "places"), rng.integers(5) == 0
    both, n_table, added_mask = rng.integers(2), pick(2, 7, 32), rng.integers(3) == 0      # of what is learned by position
    added = pick(None, None, None, 1e-6, 0.5) if extra != "sinks" else None
    mesh, seq, batch = pick(({"x": 4}, "x", None), ({"x": 2, "y": 2}, "x", "y" if b > 1 else None), ({"x": 2, "y": 2}, ("x", "y"), None), ({"x": 2, "y": 2}, "y", None),
                            ({"x": 2}, "x", None), *(({"x": 3}, "x", None),) * (t % 3 == s % 3 == 0))
    shape = lambda n, heads: (b, heads, n, d) if first else (b, n, heads, d)
    lay = lambda dims: P(dims[0], None, dims[1]) if first else P(dims[0], dims[1])
    specs = [lay((batch, seq)), lay((batch, seq)), lay((batch, seq)), pick(lay((batch, seq)), None)]
    args = [(rng.standard_normal(shape(n, heads)) * 2 ** rng.uniform(-1, 1)).astype(np.float32) for n, heads in ((t, h), (s, kv), (s, kv))]
    more = {"": [], "positions": [rng.permutation(n).astype(np.int32) for n in (t, s)], "keep": [rng.random((1, t, s)) < 0.8], "sinks": [rng.standard_normal(h).astype(np.float32)],
            "dropout": [rng.random((h, t, s)) < 0.8], "segments": [np.sort(rng.integers(0, 4, (b, n))).astype(np.int32) for n in (t, s)], "bias": [rng.standard_normal((h, 1, s)).astype(np.float32)],
            "buckets": [rng.standard_normal((32, h) if both else (h, 32)).astype(np.float32)], "slopes": [rng.standard_normal(h).astype(np.float32) / 4],
            "places": [rng.standard_normal((n_table, h)).astype(np.float32), rng.integers(-1, n_table + 1, (t, s)).astype(np.int32)],
            "lengths": [rng.integers(np.isinf(fill), s + 1, b).astype(np.int32) * (rng.integers(4, size=b) > 0 if np.isfinite(fill) else 1)]}[extra]

    def f(q, k, v, *m):
        k, v = (jnp.repeat(x, h // kv, 1 if first else 2) for x in (k, v))
        x = jnp.einsum("bhtd,bhsd->bhts" if first else "bthd,bshd->bhts", q, k, preferred_element_type=f32) / d ** 0.5
        i, j = jnp.arange(t)[:, None], jnp.arange(s)[None]
        if cap:
            x = 4 * jnp.tanh(x / 4)
        if extra == "bias":
            x = x + m[0]
        if extra == "buckets":
            x = x + (jnp.take(m[0], bucket(j - i), axis=0).transpose(2, 0, 1) if both else m[0][:, bucket(j - i, False)])
        if extra == "places":
            x = x + m[0].at[m[1]].get(mode="clip").transpose(2, 0, 1)
        if extra == "slopes":
            x = x + m[0][:, None, None] * (j - i if both else -abs(i - j)) / 8
        keep = (i >= j if causal_ else i >= 0) & (abs(i - j) < window if window and t == s else True)
        if extra == "segments" and t == s:
            keep = keep & (m[0][:, None, :, None] == m[0][:, None, None])
        if extra == "lengths":
            keep = keep & (j < m[0][:, None, None, None]) | (j == (0 if np.isinf(fill) else -1))
        if extra == "positions":
            keep = keep & (m[0][:, None] >= m[1]) | (j == 0)
        if extra == "keep":
            keep = keep & m[0] | (j == 0)
        x = x + jnp.where(keep, 0, fill) if added_mask and extra in ("buckets", "slopes") and -1e10 < fill else jnp.where(keep, x, fill)
        if extra == "sinks":
            x = jnp.concatenate([x, jnp.broadcast_to(m[0][:, None, None], (*x.shape[:3], 1))], -1)
        p = weights(x, added)[..., :s]
        p = (jnp.where(m[0], p / 0.8, 0) if extra == "dropout" else p).astype(v.dtype)
        return jnp.einsum("bhts,bhsd->bhtd" if first else "bhts,bshd->bthd", p, v)

    deep = t == s and rng.integers(4) == 0
    g = (lambda q, k, v, *m: f(f(q, k, v, *m), k * 2, v + 1, *m)) if deep else f
    text = f"{t=} {s=} {d=} {b=} {h=} {kv=} {dtype.dtype.name} {extra=} {both=} {n_table=} {added_mask=} {cap=} {added=} {causal_=} {window=} {fill=} {first=} {again=} {deep=} {mesh} {specs}"
    return text, jax.checkpoint(g) if again else g, [a.astype(dtype) for a in args] + more, mesh, specs


def weights(x, added):
    """Softmax by hand, to whose sum something may be added; None: as jax.nn has it."""
    if added is None:
        return jax.nn.softmax(x, -1)
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + added)


POLICIES = ("everything_saveable", "nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable")


def rotated(x):
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None, None].astype(f32) * 100.0 ** (-jnp.arange(half) / half)
    c, s, a, b = jnp.cos(angle), jnp.sin(angle), x[..., :half], x[..., half:]
    return jnp.concatenate([a * c - b * s, b * c + a * s], -1)


def layer(mask, weighs, rotates, spelling, keep, own="no", added=None):
    """Attention of a layer: c, k, v of any length, and what comes with the turn.  own: keys, or keys and values, are the queries, as they are or twice them."""
    def f(c, k, v, x):
        i, j = jnp.arange(c.shape[1])[:, None], jnp.arange(c.shape[1])
        d = c.shape[-1]
        w = jnp.eye(d) * 0.5 + 0.1
        q, k, v = (c @ w, k @ w, jnp.tanh(v)) if weighs else (c, k, v)
        q = q if own == "no" else jnp.tanh(q)
        k, v = {"no": (k, v), "keys": (q, v), "twice": (2 * q, v), "all": (q, q)}[own]
        q, k = (rotated(q), rotated(k)) if rotates else (q, k)
        on = {"none": None, "causal": i >= j, "local": (i >= j) & (i - j < 20), "by turn": (i >= j) & ((x % 2 == 0) | (i - j < 20)), "window": abs(i - j) < jnp.where(x % 2 == 0, 20, 50)}[mask]
        if spelling == "jax_nn":
            o = jax.nn.dot_product_attention(q, k, v, mask=None if on is None else on[None, None])
        else:
            s = jnp.einsum("bthd,bshd->bhts", q, k) / d ** 0.5
            p = weights(s if on is None else jnp.where(on, s, -1e30), added)
            p = jnp.where(jax.random.bernoulli(jax.random.fold_in(jax.random.key(1), x), keep, p.shape), p / keep, 0) if keep else p
            o = jnp.einsum("bhts,bshd->bthd", p, v)
        return c + o if weighs else o
    return f


def drawn_layers(rng):
    """Layers in a loop, or one that a case chooses: text, and a function of q, k, v of any length."""
    pick = lambda *of: of[rng.integers(len(of))]
    one = lambda: dict(mask=pick("none", "causal", "local", "by turn", "window"), weighs=bool(rng.integers(2)), rotates=bool(rng.integers(2)), spelling=pick("jax_nn", "hand"),
                       keep=pick(0, 0, 0, 0.9), own=pick("no", "no", "keys", "twice", "all"), added=pick(None, None, 0.5))
    kinds, how, cases = [one() for _ in range(2)], pick("none", "none", "checkpoint", *POLICIES), pick("none", "none", "switch", "switch", "once")
    turns, unroll, per_turn, idle = pick(3, 4, 4, 5, 7), pick(1, 1, 2, 4), pick(1, 1, 2), rng.integers(4) == 0
    if how in POLICIES or unroll * per_turn > 1:         # several layers side by side whose queries are keys, too, are not seen in all of these
        kinds = [k | {"own": "no"} for k in kinds]
    if how in POLICIES:                                  # nor what a policy keeps of a sum that has something added
        kinds = [k | {"added": None} for k in kinds]
    fs = [layer(**k) for k in kinds] + [lambda c, k, v, x: c * 2] * bool(idle)

    def turn(c, k, v, x):
        for n in range(per_turn):
            c = lax.switch(x % len(fs), fs, c, k, v, x) if cases == "switch" else fs[n](c, k, v, x)
        return c

    def f(q, k, v):
        if cases == "once":
            return lax.switch((q[0, 0, 0, 0] > 0).astype(jnp.int32), fs, q, k, v, 0)
        g = lambda c, x: (turn(c, k, v, x), None)
        g = jax.checkpoint(g) if how == "checkpoint" else jax.checkpoint(g, policy=getattr(jax.checkpoint_policies, how)) if how != "none" else g
        return lax.scan(g, q, jnp.arange(turns, dtype=jnp.int32), unroll=unroll)[0]
    return f"{kinds} {how=} {cases=} {turns=} {unroll=} {per_turn=} {idle=}", f
