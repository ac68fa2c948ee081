"""`trainyard runs`: what is stored: list, show, tag, delete, push, pull."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from trainyard import units
from trainyard.cli.output import console, print_json, say
from trainyard.errors import BadInput
from trainyard.ledger import encode_hook
from trainyard.record import Run
from trainyard.store.index import Row
from trainyard.store.store import Store
from trainyard.store.summary import summarise

if TYPE_CHECKING:
    from trainyard.store.exchange import Copied

_REMOTE: dict[str, Any] = {
    "envvar": "TRAINYARD_REMOTE",
    "required": True,
    "metavar": "URL",
    "help": "A folder, or a URL such as s3://BUCKET/FOLDER; $TRAINYARD_REMOTE where it is set.",
}
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


def _table(rows: list[Row]) -> None:
    from rich.table import Table
    from rich.text import Text

    from trainyard.report.terminal import plain

    table = Table(box=None, pad_edge=False)
    for title in ("id", "when (UTC)", "job", "layout", "state"):
        table.add_column(title, no_wrap=True)
    for title in ("step", "tokens/s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("tags")
    for row in rows:
        step = units.show_time(row.step_ns) if row.step_ns else "–"
        rate = units.show_count(row.tokens_per_s) if row.tokens_per_s else "–"
        when = row.started[:16].replace("T", " ")
        cells = (row.id, when, row.job, row.layout, row.state, step, rate, ", ".join(row.tags))
        table.add_row(*(Text(plain(cell)) for cell in cells))
    console().print(table)


@command.command()
@click.argument("run")
@_as_json
@click.pass_obj
def show(store: Store, run: str, as_json: bool) -> None:
    """Show a run: its figures, its mean ledger, and where and on what it was made."""
    found, folder = store.load(run), store.find(run)
    if as_json:
        print_json(document(found, folder))
        return

    from trainyard.report.build import view_of_run
    from trainyard.report.terminal import plain, print_view

    click.echo(f"run {folder.name}  {plain(found.started)}  {folder}\n")
    print_view(view_of_run(found), console())
    click.echo("\nmade on")
    for what, said in _provenance(found):
        click.echo(f"  {what}: {plain(said)}")


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
    from trainyard.train.checkpoint.export import export

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
@_as_json
@click.pass_obj
def push(store: Store, runs: tuple[str, ...], url: str, as_json: bool) -> None:
    """Copy RUNS, without any all that have ended, to a folder or a URL. What is there already is not sent again;
    checkpoints stay here."""
    from trainyard.store.exchange import push as send
    from trainyard.store.remote import Remote

    remote = Remote(url)
    rows = store.rows()
    folders = [store.find(run) for run in runs] or [store.runs / row.id for row in rows if row.state != "incomplete"]
    if not runs and len(folders) < len(rows):
        say(f"{len(rows) - len(folders)} stay that have not ended, or were killed.")
    _copied([send(folder, remote) for folder in folders], f"pushed to {url}", as_json)


@command.command()
@click.argument("runs", nargs=-1)
@click.option("--from", "url", **_REMOTE)
@_as_json
@click.pass_obj
def pull(store: Store, runs: tuple[str, ...], url: str, as_json: bool) -> None:
    """Copy RUNS, without any all, from a folder or a URL that runs were pushed to. What is here already is not
    fetched again."""
    from trainyard.store.exchange import named
    from trainyard.store.exchange import pull as fetch
    from trainyard.store.remote import Remote

    remote = Remote(url)
    _copied([fetch(store, remote, id) for id in named(remote, runs)], f"pulled from {url}", as_json)


def _copied(copied: list[Copied], says: str, as_json: bool) -> None:
    if as_json:
        print_json({"schema": "trainyard/copied/1", "runs": [one._asdict() for one in copied]})
        return
    for one in copied:
        if one.files:
            say(f"run {one.id}: {one.files} files, {units.show_size(one.bytes)}")
    fresh = sum(1 for one in copied if one.files)
    there = f", {len(copied) - fresh} were there" if fresh < len(copied) else ""
    say(f"{fresh} of {len(copied)} runs {says}{there}.")


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
        click.confirm(f"Delete {folder} ({state}) and all that is in it?", abort=True, err=True)
    _told(store.delete(str(folder)).name, "is deleted", as_json, deleted=True)


def _told(id: str, says: str, as_json: bool, **fields: object) -> None:
    if as_json:
        print_json({"run": id, **fields})
    else:
        say(f"run {id} {says}.")
