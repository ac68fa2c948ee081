"""Custom ops of CPU traces: their own work is compute, that of wrappers around other ops is launch."""

import pytest

from tests.trace_maker import MAIN, trace, write
from trainyard import api


def accounts(folder, *ops):
    """Account -> ns of a trace of one step whose spans are `ops`, (name, start, stop) in ns."""
    host = [(name, MAIN, start, stop, "cpu_op") for name, start, stop in ops]
    path = write(folder, trace(host=host, marks=[("1", 0, 10_000)]))
    return {str(account): ns for account, ns in api.analyse(path).mean.by_account().items() if ns}


def test_own_work_of_a_custom_op_is_compute(tmp_path):
    ops = [("mylib::slow", 1000, 7000), ("aten::empty", 1500, 2000), ("aten::mm", 7000, 9000)]
    ns = accounts(tmp_path, *ops)
    assert ns["compute/other"] >= 5500
    assert ns["compute/matmul"] == 2000
    assert "launch_gap/launch" not in ns


def test_wrapper_of_other_ops_is_launch(tmp_path):
    ops = [("mylib::wrapper", 1000, 7000), ("aten::mm", 1500, 6500)]
    ns = accounts(tmp_path, *ops)
    assert ns["compute/matmul"] == 5000
    assert ns["launch_gap/launch"] == 1000


def test_calls_of_one_name_are_judged_together(tmp_path):
    ops = [("mylib::f", 1000, 5000), ("mylib::f", 5000, 6000), ("aten::mm", 5100, 5900)]
    ns = accounts(tmp_path, *ops)
    assert "launch_gap/launch" not in ns
    assert ns["compute/matmul"] == 800
    assert ns["compute/other"] == 4200


@pytest.mark.parametrize("name", ["autograd::engine::evaluate_function: X", "torch::autograd::Acc", "c10d::x", "Node0"])
def test_framework_ops_are_launch(tmp_path, name):
    assert accounts(tmp_path, (name, 1000, 7000))["launch_gap/launch"] == 6000
