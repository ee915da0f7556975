"""jaxlib's coordination service as a process of its own: it outlives process 0, and leaves when its input is
closed (process 0 has gone or has shut down) and no client is connected any more.

    python coordinator.py <address> <processes> [option=value ..]

The first line it prints is "ready", or what went wrong.
"""
import os
import signal
import sys
import time


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


def main():
    for s in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):     # meant for the group: process 0 says when it is over
        signal.signal(s, signal.SIG_IGN)
    address, processes, *words = sys.argv[1:]
    options = dict(w.split("=", 1) for w in words)
    options = {k: v == "True" if v in ("True", "False") else int(v) for k, v in options.items()}
    try:
        from jaxlib import _jax
        service = _jax.get_distributed_runtime_service(address, int(processes), **options)
    except Exception as e:  # noqa: BLE001  (process 0 raises it)
        print(" ".join(str(e).split()), flush=True)
        return
    print("ready", flush=True)
    os.close(1)
    while os.read(0, 4096):
        pass
    port, quiet = int(address.rsplit(":", 1)[1]), 0
    while quiet < 3:
        time.sleep(0.1)
        quiet = 0 if connected(port) else quiet + 1
    del service
    os._exit(0)


main()
