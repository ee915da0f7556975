"""What JAX has to know about Rondo.

register_plugin is the public door.  The rest are lists and tables inside JAX that name the platforms it
knows; each is touched in a step of its own, so that a JAX that has changed loses one feature, named in a
warning, and not the platform.
"""
import atexit
import ctypes
import functools
import os
import sys
import threading
import time
import warnings

from . import OLDEST, callback, early, library

NAME = "rondo"


def say(text):
    print(f"rondo: {text}", file=sys.stderr)


def register(path):
    import jax
    if jax.__version_info__ < OLDEST:
        say(f"JAX {jax.__version__} is older than {'.'.join(map(str, OLDEST))}, the oldest that works here: pip install --upgrade jax")
        return
    import jax._src.xla_bridge as xb
    xb._nonexperimental_plugins.add(NAME)
    xb.register_plugin(NAME, priority=500, library_path=path, options=client_options, make_topology=no_topology)
    for step in (platforms, donation, lowerings, callbacks, foreign_functions, custom_calls,
                 partitioners, persistent_cache, interrupted_compiles, dlpack, reading, views, program_text, forks, as_cpu):
        try:
            step()
        except Exception as e:  # noqa: BLE001  (whatever the change in JAX is, the platform stays usable)
            warnings.warn(f"rondo: {step.__name__} could not be registered with JAX {jax.__version__}: {e!r}")


# --- client -----------------------------------------------------------------

# XLA's flags that mean something here; every other one in XLA_FLAGS is named in a warning.
UNDERSTOOD = {"xla_force_host_platform_device_count", "xla_allow_excess_precision"}


def client_options():
    """Options of the client, asked for when it is made."""
    import jax
    options = {}
    count = getattr(jax.config, "jax_num_cpu_devices", -1)
    if not library.number("DEVICES") and count > 0:
        options["num_devices"] = count
    flags = [f.lstrip("-").split("=")[0] for f in os.environ.get("XLA_FLAGS", "").split() if f.startswith("--")]
    if "--xla_allow_excess_precision=false" in os.environ.get("XLA_FLAGS", "").split():
        library.set_option("excess_precision", 0)
    ignored = sorted(set(flags) - UNDERSTOOD)
    if ignored:
        say(f"these XLA flags have no effect here: {', '.join(ignored)}")
    return options


def no_topology(*args, **kwargs):
    raise NotImplementedError("topology not implemented: rondo compiles for the machine it runs on only")


def platforms():
    """Callbacks and debug prints want JAX's own cpu beside the plug-in."""
    import jax
    listed = [p for p in (jax.config.jax_platforms or "").split(",") if p]
    if NAME in listed and "cpu" not in listed:
        jax.config.update("jax_platforms", ",".join([*listed, "cpu"]))
        say(f"added cpu to JAX_PLATFORMS={','.join(listed)}: callbacks and debug prints run on it")


def forks():
    """Threads do not survive a fork: a child that ends as programs do would wait for those of jaxlib's clients for ever, so it leaves them as they are."""
    def keep():
        from jax._src import xla_bridge
        for backend in list(xla_bridge._backends.values()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(backend))
    os.register_at_fork(after_in_child=keep)


def as_cpu():
    """RONDO_AS_CPU: packages that choose by the platform's name choose what they do on cpu.  JAX itself reads the true one.  The name that
    jax.default_backend gives is early.py's."""
    import jax
    if not library.number("AS_CPU"):
        return
    from jax._src.array import ArrayImpl
    from jax._src.lib import xla_client

    for owner in (jax.Device, xla_client.Client):
        def shown(self, get=owner.platform.fget):
            return early.told(get(self))
        owner.platform = property(shown, doc=owner.platform.__doc__)
    of_array = ArrayImpl.platform
    ArrayImpl.platform = lambda self: early.told(of_array(self))


# --- lowering ---------------------------------------------------------------


def donation():
    from jax._src.interpreters import mlir
    if NAME not in mlir._platforms_with_donation:
        mlir._platforms_with_donation.append(NAME)


def pallas(default):
    """A kernel is what JAX's interpreter of Pallas makes of it: loops over its grid, which are compiled like any others."""
    def pallas_call(ctx, *operands, interpret, **how):
        return default(ctx, *operands, interpret=interpret or True, **how)
    return pallas_call


def choice(default):
    """platform_dependent: where nothing is said of Rondo, what is said of cpu holds."""
    def rule(ctx, *operands, **how):
        for name in ("platforms", "branches_platforms"):
            lists = how.get(name)
            if lists is not None and not any(NAME in some for some in lists if some is not None):
                how[name] = tuple(some and tuple(q for p in some for q in ((p, NAME) if p == "cpu" else (p,))) for some in lists)
        return default(ctx, *operands, **how)
    return rule


def exported(default):
    """What was exported for cpu runs as cpu's would."""
    def call_exported(ctx, *operands, exported):
        if NAME not in exported.platforms and tuple(ctx.module_context.platforms) == (NAME,):
            import dataclasses
            exported = dataclasses.replace(exported, platforms=tuple(NAME if p == "cpu" else p for p in exported.platforms))
        return default(ctx, *operands, exported=exported)
    return call_exported


def buffers(default):
    """jax.experimental.buffer_callback: the function writes the results where they lie."""
    from jax._src import tree_util
    emit = callback.emit

    def rule(ctx, *args, callback, in_tree, out_tree, has_side_effect, input_output_aliases, **how):
        if len(ctx.module_context.platforms) > 1:
            raise NotImplementedError("multi-platform lowering for buffer_callback")

        def function(context, *flat):
            n = in_tree.num_leaves
            some, named = tree_util.tree_unflatten(in_tree, flat[:n])
            if callback(context, tree_util.tree_unflatten(out_tree, flat[n:]), *some, **named) is not None:
                raise ValueError("buffer_callback callback must not return any values.")
        return emit(ctx, function, None, list(args), ctx.avals_in, ctx.avals_out, has_side_effect, False, None, tuple(input_output_aliases))[0]
    return rule


# Rules made of JAX's own when they are used first: some are of what is not imported before.
LATER = {"buffer_callback": buffers, "pallas_call": pallas, "platform_index": choice, "cond": choice, "call_exported": exported}
# What JAX has no rule for but for GPUs, of plain StableHLO.
PLAIN = {"pbroadcast", "pbroadcast_dynamic"}


def lowerings():
    """The rules of JAX's cpu, those registered later included: LAPACK, callbacks, checks.  Not its threefry,
    a loop that is there to keep XLA's compile time down; the default is straight-line code.  Nor its products, which
    refuse what XLA:CPU cannot, sums of f16 in f32 for one, which jax.nn.dot_product_attention asks for."""
    from jax._src.interpreters import mlir
    from jax._src.lax import lax
    from jax._src.random import threefry2x32
    default_ones = {threefry2x32.threefry2x32_p, lax.dot_general_p}
    cpu, gpu = mlir._platform_specific_lowerings["cpu"], mlir._platform_specific_lowerings["cuda"]
    own = {}

    def rules(primitive):
        return gpu if primitive.name in PLAIN else cpu

    class Rules(dict):
        def __contains__(self, primitive):
            return primitive in own or primitive.name in LATER or (primitive in rules(primitive) and primitive not in default_ones)

        def __getitem__(self, primitive):
            if primitive not in own and primitive.name in LATER:
                default = mlir._lowerings[primitive]
                mlir.register_lowering(primitive, LATER[primitive.name](getattr(default, "rule", default)), platform=NAME)
            return own[primitive] if primitive in own else rules(primitive)[primitive]

        def __setitem__(self, primitive, rule):
            own[primitive] = rule

    mlir._platform_specific_lowerings[NAME] = Rules()

    # jaxlib turns chlo.erf into StableHLO for the wider floats only
    from jax._src.lax import special
    default = mlir._lowerings[special.erf_p]
    through_f32 = mlir.lower_fun(lambda x, **how: special.erf_p.bind(x.astype("float32"), **how).astype(x.dtype), multiple_results=False)

    def erf(ctx, x, **how):
        return (through_f32 if ctx.avals_in[0].dtype.itemsize == 1 else getattr(default, "rule", default))(ctx, x, **how)
    mlir.register_lowering(special.erf_p, erf, platform=NAME)


def callbacks():
    """pure_callback, io_callback, debug.callback, debug.print and checkify all go through one function."""
    from jax._src import callback as jax_callback
    callback.install()
    original = jax_callback.emit_python_callback

    @functools.wraps(original)
    def emit(ctx, function, token, operands, operand_avals, result_avals, *, has_side_effect,
             returns_token=True, partitioned=False, sharding=None):
        if tuple(ctx.module_context.platforms) != (NAME,):
            return original(ctx, function, token, operands, operand_avals, result_avals, has_side_effect=has_side_effect,
                            returns_token=returns_token, partitioned=partitioned, sharding=sharding)
        if partitioned and result_avals:
            raise ValueError("Partitioned callback not supported with return values.")
        return callback.emit(ctx, function, token, list(operands), operand_avals, result_avals, has_side_effect, partitioned, sharding)

    jax_callback.emit_python_callback = emit
    from jax.interpreters import mlir           # the same function for others, jax.experimental.sparse among them
    mlir.emit_python_callback = emit


# --- custom calls -----------------------------------------------------------


def _address(capsule, name):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, name)


def register_handler(name, function, platform=NAME, api_version=1, traits=None):
    """A custom call of users (jax.ffi.register_ffi_target); function is a capsule, or one per stage."""
    if api_version != 1:
        return
    if isinstance(function, dict):
        function = function.get("execute")
    if function is None:
        return
    name = name if isinstance(name, bytes) else name.encode()
    library.get().rondo_ffi_register(name, _address(function, b"xla._CUSTOM_CALL_TARGET"))


_lapack = {}


def _resolve(target):
    """Called once for each custom call of a program that is loaded: JAX's LAPACK is taken in when it is
    wanted, since it brings SciPy with it."""
    try:
        name = target.decode()
        if not _lapack and (name.startswith("lapack_") or name.startswith("tridiagonal_solve_")):
            from jaxlib.cpu import _lapack as module
            module.initialize()
            _lapack.update(module.registrations())
            for key, capsule in _lapack.items():
                register_handler(key, capsule)
        elif name.startswith("cpu_csr_"):
            from jaxlib.cpu import _sparse
            for key, capsule in _sparse.registrations().items():
                register_handler(key, capsule)
    except Exception as e:  # noqa: BLE001  (the program then fails with the target's name)
        say(f"no handler for '{target.decode(errors='replace')}': {e!r}")


def foreign_functions():
    pointer = library.RESOLVE(_resolve)
    callback._pointers.append(pointer)
    library.get().rondo_set_resolver(pointer)


def custom_calls():
    """Targets registered for rondo, and those registered for cpu: host code serves both."""
    from jaxlib import xla_client
    xla_client.register_custom_call_handler(NAME, register_handler)
    xla_client.register_custom_type_handler(NAME, lambda *args: None)
    original = xla_client.register_custom_call_target

    @functools.wraps(original)
    def register_custom_call_target(name, fn, platform="cpu", api_version=0, *args, **kwargs):
        if platform == "cpu" and not _from_jaxlib(name):
            register_handler(name, fn, api_version=api_version)
        return original(name, fn, platform, api_version, *args, **kwargs)

    for name, fn, api_version, *_ in xla_client._custom_callback.get("Host", []):
        if not _from_jaxlib(name):
            register_handler(name, fn, api_version=api_version)
    xla_client.register_custom_call_target = register_custom_call_target


def _portable(program, size, take, to, message, capacity):
    """What a custom call's partition function gives is MLIR as JAX lowers to it."""
    try:
        import jax
        from jaxlib import _jax
        from jaxlib.mlir.dialects import stablehlo
        read = ".".join(map(str, jax.local_devices(backend=NAME)[0].client.stablehlo_current_version))
        version = stablehlo.get_smaller_version(read, stablehlo.get_current_version())
        portable = _jax.mlir.serialize_portable_artifact(ctypes.string_at(program, size), version)
        take(to, portable, len(portable))
        return 0
    except BaseException as e:  # noqa: BLE001  (nothing may leave through C; the text becomes the program's error)
        text = repr(e).encode()[:capacity - 1] + b"\0"
        ctypes.memmove(message, text, len(text))
        return 1


def partitioners():
    """custom_partitioning: JAX registers its own functions with the library, which reads what they give through this one."""
    pointer = library.PORTABLE(_portable)
    callback._pointers.append(pointer)
    library.get().rondo_set_portable(pointer)


def _from_jaxlib(name):
    name = name.decode() if isinstance(name, bytes) else name
    return name.startswith(("lapack_", "tridiagonal_solve_", "cpu_csr_"))


# --- the rest ---------------------------------------------------------------


def persistent_cache():
    """JAX's list of platforms with a persistent cache is a literal inside a function: answer cpu to it."""
    from jax._src import compilation_cache
    original = compilation_cache.is_cache_used

    class AsCpu:
        platform, supports_executable_serialization = "cpu", True

    @functools.wraps(original)
    def is_cache_used(backend):
        return original(AsCpu if backend.platform == NAME else backend)

    compilation_cache.is_cache_used = is_cache_used


def interrupted_compiles():
    """Ctrl-C leaves a compile to the thread that it is on, jaxlib's or Rondo's.  That goes on with module and client, which therefore stay; and what it runs in
    must be there: so the end of Python waits for it, unless it is Ctrl-C, then or now, that ends the process.  A child that was forked does not have that thread."""
    from jax._src import compiler
    original = compiler.backend_compile_and_load
    come = left = 0                             # calls that have brought Rondo a compile, or have been left and will
    counting = threading.Lock()
    process = {}                                # that first compiled with a backend

    @functools.wraps(original)
    def compile_and_load(backend, module, *args, **kwargs):
        nonlocal come, left
        if backend.platform == NAME and process.setdefault(id(backend), os.getpid()) != os.getpid():
            raise jax.errors.JaxRuntimeError(f"FAILED_PRECONDITION: {library.forked()}")
        begun, _ = library.compiles()
        try:
            try:
                made = original(backend, module, *args, **kwargs)
            except jax.errors.JaxRuntimeError:
                with counting:
                    come += library.compiles()[0] > begun      # what interrupted it is raised in the next function
                raise
            with counting:
                come += backend.platform == NAME
            return made
        except BaseException as e:
            if backend.platform == NAME and not isinstance(e, jax.errors.JaxRuntimeError):
                e.__suppress_context__ = True       # an error of the compile that was left
                for kept in (module, backend):
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
                if not isinstance(e, Exception) or library.compiles()[0] > begun:       # else it may be an error from before
                    with counting:
                        left += 1
            raise

    def wait():
        try:
            until = time.monotonic() + 60       # for jaxlib to hand it over
            while left and ((counts := library.compiles())[0] != counts[1] or (counts[0] < come + left and time.monotonic() < until)):
                if early.interrupted():
                    early.abandon()
                    return
                time.sleep(.02)
        except KeyboardInterrupt:
            early.abandon()

    import jax
    compiler.backend_compile_and_load = compile_and_load
    atexit.register(wait)


def dlpack():
    """Arrays lie in host memory; numpy and others take them through a copy on the host.  What comes from others goes to the default device,
    unless it shall not be copied: then it is cpu's, and shared."""
    import jax
    from jax._src import array
    from jax._src import dlpack as jax_dlpack
    from jax._src.dlpack import DLDeviceType
    original_device, original = array.ArrayImpl.__dlpack_device__, array.ArrayImpl.__dlpack__

    def ours(self):
        return len(self._arrays) == 1 and self.platform() == NAME

    def dlpack_device(self):
        return (DLDeviceType.kDLCPU, 0) if ours(self) else original_device(self)

    def to_dlpack(self, **kwargs):
        if not ours(self):
            return original(self, **kwargs)
        import jax
        return jax.device_put(self, jax.local_devices(backend="cpu")[0]).__dlpack__(**kwargs)

    array.ArrayImpl.__dlpack_device__, array.ArrayImpl.__dlpack__ = dlpack_device, to_dlpack
    place = jax_dlpack._place_array             # the last step of from_dlpack

    @functools.wraps(place)
    def place_array(x, device, dlpack_device, copy):
        x = place(x, device, dlpack_device, copy)
        default = jax.config.jax_default_device or jax.local_devices()[0]
        here = device is None and copy is None and x.platform() == "cpu" and getattr(default, "platform", default) == NAME
        return jax.device_put(x, default) if here else x

    jax_dlpack._place_array = place_array


def reading():
    """float(x), x.tolist(), jax.device_get(x) and the like wait as x.block_until_ready() does, which Ctrl-C ends.  np.asarray(x) does not: numpy asks
    jaxlib for the array's memory, which waits by itself, as on any platform."""
    from jax._src import array
    value = array.ArrayImpl._value

    def waited(self):
        if self._npy_value is None and not self.is_deleted() and self.platform() == NAME and not self.is_ready():
            self.block_until_ready()
        return value.fget(self)

    array.ArrayImpl._value = property(waited, doc=value.__doc__)


def views():
    """np.asarray(x) is a view of x where it lies.  When that goes jaxlib tells x's client, which it does not keep: Python frees both in
    any order at its end, and jax.clear_backends does not look for views.  So a client stays if there are any."""
    import jax._src.xla_bridge as xb
    clear = xb._clear_backends

    @functools.wraps(clear)
    def cleared():
        client = xb._backends.get(NAME)
        if client is not None and library.viewed():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
        clear()

    xb._clear_backends = cleared


def program_text():
    """compiled.as_text() is Rondo's own text."""
    from jax._src import stages
    original = stages.Executable.as_text

    @functools.wraps(original)
    def as_text(self):
        executable = self.xla_extension_executable()
        if executable.local_devices()[0].platform == NAME:
            text = library.text(executable.fingerprint)
            if text is not None:
                return text
        return original(self)

    stages.Executable.as_text = as_text
