"""The memory cgroups of a process, version 1 and 2, and the memory limit of a container. Linux only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 60
"""Version 1 reports a limit of nearly 2^63 bytes if there is none."""


def memory_groups(pid: int | str = "self", proc: Path = Path("/proc")) -> list[Path]:
    """Return the folders of the cgroups that account the memory of process `pid`: its own, then its ancestors, up to
    the outermost one that this process can see; those of version 1 first. `proc`: where procfs is mounted.

    A limit of any of them applies. Empty if there are none, or the process has ended.
    """
    paths = dict(_group_paths(proc / str(pid) / "cgroup"))
    folders: list[Path] = []
    for version, root, mount in _mounts(proc / "self" / "mountinfo"):
        if version not in paths:
            continue
        own = Path(paths[version])
        # A container may see the path of its group on the host, of which only a part, or nothing, is mounted.
        relative = own.relative_to(root) if own.is_relative_to(root) else Path()
        candidate = mount / relative
        candidate = candidate if candidate.is_dir() and ".." not in relative.parts else mount
        folders += [folder for folder in (candidate, *candidate.parents) if folder.is_relative_to(mount)]
    return folders


def memory_limit_bytes(folders: list[Path]) -> int:
    """Return the lowest memory limit of the cgroups `folders` (`memory_groups`) in bytes; 0 if there is none.

    Version 1 also reports the lowest limit of the ancestors that a container does not see.
    """
    return min((limit for folder in folders for limit in _limits(folder)), default=0)


def _limits(folder: Path) -> Iterator[int]:
    """Yield the limits in bytes that the files of a cgroup state; unlimited ones (`max`, nearly 2^63) are left out."""
    texts = [_read(folder / "memory.max"), _read(folder / "memory.limit_in_bytes")]
    texts += re.findall(r"^hierarchical_memory_limit (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
    for text in texts:
        if text.isdecimal() and int(text) < _UNLIMITED:
            yield int(text)


def _group_paths(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (version, path of the memory cgroup) from a file /proc/PID/cgroup.

    Its lines are NUMBER:CONTROLLERS:PATH; that of version 2 has no controllers.
    """
    for line in _read(path).splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, group = rest.partition(":")
        if separator and (not controllers or "memory" in controllers.split(",")):
            yield (1 if controllers else 2), group


def _mounts(path: Path) -> list[tuple[int, Path, Path]]:
    """Return (version, root, mount point) of each mounted hierarchy of memory cgroups, version 1 first, from a file
    /proc/PID/mountinfo. `root`: the cgroup that is mounted there."""
    hierarchies: list[tuple[int, Path, Path]] = []
    for line in _read(path).splitlines():
        mount_fields, _, type_fields = line.partition(" - ")
        fields, types = mount_fields.split(), type_fields.split()
        if len(fields) < 5 or len(types) < 3:
            continue
        if types[0] == "cgroup2" or (types[0] == "cgroup" and "memory" in types[2].split(",")):
            version = 2 if types[0] == "cgroup2" else 1
            hierarchies.append((version, Path(_unescape(fields[3])), Path(_unescape(fields[4]))))
    return sorted(hierarchies)


def _unescape(text: str) -> str:
    """Replace the octal escapes of blanks in a field of mountinfo, such as `\\040`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _read(path: Path) -> str:
    """The text of a file without surrounding blanks; empty if it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
