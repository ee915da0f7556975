"""Rondo as a JAX platform.  JAX finds `initialize` through the entry point `rondo` of group `jax_plugins`."""
import os

__version__ = "0.1.0"
_state = {}


def library_path():
    """Where librondo.so is: beside this file, or as RONDO_LIBRARY says."""
    import pathlib
    path = os.environ.get("RONDO_LIBRARY")
    return pathlib.Path(path) if path else pathlib.Path(__file__).with_name("librondo.so")


def initialize():
    """Called by JAX when it looks for platforms; registers Rondo once."""
    if _state:
        return
    path = library_path()
    if not path.exists():
        raise FileNotFoundError(f"rondo: {path} does not exist; set RONDO_LIBRARY or install the package again")
    from . import library, registration
    _state["library"] = library.load(path)
    registration.register(str(path))
