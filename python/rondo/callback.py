"""Python functions called by compiled programs.

A callback becomes a custom call with a number.  The number leads to the Python function through a table
here; the library calls one C function pointer with the number and the addresses of operands and results.
An entry lives as long as the lowering that made it or any executable that holds its number.
"""
import atexit
import contextlib
import ctypes
import dataclasses
import itertools
import math
import os
import threading
import time
import traceback
import weakref

import numpy as np

from . import early, library

_lock = threading.Lock()
_numbers = itertools.count(1)
_table = {}             # number -> _Entry
_pointers = []          # what ctypes must not collect
_process = os.getpid()
_left = False           # Python ends, and does not wait for the programs that still run


@dataclasses.dataclass
class _Entry:
    function: object
    operands: list      # (rank, dtype) of what is no token
    results: list       # (shape, dtype)
    settings: list      # (state, value) of JAX's configuration
    aliases: tuple = None       # (operand, result) pairs of a function that writes its results; None: it returns them
    uses: int = 1


class _Keep:
    """Kept alive by the lowering."""


def _count(number, change):
    with _lock:
        entry = _table.get(number)
        if entry is None:
            return
        entry.uses += change
        if entry.uses <= 0:
            del _table[number]


def _array(address, shape, dtype):
    out = np.empty(shape, dtype)
    if out.nbytes:
        ctypes.memmove(out.ctypes.data, address, out.nbytes)
    return out


class Buffer(np.ndarray):
    """An operand or a result where it lies, while the callback runs."""

    writeable = property(lambda self: self.flags.writeable)


def _view(address, shape, dtype, writeable):
    n = int(np.prod(shape)) * dtype.itemsize
    out = np.frombuffer((ctypes.c_char * n).from_address(address), dtype).reshape(shape) if n else np.empty(shape, dtype)
    out.flags.writeable = writeable
    return out.view(Buffer)


class _Context:
    """What a buffer_callback is told of the launch."""

    @property
    def stage(self):
        from jax.experimental.buffer_callback import ExecutionStage
        return ExecutionStage.EXECUTE

    @property
    def stream(self):
        import jax
        raise jax.errors.JaxRuntimeError("XLA FFI GPU context is not available: this device is no GPU")


def _in_place(entry, operands, results, extents):
    into = dict(entry.aliases)
    outs = [_view(results[i], shape, dtype, True) for i, (shape, dtype) in enumerate(entry.results)]
    ins = []
    for i, (rank, dtype) in enumerate(entry.operands):
        x = _view(operands[i], extents[i][:rank], dtype, False)
        if i in into:
            outs[into[i]][...] = x
            x = outs[into[i]].view()
            x.flags.writeable = False
        ins.append(x)
    _run(entry, (_Context(), *ins, *outs))


def _call(number, operands, results, extents, device, thread, message, capacity):
    try:
        if thread:                  # from here on what interrupts it becomes an error
            thread[0] = threading.get_ident()
        with _lock:
            entry = _table[number]
        if entry.aliases is not None:
            _in_place(entry, operands, results, extents)
        else:
            args = [_array(operands[i], extents[i][:rank], dtype) for i, (rank, dtype) in enumerate(entry.operands)]
            values = _run(entry, args)
            for i, (value, (shape, dtype)) in enumerate(zip(values, entry.results)):
                value = np.ascontiguousarray(value, dtype)
                if value.nbytes:
                    ctypes.memmove(results[i], value.ctypes.data, value.nbytes)
        if thread:
            thread[0] = 0
        return 1
    except BaseException as e:   # nothing may leave through C; the text becomes the program's error
        if thread:
            thread[0] = 0
        text = _told(e, capacity - 1) + b"\0"
        ctypes.memmove(message, text, len(text))
        return 0


def _told(e, most):
    """The traceback from the caller's own function on, of a long one the first and the last lines."""
    own = e.__traceback__
    while own and own.tb_frame.f_code.co_filename == __file__:
        own = own.tb_next
    text = "".join(traceback.format_exception(type(e), e, own or e.__traceback__)).encode()
    if len(text) <= most:
        return text
    head, tail = text[:most // 3], text[-(most // 2):]
    return (head[:head.rfind(b"\n") + 1] + b"  ..\n" + tail[tail.find(b"\n") + 1:])[-most:]


def _run(entry, args):
    """What the function computes with JAX must not wait for the device that waits for it."""
    import jax
    with contextlib.ExitStack() as under:
        for state, value in entry.settings:
            under.enter_context(state(value))
        with contextlib.suppress(RuntimeError):
            under.enter_context(jax.default_device(jax.local_devices(backend="cpu")[0]))
        return entry.function(*args)


def _settings():
    """What `with jax.enable_x64(True)` and its like have set for this thread, of what one program differs from another by: callbacks run on threads that know nothing of it."""
    from jax._src import config
    states = (config.config_states.get(name) for name in config.trace_context_names() if name != "jax_default_device")
    return [(s, s.get_local()) for s in states if s is not None and s.get_local() is not config.config_ext.unset]


def install():
    pointers = library.CALLBACK(_call), library.COUNT(_count)
    _pointers.append(pointers)
    library.get().rondo_set_callback(*pointers)
    names = ("PyGILState_Ensure", "PyGILState_Release", "PyErr_CheckSignals", "PyErr_Fetch", "PyErr_Restore", "Py_AddPendingCall", "PyThreadState_SetAsyncExc")
    addresses = (ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in names)
    library.get().rondo_set_python(library.Python(*addresses, id(KeyboardInterrupt), threading.main_thread().ident))
    atexit.register(settle)
    early.last.append(uninstall)


def settle():
    """Python ends when the programs that call it have.  (JAX waits for them, too, but that comes later.)  After Ctrl-C nobody wants what any program does:
    those that run are over in a moment, or, where Ctrl-C comes while they are waited for, or a callback or a kernel takes long, Python ends without them."""
    global _left
    lib = library.get()
    given_up = early.interrupted()
    runs = lib.rondo_runs if given_up else lib.rondo_calling
    if _left or os.getpid() != _process or not runs():
        return
    try:
        if given_up:
            lib.rondo_give_up()
        lib.rondo_await(True)
        until = time.monotonic() + (1 if given_up else math.inf)
        while runs() and time.monotonic() < until:
            time.sleep(.001)
        _left = runs()
    except BaseException as e:
        _left = True
        if not given_up or not isinstance(e, KeyboardInterrupt):      # it has been told
            raise
    finally:
        lib.rondo_await(False)
        if _left:
            early.abandon()


def uninstall():
    """Other functions that are called at the end may have run programs."""
    settle()
    library.get().rondo_set_python(None)
    library.get().rondo_set_callback(library.CALLBACK(), library.COUNT())


def _spec(aval):
    """Shape and type of what lies in memory, of a PRNG key its words."""
    from jax._src import core, dtypes
    aval = core.physical_aval(aval)
    return tuple(aval.shape), np.dtype(dtypes.canonicalize_dtype(aval.dtype))


def _checked(function, avals):
    """The function with its results as arrays of the promised shapes and types."""
    from jax._src import dtypes

    def call(*args):
        values = function(*args)
        if len(values) != len(avals):
            raise RuntimeError("Mismatched number of outputs from callback. "
                               f"Expected: {len(avals)}, Actual: {len(values)}")
        values = tuple(dtypes.canonicalize_value(np.asarray(v)) for v in values)
        for i, (value, aval) in enumerate(zip(values, avals)):
            if value.shape != aval.shape:
                raise RuntimeError(f"Incorrect output shape for return value #{i}: "
                                   f"Expected: {aval.shape}, Actual: {value.shape}")
            if value.dtype != aval.dtype:
                raise RuntimeError(f"Incorrect output dtype for return value #{i}: "
                                   f"Expected: {aval.dtype}, Actual: {value.dtype}")
        return values
    return call


def emit(ctx, function, token, operands, operand_avals, result_avals, has_side_effect, partitioned, sharding, aliases=None):
    """Lower a callback for Rondo: (results, token, object to keep).  With aliases it writes its results, and is called with a context before
    its operands and with them behind."""
    from jax._src import core, ffi
    from jax._src.interpreters import mlir
    from jax._src.sharding_impls import SdyArray, SdyArrayList

    number = next(_numbers)
    with _lock:
        _table[number] = _Entry(_checked(function, result_avals) if aliases is None else function, [(len(shape), dtype) for shape, dtype in map(_spec, operand_avals)],
                                [_spec(a) for a in result_avals], _settings(), aliases)
    keep = _Keep()
    weakref.finalize(keep, _count, number, -1).atexit = False
    ctx.module_context.add_keepalive(keep)

    if token:
        operands = [token, *operands]
        if sharding is not None and ctx.avals_out and isinstance(sharding, SdyArrayList):
            first = SdyArray(mesh_shape=(), dim_shardings=(), logical_device_ids=sharding.shardings[0].logical_device_ids)
            sharding = SdyArrayList((first, *sharding.shardings))
        ctx = dataclasses.replace(ctx, avals_in=[core.abstract_token, *ctx.avals_in],
                                  avals_out=[core.abstract_token, *ctx.avals_out])
    # JAX pins the call to one device where it is of whole arrays; partitioned, each device calls with its parts.
    call = ffi.build_ffi_lowering_function("rondo_python_callback" + "_of_parts" * partitioned, has_side_effect=has_side_effect)
    result = call(ctx, *operands, index=np.uint64(number))
    if sharding is not None:
        mlir.set_sharding(ctx.module_context, result, sharding)
    results = result.results
    if token:
        token, *results = results
    return results, token, keep
