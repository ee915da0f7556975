"""Build step of the wheel: runs make and takes the libraries in, with those they need and that not every
system has (LLVM, ...), found again through $ORIGIN."""
import os
import pathlib
import re
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).parent.resolve()
OWN = ["librondo.so", "librondo_gen.so"]
# Part of every system that runs JAX itself.
SYSTEM = re.compile(r"(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z|util|resolv))\.so.*")


def needed(path):
    """Libraries that path needs, all levels: name -> file."""
    out = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in out.splitlines():
        m = re.match(r"\s*(\S+) => (\S+|not found)", line)
        if m and not SYSTEM.fullmatch(m[1]) and m[1] not in OWN:
            if not m[2].startswith("/"):
                raise RuntimeError(f"{path} needs {m[1]}, which is not on this machine")
            found[m[1]] = m[2]
    return found


class Build(build_py):
    def run(self):
        super().run()
        jobs = len(os.sched_getaffinity(0))
        subprocess.run(["make", f"-j{jobs}", *(f"build/{lib}" for lib in OWN)], cwd=ROOT, check=True)
        target = pathlib.Path(self.build_lib) / "rondo"
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / "python" / "rondo.pth", self.build_lib)
        carried = {}
        for lib in OWN:
            shutil.copy2(ROOT / "build" / lib, target / lib)
            carried |= needed(ROOT / "build" / lib)
        for name, path in carried.items():
            shutil.copyfile(path, target / name)
        for lib in [*OWN, *carried]:
            subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", target / lib], check=True)


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(distclass=Binary, cmdclass={"build_py": Build, "bdist_wheel": Wheel})
