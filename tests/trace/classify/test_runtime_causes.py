"""Causes of idle time in the spans of MPI, OpenACC, XLA and users."""

import pytest

from trainyard.ledger import Account
from trainyard.trace.classify.host_causes import host_cause


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("mpi:all_reduce", "comm/all_reduce"),
        ("mpi:other", "comm/other"),
        ("OpenACC wait: Wait solver.c:12", "launch_gap/sync"),
        ("OpenACC: alloc", "launch_gap/alloc"),
        ("OpenACC: Enqueue Launch solver.c:12", "launch_gap/launch"),
        ("Build buffer allocations", "launch_gap/alloc"),
        ("PjRtStreamExecutorLoadedExecutable::EnqueueExecution", "launch_gap/launch"),
        ("PjRtClient::Compile", "launch_gap/compile"),
        ("jit_step:XLA GPU module", "launch_gap/launch"),
        ("PythonRefManager::CollectGarbage", "launch_gap/gc"),
        ("api.py(3165): try_to_block", "launch_gap/sync"),
        ("jax/_src/compiler.py(12): backend_compile", "launch_gap/compile"),
        ("data_loading", "data_wait"),
        ("get train batch", "data_wait"),
        ("batch-generator", "data_wait"),
        ("batch 7", None),
        ("load the dice", None),
        ("my_api.py(3): block_until_ready", None),
        ("Compilers of the world", None),
    ],
)
def test_cause_of_a_span(name, cause):
    assert host_cause(name) == cause
    assert cause is None or Account.parse(cause)
