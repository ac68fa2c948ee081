"""Provenance: code, packages, host and environment, and nothing secret."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard import plugins
from trainyard.machine import Claim
from trainyard.record import DeviceSeen, Provenance
from trainyard.run.local.rank_facts import RankFacts
from trainyard.run.record import provenance


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_a_checkout_is_named_with_its_dirtiness(tmp_path: Path) -> None:
    assert provenance.code(tmp_path) == {}
    git(tmp_path, "init", "-q")
    assert provenance.code(tmp_path) == {}
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "one")
    clean = provenance.code(tmp_path)
    assert len(clean["sha"]) == 40
    assert clean["dirty"] == "no"
    (tmp_path / "file").write_text("two")
    assert provenance.code(tmp_path) == {"sha": clean["sha"], "dirty": "yes"}


def test_without_git_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.code(tmp_path) == {}


def test_packages_are_ours_and_what_comes_with_torch() -> None:
    versions = provenance.packages()
    assert versions["python"] == platform.python_version()
    assert versions["msgspec"] == metadata.version("msgspec")
    assert "pytest" not in versions
    assert all(name in versions for name in ("trainyard", "numpy", "click", "rich"))


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("NCCL_DEBUG", "INFO", "INFO"),
        ("OMP_NUM_THREADS", "4", "4"),
        ("LD_PRELOAD", "libjemalloc.so", "libjemalloc.so"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "expandable_segments:True"),
        ("TORCH_HOME", "https://me:p@ss@host/x", "https://***@host/x"),
        ("TRAINYARD_STORE", "s3://b/p?api_token=abc&x=1", "s3://b/p?api_token=***&x=1"),
        ("NVIDIA_TF32_OVERRIDE", "0", "0"),
        ("CUBLASLT_LOG_LEVEL", "1", "1"),
        ("HIPBLASLT_TENSILE_LIBPATH", "lib", "lib"),
        ("TENSILE_DB", "0x8", "0x8"),
        ("NVTE_FUSED_ATTN", "1", "1"),
        ("NVIDIA_VISIBLE_DEVICES", "all", None),
        ("NCCL_DB_PWD", "abc", None),
        ("TORCH_HOME", "https://b/p?sig=abc&x=1&pwd=abc", "https://b/p?sig=***&x=1&pwd=***"),
        ("TORCH_API_KEY", "abc", None),
        ("NCCL_SECRET", "abc", None),
        ("SLURM_JWT", "abc", None),
        ("CUDA_PASSWORD", "abc", None),
        ("HOME", "/home/me", None),
        ("HF_TOKEN", "abc", None),
        ("MY_CUDA_THING", "1", None),
    ],
)
def test_the_environment_keeps_what_matters_and_no_secret(name: str, value: str, kept: str | None) -> None:
    assert provenance.environment({name: value}).get(name) == kept


@given(
    secret=st.from_regex(r"[A-Za-z0-9]{12,20}", fullmatch=True),
    word=st.sampled_from(["token", "Secret", "PASSWORD", "api_key", "db_pwd", "X_Auth", "credential"]),
)
def test_no_login_or_assigned_secret_survives(secret: str, word: str) -> None:
    values = [f"http://user:{secret}@host/path", f"https://{secret}@host", f"x=1;{word}={secret}", f"u?{word}={secret}"]
    kept = provenance.environment({f"NCCL_{i}": value for i, value in enumerate(values)})
    kept |= provenance.environment({f"NCCL_{word}": secret, f"TORCH_{word.upper()}_X": secret})
    assert len(kept) == len(values)
    assert not any(secret in value for value in kept.values())


def test_what_is_gathered_says_devices_drivers_clocks_and_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_PRETEND", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    vendors = plugins.load_all("vendors")
    devices = tuple(vendors["pretend"].devices())
    gathered = provenance.gather(devices, vendors, {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    assert gathered.devices == devices
    assert gathered.driver == {"pretend.0": "1.0", "pretend.1": "1.0"}
    assert gathered.clocks["pretend.1.clocks.sm"] == "1000 MHz"
    assert gathered.clocks["cpu.load"]
    assert gathered.environment["OMP_NUM_THREADS"] == "7"
    assert gathered.environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert platform.release() in gathered.host["system"]
    assert gathered.host["cpu"]
    assert gathered.host["memory"].endswith("GiB")
    assert msgspec.json.decode(msgspec.json.encode(gathered), type=Provenance) == gathered


def rank(number: int, weights: str = "", **changes: Any) -> RankFacts:
    given = RankFacts(
        rank=number, local_rank=number, world=2, vendor="cpu", device="cpu", backend="gloo", threads=1,
        text="python", digests={"text": "t", "weights_final": weights}, seeds={"job": 1},
        parameters=1, model_flops=1, torch_build={"version": "2"},
        matmul_rate=Claim(value=1, unit="FLOP/s", source="probe"),
    )  # fmt: skip
    return msgspec.structs.replace(given, **changes)


def test_the_devices_are_those_that_trained() -> None:
    seen = tuple(
        DeviceSeen(index=i, name="NVIDIA H200", vendor="nvidia", memory_bytes=9, facts={"uuid": str(i)})
        for i in range(4)
    )
    known = Provenance(devices=seen)

    def devices(**changes: str) -> tuple[DeviceSeen, ...]:
        return provenance.with_facts(known, [rank(0, **changes), rank(1, **changes)]).devices

    assert devices(vendor="nvidia", device="NVIDIA H200") == seen[:2]
    slices = devices(vendor="nvidia", device="NVIDIA H200 MIG 1g.18gb")
    assert slices == tuple(DeviceSeen(index=i, name="NVIDIA H200 MIG 1g.18gb", vendor="nvidia") for i in range(2))
    assert devices(vendor="cpu", device="some cores") == (DeviceSeen(index=0, name="some cores", vendor="cpu"),)


def test_clocks_at_work_are_the_first_ranks_word() -> None:
    known = Provenance(clocks={"cpu.load": "1"})
    clocks = provenance.with_facts(known, [rank(0, clocks={"load": "2"}), rank(1)]).clocks
    assert clocks == {"cpu.load": "1", "at_work.cpu.load": "2"}


def test_ranks_add_what_only_they_know() -> None:
    known = Provenance(text="")
    assert provenance.with_facts(known, []) is known
    same = provenance.with_facts(known, [rank(0, "a"), rank(1, "a")])
    assert (same.text, same.seeds, same.torch_build) == ("python", {"job": 1}, {"version": "2"})
    assert same.digests == {"text": "t", "weights_final": "a"}
    assert provenance.with_facts(known, [rank(0, "a"), rank(1, "b")]).digests["weights_final.rank1"] == "b"
