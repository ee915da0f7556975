"""Settings of no use, and too little memory, each in a process of its own: a line that says so, and a program that still runs."""
import itertools
import json
import os
import pathlib
import re
import socket
import subprocess
import sys

import jax
import pytest

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.only_rondo("settings of Rondo")

PROGRAM = "import jax, jax.numpy as jnp; print(len(jax.devices()), float(jax.jit(lambda x: jnp.sin(x * 2).sum())(jnp.ones((512, 512)))))"


# Imports JAX once; each program that it is given is a child of its own, in which Rondo begins.
FORKS = """
import json, os, sys, traceback, warnings
import jax, jax.numpy, numpy
warnings.simplefilter("ignore")
for line in sys.stdin:
    program, env, out, err = json.loads(line)
    if not (pid := os.fork()):
        for n, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), n)
        os.environ.clear()
        os.environ.update(env)
        code = 0
        try:
            exec(program, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def forks(tmp_path_factory):
    global forked
    where = tmp_path_factory.mktemp("forks")
    with subprocess.Popen([sys.executable, "-c", FORKS], env=plain(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        def forked(program, env):
            out, err = where / "out", where / "err"
            print(json.dumps([program, env, str(out), str(err)]), file=p.stdin, flush=True)
            return int(p.stdout.readline()), out.read_text(), err.read_text()
        yield


def plain():
    return {k: v for k, v in os.environ.items() if not k.startswith("RONDO_") or k in ("RONDO_LIBRARY", "RONDO_CACHE")}


def run(program=PROGRAM, limited=False, **env):
    """limited: its address space, also while it imports."""
    if limited:
        r = subprocess.run([sys.executable, "-c", program], env=plain() | env, capture_output=True, text=True, timeout=600)
        code, out, err = r.returncode, r.stdout, r.stderr
    else:
        code, out, err = forked(program, plain() | env)
    return code, out.split(), [line for line in err.splitlines() if line.startswith("rondo:")], err


@pytest.mark.parametrize("setting, value, text", [
    ("DEVICES", "-1", "cannot be '-1', which is ignored: 0..1024"),
    ("DEVICES", "abc", "cannot be 'abc', which is ignored: 0..1024"),
    ("TIER", "fast", "cannot be 'fast', which is ignored: auto, ref, gen"),
    ("MEMORY", "900T", "more than the"),
    ("MEMORY", "8", "cannot be '8', which is ignored: 0, or from 1M on"),
    ("DUMP", "/proc/nowhere", "the folder cannot be made"),
    ("COLL", "rign", "no algorithm 'rign', did you mean 'ring'"),
    ("TABLE", "/nowhere/table", "cannot open '/nowhere/table'"),
    ("TRACE", "/nowhere/at/all.json", "there will be no timeline"),
    ("EXPLAIN", "yes", "neither 0, nor 1 (standard error), nor a path"),
    ("EXPLAIN", "/dev/full", "cannot be written: No space left"),
    ("EXPLAIN", "/nowhere/at/all.txt", "cannot be written: No such file"),
    ("CACHE", "/proc/nowhere", "compiled programs are not kept"),
    ("GEN_PATH", "/nowhere/gen.so", "reference kernels run instead"),
    ("REPRO", "yes", "cannot be 'yes', which is ignored: 0..1024"),
    ("PROCESSES", "two", "cannot be 'two', which is ignored: 0..65536"),
    ("RENDEZVOUS", "nonsense", "which is ignored: tcp://host:port, or a folder"),
    ("RENDEZVOUS", "tcp://host:1234", "this process joins no others: a JAX program does by jax.distributed.initialize()"),
])
def test_useless(setting, value, text):
    code, out, lines, err = run(**{"RONDO_" + setting: value}, RONDO_PROCESS="0") if setting == "PROCESSES" else run(**{"RONDO_" + setting: value})
    assert code == 0, err
    assert out[0] == "1" and abs(float(out[1]) / (512 * 512) - 0.9092974) < 1e-6
    assert len(lines) == 1 and re.match(f"rondo: setting 'RONDO_{setting}' (cannot be|is) '{re.escape(value)}'", lines[0]) and text in lines[0], lines


# Imports JAX once; each case is a child of its own, in which Rondo begins.
CASES = """
import json, os, sys, warnings
import jax, jax.numpy as jnp, numpy as np
warnings.simplefilter("ignore")
for name, value in json.loads(sys.argv[1]):
    r, w = os.pipe()
    sys.stdout.flush()
    if not (pid := os.fork()):
        os.dup2(w, 1); os.dup2(w, 2)
        os.environ["RONDO_" + name] = value
        code = 0
        try:
            print("=", float(jax.jit(lambda x: (jnp.sin(x * 2) * jnp.cos(x) + jnp.exp(x)).sum())(np.ones((64, 64), np.float32))), flush=True)
        except BaseException as e:
            print("! " + " ".join(str(e).split()), flush=True)
            code = 1
        sys.stdout.flush()
        os._exit(code)
    os.close(w)
    with os.fdopen(r) as f: said = f.read()
    print(json.dumps([name, value, os.waitpid(pid, 0)[1], said]), flush=True)
"""
TEXT = "module @m\n\nfn @main(%1: f32[64,64]) -> (f32[64,64]) {\n  %2 = tanh %1 : f32[64,64]\n  %3 = add %2, %1 : f32[64,64]\n" \
       "  %4 = sine %3 : f32[64,64]\n  %5 = multiply %4, %3 : f32[64,64]\n  %6 = add %5, %1 : f32[64,64]\n  return %6\n}\n"
VALUES = {"empty": "", "nonsense": "nonsense", "huge": "9" * 30, "negative": "-1", "folder": "folder", "denied": "/sys/denied/x.txt"}
# Settings that are text, and which of these values mean something there: names of files and folders, and what is not looked at in a job of one process.
ANY = set(VALUES)
MEANT = {"DUMP": ANY - {"denied"}, "CACHE": ANY - {"denied"}, "TRACE": ANY - {"denied"}, "EXPLAIN": {"empty"}, "COLL": {"empty"}, "TABLE": {"empty"},
         "GEN_PATH": {"empty"}, "TOKEN": ANY}


def test_all_settings(tmp_path):
    """All of them with values of no use, through JAX and through the command: one line that names the setting and the value, or an error that does; no crash."""
    rows = re.findall(r'^CONF\((\w+), (\w+), "([^"]*)", "([^"]*)"', (ROOT / "src/base/conf.def").read_text(), re.M)
    assert len(rows) > 25 and set(MEANT) == {name for name, kind, _, accepted in rows if kind == "STR" and not accepted}
    cases = [(name, kind) for name, _, _, _ in rows for kind in VALUES]
    env = {k: v for k, v in os.environ.items() if not k.startswith("RONDO_") or k == "RONDO_LIBRARY"} | {"RONDO_CACHE": str(tmp_path / "cache"), "RONDO_DEVICES": "1"}
    answers = []
    for name, kind in cases:
        where = tmp_path / "tool" / f"{name}-{kind}"
        (where / "folder").mkdir(parents=True)
        (where / "m.txt").write_text(TEXT)
        r = subprocess.run([ROOT / "build/rondo", "run", "--quiet", "m.txt"], cwd=where, env=env | {"RONDO_" + name: VALUES[kind]}, capture_output=True, text=True, timeout=60)
        answers.append((name, kind, r.returncode, r.stderr, "rondo: error: "))
    # What is refused when settings are read is the same for all of them: one of each is enough there.
    short = [(name, kind) for name, kind in cases if name in MEANT or kind in ("empty", "nonsense")]
    (tmp_path / "folder").mkdir()
    r = subprocess.run([sys.executable, "-c", CASES, json.dumps([(name, VALUES[kind]) for name, kind in short])], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    said = [json.loads(line) for line in r.stdout.splitlines()]
    assert len(said) == len(short), r.stderr
    for (name, kind), (_, _, status, text) in zip(short, said):
        assert os.WIFEXITED(status), (name, kind, text)
        answers.append((name, kind, os.WEXITSTATUS(status), text, "! "))
        assert os.WEXITSTATUS(status) == 1 or abs(float(re.search("^= (.*)", text, re.M)[1]) / 4096 - 3.2096) < 1e-3, text
    for name, kind, status, text, error in answers:
        meant = kind == "empty" or kind in MEANT.get(name, ())
        lines = [line for line in text.splitlines() if line.startswith(("rondo: ", error))]
        what = f"RONDO_{name}={VALUES[kind]}: {status} {text}"
        assert len(lines) == (0 if meant else 1), what
        assert status == (0 if meant or not lines[0].startswith(error) else 2 if error.startswith("rondo") else 1), what
        assert meant or (re.search(f"setting 'RONDO_{name}' (cannot be|is) '{re.escape(VALUES[kind])}'", lines[0]) and len(lines[0]) < 500), what


def test_too_old():
    """A JAX that is too old is refused by name; the package says so as well."""
    code, _, lines, err = run("import jax; jax.__version__, jax.__version_info__ = '0.9.2', (0, 9, 2); jax.devices()")
    assert code == 1 and len(lines) == 1 and "JAX 0.9.2 is older than 0.10.2" in lines[0], err
    from rondo import NEWEST, OLDEST
    oldest, newer = ".".join(map(str, OLDEST)), f"{NEWEST[0]}.{NEWEST[1] + 1}"
    assert f'dependencies = ["jax>={oldest},<{newer}"]' in (ROOT / "pyproject.toml").read_text()


EXPLAINED = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
def loss(w, x):
    return jnp.square(jnp.sin(x) @ w).sum()                 # line 6
whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P(("data", "model")))
step = jax.jit(jax.grad(loss), in_shardings=(whole, rows), out_shardings=whole)
print(float(step(jnp.ones((16, 8)), jnp.ones((8, 16))).sum()))
"""


def test_explained_while_it_runs(tmp_path):
    code, out, lines, err = run(EXPLAINED, RONDO_EXPLAIN=str(tmp_path / "why.txt"), RONDO_DEVICES="4", RONDO_CACHE="")
    assert code == 0 and not lines, err
    text = (tmp_path / "why.txt").read_text()
    step = text[text.index("'jit_loss'"):]
    assert re.search(r"argument 1 x +f32\[8,16\] +128 B +P\(\('data', 'model'\), None\)", step), step
    assert re.search(r"1\. 768 B +all_reduce f32\[16,8\] over 'data', 'model' +<string>:6", step), step
    assert re.search(r" by \w+; result 0: parts of a sum over 'data', 'model', made by dot at <string>:6", step), step
    assert run(EXPLAINED, RONDO_EXPLAIN=str(tmp_path), RONDO_DEVICES="4")[1] == out and (tmp_path / "jit_loss.why").stat().st_size > 1000


LIMITED = """
import resource, jax, jax.numpy as jnp, numpy as np
f = jax.jit(lambda x: x + 1)
one = f(np.float32(1))
n = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
many = np.ones((64, 64), np.float32)
def deep(x):
    for k in range(300): x = jnp.sin(x) * k + x @ x
    return x
went = 0
for more in (40, 80, 160, 640):                 # less, and jaxlib ends the process
    resource.setrlimit(resource.RLIMIT_AS, (n + (more << 20), resource.RLIM_INFINITY))
    try:
        jax.block_until_ready(jax.jit(lambda x: deep(x) + more)(many))
        went += 1
    except (jax.errors.JaxRuntimeError, MemoryError) as e:
        print("failed", str(e)[:80].replace(" ", "_"))
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert f(one) == 3
jax.block_until_ready(jax.jit(deep)(many))
print("done")
"""


def test_address_space():
    code, out, _, err = run(LIMITED, limited=True, RONDO_TIER="gen")          # LLVM, which ends the process if it finds no memory, is not entered
    assert code == 0 and out[-1] == "done" and "failed" in out, (out, err)


FROM_THE_START = """
import os, resource
resource.setrlimit(resource.RLIMIT_AS, (int(os.environ["LIMIT_MB"]) << 20,) * 2)
import jax, numpy as np
print(float(jax.jit(lambda x: (x * 2).sum())(np.ones(10000, np.float32))))
"""


FILLED = """
import os, resource
resource.setrlimit(resource.RLIMIT_AS, (int(os.environ["LIMIT_MB"]) << 20,) * 2)
import jax, numpy as np
kept = []
assert jax.devices()[0].memory_stats()["bytes_limit"] < int(os.environ["LIMIT_MB"]) << 20
try:
    for k in range(100): kept.append(jax.block_until_ready(jax.jit(lambda x: x + k)(np.zeros(8 << 20, np.float32))))
except jax.errors.JaxRuntimeError as e:
    print(e)
"""


def test_address_space_that_is_full():
    """What is short is named: not memory, of which there is enough."""
    code, out, _, err = run(FILLED, limited=True, LIMIT_MB="2400", RONDO_TIER="ref")
    text = " ".join(out)
    assert code == 0 and "RESOURCE_EXHAUSTED" in text and "address space of its heap are free" in text and "(ulimit -v)" in text, (out, err)


TOO_LARGE = """
import os, resource
resource.setrlimit(resource.RLIMIT_AS, (int(os.environ["LIMIT_MB"]) << 20,) * 2)
import jax, jax.numpy as jnp
for n in (1 << 30, 1 << 40):
    try: jax.block_until_ready(jax.jit(lambda: jnp.zeros(n, jnp.uint8))())
    except jax.errors.JaxRuntimeError as e: print(e, end="; ")
"""


def test_address_space_that_is_too_small_for_one_array():
    """There is memory for the first: not that is short, but the second is more than there is."""
    code, out, _, err = run(TOO_LARGE, limited=True, LIMIT_MB="2900", RONDO_TIER="ref", RONDO_MEMORY="2G")
    first, second = re.findall("(?:asked for|out of device memory).*?(?=RESOURCE|$)", " ".join(out))
    assert code == 0 and "1073.7 MB" in first and "address space of its heap are free" in first and "(ulimit -v)" in first and "RONDO_MEMORY" not in first, (out, err)
    assert "1.1 TB, and there are 2147.5 MB" in second and "RONDO_MEMORY" in second and "address space" not in second, (out, err)


@pytest.mark.parametrize("megabytes", [1800, 2400])
def test_address_space_that_is_limited_from_the_start(megabytes):
    """It is enough, or an error says what to raise: jaxlib, which ends the process when no thread can be started, has what it needs."""
    code, out, _, err = run(FROM_THE_START, limited=True, LIMIT_MB=str(megabytes), RONDO_DEVICES="8")
    assert (code == 0 and out == ["20000.0"]) or (code == 1 and "no address space for 8 heaps" in err and "ulimit -v" in err), (code, out, err)


SHARDED = """
import os, sys, jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(jax.devices(), "d")
x = jax.device_put(np.arange(32, dtype=np.float32), NamedSharding(mesh, P("d")))
@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
def f(x):
    return jnp.sin(x) + jax.lax.psum(x, "d") + jax.lax.ppermute(x, "d", [(0, 1), (1, 0)])
"""
TRACED = SHARDED + "jax.block_until_ready(f(f(x)))"


def timeline(path):
    """The devices of a timeline; what it says must be sound."""
    with open(path) as f:
        events = json.load(f)["traceEvents"]
    ran = [e for e in events if e["ph"] == "X"]
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["name"] for e in ran)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    for device in names:
        mine = {lanes[device, e["tid"]] for e in ran if e["pid"] == device}
        assert {"launches", "communication"} <= mine, mine
        assert any("f" in e["name"] for e in ran if e["pid"] == device)
    return sorted(names.values())


def test_trace(tmp_path):
    file = tmp_path / "all.json"
    code, _, _, err = run(TRACED, RONDO_TRACE=str(file), RONDO_DEVICES="2")
    assert code == 0, err
    assert timeline(file) == ["device 0", "device 1"]


def traced(program, file):
    """The events of its timeline on two devices, and by process and thread the threads' names."""
    code, _, _, err = run(program, RONDO_TRACE=str(file), RONDO_DEVICES="2")
    assert code == 0, err
    with open(file) as f:
        events = json.load(f)["traceEvents"]
    return events, {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_trace_of_what_goes_on_beside_computing(tmp_path):
    """A sum that is under way while its device multiplies: it is begun before the product, and ended behind it."""
    file = tmp_path / "all.json"
    program = SHARDED + """
@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=(P("d"), P("d")), out_specs=(P(), P("d")))
def g(x, y):
    return jnp.cos(jax.lax.psum(x, "d")), y @ y.T @ y
jax.block_until_ready(g(x, jnp.ones((1024, 512))))
"""
    events, lanes = traced(program, file)
    ran = [(e["pid"], lanes[e["pid"], e["tid"]], e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    for device in (0, 1):
        [sum_] = [e for e in ran if e[0] == device and e[1] == "under way"]
        assert "all_reduce" in sum_[2]
        awaits = [e for e in ran if e[0] == device and e[2].split()[0] == "await"]
        products = [e for e in ran if e[0] == device and e[1] == "compute" and "dot" in e[2]]
        assert len(products) == 2 and len(awaits) == 1
        assert all(sum_[3] <= p[3] and p[4] <= awaits[0][3] + 0.01 for p in products)       # what follows begins where that ends


def test_trace_of_several_that_go_on_at_once(tmp_path):
    """Each has a thread of its own while another's has one: what overlaps on a thread and lies not within, Perfetto drops."""
    file = tmp_path / "all.json"
    program = SHARDED + """
@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=(P("d"), P("d")), out_specs=(P(), P(), P("d"), P("d")))
def g(x, y):
    return jnp.cos(jax.lax.psum(x, "d")), jnp.sin(jax.lax.pmax(x, "d")), jnp.tanh(jax.lax.all_to_all(x, "d", 0, 0, tiled=True)), y @ y.T @ y
for i in range(3):
    jax.block_until_ready(g(x, jnp.ones((1024, 512))))
"""
    events, lanes = traced(program, file)
    flown, last = [], {}
    for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"])):
        thread, begins = (e["pid"], e["tid"]), round(e["ts"] * 1000)
        ends, around = begins + round(e["dur"] * 1000), last.setdefault(thread, [])
        while around and around[-1] <= begins:
            around.pop()
        assert not around or ends <= around[-1], e
        around.append(ends)
        if lanes[thread] == "under way" and e["pid"] == 0:
            flown.append((begins, ends))
    assert len(flown) >= 6 and any(b[0] < a[1] for a, b in itertools.pairwise(flown))
    table = subprocess.run([ROOT / "build/rondo", "trace", file], capture_output=True, text=True)
    share = re.search(r"([0-9.]+) %  has communication under way while it computes", table.stdout)
    assert share and 0 < float(share[1]) <= 100, table.stdout


def test_trace_of_permutes(tmp_path):
    """What is read where it lies, and what is copied since it is a result."""
    file = tmp_path / "all.json"
    program = SHARDED + """
ring = [(0, 1), (1, 0)]
@jax.jit
@partial(jax.shard_map, mesh=mesh, in_specs=P("d"), out_specs=(P("d"), P("d")))
def g(x):
    return jax.lax.ppermute(x, "d", ring), jax.lax.fori_loop(0, 5, lambda i, c: (jax.lax.ppermute(c[0], "d", ring), c[1] + c[0]), (x, x))[1]
jax.block_until_ready(g(jnp.ones((2, 8192))))
"""
    code, _, _, err = run(program, RONDO_TRACE=str(file), RONDO_DEVICES="2")
    assert code == 0, err
    with open(file) as f:
        events = [e for e in json.load(f)["traceEvents"] if e["ph"] == "X"]
    for device in (0, 1):
        said = [e["args"] for e in events if e["pid"] == device]
        assert [a["bytes copied"] for a in said if "bytes copied" in a] == [32768]
        assert [a["bytes read in place"] for a in said if "bytes read in place" in a] == 5 * [32768]
        assert {"lend", "await"} <= {e["name"].split()[0] for e in events if e["pid"] == device}


def test_trace_of_several_processes(tmp_path):
    program = "import rondo.early, jax, sys\njax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))" + TRACED
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    env = {**os.environ, "RONDO_TRACE": str(tmp_path), "RONDO_DEVICES": "1"}
    all_ = [subprocess.Popen([sys.executable, "-c", program, f"127.0.0.1:{port}", str(i)], env=env) for i in range(2)]
    assert [p.wait(timeout=600) for p in all_] == [0, 0]
    assert sorted(map(timeline, tmp_path.iterdir())) == [["device 0"], ["device 1"]]


def test_a_device_whose_memory_is_no_host_memory():
    """RONDO_DEVICE=far: its addresses are no pointers, so whoever takes one for one ends the process."""
    program = SHARDED + """
y = f(f(x))
g = jax.jit(lambda a, b: (a @ b + 1, jax.pure_callback(lambda a: a * 2, jax.ShapeDtypeStruct(a.shape, a.dtype), a)), donate_argnums=0)
p, q = g(jnp.ones((300, 300)), jnp.ones((300, 300)))
r = jax.lax.fori_loop(0, 5, lambda i, c: c.at[i].add(i), jnp.zeros(8))
h = jax.device_put(p, jax.devices()[1]) + 1
print(jax.devices()[0].platform, np.asarray(y).tobytes().hex()[:64], float(p.sum()), float(q.sum()), np.asarray(r).tolist(), float(h.sum()), float(jnp.linalg.norm(h)))
"""
    near, far = (run(program, RONDO_DEVICES="2", RONDO_DEVICE=kind) for kind in ("cpu", "far"))
    assert far[0] == 0, far[3]
    assert near[:2] == far[:2]


PINNED = """
import os
cores = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, cores)
""" + SHARDED + """
seen = []
back = jax.jit(lambda x: jax.pure_callback(lambda x: (seen.append(len(os.sched_getaffinity(0))), x)[1], jax.ShapeDtypeStruct(x.shape, x.dtype), x))
jax.block_until_ready(f(x))
jax.block_until_ready(back(jnp.ones(4)))
one = sorted(min(a) for t in os.listdir("/proc/self/task") if len(a := os.sched_getaffinity(int(t))) == 1)
print(cores, one, len(os.sched_getaffinity(0)), seen)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_threads_of_devices_have_a_core_each():
    """Where there are enough; the program's own threads, and its callbacks, may run anywhere."""
    code, out, _, err = run(PINNED, RONDO_DEVICES="2")
    assert code == 0, err
    text = " ".join(out)
    cores = re.match(r"\[(\d+), (\d+)\] \[(\d+), (\d+)\] 2 \[2\]$", text)
    assert cores and cores[1] == cores[3] and cores[2] == cores[4], text


def test_a_kept_program_is_that_of_the_setting(tmp_path):
    """RONDO_ATTENTION is part of what a program is kept by."""
    program = """
import jax, jax.numpy as jnp
q = jnp.ones((1, 64, 4, 16))
def f(q):
    for i in range(6):
        q = jax.nn.dot_product_attention(q, q + i, q * jnp.sin(q) + jnp.cumsum(q, 1) * i, is_causal=True, scale=.5 + i)
    return q
print(jax.jit(f).lower(q).compile().as_text().count(" attention ("))
"""
    for kept, setting, some in ((0, "off", False), (1, "auto", True), (2, "off", False)):
        rc, out, _, err = run(program, RONDO_CACHE=str(tmp_path), RONDO_ATTENTION=setting)
        assert rc == 0 and (int(out[0]) > 0) == some, err
        assert len(list(tmp_path.glob("*.rondo"))) == min(kept + 1, 2)


def test_a_kept_program_is_that_of_the_road(tmp_path):
    """So are RONDO_RING, and the cores that there are, by which work is shared out or not."""
    program = """
import jax, jax.numpy as jnp, re
from jax.sharding import NamedSharding, PartitionSpec as P
how = NamedSharding(jax.sharding.Mesh(jax.devices(), "x"), P(None, "x"))
q = jax.ShapeDtypeStruct((1, 1024, 4, 64), jnp.float32, sharding=how)
def f(q, k, v):
    for i in range(6):
        q = jax.nn.dot_product_attention(q, k, v * jnp.sin(v) + jnp.cos(k) * i, is_causal=True, scale=.5 + i)
        q = jax.lax.with_sharding_constraint(q, how)
    return q
text = jax.jit(f).lower(q, q, q).compile().as_text()
print(*[len(re.findall("^ +coll .* " + c, text, re.M)) for c in ("all_gather", "permute", "all_reduce", "all_to_all")], len(re.findall("^ +lend ", text, re.M)))
"""
    made = {}
    for setting, cores in (("auto", 2), ("in_order", 2), ("heads", 2), ("gather", 2), ("sent", 2), ("barrier", 2), ("auto", 1), ("auto", 2), ("barrier", 2)):
        rc, out, _, err = run(program, RONDO_CACHE=str(tmp_path), RONDO_DEVICES="2", RONDO_RING=setting, RONDO_CORES=str(cores))
        assert rc == 0, err
        how = list(map(int, out))
        assert made.setdefault((setting, cores), how) == how
        assert len(list(tmp_path.glob("*.rondo"))) == len(made), made
    auto, in_order, heads, gather, sent, barrier, alone = (made[k] for k in (("auto", 2), ("in_order", 2), ("heads", 2), ("gather", 2), ("sent", 2), ("barrier", 2), ("auto", 1)))
    assert auto[0] == in_order[0] == sent[0] == barrier[0] < gather[0], made
    assert alone == in_order and 0 == in_order[1] < min(auto[1], sent[1]) and sent[1] == barrier[1], made
    assert auto[2] == in_order[2] == gather[2] == sent[2] < barrier[2] and 0 == sent[4] == barrier[4] < in_order[4] < auto[4], made
    assert heads[3] == 2 * (gather[0] - auto[0]) > 0 and heads[1] == 0 and heads[2] == auto[2] and 0 == auto[3] == in_order[3] == gather[3] == sent[3] == barrier[3], made


def test_a_forked_child_ends():
    """It has not the threads that jaxlib's clients have; it ends as programs do all the same."""
    program = """
import os, sys, warnings
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp
x = jax.jit(lambda x: jnp.sin(x) @ x.T)(jnp.ones((500, 500)))
y = jax.device_put(jnp.ones(3), jax.devices("cpu")[0])
if not (pid := os.fork()):
    del y
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "3", run.stdout + run.stderr


def test_a_forked_child_compiles_nothing():
    """jaxlib would hand it to a thread that is not there, and wait for ever."""
    program = """
import os, warnings
warnings.simplefilter("ignore")
import jax, jax.numpy as jnp
jax.jit(lambda x: x + 1)(jnp.ones(5)).block_until_ready()
if not (pid := os.fork()):
    try:
        jax.jit(lambda x: x * 3)(1.0)
    except jax.errors.JaxRuntimeError as e:
        print(e, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "this process was forked from the one that started the devices: start workers by 'spawn'" in run.stdout, run.stdout + run.stderr


def test_as_cpu():
    """Who is not of JAX is told cpu, before and after; programs, callbacks and LAPACK are Rondo's as before."""
    program = """
import atexit, pickle
from jax import default_backend
atexit.register(default_backend)
print(default_backend(), pickle.loads(pickle.dumps(default_backend))())
import jax, jax.numpy as jnp, numpy as np
f = jax.jit(lambda x: jnp.linalg.inv(x) + jax.pure_callback(lambda v: np.float32(2) * v, x, x))
x = jnp.eye(3) * 2
print(jax.devices()[0].platform, next(iter(f(x).devices())).platform, jax.default_backend(), jax.devices("rondo")[0], jax.devices("cpu")[0].platform,
      f(x)[0, 0], f.lower(x).compile().as_text()[:4], x.platform(), jax.devices()[0].client.platform)
"""
    for setting, name in (("0", "rondo"), ("1", "cpu")):
        r = subprocess.run([sys.executable, "-c", program], env=plain() | {"RONDO_AS_CPU": setting}, capture_output=True, text=True, timeout=120)
        assert (r.returncode, r.stdout.split(), r.stderr) == (0, [name, name, name, name, name, "rondo:0", "cpu", "4.5", "prog", name, name], "")
