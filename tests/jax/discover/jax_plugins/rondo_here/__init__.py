"""Lets JAX find the plug-in of this tree where it is not installed: put this folder's parent on PYTHONPATH."""
from rondo import initialize  # noqa: F401
