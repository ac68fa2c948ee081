"""Train a small convolutional network on images, as in any first PyTorch script. The tutorial finds out why it is slow.

    python examples/tutorial/train.py
    python examples/tutorial/train.py --decode-once

The images are random, so there is nothing to download. Reading one decodes and augments it, as with photographs.
"""

import argparse
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import trainyard

BATCH, CLASSES, STORED, PIXELS = 32, 10, 192, 32
"""Images per step, classes, and the width and height of an image: as stored, and as trained."""


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Images compressed as on a disk. Reading one decodes it, crops it at random, and mirrors every other one."""

    def __init__(self, count: int, decode_once: bool) -> None:
        self.random = np.random.default_rng(0)
        shape = (3, STORED, STORED)
        self.files = [zlib.compress(self.random.integers(0, 64, shape, np.uint8).tobytes()) for _ in range(count)]
        self.labels = self.random.integers(0, CLASSES, count).tolist()
        self.decoded = [self.decode(index) for index in range(count)] if decode_once else None

    def __len__(self) -> int:
        return len(self.labels)

    def decode(self, index: int) -> np.ndarray:
        return np.frombuffer(zlib.decompress(self.files[index]), np.uint8).reshape(3, STORED, STORED)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        stored = self.decoded[index] if self.decoded else self.decode(index)
        top, left = self.random.integers(0, STORED - PIXELS, 2)
        image = stored[:, top : top + PIXELS, left : left + PIXELS]
        if self.random.random() < 0.5:
            image = image[:, :, ::-1]
        return torch.from_numpy(image.astype(np.float32) / 64), self.labels[index]


def build_model() -> torch.nn.Module:
    def block(channels: int, outputs: int) -> torch.nn.Sequential:
        convolution = torch.nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
        return torch.nn.Sequential(convolution, torch.nn.BatchNorm2d(outputs), torch.nn.ReLU(), torch.nn.MaxPool2d(2))

    head = (torch.nn.Flatten(), torch.nn.Linear(32 * (PIXELS // 8) ** 2, CLASSES))
    return torch.nn.Sequential(block(3, 8), block(8, 16), block(16, 32), *head)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--decode-once", action="store_true", help="decode all images before the first step")
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Images(8 * BATCH, args.decode_once), BATCH, shuffle=True)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for images, labels in loader:
            with trainyard.step(tokens=len(labels)):
                loss = F.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
