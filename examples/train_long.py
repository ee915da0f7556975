#!/usr/bin/env python3
"""Train a small Llama on bytes, its sequence split over several devices: attention as a textbook writes it.

Plain JAX: nothing here knows which plug-in runs it, and nothing says how devices communicate.  The tokens lie split along
the sequence, which is all that is said; what travels, and when, is for the compiler to find.  It sees that the scores are
those of an attention whose keys lie on the axis of its queries, never makes them, and takes keys and values round a ring.

    python train_long.py --platform rondo --devices 4 --steps 240 --out demo_out
    python train_long.py --platform rondo --length 131072 --batch 1 --layers 1 --steps 2

`rondo explain` prints what was found and what it costs; train_ring.py is the same by hand.  With --processes P it is
started P times (by `rondo launch -n P`, mpirun, Slurm, ..), and the devices are spread over the processes.
"""
from llama import COMPUTE, jax, jnp, loss_of, optax, train


def attention(q, k, v):
    score = jnp.einsum("btkgd,bskd->bkgts", q, k, preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    time = jnp.arange(q.shape[1])
    score = jnp.where(time[:, None] >= time, score, -jnp.inf)
    out = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(score).astype(COMPUTE), v)
    return out.reshape(*q.shape[:2], -1)


def step_of(opt, mesh):
    def step(w, state, tokens, targets):
        loss, grad = jax.value_and_grad(loss_of)(w, tokens, targets, attention)
        update, state = opt.update(grad, state, w)
        return optax.apply_updates(w, update), state, loss

    return jax.jit(step, donate_argnums=(0, 1))


if __name__ == "__main__":
    train(step_of, "attention")
