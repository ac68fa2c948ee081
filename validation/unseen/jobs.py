"""Small CPU training jobs, each with a known main cost: `python -m validation.unseen.jobs FOLDER JOB`.

Started by torch's launcher. Each job writes FOLDER/rank<N>.json, the profiler's trace of one rank.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

SLEEP_S = 0.08
STEPS = 10


@contextmanager
def recorded(folder: Path, *, marked: bool = True, stacks: bool = False) -> Iterator[profile]:
    """Profiles the block and writes its trace. If `marked`, the block calls `step()` of the profiler at the end of each
    step, and the first two steps are left out; else the whole block is one window without marks."""
    plan = schedule(wait=1, warmup=1, active=STEPS - 2) if marked else None
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, with_stack=stacks, record_shapes=True) as profiler:
        yield profiler
    profiler.export_chrome_trace(str(folder / f"rank{os.environ['RANK']}.json"))


def lstm(folder: Path) -> None:
    """A language model whose loop reads the loss of every step. Its main cost is the recurrent layer."""
    embedding, recurrent, head = nn.Embedding(1_000, 128), nn.LSTM(128, 192, 2, batch_first=True), nn.Linear(192, 1_000)
    model = nn.ModuleList([embedding, recurrent, head])
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    with recorded(folder) as profiler:
        for _ in range(STEPS):
            tokens = torch.randint(1_000, (8, 49))
            hidden, _ = recurrent(embedding(tokens[:, :-1]))
            loss = functional.cross_entropy(head(hidden).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            profiler.step()


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Pictures of run lengths, which Python decodes pixel by pixel."""

    def __len__(self) -> int:
        return 16 * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels: list[float] = []
        state = index
        while len(pixels) < 3 * 32 * 32:
            state = (1_103_515_245 * state + 12_345) % 2**31
            pixels += [state / 2**31] * (1 + state % 3)
        return torch.tensor(pixels[: 3 * 32 * 32]).view(3, 32, 32), index % 10


def cnn_loader(folder: Path) -> None:
    """A convolutional network. Its main cost is a data loader that decodes in the training process."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with recorded(folder, stacks=True) as profiler:
        for images, labels in DataLoader(Images(), batch_size=16):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            profiler.step()


def uneven_ranks(folder: Path) -> None:
    """DDP on two ranks. Rank 1 has the larger batch and sleeps for `SLEEP_S`, which is the main cost."""
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)))
    optimizer = torch.optim.AdamW(model.parameters())
    with recorded(folder) as profiler:
        for _ in range(STEPS):
            inputs = torch.randn(32 * (1 + rank), 256)
            if rank == 1:
                time.sleep(SLEEP_S)
            functional.mse_loss(model(inputs), inputs).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            profiler.step()


def accumulate(folder: Path) -> None:
    """Four micro-batches per update, without marks; an evaluation and a checkpoint follow the sixth of ten."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    with recorded(folder, marked=False):
        for step in range(STEPS):
            for _ in range(4):
                inputs = torch.randn(4, 32, 128)
                (functional.mse_loss(model(inputs), inputs) / 4).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == STEPS // 2:
                model.eval()
                with torch.no_grad():
                    for _ in range(20):
                        model(torch.randn(8, 32, 128))
                model.train()
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "checkpoint.pt")


class Broken(nn.Module):
    """A network whose forward pass reads a value, which breaks its graph in two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, 512), nn.Linear(512, 256)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs).relu()
        if hidden.sum().item() < 0:
            hidden = -hidden
        return self.second(hidden)


def compiled(folder: Path) -> None:
    """A compiled model with a graph break; one step has another batch size. Its main cost is the recompilation."""
    network = Broken()
    model = torch.compile(network, backend="aot_eager")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    with recorded(folder) as profiler:
        for step in range(STEPS):
            inputs = torch.randn(48 if step == STEPS // 2 else 64, 256)
            functional.mse_loss(model(inputs), inputs).backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()


def reinforce(folder: Path) -> None:
    """Policy gradients, without marks. The main cost is a simulated environment in Python, once per action."""
    policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(policy.parameters())
    with recorded(folder, marked=False):
        for episode in range(STEPS):
            state, chosen = [0.0] * 8, []
            for _ in range(12):
                distribution = torch.distributions.Categorical(logits=policy(torch.tensor(state)))
                action = distribution.sample()
                chosen.append(distribution.log_prob(action))
                state = simulated(state, int(action), episode)
            loss = -torch.stack(chosen).sum() * sum(state)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def simulated(state: list[float], action: int, seed: int) -> list[float]:
    """The next state of the environment, after some two thousand small steps in Python."""
    value = seed * 4 + action
    for _ in range(2_000):
        value = (1_103_515_245 * value + 12_345) % 2**31
        index = value % 8
        state = [*state[:index], 0.99 * state[index] + 0.01 * value / 2**31, *state[index + 1 :]]
    return state


def adversarial(folder: Path) -> None:
    """A generator and a critic with an optimizer each. The main cost is that each step writes pictures as text."""
    generator = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 784), nn.Tanh())
    critic = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
    adam = [torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.9)) for part in (generator, critic)]
    real = torch.rand(32, 784)
    with recorded(folder, stacks=True) as profiler:
        for _ in range(STEPS):
            fake = generator(torch.randn(32, 32))
            adam[1].zero_grad()
            (functional.softplus(-critic(real)) + functional.softplus(critic(fake.detach()))).mean().backward()
            adam[1].step()
            adam[0].zero_grad()
            functional.softplus(-critic(fake)).mean().backward()
            adam[0].step()
            save_pictures(fake.detach())
            profiler.step()


def save_pictures(pictures: torch.Tensor) -> None:
    """Formats the pictures' pixels as text."""
    text = io.StringIO()
    for row in pictures.tolist():
        text.write(" ".join([f"{127 * pixel + 128:3.0f}" for pixel in row]) + "\n")


def experts(folder: Path) -> None:
    """Three ranks exchange tokens. Rank 2 computes the popular expert, four times the work of the others."""
    rank = dist.get_rank()
    expert = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
    optimizer = torch.optim.SGD(expert.parameters(), lr=0.01)
    tokens = torch.randn(64, 256)
    with recorded(folder) as profiler:
        for _ in range(STEPS):
            gathered = [torch.empty_like(tokens) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, tokens)
            own = torch.cat(gathered * (8 if rank == 2 else 2))
            outputs = expert(own)
            dist.all_reduce(outputs.detach()[:64])
            outputs.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()


JOBS: dict[str, tuple[int, Callable[[Path], None]]] = {
    "lstm": (1, lstm),
    "cnn_loader": (1, cnn_loader),
    "uneven_ranks": (2, uneven_ranks),
    "accumulate": (1, accumulate),
    "compiled": (1, compiled),
    "reinforce": (1, reinforce),
    "adversarial": (1, adversarial),
    "experts": (3, experts),
}
"""Name -> number of ranks and the job."""


def main(folder: Path, name: str) -> None:
    """Runs one rank of a job, with one thread, so that threads do not wait for each other on a busy machine."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ranks, job = JOBS[name]
    if ranks > 1:
        dist.init_process_group("gloo")
    job(folder)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
