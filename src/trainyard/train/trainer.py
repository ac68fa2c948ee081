"""One training step: data, forward, backward, clip, optimizer."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainyard.job import Job
from trainyard.train import layout, text, weights
from trainyard.train.outcome import About, Outcome
from trainyard.train.parallel import Spread
from trainyard.train.ranks import Ranks
from trainyard.train.span import span

CLIP = 1.0
"""The global gradient norm is brought down to this."""
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1


class Trainer:
    """A rank's part of the training; a `Training`. Call with the step's number, on all ranks alike.

    The global batch is split first over ranks, then over micro-batches of equal size, and all are averaged:
    any split gives the same loss and gradients, to rounding.
    """

    def __init__(self, job: Job, ranks: Ranks, model_flops: int) -> None:
        """Raises `BadJob` for what this step cannot train."""
        layout.check(job)
        self.job = job
        self.ranks = ranks
        self.model_flops = model_flops
        self.text = text.read(job.recipe.text)
        self.spread = Spread(job, ranks)
        self.optimizer = torch.optim.AdamW(
            self.spread.decoder.parameters(),
            lr=job.recipe.learning_rate,
            betas=BETAS,
            weight_decay=WEIGHT_DECAY,
            fused=True,
        )
        self.initial = weights.digest(self.spread.decoder)

    def __call__(self, step: int) -> Outcome:
        micro_MBT = self._data(step)
        self.optimizer.zero_grad()
        loss = self._forward_backward(micro_MBT)
        norm = torch.nn.utils.clip_grad_norm_(self.spread.decoder.parameters(), CLIP)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        self.optimizer.step()
        if self.ranks.world > 1:
            dist.all_reduce(loss)
        return Outcome(loss.item() / self.ranks.world, norm.item())

    def _data(self, step: int) -> Tensor:
        """(M micro-batches, B sequences, T + 1 bytes), on the device."""
        job, recipe = self.job, self.job.recipe
        mine = job.accumulate * recipe.microbatch
        with span("wait_for_batch"):
            first = self.ranks.rank * mine
            bytes_ST = text.batch(self.text, recipe.seq_len, recipe.seed, step, range(first, first + mine))
            batch_MBT = torch.from_numpy(bytes_ST).unflatten(0, (job.accumulate, recipe.microbatch))
            return batch_MBT.to(self.ranks.device).long()

    def _forward_backward(self, micro_MBT: Tensor) -> Tensor:
        """This rank's mean loss; the gradients stay in the parameters."""
        total = torch.zeros((), device=self.ranks.device)
        for number, batch_BT in enumerate(micro_MBT, start=1):
            with self.spread.micro_batch(last=number == len(micro_MBT)):
                loss = self.spread.call(batch_BT[:, :-1], batch_BT[:, 1:]) / len(micro_MBT)
                loss.backward()
            total += loss.detach()
        return total

    def about(self) -> About:
        digests = {"text": self.text.sha256}
        final = weights.digest(self.spread.decoder)
        if self.initial and final:
            digests |= {"weights_initial": self.initial, "weights_final": final}
        else:
            digests["weights"] = f"none: they are larger than {weights.DIGEST_CAP / 1e9:.0f} GB"
        seed = self.job.recipe.seed
        parameters = weights.count(self.spread.decoder)
        return About(self.text.source, digests, {"weights": seed, "samples": seed}, parameters, self.model_flops)
