"""A training's budget of tokens, with what its days, dollars and energy depend on besides the step."""

from __future__ import annotations

import msgspec

from trainyard.machine import Claim
from trainyard.predict.economics.failures import DEVICE_MTBF, RESTART, SAVE
from trainyard.units import show_size


class TrainingBudget(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens`: to train on, 0 for none. `mtbf`: mean hours between failures of one device. `restart`: seconds from a
    failure until all ranks train again. `save`: seconds that a checkpoint stops the training, which `storage` replaces
    if it is set: bytes/s to the checkpoint store, of the whole job. `power_cap`: W of one device, None for no cap."""

    tokens: float = 0.0
    mtbf: Claim = DEVICE_MTBF
    restart: Claim = RESTART
    save: Claim = SAVE
    storage: Claim | None = None
    power_cap: Claim | None = None

    def save_of(self, checkpoint_bytes: float) -> Claim:
        """Seconds that a checkpoint of this size stops the training."""
        if self.storage is None:
            return self.save
        return Claim(
            value=checkpoint_bytes / self.storage.value,
            unit="s",
            source=f"{show_size(checkpoint_bytes)} written at {show_size(self.storage.value)}/s "
            f"({self.storage.source}) while the training waits",
        )


NO_BUDGET = TrainingBudget()
"""Only a step is planned."""
