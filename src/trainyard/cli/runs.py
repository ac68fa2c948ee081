"""`trainyard runs`: list, show, tag, delete, push and pull stored runs."""

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
    "help": "A folder, or a URL such as s3://BUCKET/FOLDER; default: $TRAINYARD_REMOTE.",
}
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def document(run: Run, folder: Path) -> dict[str, Any]:
    """A run as plain data: its full record, its folder, and a summary of its figures."""
    header = {"schema": run.schema, "state": run.state, "folder": str(folder)}
    return {**header, **_plain(run), "summary": _plain(summarise(run))}


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    """Convert through JSON and back, so that a NaN loss becomes null, as JSON requires."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=encode_hook))


@click.group(invoke_without_command=True)
@click.option("--reindex", is_flag=True, help="Rebuild the index from the run folders.")
@_as_json
@click.pass_context
def command(context: click.Context, reindex: bool, as_json: bool) -> None:
    """List the stored runs, newest first. Commands take a run by id prefix, tag or folder."""
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
            say(f"There are no runs in {store.root}. `trainyard run JOB.toml` creates one.")


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
    """Show a run: its figures, its mean ledger and its provenance.

    For a damaged run, the readable parts are shown, and the exit code is 2."""
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
        say(f"{folder}: {len(missing)} files are missing: {listed(missing)}.")
    if stored.state == "damaged":
        context.exit(BadInput.exit_code)


def _show(run: Run, folder: Path) -> None:
    from trainyard.report.render.terminal import plain, print_view
    from trainyard.report.view.build_analysis import analyse_run
    from trainyard.report.view.build_view import view_of

    echo(f"run {folder.name}  {plain(run.started)}  {folder}\n")
    print_view(view_of(analyse_run(run)), console())
    echo("\nprovenance")
    for name, text in _provenance(run):
        echo(f"  {name}: {plain(text)}")


def _short(build: dict[str, str]) -> dict[str, str]:
    """The build without its multi-line listings, which --json has."""
    return {key: value for key, value in build.items() if "\n" not in value}


def _provenance(run: Run) -> list[tuple[str, str]]:
    provenance = run.provenance
    devices = ", ".join(sorted({device.name for device in provenance.devices}))
    tables = (
        ("code", provenance.code),
        ("packages", provenance.packages),
        ("torch", _short(provenance.torch_build)),
        ("driver", provenance.driver),
        ("host", provenance.host),
        ("environment", provenance.environment),
        ("clocks", provenance.clocks),
        ("digests", provenance.digests),
    )
    rows = [(name, ", ".join(f"{key} {value}" for key, value in table.items())) for name, table in tables]
    origin = f"the checkpoint of run {run.origin.run} after step {run.origin.step + 1}" if run.origin else ""
    rows = [("started from", origin), ("devices", devices), *rows, ("text", provenance.text)]
    return [(name, text) for name, text in rows if text]


@command.command()
@click.argument("run")
@click.argument("name")
@_as_json
@click.pass_obj
def tag(store: Store, run: str, name: str, as_json: bool) -> None:
    """Give a run a name, and take it from the run that has it."""
    _report(store.tag(run, name).name, f"is now tagged {name!r}", as_json, tag=name)


@command.command()
@click.argument("name")
@_as_json
@click.pass_obj
def untag(store: Store, name: str, as_json: bool) -> None:
    """Remove a name from the run that has it."""
    _report(store.untag(name).name, f"is no longer tagged {name!r}", as_json, untagged=name)


@command.command()
@click.argument("run")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The safetensors file to write.")
@click.option(
    "--step", type=click.IntRange(min=1), help="Use the checkpoint after this step; default: the last good one."
)
@_as_json
@click.pass_obj
def export_weights(store: Store, run: str, out: Path, step: int | None, as_json: bool) -> None:
    """Write the weights of a run's last good checkpoint as safetensors, unsharded, with the model's parameter names."""
    from trainyard.train.checkpoint.export_weights import export

    folder = store.find(run)
    done = export(folder, out, None if step is None else step - 1)
    for rejected in done.rejected:
        say(rejected)
    if as_json:
        print_json({"run": folder.name, "out": str(out), **done._asdict()})
    else:
        size = units.show_size(done.bytes)
        say(f"wrote {out}: {done.tensors} tensors, {size}, from the checkpoint after step {done.step + 1}")


@command.command()
@click.argument("runs", nargs=-1)
@click.option("--to", "url", **_REMOTE)
@click.option(
    "--sign",
    "key",
    type=_FILE,
    envvar="TRAINYARD_SIGNING_KEY",
    metavar="KEY",
    help="Sign each run with this SSH key; default: $TRAINYARD_SIGNING_KEY.",
)
@_as_json
@click.pass_obj
def push(store: Store, runs: tuple[str, ...], url: str, key: Path | None, as_json: bool) -> None:
    """Copy RUNS to a folder or a URL; without RUNS, all runs that have ended.

    Runs that are already there are not sent again, but signed if --sign is given; checkpoints are not copied. If a run
    cannot be copied, the others still are; the exit code is then 2, or 4 after a failure of the environment."""
    from trainyard.store.exchange.push_pull import push as send
    from trainyard.store.exchange.remote_store import Remote

    remote = Remote(url)
    rows = store.rows()
    folders = [store.find(run) for run in runs] or [store.runs / row.id for row in rows if row.state != "incomplete"]
    if not runs and len(folders) < len(rows):
        say(f"{len(rows) - len(folders)} runs are not pushed: they have not ended, or were killed.")
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
    help="Copy only runs signed by a key in this allowed-signers file; default: $TRAINYARD_ALLOWED_SIGNERS.",
)
@_as_json
@click.pass_obj
def pull(store: Store, runs: tuple[str, ...], url: str, signers: Path | None, as_json: bool) -> None:
    """Copy RUNS from a folder or a URL to which runs were pushed; without RUNS, all of them.

    Runs that are already here are not fetched again. If a run is damaged or was modified, the others are still copied;
    the exit code is then 2, or 4 after a failure of the environment."""
    from trainyard.store.exchange.push_pull import named
    from trainyard.store.exchange.push_pull import pull as fetch
    from trainyard.store.exchange.remote_store import Remote

    remote = Remote(url)
    ids = named(remote, runs, say)
    _copy([(id, partial(fetch, store, remote, id, signers)) for id in ids], f"pulled from {remote.url}", as_json)


def _copy(runs: Sequence[tuple[str, Callable[[], Copied]]], done: str, as_json: bool) -> None:
    """Copy each of the runs. Raises `BadInput` at the end if some could not be copied, or `EnvironmentFailed` if the
    environment failed for one of them."""
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
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_as_json
@click.pass_obj
def delete(store: Store, run: str, yes: bool, as_json: bool) -> None:
    """Delete a run's folder with all its files."""
    folder = store.find(run)
    if not yes and not sys.stdin.isatty():
        raise BadInput(f"Deleting {folder} needs a confirmation, but stdin is not a terminal.", "Add --yes.")
    if not yes:
        state = next((row.state for row in store.rows() if row.id == folder.name), "unreadable")
        confirm(f"Delete {folder} ({state}) with all its files?")
    _report(store.delete(str(folder)).name, "is deleted", as_json, deleted=True)


def _report(id: str, text: str, as_json: bool, **fields: object) -> None:
    if as_json:
        print_json({"run": id, **fields})
    else:
        say(f"run {id} {text}.")
