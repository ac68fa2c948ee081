"""The module of a host row: annotations and modules around it, but no Python frames."""

import pytest

from tests.trace_maker import MAIN, trace, write
from trainyard.trace.classify.context import build_context
from trainyard.trace.measure import read


@pytest.mark.parametrize(
    ("around", "module"),
    [
        ("nn.Module: Linear_0", "nn.Module: Linear_0"),
        ("my_layer", "my_layer"),
        ("train.py(12): step", None),
        ("/opt/env/bin/torchrun(8): <module>", None),
        ("<frozen runpy>(198): _run_module_as_main", None),
    ],
)
def test_python_frames_are_not_modules(tmp_path, around, module):
    rows = [(around, MAIN, 0, 50, "python_function"), ("aten::mm", MAIN, 10, 20, "cpu_op", {})]
    (events,) = read([write(tmp_path, trace(host=rows))])
    number = build_context(events).module[1]
    assert (events.names[number] if number >= 0 else None) == module
