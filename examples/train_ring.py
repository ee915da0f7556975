#!/usr/bin/env python3
"""Train a small Llama on bytes, its sequence split over several devices, with ring attention written by hand.

Plain JAX: nothing here knows which plug-in runs it.  Each device holds a piece of every sequence; keys and values go
round the ring with ppermute while queries stay, and a running softmax joins the pieces.  The whole step, optimiser
included, is one shard_map: weights are replicated, tokens are split, gradients are summed.  train_long.py leaves all of
that to the compiler.

    python train_ring.py --platform rondo --devices 4 --steps 240 --out demo_out

With --processes P it is started P times (by `rondo launch -n P`, mpirun, Slurm, ..), and the devices are spread
over the processes.
"""
from llama import COMPUTE, jax, jnp, lax, loss_of, optax, P, train


def ring_attention(q, k, v):
    """In turn i this device sees the keys of the device i places before it.  A running maximum m, sum l and
    weighted values acc make the softmax exact without ever holding a row of it.
    """
    n, me = lax.axis_size("cp"), lax.axis_index("cp")
    time_ = q.shape[1]
    scale = q.shape[-1] ** -0.5
    row = me * time_ + jnp.arange(time_)
    ring = [(i, (i + 1) % n) for i in range(n)]

    @jax.checkpoint                     # a gradient makes the scores of a block again, or it would keep those of all turns
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


def step_of(opt, mesh):
    def step(w, state, tokens, targets):
        first = lax.axis_index("cp") * tokens.shape[1]
        loss, grad = jax.value_and_grad(loss_of)(w, tokens, targets, ring_attention, first)
        loss, grad = lax.psum((loss, grad), "cp")
        update, state = opt.update(grad, state, w)
        return optax.apply_updates(w, update), state, loss

    split = P(None, "cp")
    whole = jax.shard_map(step, mesh=mesh, in_specs=(P(), P(), split, split), out_specs=(P(), P(), P()), check_vma=False)
    return jax.jit(whole, donate_argnums=(0, 1))


if __name__ == "__main__":
    train(step_of, "ring attention")
