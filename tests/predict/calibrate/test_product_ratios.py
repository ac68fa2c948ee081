"""Corrections of matrix products by size: used if they predict left-out products better, and only near their sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.predict.calibrate.test_fit_constants import SEEN, as_probed
from tests.refused import refused
from trainyard import machine
from trainyard.errors import BadInput
from trainyard.machine import Claim, Machine, ProductRatios
from trainyard.predict.calibrate import machine_file, probed_machine
from trainyard.predict.inputs import constant_sets, hardware
from trainyard.predict.inputs.ratio_surface import left_out_errors, surface
from trainyard.predict.time.layer import product
from trainyard.predict.time.shapes import Product

Size = tuple[int, ...]
SIDES = (32, 128, 512, 2048)


def probed_with(slowdown: Callable[[Size], float]) -> tuple[Machine, dict[Size, float]]:
    """The machine of `as_probed` whose products take `slowdown(m, n, k)` times as long, and their times in s."""
    others = [probe for probe in as_probed() if probe.what != "matmul"]
    like = next(probe for probe in as_probed() if probe.what == "matmul")
    products = [
        like._replace(size=(m, n, k), seconds=(2 * m * n * k / 80e9 + 5e-6) * slowdown((m, n, k)))
        for m in SIDES
        for n in SIDES
        for k in SIDES
    ]
    built = probed_machine.machine("here", SEEN, 2, "float32", [*others, *products])
    return built, {probe.size: probe.seconds for probe in products}


def deep_is_slow(size: Size) -> float:
    """Twice the time for deep and narrow products, which the four constants cannot express."""
    return 2.0 if size[2] >= 512 and size[1] <= 128 else 1.0


def errors(built: Machine, seconds: dict[Size, float]) -> float:
    """Root mean square of the logarithms of predicted over measured times."""
    sizes = np.array(list(seconds), np.float64)
    constants = constant_sets.choose(built, "fsdp").values()
    predicted_s = product(
        hardware.of_machine(built, "float32"), constants, Product(sizes[:, 0], sizes[:, 1], sizes[:, 2])
    )
    return float(np.sqrt(np.mean(np.log(predicted_s / np.array(list(seconds.values()))) ** 2)))


def test_probed_sizes_are_predicted_with_their_ratios(tmp_path: Path) -> None:
    built, seconds = probed_with(deep_is_slow)
    ratios = built.device.product_ratios
    assert ratios is not None
    assert len(ratios.points) == 64
    surface_error, constants_error = left_out_errors(ratios)
    assert surface_error < 0.75 * constants_error
    assert errors(built, seconds) < 0.5 * constants_error
    path = tmp_path / "here.toml"
    path.write_text(machine_file.write(built, "A test."))
    assert machine.load(str(path)) == built


def test_noise_between_sizes_is_not_a_correction() -> None:
    rng = np.random.default_rng(3)
    noise = dict.fromkeys([(m, n, k) for m in SIDES for n in SIDES for k in SIDES], 1.0)
    noise = {size: float(np.exp(rng.normal(0, 0.3))) for size in noise}
    built, _ = probed_with(lambda size: noise[(size[0], size[1], size[2])])
    assert built.device.product_ratios is None


def ratios_of(*points: tuple[float, float, float, float]) -> ProductRatios:
    return ProductRatios(dtype="float32", points=points, claim=Claim(value=1, unit="products", source="a test"))


def test_ratio_is_1_far_from_the_probed_sizes() -> None:
    near = surface(ratios_of((512, 512, 512, 2.0), (512, 512, 256, 2.0)))
    sizes = np.array([512.0, 1e7])
    assert near.at(sizes, sizes, sizes) == pytest.approx([2.0, 1.0], rel=0.05)


def test_left_out_error_is_that_of_a_surface_without_the_product() -> None:
    sizes = ((32, 32), (64, 32), (64, 128), (256, 64))
    points = [(float(m), float(n), 64.0, 1.0 + 0.1 * index) for index, (m, n) in enumerate(sizes)]
    logs, log_sizes = np.log([point[3] for point in points]), np.log([point[:3] for point in points])
    kernel = np.mean(logs**2) * np.exp(-((log_sizes[:, None] - log_sizes) ** 2).sum(-1) / 8)
    by_hand: list[float] = []
    for row in range(4):
        keep = [other for other in range(4) if other != row]
        weights = np.linalg.solve(kernel[np.ix_(keep, keep)] + 0.01 * np.eye(3), logs[keep])
        by_hand.append(logs[row] - kernel[row, keep] @ weights)
    assert left_out_errors(ratios_of(*points))[0] == pytest.approx(np.sqrt(np.mean(np.square(by_hand))))


@pytest.mark.parametrize(
    "points",
    [(), ((1.0, 1.0, 1.0, 1.0),) * 2, ((0.0, 1.0, 1.0, 1.0),), ((1.0, 1.0, 1.0, 1e3),), ((1.0, 1.0, 1.0, -1.0),)],
)
def test_impossible_ratios_are_refused(points: tuple[tuple[float, float, float, float], ...]) -> None:
    with refused(BadInput):
        ratios_of(*points)


def test_bundled_machines_have_no_corrections() -> None:
    for name in machine.known():
        bundled = machine.load(name)
        rank = hardware.of_machine(bundled, next(iter(bundled.device.peak)))
        assert rank.product_ratio(np.ones(1), np.ones(1), np.ones(1)) == 1.0
