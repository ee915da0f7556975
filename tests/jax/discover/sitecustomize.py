"""As rondo.pth does where the plug-in is installed; and a twelfth of the time of a program that only imports and compiles is not spent on
looking for cycles, of which Python finds few there."""
import gc

import rondo.early  # noqa: F401

gc.set_threshold(20_000)
