"""Where values lie: what is written over an operand, in halves, or into a stack, must not be what something still reads."""
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

X = np.random.default_rng(0).normal(size=(40, 96)).astype(np.float32)


def test_donated_operand_of_a_product():
    a = X[:, :40]
    np.testing.assert_allclose(jax.jit(lambda x: x @ x, donate_argnums=0)(jnp.asarray(a)), a @ a, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda x: jnp.sort(x, 0), donate_argnums=0)(jnp.asarray(a)), np.sort(a, 0))
    np.testing.assert_allclose(jax.jit(lambda x: x.T + 1, donate_argnums=0)(jnp.asarray(a)), a.T + 1)
    np.testing.assert_allclose(jax.jit(lambda x: jnp.cumsum(x[::-1], 0), donate_argnums=0)(jnp.asarray(a)), np.cumsum(a[::-1], 0), rtol=1e-4, atol=1e-5)


def test_operand_that_is_read_twice():
    c = (X.ravel() + 1j * X.ravel()[::-1]).astype(np.complex64)      # longer than a strip: a kernel writes before it has read all
    for f in (lambda w: w * w[::-1], lambda w: w[::-1] * w, lambda w: lax.complex(w.real, w[::-1].imag) * w):
        apart = lambda x, f=f: jnp.abs(lax.optimization_barrier(f(lax.optimization_barrier(jnp.exp(x)))))
        np.testing.assert_allclose(jax.jit(apart)(c), np.abs(np.asarray(f(jnp.asarray(np.exp(c))))), rtol=1e-4)


def test_operand_that_is_read_later():
    apart = lax.optimization_barrier
    f = lambda x: (lambda y: jnp.cos(apart(y + apart(jnp.exp(y)))))(apart(jnp.sin(x)))
    np.testing.assert_allclose(jax.jit(f)(X), np.cos(np.sin(X) + np.exp(np.sin(X))), rtol=1e-4, atol=1e-5)


def test_carries_that_change_places():
    for n in (2, 3, 96):
        a, b, c = X[0, :n], X[1, :n], X[2, :n]
        got = jax.jit(lambda *s: lax.fori_loop(0, 5, lambda i, s: (s[1], s[2], s[0]), s))(a, b, c)
        for g, w in zip(got, (c, a, b)):
            np.testing.assert_array_equal(g, w)
        k = jnp.int32(5)
        got = jax.jit(lambda k, *s: lax.fori_loop(0, k, lambda i, s: (s[1], s[0]), s))(k, a, b)
        for g, w in zip(got, (b, a)):
            np.testing.assert_array_equal(g, w)


def test_carry_that_is_read_late():
    def turn(a, s):
        return jnp.flip(a) + jnp.cumsum(a) * 0.01, s + a

    for turns in (1, 2, 3, 6, 7):
        want = (jnp.asarray(X[0]), jnp.zeros(96))
        for _ in range(turns):
            want = turn(*want)
        for n in (turns, jnp.int32(turns)):
            got = jax.jit(lambda n, a, s: lax.fori_loop(0, n, lambda i, s: turn(*s), (a, s)))(n, X[0], np.zeros(96, np.float32))
            known = jax.jit(lambda a, s: lax.fori_loop(0, turns, lambda i, s: turn(*s), (a, s)))(X[0], np.zeros(96, np.float32))
            for g, k, w in zip(got, known, want):
                np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(k, w, rtol=1e-4, atol=1e-5)


def test_scan_from_the_end():
    f = lambda c, x: (jnp.cumsum(c) * 0.1 + x, c - 2 * x)
    got = jax.jit(lambda x: lax.scan(f, jnp.zeros(96), x, reverse=True))(X)
    c, out = np.zeros(96, np.float32), np.zeros_like(X)
    for i in reversed(range(40)):
        out[i], c = c - 2 * X[i], np.cumsum(c) * 0.1 + X[i]
    np.testing.assert_allclose(got[1], out, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(got[0], c, rtol=1e-3, atol=1e-4)


def test_short_scan_from_the_end_over_large_rows():
    x = np.random.default_rng(1).normal(size=(5, 2000)).astype(np.float32)
    for reverse in (False, True):
        got = jax.jit(lambda x: lax.scan(lambda c, r: (c * 0.5 + r, c + r), jnp.zeros(2000), x, reverse=reverse))(x)
        c, out = np.zeros(2000, np.float32), np.zeros_like(x)
        for i in reversed(range(5)) if reverse else range(5):
            out[i], c = c + x[i], c * np.float32(0.5) + x[i]
        np.testing.assert_allclose(got[1], out, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got[0], c, rtol=1e-5, atol=1e-6)


def test_rows_that_no_turn_writes():
    scatter, stack = lambda y, i, row: y.at[i].set(row), lambda y, i, row: lax.dynamic_update_index_in_dim(y, row, i, 0)
    for y, write in [(X, scatter), (X + 1, stack), (X - 1, stack)]:
        want = y.copy()
        want[:7] = np.cumsum(X[:7], 1)
        f = jax.jit(lambda x, y: lax.fori_loop(0, 7, lambda i, y: write(y, i, jnp.cumsum(x[i])), y))
        np.testing.assert_allclose(f(X, y), want, rtol=1e-4, atol=1e-5)
