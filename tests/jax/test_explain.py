"""`rondo explain`: a script is run and what it compiled is told, the costliest first; whatever JAX writes of a program is taken; one file to look at."""
import html.parser
import os
import pty
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.only_rondo("a command of Rondo")

SCRIPT = """
import os, sys, jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(jax.devices(), "d")
x = jax.device_put(np.ones((512, 256), np.float32), NamedSharding(mesh, P("d")))
def step(x):
    x = x @ x / 256 + jax.lax.psum(x, "d")          # line 7
    return jax.lax.while_loop(lambda x: x.sum() > 1e9, lambda x: x / 2, x) / 8
step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=P("d"), out_specs=P("d")))
other = jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x) + 1, jax.ShapeDtypeStruct((8,), np.float32), x))
for _ in range(6):
    x = jax.block_until_ready(step(x))
other(np.ones(8, np.float32)).block_until_ready()
print("the script's own", sys.argv[1:], flush=True)
os._exit(int(sys.argv[1]))
"""


def call(rondo, where, *args, **env):
    env = {k: v for k, v in os.environ.items() if not k.startswith("RONDO_") or k in ("RONDO_LIBRARY", "RONDO_CACHE")} | \
        {"RONDO_PYTHON": sys.executable, "COLUMNS": "80", "LINES": "24", "RONDO_DEVICES": "2"} | env
    r = subprocess.run([rondo, *map(str, args)], env=env, cwd=where, capture_output=True, text=True, timeout=600)
    return r.returncode, r.stdout, r.stderr


class Page(html.parser.HTMLParser):
    """Tables as lists of rows of texts, by class; headings; every attribute."""
    def __init__(self, text):
        super().__init__()
        self.tables, self.heads, self.attrs, self.cell, self.open, self.in_head, self.pre = {}, [], [], None, [], False, ""
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.attrs += [(tag, *a) for a in attrs]
        if tag not in ("meta", "rect", "line", "html"):
            self.open.append(tag)
        if tag == "table":
            self.table = self.tables.setdefault(dict(attrs)["class"], [])
        if tag == "tr":
            self.table.append([])
        if tag in ("td", "th"):
            self.table[-1].append("")
        if tag in ("h2", "h3"):
            self.heads.append("")

    def handle_endtag(self, tag):
        if tag not in ("html", "rect", "line"):
            assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h2", "h3"):
            self.heads[-1] += data
        if "td" in self.open or "th" in self.open:
            self.table[-1][-1] += data
        if self.open and self.open[-1] == "pre":
            self.pre += data


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The script has run once, and ended without leaving Python in order."""
    where = tmp_path_factory.mktemp("ran")
    (where / "train.py").write_text(SCRIPT)
    rondo = os.path.join(os.path.dirname(os.environ.get("RONDO_LIBRARY", os.path.join(os.path.dirname(__file__), "../../build/librondo.so"))), "rondo")
    (where / "rondo-explain").mkdir()
    for name in ("earlier.why", "mine.txt"):
        (where / "rondo-explain" / name).write_text("what was there")
    return rondo, where, call(rondo, where, "explain", "--html", "why.html", "train.py", "0", "--flag")


def test_script(ran):
    rondo, where, (code, out, err) = ran
    assert code == 0, err
    assert out.startswith("the script's own ['0', '--flag']\n\ntrain.py: ")
    screen = out.split("\n", 1)[1]
    assert len(screen.splitlines()) <= 23 and max(map(len, screen.splitlines())) <= 80, screen
    assert re.search(r"^ +[\d.]+ +[\d.]+ .s +6 +[\d.]+ .s  jit_step$", screen, re.M), screen          # the costliest is the first, and was launched so often
    assert re.search(r"^jit_step on 2 devices: 6 launches of [\d.]+ .s, [\d.]+ .s of it communication$", screen, re.M), screen
    assert re.search(r"^ +[\d.]+ +[\d.]+ .s +1 +\d+ %  train\.py:7 dot f32\[256,256\]", screen, re.M), screen
    assert re.search(r"^ +[\d.]+ +[\d.]+ .s +1 +train\.py:7 all_reduce 262\.1 KB", screen, re.M), screen
    assert "a loop turns until a condition holds: 100 turns are assumed\n" in screen
    assert re.search(r"^memory: [\d.]+ .B; arguments 262\.1 KB, results 262\.1 KB, temporary ", screen, re.M), screen
    there = {p.name for p in (where / "rondo-explain").iterdir()}
    assert {"jit_step.why", "mine.txt"} < there and "earlier.why" not in there
    assert {p.name for p in where.iterdir()} == {"train.py", "why.html", "rondo-explain"}


def test_what_is_told_leads_on(ran):
    """Each command that the screen names works, and numbers are the same."""
    rondo, where, (_, out, _) = ran
    again = call(rondo, where, "explain", "rondo-explain")[1]
    assert again.split("\n", 1)[1].split("\nrondo ")[0] == out.split("\n", 3)[3].split("\nrondo ")[0]
    one = re.search(r"^rondo (explain rondo-explain/jit_step\.why --full)  ", out, re.M)[1]
    code, full, err = call(rondo, where, *one.split())
    assert code == 0 and full.startswith("'jit_step' for 2 devices\n") and "\ncommunication: " in full and "\nkernels: " in full, err
    code, html_, err = call(rondo, where, *re.search(r"^rondo (explain rondo-explain --html why\.html)  ", again, re.M)[1].split())
    assert code == 0 and "why.html is written" in html_, err
    code, alone, err = call(rondo, where, "explain", "rondo-explain/jit_step.why", COLUMNS="120")
    assert code == 0 and alone.startswith("jit_step on 2 devices") and max(map(len, alone.splitlines())) <= 120, err
    code, prog, err = call(rondo, where, "prog", "rondo-explain/jit_step.why")
    assert code == 0 and prog.startswith("prog "), err


def test_page(ran):
    """The file to look at is whole, loads nothing, and has the numbers of the text."""
    rondo, where, (_, out, _) = ran
    text = (where / "why.html").read_text()
    page = Page(text)
    assert all(name not in ("src", "data", "action", "srcset") and (name != "href" or value.startswith("#")) for _, name, value in page.attrs)
    assert "url(" not in text and "@import" not in text and "http" not in text and "<script" not in text
    programs = [row[4] for row in page.tables["programs"][1:]]
    assert programs[0] == "jit_step" and len(programs) == int(re.search(r"^train\.py: (\d+) programs", out, re.M)[1])
    # What the screen says of a row, the page says, too.
    wide = call(rondo, where, "explain", "rondo-explain/jit_step.why", COLUMNS="200")[1]
    shown = re.findall(r"^ +([\d.]+) +([\d.]+ .s) +(\d+) +(\d+ %)?  (train\.py:\d+ .*?)(?:  .*)?$", wide, re.M)
    assert len(shown) >= 4
    for row, (percent, time, times, share, what) in zip(page.tables["ops"][1:], shown):
        assert row[:4] == [percent, time, times, share] and row[6].startswith(what), (row, what)
    assert sum(float(row[0]) for row in page.tables["ops each"][1:len(page.tables["ops each"])] if row[0] != "%") > 99
    program = re.search(r"^jit_step on 2 devices: .*, ([\d.]+ .s) of it communication$", out, re.M)
    assert page.heads[0] == program[0]
    assert page.heads[2].endswith(f"about {program[1]}") and page.heads[2].startswith("communication of a launch: ")
    assert "memory of a device: " + re.search(r"^memory: ([\d.]+ .B);", out, re.M)[1] + " at most" == page.heads[3]
    full = call(rondo, where, "explain", "rondo-explain/jit_step.why", "--full")[1]
    assert full.strip() in page.pre
    # The drawing: as high as the plan, and its peak where the words have it.
    drawn = text[text.index("<svg"):text.index("</svg>")]
    red, = re.findall(r'<rect class=peak .*? height=([\d.]+)><title>command (\d+): ([^<]+)<', drawn)
    most = re.search(r"temporaries alive at the peak: ([^,\n]+)", full)[1]
    assert red[2] == most and f"temporaries alive at the peak: {most}, at command {red[1]}<" in text
    temps = [float(h) for h in re.findall(r"<rect class=temp .*? height=([\d.]+)>", drawn)]
    assert float(red[0]) >= max(temps) and len(temps) + 1 == int(re.search(r"over the (\d+) commands", text)[1])
    held = dict.fromkeys(tuple(row) for row in page.tables["held"][1:])
    for size, what in re.findall(r"^    ([\d.]+ KB(?: x\d+)?) +(train\.py:\d+ \w+)$", full, re.M):
        assert (size, what) in held


NEEDS = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()).reshape(-1, 2), ("x", "y"))
def put(shape, *spec):
    return jax.device_put(np.ones(shape, np.float32), NamedSharding(mesh, P(*spec)))
f, args, donated = {}
jax.block_until_ready(jax.jit(f, donate_argnums=donated)(*args))
print("peak", max(d.memory_stats()["peak_bytes_in_use"] for d in jax.devices()))
"""


@pytest.mark.parametrize("program", [
    "jax.value_and_grad(lambda h, w: jax.nn.logsumexp(h @ w, -1).mean(), (0, 1)), [put((2048, 256), 'x'), put((256, 4096))], ()",
    "jax.shard_map(lambda x: jax.lax.psum(x, ('x', 'y')), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False), [put((1024, 1024))], ()",
    "lambda x, y: (x + 1, jnp.sort(y, 0)), [put((512, 1024), 'x'), put((1024, 128), None, 'y')], 0",
    "lambda x: jnp.abs(jnp.fft.fft(x)), [put((64, 4096), 'x')], ()",
    "lambda x: x + np.arange(1 << 18, dtype=np.float32) ** 2, [put((1 << 18,), 'x')], ()",
], ids=["products", "sum", "donated", "fft", "constant"])
def test_needs(program, rondo, tmp_path):
    """What a launch takes of a device is no more than what is said, and that is not much more."""
    (tmp_path / "x.py").write_text(NEEDS.format(program))
    r = subprocess.run([sys.executable, "x.py"], env=os.environ | {"RONDO_EXPLAIN": "./said", "RONDO_DEVICES": "8"}, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, r.stderr
    said = max(float(n) * {"B": 1, "KB": 1e3, "MB": 1e6}[unit] for n, unit in re.findall(r"^memory of a device: ([\d.]+) (\S+) at most$", (tmp_path / "said").read_text(), re.M))
    peak = int(re.search(r"^peak (\d+)$", r.stdout, re.M)[1])
    assert said * .9 < peak < said + .05 * 10 ** ((len(str(int(said))) - 1) // 3 * 3), (peak, said)      # said to a tenth of its unit


def test_colours(ran):
    rondo, where, _ = ran

    def on_terminal(**env):
        main, sub = pty.openpty()
        subprocess.run([rondo, "explain", "rondo-explain"], cwd=where, env=os.environ | {"TERM": "xterm"} | env, stdout=sub, timeout=60, check=True)
        os.close(sub)
        text = b""
        try:
            while part := os.read(main, 1 << 16):
                text += part
        except OSError:
            pass
        os.close(main)
        return text
    assert b"\x1b[31m" in on_terminal() and b"\x1b[" not in on_terminal(NO_COLOR="1") and b"\x1b[" not in on_terminal(TERM="dumb")
    assert b"\x1b[" not in call(rondo, where, "explain", "rondo-explain")[1].encode()


def test_several_processes(rondo, tmp_path):
    """A program that all processes of a job have compiled is told once."""
    (tmp_path / "train.py").write_text("import jax, numpy as np\njax.distributed.initialize()\n" + SCRIPT.replace("os._exit(int(sys.argv[1]))", "").replace("other(np", "0 and other(np")
                                       .replace("jax.device_put(np.ones((512, 256), np.float32), NamedSharding(mesh, P(\"d\")))",
                                                "jax.make_array_from_callback((512, 256), NamedSharding(mesh, P('d')), lambda i: np.ones((512, 256), np.float32)[i])"))
    code, out, err = call(rondo, tmp_path, "explain", rondo, "launch", "-n", "2", sys.executable, "train.py", RONDO_DEVICES="1")
    assert code == 0, err
    assert len(list((tmp_path / "rondo-explain").glob("jit_step*.why"))) == 2
    assert re.search(r"^jit_step on 2 devices: 6 launches of ", out, re.M) and "jit_step.2" not in out, out


def test_module(rondo, tmp_path):
    """As Python runs one: its arguments are its own."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text("import sys, jax; jax.numpy.ones(3) + 1; print('the own', sys.argv[1:])")
    code, out, err = call(rondo, tmp_path, "explain", "--html", "x.html", "-m", "pkg", "--help")
    assert code == 0 and out.startswith("the own ['--help']\n\npkg: ") and (tmp_path / "x.html").exists(), (out, err)
    code, out, err = call(rondo, tmp_path, "trace", "-m", "pkg", "-x")
    assert code == 0 and out.startswith("the own ['-x']\n\njit_"), (out, err)
    assert "needs the name of a module" in call(rondo, tmp_path, "explain", "-m")[2]


@pytest.mark.parametrize("script, code, words", [
    ("print('nothing')", 2, "the program has run nothing on Rondo"),
    ("raise SystemExit(3)", 3, ""),
    ("import jax; jax.numpy.ones(3) + 1; raise ValueError('mine')", 1, "ValueError: mine"),
])
def test_scripts_that(script, code, words, rondo, tmp_path):
    (tmp_path / "train.py").write_text(script)
    got, out, err = call(rondo, tmp_path, "explain", "--out", "there", "train.py")
    assert got == code and words in err, (out, err)
    assert ("jit_" in out) == ("ones" in script), out
    assert {p.name for p in tmp_path.iterdir()} == {"train.py"} | ({"there"} if "ones" in script else set())


def test_what_jax_writes(rondo, tmp_path):
    """Text with lines and without, exports, JAX_DUMP_IR_TO: explain, opt and run take them; what cannot be is named."""
    from jax import export
    f = jax.jit(lambda w, x: jnp.tanh(x @ w).sum(axis=0))
    args = jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((16, 64), jnp.float32)
    low = f.lower(*args)
    any_ = export.export(f)(args[0], jax.ShapeDtypeStruct(export.symbolic_shape("b, 64"), jnp.float32))
    (tmp_path / "dump.py").write_text("import jax, jax.numpy as jnp\njax.jit(lambda w, x: jnp.tanh(x @ w))(jnp.ones((64, 32)), jnp.ones((16, 64)))\n")
    env = os.environ | {"JAX_DUMP_IR_TO": str(tmp_path)}
    subprocess.run([sys.executable, "dump.py"], cwd=tmp_path, env=env, check=True, timeout=600)
    dumped, = (p.name for p in tmp_path.glob("*lambda*.mlir"))
    for name, text in (("plain.mlir", low.as_text()), ("debug.mlir", low.as_text(debug_info=True)), ("hlo.txt", low.as_text(dialect="hlo")), ("bad.mlir", low.as_text()[:-20])):
        (tmp_path / name).write_text(text)
    for name, data in (("f.export", export.export(f)(*args).serialize()), ("any.export", any_.serialize()), ("junk.bin", b"\0" * 64)):
        (tmp_path / name).write_bytes(data)
    for name, line in (("plain.mlir", r"plain\.mlir:\d+"), ("debug.mlir", r"test_explain\.py:\d+"), ("f.export", r"test_explain\.py:\d+"), (dumped, r"dump\.py:2")):
        code, out, err = call(rondo, tmp_path, "explain", name)
        assert code == 0 and re.search(rf"{line} dot f32\[16,32\]", out), (name, out, err)
    for command in (["opt", "f.export"], ["run", "--quiet", "plain.mlir"]):
        code, out, err = call(rondo, tmp_path, *command)
        assert code == 0 and ("dot" in out) == (command[0] == "opt"), (command, out, err)
    for name, words in (("hlo.txt", "lowered.as_text()"), ("any.export", "argument 1 of this export is float32[b,64]"), ("junk.bin", "neither StableHLO"), ("bad.mlir", "bad.mlir: ")):
        code, out, err = call(rondo, tmp_path, "explain", name)
        assert code == 2 and words in err and err.count("\n") == 1, (name, err)
    code, out, err = call(rondo, tmp_path, "explain", "plain.mlir", RONDO_PYTHON="/nowhere/python")
    assert code == 2 and "'/nowhere/python -m rondo.portable' cannot" in err


def test_export_for_several_platforms(rondo, tmp_path):
    """A program that asks which platform it is on is Rondo's, or cpu's; that is no argument."""
    f = jax.jit(lambda x: jax.lax.platform_dependent(x, rondo=lambda x: x * 2, cpu=lambda x: x * 3, default=lambda x: x * 5))
    np.savez(tmp_path / "in.npz", in0=np.arange(4, dtype=np.float32))
    for platforms, factor in ((["cpu", "rondo"], 2), (["tpu", "rondo", "cpu"], 2), (["tpu", "cpu"], 3), (["cuda", "tpu"], 0)):
        (tmp_path / "f.export").write_bytes(jax.export.export(f, platforms=platforms)(jax.ShapeDtypeStruct((4,), jnp.float32)).serialize())
        np.savez(tmp_path / "want.npz", out0=np.arange(4, dtype=np.float32) * factor)
        code, out, err = call(rondo, tmp_path, "run", "f.export", "--in", "in.npz", "--check", "want.npz")
        assert (code == 0) == (factor != 0), (platforms, out, err)
        assert factor or "this export is for cuda, tpu: export it for rondo, or for cpu" in err, err


def test_cannot(ran, tmp_path):
    rondo, where, _ = ran
    whole = (where / "rondo-explain" / "jit_step.why").read_bytes()
    for n in (8, 63, 64, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.why").write_bytes(whole[:n])
        code, out, err = call(rondo, tmp_path, "explain", "cut.why")
        assert code == 2 and "cut.why: " in err and not out, (n, err)
    changed = bytearray(whole)
    changed[24:32] = b"\xff" * 8
    (tmp_path / "cut.why").write_bytes(bytes(changed[:32] + b"\xff" * 32 + changed[64:]))
    assert call(rondo, tmp_path, "explain", "cut.why")[0] == 2
    for args, words in ((["--full", "rondo-explain"], "for one program"), (["--hosts", "2", "rondo-explain"], "'--hosts'"), (["--out", "x", "rondo-explain"], "'--out'"),
                        (["--tier", "ref", "rondo-explain/jit_step.why"], "'--tier'"), (["--html", "/nowhere/x.html", "rondo-explain"], "/nowhere/x.html"), (["--html", "/nowhere/x.html", "train.py"], "/nowhere/x.html"), (["--html", ".", "train.py"], "'.': it is a folder"), (["."], "has nothing in it that RONDO_EXPLAIN has written"),
                        (["--out", "train.py", "train.py"], "'train.py': it is no folder")):
        code, out, err = call(rondo, where, "explain", *args)
        assert code == 2 and words in err and not out, (args, err)


def test_lines_are_the_users():
    """An operation of an installed package is at the line that called it; one of packages alone at its own."""
    library = {"jnp": jnp}
    exec(compile("def half(x):\n    return jnp.sin(x) / 2\n\ndef apply(f, x):\n    return f(x)\n", "/opt/lib/site-packages/halves/core.py", "exec"), library)
    own = {"half": library["half"]}
    exec(compile("\n\ndef step(x):\n    return half(x) * 3\n", "/home/me/train.py", "exec"), own)
    text = jax.jit(own["step"]).lower(np.ones(4, np.float32)).compile().as_text()
    assert "train.py:4" in text and "core.py" not in text
