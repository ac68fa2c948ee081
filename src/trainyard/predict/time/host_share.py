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
    # All cases with the host as it is, then all again with one that takes twice as long, in one batch.
    rows, factor = np.tile(np.arange(len(cases)), 2), np.repeat((1.0, 2.0), len(cases))
    hosts = tuned._replace(**{name: factor * getattr(tuned, name) for name in HOST_S})
    bounds = step.bound(cases.take(rows), hardware.take(rows % np.size(hardware.peak)), hosts)
    as_is, slower = np.broadcast_to(bounds, len(rows)).reshape(2, -1)
    return np.log2(slower / as_is)
