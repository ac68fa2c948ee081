"""Rotary embeddings of packed sequences that take the positions of the first sequence for all.

Rebuilt after NVIDIA/Megatron-LM#5243, "Fix packed THD RoPE under CP". With context parallelism, a rank has the front
and the back part of each packed sequence; the positions of its tokens are a slice of a table with a row per packed
token, which must start at the sequence. The packed sequences continue earlier ones, so that their positions start at
different numbers. Run with torchrun, two ranks.
"""

from __future__ import annotations

import torch
from batches import VOCABULARY, Tokens, token_batch, token_loss
from collectives import GatherRanks, average_gradients, process_group
from command_line import parse_options, print_loss, print_weights
from decoder import HEADS, WIDTH, FeedForward, RMSNorm, Rotary
from torch import Tensor, nn

LENGTHS, FIRST_POSITIONS = (8, 16, 8), (0, 40, 7)
"""Length of each packed sequence, and position of its first token."""


def rows_of_rank(rank: int, ranks: int) -> list[Tensor]:
    """Rows of the packed tokens that a rank has, by sequence: of 2 x ranks equal parts, the front and the back one."""
    rows, start = [], 0
    for length in LENGTHS:
        parts = torch.arange(start, start + length).chunk(2 * ranks)
        rows.append(torch.cat((parts[rank], parts[2 * ranks - 1 - rank])))
        start += length
    return rows


class PackedAttention(nn.Module):
    """Causal attention within each packed sequence; keys and values are all-gathered.

    `ignores_starts`: whether positions of all sequences are read from the start of the table.
    """

    def __init__(self, rank: int, ranks: int, ignores_starts: bool) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.rotary = Rotary()
        table = torch.cat([torch.arange(length) + first for length, first in zip(LENGTHS, FIRST_POSITIONS)])
        starts = torch.tensor([0, *LENGTHS]).cumsum(0)
        own = rows_of_rank(rank, ranks)
        read = [rows - start for rows, start in zip(own, starts)] if ignores_starts else own
        self.positions = table[torch.cat(read)]
        all_rows = torch.cat([torch.cat(rows_of_rank(other, ranks)) for other in range(ranks)])
        sequence = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
        rows = torch.cat(own)
        self.hidden = (sequence[rows][:, None] != sequence[all_rows]) | (rows[:, None] < all_rows)

    def forward(self, x: Tensor) -> Tensor:
        """[1, token, width] of this rank -> the same shape."""
        query, key, value = (
            linear(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for linear in (self.wq, self.wk, self.wv)
        )
        query, key = self.rotary(query, self.positions), self.rotary(key, self.positions)
        key, value = (torch.cat(tuple(GatherRanks.apply(local)), dim=2) for local in (key, value))
        scores = query @ key.mT * (WIDTH // HEADS) ** -0.5
        weights = scores.masked_fill(self.hidden, float("-inf")).softmax(-1)
        return self.wo((weights @ value).transpose(1, 2).flatten(2))


class PackedLayer(nn.Module):
    def __init__(self, attention: PackedAttention) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(), attention
        self.mlp_norm, self.mlp = RMSNorm(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class PackedDecoder(nn.Module):
    def __init__(self, rank: int, ranks: int, ignores_starts: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(PackedLayer(PackedAttention(rank, ranks, ignores_starts)) for _ in range(2))
        self.norm = RMSNorm()
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def packed_batch(seed: int, step: int) -> Tokens:
    """One row of tokens: sequences of `LENGTHS`, one after the other."""
    samples = [token_batch(seed, 100 * step + number, 1, length) for number, length in enumerate(LENGTHS)]
    return Tokens(torch.cat([s.inputs for s in samples], dim=1), torch.cat([s.labels for s in samples], dim=1))


def main() -> None:
    options = parse_options(__doc__)
    with process_group() as (rank, ranks):
        model = PackedDecoder(rank, ranks, ignores_starts=options.faulty)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        own = torch.cat(rows_of_rank(rank, ranks))
        for step in range(options.steps):
            optimizer.zero_grad()
            batch = packed_batch(options.seed, step)
            loss = token_loss(model(batch.inputs[:, own]), batch.labels[:, own])
            loss.backward()
            average_gradients(model.parameters())
            optimizer.step()
            print_loss(step, loss)
        print_weights(model)


if __name__ == "__main__":
    main()
