"""Edits of a real model, recorded on the CPU: another attention, a renamed module and a moved layer are found."""

import math
import re
from collections import Counter

import pytest

from trainyard import api

torch = pytest.importorskip("torch")
WIDTH, HEADS, LAYERS = 16, 2, 2


class Attention(torch.nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.fused = fused

    def forward(self, x):
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        if self.fused:
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(WIDTH // HEADS), -1).matmul(v)
        return y.transpose(1, 2).reshape(x.shape)


class Mlp(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 32), torch.nn.Linear(32, WIDTH)
        self.norm = norm

    def forward(self, x):
        y = self.down(torch.nn.functional.gelu(self.up(x)))
        return self.norm(y) if self.norm else y


class FeedForward(Mlp):
    pass


class Block(torch.nn.Module):
    def __init__(self, fused, mlp, norm_in_mlp):
        super().__init__()
        norm = torch.nn.LayerNorm(WIDTH)
        self.attention = Attention(fused)
        self.norm = None if norm_in_mlp else norm
        self.mlp = mlp(norm if norm_in_mlp else None)

    def forward(self, x):
        y = self.mlp(x + self.attention(x))
        return x + (self.norm(y) if self.norm else y)


def record(path, fused=False, mlp=Mlp, norm_in_mlp=False):
    model = torch.nn.Sequential(*(Block(fused, mlp, norm_in_mlp) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=2)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule, record_shapes=True, with_stack=True,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:  # fmt: skip
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 8, WIDTH)).square().mean().backward()
            optimizer.step()
            profiler.step()
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return record(tmp_path_factory.mktemp("base") / "base.json")


def edits(base, path, **edit):
    """The changes of structure in the forward and backward pass: (match, path, path before, places, n, m).

    A layer whose time changed far more than that of the others is a change of its own; its places are added to theirs.
    """
    comparison = api.diff(base, record(path, **edit))
    changes = comparison.operations
    assert sum(change.ns for change in changes.largest) + changes.rest_ns == comparison.wall_change_ns
    places = Counter()
    for row in changes.largest:
        is_module = row.match != "same" and row.path[0] in ("forward", "backward") and row.kind == "module"
        if is_module or row.joined_after:
            joined = (row.joined_before, row.joined_after)
            places[row.match, unnumbered(row.path), unnumbered(row.path_before), joined] += row.places
    return {(match, path, before, count, *joined) for (match, path, before, joined), count in places.items()}


def unnumbered(path):
    """A path whose modules have no numbers."""
    return tuple(re.sub(r"_\d+$", "_*", name) for name in path)


BLOCK = ("Sequential_*", "Block_*")


def test_fused_attention_is_reported_for_every_layer(base, tmp_path):
    changes = edits(base, tmp_path / "fused.json", fused=True)
    fused = {(path[0], places, before, after) for _, path, _, places, before, after in changes}
    assert ("forward", LAYERS, 3, 1) in fused  # matmul, div and softmax
    assert {match for match, *_ in changes} == {"fused"}
    assert {phase for phase, *_ in fused} == {"forward", "backward"}


def test_renamed_modules_are_reported_for_every_layer(base, tmp_path):
    assert edits(base, tmp_path / "renamed.json", mlp=FeedForward) == {
        ("renamed", (phase, *BLOCK, "FeedForward_*"), (phase, *BLOCK, "Mlp_*"), LAYERS, 0, 0)
        for phase in ("forward", "backward")
    }


def test_moved_layers_are_reported_below_their_new_parent(base, tmp_path):
    assert edits(base, tmp_path / "moved.json", norm_in_mlp=True) == {
        ("moved", (phase, *BLOCK, "Mlp_*", "LayerNorm_*"), (phase, *BLOCK, "LayerNorm_*"), LAYERS, 0, 0)
        for phase in ("forward", "backward")
    }


def test_the_same_program_has_no_changes_of_structure(base, tmp_path):
    assert edits(base, tmp_path / "same.json") == set()
