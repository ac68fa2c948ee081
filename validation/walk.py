"""Measure how far a reader has to follow a command through the code: `python -m validation.walk CHECKOUT`.

Prints tables and changes nothing in CHECKOUT.

**Walks.** Each command is run under a profiler (`sys.setprofile`), from the call of its function in `trainyard.cli`
until that function returns. A file is entered when one of its functions is called or one of its generators resumes.
Module bodies run at import and do not count. Neither do files whose functions ran before the command's function was
called: they parse arguments and print.

- files: the source files of trainyard that are entered.
- shared: the entered modules directly in `src/trainyard` (types, units, vocabulary). A module there that calls into a
  package, as an API that composes packages does, is not a shared module and stays on the walk.
- walk: the files that are not shared modules. A reader has to open all of them.
- climb: a pair of files (A, B) on the walk where a function in A calls a function in B, and B was entered before A. A
  reader who opens files in the order in which they are entered has to go back up to B. Each pair counts once, however
  often it is called. A walk without climbs is read once, from top to bottom.
- own: the files and climbs in `cli` and in the package that has most files of the walk.
- method: the own climbs that call methods of values only (`Keys.number`), which a reader seldom needs to follow.

`run` trains in separate processes. Its walk covers the command's own process.

**Names.** The number of modules in each folder; module names that occur in several folders; names of top-level classes
that several modules define; top-level functions of `src` that only tests use.

The script relies on `trainyard.cli`, the names of commands, and pyproject.toml, so that it can compare two checkouts
whose modules have other names. Plugins are loaded as CHECKOUT's pyproject.toml lists them, whatever is installed.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

PACKAGE = "trainyard"
JOB = """\
name = "walk"
model = { name = "tiny", layers = 1, hidden_size = 32, ffn_hidden_size = 64, heads = 2, kv_heads = 2, head_dim = 16 }
layout = { dp_replicate = 1 }
recipe = { seq_len = 32, tokens_per_step = 64, micro_batch_size = 2, learning_rate = 1e-3 }
measure = { warmup = 1, steps = 2, repeats = 1, profiled = 2 }
"""
"""A job that trains, measures and books a profile in a few seconds."""


class Call(NamedTuple):
    """Calls from one file to another. `methods`: all of them are calls of methods."""

    caller: str
    called: str
    methods: bool


class Walk(NamedTuple):
    """`files`: entered file -> the file that called it first, in the order of entry. The caller is empty if no file on
    the walk called it."""

    files: Mapping[str, str]
    calls: Sequence[Call]

    def within(self, kept: Iterable[str]) -> Walk:
        wanted = set(kept)
        files = {file: caller for file, caller in self.files.items() if file in wanted}
        return Walk(files, [call for call in self.calls if call.called in wanted and call.caller in wanted])

    def shared(self) -> set[str]:
        """The modules directly in `src/trainyard` that do not call into a package."""
        composing = {call.caller for call in self.calls if "/" in call.called}
        return {file for file in self.files if "/" not in file and file not in composing}

    def climbs(self) -> list[Call]:
        position = {file: number for number, file in enumerate(self.files)}
        return [call for call in self.calls if call.caller and position[call.called] < position[call.caller]]


# --- Walks


class Recorder:
    """A profile function that records calls between source files in `root` while a command runs."""

    def __init__(self, root: Path) -> None:
        self.root = f"{root}{os.sep}"
        self.walking = False
        self.before: set[str] = set()
        self.files: dict[str, str] = {}
        self.methods: dict[tuple[str, str], bool] = {}
        self._names: dict[CodeType, str | None] = {}

    def _name(self, code: CodeType) -> str | None:
        """The path of the file in the package, empty for a module body, None for code of other packages."""
        if code not in self._names:
            path = code.co_filename
            inside = path.removeprefix(self.root).replace(os.sep, "/") if path.startswith(self.root) else None
            self._names[code] = "" if inside is not None and code.co_name == "<module>" else inside
        return self._names[code]

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not (called := self._name(frame.f_code)):
            return
        if called in self.before:
            return
        if not self.walking:
            if not self._importing(frame):
                self.before.add(called)
            return
        above, caller = frame.f_back, None
        while above is not None and (caller := self._name(above.f_code)) is None:
            above = above.f_back
        caller = "" if caller is None or caller in self.before else caller
        is_method = "." in frame.f_code.co_qualname.rpartition("<locals>.")[2]
        if caller == called:
            new = called not in self.files
        else:  # recorded again if the calls so far were of methods only
            known = self.methods.get((caller, called))
            new = known is None or (known and not is_method)
        if new and not self._importing(frame):
            self.files.setdefault(called, caller)
            if caller != called:
                self.methods[caller, called] = self.methods.get((caller, called), True) and is_method

    def _importing(self, frame: FrameType) -> bool:
        """Whether the call is part of an import, as are class bodies and the functions that they call."""
        above = frame.f_back
        while above is not None:
            if self._name(above.f_code) == "":
                return True
            above = above.f_back
        return False

    def begin(self, command: Callable[..., object]) -> None:
        """Start the walk. The command's own file is on it, even if its arguments were converted there."""
        self.before.discard(self._name(command.__code__) or "")
        self.walking = True


def record(root: Path, words: Sequence[str]) -> Walk:
    """Run a command in this process, which has not imported trainyard yet and finds it in the parent of `root`."""
    from importlib.metadata import entry_points

    import click

    (script,) = entry_points(group="console_scripts", name=PACKAGE)
    recorder, invoke = Recorder(root), click.Command.invoke

    def invoke_recorded(command: click.Command, context: click.Context) -> Any:
        if isinstance(command, click.Group):
            return invoke(command, context)
        recorder.begin(inspect.unwrap(command.callback or main))
        try:
            return invoke(command, context)
        finally:
            recorder.walking = False

    main = script.load()
    setattr(click.Command, "invoke", invoke_recorded)  # noqa: B010 - a type checker refuses the assignment
    sys.argv = [PACKAGE, *words]
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Walk(recorder.files, [Call(*pair, methods) for pair, methods in recorder.methods.items()])


def as_installed(checkout: Path, folder: Path) -> None:
    """Write the metadata of an installation of `checkout`, so that its own plugins are loaded."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    info = folder / f"{PACKAGE}-0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0\n", "utf-8")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in groups.items()
    ]
    info.joinpath("entry_points.txt").write_text("\n".join(lines), "utf-8")


def walk(checkout: Path, words: Sequence[str]) -> Walk:
    """Run `trainyard WORDS` of the checkout in a separate process. Raises `RuntimeError` if it fails."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        as_installed(checkout, folder)
        folder.joinpath("job.toml").write_text(JOB, "utf-8")
        path = os.pathsep.join([str(folder), str(checkout / "src")])
        environment = {**os.environ, "PYTHONPATH": path, "TRAINYARD_STORE": str(folder / "store")}
        completed = subprocess.run(
            [sys.executable, __file__, str(checkout), "--record", str(folder / "walk.json"), *words],
            env=environment, cwd=folder, check=False, capture_output=True, text=True,
        )  # fmt: skip
        if completed.returncode:
            raise RuntimeError(
                f"trainyard {' '.join(words)}: exit code {completed.returncode}: {completed.stderr.strip()}"
            )
        recorded = json.loads(folder.joinpath("walk.json").read_text("utf-8"))
    return Walk(recorded["files"], [Call(*call) for call in recorded["calls"]])


def own(entered: Walk) -> tuple[str, Walk]:
    """The package that has most files of a walk, and the part of the walk in that package and in `cli`."""
    packages = Counter(package for file in entered.files if (package := file.partition("/")[0]) not in ("cli", file))
    package = packages.most_common(1)[0][0]
    return package, entered.within(file for file in entered.files if file.startswith(("cli/", f"{package}/")))


def show_walks(checkout: Path, commands: Mapping[str, Sequence[str]], listed: bool) -> None:
    head = ("command", "files", "shared", "walk", "climbs", "own: package", "files", "climbs", "method")
    rows: list[tuple[object, ...]] = []
    details: list[str] = []
    for name, words in commands.items():
        entered = walk(checkout, words)
        shared = entered.shared()
        opened = entered.within(file for file in entered.files if file not in shared)
        package, own_part = own(opened)
        climbs = own_part.climbs()
        rows.append((
            name, len(entered.files), len(shared), len(opened.files), len(opened.climbs()),
            package, len(own_part.files), len(climbs), sum(call.methods for call in climbs),
        ))  # fmt: skip
        details.append(f"\n{name}: trainyard {' '.join(words)}")
        details += [
            f"  {number:3}  {file}  from {by or '-'}" for number, (file, by) in enumerate(opened.files.items(), 1)
        ]
        climb_lines = (f"{call.caller} -> {call.called}{' (methods)' * call.methods}" for call in opened.climbs())
        details += ["  climbs", *(f"       {line}" for line in climb_lines)]
    show("Walks", head, rows)
    if listed:
        print("\n".join(details))


# --- Names


def modules(folder: Path) -> dict[str, ast.Module]:
    """Dotted module name -> syntax tree of each Python file in a folder. A package has the name of its folder."""
    trees: dict[str, ast.Module] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        trees[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text("utf-8"))
    return trees


def modules_per_folder(root: Path) -> list[tuple[str, int]]:
    """(folder, number of modules directly in it, without `__init__`), largest first."""
    files = (path for path in root.rglob("*.py") if path.name != "__init__.py")
    return Counter(str(path.parent.relative_to(root.parent)) for path in files).most_common()


def recurring(root: Path) -> dict[str, list[str]]:
    """Module name -> its folders, for names that occur in several folders."""
    folders_of: dict[str, list[str]] = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        if path.stem not in ("__init__", "__main__"):
            folders_of[path.stem].append(str(path.parent.relative_to(root.parent)))
    return {name: folders for name, folders in sorted(folders_of.items()) if len(folders) > 1}


def same_name(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Class name -> modules, for public top-level classes that several modules define under the same name."""
    modules_of: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules_of[node.name].append(module)
    return {name: places for name, places in sorted(modules_of.items()) if len(places) > 1}


def uses(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) for each name that a module imports, reads through an imported module, or reads in its own scope.

    A recursive call does not count as a use of the function. A string that equals a name counts as a use in any module
    (the module is empty), because tables of lazily loaded names hold strings."""
    inside: dict[ast.AST, str] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside.update(dict.fromkeys(ast.walk(node), node.name))
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.module or "", alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and inside.get(node) != node.id:
            yield module, node.id
        elif isinstance(node, ast.Attribute) and (owner := _dotted(node.value, aliases)):
            yield owner, node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 100:
            yield "", node.value.rpartition(":")[2]


def _dotted(node: ast.expr, aliases: Mapping[str, str]) -> str:
    """The dotted name of the module that an expression refers to, or an empty string."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, "")
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value, aliases)):
        return f"{owner}.{node.attr}"
    return ""


def unused(checkout: Path, trees: Mapping[str, ast.Module]) -> tuple[list[str], list[str]]:
    """Top-level functions of `src` that are not used in `src`: those used in tests only, and those used in validation,
    benchmarks, documentation or examples. Entry points and decorated functions (commands, fixtures) are left out."""
    used_in_src = {
        use for module, tree in trees.items() for use in uses(f"{PACKAGE}.{module}" if module else PACKAGE, tree)
    }
    used_in_src |= {("", name) for _, name in _entry_points(checkout)}
    used_in: dict[str, set[tuple[str, str]]] = {}
    for kind, folders in (("tests", ("tests",)), ("other", ("validation", "benchmarks", "docs", "examples"))):
        own_trees = {
            f"{folder}.{name}": tree for folder in folders for name, tree in modules(checkout / folder).items()
        }
        used_in[kind] = {use for module, tree in own_trees.items() for use in uses(module, tree)}
    only_tests: list[str] = []
    elsewhere: list[str] = []
    for module, tree in trees.items():
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.decorator_list:
                continue
            name = (f"{PACKAGE}.{module}" if module else PACKAGE, node.name)
            if node.name.startswith("__") or name in used_in_src or ("", node.name) in used_in_src:
                continue
            if name in used_in["other"]:
                elsewhere.append(".".join(name))
            elif name in used_in["tests"]:
                only_tests.append(".".join(name))
    return only_tests, elsewhere


def _entry_points(checkout: Path) -> Iterator[tuple[str, str]]:
    project = tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))["project"]
    for group in (project["scripts"], *project["entry-points"].values()):
        for target in group.values():
            module, _, name = target.partition(":")
            yield module, name


def show_names(checkout: Path, most: int) -> None:
    root = checkout / "src" / PACKAGE
    trees = modules(root)
    folders, repeated, classes = modules_per_folder(root), recurring(root), same_name(trees)
    only_tests, elsewhere = unused(checkout, trees)
    counts = Counter({name: len(places) for name, places in repeated.items()})
    show("Largest flat folders", ("folder", "modules"), folders[:most])
    show("Names", ("what", "count"), [
        ("modules (without __init__)", sum(count for _, count in folders)),
        ("module names that occur in several folders", len(repeated)),
        ("modules with such a name", sum(counts.values())),
        ("top-level class names that several modules define", len(classes)),
        ("top-level functions that only tests use", len(only_tests)),
        ("top-level functions that only validation, benchmarks, docs or examples use", len(elsewhere)),
    ])  # fmt: skip
    show("Module names that occur most", ("name", "folders"), counts.most_common(most))
    show(
        "Classes of the same name", ("name", "modules"), [(name, ", ".join(places)) for name, places in classes.items()]
    )
    show("Functions that only tests use", ("function",), [(name,) for name in only_tests])
    show(
        "Functions that only validation, benchmarks, docs or examples use",
        ("function",),
        [(name,) for name in elsewhere],
    )


def show(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    numbers = [all(isinstance(row[at], int) for row in rows) and bool(rows) for at in range(len(head))]
    print(f"\n{title}")
    for row in cells:
        aligned = (
            cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, numbers, strict=True)
        )
        print("  " + "  ".join(aligned).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--trace", type=Path, help="profile for `trace`; default: rank 0 of the demo")
    parser.add_argument("--only", choices=["trace", "plan", "run"], action="append", help="measure this command only")
    parser.add_argument("--list", action="store_true", help="list the files and climbs of each walk")
    parser.add_argument("--rows", type=int, default=12, help="rows of the tables of names")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    options, words = parser.parse_known_args()
    checkout: Path = options.checkout.resolve()
    if options.record:
        entered = record(checkout / "src" / PACKAGE, words)
        options.record.write_text(json.dumps({"files": dict(entered.files), "calls": entered.calls}), "utf-8")
        return
    if words:
        parser.error(f"unknown arguments: {' '.join(words)}")
    trace = options.trace or next((checkout / "src" / PACKAGE / "data").rglob("rank0.json.gz"))
    plan = "plan llama3-8b --machine a100 --devices 8 --batch 64 --seq-len 8192 --json"
    commands = {"trace": ["trace", str(trace.resolve()), "--json"], "plan": plan.split(),
                "run": ["run", "job.toml", "--quiet", "--json"]}  # fmt: skip
    show_walks(checkout, {name: commands[name] for name in options.only or commands}, options.list)
    show_names(checkout, options.rows)


if __name__ == "__main__":
    main()
