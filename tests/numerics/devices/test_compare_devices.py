"""`trainyard numerics devices`: sides are recorded, kept and compared. The devices are kernels of the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.schema_check import valid
from tests.numpy_training import NumpyTraining
from trainyard import api
from trainyard.cli.main import answer
from trainyard.errors import BadInput, CommandFailed, DeviceUnusable
from trainyard.numerics.devices.device_command import check_devices, command_on, folder_name, job_on
from trainyard.numerics.record_files import variants
from trainyard.report.numerics.devices_report import DeviceComparison, DevicesReport

SCRIPT = Path(__file__).with_name("device_training.py")
WORDS = [sys.executable, str(SCRIPT), "--device", "{device}"]


def test_the_device_is_named_in_words_and_variables() -> None:
    command = command_on("cuda:1", ["python", "x.py", "--device={device}", "{device}"], {"A": "on {device}", "B": "1"})
    assert command.words == ("python", "x.py", "--device=cuda:1", "cuda:1")
    assert command.variables == {"A": "on cuda:1", "B": "1"}
    with pytest.raises(BadInput):
        command_on("cuda", ["python", "x.py"], {"A": "cuda"})
    assert folder_name("cuda:1") == "cuda-1"


def test_a_job_is_run_without_visible_accelerators_on_the_cpu() -> None:
    assert job_on("cpu", ["run", "job.toml"], {}).variables == {"CUDA_VISIBLE_DEVICES": ""}
    assert job_on("cuda", ["run", "job.toml"], {}).variables == {}
    assert job_on("cuda:2", ["run", "job.toml"], {}).variables == {"CUDA_VISIBLE_DEVICES": "2"}
    with pytest.raises(BadInput):
        job_on("xpu", ["run", "job.toml"], {})


@pytest.mark.parametrize("devices", [[], ["cpu"], ["cpu", "cpu"], ["cpu", "../x"], ["cpu", ""], ["a:1", "a-1"]])
def test_devices_must_be_different_names(devices: list[str]) -> None:
    with pytest.raises(BadInput):
        check_devices(devices)


def test_the_worst_comparison_decides(tmp_path: Path) -> None:
    reference = NumpyTraining(layers=2, steps=1).write_all(tmp_path / "a")
    same = NumpyTraining(layers=2, steps=1, parts=2).write(tmp_path / "same")
    other = NumpyTraining(layers=2, steps=1, scaled=False).write(tmp_path / "other")
    comparisons = {
        0: api.compare_numerics(reference, same),
        1: api.compare_numerics(reference, other),
        3: api.compare_numerics(same, other),
    }

    def exit_code(*codes: int) -> int:
        devices = tuple(DeviceComparison(device=str(code), comparison=comparisons[code]) for code in codes)
        return DevicesReport(folder="x", reference="cpu", missing=(), devices=devices).exit_code

    assert [comparison.exit_code for comparison in comparisons.values()] == [0, 1, 3]
    assert [exit_code(), exit_code(0), exit_code(3, 0), exit_code(0, 1, 3)] == [0, 0, 3, 1]


@pytest.mark.torch
@pytest.mark.slow
def test_devices_are_recorded_kept_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "devices"
    options = {"devices": ["cpu", "math", "unfused:1"], "steps": "0-1", "replicas": 2}
    alone = api.compare_devices(WORDS, out, only="math", **options)
    assert (alone.missing, alone.devices, alone.exit_code) == (("cpu", "unfused:1"), (), 0)
    recorded_at = (out / "math" / "plain" / "rank0.jsonl.gz").stat().st_mtime_ns
    messages: list[str] = []
    report = api.compare_devices(WORDS, out, say=messages.append, **options)
    assert (out / "math" / "plain" / "rank0.jsonl.gz").stat().st_mtime_ns == recorded_at
    assert variants(out / "cpu") == ["float64", "plain", "replica-1", "replica-2"]
    assert variants(out / "math") == variants(out / "unfused-1") == ["plain"]
    assert sorted(path.name for path in out.iterdir()) == ["cpu", "math", "unfused-1"]
    assert [(each.device, each.comparison.verdict) for each in report.devices] == [
        ("math", "same"),
        ("unfused:1", "same"),
    ]
    assert report.exit_code == 0
    assert sum(each.comparison.counts.within_rounding for each in report.devices) > 0  # other kernels
    assert sum(message.startswith("math: ") for message in messages) == 1

    command = ["numerics", "devices", "--out", str(out), "--steps", "0-1", "--replicas", "2"]
    page = tmp_path / "page.html"
    capsys.readouterr()
    code = answer([*command, "--on", "cpu,math,faulty", "--json", "--page", str(page), "--", *WORDS])
    document = valid("numerics-devices", capsys.readouterr().out)
    assert code == 1
    faulty = document["devices"][1]["comparison"]
    assert (document["devices"][1]["device"], faulty["verdict"]) == ("faulty", "different")
    assert "scaled_dot_product" in faulty["first"]["tensor"]["operation"]
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["page-faulty.html", "page-math.html"]
    assert answer([*command, "--on", "cpu,math", "--", *WORDS]) == 0
    assert "A cpu, B math" in capsys.readouterr().out

    for changed in ({"steps": "0"}, {"replicas": 3}, {"level": "modules"}, {"devices": ["math", "cpu"]}):
        with pytest.raises(BadInput):
            api.compare_devices(WORDS, out, **{**options, **changed})
    script, variables = WORDS[:2], {"TEST_DEVICE": "{device}"}
    with pytest.raises(CommandFailed):
        api.compare_devices(script, tmp_path / "b", devices=["cpu", "broken"], only="broken", variables=variables)
    with pytest.raises(BadInput):  # it computed on the CPU
        api.compare_devices(WORDS, tmp_path / "b", devices=["cpu", "meta"], only="meta")
    assert [path.name for path in (tmp_path / "b").glob("[!.]*")] == []


@pytest.mark.torch
def test_a_missing_device_is_named_with_available_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    count = torch.cuda.device_count()
    with pytest.raises(DeviceUnusable):
        api.compare_devices(WORDS, tmp_path / "a", devices=["cpu", f"cuda:{count}"])
    assert not (tmp_path / "a").exists()
    code = answer(["numerics", "devices", "--on", f"cpu,cuda:{count}", "--out", str(tmp_path / "a"), "--", *WORDS])
    error = capsys.readouterr().err
    assert code == 4
    assert f"'cuda:{count}'" in error
    assert "cpu" in error
    assert "Traceback" not in error


def test_bad_command_lines_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["numerics", "devices", "--out", str(tmp_path / "a")]
    assert answer([*command, "--", "python", "train.py"]) == 2
    assert answer([*command, "--env", "DEVICE", "--", "python", "train.py"]) == 2
    assert answer([*command, "--only", "xpu", "--", *WORDS]) == 2
    assert answer([*command, "--replicas", "0", "--", *WORDS]) == 2
    assert "Traceback" not in capsys.readouterr().err
