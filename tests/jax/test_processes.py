"""Several processes, joined by jax.distributed: the programs of processes/, started as P processes of D devices."""
import contextlib
import importlib.util
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import pytest

HERE = pathlib.Path(__file__).parent
MANY = ("everything", "rings")      # of their cases a share will do


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Job:
    """env: of all processes, or a list by process."""

    def __init__(self, processes, devices, program, *args, hosts=(), **env):
        port = free_port()
        base = {**os.environ, "PROCESSES": str(processes), "DEVICES": str(devices),
                "COORDINATOR": f"{hosts[0][1] if hosts else '127.0.0.1'}:{port}",
                "RONDO_DEVICES": "0", "TF_CPP_MIN_LOG_LEVEL": "2", **env}
        if program not in MANY:
            base["DRAWS"] = "100"
        on = [["ip", "netns", "exec", hosts[i * len(hosts) // processes][0]] if hosts else [] for i in range(processes)]
        self.tag = f"rondo-job-{os.getpid()}-{port}"
        own = [{k: v[i] if isinstance(v, list) else v for k, v in base.items()} for i in range(processes)]
        self.all = [subprocess.Popen([*on[i], sys.executable, str(HERE / "processes" / f"{program}.py"), *map(str, args)],
                                     env={**own[i], "PROCESS": str(i), "JOB": self.tag}, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE) for i in range(processes)]

    def wait(self, seconds=300):
        """[(exit code, stdout, stderr)]"""
        until, out = time.monotonic() + seconds, []
        try:
            for p in self.all:
                out.append((p, *p.communicate(timeout=max(until - time.monotonic(), 0.1))))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {len(out)} has not ended within {seconds} s") from None
        finally:
            for p in self.all:
                if p.poll() is None:
                    p.kill()
                    p.communicate()
        return [(p.returncode, o, e) for p, o, e in out]

    def left(self):
        """Processes of this job that live, by their environment; those that are leaving get a second."""
        for _ in range(20):
            found = []
            for p in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    if f"JOB={self.tag}\0".encode() in (p / "environ").read_bytes():
                        found.append((p / "cmdline").read_bytes().replace(b"\0", b" ").decode())
                except OSError:
                    pass
            if not found:
                break
            time.sleep(0.1)
        return found


@contextlib.contextmanager
def namespaces(n):
    """So many of networks, with a cable each to a switch in one more."""
    switch, *names = (f"rondo-jax-{os.getpid()}-{i}" for i in range(n + 1))

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True).returncode == 0

    if not ip("netns", "add", switch):
        pytest.skip("no network namespaces here (not root?)")
    try:
        ip("-n", switch, "link", "add", "name", "switch", "type", "bridge")
        ip("-n", switch, "link", "set", "switch", "up")
        for i, name in enumerate(names):
            ip("netns", "add", name)
            ip("-n", name, "link", "add", "wire", "type", "veth", "peer", "name", f"to{i}", "netns", switch)
            ip("-n", switch, "link", "set", f"to{i}", "master", "switch", "up")
            ip("-n", name, "addr", "add", f"10.79.0.{i + 1}/24", "dev", "wire")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "wire", "up")
        time.sleep(1)
        yield [(name, f"10.79.0.{i + 1}") for i, name in enumerate(names)]
    finally:
        for name in (switch, *names):
            ip("netns", "del", name)


@pytest.fixture
def hosts():
    with namespaces(2) as all:
        yield all


@pytest.fixture
def three_hosts():
    with namespaces(3) as all:
        yield all


def run(*args, seconds=300, **env):
    job = Job(*args, **env)
    out = job.wait(seconds)
    assert not job.left()
    return out


@pytest.mark.many
@pytest.mark.parametrize("processes, devices", [(2, 1), (2, 2), (4, 1), (1, 4)])
def test_programs(processes, devices):
    for code, out, err in run(processes, devices, "everything"):
        assert code == 0, out + err
        assert "passed" in out and "rondo:" not in err, out + err


@pytest.mark.many
@pytest.mark.parametrize("processes, devices", [(1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4)])
def test_rings(processes, devices):
    for code, out, err in run(processes, devices, "rings", RONDO_CHECK="1"):
        assert code == 0 and "failed" not in out, out + err


def test_linear_algebra_of_processes_with_other_cores():
    for code, out, err in run(2, 1, "linalg", DRAWS="100"):
        assert code == 0 and "passed same_everywhere" in out, out + err


def test_rings_whose_memory_is_not_mapped():
    for code, out, err in run(2, 2, "rings", RONDO_CHAOS="7"):
        assert code == 0 and "failed" not in out, out + err


@pytest.mark.many
@pytest.mark.parametrize("processes, devices, road", [(4, 1, "auto"), (2, 2, "auto"), (4, 1, "heads"), (2, 2, "heads"), (3, 1, "heads"), (3, 2, "heads")])
def test_attention_between_hosts(processes, devices, road, tmp_path):
    seed, draws = int.from_bytes(os.urandom(4), "little"), processes * devices < 6
    print(f"{seed=}")
    for code, out, err in run(processes, devices, "attention", seed, int(draws), tmp_path, RONDO_TRANSPORT="tcp", RONDO_ATTENTION="on", RONDO_RING=road, RONDO_CHECK="1"):
        assert code == 0 and "failed" not in out, out + err


def test_instruction_sets_differ():
    """All use what each of them has, and who has more says so."""
    for program in ("everything", "sums"):
        for i, (code, out, err) in enumerate(run(2, 1, program, RONDO_ISA=["", "avx2"], RONDO_CACHE="")):
            assert code == 0, out + err
            assert "passed" in out and err.count("rondo:") == (i == 0) and ("process 1 of the job lacks instruction sets" in err) == (i == 0), out + err


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_machine_tables_differ(tmp_path):
    """All go by the table of process 0: what is compiled, and which algorithms, are the same for all."""
    table = pathlib.Path(__file__).parent.parent / "golden" / "tool" / "machine.txt"
    slow = tmp_path / "slow.txt"
    slow.write_text(table.read_text().replace("rate byte 0.25", "rate byte 50"))
    assert slow.read_text() != table.read_text()
    for code, out, err in run(2, 2, "everything", RONDO_TABLE=[str(slow), "default"], RONDO_CACHE=""):
        assert code == 0, out + err
        assert "passed" in out and "rondo:" not in err, out + err


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_two_hosts(hosts, tmp_path):
    wire = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "wire", "UCX_WARN_UNUSED_ENV_VARS": "n"}
    for code, out, err in run(3, 1, "everything", hosts=hosts, FAR="1", **wire):
        assert code == 0 and "failed" not in out, out + err
    for code, out, err in run(4, 1, "rings", hosts=hosts, FAR="1", **wire):
        assert code == 0 and "failed" not in out, out + err
    out = run(3, 1, "faults", "permute", 2, tmp_path / "moment", hosts=hosts, **wire)
    for code, text, err in out[:2]:
        assert code == 0 and re.search(r"after 1?\d\.\d+ s: .*process 2 \(pid .*has died", text), text + err


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_bytes_of_attention_into_a_host(hosts, tmp_path):
    out = run(2, 2, "attention", 0, 0, tmp_path, hosts=hosts, FAR="1", RONDO_ATTENTION="on", RONDO_NET="tcp")
    said = "".join(t + err for _, t, err in out)
    assert all(code == 0 and "passed bytes_into_a_host" in t for code, t, _ in out) and "failed" not in said, said


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_bytes_of_reshards_into_a_host(hosts):
    for code, out, err in run(2, 2, "reshards", hosts=hosts, RONDO_NET="tcp"):
        assert code == 0 and "passed bytes_of_reshards" in out and "failed" not in out, out + err


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
@pytest.mark.parametrize("devices", [1, 2])
def test_bytes_of_heads_into_a_host(three_hosts, devices, tmp_path):
    for code, out, err in run(3, devices, "attention", 0, 0, tmp_path, hosts=three_hosts, FAR="1", RONDO_RING="heads", RONDO_NET="tcp"):
        assert code == 0 and "passed bytes_of_heads" in out and "failed" not in out, out + err


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
@pytest.mark.many
@pytest.mark.parametrize("victim", [0, 2, 3])
def test_death_where_blocks_are_sent(victim, tmp_path):
    """Whom it reaches by way of others, whose next message is not the one that was to come, hears of the death, too, and of no divergence."""
    for i, (code, text, err) in enumerate(run(4, 1, "faults", "blocks", victim, tmp_path / "moment", RONDO_TRANSPORT="tcp")):
        m = re.search(r"after [\d.]+ s: JaxRuntimeError: (UNAVAILABLE|ABORTED): (.*)", text)
        assert i == victim or (m and f"process {victim} (pid " in m[2]), text + err


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
@pytest.mark.many
@pytest.mark.parametrize("what, victim", [("permute", 1), ("sum", 0), ("compile", 2), ("between", 1)])
def test_death(what, victim, tmp_path):
    """Every survivor hears who has died, in which program and line, before a silence would tell, and ends in order."""
    files, folder = set(os.listdir("/dev/shm")), tmp_path / "files"
    folder.mkdir()
    out = run(3, 1, "faults", what, victim, tmp_path / "moment", TMPDIR=str(folder))
    assert out[victim][0] == -signal.SIGKILL
    program = {"permute": "jit_permutes", "sum": "jit_sums"}.get(what, "jit_once")
    for i, (code, text, err) in enumerate(out):
        if i == victim:
            continue
        m = re.search(r"after ([\d.]+) s: JaxRuntimeError: (.*)", text)
        assert m and code == 0, text + err
        assert float(m[1]) < 15, text
        assert f"process {victim} (pid " in m[2] and "has died" in m[2] and program in m[2] and "faults.py:" in m[2], m[2]
        assert "nobody has read" not in err, err
    new = set(os.listdir("/dev/shm")) - files | set(os.listdir(folder))
    assert not [f for f in new if "rondo" in f], new


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_death_that_nobody_asks_about_is_logged_once(tmp_path):
    out = run(3, 1, "faults", "unread", 1, tmp_path / "moment")
    for code, text, err in (out[0], out[2]):
        assert code == 0 and "went on" in text, text + err
        assert err.count("rondo: a launch has failed and nobody has read its results: ") == 1, err
        assert re.search(r"process 1 \(pid \d+\) has died", err), err


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_death_before_there_are_devices(tmp_path):
    out = run(3, 1, "faults", "join", 1, tmp_path / "none")
    for code, text, err in (out[0], out[2]):
        took = re.findall(r"after ([\d.]+) s: .*process 1 \(pid \d+\) has died before it joined the job", text)
        assert len(took) == 2 and code == 0 and all(float(s) < 60 for s in took), text + err


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_death_in_initialize():
    """Killed after it is known to jaxlib's service and before it has said on which machine it is: as one of another host."""
    program = """if 1:
        import os, rondo.early, jax, sys
        me = int(sys.argv[2])
        if me == 1:
            rondo.early.here = lambda *a: os.kill(os.getpid(), 9)
        jax.distributed.initialize(sys.argv[1], 2, me)
        try:
            jax.devices()
        except RuntimeError as e:
            print(e, flush=True)
            os._exit(0)"""
    address = f"127.0.0.1:{free_port()}"
    all_ = [subprocess.Popen([sys.executable, "-c", program, address, str(i)], stdout=subprocess.PIPE, text=True) for i in range(2)]
    try:
        out = all_[0].communicate(timeout=300)[0]
    finally:
        for p in all_:
            p.kill()
            p.communicate()
    assert "process 1 has died before it joined the job" in out


ENDS = {
    "before its coordinator listens": """
def popen(*args, popen=subprocess.Popen, **kwargs):
    popen(*args, **kwargs)
    os.kill(os.getpid(), 9)
if me == 0:
    time.sleep(1)
    subprocess.Popen = popen""",
    "while process 0 starts its coordinator": """
def popen(*args, popen=subprocess.Popen, **kwargs):
    open(sys.argv[3], "w").close()
    while not os.path.exists(sys.argv[3] + " too late"):
        time.sleep(0.02)
    time.sleep(0.5)
    return popen(*args, **kwargs)
if me == 0:
    subprocess.Popen = popen
def watch():
    while not os.path.exists(sys.argv[3]):
        time.sleep(0.02)
    time.sleep(0.7)
    open(sys.argv[3] + " too late", "w").close()
    os.kill(os.getpid(), 9)
if me == 1:
    threading.Thread(target=watch).start()""",
    "while it waits for the others": """
if me == 1:
    rondo.early._Client.connect = lambda client: os.kill(os.getpid(), 9)""",
}


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
@pytest.mark.many
@pytest.mark.parametrize("moment", ENDS)
def test_who_ends_in_initialize_is_named(moment, tmp_path):
    """jaxlib would wait for it for five minutes."""
    program = f"import os, subprocess, sys, threading, time, rondo.early, jax\nme = int(sys.argv[2]){ENDS[moment]}\njax.distributed.initialize(sys.argv[1], 3, me)"
    address, victim = f"127.0.0.1:{free_port()}", 0 if "its coordinator listens" in moment else 1
    all_ = [subprocess.Popen([sys.executable, "-c", program, address, str(i), str(tmp_path / "begun")], stderr=subprocess.PIPE, text=True) for i in range(3)]
    try:
        all_[victim].wait(timeout=200)
        since = time.monotonic()
        for p in all_:
            error = p.communicate(timeout=200)[1]
            if p is not all_[victim]:
                assert p.returncode == 1 and f"RuntimeError: process {victim} has ended before jax.distributed.initialize was done" in error, error
        assert time.monotonic() - since < 200
    finally:
        for p in all_:
            p.kill()
            p.communicate()


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_launch_ends_a_job_of_which_one_ends_before_it_connects():
    rondo = pathlib.Path(os.environ.get("RONDO_LIBRARY", HERE.parents[1] / "build" / "librondo.so")).parent / "rondo"
    program = """if 1:
        import os, rondo.early, jax
        if os.environ["RONDO_PROCESS"] == "1":
            os.kill(os.getpid(), 9)
        jax.distributed.initialize()"""
    out = subprocess.run([rondo, "launch", "-n", "3", sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert out.returncode == 128 + 9 and "process 1 was ended by signal 9" in out.stderr, out.stderr


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
@pytest.mark.many
@pytest.mark.parametrize("victim, how", [(1, "os._exit(0)"), (0, "os._exit(0)"), (0, "os.kill(os.getpid(), 9)")])
def test_launch_says_that_one_has_ended_before_it_connects(victim, how):
    """Also process 0, which would have started the coordinator: jaxlib would wait for it for five minutes."""
    rondo = pathlib.Path(os.environ.get("RONDO_LIBRARY", HERE.parents[1] / "build" / "librondo.so")).parent / "rondo"
    program = f"""if 1:
        import os, rondo.early, jax
        if os.environ["RONDO_PROCESS"] == "{victim}":
            {how}
        jax.distributed.initialize()"""
    out = subprocess.run([rondo, "launch", "--keep-going", "-n", "3", sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert out.stderr.count(f"process {victim} has ended before jax.distributed.initialize was done") == 2, out.stderr


@pytest.mark.only_rondo("XLA:CPU has no launch")
@pytest.mark.parametrize("kept", ["jax.set_mesh(mesh)", "seen = np.asarray(y.addressable_shards[0].data)", "sys.kept = jax.devices()", "pass"])
def test_processes_that_end_well_are_not_told_as_dead(kept):
    """Whatever keeps the client alive at the end, and while a program still runs."""
    rondo = pathlib.Path(os.environ.get("RONDO_LIBRARY", HERE.parents[1] / "build" / "librondo.so")).parent / "rondo"
    program = f"""if 1:
        import sys, time
        import jax, jax.numpy as jnp, numpy as np
        jax.distributed.initialize()
        mesh = jax.make_mesh((jax.device_count(),), ("x",))
        x = jax.device_put(np.ones((384, 256), "f4"), jax.NamedSharding(mesh, jax.P("x")))
        y = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, x: x / x.sum(), x))(x)
        {kept}
        time.sleep(0.1 * jax.process_index())"""
    out = subprocess.run([rondo, "launch", "-n", "3", sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert out.returncode == 0 and out.stderr == "", out.stderr


def test_an_address_that_something_else_has():
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as s:
        address = f"[::]:{s.getsockname()[1]}"
        out = subprocess.run([sys.executable, coordinator_module().__file__, address, "2"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert "is taken: another job has it" in out.stdout


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_an_address_that_another_job_has():
    """Nobody of the second job gets in, nobody of the first is harmed: jaxlib would end its process 1 for the one that comes."""
    program = """if 1:
        import sys, rondo.early, jax
        from jax.experimental import multihost_utils
        jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
        print(len(jax.devices()), flush=True)
        sys.stdin.read()
        print(multihost_utils.process_allgather(jax.numpy.ones(3)).sum())"""
    address, all_ = f"127.0.0.1:{free_port()}", []

    def job():
        two = [subprocess.Popen([sys.executable, "-c", program, address, str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, "RONDO_DEVICES": "1"}) for i in range(2)]
        all_.extend(two)
        return two

    try:
        first = job()
        for p in first:
            assert p.stdout.readline() == "2\n", p.communicate()
        since = time.monotonic()
        for i, p in enumerate(job()):
            error = p.communicate(timeout=200)[1]
            assert p.returncode == 1 and f"RuntimeError: the coordinator's address {address} is taken: process {i} is there already, pid {first[i].pid} on host {socket.gethostname()}" in error, error
        assert time.monotonic() - since < 200
        for p in first:
            p.stdin.close()
        for p in first:
            p.stdin = None
            text, error = p.communicate(timeout=200)
            assert p.returncode == 0 and text == "6.0\n", error
    finally:
        for p in all_:
            p.kill()
            p.wait()


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_who_is_interrupted_in_initialize_ends_in_order():
    program = """if 1:
        import signal, sys, threading, rondo.early, jax
        signal.signal(signal.SIGINT, signal.default_int_handler)        # what a shell has begun in the background ignores it
        made = rondo.early._Client.__init__
        def init(*args):
            made(*args)
            threading.Timer(1, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()        # while it waits for process 1
        rondo.early._Client.__init__ = init
        jax.distributed.initialize(sys.argv[1], 2, 0)"""
    out = subprocess.run([sys.executable, "-c", program, f"127.0.0.1:{free_port()}"], capture_output=True, text=True, timeout=200)
    assert out.returncode == -signal.SIGINT and out.stderr.endswith("KeyboardInterrupt\n") and out.stderr.count("Traceback") == 1, out.stderr


def reach(address):
    host, port = address.split(":")
    for _ in range(300):
        try:
            return socket.create_connection((host, int(port)), timeout=100)
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"nobody answers at {address}")


def test_who_may_come(monkeypatch):
    """A number is given once while its process lives, and to processes of the same job."""
    coordinator = coordinator_module()
    address = f"127.0.0.1:{free_port()}"

    def comes(number, processes, token, pid):
        monkeypatch.setenv("RONDO_TOKEN", token)
        monkeypatch.setattr(coordinator.os, "getpid", lambda: pid)
        s = reach(address)
        s.sendall(coordinator.hello(number, processes))
        monkeypatch.undo()
        return s, s.makefile("rb").readline().decode()

    service = subprocess.Popen([sys.executable, coordinator.__file__, address, "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "RONDO_TOKEN": "ours"})
    on = f"on host {socket.gethostname()}"
    all_ = []
    try:
        for number, processes, token, pid, answer in (
                (0, 2, "ours", 7, f"taken process 0 is there already, pid {os.getpid()} {on}: "),         # it has not come, but has started the coordinator
                (0, 2, "ours", os.getpid(), "here"),
                (1, 2, "theirs", 8, f"taken another job has it, of 2 processes, whose process 0 is pid {os.getpid()} {on}"),
                (1, 2, "", 8, "taken another job has it"),
                (1, 3, "ours", 8, "taken another job has it"),
                (1, 2, "ours", 9, "here"),
                (1, 2, "ours", 8, f"taken process 1 is there already, pid 9 {on}: another job has it, or two processes have one number\n")):
            s, said = comes(number, processes, token, pid)
            all_.append(s)
            assert said.startswith(answer), (said, answer)
        for pid in range(10, 30):              # at once, whether its end has been heard of or not
            all_[5].shutdown(socket.SHUT_RDWR)
            s, said = comes(1, 2, "ours", pid)
            all_[5].close()
            all_[5] = s
            assert said == "here\n"
        assert all_[1].recv(7) == b"gone 1\n"
    finally:
        for s in all_:
            s.close()
        service.kill()
        service.communicate()


def test_more_processes_than_descriptors():
    """The limit that a shell sets holds for the job's processes, not for all their connections together."""
    coordinator, address, many = coordinator_module(), f"127.0.0.1:{free_port()}", 40
    service = subprocess.Popen(["bash", "-c", 'ulimit -Sn 24; exec "$@"', "_", sys.executable, coordinator.__file__, address, str(many)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert service.stdout.readline() == b"ready\n"
    host, port = address.split(":")
    held = [socket.create_connection((host, int(port)), timeout=60) for _ in range(1, many)]
    try:
        for number, s in enumerate(held, 1):
            s.sendall(coordinator.hello(number, many))
        assert {s.recv(5) for s in held} == {b"here\n"}
    finally:
        for s in held:
            s.close()
        service.kill()
        service.communicate()


def test_process_0_ends_before_anybody_comes():
    address = f"127.0.0.1:{free_port()}"
    service = subprocess.Popen([sys.executable, coordinator_module().__file__, address, "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    service.stdin.close()
    service.stdout.close()
    try:
        with reach(address) as s:
            s.sendall(coordinator_module().hello(1, 2))
            lines = s.makefile("rb")
            assert [lines.readline(), lines.readline()] == [b"here\n", b"gone 0\n"]
    finally:
        service.kill()
        service.wait()


def test_a_process_that_ends_is_told_of():
    coordinator = coordinator_module()
    with socket.create_server(("127.0.0.1", 0)) as outside:
        threading.Thread(target=coordinator.accept, args=(outside, "no service is asked"), daemon=True).start()

        def come(number):
            s = socket.create_connection(outside.getsockname(), timeout=100)
            s.sendall(coordinator.hello(number, 3))
            assert s.recv(5) == b"here\n"
            return s

        with come(0) as first:
            with come(1):
                pass
            assert first.recv(64) == b"gone 1\n"
            with come(2) as late:
                assert late.recv(64) == b"gone 1\n"


def test_who_has_not_come_is_named():
    coordinator = coordinator_module()
    coordinator.PATIENCE_S = 0.1
    with socket.create_server(("127.0.0.1", 0)) as outside:
        threading.Thread(target=coordinator.accept, args=(outside, "no service is asked"), daemon=True).start()
        with socket.create_connection(outside.getsockname(), timeout=100) as s:
            s.sendall(coordinator.hello(1, 4))
            assert s.recv(5) == b"here\n"
            threading.Thread(target=coordinator.remind, args=(4,), daemon=True).start()
            assert s.recv(64) == b"missing 0 2 3\n"


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_that_process_0_has_not_come_is_said_once(capfd):
    from rondo import early

    class Hasty(early._Presence):
        PATIENCE_S = 0.4

    port, served, said = free_port(), [], []

    def comes_late():
        until = time.monotonic() + 100
        while "waits for process 0" not in "".join(said) and time.monotonic() < until:
            said.append(capfd.readouterr().err)
            time.sleep(0.1)
        with socket.create_server(("127.0.0.1", port)) as s:
            served.append(s.accept()[0])

    late = threading.Thread(target=comes_late)
    late.start()
    presence = Hasty(f"127.0.0.1:{port}", 1, 2, 100)
    late.join()
    while not presence.socket:
        time.sleep(0.01)
    presence.close()
    presence.socket.close()
    served[0].close()
    said.append(capfd.readouterr().err)
    assert "".join(said).count(f"waits for process 0, which has not come: nobody answers at 127.0.0.1:{port}\n") == 1


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_stopped_process_is_waited_for(tmp_path):
    """STOP_S=75: for so many seconds.  Beyond a minute gRPC has its own idea of who is gone."""
    job = Job(3, 1, "faults", "stop", 1, tmp_path / "pid")
    for _ in range(300):
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
        time.sleep(0.1)
    time.sleep(float(os.environ.get("STOP_S", 2.5)))
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGCONT)
    for code, text, err in job.wait():
        assert code == 0 and "went on" in text, text + err
    assert not job.left()


def coordinator_module():
    spec = importlib.util.spec_from_file_location("coordinator", HERE.parents[1] / "python" / "rondo" / "coordinator.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def frame(kind, flags, body, stream=0):
    """Of HTTP/2."""
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


@pytest.mark.many
@pytest.mark.parametrize("says", [b"", b"GET / HTTP/1.1\r\nHost: coordinator\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(6, 0, b"12345678")])
def test_a_stranger_does_not_keep_the_coordinator(says):
    """It leaves when nobody is connected any more: who does not begin like a client is cut off."""
    coordinator = coordinator_module()
    coordinator.GREET_S = 0.3
    path = f"\0rondo-test-{os.getpid()}-{len(says)}"
    with socket.socket(socket.AF_UNIX) as server, socket.create_server(("127.0.0.1", 0)) as outside:
        server.bind(path)
        server.listen()
        threading.Thread(target=coordinator.accept, args=(outside, path), daemon=True).start()
        with socket.create_connection(outside.getsockname(), timeout=100) as stranger:
            stranger.sendall(says)
            try:
                assert stranger.recv(1) == b""
            except ConnectionResetError:
                pass


def test_pings_are_answered_for_a_client_that_is_stopped():
    """By the process that the frames of jaxlib's coordination service go through; all others arrive whole and in order."""
    coordinator = coordinator_module()
    path = f"\0rondo-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server, socket.create_server(("127.0.0.1", 0)) as outside:
        server.bind(path)
        server.listen()
        server.settimeout(100)
        threading.Thread(target=coordinator.accept, args=(outside, path), daemon=True).start()
        preface, large = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", frame(0, 1, os.urandom(1 << 16), 3)
        client = socket.create_connection(outside.getsockname(), timeout=100)
        client.sendall(preface + frame(4, 0, b"") + large[:1000])              # the rest of a frame is yet to come
        service = server.accept()[0]
        service.settimeout(100)
        with client, service:
            service.sendall(frame(6, 0, b"12345678") + frame(6, 1, b"abcdefgh") + large)
            got = service.makefile("rb")
            assert got.read(24) == preface
            both = frame(4, 0, b""), frame(6, 1, b"12345678")                  # and the client has not read anything
            assert got.read(9 + 17) in (both[0] + both[1], both[1] + both[0])
            client.sendall(large[1000:])
            assert got.read(len(large)) == large
            assert client.makefile("rb").read(17 + len(large)) == frame(6, 1, b"abcdefgh") + large


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_order_swapped_in_one_process(tmp_path):
    out = run(2, 1, "faults", "swapped", 1, tmp_path / "none")
    texts = [re.search(r"JaxRuntimeError: (.*)", text) for _, text, _ in out]
    assert all(texts), out
    assert any("devices have diverged" in t[1] and "'jit_once'" in t[1] and "'jit_other'" in t[1] for t in texts), texts
    assert all(code == 0 for code, _, _ in out)


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_programs_that_differ_say_where(tmp_path):
    out = run(2, 1, "faults", "diverged", 1, tmp_path / "none")
    text = "".join(t for _, t, _ in out)
    assert "devices have diverged" in text and "differs from this device's first in command 2" in text, out
    assert "permute" in text and "all_reduce" in text, text


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_programs_that_differ_in_whom_they_talk_to(tmp_path):
    out = run(3, 1, "faults", "pairs", 1, tmp_path / "none")
    text = "".join(t for _, t, _ in out)
    assert "devices have diverged" in text and "differs from this device's first in command 1" in text, out
    assert "from 1 2 0" in text and "from 2 0 1" in text, text


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
@pytest.mark.many
@pytest.mark.parametrize("what, processes, devices", [("order", 2, 2), ("order", 3, 1), ("order_pairs", 3, 1), ("order_pairs", 2, 3)])
def test_one_mesh_in_two_orders(what, processes, devices, tmp_path):
    out = run(processes, devices, "faults", what, 1, tmp_path / "none")
    text = "".join(t for _, t, _ in out)
    assert "devices have diverged" in text and "nothing happened" not in out[1][1], text
    assert what == "order_pairs" or "nothing happened" not in text, text      # one may have got what it was to have, from its like
    assert re.search(r"whose mesh has other devices, or these in another order: at position 0 here device \d, there \d", text), text


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
@pytest.mark.many
@pytest.mark.parametrize("what, words", [("sides", r"in argument 0: here f32\[(1,2|2,1)\] of \[2,2\], there f32\[(1,2|2,1)\] of \[2,2\]"), ("constant", "nor in arguments and results: in constants, or"),
                                         ("donated", r"in argument 0: here f32\[1,2\] of \[2,2\](, there f32\[1,2\] of \[2,2\] donated to result 0| donated to result 0, there f32\[1,2\] of \[2,2\])\)")])
def test_programs_that_communicate_alike(what, words, tmp_path):
    text = "".join(t for _, t, _ in run(2, 1, "faults", what, 1, tmp_path / "none"))
    assert re.search(f"devices have diverged.*which differs from this device's, though not in what is communicated, {words}", text), text


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
def test_users_who_decide_differently(tmp_path):
    text = "".join(t for _, t, _ in run(2, 1, "faults", "decided", 1, tmp_path / "none"))
    assert "devices have diverged" in text and "differs from this device's, though not in what is communicated" in text, text


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
@pytest.mark.many
@pytest.mark.parametrize("how", ["leave", "viewed"])
def test_a_process_that_leaves(how, tmp_path):
    out = run(2, 1, "faults", how, 1, tmp_path / "none")
    assert "process 1" in out[0][1] and "has left the job" in out[0][1], out
    assert [code for code, _, _ in out] == [0, 0]


@pytest.mark.only_rondo("Rondo's memory")
def test_out_of_memory_is_an_error_of_the_call(tmp_path):
    for code, text, err in run(2, 1, "memory", tmp_path / "file", RONDO_MEMORY="128M", RONDO_CACHE=""):
        assert code == 0 and "nobody has read" not in err, text + err


def train(example, launch, processes, out, on=(), **more):
    """The losses of some steps of an example, on four devices."""
    root = HERE.parents[1]
    env = {**os.environ, "RONDO_DEVICES": "0", "TF_CPP_MIN_LOG_LEVEL": "2", **more}
    words = [*on, *launch, sys.executable, root / "examples" / example, "--platform", "rondo", "--devices", 4, "--processes", processes,
             "--steps", 4, "--layers", 1, "--length", 128, "--out", out]
    done = subprocess.run(list(map(str, words)), env=env, capture_output=True, text=True, timeout=600)
    assert (out / "loss.rondo.tsv").exists(), done.stdout + done.stderr
    return (out / "loss.rondo.tsv").read_text().partition("\n")[2]     # behind what it was that was trained


@pytest.mark.only_rondo("jaxlib's own clients do otherwise")
@pytest.mark.many
@pytest.mark.parametrize("example", ["train_long.py", "train_ring.py"])
def test_training_gives_the_same_bits(example, hosts, tmp_path):
    """An example as four devices of one process, as four processes under `rondo launch`, and as these on two hosts with a slow cable, where blocks that the compiler sends come round in another order."""
    command = pathlib.Path(os.environ.get("RONDO_LIBRARY") or HERE.parents[1] / "build" / "librondo.so").with_name("rondo")
    one = train(example, [], 1, tmp_path / "1")
    assert one.count("\n") == 4, one
    if example == "train_long.py":
        assert train(example, [command, "launch", "-n", 4], 4, tmp_path / "4") == one
    (first, a), (second, b) = hosts
    subprocess.run(["ip", "netns", "exec", first, "tc", "qdisc", "add", "dev", "wire", "root", "tbf", "rate", "1gbit", "burst", "64kbit", "latency", "50ms"], check=True)
    agent = tmp_path / "agent"
    agent.write_text(f'#!/bin/sh\n[ "$1" = {a} ] && host={first} || host={second}\nshift\nexec ip netns exec $host sh -c "$*"\n')
    agent.chmod(0o755)
    launch = [command, "launch", "-n", 4, "--hosts", f"{a}:2,{b}:2", "--agent", agent]
    far = train(example, launch, 4, tmp_path / "far", on=["ip", "netns", "exec", first], UCX_TLS="tcp", UCX_NET_DEVICES="wire", UCX_WARN_UNUSED_ENV_VARS="n")
    if example == "train_ring.py":
        assert far == one
    else:
        assert list(map(float, far.split())) == pytest.approx(list(map(float, one.split())), rel=1e-3)
