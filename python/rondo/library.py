"""The C functions of librondo.so that the Python side calls."""
import ctypes

CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p),
                            ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)), ctypes.c_int,
                            ctypes.POINTER(ctypes.c_ulong), ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)
COUNT = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_int)
TAKE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
PORTABLE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, TAKE, ctypes.c_void_p,
                            ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)
RESOLVE = ctypes.CFUNCTYPE(None, ctypes.c_char_p)

_library = None


class Python(ctypes.Structure):
    """What Ctrl-C needs of CPython (src/pjrt/pjrt.h)."""
    _fields_ = [*((name, ctypes.c_void_p) for name in ("ensure", "release", "check", "fetch", "restore", "later", "raise_", "interrupt")), ("main", ctypes.c_ulong)]


def load(path):
    global _library
    lib = ctypes.CDLL(str(path))
    lib.rondo_set_option.restype = ctypes.c_char_p
    lib.rondo_set_option.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    lib.rondo_get_option.restype = ctypes.c_int64
    lib.rondo_get_option.argtypes = [ctypes.c_char_p]
    lib.rondo_set_callback.restype = None
    lib.rondo_set_callback.argtypes = [CALLBACK, COUNT]
    lib.rondo_calling.restype = ctypes.c_int64
    lib.rondo_calling.argtypes = []
    lib.rondo_runs.restype = ctypes.c_int
    lib.rondo_runs.argtypes = []
    lib.rondo_give_up.restype = None
    lib.rondo_give_up.argtypes = []
    lib.rondo_await.restype = None
    lib.rondo_await.argtypes = [ctypes.c_int]
    lib.rondo_set_python.restype = None
    lib.rondo_set_python.argtypes = [ctypes.POINTER(Python)]
    lib.rondo_set_resolver.restype = None
    lib.rondo_set_resolver.argtypes = [RESOLVE]
    lib.rondo_set_portable.restype = None
    lib.rondo_set_portable.argtypes = [PORTABLE]
    lib.rondo_ffi_register.restype = None
    lib.rondo_ffi_register.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    lib.rondo_text.restype = ctypes.c_void_p
    lib.rondo_text.argtypes = [ctypes.c_char_p]
    lib.rondo_permuted.restype = None
    lib.rondo_permuted.argtypes = [ctypes.POINTER(ctypes.c_int64)] * 2
    lib.rondo_followed.restype = ctypes.c_int64
    lib.rondo_followed.argtypes = []
    lib.rondo_compiles.restype = None
    lib.rondo_compiles.argtypes = [ctypes.POINTER(ctypes.c_int64)] * 2
    lib.rondo_forked.restype = ctypes.c_char_p
    lib.rondo_forked.argtypes = []
    lib.rondo_viewed.restype = ctypes.c_int
    lib.rondo_viewed.argtypes = []
    lib.rondo_free.restype = None
    lib.rondo_free.argtypes = [ctypes.c_void_p]
    _library = lib
    return lib


def get():
    return _library


def set_option(name, value):
    """As if RONDO_<name> were set in the environment."""
    error = _library.rondo_set_option(name.encode(), str(value).encode())
    if error:
        raise ValueError(error.decode())


def number(name):
    """The value of setting RONDO_<name>, a number."""
    return _library.rondo_get_option(name.encode())


def text(fingerprint):
    """The text of a compiled program, or None."""
    p = _library.rondo_text(fingerprint)
    if not p:
        return None
    try:
        return ctypes.string_at(p).decode()
    finally:
        _library.rondo_free(p)


def permuted():
    """Bytes that permutes of this process' devices have copied so far, and those that were read where they lay."""
    n = (ctypes.c_int64 * 2)()
    at = ctypes.cast(n, ctypes.POINTER(ctypes.c_int64))
    _library.rondo_permuted(at, ctypes.cast(ctypes.addressof(n) + 8, ctypes.POINTER(ctypes.c_int64)))
    return n[0], n[1]


def followed():
    """Bytes of sums over devices that what is made of them took part by part, as they came, on this process' devices."""
    return _library.rondo_followed()


def compiles():
    """Compiles of this process that have begun so far, and of these those that are over."""
    begun, over = ctypes.c_int64(), ctypes.c_int64()
    _library.rondo_compiles(ctypes.byref(begun), ctypes.byref(over))
    return begun.value, over.value


def forked():
    """What a child is told that was forked from the process that started the devices."""
    return _library.rondo_forked().decode()


def viewed():
    """Whether numpy has views of arrays."""
    return bool(_library.rondo_viewed())
