"""Attention in the forms that programs write it: recognised, forward and backward, and equal to XLA:CPU; and what only looks like it, which is left
alone or still right."""
import functools
import itertools
import os
import re
import subprocess
import sys

os.environ["RONDO_ATTENTION"] = "on"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from drawn_attention import back, bucket, drawn, drawn_layers, layer as one_layer, lies, wanted as wanted_drawn  # noqa: E402
from jax import lax  # noqa: E402
from xla_cpu import on_cpu  # noqa: E402

B, T, H, D = 2, 40, 4, 16
FILL = -0.7 * float(np.finfo(np.float32).max)
bf16, f32 = jnp.bfloat16, jnp.float32
pytestmark = [pytest.mark.only_rondo, pytest.mark.many]


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def qkv(b=B, t=T, s=None, h=H, k=None, d=D, e=None, dtype=np.float32, first=False):
    s, k, e = s or t, k or h, e or d
    x = normal(b, t, h, d, seed=1, dtype=dtype), normal(b, s, k, d, seed=2, dtype=dtype), normal(b, s, k, e, seed=3, dtype=dtype)
    return tuple(a.swapaxes(1, 2) for a in x) if first else x


def causal(t=T, s=None):
    return jnp.arange(t)[:, None] >= jnp.arange(s or t)[None, :]


def between(t=T, s=None):
    """How far a key is behind a query."""
    return jnp.arange(s or t) - jnp.arange(t)[:, None]


def scores(q, k):
    return jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])


def values(p, v):
    return jnp.einsum("bhts,bshd->bthd", p, v)


dpa = jax.nn.dot_product_attention
FORMS = {}


def form(args=None, **how):
    def add(f):
        FORMS[f.__name__] = (f, args or qkv, how)
        return f
    return add


# --- jax.nn -----------------------------------------------------------------------------------------------------

@form()
def jax_nn(q, k, v): return dpa(q, k, v)


@form()
def loss_of_squares(q, k, v):
    """The cotangent is the output, twice."""
    return (dpa(q, k, v, is_causal=True) ** 2).sum()


@form()
def jax_nn_causal(q, k, v): return dpa(q, k, v, is_causal=True)


@form(lambda: qkv(k=2))
def jax_nn_groups(q, k, v): return dpa(q, k, v, is_causal=True)


@form(lambda: qkv(k=1))
def jax_nn_one_key_head(q, k, v): return dpa(q, k, v, scale=0.3)


@form(lambda: (*qkv(), np.random.default_rng(0).random((B, 1, T, T)) < 0.7))
def jax_nn_mask(q, k, v, mask): return dpa(q, k, v, mask=mask)


@form(lambda: (*qkv(), normal(1, H, 1, T)))
def jax_nn_bias_of_keys(q, k, v, bias): return dpa(q, k, v, lax.stop_gradient(bias))


@form(lambda: (*qkv(), normal(1, H, T, T)))
def jax_nn_bias(q, k, v, bias): return dpa(q, k, v, lax.stop_gradient(bias), is_causal=True)


@form()
def jax_nn_window(q, k, v): return dpa(q, k, v, local_window_size=(6, 2))


@form(lambda: qkv(b=1, t=64, d=32))
def jax_nn_causal_window(q, k, v):
    """Its rows have few keys, of which a program makes dq nearer than a rounding of what it is the sum of."""
    return dpa(q, k, v, is_causal=True, local_window_size=(100, 0))


@form()
def jax_nn_lengths(q, k, v):
    n = np.array([30, 17], np.int32)
    return dpa(q, k, v, query_seq_lengths=n, key_value_seq_lengths=n)


@form(lambda: qkv(dtype=bf16), tol=3e-2)
def jax_nn_bf16(q, k, v): return dpa(q, k, v, is_causal=True)


# --- by hand, layouts --------------------------------------------------------------------------------------------

@form()
def einsum(q, k, v): return values(jax.nn.softmax(scores(q, k)), v)


@form(lambda: qkv(first=True))
def heads_first(q, k, v):
    return jax.nn.softmax(jnp.where(causal(), q @ k.swapaxes(-1, -2) * 0.25, -jnp.inf)) @ v


@form(lambda: (normal(T, D), normal(T, D, seed=5), normal(T, D, seed=6)))
def one_head(q, k, v): return jax.nn.softmax(q @ k.T / 4) @ v


@form()
def transposed(q, k, v):
    x = jnp.einsum("bshd,bthd->bhst", k, q) / 4
    return jnp.einsum("bhst,bshd->bhdt", jax.nn.softmax(jnp.where(causal().T, x, -1e30), 2), v)


@form()
def keys_before_heads(q, k, v):
    x = jnp.einsum("bthd,bshd->btsh", q, k) / 4
    return jnp.einsum("btsh,bshd->bthd", jax.nn.softmax(x, axis=2), v)


@form(lambda: qkv(t=24, s=56, e=24))
def longer_keys_wide_values(q, k, v): return values(jax.nn.softmax(scores(q, k)), v)


def one_query():
    q, k, v = qkv()
    return q[:, :1], k, v, np.array([7, 31], np.int32)


@form(one_query)
def decode(q, k, v, n):
    live = jnp.arange(T) < n[:, None]
    return values(jax.nn.softmax(jnp.where(live[:, None, None], scores(q, k), FILL)), v)


@form(lambda: tuple(x[0] for x in one_query()[:3]))
def decode_turned(q, k, v):
    return jnp.einsum("sht,shd->thd", jax.nn.softmax(jnp.einsum("shd,thd->sht", k, q) / 4, axis=0), v)


@form()
def under_vmap(q, k, v):
    one = lambda q, k, v: jax.nn.softmax(jnp.where(causal(), q @ k.T * 0.25, -1e9)) @ v
    return jax.vmap(jax.vmap(one, 1, 1))(q, k, v)


@form(lambda: qkv(k=2))
def groups_by_reshape(q, k, v):
    g = q.reshape(B, T, 2, H // 2, D)
    p = jax.nn.softmax(jnp.where(causal(), jnp.einsum("btkgd,bskd->bkgts", g, k) / 4, FILL))
    return jnp.einsum("bkgts,bskd->btkgd", p, v).reshape(q.shape)


@form(lambda: qkv(k=2))
def groups_by_repeat(q, k, v):
    k, v = jnp.repeat(k, 2, 2), jnp.repeat(v, 2, 2)
    return values(jax.nn.softmax(jnp.where(causal(), scores(q, k), FILL)), v)


@form(lambda: qkv(k=1))
def one_head_by_repeat(q, k, v):
    k, v = jnp.repeat(k, H, 2), jnp.repeat(v, H, 2)
    return values(jax.nn.softmax(jnp.where(causal(), scores(q, k), FILL)), v)


@form(lambda: qkv(k=1))
def one_head_broadcast(q, k, v):
    k, v = (jnp.broadcast_to(x, q.shape) for x in (k, v))
    return values(jax.nn.softmax(scores(q, k) + jnp.arange(H)[:, None, None] * jnp.arange(T)), v)


@form(lambda: qkv(k=2))
def groups_by_tile(q, k, v):
    k, v = jnp.tile(k, (1, 1, 2, 1)), jnp.tile(v, (1, 1, 2, 1))
    return values(jax.nn.softmax(jnp.where(causal(), scores(q, k), FILL)), v)


@form(lambda: qkv(k=2))
def keys_and_values_for_other_heads(q, k, v):
    """No two heads share both."""
    k, v = jnp.repeat(k, 2, 2), jnp.tile(v, (1, 1, 2, 1))
    return values(jax.nn.softmax(jnp.where(causal(), scores(q, k), FILL)), v)


@form(lambda: qkv(k=2))
def keys_shared_values_not(q, k, v):
    k, v = jnp.repeat(k, 2, 2), jnp.concatenate([v, v + 1], 2)
    return values(jax.nn.softmax(jnp.where(causal(), scores(q, k), FILL)), v)


@form(lambda: qkv(k=2))
def groups_by_vmap(q, k, v):
    one = lambda q, k, v: values(jax.nn.softmax(scores(q, k)), v)
    g = jax.vmap(one, (3, None, None), 3)(q.reshape(B, T, 2, 2, D), k, v)
    return g.reshape(q.shape)


# --- scores and masks ------------------------------------------------------------------------------------------------

@form()
def scaled_queries(q, k, v):
    return values(jax.nn.softmax(jnp.where(causal(), jnp.einsum("bthd,bshd->bhts", q / np.sqrt(D).astype(np.float32), k), FILL)), v)


@form()
def additive_mask(q, k, v): return values(jax.nn.softmax(scores(q, k) + jnp.where(causal(), 0, -1e9)), v)


@form(lambda: (*qkv(), (np.random.default_rng(0).random((B, T)) < 0.8).astype(np.float32)))
def additive_from_floats(q, k, v, keep): return values(jax.nn.softmax(scores(q, k) + ((1.0 - lax.stop_gradient(keep)) * -1e9)[:, None, None, :]), v)


def some_rows_dead():
    mask = np.random.default_rng(0).random((B, 1, T, T)) < 0.6
    mask[0, :, 3] = False
    return *qkv(), mask


@form(some_rows_dead)
def rows_without_keys(q, k, v, mask): return values(jax.nn.softmax(jnp.where(mask, scores(q, k), -jnp.inf)), v)


@form(some_rows_dead)
def rows_without_keys_finite(q, k, v, mask): return dpa(q, k, v, mask=mask)


@form(some_rows_dead)
def rows_without_keys_guarded(q, k, v, mask):
    x = jnp.where(mask, scores(q, k), -jnp.inf)
    m = lax.stop_gradient(x.max(-1, keepdims=True))
    e = jnp.exp(x - jnp.where(jnp.isfinite(m), m, 0))
    z = e.sum(-1, keepdims=True)
    return values(e / jnp.where(z == 0, 1, z), v)


@form()
def two_masks(q, k, v):
    x = jnp.where(causal(), scores(q, k), -1e30)
    return values(jax.nn.softmax(jnp.where(causal().T | (jnp.arange(T) % 3 > 0)[:, None], x, -1e30)), v)


@form()
def soft_cap(q, k, v): return values(jax.nn.softmax(jnp.where(causal(), 5 * jnp.tanh(scores(q, k) / 5), FILL)), v)


@form()
def alibi(q, k, v):
    slope = 2.0 ** -jnp.arange(1.0, 1.0 + H)
    distance = (jnp.arange(T)[:, None] - jnp.arange(T)).astype(f32)
    return values(jax.nn.softmax(jnp.where(distance >= 0, scores(q, k) - slope[:, None, None] * distance, -1e30)), v)


@form(lambda: (*qkv(), np.sort(np.random.default_rng(0).integers(0, 4, (B, T)), 1).astype(np.int32)))
def segments(q, k, v, seg):
    return values(jax.nn.softmax(jnp.where(((seg[:, :, None] == seg[:, None, :]) & causal())[:, None], scores(q, k), FILL)), v)


@form(lambda: (*qkv(), np.random.default_rng(0).permutation(T).astype(np.int32)))
def positions_as_data(q, k, v, p): return values(jax.nn.softmax(jnp.where(p[:, None] >= p, scores(q, k), FILL)), v)


# --- a factor of the scores that is learned ----------------------------------------------------------------------------------

# --- learned numbers by position ---------------------------------------------------------------------------

@form(lambda: (*qkv(), normal(32, H)))
def buckets_of_distances(q, k, v, table): return values(jax.nn.softmax(scores(q, k) + table[bucket(between())].transpose(2, 0, 1)), v)


@form(lambda: (*qkv(), normal(32, H)))
def buckets_taken(q, k, v, table):
    """As Flax's Embed has it: what is outside would be NaN."""
    x = jnp.take(table, bucket(between()), axis=0).transpose(2, 0, 1)[None] + jnp.where(causal(), 0, -1e10)
    return values(jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) + x), v)


@form(lambda: (*qkv(), normal(H, 32)))
def buckets_of_the_past(q, k, v, table): return values(jax.nn.softmax(jnp.where(causal(), scores(q, k) + table[:, bucket(between(), False)], FILL)), v)


@form(lambda: (*qkv(t=24, s=56), normal(32, H)))
def buckets_of_longer_keys(q, k, v, table): return values(jax.nn.softmax(scores(q, k) + table[bucket(between(24, 56) - 32)].transpose(2, 0, 1)), v)


@form(lambda: (*qkv(k=2), normal(32, H)))
def buckets_of_grouped_heads(q, k, v, table):
    x = jnp.einsum("btkgd,bskd->bkgts", q.reshape(B, T, 2, 2, D), k) + table[bucket(between())].transpose(2, 0, 1).reshape(2, 2, T, T)
    return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(x / 4), v).reshape(q.shape)


@form(lambda: (*qkv(k=1), normal(17)))
def places_of_all_heads(q, k, v, table): return values(jax.nn.softmax(scores(q, jnp.repeat(k, H, 2)) + table[jnp.clip(between(), -8, 8) + 8]), jnp.repeat(v, H, 2))


@form(lambda: (*qkv(t=36), normal(121, H)))
def places_in_a_window(q, k, v, table):
    """Two dimensions of positions, as a constant (Liu et al., Swin Transformer, 2021)."""
    at = np.stack(np.divmod(np.arange(36), 6))
    i, j = at[:, :, None] - at[:, None] + 5
    x = table[(i * 11 + j).reshape(-1)].reshape(36, 36, H).transpose(2, 0, 1)
    return values(jax.nn.softmax(scores(q, k) + x), v)


@form(lambda: (*qkv(t=36, k=2), normal(121, H)))
def places_from_indices(q, k, v, table):
    at = jnp.arange(36)
    i, j = (x[:, None] - x + 5 for x in (at // 6, at % 6))
    x = jnp.einsum("btkgd,bskd->bkgts", q.reshape(B, 36, 2, 2, D), k) / 4 + table[i * 11 + j].transpose(2, 0, 1).reshape(2, 2, 36, 36)
    return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(x), v).reshape(q.shape)


@form(lambda: (*qkv(), normal(50, H), np.random.default_rng(0).integers(-3, 60, (T, T)).astype(np.int32)))
def places_as_data(q, k, v, table, at): return values(jax.nn.softmax(scores(q, k) + table.at[at].get(mode="clip").transpose(2, 0, 1)), v)


@form(lambda: (*qkv(), normal(32, H), np.float32(1.3)))
def buckets_under_a_cap(q, k, v, table, t): return values(jax.nn.softmax(5 * jnp.tanh((scores(q, k) * t + table[bucket(between())].transpose(2, 0, 1)) / 5)), v)


@form(lambda: (*qkv(), normal(32, H)), count=3)
def buckets_of_all_layers(q, k, v, table):
    """One bias for all, as T5 has it."""
    x = table[bucket(between())].transpose(2, 0, 1)
    for _ in range(3):
        q = q + values(jax.nn.softmax(scores(q, k) + x), v)
    return q


@form(lambda: (*qkv(dtype=bf16), normal(32, H, dtype=bf16)), tol=3e-2)
def buckets_bf16(q, k, v, table): return values(jax.nn.softmax((scores(q, k) + table[bucket(between())].transpose(2, 0, 1)).astype(f32)).astype(bf16), v)


@form(lambda: (*qkv(), normal(H)))
def slopes(q, k, v, m): return values(jax.nn.softmax(scores(q, k) + m[:, None, None] * between() + jnp.where(causal(), 0, -1e9)), v)


@form(lambda: (*qkv(), normal(H)))
def slopes_both_ways(q, k, v, m):
    i, j = jnp.arange(T, dtype=f32)[:, None], jnp.arange(T, dtype=f32)
    return values(jax.nn.softmax(scores(q, k) - jnp.exp(m)[:, None, None] * jnp.abs(i - j)), v)


@form(lambda: (*qkv(k=2), normal(2, 2)))
def slopes_of_grouped_heads(q, k, v, m):
    x = jnp.einsum("btkgd,bskd->bkgts", q.reshape(B, T, 2, 2, D), k) / 4 + m[:, :, None, None] * between() / 8
    return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(jnp.where(causal(), x, FILL)), v).reshape(q.shape)


@form(lambda: (*qkv(), 1 + 0.1 * normal(H)))
def factor_of_heads(q, k, v, t): return values(jax.nn.softmax(jnp.where(causal(), scores(q, k) * t[:, None, None], FILL)), v)


@form(lambda: (*qkv(), np.float32(1.3)))
def factor_of_all(q, k, v, t): return values(jax.nn.softmax(jnp.where(causal(), jnp.einsum("bthd,bshd->bhts", q, k) * t, -jnp.inf)), v)


@form(lambda: (*qkv(), np.float32(0)))
def factor_of_nothing(q, k, v, t): return values(jax.nn.softmax(scores(q, k) * t), v)


@form(lambda: (*qkv(), 2 + 0.1 * normal(H)))
def divisor_of_heads(q, k, v, t): return values(jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / t[:, None, None]), v)


@form(lambda: (*qkv(), 1 + 0.1 * normal(B, H, T, 1)))
def factor_of_rows(q, k, v, t): return values(jax.nn.softmax(scores(q, k) * t), v)


@form(lambda: (*qkv(), 1 + 0.1 * normal(B, 1, 1, 1)))
def factor_of_batches(q, k, v, t): return values(jax.nn.softmax(scores(q, k) * t), v)


@form(lambda: (*qkv(k=2), 1 + 0.1 * normal(2, 2)))
def factor_of_grouped_heads(q, k, v, t):
    x = jnp.einsum("btkgd,bskd->bkgts", q.reshape(B, T, 2, 2, D), k) * t[:, :, None, None]
    return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(jnp.where(causal(), x, FILL)), v).reshape(B, T, H, D)


@form(lambda: (*qkv(), np.float32(1.3)))
def factor_under_a_cap(q, k, v, t): return values(jax.nn.softmax(jnp.where(causal(), 5 * jnp.tanh(scores(q, k) * t / 5), FILL)), v)


def length_one(x): return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


@form()
def queries_and_keys_of_length_one(q, k, v):
    return values(jax.nn.softmax(jnp.where(causal(), jnp.einsum("bthd,bshd->bhts", length_one(q), length_one(k)) * 10, -jnp.inf)), v)


@form(lambda: (*qkv(), 2 + normal(H, 1, 1)))
def cosines(q, k, v, t):
    """Swin Transformer V2, section 3.2."""
    return values(jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", length_one(q), length_one(k)) * jnp.exp(jnp.minimum(t, np.log(100)))), v)


# --- exponentials and normalisers ---------------------------------------------------------------------------------------

@form()
def by_hand(q, k, v):
    x = jnp.where(causal(), scores(q, k), -1e9)
    e = jnp.exp(x - lax.stop_gradient(x.max(-1, keepdims=True)))
    return values(e / e.sum(-1, keepdims=True), v)


@form()
def gradient_through_max(q, k, v):
    x = jnp.where(causal(), scores(q, k), -1e9)
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return values(e, v) / e.sum(-1).swapaxes(1, 2)[..., None]


def kept_from_zero(x, least, how="add", stop=False):
    """Weights whose sum has something added, or is no less than that: the gradient through the maximum does not cancel."""
    m = x.max(-1, keepdims=True)
    e = jnp.exp(x - (lax.stop_gradient(m) if stop else m))
    z = e.sum(-1, keepdims=True)
    return e / (z + least if how == "add" else jnp.maximum(z, least))


@form()
def a_little_in_the_sum(q, k, v): return values(kept_from_zero(jnp.where(causal(), scores(q, k), FILL), 1e-6), v)


@form()
def much_in_the_sum(q, k, v): return values(kept_from_zero(scores(q, k), 0.5), v)


@form()
def much_in_the_sum_stopped(q, k, v): return values(kept_from_zero(jnp.where(causal(), scores(q, k), -jnp.inf), 0.5, stop=True), v)


@form()
def sum_no_less_than_some(q, k, v): return values(kept_from_zero(jnp.where(causal(), scores(q, k), -1e9), 3, "max"), v)


@form()
def much_in_the_sum_divided_last(q, k, v):
    x = 5 * jnp.tanh(jnp.where(causal(), scores(q, k), -1e9) / 5)
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return values(e, v) / (e.sum(-1) + 0.5).swapaxes(1, 2)[..., None]


@form(lambda: qkv(k=2))
def much_in_the_sum_of_groups(q, k, v):
    x = jnp.einsum("btkgd,bskd->bkgts", q.reshape(B, T, 2, 2, D), k) / 4
    return jnp.einsum("bkgts,bskd->btkgd", kept_from_zero(jnp.where(causal(), x, FILL), 0.5), v).reshape(q.shape)


def ties():
    q, k, v = qkv()
    return q, k[:, np.arange(T) // 3], v


@form(ties)
def several_highest(q, k, v): return values(kept_from_zero(jnp.where(causal(), scores(q, k), FILL), 0.5), v)


@form(lambda: qkv(dtype=bf16), tol=3e-2)
def much_in_the_sum_in_f32(q, k, v): return values(kept_from_zero(jnp.where(causal(), scores(q, k).astype(f32), FILL), 0.5).astype(bf16), v)


@form()
def no_max(q, k, v):
    e = jnp.exp(scores(q, k) * 0.3)
    return values(e, v) / e.sum(-1).swapaxes(1, 2)[..., None]


@form()
def exp2(q, k, v):
    x = jnp.where(causal(), jnp.einsum("bthd,bshd->bhts", q, k) * (0.25 * np.log2(np.e)), -1e9)
    e = jnp.exp2(x - lax.stop_gradient(x.max(-1, keepdims=True)))
    return values(e / e.sum(-1, keepdims=True), v)


@form()
def log_softmax(q, k, v): return values(jnp.exp(jax.nn.log_softmax(scores(q, k))), v)


@form()
def log_sum_exp(q, k, v):
    x = jnp.where(causal(), scores(q, k), -1e9)
    return values(jnp.exp(x - jax.nn.logsumexp(x, axis=-1, keepdims=True)), v)


@form()
def masked_after_exp(q, k, v):
    x = scores(q, k)
    e = jnp.where(causal(), jnp.exp(x - lax.stop_gradient(x.max(-1, keepdims=True))), 0)
    return values(e / e.sum(-1, keepdims=True), v)


@form()
def reciprocal(q, k, v):
    x = scores(q, k)
    e = jnp.exp(x - lax.stop_gradient(x.max(-1, keepdims=True)))
    return values(e * (1 / e.sum(-1, keepdims=True)), v)


@form(lambda: (*qkv(), np.random.default_rng(0).random((B, H, T, T)) < 0.8))
def dropout(q, k, v, keep): return values(jnp.where(keep, jax.nn.softmax(scores(q, k)) / 0.8, 0), v)


@form(lambda: (*qkv(), np.random.default_rng(0).random((1, 1, T, T)) < 0.8))
def dropout_by_product(q, k, v, keep): return values(jax.nn.softmax(scores(q, k)) * (keep.astype(f32) / 0.8), v)


@form()
def with_log_of_sums(q, k, v):
    x = scores(q, k)
    return values(jax.nn.softmax(x), v), jax.nn.logsumexp(x, axis=-1)


# --- sinks -----------------------------------------------------------------------------------------------------------------------------

def sunk():
    return *qkv(), 1 + normal(H, seed=9)


@form(sunk)
def sinks_beside_scores(q, k, v, sink):
    x = jnp.where(causal(), scores(q, k), FILL)
    column = jnp.broadcast_to(sink[:, None, None], (*x.shape[:3], 1))
    return values(jax.nn.softmax(jnp.concatenate([x, column], -1))[..., :-1], v)


@form(sunk)
def sinks_before_scores(q, k, v, sink):
    x = jnp.where(causal(), scores(q, k), -jnp.inf)
    column = jnp.broadcast_to(sink[:, None, None], (*x.shape[:3], 1))
    return values(jax.nn.softmax(jnp.concatenate([column, x], -1))[..., 1:], v)


@form(sunk)
def sinks_in_the_sum(q, k, v, sink):
    x, s = jnp.where(causal(), scores(q, k), FILL), sink[:, None, None]
    m = lax.stop_gradient(jnp.maximum(x.max(-1, keepdims=True), s))
    p = jnp.exp(x - m)
    return values(p / (p.sum(-1, keepdims=True) + jnp.exp(s - m)), v)


@form()
def one_more_in_the_sum(q, k, v):
    e = jnp.exp(scores(q, k))
    return values(e / (1 + e.sum(-1, keepdims=True)), v)


@form(sunk, back=False)
def sinks_after_all(q, k, v, sink):
    x = jnp.where(causal(), scores(q, k), FILL)
    share = jax.nn.sigmoid(jax.nn.logsumexp(x, axis=-1) - sink[:, None])
    return values(jax.nn.softmax(x), v) * share.swapaxes(1, 2)[..., None]


@form(sunk, back=False)
def sinks_and_gradient_through_max(q, k, v, sink):
    x = jnp.where(causal(), scores(q, k), FILL)
    x = jnp.concatenate([x, jnp.broadcast_to(sink[:, None, None], (*x.shape[:3], 1))], -1)
    e = jnp.exp(x - x.max(-1, keepdims=True))
    return values(e[..., :-1], v) / e.sum(-1).swapaxes(1, 2)[..., None]


# --- types ---------------------------------------------------------------------------------------------------------------------

@form(lambda: qkv(dtype=bf16), tol=3e-2)
def softmax_in_f32(q, k, v):
    p = jax.nn.softmax(jnp.where(causal(), scores(q, k).astype(f32), FILL)).astype(v.dtype)
    return values(p, v)


@form(lambda: qkv(dtype=bf16), tol=3e-2)
def sums_in_f32(q, k, v):
    x = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=f32) / 4
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(x).astype(bf16), v, preferred_element_type=f32).astype(bf16)


@form(lambda: (*qkv(dtype=bf16)[:2], qkv()[2]), tol=3e-2)
def values_in_f32(q, k, v): return values(jax.nn.softmax(scores(q, k).astype(f32)), v)


@form(lambda: qkv(k=2, dtype=bf16), tol=4e-2)
def maxtext(q, k, v):
    x = jnp.einsum("btkgd,bskd->bkgts", q.reshape(B, T, 2, 2, D), k)
    see = jnp.where(jnp.where(causal(), 0.0, FILL) >= FILL * 0.5, True, False)
    x = jnp.where(see, x / 4, jnp.asarray(FILL, x.dtype))
    e = jnp.exp(x - x.max(-1, keepdims=True))
    o = jnp.einsum("bkgts,bskd->btkgd", e, v).reshape(q.shape)
    return o / e.sum(-1).reshape(B, H, T).swapaxes(1, 2)[..., None]


# --- loops and checkpoints ------------------------------------------------------------------------------------------------------

def weights(n=3):
    return [normal(n, 32, H * D, seed=i) / 6 for i in range(3)] + [normal(n, H * D, 32, seed=9) / 8]


def layer(x, w):
    q, k, v = (jnp.einsum("btm,mn->btn", x, a).reshape(B, T, H, D) for a in w[:3])
    return x + dpa(q, k, v, is_causal=True).reshape(B, T, H * D) @ w[3]


@form(lambda: (normal(B, T, 32), *weights()))
def layers(x, *w):
    return lax.scan(lambda x, w: (layer(x, w), None), x, w)[0]


@form(lambda: (normal(B, T, 32), *weights()))
def layers_checkpointed(x, *w):
    return lax.scan(lambda x, w: (jax.checkpoint(layer)(x, w), None), x, w)[0]


@form(lambda: (normal(B, T, 32), *weights()))
def layers_dots_saved(x, *w):
    f = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)
    return lax.scan(lambda x, w: (f(x, w), None), x, w)[0]


@form(lambda: (normal(B, T, 32), *weights()))
def layers_some_dots_saved(x, *w):
    f = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable, prevent_cse=False)
    return lax.scan(lambda x, w: (f(x, w), None), x, w)[0]


@form(lambda: (normal(B, T, 32), *weights()), count=3)
def layers_unrolled(x, *w):
    for i in range(3):
        x = layer(x, [a[i] for a in w])
    return x


@form(lambda: (normal(B, T, 32), *weights()), count=3)
def layers_unrolled_checkpointed(x, *w):
    for i in range(3):
        x = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)(x, [a[i] for a in w])
    return x


@form()
def in_a_loop(q, k, v):
    return lax.fori_loop(0, 2, lambda i, q: q + values(jax.nn.softmax(scores(q, k)), v), q)


def compiled(f, *args):
    c = jax.jit(f).lower(*args).compile()
    count = lambda name: len(re.findall(rf"^ +kern \d+ {name} \(", c.as_text(), re.M))      # commands; in a loop once
    return c, count("attention"), count("attention_grad")


def compare(got, want, tol):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        g, w = (np.asarray(x).astype(np.float32) for x in (g, w))
        np.testing.assert_array_equal(np.isnan(g), np.isnan(w))
        scale = np.nanmax(np.abs(w), initial=0)
        np.testing.assert_allclose(g, w, rtol=tol, atol=tol * max(scale, 1e-6))


@functools.cache
def wanted(name):
    """Output and gradients of a form, by XLA:CPU."""
    f, args, _ = FORMS[name]
    return on_cpu(back(f), *args())


@pytest.mark.parametrize("name", FORMS)
def test_forward(name):
    f, args, how = FORMS[name]
    c, n, _ = compiled(f, *args())
    assert n >= how.get("count", 1)
    compare(c(*args()), wanted(name)[0], how.get("tol", 2e-5))


@pytest.mark.parametrize("d", [32, 64, 128])
@pytest.mark.parametrize("s", [64, 128, 192, 320, 384, 640])
def test_ordinary(s, d):
    """Many heads, so that a tile of the kernel has several groups of rows, and round lengths."""
    q, k, v = qkv(b=8, t=128, s=s, h=8, d=d, dtype=bf16)
    p = np.einsum("bthd,bshd->bhts", *(np.float32(x) for x in (q, k))) / d ** 0.5
    p = np.exp(p - p.max(-1, keepdims=True))
    want = np.einsum("bhts,bshd->bthd", p / p.sum(-1, keepdims=True), np.float32(v))
    assert np.abs(np.float32(jax.jit(dpa)(q, k, v)) - want).max() < 2e-2


@pytest.mark.parametrize("name", [n for n, (_, _, how) in FORMS.items() if how.get("back", True)])
def test_gradient(name):
    f, args, how = FORMS[name]
    c, n, grads = compiled(back(f), *args())
    assert n >= how.get("count", 1) and grads >= how.get("count", 1)
    compare(c(*args()), wanted(name), how.get("tol", 5e-5))


def filled(how, fill):
    """Rows without a key: some of all batches, or all of one."""
    kept = {"rows": np.broadcast_to(np.arange(T)[:, None] % 5 > 0, (B, T, T)) & (np.arange(T) < 30), "batch": np.broadcast_to([[[False]], [[True]]], (B, 1, T)) & (np.arange(T) < 30)}
    lengths = lambda: (jnp.arange(T) < np.array([0, 30])[:, None])[:, None]
    return {
        "put": (lambda q, k, v, keep: values(jax.nn.softmax(jnp.where(keep[:, None], scores(q, k), fill)), v), kept["rows"]),
        "put batch": (lambda q, k, v, keep: values(jax.nn.softmax(jnp.where(keep[:, None], scores(q, k), fill)), v), kept["batch"]),
        "put lengths": (lambda q, k, v, n: values(jax.nn.softmax(jnp.where((jnp.arange(T) < n[:, None])[:, None, None], scores(q, k), fill)), v), np.array([0, 30], np.int32)),
        "put, scaled": (lambda q, k, v, keep: values(jax.nn.softmax(jnp.where(keep[:, None], jnp.einsum("bthd,bshd->bhts", q, k), 2 * fill) * 0.5), v), kept["rows"]),
        "added": (lambda q, k, v, keep: values(jax.nn.softmax(scores(q, k) + jnp.where(keep[:, None], 0, fill)), v), kept["rows"]),
        "added batch": (lambda q, k, v, keep: values(jax.nn.softmax(scores(q, k) + jnp.where(keep[:, None], 0, fill)), v), kept["batch"]),
        "added floats": (lambda q, k, v, keep: values(jax.nn.softmax(scores(q, k) + (1 - lax.stop_gradient(keep))[:, None] * fill), v), kept["batch"].astype(np.float32)),
        "added numbers": (lambda q, k, v, bias: values(jax.nn.softmax(scores(q, k) + lax.stop_gradient(bias)[:, None]), v), np.where(kept["batch"], 0, fill).astype(np.float32)),
    }[how]


def lost(how, fill): return "added" in how and 2.0 ** 40 < -fill < 2.0 ** 57      # l is coarse, an f64, and what it should be is not known


def means_something(how, fill):
    """2 fill and 0 fill are numbers; what an operand holds is not known to the compiler (docs/attention.md)."""
    return not (how == "put, scaled" and fill < -1e37 or how == "added floats" and np.isinf(fill) or how == "added numbers" and (lost(how, fill) or np.isinf(fill)))


FILLS = [-1e3, -1e4, -1e5, -1e6, -1e7, -1e8, -1e9, -1e10, -1e12, -1e15, -1e20, FILL, -np.inf]
FILLED = ["put", "put batch", "put lengths", "put, scaled", "added", "added batch", "added floats", "added numbers"]


@pytest.mark.parametrize("how, fill", [(how, fill) for how in FILLED for fill in FILLS if means_something(how, fill)])
def test_rows_that_are_filled(how, fill):
    """A number that a mask fills in may be of any size: the gradients of rows that have nothing else are right.  What is added to scores leaves more or less of them: of a row
    whose sum of exponentials is lost in it, while they are not, nothing is made but what the program says."""
    (f, mask), x = filled(how, fill), qkv()
    c, n, grads = compiled(back(f), *x, mask)
    assert n == grads == (not lost(how, fill)), (n, grads)
    compare(c(*x, mask), on_cpu(back(f), *x, mask), max(5e-5, 1e-7 * -fill) if "added" in how and not lost(how, fill) and -fill < 2e5 else 5e-5)


# --- on several devices ------------------------------------------------------------------------------------------

P = jax.sharding.PartitionSpec
X, XY = {"x": 4}, {"x": 2, "y": 2}
CUTS = {       # the mesh; how [B, T, H, D] of queries, keys and values, and of the result (None: as the compiler likes) lie
    "sequence": (X, P(None, "x"), P(None, "x"), P(None, "x")),
    "keys": (X, P(), P(None, "x"), None),
    "queries": (X, P(None, "x"), P(), P(None, "x")),
    "heads": (X, P(None, None, "x"), P(None, None, "x"), None),
    "batch_and_sequence": (XY, P("x", "y"), P("x", "y"), P("x", "y")),
    "sequence_and_heads": (XY, P(None, "y", "x"), P(None, "y", "x"), P(None, "y", "x")),
    "queries_and_keys": (XY, P(None, "x"), P(None, "y"), P(None, ("x", "y"))),
    "sequence_by_both": (XY, P(None, ("x", "y")), P(None, ("y", "x")), None),
    "vectors": (X, P(None, None, None, "x"), P(None, None, None, "x"), None),
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["jax_nn_causal", "jax_nn_groups", "jax_nn_mask", "jax_nn_rows_without_keys", "squared"])
def test_cut(name, cut):
    """Whatever dimension the devices share, an attention is one operation on each; rows whose keys are all masked on some of them, or on all."""
    mesh, *specs = CUTS[cut]
    q, kv, o = lies(mesh, *specs)
    f, args, _ = CUT_FORMS.get(name) or FORMS[name]
    x = args()
    if "heads" in cut and x[1].shape[2] == 2:
        kv = lies(mesh, P())[0]
    x = [jax.device_put(a, s) for a, s in zip(x, [q, kv, kv])] + list(x[3:])
    with jax.default_matmul_precision("highest"):
        c = jax.jit(f, out_shardings=o).lower(*x).compile()
        g = jax.jit(back(f)).lower(*x).compile()
    for p, kind in ((c, "attention"), (g, "attention_grad")):
        assert re.search(rf"^ +kern \d+ {kind} \(", p.as_text(), re.M), f"{kind} is not one operation"
    compare(c(*x), on_cpu(f, *args()), 5e-5)
    compare(g(*x), on_cpu(back(f), *args()), 1e-4)


@pytest.mark.parametrize("where", ["q", "qkv", "out", "all", "heads then sequence"])
@pytest.mark.parametrize("args", ["whole", "sequence", "heads"])
@pytest.mark.parametrize("f", [lambda q, k, v: dpa(q, k, v, is_causal=True), lambda q, k, v: values(jax.nn.softmax(jnp.where(causal(), scores(q, k), FILL)), v) * 2], ids=["nn", "einsum"])
def test_constraints_around(f, args, where):
    """What a program says of how operands and results lie holds, though both become those of one operation."""
    sequence, heads, whole = lies(X, P(None, "x"), P(None, None, "x"), P())
    lay = {"whole": whole, "sequence": sequence, "heads": heads}[args]
    before, behind = {"q": (sequence, None), "qkv": (sequence, None), "out": (None, sequence), "all": (sequence, sequence), "heads then sequence": (heads, sequence)}[where]
    def said(x, s): return x if s is None else jax.lax.with_sharding_constraint(x, s)
    def g(q, k, v): return said(f(said(q, before), said(k, before if where != "q" else None), said(v, before if where != "q" else None)), behind)
    x = [jax.device_put(a, lay) for a in qkv()]
    c = jax.jit(g).lower(*x).compile()
    o = c(*x)
    assert re.search(r"^ +kern \d+ attention \(", c.as_text(), re.M)
    if behind:
        assert o.sharding.is_equivalent_to(behind, o.ndim), o.sharding
    elif args == "whole":
        assert o.sharding.is_equivalent_to(before, o.ndim), o.sharding
    compare(o, on_cpu(f, *qkv()), 5e-5)
    compare(jax.jit(back(g))(*x), on_cpu(back(f), *qkv()), 1e-4)


@pytest.mark.parametrize("k", range(8))
def test_cut_as_drawn(k):
    """Shapes from a few queries a device to many, whose gradients go round the devices."""
    seed = int.from_bytes(os.urandom(4), "little")
    text, f, args, mesh, specs = drawn(np.random.default_rng(seed))
    print(f"{seed=} {text}")
    lie = lies(mesh, *specs)
    x = [jax.device_put(a, s) for a, s in zip(args[:3], lie)] + args[3:]
    with jax.default_matmul_precision("highest"):
        got = jax.jit(f, out_shardings=lie[3])(*x), jax.jit(back(f))(*x)
    want, allowed = wanted_drawn(f, args)
    for g, w, most in zip(*map(jax.tree.leaves, (got, (want[0], want), (allowed[0], allowed))), strict=True):
        np.testing.assert_allclose(np.asarray(g).astype(np.float32), np.asarray(w).astype(np.float32), rtol=3e-2 if args[0].dtype == bf16 else 1e-4, atol=most)


@pytest.mark.parametrize("road", ["in_order", "heads", "gather", "sent", "barrier"])
def test_cut_as_drawn_by_each_road(road):
    done = subprocess.run([sys.executable, "-c", "import jax; jax.config.update('jax_num_cpu_devices', 4); import test_attention as t; t.test_cut_as_drawn(0); t.test_cut_as_drawn(1)"],
                          cwd=os.path.dirname(__file__), env={**os.environ, "RONDO_RING": road}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def each_layer(f):
    return lambda q, k, v: lax.scan(lambda x, _: (f(x, k, v), None), q, None, length=2)[0]


WITH_A_MEAN = {"one": lambda f: f, "two": lambda f: lambda q, k, v: f(f(q, k, v), k * 2, v), "scan": each_layer, "checkpoint": lambda f: each_layer(jax.checkpoint(f))}


@pytest.mark.parametrize("lie", [None, P(None, "x"), P(None, None, "x")])
@pytest.mark.parametrize("name", WITH_A_MEAN)
def test_gradients_where_values_have_a_mean(name, lie):
    """What is left of y - delta is little beside both, and nothing of it is lost that XLA:CPU, whose weights are f32, keeps."""
    f = back(WITH_A_MEAN[name](lambda q, k, v: dpa(q, k, v, is_causal=True)))
    x = [(a * 1.5 + m).astype(bf16) for a, m in zip((normal(1, 512, 4, 64, seed=s) for s in range(3)), (0, 0, 8))]
    want, own = on_cpu(f, *[a.astype(f32) for a in x]), on_cpu(f, *x)
    got = jax.jit(f)(*(x if lie is None else [jax.device_put(a, lies({"x": 4}, lie)[0]) for a in x]))
    for g, w, o in zip(*map(jax.tree.leaves, (got, want, own)), strict=True):
        g, w, o = (np.asarray(a).astype(f32) for a in (g, w, o))
        assert np.sqrt(np.mean((g - w) ** 2)) <= 2 * np.sqrt(np.mean((o - w) ** 2))


def in_f32(q, k, v):
    """Scores and weights are f32; weights become bf16 for the product."""
    w = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=f32) * q.shape[-1] ** -0.5)
    return values(w.astype(v.dtype), v)


@pytest.mark.parametrize("lie", [None, P(None, "x"), "keys"])
@pytest.mark.parametrize("spread, mean", [(1, 5), (3, 0), (3, 5), (30, 0), (30, 5)])
def test_gradients_where_few_keys_have_most_of_the_weight(spread, mean, lie):
    """o is the mean of values by weights as they are rounded for the product, so that y - delta lacks nothing of what these have in common."""
    q, k, v, w = (normal(1, 512, 4, 64, seed=s) for s in range(4))
    x = [a.astype(bf16) for a in (q * spread, k, v + mean, w)]
    g = lambda q, k, v, w: jax.vjp(in_f32, q, k, v)[1](w)
    want = exact_gradients(*[a.astype(f32) for a in x[:3]], 0, x[3].astype(f32))
    if lie == "keys":
        mesh, = lies({"x": 4}, P(None, "x"))
        x[1:3] = (jax.device_put(a, mesh) for a in x[1:3])
    elif lie:
        x = [jax.device_put(a, lies({"x": 4}, lie)[0]) for a in x]
    for got, w in zip(jax.jit(g)(*x), want, strict=True):
        assert off(got, w) <= 0.004, "results rounded to bf16 are off by 0.0017"


def test_gradients_beside_a_sink():
    """What a row has elsewhere is multiplied with an o that is not rounded yet, and so is the cotangent that delta is made from."""
    def f(q, k, v, sink):
        x = jnp.where(causal(q.shape[1]), scores(q, k), -1e30)
        x = jnp.concatenate([x, jnp.broadcast_to(sink[None, :, None, None], (*x.shape[:3], 1)).astype(x.dtype)], -1)
        return values(jax.nn.softmax(x.astype(f32), -1).astype(v.dtype)[..., :-1], v)
    g = lambda q, k, v, sink, w: jax.grad(lambda *a: (f(*a).astype(f32) * w).sum(), (0, 1, 2, 3))(q, k, v, sink)
    q, k, v, w = (normal(1, 256, 4, 64, seed=s) for s in range(4))
    low = [a.astype(bf16) for a in (q, k, v + 8, normal(4, seed=5))]
    with jax.enable_x64(True):
        want = on_cpu(g, *[np.asarray(a, np.float64) for a in low], w.astype(np.float64))
    for got, own, exact in zip(jax.jit(g)(*low, w), on_cpu(g, *low, w), want, strict=True):
        assert off(got, exact) <= 1.5 * off(own, exact)


def exact_gradients(q, k, v, bias, w):
    """Of sum(softmax(q k / 8 + bias) v w), in f64."""
    q, k, v, w = (np.moveaxis(np.asarray(a, np.float64), 1, 2) for a in (q, k, v, w))
    x = q @ k.swapaxes(2, 3) / 8 + bias
    p = np.exp(x - x.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    y = w @ v.swapaxes(2, 3)
    dx = p * (y - (p * y).sum(-1, keepdims=True)) / 8
    return [np.moveaxis(a, 2, 1) for a in (dx @ k, dx.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ w)]


BIASES = {"all": lambda t, c: np.full((t, t), c), "rows": lambda t, c: np.where(np.arange(t) % 3, 0, c)[:, None] * np.ones(t),
          "rows and keys": lambda t, c: np.where((np.arange(t) % 3 == 0)[:, None] | (np.arange(t) % 5 == 0), c, 0)}


def off(got, want):
    want = np.asarray(want)
    return np.sqrt(np.mean((np.asarray(got, np.float64) - want) ** 2) / np.mean(want ** 2))


@pytest.mark.parametrize("narrow", [False, True])
def test_gradients_of_small_scores(narrow):
    """Queries and keys of length one, and a factor: log z, which is in l, is larger than any score.  In bf16 weights are f32, as the program has them."""
    t = 192
    f = lambda q, k, v, a, w: (values(jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", length_one(q), length_one(k), preferred_element_type=f32 if q.dtype == bf16 else q.dtype)
                                                     * jnp.exp(a)[:, None, None]), v) * w).sum()
    g = jax.grad(f, (0, 1, 2, 3))
    ours, theirs = [], []
    for seed in range(0, 12, 4):
        x = [normal(2, t, 4, 64, seed=seed + i) for i in range(3)] + [1.5 + 0.1 * normal(4, seed=seed), normal(2, t, 4, 64, seed=seed + 3)]
        x = [a.astype(bf16) for a in x] if narrow else x
        with jax.enable_x64(True):
            want = on_cpu(g, *[np.asarray(a, np.float64) for a in x])
        c, n, grads = compiled(g, *x)
        assert grads == 1
        ours.append([off(a, b) for a, b in zip(c(*x), want, strict=True)])
        theirs.append([off(a, b) for a, b in zip(on_cpu(g, *x), want, strict=True)])
    assert (np.sqrt(np.mean(np.square(ours), 0)) <= 2 * np.sqrt(np.mean(np.square(theirs), 0))).all()


@pytest.mark.parametrize("lie", [None, P(None, "x"), P(None, None, "x"), "keys"])
@pytest.mark.parametrize("bias, offset", [("all", 100.0), ("all", 1400.0), ("all", 400000.0), ("rows", -10000.0), ("rows", 400000.0), ("rows and keys", -10000.0)])
def test_gradients_beside_an_offset(bias, offset, lie):
    """What is added to all scores of a row changes no weight: of scores that are exact nothing is lost, however large that is."""
    t = 256
    q, k, v, w = (normal(1, t, 4, 64, seed=s) for s in range(4))
    q, k, b = np.round(q * 2), np.round(k), BIASES[bias](t, offset).astype(np.float32)
    f = jax.grad(lambda q, k, v, b, w: (values(jax.nn.softmax(scores(q, k) + lax.stop_gradient(b)), v) * w).sum(), (0, 1, 2))
    x = [q, k, v, b, w]
    if lie == "keys":
        mesh, = lies({"x": 4}, P(None, "x"))
        x = [q, jax.device_put(k, mesh), jax.device_put(v, mesh), b, w]
    elif lie:
        x = [a if a is b else jax.device_put(a, lies({"x": 4}, lie)[0]) for a in x]
    for g, want in zip(jax.jit(f)(*x), exact_gradients(*x), strict=True):
        assert np.sqrt(np.mean((np.asarray(g) - want) ** 2)) <= 2e-6 * np.sqrt(np.mean(want ** 2))


@pytest.mark.parametrize("lie", [None, P(None, "x")])
@pytest.mark.parametrize("d", [32, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("big", [1e1, 1e4, 1e5])
def test_values_of_saturated_rows(big, causal, d, lie):
    """A score is the same number in both passes, so that the weight of a row's one key is 1 in both."""
    q, k, v, w = (normal(1, 128, 2, d, seed=s) for s in range(4))
    f = jax.grad(lambda q, k, v, w: (dpa(q, k, v, is_causal=causal) * w).sum(), (0, 1, 2))
    x = [q, k * np.float32(big), v, w]
    got = jax.jit(f)(*(x if lie is None else [jax.device_put(a, lies({"x": 4}, lie)[0]) for a in x]))
    np.testing.assert_allclose(got[2], on_cpu(f, *x)[2], rtol=1e-5, atol=1e-4 if big == 1e1 else 1e-5)


@pytest.mark.only_rondo("how it is cut is Rondo's")
@pytest.mark.parametrize("kv", [1, 4])
@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("mask", ["causal", "later", "slopes", "none"])
def test_dealt_evenly(mask, dtype, kv):
    """Two devices, of which a mask gives one most of the work, exchange halves of that, forward and backward; also where each has numbers of its own for all its rows."""
    t = 1024
    draw = np.random.default_rng(kv)
    args = [draw.standard_normal((1, t, h, 64)).astype(np.float32).astype(dtype) for h in (4, kv, kv)]

    def f(q, k, v):
        x = jnp.einsum("bthd,bshd->bhts", q, jnp.repeat(k, 4 // kv, 2), preferred_element_type=f32) / 8
        d = jnp.arange(t)[:, None] - jnp.arange(t)[None]
        if mask == "slopes":
            x = x - d * 2.0 ** -jnp.arange(4, 8)[:, None, None]
        p = jax.nn.softmax(jnp.where(d <= 0 if mask == "later" else (d >= 0) | (mask == "none"), x, -jnp.inf), -1).astype(v.dtype)
        return jnp.einsum("bhts,bshd->bthd", p, jnp.repeat(v, 4 // kv, 2))

    *lie, out = lies({"x": 2}, *[P(None, "x")] * 4)
    x = [jax.device_put(a, s) for a, s in zip(args, lie)]
    with jax.default_matmul_precision("highest"):
        compiled = [jax.jit(f, out_shardings=out).lower(*x).compile(), jax.jit(back(f)).lower(*x).compile()]
        got = [c(*x) for c in compiled]
    for c in compiled:
        assert bool(re.search("^coll .* permute ", c.as_text(), re.M)) == (mask != "none"), c.as_text()
    want, allowed = wanted_drawn(f, args)
    for g, w, most in zip(*map(jax.tree.leaves, (got, (want[0], want), (allowed[0], allowed))), strict=True):
        np.testing.assert_allclose(np.asarray(g).astype(np.float32), np.asarray(w).astype(np.float32), rtol=3e-2 if dtype == bf16 else 1e-4, atol=most)


CUT_FORMS = {
    "jax_nn_rows_without_keys": (lambda q, k, v: values(jax.nn.softmax(jnp.where((jnp.arange(T)[:, None] % 3 > 0) & causal(), scores(q, k), FILL)), v), qkv, {}),
    "squared": (lambda q, k, v: dpa(q, k, v, is_causal=True) ** 2, qkv, {}),
}


@pytest.mark.parametrize("manual", ["x", "xy"])
def test_cut_by_hand(manual):
    """Of shard_map: the forward and the backward computation are two, which meet in line."""
    (s,) = lies(XY, P("x", None, "y"))
    f = jax.shard_map(lambda *a: dpa(*a, is_causal=True), mesh=s.mesh, in_specs=P("x", None, "y" if "y" in manual else None),
                      out_specs=P("x", None, "y" if "y" in manual else None), axis_names=set(manual))
    x = [jax.device_put(a, s) for a in qkv()]
    c = jax.jit(back(f)).lower(*x).compile()
    assert "attention_grad (" in c.as_text()
    compare(c(*x), on_cpu(back(lambda *a: dpa(*a, is_causal=True)), *qkv()), 5e-5)


# --- memory ----------------------------------------------------------------------------------------------------------------------

def first_heads(q, k, v):
    s = jnp.einsum("bhtd,bhsd->bhts", q, k) / np.sqrt(q.shape[-1]).astype(q.dtype)
    p = jax.nn.softmax(jnp.where(causal(q.shape[2]), s, -1e30), -1)
    return jnp.einsum("bhts,bhsd->bhtd", p, v)


def later_heads(q, k, v):
    s = jnp.where(causal(q.shape[1]), scores(q, k.astype(q.dtype)).astype(q.dtype), -1e30)
    return values(jax.nn.softmax(s, -1), v)


SPELLINGS = {"jax_nn": (lambda q, k, v: dpa(q, k, v, is_causal=True), 4, False), "grouped": (lambda q, k, v: dpa(q, k, v, is_causal=True), 2, False),
             "first_heads": (first_heads, 4, True), "later_heads": (later_heads, 4, False)}


@pytest.mark.parametrize("t", [16384, 65536])
@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_memory(name, dtype, t):
    """Arguments, results and temporaries of gradients, what kernels work in included, are at most 1.2 times the operands and results of attention and of
    its gradient; below 64K keys what kernels work in counts for more."""
    f, heads, first = SPELLINGS[name]
    for d in 64, 128:
        for again in False, True:
            rows, keys = ((1, n, t, d) if first else (1, t, n, d) for n in (4, heads))
            def loss(q, k, v, w): return jnp.sum(((jax.checkpoint(f) if again else f)(q, k, v) * w).astype(f32))
            c = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*(jax.ShapeDtypeStruct(s, dtype) for s in (rows, keys, keys, rows))).compile()
            m = c.memory_analysis()
            es = jnp.dtype(dtype).itemsize
            least = es * (3 * np.prod(rows) + 4 * np.prod(keys)) + 4 * np.prod(rows) // d
            total = m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes
            assert total <= (1.2 if t == 65536 else 1.35) * least, (d, again, total / least)


def by_position(what, t):
    """Scores that get learned numbers: of q, k, v, these numbers, and what else there is."""
    def f(q, k, v, m, *at):
        d = jnp.arange(t) - jnp.arange(t)[:, None]
        x = {"buckets": lambda: m[bucket(d)].transpose(2, 0, 1), "buckets taken": lambda: jnp.take(m, bucket(d, False), axis=0).transpose(2, 0, 1) + jnp.where(d <= 0, 0, -1e9),
             "slopes": lambda: m[:, None, None] * -abs(d), "places": lambda: m[at[0]].transpose(2, 0, 1)}[what]()
        return values(jax.nn.softmax((scores(q, k) + x).astype(f32)).astype(v.dtype), v)
    return f


@pytest.mark.parametrize("what, dims, t, dtype", [("slopes", (2,), 65536, bf16), *[(*x, d) for d in (f32, bf16) for x in (("buckets", (32, 2), 65536), ("buckets taken", (32, 2), 65536), ("places", (500, 2), 8192))]])
def test_memory_of_what_is_learned_by_position(what, dims, t, dtype):
    """No matrix of queries by keys, of one byte each, in the memory that a gradient takes; alone and shared out over queries.  Slopes in f32 are left as they are written: their sums would be less exact."""
    at = [jax.ShapeDtypeStruct((t, t), np.int32)] * (what == "places")
    x = [jax.ShapeDtypeStruct((1, t, 2, 32), dtype)] * 3 + [jax.ShapeDtypeStruct(dims, dtype)]
    g = jax.grad(lambda *a: (by_position(what, t)(*a).astype(f32) ** 2).sum(), (0, 1, 2, 3))
    assert jax.jit(g).lower(*x, *at).compile().memory_analysis().temp_size_in_bytes < t * t
    row, = lies({"x": 4}, P(None, "x"))
    x = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=row) for a in x[:3]] + x[3:]
    assert jax.jit(g, out_shardings=(row, row, row, None)).lower(*x, *at).compile().memory_analysis().temp_size_in_bytes < t * t


def test_memory_of_a_table_for_each_layer():
    """A loop over layers stacks neither scores nor what is added to them, that one which goes back makes both again."""
    def f(q, k, v, m):
        return lax.scan(lambda c, w: (c + by_position("buckets", c.shape[1])(c, k, v, w), None), q, m)[0]
    g, t = jax.grad(lambda *a: (f(*a) ** 2).sum(), (0, 1, 2, 3)), 4096
    x = [normal(1, 96, 2, 32, seed=i) for i in range(3)] + [normal(4, 32, 2)]
    compare(jax.jit(g)(*x), on_cpu(g, *x), 1e-4)
    x = [jax.ShapeDtypeStruct((1, t, 2, 32), f32)] * 3 + [jax.ShapeDtypeStruct((4, 32, 2), f32)]
    assert jax.jit(g).lower(*x).compile().memory_analysis().temp_size_in_bytes < 6 * t * t      # an index of 4 bytes is there, which JAX makes before the loop; what is added would be 32 a layer


def rows_and_keys(t): return jnp.arange(t)[:, None], jnp.arange(t)


def masked(mask, fill=-1e30, cap=None, keep=None):
    """Attention as a layer of a loop that makes its mask itself, of what comes with the turn."""
    def f(q, k, v, x):
        i, j = rows_and_keys(q.shape[1])
        s = jnp.einsum("bthd,bshd->bhts", q, k) / 8
        p = jax.nn.softmax(jnp.where(mask(i, j, x), jnp.tanh(s / cap) * cap if cap else s, fill))
        if keep:
            p = jnp.where(jax.random.bernoulli(jax.random.fold_in(jax.random.key(1), x), keep, p.shape), p / keep, 0)
        return jnp.einsum("bhts,bshd->bthd", p, v)
    return f


LAYER_MASKS = {
    "causal": masked(lambda i, j, x: i >= j), "infinite": masked(lambda i, j, x: i >= j, -jnp.inf), "least": masked(lambda i, j, x: i >= j, jnp.finfo(f32).min),
    "capped": masked(lambda i, j, x: i >= j, cap=10), "window": masked(lambda i, j, x: (i >= j) & (i - j < 20)), "chunks": masked(lambda i, j, x: (i >= j) & (i // 16 == j // 16)),
    "one local, one global": masked(lambda i, j, x: (i >= j) & ((x % 2 == 0) | (i - j < 20))), "window of the layer": masked(lambda i, j, x: (i >= j) & (i - j < jnp.where(x % 2 == 0, 20, 4096))),
    "chosen": masked(lambda i, j, x: jnp.where(x % 2 == 0, (i >= j) & (i - j < 20), i >= j)), "dropout": masked(lambda i, j, x: i >= j, keep=0.9),
    "jax_nn": lambda q, k, v, x: dpa(q, k, v, mask=(rows_and_keys(q.shape[1])[0] >= rows_and_keys(q.shape[1])[1])[None, None]),
    "jax_nn local": lambda q, k, v, x: dpa(q, k, v, is_causal=True, local_window_size=(20, 0)),
}


@pytest.mark.parametrize("name", LAYER_MASKS)
def test_layers_keep_no_matrix_of_queries_by_keys(name):
    """Neither scores nor masks, which cross from a loop over layers to the one that goes back over it: no such matrix, of one byte each, in the memory that it takes."""
    def loss(q, k, v):
        return (lax.scan(lambda c, x: (LAYER_MASKS[name](c, k, v, x), None), q, jnp.arange(4, dtype=jnp.int32))[0] ** 2).sum()
    g, t = jax.grad(loss, (0, 1, 2)), 4096
    x = [normal(1, 96, 2, 32, seed=i) for i in range(3)]
    compare(jax.jit(g)(*x), on_cpu(g, *x), 1e-4)
    assert jax.jit(g).lower(*[jax.ShapeDtypeStruct((1, t, 2, 32), f32)] * 3).compile().memory_analysis().temp_size_in_bytes < t * t


def check_layers(f, text, t=65536):
    """Values, and no matrix of queries by keys, of one byte each, in the memory that its gradient takes."""
    x = [normal(1, 96, 2, 32, seed=i) for i in range(3)]
    g = jax.grad(lambda q, k, v: (f(q, k, v) ** 2).sum(), (0, 1, 2))
    compare(jax.jit(g)(*x), on_cpu(g, *x), 2e-4)
    held = jax.jit(g).lower(*[jax.ShapeDtypeStruct((1, t, 2, 32), f32)] * 3).compile().memory_analysis().temp_size_in_bytes
    assert held < t * t, (text, held / (t * t))


@pytest.mark.parametrize("k", range(8))
def test_layers_as_drawn(k):
    """Layers in loops, several in a turn, chosen by cases, made again by policies."""
    seed = int.from_bytes(os.urandom(4), "little")
    text, f = drawn_layers(np.random.default_rng(seed))
    print(f"{seed=} {text}")
    check_layers(f, text)


LAYER_PLAIN, LAYER_TURNED = one_layer("causal", True, False, "jax_nn", 0), one_layer("causal", True, True, "jax_nn", 0)
LAYER_LOCAL, LAYER_HAND = one_layer("local", False, False, "jax_nn", 0), one_layer("causal", False, False, "hand", 0)


def in_loop(f, policy=None, unroll=1, turns=4):
    g = lambda k, v: lambda c, x: (f(c, k, v, x), None)
    again = lambda h: jax.checkpoint(h, policy=getattr(jax.checkpoint_policies, policy)) if policy else h
    return lambda q, k, v: lax.scan(again(g(k, v)), q, jnp.arange(turns, dtype=jnp.int32), unroll=unroll)[0]


LAYER_LOOPS = {
    "two in a turn": in_loop(LAYER_HAND, unroll=2), "four in a turn": in_loop(LAYER_TURNED, unroll=4),
    "two in a turn, one left over": in_loop(LAYER_TURNED, unroll=2, turns=5), "four in a turn, three left over": in_loop(LAYER_HAND, unroll=4, turns=7),
    "two in a turn, one left over, products": in_loop(LAYER_TURNED, "dots_saveable", unroll=2, turns=3), "one turn": in_loop(LAYER_HAND, turns=1),
    "keys are queries": in_loop(one_layer("none", True, False, "jax_nn", 0, "keys")), "all are queries": in_loop(one_layer("causal", False, False, "jax_nn", 0, "all")),
    "keys are queries that are rotated": in_loop(one_layer("causal", True, True, "hand", 0, "keys")), "keys are queries twice": in_loop(one_layer("causal", True, False, "jax_nn", 0, "twice")),
    "products of what is rotated": in_loop(LAYER_TURNED, "dots_saveable"), "everything": in_loop(LAYER_TURNED, "everything_saveable", 2),
    "two in a turn, made again": in_loop(one_layer("by turn", False, False, "jax_nn", 0), "nothing_saveable", 2),
    "everything, no loop": in_loop(one_layer("by turn", True, False, "jax_nn", 0), "everything_saveable", 4),
    "two that differ, products of what is rotated": in_loop(lambda c, k, v, x: one_layer("local", False, True, "hand", 0)(LAYER_TURNED(c, k, v, x), k, v, x), "dots_saveable"),
    "chosen": in_loop(lambda c, k, v, x: lax.switch(x % 2, [LAYER_LOCAL, LAYER_HAND], c, k, v, x)),
    "chosen, with weights": in_loop(lambda c, k, v, x: lax.switch(x % 2, [LAYER_LOCAL, LAYER_PLAIN], c, k, v, x)),
    "chosen, two in a turn": in_loop(lambda c, k, v, x: lax.switch(x % 3, [LAYER_LOCAL, LAYER_TURNED, lambda c, k, v, x: c * 2], c, k, v, x), unroll=2),
    "chosen, products": in_loop(lambda c, k, v, x: lax.switch(x % 2, [LAYER_LOCAL, LAYER_TURNED], c, k, v, x), "dots_saveable"),
    "chosen, everything": in_loop(lambda c, k, v, x: lax.switch(x % 2, [LAYER_LOCAL, LAYER_TURNED], c, k, v, x), "everything_saveable"),
    "chosen, keys are queries": in_loop(lambda c, k, v, x: lax.switch(x % 2, [LAYER_LOCAL, one_layer("window", True, False, "jax_nn", 0, "keys")], c, k, v, x)),
    "one turn, chosen, everything": in_loop(lambda c, k, v, x: lax.switch(x % 2, [LAYER_LOCAL, LAYER_TURNED], c, k, v, x), "everything_saveable", turns=1),
    "one, chosen": lambda q, k, v: lax.cond(q[0, 0, 0, 0] > 0, LAYER_HAND, LAYER_LOCAL, q, k, v, 0),
    "one, or none": lambda q, k, v: lax.cond(q[0, 0, 0, 0] > 0, LAYER_TURNED, lambda c, k, v, x: c, q, k, v, 0),
}


@pytest.mark.parametrize("name", LAYER_LOOPS)
def test_loops_and_cases_keep_no_matrix_of_queries_by_keys(name):
    check_layers(LAYER_LOOPS[name], name)


@pytest.mark.parametrize("policy", [None, "nothing_saveable", "dots_with_no_batch_dims_saveable"])
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_layers_made_again_keep_what_attention_gives(dtype, policy):
    """Without a loop, too: each runs forward once.  What has another mask, or other keys, is another one."""
    again = functools.partial(jax.checkpoint, policy=policy and getattr(jax.checkpoint_policies, policy))

    def forward(x, *w):
        for i in range(3):
            x = again(layer)(x, [a[i] for a in w])
        q = x[..., :H * D].reshape(B, T, -1, D)
        local = again(lambda q: dpa(q, q * 2, q, is_causal=True))(q) + dpa(q, q * 2, q, is_causal=True, local_window_size=(5, 0)) + dpa(q, q * 3, q, is_causal=True)
        return x, local

    def loss(x, *w):
        return sum((jnp.cos(a.astype(f32)) * a.astype(f32)).sum() for a in forward(x, *w))

    args = [a.astype(dtype) for a in (normal(B, T, 32), *weights())]
    g = jax.grad(loss, tuple(range(5)))
    want = on_cpu(g, *[a.astype(f32) for a in args])
    c, forwards, backwards = compiled(g, *args)
    compare(c(*args), want, 1e-4 if dtype == f32 else 6e-2)
    assert (forwards, backwards) == (6, 6), c.as_text()


def test_many_layers_in_straight_line():
    """What layers before have left in the stream is a sum of as many, in which each attention's gradient is seen all the same."""
    def f(x, w):
        for i in range(40):
            x = x + dpa(x @ w[i], x @ w[i] * 2, jnp.tanh(x), is_causal=True) / 40
        return x
    g, t = jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)), 16384
    x = normal(1, 96, 2, 32), normal(40, 32, 32) / 6
    compare(jax.jit(g)(*x), on_cpu(g, *x), 2e-4)
    shape = jax.ShapeDtypeStruct((1, t, 2, 32), f32), jax.ShapeDtypeStruct((40, 32, 32), f32)
    assert jax.jit(g).lower(*shape).compile().memory_analysis().temp_size_in_bytes < 4 * t * t      # of what layers keep; one matrix of scores is 8


THROUGH_MAX = {
    "added": lambda x: kept_from_zero(x, 1e-6), "much added": lambda x: kept_from_zero(x, 0.5), "no less": lambda x: kept_from_zero(x, 3, "max"),
    "logarithm": lambda x: jnp.exp(x - (x.max(-1, keepdims=True) + jnp.log(jnp.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)))),
    "guarded": lambda x: (lambda e, z: e / jnp.where(z == 0, 1, z))(*(lambda e: (e, e.sum(-1, keepdims=True)))(jnp.exp(x - x.max(-1, keepdims=True)))),
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", THROUGH_MAX)
def test_through_the_maximum(name, shared):
    """Gradients that are not stopped at a row's maximum: no further from those in f64 than XLA:CPU's, twice, and no matrix of queries by keys, of one byte each, in the memory that they take."""
    f = lambda q, k, v: values(THROUGH_MAX[name](jnp.where(causal(q.shape[1]), scores(q, k), -1e30)), v)
    g = jax.grad(lambda q, k, v, w: (f(q, k, v) * w).sum(), (0, 1, 2))
    sharding, = lies({"x": 4}, P(None, "x") if shared else P())
    x = [normal(1, 256, 2, 32, seed=s) for s in range(4)]
    with jax.enable_x64(True):
        want = on_cpu(g, *[a.astype(np.float64) for a in x])
    for got, own, exact in zip(jax.jit(g)(*([jax.device_put(a, sharding) for a in x] if shared else x)), on_cpu(g, *x), want, strict=True):
        assert off(got, exact) <= 2 * off(own, exact) + 1e-7
    t = 32768
    like = jax.ShapeDtypeStruct((1, t, 2, 32), f32, sharding=sharding if shared else None)
    assert jax.jit(g).lower(*[like] * 4).compile().memory_analysis().temp_size_in_bytes < t * t / (4 if shared else 1)


@pytest.mark.parametrize("t, devices", [(6, 1), (40, 1), (40, 4), (160, 4)])
@pytest.mark.parametrize("types", [[f32] * 4, [bf16] * 4, [bf16, bf16, f32, bf16], [bf16, f32, f32, f32], [bf16, bf16, bf16, f32]])
def test_through_the_maximum_of_any_types(types, t, devices):
    """Also where it is left as it is, of few rows or beside values of another type, beside which products are made otherwise."""
    g = jax.grad(lambda q, k, v, w: (values(kept_from_zero(scores(q, k), 0.5), v) * w).sum(), (0, 1, 2))
    x = [normal(1, n, 2, 32, seed=s).astype(d) for s, (n, d) in enumerate(zip((t, 256, 256, t), types))]
    sharding, = lies({"x": 4}, P(None, "x"))
    with jax.enable_x64(True):
        want = on_cpu(g, *[a.astype(np.float64) for a in x])
    got = jax.jit(g)(*([jax.device_put(a, sharding) for a in x] if devices > 1 else x))
    for got, own, exact in zip(got, on_cpu(g, *x), want, strict=True):
        assert off(got, exact) <= 2 * off(own, exact) + 1e-7


def test_memory_without_bf16_products():
    """The same where kernels multiply f32, whatever the operands are."""
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import conftest, test_attention as t; [t.test_memory('grouped', t.bf16, n) for n in (16384, 65536)]"
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"RONDO_ISA": "avx2"}, check=True, timeout=300)


def all_over_least(n):
    """Of a sequence over n devices, forward and gradient: for each case what is held over what docs/long-context.md says, kernels' work for two threads included."""
    (split,) = lies({"x": n}, P(None, "x"))
    for dtype, d, heads, t in itertools.product((bf16, f32), (64, 128), ((4, 4), (4, 1), (8, 2)), (32768, 131072)):
        q, k = (jax.ShapeDtypeStruct((1, t, h, d), dtype, sharding=split) for h in heads)
        def both(q, k, v, do):
            o, pull = jax.vjp(lambda *x: dpa(*x, is_causal=True), q, k, v)
            return o, pull(do)
        m = jax.jit(both).lower(q, k, k, q).compile().memory_analysis()
        rows, keys = (t // n * h * d for h in heads)
        least = jnp.dtype(dtype).itemsize * 4 * (rows + keys) + 12 * rows // d + 4 * (4 * keys + (rows if dtype == bf16 else 0))
        print((m.argument_size_in_bytes + m.output_size_in_bytes + m.temp_size_in_bytes) / least, jnp.dtype(dtype).name, d, heads, t)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_memory_of_a_shared_sequence(n):
    code = f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); import conftest, test_attention as t; t.all_over_least({n})"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"RONDO_DEVICES": str(n), "RONDO_CORES": "2"}, check=True, timeout=300, capture_output=True, text=True)
    assert max(float(line.split()[0]) for line in done.stdout.splitlines()) <= 1.15, done.stdout


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("name", ["jax_nn", "grouped", "first_heads"])
def test_no_device_holds_all_keys(name, n):
    """A sequence that is cut: what is gathered for attention is read where it lies, forward and back."""
    f, heads, first = SPELLINGS[name]
    t, d = 8192, 64
    (sharding,) = lies({"x": n}, P(None, None, "x") if first else P(None, "x"))
    q, k = (jax.ShapeDtypeStruct((1, h, t, d) if first else (1, t, h, d), bf16, sharding=sharding) for h in (4, heads))
    def loss(q, k, v, w): return jnp.sum((f(q, k, v) * w).astype(f32))
    forward = jax.jit(f, out_shardings=sharding).lower(q, k, k).compile()
    grad = jax.jit(jax.grad(loss, (0, 1, 2)), out_shardings=sharding).lower(q, k, k, q).compile()
    for c in forward, grad:
        kind = dict(re.findall(r"^coll (\d+) (\w+)", c.as_text(), re.M))
        shown = [(kind[k], len(s.split(", "))) for k, s in re.findall(r"^  next (\d+) \(b\d+\) -> \((.*)\)", c.as_text(), re.M)]
        assert ("all_gather", n) in shown and set(shown) <= {("all_gather", n), ("permute", 1)}, c.as_text()         # pieces; halves that go over
        assert not re.search(r"^coll \d+ all_gather bf16 .* inner \d+ to \d+ \d+$", c.as_text(), re.M)


# --- blocks of keys --------------------------------------------------------------------------------------------------------------------

BLOCKS = {}


def block(args, forward=1, back=0, tol=2e-5):
    """Its text has so many ops, forward and back."""
    def add(f):
        BLOCKS[f.__name__] = (f, args, forward, back, tol)
        return f
    return add


def state(t=T, m=0.0, dtype=np.float32):
    """q and a block of keys, behind other ones: their maximum, sum and values."""
    q, k, v = qkv(t=t, s=48, dtype=dtype)
    rows = B, H, t
    return q, k, v, m + normal(*rows, seed=4), np.exp(normal(*rows, seed=5)), normal(*rows, D, seed=6)


def nothing_yet(m=-np.inf):
    return *qkv(t=T, s=48), np.full((B, H, T), m, np.float32), np.zeros((B, H, T), np.float32), np.zeros((B, H, T, D), np.float32)


def online(x, v, m, l, acc):
    new = jnp.maximum(m, x.max(-1))
    p, keep = jnp.exp(x - new[..., None]), jnp.exp(m - new)
    return new, l * keep + p.sum(-1), acc * keep[..., None] + jnp.einsum("bhts,bshd->bhtd", p, v)


def masked_some(x, fill):
    """Row 3 sees nothing."""
    t, s = x.shape[-2:]
    return jnp.where((jnp.arange(t)[:, None] >= jnp.arange(s)) & (jnp.arange(t) != 3)[:, None], x, fill)


@block(state)
def next_block(q, k, v, *before): return online(scores(q, k), v, *before)


@block(nothing_yet)
def first_block(q, k, v, *before): return online(masked_some(scores(q, k), -1e30), v, *before)


@block(nothing_yet)
def first_block_empty_rows(q, k, v, *before): return online(masked_some(scores(q, k), -jnp.inf), v, *before)


@block(lambda: nothing_yet(-1e30))
def first_block_of_fill(q, k, v, *before): return online(masked_some(scores(q, k), -1e30), v, *before)


@block(lambda: nothing_yet(FILL))
def whole_block_hidden(q, k, v, *before): return online(jnp.where(jnp.arange(T)[:, None] < 0, scores(q, k), FILL), v, *before)


@block(state)
def next_block_empty(q, k, v, *before): return online(jnp.where(jnp.arange(T)[:, None] < 0, scores(q, k), -jnp.inf), v, *before)


@block(nothing_yet)
def first_block_guarded(q, k, v, m, l, acc):
    x = masked_some(scores(q, k), -jnp.inf)
    new = jnp.maximum(m, x.max(-1))
    safe = jnp.where(jnp.isfinite(new), new, 0)
    p, keep = jnp.exp(x - safe[..., None]), jnp.exp(m - safe)
    return new, l * keep + p.sum(-1), acc * keep[..., None] + jnp.einsum("bhts,bshd->bhtd", p, v)


@block(state)
def base_two(q, k, v, m, l, acc):
    x = scores(q, k) * np.float32(np.log2(np.e))
    new = jnp.maximum(m, x.max(-1))
    p, keep = jnp.exp2(x - new[..., None]), jnp.exp2(m - new)
    return new, l * keep + p.sum(-1), acc * keep[..., None] + jnp.einsum("bhts,bshd->bhtd", p, v)


@block(lambda: state(dtype=bf16), tol=3e-2)
def block_of_bf16(q, k, v, m, l, acc):
    x = jnp.einsum("bthd,bshd->bhts", q, k, preferred_element_type=f32) / 4
    new = jnp.maximum(m, x.max(-1))
    p, keep = jnp.exp(x - new[..., None]), jnp.exp(m - new)
    return new, l * keep + p.sum(-1), acc * keep[..., None] + jnp.einsum("bhts,bshd->bhtd", p.astype(bf16), v, preferred_element_type=f32)


@block(lambda: (*state(), np.random.default_rng(0).random((B, H, T, 48)) < 0.8), forward=1)
def block_with_dropout(q, k, v, m, l, acc, keep):
    x = scores(q, k)
    new = jnp.maximum(m, x.max(-1))
    p, old = jnp.exp(x - new[..., None]), jnp.exp(m - new)
    return new, l * old + p.sum(-1), acc * old[..., None] + jnp.einsum("bhts,bshd->bhtd", jnp.where(keep, p / 0.8, 0), v)


@block(lambda: state(m=200.0))
def far_below_the_maximum(q, k, v, *before): return online(scores(q, k), v, *before)


@block(lambda: qkv(s=160))
def own_softmax_and_maximum(q, k, v):
    x = scores(q, k)
    m = x.max(-1, keepdims=True)
    e = jnp.exp(x - m)
    return values(e, v), m, e.sum(-1)


def scanned(q, k, v, **how):
    cut = lambda x: jnp.moveaxis(x.reshape(B, 4, -1, H, D), 1, 0)
    start = jnp.full((B, H, q.shape[1]), -jnp.inf), jnp.zeros((B, H, q.shape[1])), jnp.zeros((B, H, q.shape[1], D))

    def visit(c, kv):
        x = scores(q, kv[0])
        if "mask" in how:
            x = jnp.where(how["mask"](x.shape, kv[2]), x, -1e30)
        new = lax.stop_gradient(jnp.maximum(c[0], x.max(-1)))
        p, keep = jnp.exp(x - new[..., None]), jnp.exp(c[0] - new)
        return (new, c[1] * keep + p.sum(-1), c[2] * keep[..., None] + jnp.einsum("bhts,bshd->bhtd", p, kv[1])), None
    visit = jax.checkpoint(visit) if "remat" in how else visit
    (m, l, acc), _ = lax.scan(visit, start, (cut(k), cut(v), jnp.arange(4)))
    return jnp.moveaxis(acc / l[..., None], 1, 2), m + jnp.log(l)


@block(lambda: qkv(s=160))
def blocks_scanned(q, k, v): return scanned(q, k, v)


@block(lambda: qkv(t=160, s=160))
def blocks_scanned_causal(q, k, v): return scanned(q, k, v, mask=lambda shape, i: jnp.arange(160)[:, None] >= 40 * i + jnp.arange(40))


@block(lambda: qkv(s=160), forward=2, back=1, tol=5e-5)
def blocks_scanned_back(q, k, v): return back(scanned)(q, k, v)


@block(lambda: qkv(s=160), forward=2, back=1, tol=5e-5)
def blocks_scanned_checkpointed_back(q, k, v): return back(lambda *x: scanned(*x, remat=True))(q, k, v)


@block(lambda: qkv(s=160), forward=1)
def blocks_behind_a_condition(q, k, v):
    def visit(c, kv):
        return lax.cond(kv[2] != 2, lambda c: online(scores(q, kv[0]), kv[1], *c), lambda c: c, c), None
    cut = lambda x: jnp.moveaxis(x.reshape(B, 4, -1, H, D), 1, 0)
    start = jnp.full((B, H, T), -1e30), jnp.zeros((B, H, T)), jnp.zeros((B, H, T, D))
    (_, l, acc), _ = lax.scan(visit, start, (cut(k), cut(v), jnp.arange(4)))
    return acc / l[..., None]


# --- gradients of a block, whose rows are the program's ----------------------------------------------------------------------------------

def given_rows(dtype=np.float32, t=T):
    """q, k, v, the logarithm of the sum, that times output, and the output's cotangent."""
    q, k, v = qkv(t=t, s=48, dtype=dtype)
    return q, k, v, 3 + normal(B, H, t, seed=4), normal(B, H, t, seed=5), normal(B, t, H, D, seed=6, dtype=dtype)


def pulled(q, k, p, dx, g):
    return jnp.einsum("bhts,bshd->bthd", dx, k) / 4, jnp.einsum("bhts,bthd->bshd", dx, q) / 4, jnp.einsum("bhts,bthd->bshd", p, g)


def from_values(g, v): return jnp.einsum("bthd,bshd->bhts", g, v)


@block(given_rows, forward=0, back=1)
def gradient_of_a_block(q, k, v, lse, delta, g):
    p = jnp.exp(scores(q, k) - lse[..., None])
    return pulled(q, k, p, p * (from_values(g, v) - delta[..., None]), g)


@block(given_rows, forward=0, back=1)
def gradient_of_queries_alone(q, k, v, lse, delta, g):
    p = jnp.exp(scores(q, k) - lse[..., None])
    return pulled(q, k, p, p * (from_values(g, v) - delta[..., None]), g)[0]


@block(given_rows, forward=0, back=1)
def gradient_of_keys_alone(q, k, v, lse, delta, g):
    p = jnp.exp(scores(q, k) - lse[..., None])
    return pulled(q, k, p, p * (from_values(g, v) - delta[..., None]), g)[1:]


@block(given_rows, forward=0, back=1)
def gradient_without_delta(q, k, v, lse, delta, g):
    p = jnp.exp(scores(q, k) - lse[..., None])
    return pulled(q, k, p, p * from_values(g, v), g)


@block(given_rows, forward=0, back=1)
def gradient_of_a_masked_block(q, k, v, lse, delta, g):
    p = jnp.exp(masked_some(scores(q, k), -1e30) - lse[..., None])
    return pulled(q, k, p, p * (from_values(g, v) - delta[..., None]), g)


@block(given_rows, forward=0, back=1)
def gradient_masked_after(q, k, v, lse, delta, g):
    p = masked_some(jnp.exp(scores(q, k) - lse[..., None]), 0)
    return pulled(q, k, p, p * (from_values(g, v) - delta[..., None]), g)


def a_dead_row():
    q, k, v, lse, delta, g = given_rows()
    lse[0, 0, 3] = -np.inf
    return q, k, v, lse, delta, g


@block(a_dead_row, forward=0, back=1)
def gradient_where_a_row_is_not_a_number(q, k, v, lse, delta, g):
    p = jnp.exp(masked_some(scores(q, k), -jnp.inf) - lse[..., None])
    return pulled(q, k, p, p * (from_values(g, v) - delta[..., None]), g)


@block(a_dead_row, forward=0, back=1)
def gradient_where_a_row_is_empty(q, k, v, lse, delta, g):
    p = masked_some(jnp.exp(scores(q, k) - lse[..., None]), 0)
    return pulled(q, k, p, p * (from_values(g, v) - delta[..., None]), g)


@block(given_rows, forward=0, back=1)
def gradient_by_maximum_and_sum(q, k, v, m, delta, g):
    total = jnp.exp(delta)
    p = jnp.exp(scores(q, k) - m[..., None]) / total[..., None]
    return pulled(q, k, p, p * (from_values(g, v) - delta[..., None]), g)


@block(lambda: (*given_rows(), np.random.default_rng(0).random((B, H, T, 48)) < 0.8), forward=0, back=1)
def gradient_with_dropout(q, k, v, lse, delta, g, keep):
    p = jnp.exp(scores(q, k) - lse[..., None])
    return pulled(q, k, jnp.where(keep, p / 0.8, 0), p * (jnp.where(keep, from_values(g, v) / 0.8, 0) - delta[..., None]), g)


@block(given_rows, forward=0, back=1)
def gradient_with_a_cap(q, k, v, lse, delta, g):
    cap = jnp.tanh(scores(q, k) / 5)
    p = jnp.exp(5 * cap - lse[..., None])
    return pulled(q, k, p, p * (from_values(g, v) - delta[..., None]) * (1 - cap * cap), g)


@block(lambda: given_rows(bf16), forward=0, back=1, tol=3e-2)
def gradient_of_a_bf16_block(q, k, v, lse, delta, g):
    dot = lambda *a: jnp.einsum(*a, preferred_element_type=f32)
    p = jnp.exp(dot("bthd,bshd->bhts", q, k) / 4 - lse[..., None])
    ds = (p * (dot("bthd,bshd->bhts", g, v) - delta[..., None]) / 4).astype(bf16)
    return dot("bhts,bshd->bthd", ds, k), dot("bhts,bthd->bshd", ds, q), dot("bhts,bthd->bshd", p.astype(bf16), g)


@pytest.mark.parametrize("name", BLOCKS)
def test_block(name):
    f, args, forward, grads, tol = BLOCKS[name]
    c, n, g = compiled(f, *args())
    assert (n, g) == (forward, grads)
    got, want = c(*args()), on_cpu(f, *args())
    for x, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.isinf(np.asarray(x, np.float32)), np.isinf(np.asarray(w, np.float32)))
    finite = lambda tree: jax.tree.map(lambda x: np.where(np.isinf(np.asarray(x, np.float32)), 0, np.asarray(x, np.float32)), tree)
    compare(finite(got), finite(want), tol)


def test_gradients_of_a_bf16_block_are_not_rounded():
    """They are added up over blocks in the type that the program says."""
    f, args, *_ = BLOCKS["gradient_of_a_bf16_block"]
    for x in jax.jit(f)(*args()):
        assert x.dtype == f32 and np.mean(np.asarray(x) != np.asarray(x.astype(bf16).astype(f32))) > 0.9


# --- what is no attention --------------------------------------------------------------------------------------------------------

MUTANTS = {}


def mutant(f):
    MUTANTS[f.__name__] = f
    return f


@mutant
def softmax_over_queries(q, k, v): return values(jax.nn.softmax(scores(q, k), axis=2), v)


@mutant
def softmax_over_both(q, k, v): return values(jax.nn.softmax(scores(q, k), axis=(2, 3)), v)


@mutant
def softmax_over_heads(q, k, v): return values(jax.nn.softmax(scores(q, k), axis=1), v)


@mutant
def masked_after_softmax(q, k, v): return values(jnp.where(causal(), jax.nn.softmax(scores(q, k)), 0), v)


@mutant
def masked_after_softmax_with_one(q, k, v): return values(jnp.where(causal(), jax.nn.softmax(scores(q, k)), 1e-3), v)


@mutant
def weights_returned(q, k, v):
    p = jax.nn.softmax(scores(q, k))
    return values(p, v), p


@mutant
def scores_returned(q, k, v):
    x = scores(q, k)
    return values(jax.nn.softmax(x), v), x


@mutant
def not_normalised(q, k, v):
    x = scores(q, k)
    return values(jnp.exp(x - x.max(-1, keepdims=True)), v)


@mutant
def normalised_twice(q, k, v):
    p = jax.nn.softmax(scores(q, k))
    return values(p / p.sum(-1, keepdims=True), v)


@mutant
def normalised_by_keys(q, k, v):
    e = jnp.exp(scores(q, k))
    return values(e / e.sum(-2, keepdims=True), v)


@mutant
def normalised_by_largest(q, k, v):
    e = jnp.exp(scores(q, k))
    return values(e / e.max(-1, keepdims=True), v)


@mutant
def one_added_to_sum(q, k, v):
    e = jnp.exp(scores(q, k))
    return values(e / (1 + e.sum(-1, keepdims=True)), v)


@mutant
def squares_normalise(q, k, v):
    e = jnp.exp(scores(q, k))
    return values(e / jnp.sqrt((e * e).sum(-1, keepdims=True)), v)


@mutant
def sum_of_other_scores(q, k, v):
    x = scores(q, k)
    return values(jnp.exp(x) / jnp.exp(2 * x).sum(-1, keepdims=True), v)


@mutant
def sum_of_masked_only(q, k, v):
    e = jnp.exp(scores(q, k))
    return values(e / jnp.where(causal(), e, 0).sum(-1, keepdims=True), v)


@mutant
def masked_but_not_in_sum(q, k, v):
    e = jnp.exp(scores(q, k))
    return values(jnp.where(causal(), e, 0) / e.sum(-1, keepdims=True), v)


@mutant
def scaled_on_the_diagonal(q, k, v): return values(jax.nn.softmax(scores(q, k) * (1 + jnp.eye(T))), v)


@mutant
def scaled_by_row_after(q, k, v): return values(jax.nn.softmax(scores(q, k)) * jnp.arange(T)[:, None], v)


@mutant
def scaled_by_key_after(q, k, v): return values(jax.nn.softmax(scores(q, k)) * jnp.arange(T), v)


@mutant
def temperature_in_rows(q, k, v): return values(jax.nn.softmax(scores(q, k) / (1 + jnp.arange(T))[:, None]), v)


@mutant
def temperature_inside_mask(q, k, v): return values(jax.nn.softmax(jnp.where(causal(), scores(q, k), -5.0) / 3), v)


@mutant
def weak_fill(q, k, v): return values(jax.nn.softmax(jnp.where(causal(), scores(q, k), -1.0)), v)


@mutant
def fill_of_zero(q, k, v): return values(jax.nn.softmax(jnp.where(causal(), scores(q, k), 0)), v)


@mutant
def sigmoid(q, k, v): return values(jax.nn.sigmoid(scores(q, k)), v)


@mutant
def rectified(q, k, v): return values(jax.nn.relu(scores(q, k)) ** 2, v)


@mutant
def linear(q, k, v):
    x = jnp.einsum("bthd,bshd->bhts", jax.nn.elu(q) + 1, jax.nn.elu(k) + 1)
    return values(x / x.sum(-1, keepdims=True), v)


@mutant
def weights_squared(q, k, v): return values(jax.nn.softmax(scores(q, k)) ** 2, v)


@mutant
def weights_times_weights(q, k, v):
    p = jax.nn.softmax(scores(q, k))
    return values(p @ p, v)


@mutant
def weights_turned(q, k, v): return values(jax.nn.softmax(scores(q, k)).swapaxes(-1, -2), v)


@mutant
def weights_symmetric(q, k, v):
    p = jax.nn.softmax(scores(q, k))
    return values(p + p.swapaxes(-1, -2), v)


@mutant
def weights_reversed(q, k, v): return values(jax.nn.softmax(scores(q, k))[..., ::-1], v)


@mutant
def weights_shifted(q, k, v): return values(jnp.roll(jax.nn.softmax(scores(q, k)), 1, -1), v)


@mutant
def scores_shifted(q, k, v): return values(jax.nn.softmax(jnp.roll(scores(q, k), 1, -1)), v)


@mutant
def weights_plus_identity(q, k, v): return values(jax.nn.softmax(scores(q, k)) + jnp.eye(T), v)


@mutant
def difference_of_two(q, k, v):
    return values(jax.nn.softmax(scores(q, k)) - 0.3 * jax.nn.softmax(scores(q[..., ::-1], k)), v)


@mutant
def heads_mixed(q, k, v): return values(jnp.einsum("bhts,hg->bgts", jax.nn.softmax(scores(q, k)), jnp.arange(16.0).reshape(4, 4) / 16), v)


@mutant
def scores_mixed(q, k, v): return values(jax.nn.softmax(jnp.einsum("bhts,hg->bgts", scores(q, k), jnp.arange(16.0).reshape(4, 4) / 16)), v)


@mutant
def first_keys_only(q, k, v): return values(jax.nn.softmax(scores(q, k))[..., :20], v[:, :20])


@mutant
def sink_at_the_end(q, k, v):
    x = jnp.concatenate([scores(q, k), jnp.ones((B, H, T, 1))], -1)
    return values(jax.nn.softmax(x)[..., :T], v)


@mutant
def sink_is_used(q, k, v):
    x = jnp.concatenate([scores(q, k), jnp.ones((B, H, T, 1))], -1)
    p = jax.nn.softmax(x)
    return values(p[..., :T], v), p[..., T]


@mutant
def sink_of_queries(q, k, v):
    x = jnp.concatenate([scores(q, k), jnp.ones((B, H, 1, T))], 2)
    return values(jax.nn.softmax(x)[:, :, :T], v)


@mutant
def sink_sliced_elsewhere(q, k, v):
    x = jnp.concatenate([scores(q, k), jnp.ones((B, H, T, 1))], -1)
    return values(jax.nn.softmax(x)[..., 1:], v)


@mutant
def sink_shifted(q, k, v):
    x = jnp.concatenate([scores(q, k), jnp.ones((B, H, T, 1))], -1)
    return values(jnp.roll(jax.nn.softmax(x), 1, -1)[..., :T], v)


@mutant
def entropy(q, k, v):
    p = jax.nn.softmax(scores(q, k))
    return values(p, v), -(p * jnp.log(p + 1e-9)).sum(-1)


@mutant
def largest_weight(q, k, v):
    p = jax.nn.softmax(scores(q, k))
    return values(p, v), p.max(-1)


@mutant
def scores_that_see_the_sum(q, k, v):
    x = scores(q, k)
    return values(jax.nn.softmax(x * (1 + 0.1 * jnp.exp(x).sum(-1, keepdims=True) / T)), v)


@mutant
def hard(q, k, v):
    x = scores(q, k)
    return values((x == x.max(-1, keepdims=True)).astype(f32), v)


@mutant
def rounded_weights(q, k, v): return values(jnp.round(jax.nn.softmax(scores(q, k)) * 64) / 64, v)


@mutant
def product_of_scores(q, k, v): return values(jax.nn.softmax(scores(q, k) * scores(k, q)), v)


BLOCK_MUTANTS = {}


def block_mutant(f):
    BLOCK_MUTANTS[f.__name__] = f
    return f


@block_mutant
def sum_without_correction(q, k, v, m, l, acc):
    x = scores(q, k)
    new = jnp.maximum(m, x.max(-1))
    p = jnp.exp(x - new[..., None])
    return new, l + p.sum(-1), acc + jnp.einsum("bhts,bshd->bhtd", p, v)


@block_mutant
def maximum_over_queries(q, k, v, m, l, acc):
    x = scores(q, k)
    p = jnp.exp(x - x.max(-2, keepdims=True))
    return p.sum(-1), jnp.einsum("bhts,bshd->bhtd", p, v)


@block_mutant
def lowest_score(q, k, v, m, l, acc):
    x = scores(q, k)
    p = jnp.exp(x - x.min(-1, keepdims=True))
    return x.min(-1), p.sum(-1), jnp.einsum("bhts,bshd->bhtd", p, v)


@block_mutant
def highest_of_other_scores(q, k, v, m, l, acc):
    x = scores(q, k)
    return (-x).max(-1), (x * x).max(-1), online(x, v, m, l, acc)


@block_mutant
def highest_before_the_mask(q, k, v, m, l, acc):
    x = scores(q, k)
    new = jnp.maximum(m, x.max(-1))
    p = masked_some(jnp.exp(x - new[..., None]), 0)
    return new, l + p.sum(-1), acc + jnp.einsum("bhts,bshd->bhtd", p, v)


@block_mutant
def first_maximum_from_above(q, k, v, m, l, acc):
    x = scores(q, k)
    new = jnp.max(x, -1, initial=1.0)
    p = jnp.exp(x - new[..., None])
    return new, p.sum(-1), jnp.einsum("bhts,bshd->bhtd", p, v)


@block_mutant
def sums_of_half_scores(q, k, v, m, l, acc):
    x = scores(q, k)
    new = jnp.maximum(m, x.max(-1))
    return new, jnp.exp(x / 2 - new[..., None]).sum(-1), jnp.einsum("bhts,bshd->bhtd", jnp.exp(x - new[..., None]), v)


@block_mutant
def reference_of_keys(q, k, v, m, l, acc):
    x = scores(q, k)
    p = jnp.exp(x - jnp.arange(48) / 48)
    return p.sum(-1), jnp.einsum("bhts,bshd->bhtd", p, v)


@block_mutant
def squared_sums(q, k, v, m, l, acc):
    p = jnp.exp(scores(q, k) - m[..., None])
    return p.sum(-1) ** 2, 1 / p.sum(-1), jnp.log(p.sum(-1)) + m, (p * p).sum(-1)


@block_mutant
def gradient_times_rows(q, k, v, m, l, acc):
    p = jnp.exp(scores(q, k) - m[..., None])
    g = jnp.moveaxis(acc, 1, 2)
    return pulled(q, k, p * l[..., None], p * l[..., None] * (from_values(g, v) * l[..., None] - m[..., None]), g)


@block_mutant
def gradient_times_keys(q, k, v, m, l, acc):
    p = jnp.exp(scores(q, k) - m[..., None])
    g = jnp.moveaxis(acc, 1, 2)
    return pulled(q, k, p, p * (from_values(g, v) - m[..., None] * jnp.arange(48) / 48), g)


@block_mutant
def gradient_of_two_deltas(q, k, v, m, l, acc):
    p = jnp.exp(scores(q, k) - m[..., None])
    g = jnp.moveaxis(acc, 1, 2)
    return pulled(q, k, p, p * (from_values(g, v) - m[..., None] + 0.5 * l[..., None] * m[..., None]), g)


@block_mutant
def gradient_turned(q, k, v, m, l, acc):
    p = jnp.exp(scores(q, k) - m[..., None])
    g = jnp.moveaxis(acc, 1, 2)
    return pulled(q, k, p, p * (p * from_values(g, v) - l[..., None]), g)


@block_mutant
def gradient_masked_differently(q, k, v, m, l, acc):
    p = jnp.exp(scores(q, k) - m[..., None])
    g = jnp.moveaxis(acc, 1, 2)
    return pulled(q, k, masked_some(p, 0), p * (from_values(g, v) - l[..., None]), g)


@block_mutant
def gradient_with_another_reference(q, k, v, m, l, acc):
    x = scores(q, k)
    p, w = jnp.exp(x - m[..., None]), jnp.exp(x - l[..., None])
    g = jnp.moveaxis(acc, 1, 2)
    return pulled(q, k, w, p * (from_values(g, v) - l[..., None]), g)


@pytest.mark.parametrize("name", BLOCK_MUTANTS)
def test_no_block(name):
    f = BLOCK_MUTANTS[name]
    compare(jax.jit(f)(*state()), on_cpu(f, *state()), 1e-4)


def test_gradient_of_a_bias_in_a_loop():
    """It is a matrix of queries by keys: the second loop reads what the first one has stacked."""
    def f(x, bias, *w):
        def one(x, p):
            q, k, v = (jnp.einsum("btm,mn->btn", x, a).reshape(B, T, H, D) for a in p[:3])
            return x + dpa(q, k, v, p[4]).reshape(B, T, H * D) @ p[3], None
        return lax.scan(one, x, (*w, bias))[0]
    args = (normal(B, T, 32), normal(3, 1, H, T, T, seed=4), *weights())
    c, n, grads = compiled(back(f), *args)
    assert grads == 0 and c.as_text().count("exponential") <= 1
    compare(c(*args), on_cpu(back(f), *args), 5e-5)


@pytest.mark.parametrize("name", MUTANTS)
def test_not(name):
    """Recognised or not: the values are the program's."""
    f = back(MUTANTS[name])
    compare(jax.jit(f)(*qkv()), on_cpu(f, *qkv()), 1e-4)


def i32(*x):
    return np.array(x, np.int32)


def positions(n, by=1, plus=0):
    return np.tile(np.arange(n, dtype=np.int32) // by + plus, (2, 1))


# Masks whose rows see no key at some places: keep(i, j, data), data, batch, queries, keys.
EMPTY = {
    "behind": (lambda i, j: i <= j, [], 2, 64, 32),
    "before_bottom": (lambda i, j: i - 32 >= j, [], 2, 64, 32),
    "strictly_before": (lambda i, j: j < i, [], 2, 64, 64),
    "every_fourth": (lambda i, j: (j > i) & (j % 4 == 0), [], 2, 64, 64),
    "left_pad": (lambda i, j, p: (i >= j) & (j >= p[:, None, None, None]), [i32(5, 0)], 2, 64, 64),
    "left_pad_of_one": (lambda i, j, p: (i >= j) & (j >= p[:, None, None, None]), [i32(5)], 1, 64, 64),
    "left_pad_scalar": (lambda i, j, p: (i >= j) & (j >= p), [np.int32(5)], 1, 64, 64),
    "window_and_length": (lambda i, j, p: (i >= j) & (i - j < 10) & (j < p[:, None, None, None]), [i32(32, 64)], 2, 64, 64),
    "window_and_length_of_one": (lambda i, j, p: (i >= j) & (i - j < 10) & (j < p[:, None, None, None]), [i32(32)], 1, 64, 64),
    "length_of_one": (lambda i, j, p: j < p[:, None, None, None], [i32(0)], 1, 64, 64),
    "positions": (lambda i, j, p, k: (p[:, :, None] >= k[:, None])[:, None], [positions(64), positions(64, 1, 32)], 2, 64, 64),
    "segments": (lambda i, j, p, k: (p[:, :, None] == k[:, None])[:, None], [positions(64, 16), positions(64, 16, 1)], 2, 64, 64),
    "keys_and_causal": (lambda i, j, k: (i >= j) & k[:, None, None], [np.arange(64)[None] > 7], 1, 64, 64),
}


@pytest.mark.parametrize("name", EMPTY)
def test_rows_without_keys_are_nan(name):
    """-inf over all of a row is 0 / 0, forward, whether the program says that of indices, positions, lengths or segments."""
    keep, data, b, t, s = EMPTY[name]
    args = [normal(b, n, H, D, seed=i) for i, n in enumerate((t, s, s))]

    def f(q, k, v, *data):
        x = jnp.einsum("bthd,bshd->bhts", q, k) / D ** 0.5
        x = jnp.where(keep(jnp.arange(t)[:, None], jnp.arange(s)[None], *data), x, -jnp.inf)
        return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(x, -1), v)

    p = jax.jit(f).lower(*args, *data).compile()
    assert re.search(r"^ +kern \d+ attention \(", p.as_text(), re.M), "attention is not one operation"
    want = on_cpu(f, *args, *data)
    assert np.isnan(want).any()
    np.testing.assert_allclose(p(*args, *data), want, rtol=1e-4, atol=1e-5)


def test_grouped_heads_keep_their_output():
    """Of a loop over layers: queries that are grouped another way forward than back are the same ones, so that the attention is not done twice."""
    def loss(q, k, v):
        return (lax.scan(lambda c, _: (dpa(c, k, v, is_causal=True), None), q, None, length=3)[0] ** 2).sum()
    x = [normal(1, 96, h, 64, seed=h) for h in (4, 2, 2)]
    c, forward, back_ = compiled(jax.grad(loss, (0, 1, 2)), *x)
    assert (forward, back_) == (1, 1)
    compare(c(*x), on_cpu(jax.grad(loss, (0, 1, 2)), *x), 1e-4)


@pytest.mark.parametrize("spelling", ["softmax", "stopped", "added", "at_least"])
@pytest.mark.parametrize("hides", ["where", "bias"])
def test_gradients_of_rows_without_keys(hides, spelling):
    """NaN where the program has it, whichever gradients are asked for: a mask that is put on by where lets none of it through to queries and keys."""
    r, t = np.random.default_rng(0), 64
    q, k, v, g = (r.standard_normal((t, 16), np.float32) for _ in range(4))
    mask = np.tril(np.ones((t, t), bool))
    mask[7] = False

    def f(q, k, v, g):
        s = jnp.where(mask, q @ k.T, -jnp.inf) if hides == "where" else q @ k.T + jnp.where(mask, 0, -jnp.inf)
        if spelling == "softmax":
            p = jax.nn.softmax(s, -1)
        else:
            m = s.max(-1, keepdims=True)
            e = jnp.exp(s - (jax.lax.stop_gradient(m) if spelling == "stopped" else m))
            z = e.sum(-1, keepdims=True)
            p = e / (jnp.maximum(z, 1e-6) if spelling == "at_least" else z + 0.01)
        return (p @ v * g).sum()
    for which in ((0,), (1,), (2,), (0, 1), (0, 1, 2)):
        got, want = jax.jit(jax.grad(f, which))(q, k, v, g), jax.jit(jax.grad(f, which))(*jax.device_put((q, k, v, g), jax.devices("cpu")[0]))
        for a, b in zip(got, want):
            np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
