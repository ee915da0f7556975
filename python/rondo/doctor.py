"""The part of `rondo doctor` that is about Python and JAX: lines as src/tool/doctor.c writes them, then how many complaints there were.

    python -m rondo.doctor <release of the command>
"""
import os
import sys

_complaints = 0


def found(good, what, text, advice=None):
    global _complaints
    _complaints += not good
    print(f"  {'ok' if good else 'BAD':5}  {what:14} {text}", flush=True)
    if not good:
        print(f"         {'':14} -> {advice}", flush=True)
    return good


def version(numbers):
    return ".".join(map(str, numbers))


def packages(release):
    """Python, JAX, and this package, of versions that go together."""
    from . import NEWEST, OLDEST, __version__
    found(sys.version_info >= (3, 11), "Python", f"{version(sys.version_info[:3])}, {sys.executable}", "Python 3.11 or later is needed")
    found(__version__ == release, "package", f"rondo {__version__}, {os.path.dirname(__file__)}",
          f"this command is of rondo {release}: run the one of this environment, {os.path.join(os.path.dirname(sys.executable), 'rondo')}")
    try:
        import jax
        import jaxlib
    except ImportError as e:
        return found(False, "JAX", f"cannot be imported: {e}", f"pip install 'jax>={version(OLDEST)}'")
    oldest, newest = version(OLDEST), version(NEWEST)
    good = OLDEST <= jax.__version_info__ and jax.__version_info__[:2] <= NEWEST
    found(good, "JAX", f"{jax.__version__}, jaxlib {jaxlib.__version__}; {oldest} to {newest} are supported",
          f"pip install 'jax>={oldest},<{NEWEST[0]}.{NEWEST[1] + 1}'")
    return jax.__version_info__ >= OLDEST


def devices():
    """What JAX sees with the settings that are here."""
    import jax
    listed = jax.config.jax_platforms
    if listed and "rondo" not in listed.split(","):
        found(False, "platform", f"JAX_PLATFORMS={listed} keeps Rondo out", "JAX_PLATFORMS=rondo,cpu")
        jax.config.update("jax_platforms", "rondo,cpu")
    try:
        all_ = jax.devices("rondo")
    except Exception as e:  # noqa: BLE001  (whatever keeps JAX from it is what is told)
        text = " ".join(str(e).split())
        return found(False, "devices", f"JAX has no platform rondo: {text[:300]}",
                     "pip install rondo into this environment (JAX finds it by its entry point), or see what the message names")
    first = jax.devices()[0]
    found(first in all_, "devices", f"{len(all_)} of platform rondo; programs run on {first.client.platform} by default", "JAX_PLATFORMS=rondo,cpu")
    return all_


def works(what, function):
    try:
        function()
    except Exception as e:  # noqa: BLE001
        found(False, "through JAX", f"{what}: {type(e).__name__}: {' '.join(str(e).split())[:300]}", "please report this output")
    else:
        found(True, "through JAX", what)


def self_test(all_):
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P
    a, b = (np.random.default_rng(i).standard_normal((200, 200), dtype=np.float32) for i in (0, 1))

    def product():
        np.testing.assert_allclose(jax.jit(lambda a, b: jnp.tanh(a @ b))(*jax.device_put((a, b), all_[0])), np.tanh(a @ b), atol=1e-4)

    def collective():
        mesh = jax.make_mesh((len(all_),), ("d",), devices=all_)
        x = jax.device_put(np.arange(4 * len(all_), dtype=np.float32), NamedSharding(mesh, P("d")))
        y = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P()))(x)
        np.testing.assert_array_equal(y, np.asarray(x).reshape(len(all_), 4).sum(0))

    def lapack():
        np.testing.assert_allclose(jnp.linalg.inv(jax.device_put(a, all_[0])) @ a, np.eye(200), atol=1e-2)

    works("a product, as numpy has it", product)
    works(f"a sum over {len(all_)} device{'s' if len(all_) > 1 else ''}, as numpy has it", collective)
    works("an inverse, by jaxlib's LAPACK", lapack)


def main(release):
    if packages(release):
        all_ = devices()
        if all_:
            self_test(all_)
    print("complaints", _complaints)


if __name__ == "__main__":
    main(*sys.argv[1:])
