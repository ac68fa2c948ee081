"""Frames as profilers name them: file, line, function and owner."""

import pytest

from trainyard.code_location import LIBRARY, SYSTEM, USER, CodeLocation, owner_of, parse_frame, show_path


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("train.py", USER),
        ("my_project/data/loader.py", USER),
        ("/home/a/project/train.py", USER),
        ("/home/a/project/queue.py", USER),  # absolute: not the standard library's
        ("<ipython-input-3-abc>", USER),
        ("/scratch/ipykernel_17/221.py", USER),
        ("torch/nn/modules/module.py", SYSTEM),
        ("/opt/pytorch/torch/optim/adam.py", SYSTEM),
        ("/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", SYSTEM),
        ("/venv/lib/python3.11/site-packages/rare_package/x.py", LIBRARY),
        ("/usr/lib/python3/dist-packages/rare_package/x.py", LIBRARY),
        ("transformers/trainer.py", LIBRARY),
        ("threading.py", SYSTEM),
        ("logging/__init__.py", SYSTEM),
        ("/usr/lib/python3.12/queue.py", SYSTEM),
        ("<frozen importlib._bootstrap>", SYSTEM),
        ("<string>", SYSTEM),
    ],
)
def test_owner_follows_from_the_path(path, owner):
    assert owner_of(path) == owner


@pytest.mark.parametrize(
    ("name", "location"),
    [
        ("train.py(52): log", CodeLocation("train.py", 52, "log")),
        ("a b/(x).py(7): <module>", CodeLocation("a b/(x).py", 7, "<module>")),
        ("<string>(1): __init__", CodeLocation("<string>", 1, "__init__")),
    ],
)
def test_frame_names_are_parsed(name, location):
    frame = parse_frame(name)
    assert frame is not None
    assert frame.location == location


@pytest.mark.parametrize(
    "name", ["<built-in function sleep>", "aten::mm", "nn.Module: Linear_0", "train.py", "x.py(): f"]
)
def test_other_names_are_no_frames(name):
    assert parse_frame(name) is None


def test_hostile_frame_names_are_bounded():
    frame = parse_frame("d/" * 50_000 + "x.py(3): " + "f" * 50_000)
    assert frame is not None
    assert len(frame.location.file) <= 400
    assert len(frame.location.function) <= 120
    assert len(show_path(frame.location.file)) <= 48
