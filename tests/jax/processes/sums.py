"""What each instruction set adds up in an order of its own: an array that all have is the same in all, bit by bit, and a loop ends in all at once."""
from common import P, case, end, jax, multihost_utils, np, spread

import jax.numpy as jnp

A = np.random.default_rng(3).standard_normal((300, 300)).astype(np.float32)


def attention(a):
    q = a[:, :256].reshape(1, 300, 4, 64)
    return jax.grad(lambda q: (jax.nn.dot_product_attention(q, q * 2, q + 1) ** 2).sum())(q)


SUMS = {"row": lambda a: a @ a[0], "dot": lambda a: a[1] @ a[0], "all": lambda a: a.sum(), "rows": lambda a: a.sum(1), "softmax": lambda a: jax.nn.softmax(a), "attention": attention,
        "bf16": lambda a: a.astype(jnp.bfloat16) @ a.T.astype(jnp.bfloat16), "product": lambda a: a @ a.T, "attention_bf16": lambda a: attention(a.astype(jnp.bfloat16))}


@case
def same_everywhere():
    for name, f in SUMS.items():
        y = jax.jit(f)(spread(A, spec=P()))
        all_ = multihost_utils.process_allgather(np.atleast_1d(np.asarray(y.addressable_data(0), np.float32)).view(np.int32))
        assert (all_ == all_[0]).all(), (name, int((all_ != all_[0]).sum()))


@case
def ends_everywhere():
    x = spread(np.ones((8 * jax.device_count(), 16), np.float32))
    for seed in range(20):
        a = np.random.default_rng(seed).standard_normal((300, 300)).astype(np.float32)

        @jax.jit
        def power(a, x):
            def turn(s):
                v, norm, _, i, x = s
                w = a @ v
                m = jnp.sqrt((w * w).sum())
                return w / m, m, norm, i + 1, x + x.sum() * 1e-9
            return jax.lax.while_loop(lambda s: (s[1] != s[2]) & (s[3] < 300), turn, (jnp.ones(300) / 300 ** .5, jnp.float32(1), jnp.float32(0), 0, x))[4]
        jax.block_until_ready(power(spread(a @ a.T / 300, spec=P()), x))


end()
