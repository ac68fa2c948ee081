"""Logs of the nodes of a launch."""

from __future__ import annotations

from pathlib import Path

from trainyard.launch.node_logs import FollowedLogs, node_logs


def test_logs_of_a_node_by_element(tmp_path: Path) -> None:
    for name in ("node1-10", "node1-2", "node10-0", "node11", "slurm-1"):
        (tmp_path / f"{name}.log").touch()
    assert [path.name for path in node_logs(tmp_path, 1)] == ["node1-2.log", "node1-10.log"]
    assert [path.name for path in node_logs(tmp_path, 11)] == ["node11.log"]


def test_each_line_is_read_once_and_whole(tmp_path: Path) -> None:
    logs = FollowedLogs(tmp_path, 0)
    assert list(logs.new_lines(False)) == []
    (tmp_path / "node0.log").write_text("a\nb")
    assert list(logs.new_lines(False)) == ["a"]
    with (tmp_path / "node0.log").open("a") as file:
        file.write("c\nd")
    (tmp_path / "node0-3.log").write_text("e\n")
    assert sorted(logs.new_lines(False)) == ["3: e", "bc"]
    assert list(logs.new_lines(True)) == ["d"]
