"""Writes docs/reference.md from the code: commands, exit codes, job keys, settings, words, tables,
suppositions, plugins, rules, machines.

    python docs/reference.py

A test fails when the file does not say what the code says.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from textwrap import dedent
from types import NoneType, UnionType
from typing import Union, get_args, get_origin

import click
import msgspec
from page_parts import first_paragraph, table

from trainyard import errors, job, layout, limits, machine, plugins, recipe, units, words
from trainyard.cli.main import cli
from trainyard.cli.support.default_group import DefaultGroup
from trainyard.model import Model
from trainyard.models import presets
from trainyard.trace.export import schema
from trainyard.trace.flops import expressions, formula_file, inductor, lists, lookups, products, reductions, traffic
from trainyard.trace.whatif import changes

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"

SETTINGS = {
    "TRAINYARD_STORE": "Holds the runs. Default: `$XDG_DATA_HOME/trainyard`, else `~/.local/share/trainyard`.",
    "TRAINYARD_INDEX": "A PostgreSQL database for the index of runs (docs/how-to/share-runs.md). Default: a file.",
    "TRAINYARD_COLLECT": "Folder or URL at which the nodes of `run -- COMMAND` exchange their parts. Default: none, "
    "they are sent to rank 0's node; `--collect`.",
    "TRAINYARD_COLLECT_S": "Seconds that the node of rank 0 waits for the parts of other nodes, and these for it. "
    "Default: 120.",
    "TRAINYARD_NODE": "The name of this node, if several have the same host name. Default: the host name.",
    "TRAINYARD_REMOTE": "Where `runs push` and `runs pull` copy to and from. Default: none; `--to`, `--from`.",
    "TRAINYARD_SIGNING_KEY": "An SSH key with which `runs push` signs runs. Default: none; `--sign`.",
    "TRAINYARD_ALLOWED_SIGNERS": "A file of the keys whose runs `runs pull` takes. Default: any run; `--verify`.",
    "TRAINYARD_SERVE_TOKEN": "The token that readers of `trainyard serve` need. Default: none; `--token-file`.",
    "TRAINYARD_PRETEND": "A number of devices that do not exist, for trying things out. Default: none.",
    "TRAINYARD_PIPE_TIMEOUT_S": "How long a pipe named on the command line may be silent. Default: `60`.",
    "TRAINYARD_PURE": "Anything: works without the compiled code. Default: it is used where it was built.",
    "TRAINYARD_JOB_TOKEN": "The secret of a job on several hosts, which launchers set (how-to/run-on-several-hosts).",
    "TRAINYARD_SCRIPT_FOLDER": "Set by `trainyard run -- COMMAND` for what it starts: where ranks leave what they saw.",
    "TRAINYARD_SCRIPT_MEASURE": "Likewise: steps to warm up, to time and to profile, with commas.",
    "TRAINYARD_SCRIPT_COLLECTOR": "Likewise: port and token of this node's receiver of parts.",
    "TRAINYARD_NUMERICS_FOLDER": "Set by `trainyard numerics record` for what it starts: the folder of the record.",
    "TRAINYARD_NUMERICS_REQUEST": "Likewise: the variant, the steps and the level of detail, as JSON.",
    "TRAINYARD_FAULT_POINT": "For tests: `NAME:N` kills a process at its Nth arrival at a point of `fault_points.py`.",
    "TRAINYARD_COMPLETE": "Set by the shell's completion (`trainyard completion`), with an underscore before it.",
    "TRAINYARD_DEBUG": "`1` prints the traceback of an error of ours (exit code 70). Default: only its message.",
}
"""Environment variables that trainyard reads; a test compares them with the code."""

VOCABULARIES: Mapping[str, Mapping[str, words.Word | words.Injection]] = {
    "Collectives": words.COLLECTIVES,
    "Classes of arithmetic": words.OP_CLASSES,
    "Copies": words.COPIES,
    "Checkpoints": words.CHECKPOINTS,
    "Bubbles": words.BUBBLES,
    "Launch gaps": words.GAPS,
    "Phases": words.PHASES,
    "Parts of a window": words.PARTS,
    "Evidence of steps that a file does not mark": words.STEP_SOURCES,
    "Mesh axes": words.AXES,
    "Vendors": words.VENDORS,
    "How an entry is known": words.HOWS,
    "Bases of a ledger": words.BASES,
    "Clocks that time the steps of a run": words.STEP_CLOCKS,
    "Reasons why FLOPs and bytes are not known": words.MISSING_COSTS,
    "Clock alignment": words.ALIGNMENTS,
    "What memory is held for": words.MEMORY,
    "Why an allocation failed": words.SHORTAGES,
    "Reductions": words.REDUCES,
    "Verdicts": words.VERDICTS,
    "Severities": words.SEVERITIES,
    "Prices of findings": words.PRICES,
    "States of a run": words.STATES,
    "What can happen to a running job": words.FAULTS,
    "Reactions to a faulty step": words.STEP_ACTIONS,
    "Verdicts on a hang": words.HANGS,
    "What can be done to one (`run chaos`)": words.INJECTIONS,
    "Faults of nodes (`run chaos-nodes`)": words.NODE_INJECTIONS,
    "What a job's life goes into": words.TIMES,
    "Changes in a history": words.CHANGES,
    "Modules that selective activation checkpointing can recompute": words.RECOMPUTE_MODULES,
}


def render() -> str:
    """The whole page."""
    parts = [
        "# Reference",
        "Written from the code by `make docs`. Do not edit.",
        *_commands(),
        *_exit_codes(),
        *_job_keys(),
        *_settings(),
        *_words(),
        *_tables(),
        *_suppositions(),
        *_formulas(),
        *_plugins(),
        *_rules(),
        *_machines(),
        *_limits(),
    ]
    return "\n\n".join(parts) + "\n"


def _commands() -> Iterable[str]:
    yield "## Commands"
    yield from _help(cli, "trainyard", None)


def _help(command: click.Command, path: str, parent: click.Context | None) -> Iterable[str]:
    for each in (command, command.default_command()) if isinstance(command, DefaultGroup) else (command,):
        each._help_option = None  # cached with the names of the option from an earlier invocation
    context = click.Context(command, parent, path.split()[-1], terminal_width=100, **command.context_settings)
    yield f"### {path}"
    yield f"```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, f"{path} lists {name} and does not have it"  # noqa: S101
            yield from _help(child, f"{path} {name}", context)


def _exit_codes() -> Iterable[str]:
    yield "## Error codes and exit codes"
    yield "0 is good, 1 is a gate that says worse, 130 is an interrupted command. The others belong to errors:"
    yield (
        "stderr has `error [CODE]: MESSAGE`. With `--json`, a command that fails before it prints its document prints"
        ' `{"schema": "trainyard/error/1", "code", "exit_code", "message", "next_step"}` instead.'
        " Wrong options have the code `bad-usage` and end with 2."
    )
    tree = re.search(r"(?s)\n(    TrainyardError.*?)\n\n", errors.__doc__ or "")
    assert tree is not None, "errors.py draws no tree"  # noqa: S101
    yield f"```text\n{dedent(tree[1])}\n```"


def _job_keys() -> Iterable[str]:
    yield "## Keys of a job file"
    yield first_paragraph(job.Job.__doc__)
    for name, kind in (
        ("", job.Job),
        ("model", Model),
        ("layout", layout.Layout),
        ("recipe", recipe.Recipe),
        ("measure", job.Measure),
        ("checkpoint", job.Checkpoint),
        ("recovery", job.Recovery),
    ):
        yield f"### [{name}]" if name else "### Top"
        yield " ".join((kind.__doc__ or "").split())
        fields = [field for field in msgspec.structs.fields(kind) if not _is_table(field.type)]
        yield table(("key", "type", "default"), [(f"`{f.name}`", _type(f.type), _default(f)) for f in fields])

    yield (
        "In `[model]` and `[sizes]`, `from` names one of the files below, a TOML file or a Hugging Face `config.json` "
        "(relative to the job file); further keys override it. `without` lists keys of a `config.json` that are not "
        "modelled and that the job is to go on without."
    )
    rows = [(name, presets.load(name)) for name in sorted(presets.known())]
    yield table(
        ("`from =`", "for", "source"),
        [(f"`{name}`", _workload(preset), preset.source) for name, preset in rows],
    )


def _workload(preset: presets.Preset) -> str:
    """What a model is for."""
    hybrid = "hybrid_pattern" in (preset.model or {})
    return "plan alone" if hybrid else preset.workload or "transformer"


def _is_table(kind: object) -> bool:
    """Whether a field is a section of its own: a Struct, or one or nothing."""
    return any(hasattr(part, "__struct_fields__") for part in (kind, *get_args(kind)))


def _type(kind: object) -> str:
    if get_origin(kind) is dict:
        return "a table of the workload's own keys"
    if get_origin(kind) in (UnionType, Union):
        return " or ".join(_type(part) for part in get_args(kind))
    if get_origin(kind) is tuple:
        return f"list of {_type(get_args(kind)[0])}"
    if kind is NoneType:
        return "unset"
    choices = get_args(kind)
    return " or ".join(f"`{choice}`" for choice in choices) if choices else getattr(kind, "__name__", str(kind))


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "must be given"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return "empty" if field.default in ("", msgspec.NODEFAULT) else f"`{field.default}`"


def _settings() -> Iterable[str]:
    yield "## Settings"
    yield table(("environment variable", "means"), [(f"`{name}`", means) for name, means in SETTINGS.items()])


def _words() -> Iterable[str]:
    yield "## Words"
    yield "### Kinds of account, the first live one owning an instant"
    yield table(
        ("kind", "shown as", "booked when", "accounts"),
        [
            (f"`{name}`", kind.label, kind.means, ", ".join(f"`{name}/{what}`" for what in kind.whats) or f"`{name}`")
            for name, kind in words.KINDS.items()
        ],
    )
    for title, vocabulary in VOCABULARIES.items():
        yield f"### {title}"
        yield table(("word", "shown as", "means"), [(f"`{n}`", w.label, w.means) for n, w in vocabulary.items()])
    yield "### Metrics"
    yield "What runs are compared by. Any account of the mean ledger is one too, under its own name."
    yield table(
        ("word", "shown as", "means", "unit", "better"),
        [(f"`{n}`", m.label, m.means, m.unit, m.better) for n, m in words.METRICS.items()],
    )
    yield "### Number formats"
    yield table(("word", "bytes an element"), [(f"`{name}`", size) for name, size in words.DTYPES.items()])


def _tables() -> Iterable[str]:
    yield "## SQL tables"
    yield "The tables that `trainyard trace sql` queries and `trainyard.build_tables` returns."
    yield " ".join((schema.__doc__ or "").partition("\n\n")[2].split())
    for name, known in schema.TABLES.items():
        yield f"### Table {name}"
        yield f"A row is {known.row}."
        yield table(("column", "holds"), [(f"`{column}`", held) for column, held in known.columns.items()])


def _suppositions() -> Iterable[str]:
    title, _, forms = (changes.__doc__ or "").partition("\n\n")
    yield "## What can be supposed"
    yield title
    yield f"```text\n{forms.rstrip()}\n```"


def _formulas() -> Iterable[str]:
    """The ops with formulas, and the language of formula files."""
    yield "## FLOP and byte formulas"
    yield (
        "Ops whose FLOPs and bytes a trace's report knows. ATen ops have formulas in the code; those of libraries are "
        "files of `src/trainyard/data/formulas/`, in the language of `--formulas` "
        "([how to write them](how-to/extend.md#a-formula)). A `*` matches any text. FLOPs of packed sequences and of "
        "groups are upper bounds."
    )
    aten = sorted({*products.FORMULAS, *lists.FORMULAS, *traffic.FORMULAS})
    yield "### ATen ops"
    yield ", ".join(f"`{name}`" for name in aten)
    yield "### Inductor's Triton kernels"
    yield "`triton_poi_`, `triton_red_`, `triton_per_` and templates (`triton_tem_`), by the source ops in their names."
    yield "### Library ops"
    yield table(
        ("library", "op", "FLOPs", "bytes", "backward"),
        (
            (
                entry.library,
                "<br>".join(f"`{name}`" for name in entry.ops),
                f"`{entry.flops}`" + (" at most" if entry.at_most else ""),
                f"`{entry.bytes}`",
                f"`{entry.backward.flops}`, `{entry.backward.bytes}`" if entry.backward else "",
            )
            for entry in formula_file.library()
        ),
    )
    yield "Assumptions about values that files do not record, which a report repeats if they apply:"
    assumptions = {entry.assumes for entry in formula_file.library()} - {""}
    yield "\n".join(f"- {text}" for text in sorted({*assumptions, *_ATEN_ASSUMPTIONS}))
    yield "### Keys of a formula"
    yield first_paragraph(formula_file.FormulaFile.__doc__)
    yield " ".join(dedent(formula_file.FormulaEntry.__doc__ or "").strip().partition("\n\n")[2].split())
    yield "`[formula.backward]`: " + first_paragraph(formula_file.BackwardEntry.__doc__)
    yield "### Expressions"
    yield (
        "Integers, `+ - * // %`, comparisons, `and`, `or`, `not`, `a if b else c`, names of arguments, `x[i]` (a dim), "
        "`x[i:j]` (dims). `inputs` is all tensors that the call was passed, `result` the op's result (known if the "
        "trace contains its backward pass), `grad` the gradient that a node of the backward pass receives."
    )
    rows = [*((f"x.{name}", text) for name, text in expressions.ATTRIBUTES.items()), *expressions.FUNCTIONS.items()]
    yield table(("expression", "value"), ((f"`{name}`", text) for name, text in rows))


_ATEN_ASSUMPTIONS = (reductions.ASSUMES_SMALL_RESULT, lookups.ASSUMES_SMALL_INDEX, products.ASSUMES_SMALL_SCALES,
                     inductor.ASSUMES_TRANSFERS)  # fmt: skip


def _plugins() -> Iterable[str]:
    yield "## Plugins"
    yield "An installed package adds a plugin through the entry-point group `trainyard.<group>` of its kind."
    for group, protocol in plugins.PROTOCOLS.items():
        yield f"### {group}"
        yield first_paragraph(protocol.__doc__)
        methods = [(n, m) for n, m in vars(protocol).items() if inspect.isfunction(m) and not n.startswith("_")]
        rows = [(f"`{name}{_signature(method)}`", first_paragraph(method.__doc__)) for name, method in methods]
        rows += [(f"`{name}: {kind}`", "") for name, kind in protocol.__annotations__.items()]
        yield table(("part", "is"), rows)
        built_in = [(f"`{name}`", first_paragraph(_said_of(plugin))) for name, plugin in _ours(group).items()]
        yield table(("built in", "is"), built_in)


def _said_of(plugin: object) -> str | None:
    """A plugin's docstring; a rule is a file of its own, and its docstring is the file's, less its name."""
    doc = type(plugin).__doc__
    return doc if doc else (inspect.getdoc(inspect.getmodule(type(plugin))) or "").partition(": ")[2]


HEADINGS = ("What it does", "Why it matters", "Example", "Remedy")
"""Sections of a rule's docstring, in this order; a test checks that each rule has them."""


def _rules() -> Iterable[str]:
    yield "## Rules"
    yield (
        "What `trainyard trace` and `trainyard report` look for. A finding names the account, the cost in time a step, "
        "the evidence, the remedy, and how sure the rule is."
    )
    for name, plugin in _ours("detectors").items():
        doc = inspect.getdoc(inspect.getmodule(type(plugin))) or ""
        title, _, text = doc.partition("\n\n")
        yield f"### {name}"
        sentence = " ".join(title.split()).partition(": ")[2]
        yield sentence[:1].upper() + sentence[1:]
        sections = re.split(rf"(?m)^({'|'.join(HEADINGS)}): ", text)[1:]
        yield "\n".join(f"- **{head}:** {' '.join(body.split())}" for head, body in zip(sections[::2], sections[1::2]))


def _signature(method: Callable[..., object]) -> str:
    """`(device: DeviceSeen) -> Mapping[str, Claim]`: as it is called, without self and quotes."""
    return str(inspect.signature(method)).replace("'", "").replace("(self, ", "(").replace("(self)", "()")


def _ours(group: str) -> dict[str, object]:
    """The plugins this package brings; what else is installed here is nobody else's business."""
    points = plugins.names(group).items()
    return {name: plugins.load(group, name) for name, point in points if point.value.startswith("trainyard.")}


def _machines() -> Iterable[str]:
    yield "## Machines"
    yield "Known by name, each number a claim with its source in `src/trainyard/data/machines/`."
    yield table(
        ("name", "device", "memory", "bandwidth", "bfloat16 peak", "intra-node", "inter-node", "W", "USD/h"),
        [_machine_row(name, machine.load(name)) for name in machine.known()],
    )


def _limits() -> Iterable[str]:
    yield "## Limits"
    yield "Sizes beyond these are refused, whatever gives them: models, jobs, machines, configurations and flags."
    rows = [(limit.quantity, f"{limit.most:,}", limit.known) for limit in limits.LIMITS]
    yield table(("quantity", "at most", "largest known"), rows)


def _machine_row(name: str, known: machine.Machine) -> Iterable[object]:
    device = known.device
    peak = device.peak.get("bfloat16")
    yield f"`{name}`"
    yield device.name
    yield f"{device.memory.value / 1e9:.0f} GB"
    yield units.show_rate(device.bandwidth.value, "B/s", 2)
    yield units.show_rate(peak.value, "FLOP/s", 2) if peak else "–"
    yield f"{known.per_node} x {units.show_rate(known.intra_node.bandwidth.value, 'B/s', 1)}"
    yield units.show_rate(known.inter_node.bandwidth.value, "B/s", 1) if known.inter_node else "–"
    yield f"{device.power.value:,.0f}" if device.power else "–"
    yield f"{known.price.value:.2f}" if known.price else "–"


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written.")
