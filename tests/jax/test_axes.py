"""The table of axes (src/ir/axes.c) against the rules that stock JAX prints for the same operations."""
import json
import re
import subprocess

NAMES = {"broadcast_in_dim": "broadcast", "dot_general": "dot", "bitcast_convert": "bitcast"}
OTHER = {"constant", "iota", "reduce_window", "optimization_barrier"}    # without a rule there, or another operation here


def canonical(rule):
    """Factors in order of where they stand, so that numbering does not matter; one of size 1 that stands alone says nothing."""
    name = re.compile(r"z_\d+|[i-z]")
    maps, _, rest = rule.partition("{")
    sizes, _, kinds = rest.partition("}")
    size = {k: int(v) for k, v in (x.strip().split("=") for x in sizes.split(","))}
    alone = {f for f in size if size[f] == 1 and name.findall(maps).count(f) == 1}
    order = {}
    maps = name.sub(lambda m: "" if m.group() in alone else "<%d>" % order.setdefault(m.group(), len(order)), maps.strip())
    size = {order[f]: n for f, n in size.items() if f in order}
    kind = {k: sorted(order[f] for f in name.findall(v) if f in order) for k, v in re.findall(r"(\w+)=\{(.*?)\}", kinds)}
    return maps, size, {k: v for k, v in kind.items() if v}


def test_axes(stock, rondo):
    wrong, seen = [], set()
    for file in sorted(stock("stock_axes.py").glob("*.rules")):
        done = subprocess.run([rondo, "opt", "--axes", file.with_suffix(".mlirbc")], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, (file.name, done.stderr)
        ours = []
        for line in done.stdout.splitlines():
            m = re.match(r"(\w+) \(.*?\) -> \(.*?\) (\(.*\)->\(.*\) \{.*)$", line)
            if m:
                ours.append((m.group(1), canonical(m.group(2))))
        for op, rule in json.loads(file.read_text()):
            name, want = NAMES.get(op, op), canonical(rule)
            same = [r for n, r in ours if n == name or n.startswith(name + "_")]
            if name in OTHER and not same:
                continue
            seen.add(name)
            if want not in same:
                wrong.append(f"{file.stem}: {name} {rule}\n    here {same}")
    assert not wrong, "\n".join(wrong)
    missing = set("broadcast reshape transpose reverse slice dynamic_slice dynamic_update_slice concatenate pad gather scatter reduce reduce_window "
                  "select_and_scatter sort dot convolution cholesky triangular_solve fft rng_bit_generator bitcast select".split()) - seen
    assert not missing, missing
