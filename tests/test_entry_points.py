"""Entry points read from metadata folders equal those of importlib.metadata."""

import sys
from importlib import metadata

import pytest

from trainyard.entry_points import EntryPoint, entry_points

GROUPS = [
    "console_scripts",
    "pytest11",
    "trainyard.detectors",
    "trainyard.readers",
    "trainyard.vendors",
    "no.such.group",
]


@pytest.mark.parametrize("group", GROUPS)
def test_they_are_those_of_importlib(group):
    expected = sorted((point.name, point.value) for point in metadata.entry_points(group=group))
    assert sorted(entry_points(group)) == expected


def test_the_first_package_of_a_name_counts(tmp_path, monkeypatch):
    for folder, package, value in (
        ("a", "My.Pack-1.0", "one:x"),
        ("b", "my_pack-2.0", "two:x"),
        ("b", "other-1", "o:x"),
    ):
        info = tmp_path / folder / f"{package}.dist-info"
        info.mkdir(parents=True)
        (info / "entry_points.txt").write_text(f"[some.group]\n# a comment\nname = {value}\n[other.group]\nname = y\n")
        (info / "METADATA").write_text(f"Name: {package.partition('-')[0]}\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "absent")])
    assert entry_points("some.group") == [EntryPoint("name", "one:x"), EntryPoint("name", "o:x")]


def test_packages_outside_of_folders_are_left_to_importlib(tmp_path, monkeypatch):
    archive = tmp_path / "packages.zip"
    archive.write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(archive)])
    monkeypatch.setattr(metadata, "entry_points", lambda group: [metadata.EntryPoint("zipped", "a:b", group)])
    assert entry_points("some.group") == [EntryPoint("zipped", "a:b")]


@pytest.mark.parametrize("value", ["trainyard.units:show_time", "trainyard.units : show_time [extra]"])
def test_loading_imports_the_attribute(value):
    point = EntryPoint("name", value)
    assert point.load()(2_000_000) == "2.0 ms"
    assert point.module == "trainyard.units"
