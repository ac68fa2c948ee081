"""A training script with three planted costs: a slow augmentation, a log that is flushed, a metric in Python."""

import time

import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return torch.relu(self.linear(x))


def augment():
    time.sleep(0.03)


def log(loss):
    time.sleep(0.01)


def train_step(model, optimizer):
    augment()
    loss = model(torch.randn(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    log(loss)


def main(steps=22, after_step=lambda: None):
    model = torch.nn.Sequential(Block(), Block())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        train_step(model, optimizer)
        after_step()


if __name__ == "__main__":
    main()
