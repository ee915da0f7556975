"""The cases of collectives.py and arrays.py, in one start of the processes."""
import collectives  # noqa: F401
import arrays  # noqa: F401
import users  # noqa: F401
import common

common.end()
