"""Models of transformers, trained by a script that does not know trainyard: benign changes raise no alarm, planted
faults are named and reproduced. `CONTRIBUTING.md` says how to install transformers."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path

import pytest

from trainyard.numerics.compare.compare_records import compare_records
from trainyard.numerics.record.record_command import JITTER_ULP, variant_names
from trainyard.numerics.record_files import FORMAT, RecordWriter
from trainyard.numerics.tensor_record import RecordHeader, TensorRecord

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]
pytest.importorskip("torch")
pytest.importorskip("transformers", reason="transformers is not installed")

from trainyard.numerics.record.float64_mode import Float64  # noqa: E402
from trainyard.numerics.record.recorder import Recorder  # noqa: E402
from trainyard.numerics.ulp_jitter import UlpJitter  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples" / "numerics"
STEPS = (0, 1)


def record(folder: Path, replicas: int, script: str, *options: str) -> Path:
    """Records a script as `trainyard numerics record` does, in forks of this process, which has imported the models."""
    command = [str(EXAMPLES / script), "--steps", str(len(STEPS)), *options]
    for number, variant in enumerate(variant_names(replicas)):
        child = os.fork()
        if not child:
            try:
                run_recorded(folder, variant, number, command)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return folder


def run_recorded(folder: Path, variant: str, number: int, command: list[str]) -> None:
    """Runs the script in this process."""
    header = RecordHeader(
        format=FORMAT,
        variant=variant,
        rank=0,
        ranks=1,
        level="operations",
        steps=STEPS,
        command=(sys.executable, *command),
    )
    replica = UlpJitter(number, JITTER_ULP, all_operations=True) if variant.startswith("replica") else nullcontext()
    mode = Float64() if variant == "float64" else replica
    sys.argv[:], sys.path[:0] = command, [str(EXAMPLES)]
    with RecordWriter(folder, header) as writer:

        def write(tensors: list[TensorRecord]) -> None:
            for tensor in tensors:
                writer.write(tensor)

        with mode, Recorder(write, STEPS):
            runpy.run_path(command[0], run_name="__main__")


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Records of the models in float32, in two micro-batches."""
    folder = tmp_path_factory.mktemp("references")
    models = ("llama", "mixtral")
    return {model: record(folder / model, 3, "hugging_face.py", *options_of(model)) for model in models}


def options_of(model: str) -> list[str]:
    return ["--model", model, "--micro-batches", "2"]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama", "--compile"),
        ("llama", "--bfloat16 autocast"),
        ("llama", "--bfloat16 full"),
        ("llama", "--attention eager"),
        ("llama", "--micro-batches 4"),
        ("mixtral", "--bfloat16 autocast"),
        ("mixtral", "--attention eager"),
    ],
)
def test_other_kernels_formats_and_layouts_raise_no_alarm(
    references: dict[str, Path], tmp_path: Path, model: str, options: str
) -> None:
    b = record(tmp_path / "b", 0, "hugging_face.py", *options_of(model), *options.split())
    comparison = compare_records(references[model], b)
    assert comparison.verdict == "same"
    assert comparison.counts.different == 0
    assert comparison.counts.within_rounding + comparison.counts.identical > 200
    if "bfloat16" not in options:
        assert comparison.counts.undetectable < 0.05 * comparison.counts.within_rounding


@pytest.mark.parametrize(
    ("model", "fault", "module", "operation", "cause"),
    [
        ("llama", "norm-epsilon", ".layers.1.post_attention_layernorm", "aten.add", ""),
        ("llama", "rope-bfloat16", ".rotary_emb", "aten.mul", "aten._to_copy"),
        ("llama", "attention-scale", ".1.self_attn", "aten._scaled_dot_product_flash_attention_for_cpu", ""),
        ("llama", "mlp-sign", ".layers.1", "aten.add", "aten.neg"),
        ("llama", "rotation-sign", ".layers.0.self_attn", "aten.mul", "aten.neg"),
        ("llama", "mean-of-means", "ForCausalLM", "aten.nll_loss_forward", ""),
        ("mixtral", "router-weights", ".layers.1.mlp.experts", "aten.index", "aten.mul"),
    ],
)
def test_fault_is_named(
    references: dict[str, Path], tmp_path: Path, model: str, fault: str, module: str, operation: str, cause: str
) -> None:
    b = record(tmp_path / "b", 0, "hugging_face_faults.py", *options_of(model), "--fault", fault)
    first = compare_records(references[model], b).first
    assert first is not None
    assert (first.tensor.step, first.tensor.phase, first.tensor.operation) == (0, "forward", operation)
    assert first.tensor.module.endswith(module)
    assert [(each.side, each.operation) for each in first.causes] == ([("B", cause)] if cause else [])
    assert first.tensor.location_a.startswith("transformers/")


def test_fault_of_other_micro_batches_is_named_by_gradients(references: dict[str, Path], tmp_path: Path) -> None:
    options = ["--micro-batches", "4", "--fault", "mean-of-means"]
    first = compare_records(references["llama"], record(tmp_path / "b", 0, "hugging_face_faults.py", *options)).first
    assert first is not None
    assert (first.tensor.step, first.tensor.role, first.causes) == (0, "gradient", ())


def test_fault_is_reproduced_alone(references: dict[str, Path], tmp_path: Path) -> None:
    b = record(tmp_path / "b", 0, "hugging_face_faults.py", *options_of("llama"), "--fault", "norm-epsilon")
    script = tmp_path / "reproducer.py"
    command = ["numerics", "reproduce", str(references["llama"]), str(b), "--out", str(script), "--rerun"]
    done = subprocess.run(
        [sys.executable, "-m", "trainyard.cli.main", *command], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "1e-06" in script.read_text()
    assert subprocess.run([sys.executable, str(script)], check=False, cwd=tmp_path, capture_output=True).returncode == 1
