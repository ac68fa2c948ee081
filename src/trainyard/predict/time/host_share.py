"""The share of a step that is bound by its host.

A host's time per layer differs by processor, library and compilation more than a device's rates do, so that the error
of a prediction grows with this share.
"""

from __future__ import annotations

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import HOST_S, Constants
from trainyard.predict.inputs.hardware import RankHardware
from trainyard.predict.time import step


def host_share(cases: Cases, hardware: RankHardware, tuned: Constants) -> Column:
    """How a step grows with the host's time: 0 if a host that takes twice as long leaves the step as it is, 1 if it
    doubles the step. Of the lower bound of the step, which is exact without a pipeline."""
    # [time of the host, case]: as it is, and twice as long.
    hosts = tuned._replace(**{name: np.array([[1.0], [2.0]]) * getattr(tuned, name) for name in HOST_S})
    as_is, slower = np.broadcast_to(step.bound(cases, hardware, hosts), (2, len(cases)))
    return np.log2(slower / as_is)
