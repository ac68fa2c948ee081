"""The library: one function for each command. Options are keywords; results are plain data.

```python
from trainyard import api

analysis = api.analyse("traces/")
print(analysis.headline)
for finding in analysis.findings:
    print(finding.says, finding.cost_ns)

plans = api.plan("llama3-70b", machine="h100", devices=512, batch=1024, seq_len=8192)
print(plans.step, plans.best.plan.job.layout, plans.best.plan.ledger.wall_ns)

comparison = api.diff("traces/before", "traces/after")
for change in comparison.changes:
    print(change)

result = api.gate("HEAD", base="main")
print(result.headline, result.exit_code)

print(api.history("tiny").headline)
```
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from trainyard.plugins import AS_WRITTEN

if TYPE_CHECKING:
    from trainyard.api.gate_losses import gate_convergence as gate_convergence
    from trainyard.api.gate_losses import gate_reference_points as gate_reference_points
    from trainyard.api.gate_losses import store_golden_curves as store_golden_curves
    from trainyard.api.gate_noise import gate_self_check as gate_self_check
    from trainyard.api.gate_revisions import gate_bisect as gate_bisect
    from trainyard.api.gate_revisions import gate_run as gate_run
    from trainyard.api.gate_stored_runs import gate as gate
    from trainyard.api.job_history import history as history
    from trainyard.compare.comparison import Comparison
    from trainyard.report.plans.plans_file import Plans
    from trainyard.report.view.analysis import Analysis

Path = str | os.PathLike[str]
_ELSEWHERE = {
    "gate": "trainyard.api.gate_stored_runs",
    "gate_bisect": "trainyard.api.gate_revisions",
    "gate_convergence": "trainyard.api.gate_losses",
    "gate_reference_points": "trainyard.api.gate_losses",
    "gate_run": "trainyard.api.gate_revisions",
    "gate_self_check": "trainyard.api.gate_noise",
    "history": "trainyard.api.job_history",
    "store_golden_curves": "trainyard.api.gate_losses",
}
"""Name -> module that defines it, imported when the name is first used."""


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        return getattr(import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'trainyard.api' has no attribute {name!r}")


def analyse(
    paths: Path | Sequence[Path],
    *,
    window: Literal["steps", "all"] = "steps",
    mark: str = AS_WRITTEN.mark,
    limit: int = AS_WRITTEN.limit,
    engine: str = "auto",
    strict: bool = False,
) -> Analysis:
    """Analyses profiler files, or folders of them, of one or many ranks of a job.

    `window`: book each step, or the whole window as one step. `mark`: how names of the annotations around steps
    begin. `limit`: bytes that a file may hold when unpacked. `engine`: `serial`, `processes` or `ray`. `strict`:
    refuse damaged files of ranks; otherwise they are left out and named in `warnings`.

    Raises `BadFile` for a file that is not a profile, `BadInput` for profiles that do not belong together.
    """
    from trainyard.plugins import ReadOptions
    from trainyard.report.view.build_analysis import analyse_measured
    from trainyard.trace.measure import measure_files

    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    files, reading = [os.fspath(path) for path in several], ReadOptions(limit, mark)
    return analyse_measured(measure_files(files, window, engine=engine, how=reading, strict=strict))


def plan(
    model: Path | None = None,
    *,
    machine: Path = "",
    devices: int | None = None,
    batch: int | None = None,
    seq_len: int | None = None,
    tokens: float = 0.0,
    fix: Sequence[str] = (),
    framework: Literal["", "trainyard", "megatron", "torchtitan", "deepspeed"] = "",
    check: Path | bool = False,
    front: bool = False,
) -> Plans:
    """Plans how to train a model on a cluster: the fastest layouts that fit in memory, with their predicted ledgers.

    `model`: the name of a model, a Hugging Face config.json, the TOML file of a model, or a configuration with its own
    model and batch: a job file, torchtitan's TOML file, Megatron's arguments. `machine`: the name of a machine or its
    TOML file; `h100:64,a100:128` for parts of a cluster. `devices`: number of accelerators; if None, those of the
    machine or of the configuration. `batch`: samples of a step over all devices. `seq_len`: tokens of a sequence.
    `tokens`: tokens or images of the whole training, for days, dollars, energy and scaling. `fix`: only layouts with
    these values, as `tp=8` or `dtype=float8`. `framework`: the framework that trains. `check`: first cost a
    configuration as it is: this file or, if True, `model`. `front`: compute the trade-off of time and memory over all
    layouts, which takes seconds for the largest spaces.

    Raises `BadInput` for arguments or files that cannot be planned for, `BadJob` if no layout divides the model or
    fits.
    """
    from trainyard.api.plan_layouts import plan_layouts

    checked = None if check is False else "" if check is True else os.fspath(check)
    name = None if model is None else os.fspath(model)
    return plan_layouts(name, os.fspath(machine), devices, batch, seq_len, tokens, fix, framework, checked, front)


def diff(before: Path, after: Path, *, strict: bool = False) -> Comparison:
    """Compares the steps of two recordings, account by account; the changes sum to the change of the step time.

    `before`, `after`: a run (id prefix, tag or folder), a profiler file or a folder of them, or a file that
    `trainyard plan --json` wrote. `strict`: refuse damaged files of ranks; otherwise they are left out and named in
    `caveats`.

    Raises `UnknownName` for a name that is neither a path nor a run, `BadFile` for a file that is not a profile.
    """
    from msgspec.structs import replace

    from trainyard.api.named_inputs import find
    from trainyard.compare.comparison import compare

    notes: list[str] = []
    first, second = (find(os.fspath(name), strict, say=notes.append).side() for name in (before, after))
    comparison = compare(first, second)
    return replace(comparison, caveats=(*comparison.caveats, *notes))
