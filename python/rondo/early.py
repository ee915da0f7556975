"""What must be in place before jax.distributed starts, when JAX has not looked for platforms yet.

rondo.pth imports this file whenever Python starts; it costs a fraction of a millisecond and imports nothing that takes longer.
It waits for two modules of JAX:

- jax._src.clusters: `jax.distributed.initialize()` without arguments works under `rondo launch`.
- jax._src.distributed: a process that dies must not take the others with it.  jaxlib's coordination service
  ends every process of a job when one dies, unless it is told that processes may be lost; and every process
  ends itself when the service goes, which lives in process 0.  So the first is said, and the service gets a
  process of its own (coordinator.py), which leaves when nobody is connected any more.

And what has to be done last when Python ends is registered before anybody else could.

Nothing happens in programs that do not use jax.distributed, or not on Rondo.
"""
import atexit
import os
import sys

_PACKAGE = "rondo"

last = []               # functions: called when all that others have registered with atexit has been


@atexit.register
def _end():
    while last:
        last.pop()()


def interrupted():
    """Has Ctrl-C ended the script?"""
    return isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not hasattr(sys, "ps1") and not sys.flags.interactive


def abandon():
    """What still runs is not waited for: when all that others have registered with atexit has been called, the process ends as Ctrl-C ends one."""
    for module, name in (("jax._src.api", "clean_up"), ("jax._src.dispatch", "wait_for_tokens")):       # they would wait
        function = getattr(sys.modules.get(module), name, None)
        if function is not None:
            atexit.unregister(function)
    if _die not in last:
        last.insert(0, _die)


def _die():
    import contextlib
    import signal
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(Exception):
            stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.raise_signal(signal.SIGINT)


class _Waiter:
    """A finder of modules that finds none, and calls a function when one that it knows has been loaded."""

    def __init__(self, after):
        self.after = after

    def find_spec(self, name, path=None, target=None):
        if name not in self.after:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            if spec is not None:
                break
        else:
            return None
        function, load = self.after.pop(name), spec.loader.exec_module

        def exec_module(module):
            load(module)
            _apply(function, module)

        spec.loader.exec_module = exec_module
        return spec


def _apply(function, module):
    try:
        function(module)
    except Exception as e:  # noqa: BLE001  (whatever the change in JAX is, the program goes on)
        print(f"rondo: {function.__name__} could not be registered with this JAX: {e!r}", file=sys.stderr)


def chosen(config):
    """May Rondo be among the platforms?"""
    listed = [p for p in (config.jax_platforms or "").split(",") if p]
    return not listed or _PACKAGE in listed


# --- under rondo launch -----------------------------------------------------------


def cluster(module):
    """Which process this is, from the variables of `rondo launch`."""
    base = module.ClusterEnv

    class RondoCluster(base):
        name = _PACKAGE

        @classmethod
        def is_env_present(cls):
            # What is no number is not meant for here: the library says so when it reads it.
            return os.environ.get("RONDO_PROCESS", "").isdecimal() and os.environ.get("RONDO_PROCESSES", "").isdecimal() and int(os.environ["RONDO_PROCESSES"]) > 0

        @classmethod
        def get_coordinator_address(cls, timeout_secs=None, override_coordinator_port=None):
            # JAX itself looks at JAX_COORDINATOR_ADDRESS first, which `rondo launch` sets.
            where = os.environ.get("RONDO_RENDEZVOUS", "")
            if not where.startswith("tcp://"):
                raise RuntimeError("set JAX_COORDINATOR_ADDRESS to host:port of process 0")
            host, port = where.removeprefix("tcp://").rstrip("/").rsplit(":", 1)
            # A port of its own, which all processes find in the same way.
            return f"{host}:{override_coordinator_port or 1024 + (int(port) - 1024 + 20011) % 64512}"

        @classmethod
        def get_process_count(cls):
            return int(os.environ["RONDO_PROCESSES"])

        @classmethod
        def get_process_id(cls):
            return int(os.environ["RONDO_PROCESS"])

    base._cluster_types.remove(RondoCluster)
    base._cluster_types.insert(0, RondoCluster)


# --- jax.distributed ----------------------------------------------------------------


class _Service:
    """jaxlib's coordination service in a process of its own."""

    def __init__(self, process):
        self.process = process

    def shutdown(self):
        self.process.stdin.close()         # it leaves when the last client has


def service(address, num_nodes, **options):
    """As jaxlib's function of this name; None if there can be no other process."""
    import subprocess
    from . import coordinator
    if not sys.executable:
        return None
    words = [f"{k}={v}" for k, v in options.items() if v is not None]
    with coordinator.listen(address) as s:  # before that process runs: who comes and ends until then is in the queue
        try:
            process = subprocess.Popen([sys.executable, "-P", os.path.abspath(coordinator.__file__), address, str(num_nodes), f"listener={s.fileno()}", *words],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[s.fileno()],
                                       env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)})
        except OSError:
            return None
    answer = process.stdout.readline().decode().strip()
    process.stdout.close()
    if answer == "ready":
        return _Service(process)
    process.stdin.close()
    process.wait()
    if answer:
        raise RuntimeError(answer)
    return None


def _greet(address, process, processes):
    """A connection to the coordinator on which has been said who this is."""
    import socket
    from . import coordinator
    host, port = address.rsplit(":", 1)
    s = socket.create_connection((host.strip("[]"), int(port)), timeout=5)
    s.settimeout(None)
    s.sendall(coordinator.hello(process, processes))
    return s


def _taken(address, why):
    return f"the coordinator's address {address} is taken: {why}"


def _whose(address, processes):
    """Why process 0 cannot have the address: what another coordinator there says, or None."""
    try:
        with _greet(address, 0, processes) as s:
            s.settimeout(5)
            word, _, why = s.makefile("rb").readline(1024).decode(errors="replace").strip().partition(" ")
            return _taken(address, why) if word == "taken" else None
    except OSError:
        return None


class _Presence:
    """A connection to the coordinator that ends with this process, and on which it says whose others have ended.

    said: jaxlib's client may connect, unless there is a reason why not (refused); or nothing is to be heard, for the service is another one."""

    PATIENCE_S = 20                        # who has not come after that is named: here process 0, by the coordinator the others
    ASK_S = 1                              # between two questions to the launcher

    def __init__(self, address, process, processes, limit):
        import threading
        self.address, self.process, self.processes, self.limit = address, process, processes, limit
        self.lock, self.said, self.news = threading.Lock(), threading.Event(), threading.Event()
        self.client, self.gone, self.socket, self.closed, self.refused = None, [], None, False, None
        threading.Thread(target=self.run, daemon=True).start()
        self.said.wait(5)                  # else the coordinator is not there yet

    def connect(self):
        import time
        from . import coordinator
        since = asked = time.monotonic()
        patience = since + self.PATIENCE_S
        while not self.closed and time.monotonic() < since + self.limit:
            now = time.monotonic()
            if now >= patience:
                patience = since + self.limit
                print(f"rondo: jax.distributed.initialize waits for process 0, which has not come: nobody answers at {self.address}", file=sys.stderr)
            try:
                return _greet(self.address, self.process, self.processes)
            except OSError:
                time.sleep(min(0.01 + (now - since) / 10, 0.1))
            if now - asked >= self.ASK_S and not self.gone:
                asked = now
                if coordinator.ended([0], self.process, self.processes):
                    self.has_gone(0)
        return None

    def has_gone(self, number):
        with self.lock:
            self.gone.append(number)
            self.tell()
        self.news.set()

    def run(self):
        try:
            self.socket = self.connect()
            for line in self.socket.makefile("rb") if self.socket else ():
                word, _, rest = line.decode(errors="replace").strip().partition(" ")
                if word == "here":
                    self.said.set()
                elif word == "taken":
                    self.refused = _taken(self.address, rest)
                    break
                elif word == "missing":
                    print(f"rondo: jax.distributed.initialize waits for process{'es' if ' ' in rest else ''} {rest.replace(' ', ', ')}", file=sys.stderr)
                elif word == "gone":
                    self.has_gone(int(rest))
                else:
                    break                  # it is somebody else's service
        except Exception:  # noqa: BLE001  (it says what it can)
            pass
        self.said.set()

    def tell(self):
        """Say it in the job's store, where src/sym/here.c looks."""
        while self.client is not None and self.gone:
            n = self.gone.pop()
            try:
                self.client.key_value_set_bytes(f"{_PACKAGE}:0/gone/{n}", b"gone")
            except Exception:  # noqa: BLE001  (another process has said it)
                pass

    def connected(self, client):
        with self.lock:
            self.client = client
            self.tell()

    def whose(self):
        with self.lock:
            return self.gone[0] if self.gone else None

    def close(self):
        import socket
        self.closed = True
        with self.lock:
            self.client = None
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except (AttributeError, OSError):
            pass


class _Client:
    """jaxlib's client, until it is connected: it waits for all processes, and does not hear that one of them has ended.

    make(seconds): jaxlib's, which waits so long."""

    PATIENCE_S = 3                         # for one that has ended when all had come: those that are slower have only to be told

    def __init__(self, make, presence, state):
        self.make, self.presence, self.state = make, presence, state

    def connect(self):
        import threading
        import time
        presence, client, ended, end = self.presence, [], [], None
        limit = time.monotonic() + presence.limit

        def run():
            try:
                presence.said.wait(presence.limit)      # before that jaxlib must not know of this process
                if presence.closed or presence.refused:
                    raise RuntimeError(presence.refused)
                client.append(self.make(max(int(limit - time.monotonic()), 1)))
                ended.append(client[0].connect())
            except BaseException as e:  # noqa: BLE001  (it is raised where it was asked for)
                ended.append(e)
            presence.news.set()

        threading.Thread(target=run, daemon=True).start()
        while not ended:
            presence.news.wait(max(end - time.monotonic(), 0) if end else None)
            presence.news.clear()
            who = presence.whose()
            if end is None and who is not None:
                end = time.monotonic() + self.PATIENCE_S
            if not ended and end is not None and time.monotonic() >= end:
                raise RuntimeError(f"process {who} has ended before jax.distributed.initialize was done")
        if isinstance(ended[0], BaseException):
            raise ended[0]
        self.state.client = client[0]


class _Jaxlib:
    """jaxlib's module, but for two functions; state: where JAX keeps the client."""

    def __init__(self, module, state):
        self.module, self.state, self.presence = module, state, None

    def __getattr__(self, name):
        return getattr(self.module, name)

    def get_distributed_runtime_service(self, address, num_nodes, **options):
        try:
            return service(address, num_nodes, **options) or self.module.get_distributed_runtime_service(address, num_nodes, **options)
        except RuntimeError as e:
            if why := _whose(self.state.coordinator_address, num_nodes):
                raise RuntimeError(why) from e
            raise

    def get_distributed_runtime_client(self, address, node_id, init_timeout=300, **options):
        """A process that dies from here on is missed (what it says of itself by here() comes later)."""
        def make(seconds):
            return self.module.get_distributed_runtime_client(address, node_id, init_timeout=seconds, **options)

        self.presence = _Presence(address, node_id, self.state.num_processes, init_timeout)
        return _Client(make, self.presence, self.state)


def here(client, process):
    """Say in the job's store who this is, as src/sym/here.c does: the others need not wait for one that ends before it has devices."""
    try:
        with open("/proc/self/stat") as stat, open("/proc/sys/kernel/random/boot_id") as boot:
            start = stat.read().rpartition(")")[2].split()[19]
            text = f"{os.getpid()} {start} {boot.read().strip()} {os.readlink('/proc/self/ns/pid')}"
        client.key_value_set_bytes(f"{_PACKAGE}:0/here/{process}", text.encode())
    except Exception:  # noqa: BLE001  (it says what it can)
        pass


def distributed(module):
    import functools
    from jax._src import config as flags
    original, end = module.State.initialize, module.State.shutdown

    @functools.wraps(original)
    def initialize(self, *args, **kwargs):
        if not chosen(flags.config):
            return original(self, *args, **kwargs)
        if hasattr(flags.config, "jax_enable_recoverability"):
            flags.config.update("jax_enable_recoverability", True)
        jaxlib, presence = module._jax, None
        module._jax = _Jaxlib(jaxlib, self)
        try:
            original(self, *args, **kwargs)
        except BaseException:
            if isinstance(self.client, _Client):        # which JAX would shut down
                self.client = None
            if module._jax.presence:
                module._jax.presence.closed = True      # it need not connect any more; where it has, its end is this process'
            raise
        finally:
            presence, module._jax = module._jax.presence, jaxlib
        here(self.client, self.process_id)
        if presence:
            presence.connected(self.client)
            self.rondo_presence = presence

    @functools.wraps(end)
    def shutdown(self, *args, **kwargs):
        presence = self.__dict__.pop("rondo_presence", None)
        if presence:
            presence.close()
        return end(self, *args, **kwargs)

    module.State.initialize, module.State.shutdown = initialize, shutdown


# --- RONDO_AS_CPU -----------------------------------------------------------------


def told(name):
    """The platform's name for who has called the caller: code outside JAX is told cpu."""
    try:
        who = str(sys._getframe(2).f_globals.get("__name__")).partition(".")[0]
    except ValueError:           # called by no Python
        who = ""
    return name if name != _PACKAGE or who in ("jax", "jaxlib", _PACKAGE) else "cpu"


def backends(module):
    """jax.default_backend, before anybody has taken it."""
    default = module.default_backend
    if os.environ.get("RONDO_AS_CPU") != "1" or not chosen(module.config.config):
        return

    def default_backend():
        return told(default())

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(default_backend, name, getattr(default, name))
    module.default_backend = default_backend


def install():
    after = {"jax._src.clusters": cluster, "jax._src.distributed": distributed, "jax._src.xla_bridge": backends}
    for name in [n for n in after if n in sys.modules]:
        _apply(after.pop(name), sys.modules[name])
    if after:
        sys.meta_path.insert(0, _Waiter(after))


if not any(isinstance(f, _Waiter) for f in sys.meta_path):
    install()
