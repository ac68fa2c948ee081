"""What commands print: a stream that cannot be written is the environment's failure, and every name is visible."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trace_maker import trace
from trainyard.cli.main import answer
from trainyard.cli.support import output

DEMO = str(Path(__file__).parents[3] / "src" / "trainyard" / "data" / "demo")
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
PRINTS = [
    ["demo"],
    ["demo", "--json"],
    ["trace", DEMO],
    ["trace", DEMO, "--json"],
    ["diff", f"{DEMO}/rank0.json.gz", f"{DEMO}/rank1.json.gz"],
    ["report", DEMO, "--out", "x.md"],
    ["plan", "llama3-8b", "--machine", "a100", "--devices", "8", "--batch", "8", "--seq-len", "1024"],
    ["runs", "--json"],
    ["--help"],
    ["trace", "--help"],
    ["--version"],
]


def run(args, cwd, unbuffered="", **streams) -> subprocess.CompletedProcess:
    env = {**os.environ, "TRAINYARD_STORE": str(cwd / "store"), "PYTHONUNBUFFERED": unbuffered}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(
        [sys.executable, "-m", "trainyard.cli.main", *args], cwd=cwd, env=env, timeout=120, check=False, **streams
    )


@needs_full
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", PRINTS, ids=" ".join)
def test_a_full_stdout_is_exit_4(args, unbuffered, tmp_path):
    with FULL.open("w") as full:
        done = run(args, tmp_path, unbuffered, stdout=full)
    assert done.returncode == 4
    assert done.stderr.endswith(b"cannot write stdout: No space left on device.\n")


@pytest.mark.parametrize("args", PRINTS, ids=" ".join)
def test_a_closed_pipe_is_quiet(args, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    done = run(args, tmp_path, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_closed_stdout_is_exit_4(tmp_path):
    done = run(["trace", DEMO], tmp_path, stdout=None, preexec_fn=lambda: os.close(1))
    assert done.returncode == 4
    assert done.stderr.endswith(b"cannot write stdout: it is closed.\n")


@needs_full
def test_a_full_stderr_loses_no_data_and_is_exit_4(tmp_path):
    with FULL.open("w") as full:
        done = run(["demo", "--json"], tmp_path, stderr=full)
        assert done.returncode == 4
        assert json.loads(done.stdout)["ledgers"]
        assert (tmp_path / "trainyard-demo.html").stat().st_size
        assert run(["trace", "nothing"], tmp_path, stderr=full).returncode == 2


@needs_full
@pytest.mark.parametrize("ending", ["html", "md", "csv", "json", "pftrace"])
def test_a_report_on_a_full_disk_is_exit_4(ending, tmp_path):
    link = tmp_path / f"report.{ending}"
    link.symlink_to(FULL)
    done = run(["report", DEMO, "--out", link], tmp_path)
    assert done.returncode == 4
    assert b"No space left on device" in done.stderr
    assert FULL.is_char_device()


def test_a_report_to_a_pipe_is_written_there(tmp_path):
    (tmp_path / "out.json").symlink_to("/dev/stdout")
    done = run(["report", DEMO, "--out", "out.json", "--json"], tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout.splitlines()[0])["ledgers"]
    assert (tmp_path / "out.json").is_symlink()


def test_an_encoding_without_our_signs_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = run(["trace", DEMO], tmp_path)
    assert done.returncode == 0
    assert done.stdout.isascii()


EVIL = "gemm\u202elive\x1b[2J\x9b2J\u200b"
SHOWN = "gemm⟨U+202E⟩live⟨U+001B⟩[2J⟨U+009B⟩2J⟨U+200B⟩"


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A trace whose names, and whose own name, hold characters that must not be printed raw."""
    monkeypatch.chdir(tmp_path)
    document = trace(device=[(EVIL, 7, 0, 100, 0)], marks=[("1\u202e", 0, 300)])
    path = tmp_path / os.fsdecode(b"r\xff\xe2\x80\xae.json")
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    "args",
    [
        ["PATH"],
        ["PATH", "--full"],
        ["PATH", "--json"],
        ["PATH", f"--{EVIL}"],
        ["PATH", EVIL],
        ["reconcile", "PATH", "--with", "hta"],
        ["what-if", "PATH", "--change", "no-stragglers"],
        ["what-if", "PATH", "--change", "network=2x"],
        ["what-if", "PATH", "--change", EVIL],
        ["sql", "select * from work", "PATH"],
        ["sql", "select * from work", "PATH", "--json"],
        ["sql", EVIL, "PATH"],
    ],
)
def test_no_name_reaches_the_terminal_raw(args, evil, capsys):
    assert answer(["trace", *(str(evil) if word == "PATH" else word for word in args)]) in (0, 2, 4)
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert all(char.isprintable() or char == "\n" for char in text)
        text.encode()


def test_json_of_hostile_names_is_exact(evil, capsys):
    pytest.importorskip("duckdb")
    assert answer(["trace", "sql", "select name from work", str(evil), "--json"]) == 0
    assert [EVIL] in json.loads(capsys.readouterr().out)["rows"]


@pytest.mark.parametrize("ending", ["html", "md", "csv", "json"])
def test_no_report_holds_a_direction_control(ending, evil, tmp_path, capsys):
    out = tmp_path / f"report.{ending}"
    assert answer(["report", str(evil), "--out", str(out)]) == 0
    text = out.read_text("utf-8")
    assert not set(text) & set("\u202e\x1b\x9b\u200b")
    if ending == "md":
        assert SHOWN in text


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
}
HALF = "a\ud800b"


@pytest.mark.parametrize("config", [{**CONFIG, HALF: 1}, {**CONFIG, "architectures": [HALF]}])
@pytest.mark.parametrize("form", [[], ["--json"], ["--out", "job.toml"]])
def test_half_a_surrogate_pair_in_a_configuration_is_printed(config, form, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text(json.dumps(config))
    options = ["--machine", "a100", "--devices", "1", "--batch", "8", "--seq-len", "128"]
    assert answer(["plan", "config.json", *options, *form]) in (0, 2)
    printed = capsys.readouterr()
    assert "⟨U+D800⟩" in printed.out + printed.err or r"\ud800" in printed.out + printed.err or "--out" in form
    (printed.out + printed.err).encode()


@pytest.mark.parametrize("columns", ["abc", "12.5", "0", "-5", ""])
def test_an_invalid_width_of_the_terminal_is_ignored(columns, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # where the demo writes its page
    monkeypatch.setenv("COLUMNS", columns)
    assert answer(["demo"]) == 0
    assert "161.421" in capsys.readouterr().out


def test_messages_are_wrapped_only_at_a_given_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = 'from = "' + "a folder/" * 12 + '"'
    message = "error: " + "some words " * 20 + f"\n       then do this:\n[model]\n{source}"
    output.say(message)
    assert capsys.readouterr().err == message + "\n"
    monkeypatch.setenv("COLUMNS", "60")
    output.say(message)
    lines = capsys.readouterr().err.splitlines()
    assert max(len(line) for line in lines if line != source) <= 60
    assert lines[-2:] == ["[model]", source]
    assert " ".join(" ".join(lines).split()) == " ".join(message.split())
