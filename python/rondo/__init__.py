"""Rondo as a JAX platform.  JAX finds `initialize` through the entry point `rondo` of group `jax_plugins`."""
import os

__version__ = "0.1.0"
OLDEST, NEWEST = (0, 10, 2), (0, 12)     # of JAX; as pyproject.toml has it
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
    if not path.is_file():
        raise FileNotFoundError(f"rondo: {path} {'is no file' if path.exists() else 'does not exist'}; set RONDO_LIBRARY or install the package again")
    from . import library, registration
    try:
        _state["library"] = library.load(path)
    except OSError as e:
        raise OSError(f"rondo: {path} cannot be loaded: {e}; set RONDO_LIBRARY or install the package again") from None
    registration.register(str(path))
