"""jaxlib's coordination service as a process of its own: it outlives process 0, and leaves when its input is
closed (process 0 has gone or has shut down) and no client is connected any more.

A client that does not answer a PING of HTTP/2 (RFC 9113, 6.7) for a minute is cut off by gRPC, and jaxlib then ends its
process: one that was stopped could not go on.  So the frames go through this process, which answers the service's PINGs
itself; whether a client still lives it learns from heartbeats, as before.

A process that may die before it has said anything to the service has a connection of its own here (early.py), on which it says its
number, of how many, of which job, and who it is, and then nothing more.  It is answered "here", or "taken <why>" if the number is that of
another one that lives, or the job is another: the service would take it for the same one, restarted, and end the one that it has.  When
a process ends, or `rondo launch` has seen one end that has not come, all others are told, "gone <number>", one a line.  If some have not
come for long, the first that has is told which: "missing <number> ..".

    python coordinator.py <address> <processes> [listener=<descriptor>] [option=value ..]

Process 0 listens at the address already, where it hands on the descriptor.  The first line that is printed is "ready", or what went wrong.
"""
import errno
import hashlib
import os
import resource
import signal
import socket
import sys
import threading
import time

PREFACE, HEADER = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 9       # what a client begins with; bytes before a frame's payload
HERE = b"RONDO HERE "                         # what a process begins with that says its number, in as many bytes
SETTINGS, PING, ACK = 4, 6, 1                 # types, and a flag
PATIENCE_S, MOST = 20, 16                     # who has not come by then is named, so many at most
ASK_S = 0.5                                   # between two questions to the launcher
LEAVE_S = 1                                   # for one that is ending, before another one with its number is refused
STAY_S = 20                                   # if process 0 has ended before it was here: to tell those who come
GREET_S = 5                                   # who does not begin like a client by then is cut off, or would keep this process from leaving


def connected(port):
    """Clients that are connected: rows of the kernel's table of sockets with this local port, established (01)."""
    n = 0
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            with open(table) as f:
                rows = f.read().splitlines()[1:]
        except OSError:
            continue
        n += sum(r[3] == "01" and int(r[1].rsplit(":", 1)[1], 16) == port for r in map(str.split, rows))
    return n


def listen(address):
    host, port = address.rsplit(":", 1)
    host = host.strip("[]")
    try:
        if host == "::" and socket.has_dualstack_ipv6():
            return socket.create_server(("::", int(port)), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
        if host == "::":
            host = "0.0.0.0"
        family = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, int(port)), family=family, backlog=4096)
    except OSError as e:
        why = "is taken: another job has it" if e.errno == errno.EADDRINUSE else f"cannot be had: {e}"
        raise RuntimeError(f"the coordinator's address {address} {why}") from e


def frames(source):
    """Frames of HTTP/2, whole: (type, flags, bytes)."""
    while len(head := source.read(HEADER)) == HEADER:
        n = int.from_bytes(head[:3], "big")
        body = source.read(n)
        if len(body) < n:
            return
        yield head[3], head[4], head + body


def who(pid):
    return f"pid {pid} on host {socket.gethostname()}"


def job():
    """What tells a job from others where the launcher has given it a token, which is not shown to whoever has the address."""
    token = os.environ.get("RONDO_TOKEN", "")
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()[:16] if token else "-"


def hello(process, processes):
    """What a process begins with on the connection of its own."""
    return HERE + b"%012d\n" % process + f"{processes} {job()} {who(os.getpid())}\n".encode(errors="replace")


def ended(numbers, process, processes):
    """Those of the processes that `rondo launch` has seen end (the store of src/sym/boot.c); asked by one of as many."""
    where, token = os.environ.get("RONDO_RENDEZVOUS", ""), os.environ.get("RONDO_TOKEN", "")
    if not where.startswith("tcp://") or not token or (os.environ.get("RONDO_PROCESS"), os.environ.get("RONDO_PROCESSES")) != (str(process), str(processes)):
        return []
    try:
        host, port = where.removeprefix("tcp://").rstrip("/").rsplit(":", 1)
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as s:
            s.sendall("".join([f"rondo {token}\n", *(f"get gone/{n} 0\n" for n in numbers)]).encode())
            answers = s.makefile("rb")
            return [n for n in numbers if answers.readline().startswith(b"value")]
    except (OSError, ValueError):
        return []


# Connections of processes and who they are, by number; numbers of those who have had one, and of those whose has ended.
lock, present, came, gone = threading.Condition(), {}, set(), []
zero = None                                   # who is process 0: who started this one


def tell(client, number):
    try:
        client.sendall(b"gone %d\n" % number)
    except OSError:
        pass                              # it is next


def has_gone(number):
    gone.append(number)
    for other, _ in present.values():
        tell(other, number)


def remind(processes):
    time.sleep(PATIENCE_S)
    with lock:
        missing = [n for n in range(processes) if n not in came]
        if present and missing:
            next(iter(present.values()))[0].sendall(b"missing %s\n" % b" ".join(b"%d" % n for n in missing[:MOST]))


def ask(processes):
    """The launcher, about those who have not come."""
    while missing := [n for n in range(processes) if n not in came]:
        for n in ended(missing, 0, processes):
            with lock:
                if n not in came:
                    came.add(n)
                    has_gone(n)
        time.sleep(ASK_S)


def refusal(number, processes, its, whose):
    """Why a process cannot be the one that it says it is, or None.  Under the lock."""
    if zero and (processes, its) != (zero[0], job()):
        return f"another job has it, of {zero[0]} process{'' if zero[0] == 1 else 'es'}, whose process 0 is {zero[1]}"
    other = present[number][1] if number in present else zero[1] if zero and not number and zero[1] != whose else None
    return other and f"process {number} is there already, {other}: another job has it, or two processes have one number"


def watch(client, number, processes, its, whose):
    """A process is there until its connection ends: at once when it does, or 20 s after its host is off the network."""
    client.settimeout(None)
    for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        client.setsockopt(socket.IPPROTO_TCP, option, value)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with lock:
        lock.wait_for(lambda: number not in present, LEAVE_S)
        why = refusal(number, processes, its, whose)
        client.sendall(f"taken {why}\n".encode() if why else b"here\n")
        if why:
            return
        present[number] = client, whose
        came.add(number)
        for n in gone:
            tell(client, n)
    try:
        while client.recv(64):
            pass
    except OSError:
        pass
    with lock:
        del present[number]
        lock.notify_all()
        has_gone(number)


def greet(client, path):
    """Serve who has connected, as what it begins with says."""
    try:
        client.settimeout(GREET_S)
        begin = b""
        while len(begin) < len(PREFACE) and (more := client.recv(len(PREFACE) - len(begin))):
            begin += more
        if begin.startswith(HERE):
            processes, its, whose = client.makefile("rb").readline(1024).decode(errors="replace").rstrip("\n").split(" ", 2)
            watch(client, int(begin[len(HERE):]), int(processes), its, whose)
        elif begin == PREFACE:
            relay(client, path)
    except (OSError, ValueError):
        pass
    client.close()


def relay(client, path):
    """Between a client and the service, until one of them closes."""
    service = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    service.connect(path)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    whole = threading.Lock()              # one frame to the service at a time,
    whole.acquire()                       # after what a client begins with

    def send(data):
        with whole:
            service.sendall(data)

    def up():
        source = client.makefile("rb", 1 << 16)
        try:
            rest = frames(source)
            kind, _, frame = next(rest, (None, 0, b""))
            if kind != SETTINGS:
                return
            client.settimeout(None)
            service.sendall(PREFACE + frame)
        finally:
            whole.release()
        for _, _, frame in rest:
            send(frame)

    def down():
        for kind, flags, frame in frames(service.makefile("rb", 1 << 16)):
            if kind == PING and not flags & ACK:
                send(frame[:4] + bytes([ACK]) + frame[5:])
            else:
                client.sendall(frame)

    def run(way):
        try:
            way()
        except OSError:
            pass                          # one of them has gone
        for s in (client, service):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    other = threading.Thread(target=run, args=(up,), daemon=True)
    other.start()
    run(down)
    other.join()
    service.close()


def accept(listener, path):
    while True:
        try:
            client = listener.accept()[0]
        except OSError:
            time.sleep(0.1)               # no descriptor is left
            continue
        threading.Thread(target=greet, args=(client, path), daemon=True).start()


def main():
    global zero
    for s in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):     # meant for the group: process 0 says when it is over
        signal.signal(s, signal.SIG_IGN)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]         # each process of the job takes some descriptors here
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    address, processes, *words = sys.argv[1:]
    options = dict(w.split("=", 1) for w in words)
    options = {k: v == "True" if v in ("True", "False") else int(v) for k, v in options.items()}
    inherited = options.pop("listener", None)
    zero = int(processes), who(os.getppid())
    path = f"rondo-coordinator-{os.getpid()}"                     # of an abstract socket: nothing is left of it
    try:
        listener = listen(address) if inherited is None else socket.socket(fileno=inherited)
        from jaxlib import _jax
        service = _jax.get_distributed_runtime_service(f"unix-abstract:{path}", int(processes), **options)
        threading.Thread(target=accept, args=(listener, "\0" + path), daemon=True).start()
        for other in (remind, ask):
            threading.Thread(target=other, args=(int(processes),), daemon=True).start()
    except Exception as e:  # noqa: BLE001  (process 0 raises it)
        print(" ".join(str(e).split()), flush=True)
        return
    try:
        print("ready", flush=True)
    except BrokenPipeError:
        pass                              # process 0 has ended
    os.close(1)
    while os.read(0, 4096):
        pass
    with lock:
        early = 0 not in came
        if early:
            has_gone(0)
    port, quiet, stay = int(address.rsplit(":", 1)[1]), 0, time.monotonic() + (STAY_S if early else 0)
    while quiet < 3 or time.monotonic() < stay:
        time.sleep(0.1)
        quiet = 0 if connected(port) else quiet + 1
    del service
    os._exit(0)


if __name__ == "__main__":
    main()
