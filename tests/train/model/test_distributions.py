"""Drawn values follow the stated distributions, and are accurate to float32 rounding."""

from math import log, pi, sqrt

import numpy as np
import pytest

pytestmark = pytest.mark.torch
COUNT = 400_000


def drawn(distribution, seed=5, name="layers.0.mlp.up.weight", count=COUNT):
    torch = pytest.importorskip("torch")
    from trainyard.train.model.draw_shard import draw
    from trainyard.train.model.logical_shard import find_shard

    values = torch.empty(count)
    draw(values, find_shard(values), distribution, seed, name, torch.device("cpu"))
    return values.numpy().astype(np.float64)


def cases():
    from scipy import stats

    from trainyard.train.model.distributions import Normal, Uniform

    return {
        "normal": (Normal(0.02), stats.norm(scale=0.02)),
        "truncated at 2": (Normal(0.5, 2.0), stats.truncnorm(-2, 2, scale=0.5)),
        "truncated at 0.5": (Normal(3.0, 0.5), stats.truncnorm(-0.5, 0.5, scale=3.0)),
        "uniform": (Uniform(0.3), stats.uniform(-0.3, 0.6)),
    }


@pytest.mark.parametrize("name", ["normal", "truncated at 2", "truncated at 0.5", "uniform"])
def test_values_follow_the_distribution(name):
    """Mean, variance and the Kolmogorov-Smirnov statistic, at 5 standard errors, for each of the four places in a block
    too. The seed is fixed."""
    pytest.importorskip("torch")
    from scipy.stats import kstest

    distribution, expected = cases()[name]
    values = drawn(distribution)
    for sample in (values, *values.reshape(-1, 4).T):
        error = expected.std() / sqrt(len(sample))
        assert abs(sample.mean()) < 5 * error
        kurtosis = float(expected.stats(moments="k")) + 3
        assert sample.var() == pytest.approx(expected.var(), rel=5 * sqrt((kurtosis - 1) / len(sample)))
        assert kstest(sample, expected.cdf).pvalue > 1e-4
    low, high = expected.support()
    assert low <= values.min() and values.max() <= high  # noqa: PT018 - bounds of one range


def test_values_are_not_correlated():
    """Between neighbours, the values of a block, tensors of different name, and seeds."""
    pytest.importorskip("torch")
    from trainyard.train.model.distributions import Normal

    values = drawn(Normal(1.0))
    pairs = {f"lag {lag}": (values[:-lag], values[lag:]) for lag in (1, 2, 3, 4, 8, 1024)}
    pairs |= {"name": (values, drawn(Normal(1.0), name="layers.1.mlp.up.weight"))}
    pairs |= {"seed": (values, drawn(Normal(1.0), seed=6))}
    pairs |= {"high bits of seed": (values, drawn(Normal(1.0), seed=5 + (1 << 40)))}
    pairs |= {"squares": (values[::4] ** 2, values[1::4] ** 2)}
    for name, pair in pairs.items():
        assert abs(np.corrcoef(*pair)[0, 1]) < 5 / sqrt(len(pair[0])), name


def test_normal_values_are_accurate_to_rounding():
    """Box and Muller in float64 from the same words, extreme words included."""
    torch = pytest.importorskip("torch")
    from trainyard.train.model.distributions import Normal, sample

    random = np.random.default_rng(1)
    words = random.integers(0, 2**32, (4, 50_000))
    extremes = [0, 1, 2, 2**29, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 3 * 2**30, 2**32 - 1]
    words[:, :100] = [np.repeat(extremes, 10), np.tile(extremes, 10)] * 2
    radius = np.sqrt(-2 * np.log((2 * (words[::2] // 2) + 1) / 2**32))  # (2, blocks)
    angle = ((words[1::2] & 0x3FFFFFFF) - 2**29) * (pi / 2 / 2**30)
    cosine = np.cos(angle) * np.where(words[1::2] >> 31 & 1, -1, 1)
    is_exchanged, sine = (words[1::2] >> 30 & 1).astype(bool), np.sin(angle)
    first, second = np.where(is_exchanged, sine, cosine), np.where(is_exchanged, cosine, sine)
    expected = np.stack([radius[0] * first[0], radius[0] * second[0], radius[1] * first[1], radius[1] * second[1]], 1)
    tensors = [torch.from_numpy(word) for word in words]
    values = sample(Normal(1.0), lambda _: tensors).numpy()
    assert np.abs(values).max() <= sqrt(2 * 32 * log(2))
    # Rounding u to float32 changes log(u) by up to 2**-24, which matters for u near 1.
    error = np.abs(values - expected)
    assert (error <= 4e-7 * np.abs(expected) + 1e-7 / np.maximum(radius, 1e-3).T.repeat(2, axis=1)).all()


def test_values_do_not_depend_on_their_number():
    """Vector instructions and the remainder of a loop give the same bits."""
    torch = pytest.importorskip("torch")
    from trainyard.train.model.distributions import Normal, sample

    words = torch.randint(0, 2**32, (4, 301), generator=torch.Generator().manual_seed(2))
    whole = sample(Normal(0.02), lambda _: list(words))
    for start, count in ((0, 1), (1, 7), (3, 33), (299, 2)):
        part = words[:, start : start + count]
        assert torch.equal(sample(Normal(0.02), lambda _, part=part: list(part)), whole[start : start + count])
