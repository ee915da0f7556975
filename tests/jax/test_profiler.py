"""jax.profiler on Rondo, and `rondo trace`: what devices ran is there, with names, lines, work and peers, and nothing that did not."""
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from xspace import device_planes

HERE = pathlib.Path(__file__).parent
pytestmark = pytest.mark.only_rondo("what Rondo's devices run")
RING = [(0, 1), (1, 2), (2, 3), (3, 0)]
N = 256


def sharded():
    """A step of products, a sum and a permute over 4 devices, and what it takes; the lines of this file where they are."""
    mesh = Mesh(jax.devices()[:4], "d")
    x = jax.device_put(np.ones((4 * N, N), np.float32), NamedSharding(mesh, P("d")))

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    def step(x):
        with jax.named_scope("layer"):
            y = jnp.sin(x @ x)
        return y / 1e3 + jax.lax.psum(x, "d") * 1e-3 + jax.lax.ppermute(x, "d", RING) * 1e-3

    jax.block_until_ready(step(x))
    return step, x


def line_of(text):
    """Where it is in `sharded`: the first line of this file that has it."""
    return next(i for i, line in enumerate(pathlib.Path(__file__).read_text().splitlines(), 1) if text in line)


def inside(a, b):
    return b.begin <= a.begin and a.end <= b.end


def test_what_ran(tmp_path):
    step, x = sharded()
    before = time.time_ns()
    with jax.profiler.trace(tmp_path):
        for _ in range(5):
            x = step(x)
        jax.block_until_ready(x)
    took = time.time_ns() - before
    planes = device_planes(tmp_path)
    assert sorted(planes) == [0, 1, 2, 3]
    here = "test_profiler.py:"
    for device, (said, lines) in planes.items():
        assert said["device_type_string"].startswith("Rondo on ") and said["dropped_traces"] == 0
        assert said["peak_teraflops_per_second"] > 0 and said["peak_hbm_bw_gigabytes_per_second"] > 0
        steps, launches, ops = lines["Steps"], lines["XLA Modules"], lines["XLA Ops"]
        assert [s.name for s in steps] == list("23456") == [str(s.stats["step"]) for s in steps]
        assert len(launches) == 5 and len({m.name for m in launches}) == 1 and launches[0].name.startswith("jit_step(")
        assert all(inside(m, s) and m.stats["step"] == s.stats["step"] for m, s in zip(launches, steps))
        assert all(a.end <= b.begin for a, b in zip(steps, steps[1:]))
        # One after the other, each in its launch, which they fill.
        assert all(a.end <= b.begin + 0.002 for a, b in zip(ops, ops[1:]))
        filled = []
        for s, m in zip(steps, launches):
            mine = [o for o in ops if o.stats["step"] == s.stats["step"]]
            assert mine and all(inside(o, m) for o in mine)
            filled.append(sum(o.end - o.begin for o in mine) / (m.end - m.begin))
        assert 0.95 <= sorted(filled)[2] and max(filled) <= 1.000001, filled
        assert steps[-1].end - steps[0].begin <= took
        # What they are.
        dots = [o for o in ops if o.stats["hlo_category"] == "dot"]
        assert len(dots) == 5
        [at] = {o.stats["source"] for o in dots}
        assert at == here + str(line_of("y = jnp.sin(x @ x)"))
        assert all(o.stats["flops"] == 2 * N ** 3 and o.stats["bytes_accessed"] >= 3 * 4 * N * N and o.stats["limit_ps"] > 0 for o in dots)
        assert all("/layer/dot_general" in o.stats["tf_op"] and o.display == o.stats["hlo_op"] and o.stats["hlo_module"] == "jit_step" for o in dots)
        moved = [o for o in ops if o.stats["hlo_category"] == "collective-permute" and o.stats["bytes_accessed"]]
        assert len(moved) == 5
        assert {o.stats["peers"] for o in moved} == {f"from {(device - 1) % 4} to {(device + 1) % 4}"}
        assert {o.stats["bytes_accessed"] for o in moved} == {4 * N * N}
        assert all(o.stats.get("bytes_read_in_place", 0) + o.stats.get("bytes_copied", 0) == 4 * N * N for o in moved)
        sums = [o for o in ops if o.stats["hlo_category"] == "all-reduce"] + lines.get("Async XLA Ops", [])
        assert {o.stats["peers"] for o in sums} == {"0,1,2,3"}
        assert {o.stats["source"] for o in sums} == {here + str(line_of('jax.lax.psum(x, "d") * 1e-3'))}
        assert max(o.stats["bytes_accessed"] for o in sums) == 2 * 3 * 4 * N * N // 4


def test_one_line_of_an_op_of_two(tmp_path):
    """Readers of profiles take no list for a line."""
    mesh = Mesh(jax.devices()[:4], "d")

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(P("d"), P("d")), out_specs=P())
    def sums(x, y):
        a = jax.lax.psum(x, "d")
        b = jax.lax.psum(y * 2, "d")
        return a, b

    x = jax.device_put(np.ones((64,), np.float32), NamedSharding(mesh, P("d")))
    jax.block_until_ready(sums(x, x))
    with jax.profiler.trace(tmp_path):
        jax.block_until_ready(sums(x, x))
    ops = device_planes(tmp_path)[0][1]["XLA Ops"]
    [both] = {(o.name, o.stats["source"]) for o in ops if o.stats["hlo_category"] == "all-reduce"}
    first, second = line_of("a = jax.lax.psum"), line_of("b = jax.lax.psum")
    assert f"test_profiler.py:{second},{first}" in both[0] or f"test_profiler.py:{first},{second}" in both[0], both
    assert re.fullmatch(rf"test_profiler.py:({first}|{second})", both[1]), both


def test_jaxlib_reads_it(tmp_path):
    step, x = sharded()
    with jax.profiler.trace(tmp_path):
        jax.block_until_ready(step(x))
    [file] = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    mine = device_planes(tmp_path)
    theirs = {p.name: {line.name: list(line.events) for line in p.lines} for p in jax.profiler.ProfileData.from_file(str(file)).planes}
    for device, (_, lines) in mine.items():
        for name, events in lines.items():
            got = theirs[f"/device:TPU:{device}"][name]
            assert [e.name for e in got] == [e.name for e in events]
            assert [e.duration_ns for e in got] == pytest.approx([e.end - e.begin for e in events], abs=0.01)


def test_only_what_ran_meanwhile(tmp_path):
    f, g, h = (jax.jit(lambda x, k=k: jnp.cos(x * k)) for k in (2.0, 3.0, 4.0))
    x = jnp.ones((64, 64))
    jax.block_until_ready([f(x), g(x), h(x)])
    f(x).block_until_ready()
    with jax.profiler.trace(tmp_path / "a"):
        jax.block_until_ready([g(x), g(x)])
    h(x).block_until_ready()
    with jax.profiler.trace(tmp_path / "b"):
        h(x).block_until_ready()
    with jax.profiler.trace(tmp_path / "c"):
        pass
    assert [len(device_planes(tmp_path / d)[0][1]["XLA Modules"]) for d in "ab"] == [2, 1]
    assert device_planes(tmp_path / "c") == {}


def test_steps_are_those_of_the_program_that_takes_longest(tmp_path):
    large, small = jax.jit(lambda x: x @ x @ x / 1e6), jax.jit(lambda x: x + 1)
    x = jnp.ones((512, 512))
    jax.block_until_ready([large(x), large(x), small(x)])
    with jax.profiler.trace(tmp_path):
        small(x).block_until_ready()
        for _ in range(3):
            large(x).block_until_ready()
            small(x).block_until_ready()
            small(x).block_until_ready()
    _, lines = device_planes(tmp_path)[0]
    assert [m.stats.get("step", 0) for m in lines["XLA Modules"]] == [0, 3, 3, 3, 4, 4, 4, 5, 5, 5]      # its third launch and those after it
    assert len(lines["Steps"]) == 3


def test_it_begins_while_devices_run(tmp_path):
    """Some have begun a launch then, some have not: steps are numbered alike all the same."""
    step, x = sharded()
    for _ in range(20):
        x = step(x)
    with jax.profiler.trace(tmp_path):
        for k in range(20):
            x = step(x)
            some = x if k < 5 else some
        jax.block_until_ready(some)                      # what is whole in it is seen: some are, however busy the machine is
    jax.block_until_ready(x)
    begun = {}
    for _, lines in device_planes(tmp_path).values():
        for m in lines["XLA Modules"]:
            begun.setdefault(m.stats["step"], []).append(m)
    assert begun
    for launches in begun.values():                      # those of one number are one launch: they wait for each other
        assert max(m.begin for m in launches) <= min(m.end for m in launches)


def test_started_twice_and_stopped_twice(tmp_path):
    x = jnp.ones(8)
    with jax.profiler.trace(tmp_path):
        with pytest.raises(RuntimeError):
            jax.profiler.start_trace(tmp_path / "other")
        (x + 1).block_until_ready()
    with pytest.raises(RuntimeError):
        jax.profiler.stop_trace()
    assert device_planes(tmp_path)[0][1]["XLA Modules"]


def test_a_program_that_fails(tmp_path):
    def fails(x):
        raise ValueError("no")

    f = jax.jit(lambda x: jax.pure_callback(fails, jax.ShapeDtypeStruct(x.shape, x.dtype), x @ x) + 1)
    g = jax.jit(lambda x: x * 3)
    x = jnp.ones((128, 128))
    g(x).block_until_ready()
    with jax.profiler.trace(tmp_path):
        with pytest.raises(Exception, match="no"):
            f(x).block_until_ready()
        g(x).block_until_ready()
    _, lines = device_planes(tmp_path)[0]
    assert len(lines["XLA Modules"]) == 2
    # The call that has failed is the last of its launch.
    mine = [o for o in lines["XLA Ops"] if inside(o, lines["XLA Modules"][0])]
    assert mine[-1].stats["hlo_category"] == "custom-call" and any(o.stats["hlo_category"] == "dot" for o in mine)


def test_threads(tmp_path):
    """Programs of several threads on several devices, some of which begin before the trace, and end after it."""
    stop = threading.Event()
    f = jax.jit(lambda x: jnp.tanh(x @ x / 100))
    xs = [jax.device_put(np.ones((96, 96), np.float32), d) for d in jax.devices()[:4]]
    jax.block_until_ready([f(x) for x in xs])
    done = []

    def go(x):
        n = 0
        while not stop.is_set():
            f(x).block_until_ready()
            n += 1
        done.append(n)

    threads = [threading.Thread(target=go, args=(x,)) for x in xs for _ in range(2)]
    for t in threads:
        t.start()
    for k in range(5):
        begin = time.time_ns()
        with jax.profiler.trace(tmp_path / str(k)):
            time.sleep(0.1)
        took = time.time_ns() - begin
        for said, lines in device_planes(tmp_path / str(k)).values():
            events = [e for line in lines.values() for e in line]
            assert max(e.end for e in events) - min(e.begin for e in events) <= took
            assert all(a.end <= b.begin + 0.002 for a, b in zip(lines["XLA Modules"], lines["XLA Modules"][1:]))
    stop.set()
    for t in threads:
        t.join()
    assert sum(done) > 0


def child(program, *args, **env):
    env = {k: v for k, v in os.environ.items() if not k.startswith("RONDO_") or k in ("RONDO_LIBRARY", "RONDO_CACHE")} | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])} | env
    r = subprocess.run([sys.executable, "-c", program, *map(str, args)], env=env, capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stderr
    return r


def test_across_clear_backends(tmp_path):
    child("""
import sys, jax, jax.numpy as jnp
import jax.extend.backend
jax.jit(lambda x: x * 2)(jnp.ones(8)).block_until_ready()
jax.profiler.start_trace(sys.argv[1])
jax.jit(lambda x: x * 3)(jnp.ones(8)).block_until_ready()
jax.extend.backend.clear_backends()
def again(x):
    return x * 5
jax.jit(again)(jnp.ones(8)).block_until_ready()
jax.profiler.stop_trace()
jax.extend.backend.clear_backends()
jax.profiler.start_trace(sys.argv[1] + "/more")
jax.jit(again)(jnp.ones(8)).block_until_ready()
jax.profiler.stop_trace()
""", tmp_path)
    for folder, names in (tmp_path, {"jit__lambda", "jit_again"}), (tmp_path / "more", {"jit_again"}):
        _, lines = device_planes(folder)[0]
        ran = {re.sub(r"\(\d+\)$", "", m.name).rstrip("_") for m in lines["XLA Modules"]}
        assert names <= ran and (len(names) == 2 or "jit__lambda" not in ran), ran


def test_beside_a_timeline(tmp_path):
    child("""
import sys, jax, jax.numpy as jnp
f = jax.jit(lambda x: jnp.sin(x) * 2)
x = jnp.ones(8)
f(x).block_until_ready()
with jax.profiler.trace(sys.argv[1]):
    f(x).block_until_ready()
f(x).block_until_ready()
""", tmp_path, RONDO_TRACE=str(tmp_path / "all.json"), RONDO_DEVICES="1")
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    launches = [e for e in events if e["ph"] == "X" and e["tid"] == 0 and "lambda" in e["name"]]
    assert len(launches) == 3 and len(device_planes(tmp_path)[0][1]["XLA Modules"]) == 1


def test_a_child_that_ends_leaves_the_timeline_alone(tmp_path):
    """It ends last, by exit() of C: Python's way waits for ever in jaxlib for threads that it does not have."""
    child("""
import ctypes, os, time, jax, jax.numpy as jnp
f = jax.jit(lambda x: jnp.sin(x) * 2)
x = jnp.ones(8)
f(x).block_until_ready()
parent = os.getpid()
if not os.fork():
    while os.getppid() == parent:
        time.sleep(0.01)
    ctypes.CDLL(None).exit(0)
f(x).block_until_ready()
f(x).block_until_ready()
""", RONDO_TRACE=str(tmp_path / "all.json"), RONDO_DEVICES="1")
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert len([e for e in events if e["ph"] == "X" and e["tid"] == 0 and "lambda" in e["name"]]) == 3


ASCII = "<comment_char> %\n<escape_char> /\nCHARMAP\n" + "".join(f"<U{c:04X}> /x{c:02x} x\n" for c in range(128)) + "END CHARMAP\n"
COMMA = """LC_NUMERIC
decimal_point "<U002C>"
thousands_sep ""
grouping -1
END LC_NUMERIC
"""


def test_numbers_have_a_point_in_any_language(tmp_path):
    """Timelines, machine tables and programs are texts that are read back."""
    (tmp_path / "ascii").write_text(ASCII)
    (tmp_path / "comma").write_text(COMMA)
    subprocess.run(["localedef", "-c", "-f", str(tmp_path / "ascii"), "-i", str(tmp_path / "comma"), str(tmp_path / "xx_XX")], capture_output=True)
    r = child("""
import locale, jax, jax.numpy as jnp
locale.setlocale(locale.LC_NUMERIC, "xx_XX")
assert locale.str(0.5) == "0,5"
y = jax.jit(lambda x: jnp.exp(x * 0.75) @ x.T + 1.5)(jnp.ones((64, 64)))
print(float(y[0, 0]))
assert locale.str(0.5) == "0,5"
""", LOCPATH=str(tmp_path), RONDO_MEMORY="1.5G", RONDO_TRACE=str(tmp_path / "all.json"), RONDO_TABLE=str(HERE.parent / "golden/tool/machine.txt"), RONDO_DEVICES="1")
    assert float(r.stdout) == pytest.approx(64 * np.exp(0.75) + 1.5) and not r.stderr
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X"} and all(e["dur"] > 0 for e in events if e["ph"] == "X" and e["tid"] == 0)


def test_several_processes(tmp_path):
    program = """
import rondo.early, jax, sys
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(jax.devices(), "d")
f = jax.jit(jax.shard_map(lambda x: jax.lax.psum(jnp.sin(x), "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))
x = jax.make_array_from_callback((8, 16), NamedSharding(mesh, P("d")), lambda i: np.ones((8, 16), np.float32)[i])
f(x).block_until_ready()
with jax.profiler.trace(sys.argv[3] + "/" + sys.argv[2]):
    f(x).block_until_ready()
"""
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    env = {**os.environ, "RONDO_DEVICES": "1"}
    all_ = [subprocess.Popen([sys.executable, "-c", program, f"127.0.0.1:{port}", str(i), str(tmp_path)], env=env) for i in range(2)]
    assert [p.wait(timeout=600) for p in all_] == [0, 0]
    ids = set()
    for i in range(2):
        [(device, (_, lines))] = device_planes(tmp_path / str(i)).items()
        assert device == i
        assert {o.stats["peers"] for o in lines["XLA Ops"] if "peers" in o.stats} == {"0,1"}
        ids |= {m.stats["program_id"] for m in lines["XLA Modules"]}
    assert len(ids) == 1                                 # one program


# --- rondo trace -----------------------------------------------------------------

SCRIPT = """
import sys, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(jax.devices(), "d")
x = jax.device_put(np.ones((512, 256), np.float32), NamedSharding(mesh, P("d")))
f = jax.jit(jax.shard_map(lambda x: x @ x / 256 + jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P("d")))
for _ in range(6):
    x = jax.block_until_ready(f(x) / 8)
print("the script's own", sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""


def trace(rondo, tmp_path, *args, **env):
    env = {k: v for k, v in os.environ.items() if not k.startswith("RONDO_") or k in ("RONDO_LIBRARY", "RONDO_CACHE")} | {"RONDO_PYTHON": sys.executable, "COLUMNS": "90", "RONDO_DEVICES": "2"} | env
    r = subprocess.run([rondo, "trace", *map(str, args)], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    return r.returncode, r.stdout, r.stderr


def test_command(rondo, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    code, out, err = trace(rondo, tmp_path, "--top", "3", "train.py", "0", "--flag")
    assert code == 0, err
    assert out.startswith("the script's own ['0', '--flag']\n")
    assert re.search(r"^jit_\S+: 6 steps on 2 devices, [\d.]+ ms each", out, re.M), out
    assert re.search(r"^ +[\d.]+ +[\d.]+ +1 +\d+ %  dot  train.py:6  .*dot_general$", out, re.M), out
    exposed = out[out.index("exposed communication"):out.index("operations of a step, by time")]
    assert "train.py:6" in exposed
    assert max(map(len, out.splitlines())) <= 90
    parts = re.findall(r"^ +([\d.]+) %  (?:computes|waits|calls|has nothing)", out, re.M)
    assert len(parts) == 4 and sum(map(float, parts)) == pytest.approx(100, abs=0.3)
    assert out.endswith("ui.perfetto.dev opens rondo-trace.json\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rondo-trace.json", "train.py"]
    assert json.loads((tmp_path / "rondo-trace.json").read_text())["traceEvents"]
    # A timeline that is there is read again.
    again = trace(rondo, tmp_path, "--top", "3", "rondo-trace.json")
    assert again == (0, out[out.index("jit_"):out.index("\nui.perfetto")], "")


def test_command_of_several_processes(rondo, tmp_path):
    (tmp_path / "train.py").write_text("import rondo.early, jax\njax.distributed.initialize()\n" + SCRIPT.replace("jax.device_put(np.ones((512, 256), np.float32), NamedSharding(mesh, P('d')))", "").replace(
        'jax.device_put(np.ones((512, 256), np.float32), NamedSharding(mesh, P("d")))',
        'jax.make_array_from_callback((512, 256), NamedSharding(mesh, P("d")), lambda i: np.ones((512, 256), np.float32)[i])'))
    code, out, err = trace(rondo, tmp_path, "--out", "t.json", rondo, "launch", "-n", "2", sys.executable, "train.py", "0", RONDO_DEVICES="1")
    assert code == 0, err
    assert "6 steps on 2 devices" in out and out.endswith("opens t-0.json, t-1.json\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t-0.json", "t-1.json", "train.py"]


@pytest.mark.parametrize("script, args, code, words", [
    (SCRIPT, ["7"], 7, "steps on 2 devices"),            # what it has run is told all the same
    ("raise ValueError('early')", [], 1, "ValueError: early"),
    ("print('no JAX here')", [], 2, "has run nothing on Rondo"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", [], 137, "ended by signal 9"),
    (SCRIPT.replace("sys.exit", "import os; os._exit"), ["0"], 2, "the program has ended without writing a timeline"),
    (SCRIPT.replace("sys.exit", "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler); os.kill(os.getpid(), signal.SIGINT) ;"), ["0"], 130, "steps on 2 devices"),
])
def test_command_of_a_script_that(script, args, code, words, rondo, tmp_path):
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "rondo-trace.json").write_text("earlier")
    got, out, err = trace(rondo, tmp_path, "train.py", *args)
    assert got == code and words in out + err, (got, out, err)
    assert ((tmp_path / "rondo-trace.json").read_text() == "earlier") == ("steps on 2 devices" not in out)
    assert {p.name for p in tmp_path.iterdir()} <= {"train.py", "rondo-trace.json"}


def test_a_program_that_goes_to_another_folder(rondo, tmp_path):
    (tmp_path / "other").mkdir()
    go = "import os\nos.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'other'))\n"
    (tmp_path / "early.py").write_text(go + SCRIPT)
    code, out, err = trace(rondo, tmp_path, "early.py", "0")
    assert code == 0 and "6 steps on 2 devices" in out, err
    (tmp_path / "late.py").write_text(SCRIPT.replace("print(", go + "print("))
    r = subprocess.run([sys.executable, "late.py", "0"], cwd=tmp_path, capture_output=True, text=True, timeout=600, env=os.environ | {"RONDO_TRACE": "late.json", "RONDO_DEVICES": "2"})
    assert r.returncode == 0, r.stderr
    assert json.loads((tmp_path / "late.json").read_text())["traceEvents"] and not list((tmp_path / "other").iterdir())


def test_command_in_each_process(rondo, tmp_path):
    """Where the processes of a job are each run by a command of its own no timeline is lost."""
    (tmp_path / "step.py").write_text("import jax; print(jax.jit(lambda x: x + 1)(1.0))")
    r = subprocess.run([rondo, "launch", "-n", "2", rondo, "trace", "--out", "t.json", "step.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, env=os.environ | {"RONDO_PYTHON": sys.executable})
    assert r.returncode == 0, r.stdout + r.stderr
    assert sorted(f.name for f in tmp_path.iterdir()) == ["step.py", "t-0.json", "t-1.json"]


def test_command_that_is_ended(rondo, tmp_path):
    """The program is told, and nothing is left."""
    (tmp_path / "wait.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)")
    p = subprocess.Popen([rondo, "trace", sys.executable, "wait.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "here\n"
    p.terminate()
    _, err = p.communicate(timeout=60)
    assert p.returncode == 143 and "ended by signal 15" in err
    assert [f.name for f in tmp_path.iterdir()] == ["wait.py"]


def test_command_that_cannot(rondo, tmp_path):
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "train.py").write_text(SCRIPT)
    for args, words in (["other.json"], "is no timeline"), (["none.json"], "cannot open 'none.json'"), (["--out", "/nowhere/t.json", "train.py", "0"], "cannot write beside '/nowhere/t.json'"), (["./nothing"], "cannot run './nothing'"), (["--out", ".", "train.py", "0"], "cannot write '.': it is a folder"):
        code, out, err = trace(rondo, tmp_path, *args)
        assert code in (2, 127) and words in err, (args, code, err)


# --- XProf ---------------------------------------------------------------------------




def test_a_server_that_is_asked(tmp_path):
    """As `python -m jax.collect_profile` does, while programs run."""
    f = jax.jit(lambda x: jnp.sin(x @ x) / 100)
    x = jnp.ones((128, 128))
    f(x).block_until_ready()
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    jax.profiler.start_server(port)
    asks = subprocess.Popen([sys.executable, "-c", """
import sys
from xprof.convert import _pywrap_profiler_plugin
_pywrap_profiler_plugin.trace("localhost:" + sys.argv[1], sys.argv[2], "", True, 300, 3, {"host_tracer_level": 2, "device_tracer_level": 1, "python_tracer_level": 0})
""", str(port), str(tmp_path)])
    while asks.poll() is None:
        f(x).block_until_ready()
    jax.profiler.stop_server()
    assert asks.returncode == 0
    _, lines = device_planes(tmp_path)[0]
    launches = lines["XLA Modules"]
    assert launches and len([o for o in lines["XLA Ops"] if o.stats["hlo_category"] == "dot"]) == len(launches)      # whole ones


def test_xprof_reads_it(tmp_path):
    step, x = sharded()
    with jax.profiler.trace(tmp_path):
        for _ in range(5):
            x = step(x)
        jax.block_until_ready(x)
    r = child("""
import glob, json, sys
from xprof.convert._pywrap_profiler_plugin import xspace_to_tools_data
files = glob.glob(sys.argv[1] + "/plugins/profile/*/*.xplane.pb")
def tool(name):
    data, good = xspace_to_tools_data(files, name)
    assert good, name
    return json.loads(data)
def rows(table):
    ids = [c["id"] for c in table["cols"]]
    return [dict(zip(ids, [c["v"] for c in r["c"]])) for r in table["rows"]]
overview = tool("overview_page")
print(json.dumps([rows(tool("hlo_stats")), rows(tool("framework_op_stats")[0]), overview, tool("op_profile")]))
""", tmp_path)
    ops, framework, overview, profile = json.loads(r.stdout.splitlines()[-1])
    [dot] = [o for o in ops if o["category"] == "dot"]
    assert dot["occurrences"] == 20 and f"test_profiler.py:{line_of('y = jnp.sin(x @ x)')}" in dot["source_info"] and "/layer/dot_general" in dot["tf_op_name"]
    assert dot["model_flop_rate"] == pytest.approx(20 * 2 * N ** 3 / dot["total_self_time"] / 1e3, rel=0.01)
    assert {"all-reduce", "collective-permute", "dot"} <= {o["category"] for o in ops}
    assert any("/layer/dot_general" in o["operation"] for o in framework)
    kinds = {k["name"]: k["metrics"] for p in profile["byProgram"]["children"] for k in p.get("children", [])}
    assert 0.999 * 20 * 3 * 4 * N * N <= kinds["dot"]["rawBytesAccessedArray"][0] and 0 < kinds["dot"]["bandwidthUtils"][0] <= 1, kinds
    # All of them together are the launches.
    said = device_planes(tmp_path)
    launches = sum(m.end - m.begin for _, lines in said.values() for m in lines["XLA Modules"]) / 1e3
    assert sum(o["total_self_time"] for o in ops if o["category"] != "IDLE") == pytest.approx(launches, rel=0.05)
    [ms] = [float(t["p"]["steptime_ms_average"]) for t in overview if "steptime_ms_average" in t.get("p", {})]
    mine = [s.end - s.begin for _, lines in said.values() for s in lines["Steps"]]
    assert min(mine) / 1e6 - 0.01 <= ms <= max(mine) / 1e6 + 0.01
