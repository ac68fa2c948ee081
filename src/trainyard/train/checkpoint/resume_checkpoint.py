"""Resumes a training run from its newest undamaged checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue
from typing import NamedTuple

from torch import Tensor

from trainyard.errors import BadFile, BadJob
from trainyard.job import Job
from trainyard.train.checkpoint import training_state
from trainyard.train.checkpoint.checkpoint_reader import read_into
from trainyard.train.checkpoint.checkpoint_store import CheckpointStore
from trainyard.train.checkpoint.manifest import Manifest, damage
from trainyard.train.checkpoint.rank_group import CheckpointGroup
from trainyard.train.checkpoint.same_training import differences
from trainyard.train.checkpoint.training_state import SkipsInitialWeights, Stateful
from trainyard.train.process_group import Ranks


class Notice(NamedTuple):
    """A checkpoint fault that training survived. `kind`: `disk_full` or `bad_checkpoint`; `step`: the last step in the
    checkpoint; `message`: for the user; `rank`: the rank it occurred on, -1 if it concerns all."""

    kind: str
    step: int
    message: str
    rank: int = -1


class Resume(NamedTuple):
    """The training to resume, its process group and its checkpoints."""

    job: Job
    ranks: Ranks
    training: Stateful
    group: CheckpointGroup
    store: CheckpointStore
    notices: SimpleQueue[Notice]

    def load_last_good(self) -> int:
        """Loads the newest undamaged checkpoint into the training and returns its last step; -1 without a checkpoint:
        then a training that was built without initial weights draws them.

        A damaged checkpoint is set aside with a `bad_checkpoint` notice, and the previous one is tried. Raises `BadJob`
        if an undamaged one is of another model.
        """
        if self.group.is_rank_0:
            self.store.clear()
        while (step := self.group.broadcast(next(iter(self.store.steps()), -1))) >= 0:
            if manifest := self._verified(step):
                self._load(manifest)
                break
        if step < 0 and isinstance(self.training, SkipsInitialWeights):
            self.training.draw_weights()
        return step

    def _verified(self, step: int) -> Manifest | None:
        """The manifest of the checkpoint after `step`, after the ranks have verified its files, each some of them.

        Returns None if it or a file is damaged: then rank 0 sets the checkpoint aside, and a notice with the reason is
        queued. Collective.
        """
        manifest: Manifest | str = ""  # a string is the reason why it cannot be read
        if self.group.is_rank_0:
            try:
                manifest = self.store.read(step)
            except (BadFile, OSError) as error:
                manifest = str(error)
        manifest = self.group.broadcast(manifest)
        reason = manifest if isinstance(manifest, str) else self._damage(manifest)
        if isinstance(manifest, Manifest) and not reason:
            return manifest
        folder = self.store.set_aside(step, reason).name if self.group.is_rank_0 else ""
        folder = self.group.broadcast(folder)
        message = f"the checkpoint after step {step + 1} is set aside as {folder}: {reason.rstrip('.')}"
        self.notices.put(Notice(kind="bad_checkpoint", step=step, message=message))
        return None

    def _damage(self, manifest: Manifest) -> str:
        """Describes the damage of its files, of which each rank reads a part; empty if there is none."""
        own_files = sorted(manifest.files)[self.ranks.rank :: self.ranks.world]
        damages = self.group.all_gather(damage(self.store.folder(manifest.step), manifest, own_files))
        return "; ".join(filter(None, damages))

    def _load(self, manifest: Manifest) -> None:
        """Loads a verified checkpoint. Raises `BadJob` if it is of another training, `BadFile` if its values cannot be
        used."""
        training_state.initialize_optimizer_state(self.training)
        weights, optimizer = training_state.weights(self.training), training_state.optimizer_state(self.training)
        generators = training_state.generators(self.ranks.rank, self.ranks.device)
        state = weights | {name: value for name, value in optimizer.items() if name in manifest.tensors}
        if self.ranks.world == manifest.ranks and generators.keys() <= manifest.tensors.keys():
            state |= generators
        self._check(manifest, state)
        read_into(state, self.store.folder(manifest.step), manifest, self.group)
        training_state.finish_load(self.training, state)
        self.training.set_numbers(manifest.numbers)
        if isinstance(self.training, SkipsInitialWeights):
            self.training.set_digests(manifest.digests)
        if generators.keys() <= state.keys():
            try:
                training_state.set_generators(generators, self.ranks.device)
            except RuntimeError as error:
                raise BadFile(f"{_named(manifest)} cannot be used: {str(error).rstrip('.')}.") from error

    def _check(self, manifest: Manifest, state: Mapping[str, Tensor]) -> None:
        """Raises `BadJob` if the checkpoint is of another model or training, `BadFile` if a dtype differs. `state`:
        the tensors to load, by stored name."""
        checkpoint = _named(manifest)
        for name, tensor in state.items():
            stored, parameter = manifest.tensors.get(name), name.partition("/")[2]
            shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
            if stored is None or stored.shape != shape:
                difference = (
                    f"{parameter} has shape {shape}, there {stored.shape}" if stored else f"it lacks {parameter}"
                )
                raise BadJob(f"{checkpoint} is of another model: {difference}.", "Resume with the job that saved it.")
            if stored.dtype != dtype:
                raise BadFile(f"{checkpoint} cannot be used: {parameter} is {dtype}, in the checkpoint {stored.dtype}.")
        if mismatches := list(differences(manifest.job, self.job)):
            raise BadJob(
                f"{checkpoint} is of another training: {'; '.join(mismatches)}.",
                "Remove it from the run's folder, or resume with the job that saved it.",
            )


def _named(manifest: Manifest) -> str:
    """The name of a checkpoint in messages, which count steps from 1."""
    return f"the checkpoint after step {manifest.step + 1}"
