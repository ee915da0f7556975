#!/usr/bin/env python3
"""Rondo between two hosts, on each of its roads, beside Open MPI over TCP: network namespaces with a cable (veth) between them.

    bench/net.py                     1 KB to 16 MB
    bench/net.py --only tcp,openmpi  not over UCX
    bench/net.py --rounds 15 --max 65536
    bench/net.py --before FOLDER     beside Rondo as it is built in another clone, instead of Open MPI
    bench/net.py --markdown          the table as Markdown

Needs root, and Debian's openmpi-bin and libopenmpi-dev.  Each side runs on a core of its own.  Jobs take turns; a figure is
the median over rounds; the ratio is Open MPI's time over that of Rondo over TCP: above 1 Rondo is faster.  put_signal is one way; Open MPI's
is that of a message.  With --before the ratio is that of each road before to now, with the least and the most that it was in a round: what
lies within is noise.
"""

import argparse
import itertools
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from mpi import before_of, beside

HERE = pathlib.Path(__file__).resolve().parent
ADDRESS = [f"10.79.0.{i + 1}" for i in range(16)]


def ip(*words, check=True):
    subprocess.run(["ip", *words], check=check, capture_output=not check)


class Hosts:
    """Namespaces, two of them joined by a cable, more by one each to a switch in another; gone when the block ends."""

    def __init__(self, n=2):
        self.name = [f"rondo-net{i}-{os.getpid()}" for i in range(n)]
        self.all = [*self.name, *[f"rondo-switch-{os.getpid()}"] * (n > 2)]

    def __enter__(self):
        try:
            for name in self.all:
                ip("netns", "add", name)
            if len(self.name) > 2:
                switch = self.all[-1]
                ip("-n", switch, "link", "add", "name", "switch", "type", "bridge")
                ip("-n", switch, "link", "set", "switch", "up")
                for i, name in enumerate(self.name):
                    ip("-n", name, "link", "add", "wire", "type", "veth", "peer", "name", f"to{i}", "netns", switch)
                    ip("-n", switch, "link", "set", f"to{i}", "master", "switch", "up")
            else:
                ip("-n", self.name[0], "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", self.name[1])
            for name, address in zip(self.name, ADDRESS):
                ip("-n", name, "addr", "add", address + "/24", "dev", "wire")
                ip("-n", name, "link", "set", "lo", "up")
                ip("-n", name, "link", "set", "wire", "up")
            for name in self.name * 50:
                if "LOWER_UP" not in subprocess.run(["ip", "-n", name, "-o", "link", "show", "wire"], capture_output=True, text=True).stdout:
                    time.sleep(0.1)
        except BaseException:
            self.__exit__()
            raise
        return self

    def limit(self, rate):
        """What each host sends, and what it gets, as tc says it: 10gbit."""
        for name, device in [(n, "wire") for n in self.name] + [(self.all[-1], f"to{i}") for i in range(len(self.name)) if len(self.name) > 2]:
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "256kbit", "latency", "50ms"], check=True)

    def __exit__(self, *_):
        for name in self.all:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
            ip("netns", "del", name, check=False)


def rondo(hosts, command, env, port):
    """Process 0's output."""
    jobs = []
    for i in (1, 0):
        e = dict(env, RONDO_PROCESS=str(i), RONDO_PROCESSES="2", RONDO_RENDEZVOUS=f"tcp://{ADDRESS[0]}:{port}", RONDO_TOKEN="bench")
        jobs.append(subprocess.Popen(["ip", "netns", "exec", hosts.name[i], *command], env=e, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    (_, err1), (out, err0) = (j.communicate(timeout=120) for j in jobs)
    if any(j.returncode for j in jobs):
        sys.exit(f"rondo failed: {(err0 + err1).strip()[-600:]}")
    return out


def openmpi(hosts, program, env, agent):
    command = ["ip", "netns", "exec", hosts.name[0], "mpirun.openmpi", "--host", ",".join(ADDRESS[:2]), "--mca", "plm_rsh_agent", agent, "--mca", "pml", "ob1",
               "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "wire", "--mca", "oob_tcp_if_include", "wire", "--bind-to", "none", "-np", "2", *program]
    r = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    if r.returncode:
        sys.exit(f"openmpi failed: {r.stderr.strip()[-600:]}")
    return r.stdout


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--min", type=int, default=1 << 10)
    p.add_argument("--max", type=int, default=16 << 20)
    p.add_argument("--ops", default="all_reduce,permute,barrier,put_signal")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--algorithm", default="auto", help="of Rondo")
    p.add_argument("--only", default="tcp,ucx,openmpi", help="of tcp and ucx (Rondo's roads) and openmpi")
    p.add_argument("--before", metavar="FOLDER", type=pathlib.Path, help="a clone whose build/ has another rondo, the peer instead of Open MPI")
    p.add_argument("--markdown", action="store_true")
    p.add_argument("--rondo", default=str(HERE.parent / "build" / "rondo"))
    a = p.parse_args()
    if os.geteuid():
        sys.exit("network namespaces need root")
    old = a.before and before_of(p, a.before)
    roads = [x for x in a.only.split(",") if not old or x != "openmpi"]
    jobs = [job for x in roads for job in [(x, x, a.rondo), (f"{x} before", x, old)][:2 if old else 1]]
    env = dict(os.environ, UCX_TLS="tcp", UCX_NET_DEVICES="wire", UCX_WARN_UNUSED_ENV_VARS="n", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    seen, port = {}, itertools.count(21000)
    with tempfile.TemporaryDirectory() as temp, Hosts() as hosts:
        program = [f"{temp}/mpi", str(a.min), str(a.max), "7", a.ops]
        command = ["bench", "coll", "--op", a.ops, "--algorithm", a.algorithm, "--min", str(a.min), "--max", str(a.max), "--rounds", "7"]
        agent = pathlib.Path(temp) / "agent"
        agent.write_text(f'#!/bin/sh\nshift\nexec ip netns exec {hosts.name[1]} unshare -u sh -c "hostname other; $*"\n')
        agent.chmod(0o755)
        if "openmpi" in roads:
            subprocess.run(["mpicc.openmpi", "-O2", "-o", program[0], str(HERE / "mpi.c")], check=True)
        for k in range(a.rounds):
            for name, road, tool in jobs[::(-1) ** k]:
                if sys.stderr.isatty():
                    print(f"\rround {k + 1} of {a.rounds}: {name:10}", end="", file=sys.stderr, flush=True)
                out = openmpi(hosts, program, env, str(agent)) if name == "openmpi" else rondo(hosts, [tool, *command], dict(env, RONDO_NET=road), next(port))
                for line in out.splitlines():
                    if line and not line.startswith("#") and not line.startswith("collective"):
                        op, size, algorithm, us, _ = line.split("\t")
                        label = name if algorithm in ("auto", "mpi") else name.replace(road, algorithm)
                        seen.setdefault((op, int(size)), {}).setdefault(label, []).append(float(us))
    if sys.stderr.isatty():
        print(file=sys.stderr)
    names = sorted({n for row in seen.values() for n in row}, key=lambda n: (n != "tcp", n == "openmpi", n))
    bar = " | " if a.markdown else "\t"
    head, pairs = [], [(x, f"{x} before") for x in names if f"{x} before" in names]
    for ours, old in pairs:
        head += [f"before/{ours}", "of rounds"]
    if {"tcp", "openmpi"} <= set(names):
        head += ["openmpi/tcp"]
    table = [["operation", "bytes", *(f"{x} us" for x in names), *head]]
    for (op, size), row in seen.items():
        ratios = [x for ours, old in pairs for x in (beside(row[old], row[ours]) if ours in row and old in row else ("", ""))]
        if "openmpi/tcp" in head:
            ratios.append(f"{statistics.median(row['openmpi']) / statistics.median(row['tcp']):.2f}")
        table.append([op, str(size), *(f"{statistics.median(row[x]):.1f}" if x in row else "" for x in names), *ratios])
    for i, cells in enumerate(table):
        print(("| " if a.markdown else "") + bar.join(cells) + (" |" if a.markdown else ""))
        if a.markdown and not i:
            print("|" + " --- |" * len(cells))


if __name__ == "__main__":
    main()
