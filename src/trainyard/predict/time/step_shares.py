"""The shares of a step that are bound by its host and by attention.

A host's time per layer differs by processor, library and compilation more than a device's rates do, and the rate of
attention by its kernel and the length of the sequence, so that the error of a prediction grows with these shares.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import HOST_S, Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import step


class StepShares(NamedTuple):
    """How a step grows with the time of its host, and of attention, as a logarithm to base 2: 0 if the step stays as it
    is when they take twice as long, 1 if it doubles."""

    host: Column
    attention: Column


def step_shares(cases: Cases, hardware: RankHardware, tuned: Constants) -> StepShares:
    """The shares of the lower bound of the step, which is exact without a pipeline."""
    # [variant, case]: as it is, with a host that takes twice as long, and with attention that does.
    host, attention = np.array([[1.0], [2.0], [1.0]]), np.array([[1.0], [1.0], [2.0]])
    slower = tuned._replace(
        **{name: host * getattr(tuned, name) for name in HOST_S},
        attention=tuned.attention / attention,
        scores=tuned.scores * attention,
    )
    as_is, *variants = np.broadcast_to(step.bound(cases, hardware, slower), (3, len(cases)))
    return StepShares(*(np.log2(variant / as_is) for variant in variants))
