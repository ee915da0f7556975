"""The command `rondo` of an installed package: the program that lies beside this file, or beside the library that RONDO_LIBRARY names."""
import os
import pathlib
import sys


def main():
    program = pathlib.Path(os.environ.get("RONDO_LIBRARY") or __file__).with_name("rondo")
    # Whoever is asked about JAX is the Python that this package is installed for.
    os.environ.setdefault("RONDO_PYTHON", sys.executable)
    try:
        os.execv(program, ["rondo", *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"rondo: {program} cannot be run ({e.strerror}); set RONDO_LIBRARY to the library of a build, or install the package again")


if __name__ == "__main__":
    main()
