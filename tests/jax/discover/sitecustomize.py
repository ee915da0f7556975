"""As rondo.pth does where the plug-in is installed."""
import rondo.early  # noqa: F401
