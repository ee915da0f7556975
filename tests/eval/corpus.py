"""Runs programs with stored results through the oracle.

    python corpus.py FOLDER [NAME ...]     FOLDER holds NAME.mlirbc and NAME.npz (in0.., out0.., f32_0..)

Build first (make).  A float result passes if its error, over the largest expected value, is at most TOLERANCE; where
the program computes in bf16 or f16 the f32 results are the reference, and an error up to twice that of the stored
ones passes.  Others must be equal.
"""

import pathlib
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np

TOLERANCE = 1e-4
ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = {
    "pred": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u16": np.uint16,
    "u32": np.uint32, "u64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64, "c64": np.complex64,
    "c128": np.complex128, "bf16": ml_dtypes.bfloat16, "f8e5m2": ml_dtypes.float8_e5m2, "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "i4": np.int8, "u4": np.uint8,
}


def error(got, want):
    if got.shape != want.shape:
        return np.inf
    got, want = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (got, want))
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return np.inf
    return np.abs(got[finite] - want[finite]).max(initial=0) / max(np.abs(want[finite]).max(initial=0), 1e-30)


def results(data):
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        kind, *dims = data[at:end].decode().split()
        dims = tuple(map(int, dims))
        dtype = np.dtype(KINDS[kind])
        size = dtype.itemsize * int(np.prod(dims, dtype=np.int64))
        yield np.frombuffer(data[end + 1 : end + 1 + size], dtype).reshape(dims)
        at = end + 1 + size


def read(stored, name):
    """An array; numpy reads no f8, whose descriptor is its width."""
    try:
        return np.asarray(stored[name], order="C")
    except ValueError:
        data = stored.zip.read(name + ".npy")
        head = 10 + int.from_bytes(data[8:10], "little")
        shape = eval(data[10:head].decode())["shape"]
        return np.frombuffer(data[head:], np.uint8).reshape(shape)


def check(exe, folder, name, tmp):
    stored = np.load(folder / f"{name}.npz")
    args = tmp / "args"
    with open(args, "wb") as f:
        i = 0
        while f"in{i}" in stored.files:
            f.write(read(stored, f"in{i}").tobytes())
            i += 1
    p = subprocess.run([exe, folder / f"{name}.mlirbc", args, tmp / "res"], capture_output=True, text=True, timeout=300)
    if p.returncode:
        return f"FAIL {name} {p.stderr.strip()[:200]} ({p.returncode})"
    worst = (0, TOLERANCE, -1)
    for i, got in enumerate(results((tmp / "res").read_bytes())):
        want, allowed = read(stored, f"out{i}"), 0
        if got.dtype.kind in "fcV":
            want = want.view(got.dtype)
            allowed = TOLERANCE
            if f"f32_{i}" in stored:
                exact = stored[f"f32_{i}"]
                allowed = max(allowed, 2 * error(want.astype(exact.dtype), exact))
                got, want = got.astype(exact.dtype), exact
            found = error(got, want)
        else:
            found = float(np.ascontiguousarray(got).tobytes() != np.ascontiguousarray(want).tobytes())
        if found / (allowed + 1e-12) > worst[0] / (worst[1] + 1e-12):
            worst = (found, allowed, i)
    ok = "PASS" if worst[0] <= worst[1] else "FAIL"
    return f"{ok} {name} error {worst[0]:.1e} allowed {worst[1]:.1e} result {worst[2]} in {p.stdout.strip()} s"


def main():
    folder = pathlib.Path(sys.argv[1])
    names = sys.argv[2:] or sorted(str(p.relative_to(folder))[:-7] for p in folder.glob("**/*.mlirbc"))
    failed = 0
    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        exe = tmp / "run"
        lib = ROOT / "build" / "librondo.a"
        subprocess.run(["cc", "-std=c17", "-D_GNU_SOURCE", "-g", "-I", ROOT / "src", pathlib.Path(__file__).parent / "run.c", "-o", exe, lib,
                        "-lm", "-lpthread", "-ldl"], check=True)
        for name in names:
            try:
                line = check(exe, folder, name, tmp)
            except Exception as e:
                line = f"FAIL {name} {type(e).__name__}: {str(e)[:200]}"
            failed += line.startswith("FAIL")
            print(line, flush=True)
    print(f"{failed} failed of {len(names)}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
