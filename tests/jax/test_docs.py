"""Every code block of README.md and docs/*.md is run, as a reader would: commands in a folder that has what they name, Python, texts by what reads
them.  (Blocks between <!-- tests/.. --> and <!-- / --> are what golden tests print: tests/docs.sh.)"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.only_rondo("what Rondo's pages say")

# What the blocks of each page are, in their order.  Formulas, grammars, sums of bytes, and parts of a program that are none by themselves are not run.
WHAT = {
    "README.md": "commands commands commands",
    "docs/attention.md": "formula formula formula formula formula",
    "docs/devices.md": "commands",
    "docs/explain.md": "commands commands",
    "docs/ir.md": "module grammar axes",
    "docs/long-context.md": "python formula commands commands",
    "docs/plan.md": "commands table",
    "docs/processes.md": "commands message",
    "docs/profile.md": "commands python",
    "docs/prog.md": "prog part part",
}

# Commands that take minutes are given what makes them short; None: not here, and why.
SHORT = {
    "scripts/demo": "--steps 2 --layers 1 --length 512 --batch 1 --out {here}/demo_out",
    "scripts/test": None,                                       # it runs this
    ".venv/bin/python bench/modules.py": "scans",
    ".venv/bin/python bench/busy.py": "--devices 2 --beside 0 --rounds 2",
    ".venv/bin/python bench/mpi.py": "--max 64 --ops permute --rounds 1 --before {root}",         # what MPI needs to be compiled with need not be here
    ".venv/bin/python bench/roads.py": "--lengths 256 --what forward --rounds 1",
    ".venv/bin/python bench/choice.py": "--rounds 1 --only '1x2 forward causal bfloat16 1024 2 1 64'",
    ".venv/bin/python bench/reshard.py": "--pairs 1 --mb 1 --turns 1",
    ".venv/bin/python bench/long.py": "--lengths 256 --devices 1 --calls 1 --rounds 1 --svg {here}/long.svg",
    "build/rondo bench kern": "--only transpose --seconds 0",
    "build/rondo bench coll": "--max 64 --rounds 1",
}

TRAIN = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
if {"RONDO_PROCESSES", "OMPI_COMM_WORLD_SIZE"} & set(os.environ):
    jax.distributed.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
def loss(w, x):
    return jnp.square(jnp.tanh(x @ w) @ w.T - x).mean()
@jax.jit
def step(w, x):
    return w - jax.grad(loss)(w, x)
w = jax.make_array_from_callback((32, 32), whole, lambda i: np.eye(32, dtype=np.float32)[i])
x = jax.make_array_from_callback((64, 32), rows, lambda i: np.ones((64, 32), np.float32)[i])
for _ in range(3):
    w = step(w, x)
assert np.isfinite(np.asarray(w)).all() and jax.devices()[0].platform == "rondo"
print("trained on", jax.device_count(), *sys.argv[1:])
"""
FILE = """module @jit_f partitions=4 replicas=1
mesh @mesh = ["d"=4]

fn @main(%1: f32[8,16] sharding=@[{"d"},{}]) -> (f32[16,8]) {
  %2 = tanh %1 : f32[8,16]
  %3 = transpose %2 perm=[1,0] : f32[16,8]
  return %3
}
"""


def blocks(page):
    """The indented blocks of a page, each one's lines; what a golden test writes is none."""
    text = re.sub(r"<!-- (?:tests/\S+(?: \S+)?|bench) -->.*?<!-- /\w* -->", "", (ROOT / page).read_text(), flags=re.S)
    found, block = [], None
    for line in text.splitlines() + ["end"]:
        if line.startswith("    ") or (not line and block):
            block = (block or []) + [line[4:]]
        elif block:
            while not block[-1]:
                block.pop()
            found.append(block)
            block = None
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder as a reader's beside a checkout: programs, Python and what starts programs on other hosts are stand-ins."""
    here = tmp_path_factory.mktemp("reader")
    for name in "bench", "build", "examples":
        (here / name).symlink_to(ROOT / name)
    for name in "train.py", "train_sharded.py":
        (here / name).write_text(TRAIN)
    (here / "FILE").write_text(FILE)
    np.savez(here / "x.npz", in0=np.ones((8, 16), np.float32))
    table = subprocess.run([ROOT / "build/rondo", "info", "--table"], env=os.environ | {"RONDO_TABLE": "default"}, capture_output=True, text=True, check=True).stdout
    (here / "file").write_text(table)
    (here / "why").mkdir()
    bin_ = here / ".venv/bin"
    bin_.mkdir(parents=True)
    mpirun = shutil.which("mpirun.openmpi") or "mpirun"
    for name, text in {"python": f'exec {sys.executable} "$@"', "rondo": f'exec {ROOT}/build/rondo "$@"', "activate": "", "srun": 'exec "$@"', "ssh": 'exec sh -c "$2"', "mpirun": f'exec {mpirun} "$@"'}.items():
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_ / name).chmod(0o755)
    return here


def commands(block, here):
    """Each line, as it stands but for what makes it short."""
    for line in block:
        line = re.sub(r"\s+#.*", "", " " + line).strip()
        line = line.replace("--hosts a:4,b:4", "--hosts localhost:4,127.0.0.1:4")           # there are no others
        command = re.sub(r"^([A-Z_]+=\S+ )+", "", line)           # behind its settings
        short = next((how for what, how in SHORT.items() if f"{command} ".startswith(f"{what} ")), "")
        script = command.startswith("scripts/")
        if not line or short is None or (script and not (ROOT / ".venv/.plugin").exists()):
            continue                                            # scripts would make a .venv first
        env = {k: v for k, v in os.environ.items() if not k.startswith(("RONDO_", "XLA_", "JAX_")) or k == "RONDO_LIBRARY"}
        env |= {"PATH": f"{here}/.venv/bin:{os.environ['PATH']}", "RONDO_PYTHON": sys.executable, "RONDO_CACHE": str(here / "cache"), "JAX_PLATFORMS": "rondo,cpu",
                "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        r = subprocess.run(["bash", "-c", f"{line} {short.format(here=here, root=ROOT)}"], cwd=ROOT if script else here, env=env, capture_output=True, text=True, timeout=600)
        # bench machine stores nothing, and says so, where the machine is not quiet
        assert r.returncode == 0 or (line.endswith("bench machine") and "not quiet" in r.stderr), f"{line}\n{r.stdout}\n{r.stderr}"


def python(block, here):
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    names = {"jax": jax, "Mesh": Mesh, "NamedSharding": NamedSharding, "P": P, "tokens": np.zeros((2, 64), np.int32), "step": jax.jit(lambda state, batch: state + batch), "state": 1., "batch": 2.}
    exec("\n".join(block).replace("/tmp/", f"{here}/"), names)
    assert len(names["tokens"].sharding.device_set) == jax.device_count() if "mesh" in names else float(names["state"]) == 21 and list(here.glob("trace/plugins/profile/*/*.xplane.pb"))


def tool(here, text, *args):
    (here / "text").write_text(text)
    r = subprocess.run([ROOT / "build/rondo", *args, "text"], cwd=here, capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stderr
    return r.stdout


def module(block, here):
    """It is printed as it stands."""
    assert tool(here, "\n".join(block), "opt").strip() == "\n".join(block)


def prog(block, here):
    assert tool(here, "\n".join(block), "prog").strip() == "\n".join(block)


def axes(block, here):
    a, b, c = re.findall(r"f32\[[\d,]+\]", block[0])
    assert block[0] in tool(here, f"module @m\n\nfn @main(%1: {a}, %2: {b}) -> ({c}) {{\n  %3 = dot %1, %2 lc=[1] rc=[0] components=1 : {c}\n  return %3\n}}\n", "opt", "--axes")


def table(block, here):
    """Its lines are those that there are, with other numbers."""
    there = (here / "file").read_text().splitlines() + ["members pair 2", "time pair all_reduce slot"]
    for line in block:
        words = re.match(r"[a-z_ ]*", line.split(" 8 64")[0])[0].split()[:4]
        assert any(t.split()[:len(words)] == words for t in there) or words[0] == "machine", line


def message(block, here):
    """Its first words are in a source."""
    words = re.match(r"[^\d]*", block[0])[0].strip()
    assert any(words in f.read_text() for f in (ROOT / "src").glob("*/*.c")), words


def test_all_pages_are_here():
    assert {p: len(blocks(p)) for p in ["README.md", *(f"docs/{f.name}" for f in sorted((ROOT / "docs").glob("*.md")))] if blocks(p)} == {p: len(w.split()) for p, w in WHAT.items()}


@pytest.mark.parametrize("page, i, what", [(page, i, what) for page, all_ in WHAT.items() for i, what in enumerate(all_.split()) if what not in ("formula", "grammar", "part")])
def test_block(page, i, what, here):
    globals()[what](blocks(page)[i], here)


def test_a_block_that_is_wrong(here):
    for what, block in ("commands", ["rondo explian train.py     # a typo"]), ("commands", ["build/rondo opt FILE -p fuses"]), ("python", ["mesh = Mesh(jax.device(), 's')"]), ("module", [*FILE.replace("tanh", "tan h").splitlines()]):
        with pytest.raises((AssertionError, AttributeError)):
            globals()[what](block, here)


def test_links_lead_somewhere():
    for page in ["README.md", "ARCHITECTURE.md", "HACKING.md", *(f"docs/{f.name}" for f in (ROOT / "docs").glob("*.md"))]:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text()):
            assert (ROOT / page).parent.joinpath(link).exists(), (page, link)
