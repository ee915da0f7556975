"""Build step of the wheel: runs make, takes in libraries, command, manual and completions, and tags the wheel by what its files need."""
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
OWN = ["librondo.so", "librondo_gen.so", "rondo"]
# What the manylinux rules (PEP 600) let a wheel take from the system, of all that is theirs to give.
SYSTEM = re.compile(r"(ld-linux-x86-64\.so\.2|lib(c|m|dl|rt|pthread)\.so\.\d|libgcc_s\.so\.1)")
SHARE = {"share/man/man1": ["docs/man/rondo.1", "docs/man/rondo-launch.1"],
         "share/bash-completion/completions": ["build/share/bash-completion/completions/rondo"],
         "share/zsh/site-functions": ["build/share/zsh/site-functions/_rondo"]}


def home():
    """Where the project lives, as a page to look at: RONDO_URL, or what git calls origin; "" if neither is one."""
    url = os.environ.get("RONDO_URL")
    if url is None:
        git = subprocess.run(["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True)
        url = git.stdout.strip() if git.returncode == 0 else ""
    return re.sub(r"(\.git)?/?$", "", url) if re.fullmatch(r"https?://[^@\s]+", url) else ""


def readme(url):
    """README.md away from the files that it links to: the links lead to url, or are their words alone if there is none."""
    link = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")
    return link.sub(rf"[\1]({url}/blob/main/\2)" if url else r"\1", (ROOT / "README.md").read_text())


def glibc():
    """The oldest 2.N of glibc that has all that the files need; what no wheel may need is an error."""
    least = 17
    for lib in OWN:
        needs = subprocess.run(["readelf", "-dVW", ROOT / "build" / lib], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", needs):
            if not SYSTEM.fullmatch(name):
                raise RuntimeError(f"build/{lib} needs {name}, which not every system has")
        least = max([least, *map(int, re.findall(r"Name: GLIBC_2\.(\d+)", needs))])
    return least


class Build(build_py):
    def run(self):
        self.force = True                  # what an earlier build has left may be younger, and another version's
        super().run()
        jobs = len(os.sched_getaffinity(0))
        subprocess.run(["make", f"-j{jobs}", *(f"build/{lib}" for lib in OWN), "share"], cwd=ROOT, check=True)
        target = pathlib.Path(self.build_lib) / "rondo"
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / "python" / "rondo.pth", self.build_lib)
        for lib in OWN:
            subprocess.run(["strip", "-o", target / lib, ROOT / "build" / lib], check=True)


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2].replace("linux", f"manylinux_2_{glibc()}")


URL = home()
setup(distclass=Binary, cmdclass={"build_py": Build, "bdist_wheel": Wheel}, data_files=list(SHARE.items()),
      long_description=readme(URL), long_description_content_type="text/markdown",
      project_urls={"Repository": URL, "Documentation": f"{URL}/tree/main/docs", "Issues": f"{URL}/issues"} if URL else {})
