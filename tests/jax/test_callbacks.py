"""Python called from programs."""
import gc
import os
import pty
import queue
import select
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import buffer_callback, io_callback
from jax.sharding import PartitionSpec as P


def test_debug_print(capsys):
    @jax.jit
    def f(x):
        jax.debug.print("x is {x}", x=x[1])
        return x + 1

    f(jnp.arange(3))
    jax.effects_barrier()
    assert capsys.readouterr().out == "x is 1\n"


def test_debug_print_only(capsys):
    jax.jit(lambda: jax.debug.print("alone"))()
    jax.effects_barrier()
    assert capsys.readouterr().out == "alone\n"


def test_ordered_print(capsys):
    @jax.jit
    def f(n):
        def body(i, s):
            jax.debug.print("{i}", i=i, ordered=True)
            return s + i
        return jax.lax.fori_loop(0, n, body, 0)

    assert f(5) == 10
    jax.effects_barrier()
    assert capsys.readouterr().out == "0\n1\n2\n3\n4\n"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
def test_pure(dtype):
    x = jnp.asarray(np.arange(12).reshape(3, 4) % 2, dtype)
    f = jax.jit(lambda x: jax.pure_callback(lambda a: np.asarray(a).T, jax.ShapeDtypeStruct((4, 3), x.dtype), x))
    np.testing.assert_array_equal(f(x).astype(np.complex64), np.asarray(x).T.astype(np.complex64))


@pytest.mark.parametrize("wide", [True, False])
def test_under_a_setting(wide, capsys):
    """Callbacks run on other threads, but under what the program was made under."""
    S, t = jax.ShapeDtypeStruct, lambda a: a.dtype.name[-2:]
    with jax.enable_x64(wide):
        x, n = jnp.array([1 / 3, 1e30]), jnp.array([1 << 40 if wide else 1 << 20, -3])
        assert t(x) == t(n) == ("64" if wide else "32")
        for a in x, n:
            jax.jit(lambda a: jax.debug.callback(lambda b: print(t(b), *map(repr, np.asarray(b).tolist())), a))(a)
            jax.effects_barrier()
            assert capsys.readouterr().out.split() == [t(a), *map(repr, np.asarray(a).tolist())]
            got = jax.jit(lambda a: jax.pure_callback(lambda b: np.asarray(b) * 2, S(a.shape, a.dtype), a))(a)
            assert got.dtype == a.dtype
            np.testing.assert_array_equal(got, np.asarray(a) * 2)
            loop = jax.jit(lambda a: jax.lax.scan(lambda c, _: (io_callback(lambda b: jnp.asarray(b) * 2, S(a.shape, a.dtype), c, ordered=True), c), a, None, length=3)[0])
            np.testing.assert_array_equal(loop(a), np.asarray(a) * 8)
    with jax.numpy_dtype_promotion("strict"), pytest.raises(jax.errors.JaxRuntimeError, match="TypePromotionError"):
        jax.jit(lambda a: jax.pure_callback(lambda b: np.float32(jnp.int32(1) + jnp.float32(1)), S((), np.float32), a))(jnp.float32(1)).block_until_ready()
    with jax.default_matmul_precision("highest"):
        seen = jax.jit(lambda a: jax.pure_callback(lambda b: np.int32(jax.config.jax_default_matmul_precision == "highest"), S((), np.int32), a))(jnp.float32(1))
    assert seen == 1


def test_keys(capsys):
    """Of a PRNG key a callback is given the words."""
    keys = jax.random.split(jax.random.key(7), 3)
    words = np.asarray(jax.random.key_data(keys))
    f = jax.jit(lambda k, x: jax.pure_callback(lambda a, b: np.asarray(a)[:, 1] + b, jax.ShapeDtypeStruct((3,), np.uint32), k, x))
    np.testing.assert_array_equal(f(keys, jnp.uint32(5)), words[:, 1] + np.uint32(5))
    jax.jit(lambda k: (jax.debug.print("{}", k[0]), jax.random.bits(k[0]))[1])(keys)
    jax.effects_barrier()
    assert capsys.readouterr().out == f"{words[0]}\n"


def test_many_operands_and_results():
    shapes = [(), (0,), (3,), (2, 2)]
    xs = [np.full(s, i, np.float32) for i, s in enumerate(shapes)]
    f = jax.jit(lambda *a: jax.pure_callback(
        lambda *a: tuple(np.asarray(x) + 1 for x in a), tuple(jax.ShapeDtypeStruct(s, np.float32) for s in shapes), *a))
    for x, y in zip(xs, f(*xs)):
        np.testing.assert_array_equal(y, x + 1)


def test_vmap():
    def f(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x, vmap_method="sequential")
    x = np.linspace(0, 1, 5, dtype=np.float32)
    np.testing.assert_allclose(jax.jit(jax.vmap(f))(x), np.sin(x), rtol=1e-6)


def test_io_in_order():
    seen = []

    @jax.jit
    def f(x):
        for i in range(4):
            io_callback(lambda v, i=i: seen.append((i, int(v))), None, x + i, ordered=True)
        return x

    f(10)
    f(20)
    jax.effects_barrier()
    assert seen == [(i, n + i) for n in (10, 20) for i in range(4)]


def test_io_result():
    box = iter(range(100))
    f = jax.jit(lambda: io_callback(lambda: np.int32(next(box)), jax.ShapeDtypeStruct((), np.int32), ordered=True))
    assert [int(f()) for _ in range(3)] == [0, 1, 2]


def test_error_text():
    def boom(x):
        raise RuntimeError("a reason of its own")

    f = jax.jit(lambda x: jax.pure_callback(boom, jax.ShapeDtypeStruct((), np.float32), x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="a reason of its own"):
        f(1.0).block_until_ready()
    assert float(jax.jit(lambda x: x + 1)(1.0)) == 2.0


def test_wrong_shape():
    f = jax.jit(lambda x: jax.pure_callback(lambda x: np.zeros(3, np.float32), jax.ShapeDtypeStruct((2,), np.float32), x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="[Ss]hape"):
        f(1.0).block_until_ready()


def test_jax_inside():
    def host(x):
        return np.asarray(jax.jit(lambda x: jnp.sin(x) + jnp.ones(3).sum())(jnp.asarray(x)))

    f = jax.jit(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct((4,), np.float32), x) * 2)
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_allclose(f(x), 2 * (np.sin(x) + 3), rtol=1e-6)


def test_gradient_around():
    @jax.custom_jvp
    def f(x):
        return jax.pure_callback(lambda x: np.sin(x), jax.ShapeDtypeStruct((), np.float32), x)

    f.defjvp(lambda p, t: (f(*p), jnp.cos(p[0]) * t[0]))
    assert np.allclose(jax.jit(jax.grad(f))(0.3), np.cos(0.3), rtol=1e-6)


def test_function_lives_as_long_as_needed():
    def make(k):
        return jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x) + k, jax.ShapeDtypeStruct((), np.float32), x))

    out = [make(float(k))(1.0) for k in range(10)]
    gc.collect()
    assert [float(x) for x in out] == [1.0 + k for k in range(10)]


def test_every_device_calls():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    seen, lock = [], threading.Lock()

    def note(i):
        with lock:
            seen.append(int(i))

    def f(x):
        jax.debug.callback(note, jax.lax.axis_index("x"))
        return x * 2

    y = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(jnp.arange(8.0))
    jax.effects_barrier()
    np.testing.assert_array_equal(y, np.arange(8.0) * 2)
    assert sorted(seen) == [0, 1, 2, 3]


def test_one_call_for_the_whole_array():
    r = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ("x",)), P())
    calls = []

    def host(x):
        calls.append(1)
        return np.asarray(x) + len(calls)

    f = jax.jit(lambda x: jax.pure_callback(host, jax.ShapeDtypeStruct((3,), np.float32), x) * 2, in_shardings=r, out_shardings=r)
    y = f(np.zeros(3, np.float32))
    y.block_until_ready()
    assert len(calls) == 1
    for s in y.addressable_shards:
        np.testing.assert_array_equal(s.data, [2.0, 2.0, 2.0])


def grid():
    return jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


SPECS = [P("x", "y"), P(("y", "x")), P("y"), P()]
V = np.arange(32, dtype=np.float32).reshape(8, 4)


class Notes:
    """What was called with."""

    def __init__(self):
        self.all, self.lock = [], threading.Lock()

    def __call__(self, *values):
        with self.lock:
            self.all.append(tuple(np.array(v) for v in values))
        return self.all[-1][0] * 2

    def are(self, want):
        def order(calls):
            return sorted([[v.tobytes(), v.shape] for v in c] for c in calls)

        assert order(self.all) == order(want), (self.all, want)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_calls_of_sharded_values(spec):
    """Once, with the whole value, however it lies; what they give has everybody."""
    x = jax.device_put(V, jax.sharding.NamedSharding(grid(), spec))
    shape = jax.ShapeDtypeStruct(V.shape, V.dtype)
    last = jax.sharding.SingleDeviceSharding(jax.devices()[3])
    for f, want, y in (
        (lambda n, a: (jax.debug.callback(n, a, a.sum(0)), a + 1)[1], [(V, V.sum(0))], V + 1),
        (lambda n, a: jax.pure_callback(n, shape, a) + a.sum(), [(V,)], V * 2 + V.sum()),
        (lambda n, a: io_callback(n, shape, a.T.T, sharding=last) + 1, [(V,)], V * 2 + 1),
        (lambda n, a: (io_callback(lambda v: n(v) is None or None, None, a), a * 3)[1], [(V,)], V * 3),
        (lambda n, a: jax.lax.fori_loop(0, 3, lambda i, c: (jax.debug.callback(n, c), c + 1)[1], a), [(V,), (V + 1,), (V + 2,)], V + 3),
        (lambda n, a: jax.lax.cond(a[0, 0] == 0, lambda z: (jax.debug.callback(n, z), z * 2)[1], lambda z: z, a), [(V,)], V * 2),
    ):
        notes = Notes()
        got = jax.jit(lambda a, f=f, notes=notes: f(notes, a))(x)
        jax.block_until_ready(got)
        jax.effects_barrier()
        notes.are(want)
        for s in got.addressable_shards:
            np.testing.assert_array_equal(s.data, y[s.index])


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_calls_with_parts(spec):
    """partitioned: each device, with what it holds."""
    x = jax.device_put(V, jax.sharding.NamedSharding(grid(), spec))
    parts = [np.asarray(s.data) for s in x.addressable_shards]
    for f, want in (
        (lambda n, a: jax.debug.callback(n, a, partitioned=True), [(p,) for p in parts]),
        (lambda n, a: jax.debug.callback(n, a * 2, a.sum(), partitioned=True), [(p * 2, V.sum()) for p in parts]),
        (lambda n, a: jax.lax.fori_loop(0, 2, lambda i, c: (jax.debug.callback(n, c, partitioned=True), c + 1)[1], a),
         [(p + k,) for p in parts for k in (0, 1)]),
    ):
        notes = Notes()
        jax.block_until_ready(jax.jit(lambda a, f=f, notes=notes: (f(notes, a), a + 1)[1])(x))
        jax.effects_barrier()
        notes.are(want)


def test_parts_in_print(capsys):
    x = jax.device_put(np.arange(4), jax.sharding.NamedSharding(grid(), P("x")))
    jax.jit(lambda a: jax.debug.print("{}", a, partitioned=True))(x)
    jax.effects_barrier()
    assert sorted(capsys.readouterr().out.splitlines()) == ["[0 1]"] * 2 + ["[2 3]"] * 2


@pytest.mark.only_rondo("XLA:CPU ends the process")
def test_one_device_that_raises():
    x = jax.device_put(V, jax.sharding.NamedSharding(grid(), P("x", "y")))

    def boom(v):
        raise ValueError("the callback failed")

    f = jax.jit(lambda a: jax.pure_callback(boom, jax.ShapeDtypeStruct(V.shape, V.dtype), a) + a.sum())
    for _ in range(3):
        with pytest.raises(Exception, match="the callback failed"):
            jax.block_until_ready(f(x))
    np.testing.assert_array_equal(jax.jit(lambda a: a + a.sum())(x), V + V.sum())


def test_checkify():
    from jax.experimental import checkify

    def f(x):
        checkify.check(x > 0, "x must be positive, is {x}", x=x)
        return jnp.log(x)

    err, _ = jax.jit(checkify.checkify(f))(-1.0)
    assert "must be positive" in err.get()


def test_spsolve():
    """jax.experimental.sparse asks jax.interpreters.mlir for callbacks."""
    from jax.experimental import sparse
    from jax.experimental.sparse.linalg import spsolve
    m = np.eye(5, dtype=np.float32) * 3 + np.diag(np.ones(4, np.float32), 1)
    a, b = sparse.BCSR.fromdense(m), np.arange(5, dtype=np.float32)
    for solve in (spsolve, jax.jit(spsolve)):
        np.testing.assert_allclose(solve(a.data, a.indices, a.indptr, b), np.linalg.solve(m, b), rtol=1e-5)


INTERRUPTED = """
import os, signal, sys, threading, time, jax, jax.numpy as jnp, numpy as np
kind, ready = sys.argv[1], threading.Event()
signal.signal(signal.SIGINT, signal.default_int_handler)         # what a shell has begun in the background ignores it
x = np.ones(64, np.float32)

def slow(x):                     # Python that goes on until it is interrupted
    ready.set()
    for _ in range(3000): time.sleep(.02)
    return x

def deaf(x):                     # Python that nothing interrupts before it ends
    ready.set()
    time.sleep(6)
    return x

def call(f):
    return jax.jit(lambda x: jax.pure_callback(f, jax.ShapeDtypeStruct(x.shape, x.dtype), x))

turns = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda i, x: jnp.sin(x + i), x))
turns(x, 1).block_until_ready()

def interrupt():
    global sent
    ready.wait()
    time.sleep(.3)
    sent = time.time()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    if kind in ("slow", "deaf"):
        call(slow if kind == "slow" else deaf)(x).block_until_ready()
    elif kind == "wait":         # for a program that takes seconds
        ready.set()
        turns(x, 80000000).block_until_ready()
    elif kind == "read":
        ready.set()
        float(turns(x, 80000000)[0])
    else:                        # for a place in the queue of a device
        y = turns(x, 200000)
        ready.set()
        while True: y = turns(y, 200000)
    print("not interrupted")
except KeyboardInterrupt:
    print("interrupted", time.time() - sent)
print(float(jnp.sum(jax.jit(lambda x: x + 1)(x))))
sys.stdout.flush()
if kind == "slow": time.sleep(1)  # programs behind it go past: it may still be writing what ended it
os._exit(0)
"""


@pytest.mark.only_rondo("XLA:CPU calls Python on the caller's thread")
@pytest.mark.parametrize("kind", ["slow", "deaf", "wait", "read", "queue"])
def test_interrupted(kind):
    """Ctrl-C is KeyboardInterrupt at once, wherever the main thread waits; in Python functions that run as well; and programs run on behind it."""
    r = subprocess.run([sys.executable, "-c", INTERRUPTED, kind], capture_output=True, text=True, timeout=300)
    out = r.stdout.split()
    assert r.returncode == 0 and out[0] == "interrupted" and float(out[1]) < 3 and out[2] == "128.0", (r.stdout, r.stderr)
    assert kind != "slow" or "KeyboardInterrupt" in r.stderr


COMPILING = """
import os, signal, sys, threading, time, jax, jax.numpy as jnp
from rondo import library
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jaxlib import _jax
signal.signal(signal.SIGINT, signal.default_int_handler)
one = jnp.ones(3)
body = "".join(f"    %{i + 1} = stablehlo.{'tanh' if i % 3 else 'sine'} %{i} : tensor<{sys.argv[2]}xf32>\\n" for i in range(80000))
with mlir.make_ir_context():
    module = ir.Module.parse(f"module @jit_long {{ func.func public @main(%0: tensor<{sys.argv[2]}xf32>) -> tensor<{sys.argv[2]}xf32> {{\\n{body}    return %80000 : tensor<{sys.argv[2]}xf32> }} }}")
device = jax.devices()[0]
before = library.compiles()[0]
def interrupt():
    while sys.argv[1] == "compiling" and library.compiles()[0] == before: time.sleep(.01)
    time.sleep(.05)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    compiler.backend_compile_and_load(device.client, module, _jax.DeviceList((device,)), compiler.get_compile_options(num_replicas=1, num_partitions=1), [])
    time.sleep(10)
    print("not interrupted")
except KeyboardInterrupt:
    begun, over = library.compiles()
    print("interrupted", begun > over)
del module
for n in range(3, 6):
    last = jnp.ones(n).sum()        # compiles of others, meanwhile
print(float(one.sum()))
"""


@pytest.mark.only_rondo("jaxlib's thread goes on, which XLA:CPU's end does not wait for")
@pytest.mark.parametrize("when", ["reading", "compiling"])
def test_interrupted_in_a_compile(when):
    """jaxlib still reads the module, or Rondo compiles and goes on, when nobody holds it any more and the process ends."""
    r = subprocess.run([sys.executable, "-c", COMPILING, when, str(len(when))], env=os.environ | {"RONDO_CACHE": "", "RONDO_TIER": "gen"}, capture_output=True, text=True, timeout=300)
    said = r.stdout.split()
    assert r.returncode == 0 and [said[0], said[-1]] == ["interrupted", "3.0"] and said[1] in ("True", str(when == "compiling")), (r.returncode, r.stdout, r.stderr)


@pytest.mark.only_rondo("Rondo's words")
def test_long_tracebacks_have_their_first_and_last_lines():
    chain = {}
    name = "f" * 90
    exec("\n".join(f"def {name}{i}(): return {name}{i + 1}()" for i in range(60)) + f"\ndef {name}60(): raise ValueError('far down')", chain)

    def mine(x):
        return chain[name + "0"]()
    with pytest.raises(Exception, match="calling callback: Traceback") as e:
        jax.jit(lambda x: jax.pure_callback(mine, x, x))(jnp.ones(3)).block_until_ready()
    said = str(e.value)
    assert ", in mine\n" in said and "\n  ..\n" in said and said.rstrip().endswith("ValueError: far down"), said


RAISED = """
import gc, os, signal, sys, threading, time, jax, jax.numpy as jnp, numpy as np
kind, called, begun = sys.argv[1], threading.Event(), threading.Event()

class Stop(Exception):
    def __init__(self, number, why):
        super().__init__(number, why)

def stop(number, frame):
    if kind == "exit":
        sys.exit(3)
    raise Stop(number, "it was to")

signal.signal(signal.SIGTERM, stop)
spec = jax.ShapeDtypeStruct((64,), np.float32)

def hold(x):
    called.set()
    for _ in range(3000): time.sleep(.02)
    return x

def other(x):                    # of another thread
    begun.set()
    time.sleep(2)
    return x + 1

f, g = (jax.jit(lambda x, h=h: jax.pure_callback(h, spec, x)).lower(spec).compile() for h in (hold, other))
x, y = np.ones(64, np.float32), []
worker = threading.Thread(target=lambda: y.append(float(g(x)[0])))

def interrupt():
    called.wait()
    time.sleep(.3)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=interrupt, daemon=True).start()
if kind == "thread":             # and f waits for its end
    worker.start()
    begun.wait()
    called.set()
if kind == "garbage":            # Python functions that a collection calls swallow what is raised in them
    gc.callbacks.append(lambda phase, info: None)
    gc.set_threshold(1)
try:
    f(x)
    print("not stopped")
except Stop as e:
    gc.set_threshold(0)
    print(*e.args)
if kind == "thread":
    worker.join()
    print(*y)
"""


@pytest.mark.only_rondo("XLA:CPU calls Python on the caller's thread")
@pytest.mark.parametrize("kind, code, said", [("exit", 3, ""), ("args", 0, "15 it was to"), ("thread", 0, "15 it was to 2.0"), ("garbage", 0, "15 it was to")])
def test_what_a_handler_raises(kind, code, said):
    """It comes out of the wait as the object that it is, whatever Python has to do first; and functions that other threads' programs call do not see it."""
    r = subprocess.run([sys.executable, "-c", RAISED, kind], capture_output=True, text=True, timeout=120)
    assert (r.returncode, r.stdout.split()) == (code, said.split()), (r.returncode, r.stdout, r.stderr)
    assert "TypeError" not in r.stderr, r.stderr          # what the program calls gets a KeyboardInterrupt


OFTEN = """
import gc, os, signal, threading, time, jax, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)
spec = jax.ShapeDtypeStruct((8,), np.float32)
heard = 0
gc.disable()                     # JAX's function for it would swallow some
for i in range(160):
    f = jax.jit(lambda x: jax.pure_callback(lambda x: x, spec, x * i + i)).lower(spec)
    sender = threading.Timer(.0002 * i, os.kill, [os.getpid(), signal.SIGINT])
    try:
        sender.start()
        f.compile()(np.ones(8, np.float32))
        time.sleep(1)
    except KeyboardInterrupt:
        heard += 1
    sender.join()
print(heard)
"""


@pytest.mark.only_rondo("what Rondo calls there")
def test_no_interrupt_is_lost():
    """While programs that call Python are compiled, loaded, run and freed Rondo calls functions of its own, and none of them swallows Ctrl-C; nor does one raise what is on its way already."""
    r = subprocess.run([sys.executable, "-c", OFTEN], capture_output=True, text=True, timeout=120)
    # One in hundreds is lost where C calls functions of others, which may say so.
    assert r.returncode == 0 and int(r.stdout) >= 156 and not ("ignored" in r.stderr and "/rondo/" in r.stderr), (r.returncode, r.stdout, r.stderr)


DEAF = """
import os, signal, threading, jax, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)
def deaf(x):
    threading.Timer(.1, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
    os.read(0, 1)
    return x
x = np.ones(64, np.float32)
step = jax.jit(lambda x: jax.pure_callback(deaf, jax.ShapeDtypeStruct(x.shape, x.dtype), x))
try:
    step(x).block_until_ready()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


CALLS = """
import os, signal, threading, time, jax, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)
calls = 0
def tick(x):
    global calls
    calls += 1
    return x
x = np.ones((400, 400), np.float32)
f = jax.jit(lambda x: jax.lax.fori_loop(0, 10 ** 9, lambda i, x: x @ x / 400 * jax.pure_callback(tick, jax.ShapeDtypeStruct((), x.dtype), x[0, 0]), x)).lower(x).compile()
threading.Timer(.5, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    f(x)
except (KeyboardInterrupt, jax.errors.JaxRuntimeError):      # raised here, or in the function
    pass
for i in range(100):
    before = calls
    time.sleep(.2)
    if before == calls: break
print(calls > 0, before == calls)
"""


@pytest.mark.only_rondo("XLA:CPU calls Python on the caller's thread")
def test_what_was_interrupted_does_not_go_on():
    """Nobody will read what it makes: a loop that calls Python ends with the wait for it, wherever Ctrl-C found it."""
    r = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0 and r.stdout == "True True\n" and not r.stderr.startswith("rondo"), (r.stdout, r.stderr)


@pytest.mark.only_rondo("Rondo's words")
def test_what_the_end_waits_for_is_said():
    """On a terminal, until that is over."""
    main, sub = pty.openpty()
    p = subprocess.Popen([sys.executable, "-c", DEAF], stdin=subprocess.PIPE, stdout=sub, stderr=sub)
    os.close(sub)
    said = b""
    try:
        while select.select([main], [], [], 200)[0]:
            try:
                said += os.read(main, 4096)
            except OSError:                       # it has ended
                break
            if b" s " in said:
                p.stdin.close()
        assert b"interrupted\r\n\r\x1b[Krondo: waiting for a host callback of 'jit__lambda' to end, " in said, said
        assert p.wait(timeout=200) == 0
    finally:
        os.close(main)
        p.kill()
        p.wait()


# --- in place ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (3, 4), (0, 2), (1000,)])
def test_buffers(shape, dtype):
    """A function that writes its results where they lie."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape).astype(jnp.dtype(dtype))

    def twice(ctx, out, a, *, b):
        assert ctx.stage == buffer_callback.ExecutionStage.EXECUTE and out[0].writeable and not a.writeable
        assert (a.shape, a.dtype, b.shape) == (x.shape, x.dtype, ())
        np.asarray(out[0])[...] = np.asarray(a)
        np.asarray(out[1])[...] = np.asarray(b) + 1

    f = buffer_callback.buffer_callback(twice, [jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((), "int32")])
    for g in (f, jax.jit(f)):
        got, one = g(x, b=jnp.int32(6))
        np.testing.assert_array_equal(np.asarray(got), x)
        assert one == 7


def test_buffers_that_an_operand_has():
    def add(ctx, out, a, b):
        assert np.asarray(a).ctypes.data == np.asarray(out).ctypes.data
        np.asarray(out)[...] += np.asarray(b)

    x = jnp.arange(6.0)
    f = buffer_callback.buffer_callback(add, jax.ShapeDtypeStruct.like(x), input_output_aliases={0: 0})
    np.testing.assert_array_equal(jax.jit(lambda x: f(x + 1, x) + x)(x), 3 * np.arange(6.0) + 1)
    np.testing.assert_array_equal(x, np.arange(6.0))


def test_buffers_of_many():
    def scaled(ctx, out, a):
        np.asarray(out)[...] = np.asarray(a) * 2

    f = buffer_callback.buffer_callback(scaled, jax.ShapeDtypeStruct((4,), jnp.float32), vmap_method="sequential")
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    np.testing.assert_array_equal(jax.vmap(f)(x), x * 2)
    np.testing.assert_array_equal(jax.jit(lambda x: jax.lax.scan(lambda c, r: (c + f(r), f(c)), x[0] * 0, x)[0])(x), 2 * x.sum(0))


def test_buffers_of_an_error():
    def returns(ctx, out):
        return 1

    def raises(ctx, out):
        raise KeyError("no such thing")

    for f, text in ((returns, "must not return any values"), (raises, "no such thing")):
        with pytest.raises(Exception, match=text):
            jax.block_until_ready(jax.jit(buffer_callback.buffer_callback(f, jax.ShapeDtypeStruct((), jnp.float32), has_side_effect=True))())


@pytest.mark.parametrize("donates", [False, True, "and reads"])
@pytest.mark.parametrize("gives", ["numbers", "arrays"])
@pytest.mark.parametrize("when", ["before", "during"])
def test_what_it_waits_for_is_queued_behind_it(when, gives, donates):
    """Another thread fills a queue of batches: its programs run while the callback waits, also those that were launched before it was called."""
    step = jax.jit(lambda x: x * 2 + 1, donate_argnums=(0,) if donates else ())
    step(jnp.zeros(4)).block_until_ready()
    q, begin = queue.Queue(), threading.Event()

    def fill():
        begin.wait(60)
        time.sleep(0.02)                     # it computes by then, what is before the first call
        for i in range(3):
            y = step(jnp.full(4, float(i)))
            seen = y.sum() if donates == "and reads" else None
            y = step(y)
            assert seen is None or float(seen) == 4 * (2 * i + 1)
            q.put(np.asarray(y) if gives == "numbers" else y)

    def batch(x):
        if when == "during":
            begin.set()
        return np.asarray(q.get(timeout=60))

    def f(x):
        x = jax.lax.fori_loop(0, 8, lambda i, x: jnp.tanh(x @ x), x)
        return jax.lax.scan(lambda c, i: (c + io_callback(batch, jax.ShapeDtypeStruct((4,), jnp.float32), c), None), x[0, :4] * 0, None, length=3)[0]

    f = jax.jit(f).lower(jax.ShapeDtypeStruct((1024, 1024), jnp.float32)).compile()
    t = threading.Thread(target=fill)
    t.start()
    x = jnp.ones((1024, 1024))
    if when == "before":
        begin.set()
    r = f(x)
    np.testing.assert_array_equal(r, np.full(4, 21.0))
    t.join()


def test_it_starts_a_thread_that_launches():
    def later(v):
        r = []
        t = threading.Thread(target=lambda: r.append(np.asarray(jax.jit(lambda y: y + 5)(jnp.asarray(v)))))
        t.start()
        t.join(60)
        return r[0]

    np.testing.assert_array_equal(jax.jit(lambda x: jax.pure_callback(later, jax.ShapeDtypeStruct.like(x), x) * 2)(jnp.ones(4)), np.full(4, 12.0))


def test_what_a_program_reads_is_not_overwritten_while_it_calls():
    """A launch behind it donates its argument: that waits for the end of the program, whatever the callback does."""
    n = 1 << 16
    scale = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    scale(jnp.ones(n)).block_until_ready()
    called, go = threading.Event(), threading.Event()

    def wait():
        called.set()
        go.wait(60)
        return np.float32(0)

    f = jax.jit(lambda x: io_callback(wait, jax.ShapeDtypeStruct((), jnp.float32), ordered=True) + x.sum()).lower(jax.ShapeDtypeStruct((n,), jnp.float32)).compile()
    x, r = jnp.ones(n), []
    t = threading.Thread(target=lambda: r.append(f(x)))
    t.start()
    called.wait(60)
    y = scale(x)
    time.sleep(0.05)
    go.set()
    t.join()
    assert float(r[0]) == n
    np.testing.assert_array_equal(y, np.full(n, -1.0))


@pytest.mark.parametrize("queued", [False, True])
def test_it_launches_on_several_devices(queued):
    """A callback's own program is sharded over its device and others; what it computes with is made by launches behind the one that called."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    along = jax.NamedSharding(mesh, jax.P("x"))
    step, double = jax.jit(lambda x: x + 1, donate_argnums=0), jax.jit(lambda x: x * 2)
    called, q = threading.Event(), queue.Queue()

    def fill():
        called.wait(60)
        x = jax.device_put(jnp.arange(8.0), along)
        for _ in range(5):
            x = step(x)
        q.put(x)

    def use(v):
        called.set()
        x = q.get(timeout=60) if queued else jax.device_put(v, along)
        y = double(x)
        return np.asarray(y)

    t = threading.Thread(target=fill)
    t.start()
    r = jax.jit(lambda x: io_callback(use, jax.ShapeDtypeStruct((8,), jnp.float32), x) + 1)(jnp.arange(8.0))
    np.testing.assert_array_equal(r, np.arange(8.0) * 2 + 1 + 10 * queued)
    t.join()


QUEUED = """
import time
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import io_callback
jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
x = jax.device_put(jnp.ones((64, 64)), jax.NamedSharding(mesh, jax.P("d")))

def note(k, v):
    time.sleep(.05)
    print("step", k, float(v), flush=True)

@jax.jit
def step(x, k):
    io_callback(note, None, k, (x * 2).sum())
    jax.debug.print("printed {}", k)
    return x

for k in range(6):
    x = step(x, k)
"""


@pytest.mark.only_rondo("Rondo's end")
def test_what_is_queued_at_the_end_is_called():
    """A script over several devices ends before its programs do: what they print, and what they hand out, is not lost."""
    r = subprocess.run([sys.executable, "-c", QUEUED], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0 and not r.stderr.strip(), r.stderr
    lines = r.stdout.splitlines()
    assert sorted(line for line in lines if "step" in line) == [f"step {k} 8192.0" for k in range(6)], r.stdout
    assert sorted(line for line in lines if "printed" in line) == [f"printed {k}" for k in range(6)], r.stdout


ENDLESS = """
import signal, sys, time, jax, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)
def endless(x):
    print("in", flush=True)
    time.sleep(1000)
    return x
x = np.ones(64, np.float32)
try:
    jax.jit(lambda x: jax.pure_callback(endless, jax.ShapeDtypeStruct(x.shape, x.dtype), x))(x).block_until_ready()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.only_rondo("XLA:CPU calls Python on the caller's thread")
def test_the_end_waits_until_it_is_interrupted():
    """A script that goes on behind Ctrl-C: its end waits for the callback, until Ctrl-C comes again; what others have registered for the end is called all the same."""
    with subprocess.Popen([sys.executable, "-c", "import atexit; atexit.register(print, 'the end')\n" + ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as p:
        for word in "in", "interrupted":
            assert any(line.startswith(word) for line in p.stdout)
            time.sleep(.5)
            assert p.poll() is None
            p.send_signal(signal.SIGINT)
        try:
            assert p.wait(timeout=100) == -signal.SIGINT and "the end" in p.stdout.read()
        finally:
            p.kill()


ENDED = """
import atexit, signal, sys, time, jax, jax.numpy as jnp, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(print, "the end")
x, kind = np.ones(64, np.float32), sys.argv[1]
turns = lambda f, n: jax.jit(lambda x: jax.lax.fori_loop(0, n, lambda i, x: f(x), x))
call = lambda f: lambda x: jax.pure_callback(f, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
f = {"deaf": jax.jit(call(lambda x: (time.sleep(1000), x)[1])), "calls": turns(call(lambda x: x), 10 ** 9), "commands": turns(lambda x: jnp.linalg.inv(jnp.outer(x, x))[0], 10 ** 9),
     "kernel": turns(jnp.sin, 2 * 10 ** 9)}[kind]
f = f.lower(x).compile()
print("goes", flush=True)
while True:
    jax.block_until_ready(f(x))
"""


@pytest.mark.only_rondo("XLA:CPU's end waits for what runs")
@pytest.mark.parametrize("kind", ["deaf", "calls", "commands", "kernel"])
def test_ctrl_c_ends(kind):
    """A script that says nothing about it ends by Ctrl-C at once, whatever runs: a function that nothing interrupts, functions called in turn, commands, a kernel."""
    with subprocess.Popen([sys.executable, "-c", ENDED, kind], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as p:
        assert any(line.startswith("goes") for line in p.stdout)
        time.sleep(.5)
        assert p.poll() is None
        p.send_signal(signal.SIGINT)
        try:
            assert p.wait(timeout=60) == -signal.SIGINT
            said = p.stdout.read()
            assert "KeyboardInterrupt\n" in said and said.endswith("the end\n") and "\nrondo" not in said, said
        finally:
            p.kill()


AT_THE_END = """
import atexit, sys, time
def at_the_end(name):
    def slowly(v):
        time.sleep(.1)
        print(name, "left", float(v), flush=True)
    x = jnp.arange(8.0)
    print(name, "read", float(jax.jit(lambda x: jax.pure_callback(lambda v: v + 1, x, x))(x).sum()), flush=True)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    jax.jit(lambda x: (jax.debug.callback(slowly, x.sum()), x + 1)[1])(jax.device_put(x, jax.NamedSharding(mesh, jax.P("d"))))
atexit.register(at_the_end, "before JAX")
import jax, jax.numpy as jnp
atexit.register(at_the_end, "behind JAX")
jax.config.update("jax_num_cpu_devices", 2)
jnp.ones(3).block_until_ready()
atexit.register(at_the_end, "behind devices")
"""


@pytest.mark.only_rondo("Rondo's end")
def test_functions_that_are_called_at_the_end():
    """They may run programs that call back, whenever they were registered, and need not wait for them."""
    r = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0 and not r.stderr.strip(), r.stderr
    assert sorted(r.stdout.splitlines()) == sorted(f"{name} {what}" for name in ("before JAX", "behind JAX", "behind devices") for what in ("read 36.0", "left 28.0")), r.stdout


@pytest.mark.only_rondo("where its arrays lie")
def test_where_a_result_lies_is_said_before_it_is_there():
    """jaxlib asks with Python's lock held, which the callback wants that the result waits for."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2])
    go = threading.Event()

    def late(v):
        go.wait(60)
        return v + 1

    f = jax.jit(jax.shard_map(lambda x: jax.pure_callback(late, jax.ShapeDtypeStruct(x.shape, x.dtype), x), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")))
    y = f(np.ones((2, 1000), np.float32))
    at = [s.data.unsafe_buffer_pointer() for s in y.addressable_shards]
    assert not y.is_ready()
    go.set()
    np.testing.assert_array_equal(y, 2)
    assert at == [s.data.unsafe_buffer_pointer() for s in y.addressable_shards] and all(at)
