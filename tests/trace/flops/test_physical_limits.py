"""No op of the shared traces runs faster than its device can: an impossible rate would show a wrong formula."""

import pytest

from trainyard import machine
from trainyard.trace.flops.roofline import op_roofline
from trainyard.trace.measure import measure_files
from validation.formulas import CACHE_BYTES, largest_share_of_bandwidth, largest_share_of_peak

LEAST_COVERED = {
    "diff_control.json.gz": 0.94,
    "diff_test.json.gz": 0.43,
    "h100_qwen_0.5b.json.gz": 0.99,
    "mi300_qwen_0.5b.json.gz": 0.99,
    "mi300_resnet_ac.json.gz": 0.99,
    "resnet50_loader0.json.gz": 0.99,
    "resnet50_loader4.json.gz": 0.99,
    "v100_dlrm_8ranks": 0.94,
}
"""Trace -> share of its compute time whose FLOPs and bytes were known when this test was written. The rest of
`diff_test` is compiled by an Inductor that records no arguments."""


@pytest.mark.parametrize("name", LEAST_COVERED)
def test_rates_are_possible_and_most_time_is_covered(name, public_trace):
    roofline = op_roofline(measure_files([public_trace(name)], engine="serial").comparable)
    device = machine.find_device(roofline.device)
    assert device is not None
    assert any(roofline.device.startswith(known) for known in CACHE_BYTES)
    assert largest_share_of_peak(roofline, device).share <= 1, largest_share_of_peak(roofline, device).row
    assert largest_share_of_bandwidth(roofline, device).share <= 1, largest_share_of_bandwidth(roofline, device).row
    assert roofline.known_ns >= LEAST_COVERED[name] * roofline.compute_ns
    assert roofline.known_ns <= roofline.compute_ns
