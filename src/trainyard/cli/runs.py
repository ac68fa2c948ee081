"""`trainyard runs`: what is stored: list, show, tag, delete, push, pull."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from trainyard import units
from trainyard.cli.support.output import confirm, console, echo, print_json, say
from trainyard.errors import BadInput, EnvironmentFailed
from trainyard.ledger import encode_hook
from trainyard.record import Run
from trainyard.store.index.run_index import RunRow
from trainyard.store.run_damage import listed, missing_evidence, read_any
from trainyard.store.run_summary import summarise
from trainyard.store.store import Store

if TYPE_CHECKING:
    from trainyard.store.exchange.push_pull import Copied

_REMOTE: dict[str, Any] = {
    "envvar": "TRAINYARD_REMOTE",
    "required": True,
    "metavar": "URL",
    "help": "A folder, or a URL such as s3://BUCKET/FOLDER; $TRAINYARD_REMOTE where it is set.",
}
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def document(run: Run, folder: Path) -> dict[str, Any]:
    """A run as plain data: all of its record, its folder, and the figures that follow from it."""
    said = {"schema": run.schema, "state": run.state, "folder": str(folder)}
    return {**said, **_plain(run), "summary": _plain(summarise(run))}


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    """Through JSON and back, so that a loss that is not a number becomes null, as JSON wants it."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=encode_hook))


@click.group(invoke_without_command=True)
@click.option("--reindex", is_flag=True, help="Build the index anew from the run folders.")
@_as_json
@click.pass_context
def command(context: click.Context, reindex: bool, as_json: bool) -> None:
    """List the stored runs, newest first. A run is named by the beginning of its id, a tag, or its folder."""
    store = context.obj = Store(say=say)
    if reindex:
        say(f"indexed {store.reindex()} runs in {store.root}.")
    if context.invoked_subcommand is None:
        rows = store.rows()
        if as_json:
            print_json({"schema": "trainyard/runs/1", "runs": msgspec.to_builtins(rows)})
        elif rows:
            _table(rows)
        else:
            say(f"no runs in {store.root}. `trainyard run JOB.toml` makes one.")


def _table(rows: list[RunRow]) -> None:
    from trainyard.report.render.terminal import print_table
    from trainyard.report.view.view import Column, Table

    columns = (
        Column(head="id", id=True), Column(head="job"), Column(head="state"), Column(head="tags", spare=True),
        Column(head="step, ms", digits=3, spare=True), Column(head="when (UTC)", id=True, spare=True),
        Column(head="layout", spare=True), Column(head="tokens/s", digits=0, spare=True),
    )  # fmt: skip
    cells = tuple(
        (
            row.id, row.job, row.state, ", ".join(row.tags), row.step_ns / 1e6 if row.step_ns else None,
            row.started[:16].replace("T", " "), row.layout, row.tokens_per_s or None,
        )
        for row in rows
    )  # fmt: skip
    print_table(Table(title="id", notes=(), columns=columns, rows=cells), console())


@command.command()
@click.argument("run")
@_as_json
@click.pass_context
def show(context: click.Context, run: str, as_json: bool) -> None:
    """Show a run: its figures, its mean ledger, and its provenance. Of a damaged run the rest is shown, and the exit
    code is 2."""
    store: Store = context.obj
    folder = store.find(run)
    stored = read_any(folder)
    if stored.state == "damaged":
        say(f"{folder}: the run is damaged: {stored.failure}.")
    missing = missing_evidence(folder)
    if as_json:
        print_json({**document(stored, folder), "missing": missing})
    else:
        _show(stored, folder)
    if missing:
        say(f"{folder}: {len(missing)} files are not there any more: {listed(missing)}.")
    if stored.state == "damaged":
        context.exit(BadInput.exit_code)


def _show(run: Run, folder: Path) -> None:
    from trainyard.report.render.terminal import plain, print_view
    from trainyard.report.view.build_analysis import analyse_run
    from trainyard.report.view.build_view import view_of

    echo(f"run {folder.name}  {plain(run.started)}  {folder}\n")
    print_view(view_of(analyse_run(run)), console())
    echo("\nmade on")
    for name, text in _provenance(run):
        echo(f"  {name}: {plain(text)}")


def _short(build: dict[str, str]) -> dict[str, str]:
    """Without the build's own long listings, which --json has."""
    return {key: value for key, value in build.items() if "\n" not in value}


def _provenance(run: Run) -> list[tuple[str, str]]:
    made = run.provenance
    devices = ", ".join(sorted({device.name for device in made.devices}))
    tables = (
        ("code", made.code),
        ("packages", made.packages),
        ("torch", _short(made.torch_build)),
        ("driver", made.driver),
        ("host", made.host),
        ("environment", made.environment),
        ("clocks", made.clocks),
        ("digests", made.digests),
    )
    rows = [(name, ", ".join(f"{key} {value}" for key, value in table.items())) for name, table in tables]
    begun = f"the checkpoint of run {run.origin.run} after step {run.origin.step + 1}" if run.origin else ""
    return [
        (name, said) for name, said in [("begun with", begun), ("devices", devices), *rows, ("text", made.text)] if said
    ]


@command.command()
@click.argument("run")
@click.argument("name")
@_as_json
@click.pass_obj
def tag(store: Store, run: str, name: str, as_json: bool) -> None:
    """Give a run a name. The run that had it loses it."""
    _told(store.tag(run, name).name, f"is now tagged {name!r}", as_json, tag=name)


@command.command()
@click.argument("name")
@_as_json
@click.pass_obj
def untag(store: Store, name: str, as_json: bool) -> None:
    """Take a name away from the run that has it."""
    _told(store.untag(name).name, f"is no longer tagged {name!r}", as_json, untagged=name)


@command.command()
@click.argument("run")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The safetensors file to write.")
@click.option("--step", type=click.IntRange(min=1), help="Of the checkpoint after this step, not of the last good one.")
@_as_json
@click.pass_obj
def export_weights(store: Store, run: str, out: Path, step: int | None, as_json: bool) -> None:
    """Write the weights of a run's last good checkpoint as safetensors, under the whole model's names."""
    from trainyard.train.checkpoint.export_weights import export

    folder = store.find(run)
    done = export(folder, out, None if step is None else step - 1)
    for rejected in done.rejected:
        say(rejected)
    if as_json:
        print_json({"run": folder.name, "out": str(out), **done._asdict()})
    else:
        say(f"{out}: {done.tensors} tensors, {units.show_size(done.bytes)}, as they were after step {done.step + 1}.")


@command.command()
@click.argument("runs", nargs=-1)
@click.option("--to", "url", **_REMOTE)
@click.option(
    "--sign",
    "key",
    type=_FILE,
    envvar="TRAINYARD_SIGNING_KEY",
    metavar="KEY",
    help="Sign each run with this SSH key; $TRAINYARD_SIGNING_KEY if it is set.",
)
@_as_json
@click.pass_obj
def push(store: Store, runs: tuple[str, ...], url: str, key: Path | None, as_json: bool) -> None:
    """Copy RUNS to a folder or a URL; without RUNS, all that have ended. Runs that are already there are not sent
    again, but are signed if --sign asks for it; checkpoints are not copied. A run that cannot be copied does not stop
    the others; the exit code is then 2, or 4 if the machine failed at one."""
    from trainyard.store.exchange.push_pull import push as send
    from trainyard.store.exchange.remote_store import Remote

    remote = Remote(url)
    rows = store.rows()
    folders = [store.find(run) for run in runs] or [store.runs / row.id for row in rows if row.state != "incomplete"]
    if not runs and len(folders) < len(rows):
        say(f"{len(rows) - len(folders)} are not pushed: they have not ended, or were killed.")
    _copy([(folder.name, partial(send, folder, remote, key)) for folder in folders], f"pushed to {remote.url}", as_json)


@command.command()
@click.argument("runs", nargs=-1)
@click.option("--from", "url", **_REMOTE)
@click.option(
    "--verify",
    "signers",
    type=_FILE,
    envvar="TRAINYARD_ALLOWED_SIGNERS",
    metavar="FILE",
    help="Copy only runs signed by a key in this file of allowed signers; $TRAINYARD_ALLOWED_SIGNERS if it is set.",
)
@_as_json
@click.pass_obj
def pull(store: Store, runs: tuple[str, ...], url: str, signers: Path | None, as_json: bool) -> None:
    """Copy RUNS from a folder or a URL that runs were pushed to; without RUNS, all. Runs that are already here are not
    fetched again. A run that is damaged there or here, or not as it was written, does not stop the others; the exit
    code is then 2, or 4 if the machine failed at one."""
    from trainyard.store.exchange.push_pull import named
    from trainyard.store.exchange.push_pull import pull as fetch
    from trainyard.store.exchange.remote_store import Remote

    remote = Remote(url)
    ids = named(remote, runs, say)
    _copy([(id, partial(fetch, store, remote, id, signers)) for id in ids], f"pulled from {remote.url}", as_json)


def _copy(runs: Sequence[tuple[str, Callable[[], Copied]]], done: str, as_json: bool) -> None:
    """Copies each of the runs; raises `BadInput` at the end if some of them could not be, or `EnvironmentFailed`
    if the machine failed at one of these."""
    copied: list[Copied] = []
    refused: dict[str, BadInput | EnvironmentFailed] = {}
    for id, copy in runs:
        try:
            copied.append(copy())
        except (BadInput, EnvironmentFailed) as error:
            refused[id] = error
            if len(runs) > 1:
                say(f"not copied: {error}")
    untagged = [run.id for run in copied if run.problem]
    if as_json:
        rows = [run._asdict() for run in copied]
        reasons = [{"id": id, "error": str(error)} for id, error in refused.items()]
        print_json({"schema": "trainyard/copied/1", "runs": rows, "refused": reasons})
    else:
        _show_copied(copied, len(runs), done)
    if len(runs) == 1 and refused:
        raise next(iter(refused.values()))
    if refused:
        kind = EnvironmentFailed if any(isinstance(e, EnvironmentFailed) for e in refused.values()) else BadInput
        raise kind(f"{len(refused)} of {len(runs)} runs were not copied: {', '.join(refused)}.")
    if untagged:
        raise BadInput(f"{len(untagged)} of {len(runs)} runs were copied without their tags: {', '.join(untagged)}.")


def _show_copied(copied: Sequence[Copied], runs: int, done: str) -> None:
    for run in copied:
        signed = f", signed by {run.signer}" if run.signer else ", signed" if run.signed else ""
        if run.files:
            say(f"run {run.id}: {run.files} files, {units.show_size(run.bytes)}{signed}")
        elif signed:
            say(f"run {run.id}: already there{signed}")
        for note in filter(None, (*run.notes, run.problem)):
            say(f"run {run.id}: {note}")
    fresh = sum(1 for run in copied if run.files)
    there = f", {len(copied) - fresh} were there" if fresh < len(copied) else ""
    signed = sum(run.signed for run in copied)
    say(f"{fresh} of {runs} runs {done}{there}{f', {signed} were signed' if signed else ''}.")


@command.command()
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_as_json
@click.pass_obj
def delete(store: Store, run: str, yes: bool, as_json: bool) -> None:
    """Remove a run's folder and all that is in it."""
    folder = store.find(run)
    if not yes and not sys.stdin.isatty():
        raise BadInput(f"Deleting {folder} wants a yes, and there is no terminal to ask at.", "Add --yes.")
    if not yes:
        state = next((row.state for row in store.rows() if row.id == folder.name), "unreadable")
        confirm(f"Delete {folder} ({state}) and all that is in it?")
    _told(store.delete(str(folder)).name, "is deleted", as_json, deleted=True)


def _told(id: str, says: str, as_json: bool, **fields: object) -> None:
    if as_json:
        print_json({"run": id, **fields})
    else:
        say(f"run {id} {says}.")
