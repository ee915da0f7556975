"""The command `rondo` of an installed package: the program that lies beside this file."""
import os
import pathlib
import sys


def main():
    program = pathlib.Path(__file__).with_name("rondo")
    # Whoever is asked about JAX is the Python that this package is installed for.
    os.environ.setdefault("RONDO_PYTHON", sys.executable)
    try:
        os.execv(program, ["rondo", *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"rondo: {program} cannot be run ({e.strerror}); install the package again")


if __name__ == "__main__":
    main()
