"""The library: one function for each command. Options are keywords; results are plain data.

```python
from trainyard import api

analysis = api.analyse("traces/")
print(analysis.headline)
for finding in analysis.findings:
    print(finding.summary, finding.cost_ns)

plans = api.plan("llama3-70b", machine="h100", devices=512, batch=1024, seq_len=8192)
print(plans.step, plans.best.plan.job.layout, plans.best.plan.ledger.wall_ns)

prediction = api.what_if("traces/", changes=["network=2x"])
print(prediction.before.wall_ns, prediction.after.wall_ns)

comparison = api.diff("traces/before", "traces/after")
for change in comparison.changes:
    print(change)

result = api.gate("HEAD", base="main")
print(result.headline, result.exit_code)

print(api.history("tiny").headline)

result = api.run("job.toml", session=api.Session(tag="baseline"))
print(result.id, result.summary.step_ns, result.headline)
```
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from trainyard.plugins import AS_WRITTEN

if TYPE_CHECKING:
    from trainyard.api.bisect_configurations import bisect_numerics as bisect_numerics
    from trainyard.api.check_operations import check_kernels as check_kernels
    from trainyard.api.check_parity import parity as parity
    from trainyard.api.compare_machine_designs import compare_designs as compare_designs
    from trainyard.api.compare_records import compare_numerics as compare_numerics
    from trainyard.api.compare_training_on_devices import compare_devices as compare_devices
    from trainyard.api.fabric_options import Fabric as Fabric
    from trainyard.api.fine_tune import FineTune as FineTune
    from trainyard.api.gate_losses import gate_convergence as gate_convergence
    from trainyard.api.gate_losses import gate_reference_points as gate_reference_points
    from trainyard.api.gate_losses import store_golden_curves as store_golden_curves
    from trainyard.api.gate_noise import gate_self_check as gate_self_check
    from trainyard.api.gate_revisions import gate_bisect as gate_bisect
    from trainyard.api.gate_revisions import gate_run as gate_run
    from trainyard.api.gate_stored_runs import gate as gate
    from trainyard.api.job_history import history as history
    from trainyard.api.launch_jobs import launch as launch
    from trainyard.api.launch_jobs import launch_cancel as launch_cancel
    from trainyard.api.launch_jobs import launch_list as launch_list
    from trainyard.api.launch_jobs import launch_logs as launch_logs
    from trainyard.api.launch_jobs import launch_render as launch_render
    from trainyard.api.launch_jobs import launch_status as launch_status
    from trainyard.api.measure_candidates import measure_plan as measure_plan
    from trainyard.api.plan_post_training import plan_rollout as plan_rollout
    from trainyard.api.record_tensors import record_numerics as record_numerics
    from trainyard.api.run_costs import RunCosts as RunCosts
    from trainyard.api.run_jobs import chaos as chaos
    from trainyard.api.run_jobs import chaos_nodes as chaos_nodes
    from trainyard.api.run_jobs import join as join
    from trainyard.api.run_jobs import resume as resume
    from trainyard.api.run_jobs import run as run
    from trainyard.api.run_jobs import run_script as run_script
    from trainyard.api.trace_modes import critical_path as critical_path
    from trainyard.api.trace_modes import hangs as hangs
    from trainyard.api.trace_modes import measure_memory as measure_memory
    from trainyard.api.trace_modes import query as query
    from trainyard.api.trace_modes import reconcile as reconcile
    from trainyard.api.trace_modes import what_if as what_if
    from trainyard.api.training_options import TrainingOptions as TrainingOptions
    from trainyard.api.triage_record import triage_numerics as triage_numerics
    from trainyard.api.watch_runs import watch_run as watch_run
    from trainyard.api.write_report import report as report
    from trainyard.api.write_reproducer import reproduce_numerics as reproduce_numerics
    from trainyard.report.plans.catalogue import Catalogue
    from trainyard.report.plans.plans_file import Plans
    from trainyard.report.plans.probe_results import FittedMachine, ProbedMachine
    from trainyard.report.view.analysis import Analysis
    from trainyard.report.view.comparison import Comparison
    from trainyard.run.launches.launch_job import LaunchOptions as LaunchOptions
    from trainyard.run.session import Session as Session

Path = str | os.PathLike[str]
_ELSEWHERE = {
    "LaunchOptions": "trainyard.run.launches.launch_job",
    "RunCosts": "trainyard.api.run_costs",
    "Session": "trainyard.run.session",
    "chaos": "trainyard.api.run_jobs",
    "chaos_nodes": "trainyard.api.run_jobs",
    "bisect_numerics": "trainyard.api.bisect_configurations",
    "check_kernels": "trainyard.api.check_operations",
    "compare_designs": "trainyard.api.compare_machine_designs",
    "compare_devices": "trainyard.api.compare_training_on_devices",
    "compare_numerics": "trainyard.api.compare_records",
    "critical_path": "trainyard.api.trace_modes",
    "Fabric": "trainyard.api.fabric_options",
    "FineTune": "trainyard.api.fine_tune",
    "TrainingOptions": "trainyard.api.training_options",
    "gate": "trainyard.api.gate_stored_runs",
    "gate_bisect": "trainyard.api.gate_revisions",
    "gate_convergence": "trainyard.api.gate_losses",
    "gate_reference_points": "trainyard.api.gate_losses",
    "gate_run": "trainyard.api.gate_revisions",
    "gate_self_check": "trainyard.api.gate_noise",
    "hangs": "trainyard.api.trace_modes",
    "history": "trainyard.api.job_history",
    "join": "trainyard.api.run_jobs",
    "launch": "trainyard.api.launch_jobs",
    "launch_cancel": "trainyard.api.launch_jobs",
    "launch_list": "trainyard.api.launch_jobs",
    "launch_logs": "trainyard.api.launch_jobs",
    "launch_render": "trainyard.api.launch_jobs",
    "launch_status": "trainyard.api.launch_jobs",
    "measure_memory": "trainyard.api.trace_modes",
    "measure_plan": "trainyard.api.measure_candidates",
    "parity": "trainyard.api.check_parity",
    "query": "trainyard.api.trace_modes",
    "reconcile": "trainyard.api.trace_modes",
    "plan_rollout": "trainyard.api.plan_post_training",
    "record_numerics": "trainyard.api.record_tensors",
    "reproduce_numerics": "trainyard.api.write_reproducer",
    "triage_numerics": "trainyard.api.triage_record",
    "report": "trainyard.api.write_report",
    "resume": "trainyard.api.run_jobs",
    "run": "trainyard.api.run_jobs",
    "run_script": "trainyard.api.run_jobs",
    "store_golden_curves": "trainyard.api.gate_losses",
    "watch_run": "trainyard.api.watch_runs",
    "what_if": "trainyard.api.trace_modes",
}
"""Name -> module that defines it, imported when the name is first used."""
_HERE = ("analyse", "catalogue", "check_plan", "diff", "fit_machine", "plan", "probe")
"""Names of the functions that this module defines."""


def __dir__() -> list[str]:
    return sorted([*_ELSEWHERE, *_HERE])


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
    formulas: Path | None = None,
) -> Analysis:
    """Analyses profiler files, or folders of them, of one or many ranks of a job.

    `window`: book each step, or the whole window as one step. `mark`: how names of the annotations around steps
    begin. `limit`: bytes that a file may hold when unpacked. `engine`: `serial`, `processes` or `ray`. `strict`:
    refuse damaged files of ranks; otherwise they are left out and named in `warnings`. `formulas`: a TOML file with
    formulas of the FLOPs and bytes of further ops, which take precedence over the built-in ones.

    ```python
    analysis = api.analyse("traces/")
    for account, ns in analysis.mean.by_account().items():
        print(account.label, ns / 1e6)
    ```

    Raises `BadFile` for a file that is not a profile, `BadInput` for profiles that do not belong together.
    """
    from trainyard.api.trace_modes import measure_paths
    from trainyard.report.view.build_analysis import analyse_measured

    measured = measure_paths(
        paths, window=window, mark=mark, limit=limit, engine=engine, strict=strict, formulas=formulas
    )
    return analyse_measured(measured)


def plan(
    model: Path | None = None,
    *,
    machine: Path = "",
    devices: int | None = None,
    batch: int | None = None,
    seq_len: int | None = None,
    tokens: float | None = None,
    costs: RunCosts | None = None,
    fine_tune: FineTune | None = None,
    training: TrainingOptions | None = None,
    fabric: Fabric | None = None,
    fix: Sequence[str] = (),
    framework: Literal["", "trainyard", "megatron", "torchtitan", "deepspeed"] = "",
    front: bool = False,
) -> Plans:
    """Plans how to train a model on a cluster: the recommended layout, others that are as fast, and plain FSDP or DDP,
    all with their predicted ledgers. The recommended layout is the simplest of those that are tied with the fastest.

    `model`: the name of a model, a Hugging Face config.json, the TOML file of a model, or a configuration with its own
    model and batch: a job file, torchtitan's TOML file, Megatron's arguments. `machine`: the name of a machine or its
    TOML file; `h100:64,a100:128` for parts of a cluster. `devices`: number of accelerators; if None, those of the
    machine or of the configuration. `batch`: samples of a step over all devices. `seq_len`: tokens of a sequence.
    `tokens`: tokens or images of the whole training, for days, dollars, energy and scaling; `costs`: of its failures,
    checkpoints and power cap, as in `RunCosts(mtbf_hours=30_000, power_cap=500)`. `fine_tune`: fine-tune a model
    instead, as in `FineTune(method="lora", lora_rank=32)`. `training`: recomputed modules and dispatch to experts, as
    in `TrainingOptions(overlap_dispatch=True)`. `fabric`: the switches between nodes in place of those of the machine,
    as in `Fabric(oversubscription=4, pod_nodes=16)`. `fix`: only layouts with these values, as `tp=8` or
    `dtype=float8`. `framework`: the framework that trains; for adapters alone, DeepSpeed by default. `front`: compute
    the trade-off of time and memory over all layouts, which takes seconds for the largest spaces.

    ```python
    plans = api.plan("llama3-70b", machine="h100", devices=512, batch=1024, seq_len=8192)
    print(plans.best.plan.job.layout, plans.best.plan.ledger.wall_ns)
    ```

    Raises `BadInput` for arguments or files that cannot be planned for, `BadJob` if no layout divides the model or
    fits.
    """
    from trainyard.api.fabric_options import Fabric
    from trainyard.api.fine_tune import FineTune
    from trainyard.api.plan_layouts import PlanOptions, plan_layouts
    from trainyard.api.run_costs import RunCosts
    from trainyard.api.training_options import TrainingOptions

    options = PlanOptions(
        machine=os.fspath(machine), devices=devices, batch=batch, seq_len=seq_len, tokens=tokens,
        costs=costs or RunCosts(), fine_tune=fine_tune or FineTune(), training=training or TrainingOptions(),
        fabric=fabric or Fabric(), fix=fix, front=front,
    )  # fmt: skip
    return plan_layouts(None if model is None else os.fspath(model), framework, options)


def check_plan(
    file: Path,
    *,
    model: Path | None = None,
    machine: Path = "",
    devices: int | None = None,
    batch: int | None = None,
    seq_len: int | None = None,
    tokens: float | None = None,
    costs: RunCosts | None = None,
    fine_tune: FineTune | None = None,
    training: TrainingOptions | None = None,
    fabric: Fabric | None = None,
    fix: Sequence[str] = (),
    front: bool = False,
) -> Plans:
    """Predicts a training configuration as it is; the layouts of `plan` for the same work follow it in `choices`.

    `file`: a job file, torchtitan's TOML file, Megatron's arguments, or DeepSpeed's JSON file. `model`: the decoder
    that it trains, for a configuration without a model. `fix`: restricts the layouts that follow. The other options
    are those of `plan`; they must agree with the file, or complete it. The memory of a job file is also counted by a
    simulated run of the training code.

    ```python
    checked = api.check_plan("ds_config.json", model="llama3-8b", machine="h100", devices=64, seq_len=8192)
    configured, *others = checked.choices
    ```

    Raises `BadInput` for arguments that contradict the file, `BadFile` for a file that is not a configuration.
    """
    from trainyard.api.fabric_options import Fabric
    from trainyard.api.fine_tune import FineTune
    from trainyard.api.plan_layouts import PlanOptions, check_configuration
    from trainyard.api.run_costs import RunCosts
    from trainyard.api.training_options import TrainingOptions

    options = PlanOptions(
        machine=os.fspath(machine), devices=devices, batch=batch, seq_len=seq_len, tokens=tokens,
        costs=costs or RunCosts(), fine_tune=fine_tune or FineTune(), training=training or TrainingOptions(),
        fabric=fabric or Fabric(), fix=fix, front=front,
    )  # fmt: skip
    return check_configuration(os.fspath(file), None if model is None else os.fspath(model), options)


def catalogue(kind: Literal["", "models", "machines"] = "") -> Catalogue:
    """Lists the models and machines that are known by name, with their sizes, rates and sources; `kind`: only these.

    ```python
    print(api.catalogue().models["llama3-8b"].parameters)
    ```
    """
    from trainyard.api.list_known import list_known

    return list_known(kind)


def probe(
    *,
    ranks: int | None = None,
    dtype: str = "float32",
    wait_s: float = 60.0,
    say: Callable[[str], None] = lambda _: None,
) -> ProbedMachine:
    """Benchmarks the devices of this machine for `plan`: matmuls, attention, memory, launches and collectives.

    `ranks`: number of processes; if None, one per device. `dtype`: of matmuls and attention. `wait_s`: seconds to wait
    at most until other processes are idle; the result has a warning if they never are. `say`: called with a message if
    there is a wait.

    ```python
    probed = api.probe(ranks=2)
    Path("here.toml").write_text(probed.toml)
    plans = api.plan("tiny", machine="here.toml", batch=64, seq_len=128)
    ```

    Raises `BadInput` if the machine cannot run `ranks`, `MissingLibrary` without torch, `RankDied` if a rank ends.
    """
    from trainyard.api.probe_machine import probe_machine

    return probe_machine(ranks, dtype, wait_s, say)


def fit_machine(runs: Sequence[Path], *, machine: Path) -> FittedMachine:
    """Fits the constants of a machine to stored runs, account by account. Runs of four jobs or more also calibrate the
    80 % prediction interval.

    `runs`: ids, tags or folders. `machine`: the name of the machine they ran on, or its TOML file.

    ```python
    fitted = api.fit_machine(["1a2b", "main"], machine="here.toml")
    for run in fitted.runs:
        print(run.name, run.measured_s, run.before_s, run.after_s)
    ```

    Raises `BadInput` for a run without a job or timed steps, or for runs in several dtypes.
    """
    from trainyard.api.probe_machine import fit_to_runs

    return fit_to_runs([os.fspath(run) for run in runs], os.fspath(machine))


def diff(before: Path, after: Path, *, strict: bool = False) -> Comparison:
    """Compares the steps of two recordings, account by account; the changes sum to the change of the step time.

    Traces with host ops are compared operation by operation, too: `operations` of the result.

    `before`, `after`: a run (id prefix, tag or folder), a profiler file or a folder of them, or a file that
    `trainyard plan --json` wrote. `strict`: refuse damaged files of ranks; otherwise they are left out and named in
    `caveats`.

    ```python
    comparison = api.diff("traces/before", "traces/after")
    for change in comparison.changes:
        print(change.account.label, change.ns / 1e6, change.verdict)
    ```

    Raises `UnknownName` for a name that is neither a path nor a run, `BadFile` for a file that is not a profile.
    """
    from msgspec.structs import replace

    from trainyard.api.named_inputs import find
    from trainyard.report.view.comparison import compare

    notes: list[str] = []
    named = [find(os.fspath(name), strict, say=notes.append) for name in (before, after)]
    jobs = [item.job for item in named if item.job]
    first, second = (item.side(with_operations=True, jobs=jobs) for item in named)
    comparison = compare(first, second)
    return replace(comparison, caveats=(*comparison.caveats, *notes))
