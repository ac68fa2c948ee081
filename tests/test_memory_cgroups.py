"""The memory limit of a container, by files as the kernel shows them in containers of version 1 and 2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainyard.memory_cgroups import memory_groups, memory_limit_bytes

GIB = 1 << 30
V1_UNLIMITED = 9223372036854771712


class Host:
    """Files of procfs and of cgroups below a folder."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "sys fs"
        (self.proc / "self").mkdir(parents=True)
        self.cgroups.mkdir()
        self.mounts: list[str] = []

    def mount(self, version: int, root: str = "/", name: str = "") -> None:
        """Mount a hierarchy whose group `root` is seen at the mount point."""
        point = str(self.cgroups / name).replace(" ", "\\040")
        kind = "cgroup2 cgroup2 rw,nsdelegate" if version == 2 else "cgroup cgroup rw,memory"
        self.mounts.append(f"30 23 0:26 {root} {point} rw,nosuid shared:9 - {kind}")
        (self.proc / "self" / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/a rw\n" + "\n".join(self.mounts))

    def process(self, *lines: str) -> None:
        (self.proc / "self" / "cgroup").write_text("\n".join(lines) + "\n")

    def write(self, group: str, name: str, text: object) -> None:
        path = self.cgroups / group / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def limit(self) -> int:
        return memory_limit_bytes(memory_groups(proc=self.proc))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"a/b": 2 * GIB}, 2 * GIB),
        ({"a": GIB, "a/b": 2 * GIB}, GIB),
        ({"a": 3 * GIB, "a/b": "max"}, 3 * GIB),
        ({"": GIB, "a": "max", "a/b": "max"}, GIB),
        ({"a": "max", "a/b": "max"}, 0),
        ({"a/other": GIB, "a/b": "max"}, 0),
        ({"a/b": "garbage"}, 0),
    ],
)
def test_lowest_limit_of_nested_groups_applies(host: Host, limits: dict[str, object], expected: int) -> None:
    host.mount(2)
    host.process("0::/a/b")
    (host.cgroups / "a" / "b").mkdir(parents=True)
    for group, limit in limits.items():
        host.write(group, "memory.max", limit)
    assert host.limit() == expected


@pytest.mark.parametrize(("root", "group"), [("/", "/"), ("/pod", "/../outside")], ids=["is the root", "is outside"])
def test_limit_of_the_mounted_group_applies(host: Host, root: str, group: str) -> None:
    host.mount(2, root=root)
    host.process(f"0::{group}")
    host.write("", "memory.max", GIB)
    assert host.limit() == GIB


def test_container_with_the_path_of_the_host(host: Host) -> None:
    host.mount(1, root="/docker/abc", name="memory")
    host.process("4:memory:/docker/abc/inner", "3:cpuset:/elsewhere")
    host.write("memory", "memory.limit_in_bytes", 3 * GIB)
    host.write("memory/inner", "memory.limit_in_bytes", V1_UNLIMITED)
    assert host.limit() == 3 * GIB


def test_version_1_limit_of_hidden_ancestors(host: Host) -> None:
    host.mount(1, name="memory")
    host.process("4:cpu,memory:/a")
    host.write("memory/a", "memory.limit_in_bytes", V1_UNLIMITED)
    host.write("memory/a", "memory.stat", f"cache 1\nhierarchical_memory_limit {2 * GIB}\ntotal_cache 5")
    assert host.limit() == 2 * GIB


def test_hybrid_hierarchies_are_both_read(host: Host) -> None:
    host.mount(1, name="memory")
    host.mount(2, name="unified")
    host.process("4:memory:/a", "0::/")
    host.write("memory/a", "memory.limit_in_bytes", GIB)
    host.write("unified", "memory.max", "max")
    assert host.limit() == GIB


def test_no_cgroups_and_ended_processes_have_no_limit(host: Host) -> None:
    assert host.limit() == 0
    host.mount(2)
    assert memory_groups(12345, proc=host.proc) == []


def test_cpu_has_the_memory_of_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainyard.vendors import cpu_vendor

    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    monkeypatch.setattr(cpu_vendor, "memory_limit_bytes", lambda _: 0)
    assert cpu_vendor.Cpu().devices()[0].memory_bytes == host_bytes
    monkeypatch.setattr(cpu_vendor, "memory_limit_bytes", lambda _: GIB)
    (device,) = cpu_vendor.Cpu().devices()
    assert device.memory_bytes == GIB
    assert "memory_limit" in device.facts
    monkeypatch.setattr(cpu_vendor, "memory_limit_bytes", lambda _: 2 * host_bytes)
    assert cpu_vendor.Cpu().devices()[0].memory_bytes == host_bytes
