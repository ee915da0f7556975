"""Attention over a sequence that hosts share: each turn has what one host has of the keys, or of a gradient's queries."""
import functools
import itertools
import os
import pathlib
import pickle
import re
import sys
import time

from common import ALL, DEVICES, ME, N, blocks_into, case, end

sys.path.append(str(pathlib.Path(__file__).parents[1]))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from drawn_attention import back, drawn, f32, lies, wanted  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

SEED, COUNT, FOLDER = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])      # a folder that all of them see
HEADS = os.environ.get("RONDO_RING") == "heads"
turns = itertools.count()


def of(f):
    """A case of where keys go round."""
    return f if HEADS else case(f)


def there(x, how):
    return jax.make_array_from_callback(x.shape, how, lambda i: x[i], dtype=x.dtype)


def alike(got, want, allowed, low):
    """The shards of this process are those of want; so are their NaNs."""
    for g, w, most in zip(*map(jax.tree.leaves, (got, want, allowed)), strict=True):
        w = np.asarray(w).astype(np.float32)
        for s in g.addressable_shards:
            np.testing.assert_allclose(np.asarray(s.data).astype(np.float32), w[s.index], rtol=3e-2 if low else 1e-4, atol=most)


def wanted_by_all(f, args):
    """One process asks XLA:CPU for all of them, another each time."""
    turn = next(turns)
    file = FOLDER / str(turn)
    if turn % ALL == ME:
        part = file.with_suffix(".part")
        part.write_bytes(pickle.dumps(jax.tree.map(np.asarray, wanted(f, args))))
        part.rename(file)
    until = time.monotonic() + 200
    while not file.exists():
        assert time.monotonic() < until, f"process {turn % ALL} has not said what is right"
        time.sleep(0.01)
    return pickle.loads(file.read_bytes())


def checked(f, args, mesh, specs):
    """Output and gradients are those of XLA:CPU on one device; gives the two compiled programs."""
    *lie, out = lies(mesh, *specs)
    x = [there(a, s) for a, s in zip(args, lie)] + [there(a, lies(mesh, P())[0]) for a in args[3:]]
    want, allowed = wanted_by_all(f, args)
    with jax.default_matmul_precision("highest"):
        compiled = [jax.jit(f, out_shardings=out).lower(*x).compile(), jax.jit(back(f)).lower(*x).compile()]
        got = [c(*x) for c in compiled]
    low = args[0].dtype == jnp.bfloat16
    alike(got[0], want[0], allowed[0], low)
    alike(got[1], want, allowed, low)
    return compiled


@case
def as_drawn():
    seed, left = SEED, COUNT
    while left:
        text, f, args, mesh, specs = drawn(np.random.default_rng(seed))
        if np.prod(list(mesh.values())) == N:
            print(f"{seed=} {text}", flush=True)
            checked(f, args, mesh, specs)
            left -= 1
        seed += 1


def lines(program, kind):
    return re.findall(rf"^ +kern \d+ {kind} \(.*|^coll \d+ {kind} .*", program.as_text(), re.M)


@of
def in_turns():
    """Keys go round, or queries where keys are as many; what one host has is gathered there alone; and all of it is beside computing."""
    q, k, v = (np.random.default_rng(i).normal(size=(1, 2048, h, 64)).astype(np.float32) for i, h in enumerate((4, 1, 1)))
    for kv in (1, 4):
        forward, backward = checked(lambda *x: jax.nn.dot_product_attention(*x, is_causal=True), [q, np.repeat(k, kv, 2), np.repeat(v, kv, 2)], {"x": N}, [P(None, "x")] * 4)
        assert len(lines(forward, "attention")) == ALL and len(lines(backward, "attention")) == ALL
        assert len(lines(backward, r"attention_grad(?:_add)?")) == ALL or DEVICES > 3
        for p in (forward, backward):
            sent = lines(p, "permute")
            assert len(sent) >= 2 * (ALL - 1) and not re.search(r"hops", "".join(sent)), p.as_text()
            assert len(lines(p, "all_gather")) == 0 or DEVICES > 1
            assert re.search(r"^ +coll \d+ permute .* lane 1", p.as_text(), re.M)


@of
def in_a_window():
    """What no query of a host sees does not come to it: of a window that reaches into the block before there is one turn beside that at home, of two blocks two."""
    q, k, v = (np.random.default_rng(i).normal(size=(1, 2048, h, 64)).astype(np.float32) for i, h in enumerate((4, 1, 1)))
    host = 2048 // ALL

    def attention(wide, q, k, v):
        x = jnp.einsum("bthd,bshd->bhts", q, jnp.repeat(k, 4 // k.shape[2], 2)) / 8
        behind = jnp.arange(2048)[:, None] - jnp.arange(2048)[None]
        p = jax.nn.softmax(jnp.where((behind >= 0) & (behind < wide), x, -jnp.inf), -1)
        return jnp.einsum("bhts,bshd->bthd", p, jnp.repeat(v, 4 // v.shape[2], 2))

    for wide in (100, host + 1, host + 2):
        for kv in (1, 4):
            programs = checked(functools.partial(attention, wide), [q, np.repeat(k, kv, 2), np.repeat(v, kv, 2)], {"x": N}, [P(None, "x")] * 4)
            for program, what in zip(programs, ("attention", r"attention(?:_grad(?:_add)?)?")):
                there = len(lines(program, what))
                turns = min(ALL, 2 + (wide > host + 1))
                assert there == turns if what == "attention" else there == 2 * turns or DEVICES > 3, program.as_text()


def masked(keep, q, k, v, *more):
    x = jnp.einsum("bthd,bshd->bhts", q, jnp.repeat(k, q.shape[2] // k.shape[2], 2), preferred_element_type=f32) / q.shape[3] ** 0.5
    x = jnp.where(keep(jnp.arange(x.shape[2])[:, None], jnp.arange(x.shape[3])[None], *more), x, -jnp.inf)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(x, -1).astype(v.dtype), jnp.repeat(v, q.shape[2] // v.shape[2], 2))


def dropped(q, k, v):
    """A third of all weights, as one device draws them."""
    x = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / 8, -1)
    return jnp.einsum("bhts,bshd->bthd", jnp.where(jax.random.bernoulli(jax.random.key(3), 2 / 3, x.shape), x * 1.5, 0), v)


def leaning(q, k, v):
    """Further keys count less, for each head by a factor of its own."""
    t, heads = q.shape[1], q.shape[2]
    x = jnp.einsum("bthd,bshd->bhts", q, k) / 8 - 2.0 ** -jnp.arange(1, heads + 1)[:, None, None] * jnp.abs(jnp.arange(t)[:, None] - jnp.arange(t)[None])
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(x, -1), v)


def by_heads():
    """Each host has all rows of some heads, whatever a mask is made from; where heads do not divide, keys go round (in f32: half as many bytes are gathered sooner).  No sum of gradients is made between hosts.  Each run
    draws four of these."""
    t, causal = 128 * N, lambda i, j: i >= j
    part = np.sort(np.random.default_rng(9).integers(0, 5, (1, t))).astype(np.int32)
    at = np.random.default_rng(8).permutation(t).astype(np.int32)
    cases = {
        "causal": (functools.partial(masked, causal), 2 * ALL, ALL), "all": (functools.partial(masked, lambda i, j: j >= 0), ALL, ALL),
        "window": (functools.partial(masked, lambda i, j: (i >= j) & (i - j < 150)), ALL, ALL),
        "segments": (functools.partial(masked, lambda i, j, s: (s[0][:, None] == s[0][None]) & (i >= j)), ALL, ALL, part),
        "positions": (functools.partial(masked, lambda i, j, s: s[:, None] >= s[None]), ALL, ALL, at),
        "dropout": (dropped, ALL, ALL), "leaning": (leaning, ALL, ALL),
        "groups": (functools.partial(jax.nn.dot_product_attention, is_causal=True), 2 * ALL, 1), "odd": (functools.partial(masked, causal), ALL + 1, ALL + 1),
    }
    for k, name in enumerate(np.random.default_rng(SEED).permutation([*cases])[:4]):
        f, heads, keys, *more = cases[name]
        rows = [np.random.default_rng(i).normal(size=(1, t, h, 64)) for i, h in enumerate((heads, keys, keys))]
        rows = [np.asarray(a, f32 if k % 2 or name in ("leaning", "dropout", "odd") else jnp.bfloat16) for a in rows]
        print(name, rows[0].dtype, flush=True)
        for p, least in zip(checked(f, rows + more, {"x": N}, [P(None, "x")] * 4), (4, 11)):
            divides = keys % ALL == 0
            assert (len(lines(p, "all_to_all")) >= least) == divides, p.as_text()
            assert divides or len(lines(p, "permute")) >= ALL - 1, p.as_text()
            assert not divides or DEVICES > 1 or not lines(p, "(?:permute|reduce_scatter)"), p.as_text()


if HEADS and not os.environ.get("FAR"):
    case(by_heads)


def bytes_into_a_host():
    """Two hosts of two devices, over a cable of their own: what comes through it is of each block the rows (in sixteenths) that somebody on the other side sees, once, and of the sums of its gradients,
    once; forward and backward send keys and values for themselves."""
    times, block = 20, 512 * 64 * 4
    q, k, v = (np.random.default_rng(i).normal(size=(1, 2048, h, 64)).astype(np.float32) for i, h in enumerate((4, 1, 1)))
    *lie, out = lies({"x": N}, *[P(None, "x")] * 4)
    # blocks of keys and values into host 0 and into host 1
    for what, keep, blocks in (("all", None, (2, 2)), ("near", lambda d: (d >= 0) & (d < 30), (0, 1 / 16)), ("causal", lambda d: d >= 0, (0, 2)), ("window", lambda d: (d >= 0) & (d < 100), (0, 1 / 4)),
                               ("both sides", lambda d: abs(d) < 100, (1, 1))):        # the one the first rows of a block, the other the last ones
        def f(q, k, v, keep=keep):
            x = jnp.einsum("bthd,bskd->bhts", q, k) / 8
            if keep:
                x = jnp.where(keep(jnp.arange(2048)[:, None] - jnp.arange(2048)[None]), x, -jnp.inf)
            return jnp.einsum("bhts,bskd->bthd", jax.nn.softmax(x, -1), v)

        x = [there(a, s) for a, s in zip((q, k, v), lie)]
        for g, into in ((jax.jit(f, out_shardings=out), 2 * blocks[ME]), (jax.jit(back(f)), 4 * blocks[ME] + 2 * blocks[1 - ME])):
            each = blocks_into(g, x, times, block)
            print(f"{what}: {each:.3f} blocks into host {ME}, of {into}", flush=True)
            assert into <= each <= 1.1 * into + 0.2


def bytes_of_heads():
    """Of what a host's devices have it gets, of each array, all rows of its share of heads, but for those that are its own: the formula of docs/long-context.md."""
    times, t, heads = 20, 256 * N, 2 * ALL
    block = t // N * heads * 64 * 4
    x = [there(np.random.default_rng(i).normal(size=(1, t, heads, 64)).astype(np.float32), s) for i, s in enumerate(lies({"x": N}, *[P(None, "x")] * 3))]
    f = functools.partial(masked, lambda i, j: i >= j)
    for g, arrays in ((jax.jit(f, out_shardings=x[0].sharding), 4), (jax.jit(back(f)), 11)):
        each, into = blocks_into(g, x, times, block), DEVICES * arrays * (ALL - 1) / ALL
        print(f"{each:.3f} blocks into host {ME}, of {into:.3f}", flush=True)
        assert into <= each <= 1.1 * into + 0.2


if __name__ == "__main__":
    if os.environ.get("FAR"):
        case(bytes_of_heads if HEADS else bytes_into_a_host)
    end()
