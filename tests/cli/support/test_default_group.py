"""Commands with a default mode."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from trainyard.cli.main import COMMANDS, answer, cli
from trainyard.cli.support.default_group import DefaultGroup


def groups() -> list[tuple[str, DefaultGroup]]:
    context = click.Context(cli)
    commands = [(name, cli.get_command(context, name)) for name in COMMANDS]  # type: ignore[union-attr]
    return [(name, command) for name, command in commands if isinstance(command, DefaultGroup)]


def completions(*words: str) -> list[str]:
    *args, incomplete = words
    return [item.value for item in ShellComplete(cli, {}, "trainyard", "_COMPLETE").get_completions(args, incomplete)]


def test_every_mode_has_a_command_and_help() -> None:
    assert groups()
    for name, group in groups():
        for mode in group.modes:
            assert answer([name, mode, "--help"]) == 0


@pytest.mark.parametrize("name", [name for name, _ in groups()])
def test_help_of_a_group_shows_default_options_and_modes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    group = dict(groups())[name]
    assert answer([name, "--help"]) == 0
    shown = capsys.readouterr().out
    options = [option for each in group.default_command().params for option in each.opts if option.startswith("--")]
    for word in (*group.modes, *options):
        assert word in shown


def test_a_command_line_without_a_command_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer([]) == 0
    printed = capsys.readouterr()
    assert all(name in printed.out for name in COMMANDS)
    assert printed.err == ""


def test_misspelt_mode_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["gate", "bisct", "--base", "x"]) == 2
    assert "trainyard gate bisect" in capsys.readouterr().err
    assert answer(["gate", "rnu"]) == 2
    assert "trainyard gate run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "replacement"),
    [
        (["--old", "5"], "trainyard x new FILE"),
        (["--old=5"], "trainyard x new FILE"),
        (["--colour", "grey"], "trainyard x paint"),
        (["--colour=grey"], "trainyard x paint"),
    ],
)
def test_replaced_option_or_value_names_its_replacement(
    words: list[str], replacement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    @click.option("--colour", type=click.Choice(["red"]))
    def default(colour: str) -> None: ...

    group = DefaultGroup(name="x", default="", modes={}, replaced={"--old": "new FILE", "grey": "paint"})
    monkeypatch.setattr(group, "default_command", lambda: default)
    with pytest.raises(click.UsageError) as error:
        group.main(words, prog_name="trainyard x", standalone_mode=False)
    assert error.value.format_message().endswith(f"is replaced by: {replacement}")


def test_words_after_a_double_dash_are_no_modes(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["gate", "--base", "x", "--", "bisct"]) == 2
    assert "gate bisect" not in capsys.readouterr().err


def test_usage_of_a_default_command_is_that_of_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["gate", "x"]) == 2
    assert "Usage: trainyard gate [OPTIONS]" in capsys.readouterr().err


def test_completion_offers_modes_and_options_of_the_default() -> None:
    assert completions("gate", "bi") == ["bisect"]
    assert "--margin" in completions("gate", "--m")
    assert "--pairs" in completions("gate", "run", "--p")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_names_the_command(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert answer(["completion", shell]) == 0
    assert "_TRAINYARD_COMPLETE" in capsys.readouterr().out
