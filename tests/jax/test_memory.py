"""Out of memory: the call that asked gets the exception, which names program, line, the largest values, and what to do; what is too large for any memory is named, too."""
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.only_rondo("Rondo's memory")

# Each case is called, not waited for: the line of the call is in the traceback.
PROGRAM = """
import sys, traceback
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
def tell(f):
    try:
        r = f()
    except Exception as e:
        print(f.__name__, "@", [t.lineno for t in traceback.extract_tb(e.__traceback__) if t.filename == __file__][-1], "@", " ".join(str(e).split()))
    else:
        print(f.__name__, "@ none @", jax.block_until_ready(r) is not None)
x = jnp.ones((1024, 1024))                                      # 4.2 MB
big = jax.jit(lambda x: jnp.argsort(
    x[:, None, :64] * 2 + x[None, :, :64],                      # at product: 268.4 MB
    axis=0).sum())
grows = jax.jit(lambda x: jnp.broadcast_to(x @ x, (64, 1024, 1024)))        # at grows
def temporaries():
    return big(x)                                               # at temporaries
def result():
    return grows(x)                                             # at result
def result_again():
    return grows(x)                                             # at result_again
def held():
    keep = []
    for i in range(64):
        keep.append(jnp.sort(x + i, axis=0))                    # at held
    return keep
def drops():
    for i in range(64):                                         # as much, but never at once
        y = jnp.sort(x + i, axis=0)
    return y
table = np.arange(34 << 20, dtype=np.float32)
adds = jax.jit(lambda x: table + x)                             # at adds
def constants():
    return adds(1.)                                             # at constants
def several():
    return spread(y)                                            # at several
def donated():
    s = jnp.full((1024, 1024), 2.0)
    try:
        both(s)                                                 # a result beside the donated one, which does not fit
    except Exception as e:
        assert "RESOURCE_EXHAUSTED" in str(e) and not s.is_deleted(), e
    else:
        raise AssertionError("it fits")
    y = s + 1
    del s
    return y if float(y[3, 3]) == 3 else None
both = jax.jit(lambda s: (s + 1, jnp.broadcast_to(s, (64, 1024, 1024))), donate_argnums=0)
def behind():                                                   # each has a third of the memory, and is gone when the next but one begins
    for i in range(12):
        y = third(x)
    return y
third = jax.jit(lambda x: jnp.sort(jnp.broadcast_to(x, (8, 1024, 1024)), axis=1) + 1)
mesh = jax.make_mesh((len(jax.devices()),), ("d",))
y = jax.device_put(np.ones((1024, 1024), np.float32), NamedSharding(mesh, P("d")))
spread = jax.jit(jax.shard_map(lambda y: jnp.broadcast_to(y + jax.lax.psum(y, "d"), (64,) + y.shape),         # at spread
                               mesh=mesh, in_specs=P("d"), out_specs=P(None, "d")))
for f in temporaries, result, result_again, held, drops, constants, several, drops, donated, behind:
    tell(f)
print("runs @ none @", float((x + 1)[0, 0]))
"""

LINE = {m[1]: i for i, row in enumerate(PROGRAM.splitlines(), 1) if (m := re.search(r"# at (\w+)", row))}


@pytest.fixture(scope="module", params=["1", "2"])
def told(request, tmp_path_factory):
    where = tmp_path_factory.mktemp("memory")
    (where / "train.py").write_text(PROGRAM)
    env = os.environ | {"RONDO_MEMORY": "128M", "RONDO_DEVICES": request.param, "RONDO_CACHE": ""}
    r = subprocess.run([sys.executable, "train.py"], cwd=where, env=env, capture_output=True, text=True, timeout=600)
    assert r.returncode == 0 and "rondo" not in r.stderr, r.stderr          # nor a warning of an error that nobody reads
    return {name: (line, text) for name, line, text in (row.split(" @ ", 2) for row in r.stdout.splitlines())}


@pytest.mark.parametrize("name, of, words", [
    ("temporaries", "product", r"program 'jit__lambda', whose largest temporaries are 2 of 268\.4 MB \(train\.py:\d+ sort\), 268\.4 MB \(train\.py:\d+ iota\), 268\.4 MB \(train\.py:LINE fused\): .*arguments, results and temporaries of a device are 107\d\.\d MB, and there are \d+\.\d MB.*a smaller batch, one part of it after the other \(jax\.lax\.map"),
    ("result", "grows", r"program 'jit__lambda', result 0, made at train\.py:LINE \w+: .*arguments, results and temporaries of a device are 28\d\.\d MB, and there are \d+\.\d MB \(RONDO_MEMORY"),
    ("result_again", "grows", r"program 'jit__lambda', result 0, made at train\.py:LINE "),
    ("held", "held", r"program 'jit_sort', result 0, made at train\.py:LINE sort: .*largest live buffers: \d+ of 4\.2 MB \(program 'jit_sort', result 0\)"),
    ("constants", "adds", r"program 'jit__lambda', whose largest constant, 142\.6 MB, is for train\.py:LINE \w+: .*asked for 142\.6 MB for its constants"),
    ("several", "spread", r"program 'jit__lambda', result 0, made at train\.py:LINE "),
])
def test_the_call_that_asks(told, name, of, words):
    line, text = told[name]
    assert line == str(LINE[name]), (line, text)
    assert text.startswith("RESOURCE_EXHAUSTED: ") and re.search(words.replace("LINE", str(LINE[of])), text), text
    assert ("what is deleted or donated makes room" in text) == (name in ("held", "constants")), text         # the others fit into no memory of that size


def test_what_fits_runs(told):
    assert told["drops"] == ("none", "True") and told["runs"] == ("none", "2.0")


def test_a_launch_waits_for_those_before_it(told):
    assert told["behind"] == ("none", "True")


def test_a_program_takes_what_is_said():
    """Nor more than compiled.memory_analysis() says and 1 %, nor much less; the corpus' programs: tests/jax/run.sh."""
    r = subprocess.run([sys.executable, pathlib.Path(__file__).with_name("peak.py")], capture_output=True, text=True, timeout=600)
    assert r.returncode == 0 and " passed, 0 failed" in r.stdout, r.stdout + r.stderr


def test_what_fits_exactly_runs():
    """Where an argument and a result are all of the memory, what the program needs besides is nothing."""
    r = subprocess.run([sys.executable, "-c", "import jax, jax.numpy as jnp; jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.ones(8 << 20))); print('done')"],
                       env=os.environ | {"RONDO_MEMORY": str(64 << 20), "RONDO_CACHE": ""}, capture_output=True, text=True, timeout=300)
    assert r.stdout == "done\n", r.stderr


def test_what_was_donated_is_there(told):
    assert told["donated"] == ("none", "True")


def test_too_large_for_anything():
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"test_memory\.py:\d+: 'broadcast_in_dim\w*': f32\[562949953421312\], an array of more than 2\^48 elements"):
        jnp.zeros(1 << 49, jnp.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"test_memory\.py:\d+: '\w+': i8\[1048576,1073741824\], an array of more than 2\^48 elements"):
        jax.jit(lambda x: jnp.broadcast_to(x, (1 << 20, 1 << 30)))(jnp.int8(1))


ADVICE = """
import sys, jax, jax.numpy as jnp
def net(x, w, again):
    layer = lambda x, w: (jnp.sin(x @ w) * x, None)
    return jax.lax.scan(jax.checkpoint(layer) if again else layer, x, w)[0].sum()
jax.jit(jax.grad(net), static_argnums=2)(jnp.ones((512, 1024)), jnp.ones((24, 1024, 1024), jnp.bfloat16), sys.argv[1] == "again")
"""


@pytest.mark.parametrize("how, advice", [("plain", r"a smaller batch, jax\.checkpoint, or more devices"), ("again", r"a smaller batch, a jax\.checkpoint that keeps less \(around more layers")])
def test_what_helps_a_gradient(how, advice):
    r = subprocess.run([sys.executable, "-c", ADVICE, how], env=os.environ | {"RONDO_MEMORY": "96M", "RONDO_DEVICES": "1", "RONDO_CACHE": ""}, capture_output=True, text=True, timeout=300)
    assert r.returncode == 1 and re.search(r"program 'jit_net', whose largest temporaries are .*" + advice, r.stderr), r.stderr


def test_layers_that_are_made_again():
    """A step of training whose layers are made again, one after the other and not in a loop, holds their inputs, the gradients, and what one of them needs."""
    layers, d, f, t = 8, 128, 512, 2048

    def loss(w, x):
        for a, b in w:
            x = jax.checkpoint(lambda x, a, b: x + jnp.tanh(jnp.sin(x @ a)) @ b)(x, a, b)
        return (x * x).sum()

    w = [(jnp.ones((d, f)), jnp.ones((f, d)))] * layers
    step = jax.jit(lambda w, x: jax.tree.map(lambda a, g: a - 0.1 * g, w, jax.grad(loss)(w, x)), donate_argnums=0)
    temp = step.lower(w, jnp.ones((t, d))).compile().memory_analysis().temp_size_in_bytes
    assert temp <= 4 * (layers * t * d + layers * 2 * d * f + 5 * t * f)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int16", "uint32"])
@pytest.mark.parametrize("shape, axis", [((150001,), 0), ((300, 400), 0), ((400, 300), 1), ((2, 140000), 1), ((140000, 2), 0)], ids=str)
def test_a_sort_is_left_over_what_nobody_else_reads(shape, axis, dtype):
    x = jnp.asarray(np.random.default_rng(1).integers(0, 100, shape)).astype(dtype)
    for up in (True, False):
        f = jax.jit(lambda v: jnp.sort(v + v, axis=axis, descending=not up))
        want = np.sort(np.asarray(x + x).astype(np.float64), axis=axis)
        np.testing.assert_array_equal(np.asarray(f(x)).astype(np.float64), want if up else np.flip(want, axis))
    got = jax.jit(lambda v: jnp.sort(v, axis=axis), donate_argnums=0)(x)
    np.testing.assert_array_equal(np.asarray(got).astype(np.float64) * 2, want)


def test_a_sort_needs_no_memory_for_its_operand():
    temp = jax.jit(lambda v: jnp.sort(v * 2)).lower(jnp.ones(1 << 20)).compile().memory_analysis().temp_size_in_bytes
    assert temp < 1.3 * (4 << 20)        # what elements move through


SHORT = """
import jax, jax.numpy as jnp, numpy as np
r = np.random.default_rng(0)
w = [(r.standard_normal((8, *s)) / 16).astype(np.float32) for s in ((256, 512), (512, 256))]
x = r.standard_normal((1024, 256)).astype(np.float32)
def layer(x, w):
    a, b = w
    y = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    return x + jax.nn.gelu(y @ a) @ b, None
def loss(w, x):
    return (jax.lax.scan(layer, x, w)[0] ** 2).mean()
mesh = jax.make_mesh((len(jax.devices()),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(x, jax.NamedSharding(mesh, jax.P("x")))
w = jax.device_put(w, jax.NamedSharding(mesh, jax.P()))
try:
    c = jax.jit(jax.value_and_grad(loss)).lower(w, x).compile()
except Exception as e:
    print("refused", " ".join(str(e).split()))
else:
    m = c.memory_analysis()
    l, g = c(w, x)
    print(m.temp_size_in_bytes, m.argument_size_in_bytes + m.output_size_in_bytes, float(l), *(float(abs(a).sum()) for a in g))
"""


@pytest.mark.parametrize("devices", [1, 4])
def test_what_loops_keep_is_made_again_where_memory_is_short(devices):
    """So much as it takes, and said; with less than what nothing helps against the compile is refused, not a step later."""
    def under(memory):
        r = subprocess.run([sys.executable, "-c", SHORT], env=os.environ | {"RONDO_DEVICES": str(devices), "RONDO_MEMORY": str(memory), "RONDO_CACHE": ""}, capture_output=True, text=True, timeout=200)
        assert r.returncode == 0, r.stderr
        return r.stdout.split(), r.stderr

    free, said = under(0)
    temp, around, values = int(free[0]), int(free[1]), np.array(free[2:], float)
    assert "too large" not in said
    for part in 0.9, 0.6, 0.4:
        short, said = under(devices * (around + int(temp * part)))
        assert int(short[0]) <= temp * part and "is made again" in said, (part, short, said)
        np.testing.assert_allclose(np.array(short[2:], float), values, rtol=1e-4)
    none, _ = under(devices * (around + int(temp * 0.05)))
    assert none[0] == "refused" and "RESOURCE_EXHAUSTED:" in none and "largest temporaries are" in " ".join(none), none


@pytest.mark.only_rondo("how much others take is theirs")
@pytest.mark.parametrize("size", [7, 4096, 1 << 20])
def test_updates_of_several_donated_arrays_take_no_memory(size):
    """Each result is made where what it replaces lies, whatever it reads of the others; what is read elsewhere than it is written, or afterwards, is not written over."""
    def adam(p, m, v, g):
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
        return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v

    def turned(p, m, v, g):
        return p + m, m * p[::-1], v - p

    def exchanged(p, m, v, g):
        return m + g, v * g, p - g

    for f, arrays in (adam, 0), (turned, 2), (exchanged, 1):
        x = [np.random.default_rng(k).random(size).astype(np.float32) for k in range(4)]
        want = f(*x)
        c = jax.jit(f, donate_argnums=(0, 1, 2)).lower(*x).compile()
        assert size < 1 << 20 or c.memory_analysis().temp_size_in_bytes <= arrays * size * 4, f.__name__
        for got, w in zip(c(*[jnp.asarray(a) for a in x]), want):
            np.testing.assert_allclose(got, w, rtol=1e-5, atol=1e-6)


def test_gradients_of_rows_of_a_stack():
    """One beside the other, and not each with zeros around it; -0 becomes 0 as in a sum with them."""
    n = 128
    w, x = np.random.default_rng(0).standard_normal((12, n, n)).astype(np.float32) / 12, np.ones((8, n), np.float32)

    def f(w, x):
        def loss(w):
            h = x
            for i in range(12):
                h = jnp.tanh(h @ w[i])
            return (h ** 2).sum()
        g = jax.grad(loss)(w)
        return g / jnp.sqrt((g * g).sum())
    assert jax.jit(f).lower(w, x).compile().memory_analysis().temp_size_in_bytes <= 1.5 * w.nbytes
    np.testing.assert_allclose(jax.jit(f)(w, x), jax.jit(f)(*jax.device_put((w, x), jax.devices("cpu")[0])), rtol=1e-3, atol=1e-5)
    zero = jax.jit(jax.grad(lambda w: sum(-0.0 * w[i].sum() for i in (1, 4, 2))))(w[:6])
    assert not np.signbit(zero).any()


def test_results_of_few_ops_lie_where_they_are_wanted():
    """Also where a group of ops is too small for code of its own."""
    x, y = jnp.ones((320, 1920)), jnp.ones((320, 5))
    for f in (lambda x, y: jnp.concatenate([x, y], 1), lambda x, y: jnp.concatenate([x, jnp.ones((320, 1))], 1), lambda x, y: jnp.pad(x, ((0, 0), (0, 3))), lambda x, y: jnp.roll(x, 5),
              lambda x, y: jnp.roll(x, 5, 1), lambda x, y: (x[jnp.array([3, 5, 7])], jnp.pad(x, ((1, 2), (0, 0))))):
        assert jax.jit(f).lower(x, y).compile().memory_analysis().temp_size_in_bytes < 1 << 10
