"""An array that all have is the same in all, bit by bit, whatever cores each process has: LAPACK gives other bits with more threads."""
import os

me, cores = int(os.environ["PROCESS"]), sorted(os.sched_getaffinity(0))
os.environ["OPENBLAS_NUM_THREADS"] = "21"[me]

import scipy.linalg.lapack  # noqa: E402, F401

os.sched_setaffinity(0, {cores[me % len(cores)]})       # none shares them, as on two hosts

from common import P, case, end, jax, multihost_utils, np, spread  # noqa: E402

import jax.numpy as jnp  # noqa: E402


@case
def same_everywhere():
    a = np.random.default_rng(3).normal(size=(600, 600)).astype(np.float32)
    for f in (lambda a: jnp.linalg.cholesky(a @ a.T + 600 * jnp.eye(600)), jnp.linalg.inv, lambda a: jnp.linalg.qr(a)[0]):
        y = jax.jit(f)(spread(a, spec=P()))
        all_ = multihost_utils.process_allgather(np.asarray(y.addressable_data(0)).view(np.int32))
        assert (all_ == all_[0]).all(), int((all_ != all_[0]).sum())


end()
