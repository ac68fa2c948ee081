"""A training whose operations are checked: a small transformer or image classifier, with a wrong kernel on request."""

import argparse
import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, 2, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.silu(self.up(self.mlp_norm(x))))


class Decoder(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding, self.block, self.head = nn.Embedding(32, width), Block(width), nn.Linear(width, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embedding(tokens)))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, stride=2)
        )
        self.head = nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(images).mean((2, 3)))


def break_silu() -> object:
    """Makes silu on the CPU wrong in float32, by one part in a thousand."""
    library = torch.library.Library("aten", "IMPL")

    def silu(x: torch.Tensor) -> torch.Tensor:
        wide = x.double()
        return (wide * torch.sigmoid(wide) * (1.001 if x.dtype == torch.float32 else 1)).to(x.dtype)

    library.impl("silu", silu, "CPU")
    return library


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["decoder", "classifier"], default="decoder")
    parser.add_argument("--kernel", action="store_true")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--optimizer", default="foreach", choices=["foreach", "fused", "single"])
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--float64", action="store_true")
    options = parser.parse_args()
    library = break_silu() if options.kernel else None
    torch.manual_seed(0)
    if options.float64:
        torch.set_default_dtype(torch.float64)
    is_distributed = dist.is_torchelastic_launched()
    if is_distributed:
        dist.init_process_group("gloo")
    network: Any = Decoder() if options.model == "decoder" else Classifier()
    if options.channels_last:
        network = network.to(memory_format=torch.channels_last)
    model = nn.parallel.DistributedDataParallel(network) if is_distributed else network
    way: dict[str, Any] = {"foreach": {"foreach": True}, "fused": {"fused": True}, "single": {"foreach": False}}[
        options.optimizer
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **way)
    for _ in range(options.steps):
        context = torch.autocast("cpu", torch.bfloat16) if options.bfloat16 else contextlib.nullcontext()
        with context:
            if options.model == "decoder":
                tokens = torch.randint(32, (4, 13))
                logits, labels = model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
            else:
                images = torch.randn(4, 3, 12, 12)
                if options.channels_last:
                    images = images.to(memory_format=torch.channels_last)
                logits, labels = model(images), torch.randint(10, (4,))
        functional.cross_entropy(logits if options.float64 else logits.float(), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if options.fail:
        raise SystemExit(3)
    if is_distributed:
        dist.destroy_process_group()
    del library


if __name__ == "__main__":
    main()
