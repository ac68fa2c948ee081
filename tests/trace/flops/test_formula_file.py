"""Formula files of users: what they may contain, errors that name the entry, and their place before the package's."""

import json

import pytest
from click.testing import CliRunner

from tests.trace.flops.shapes import HALF, SINGLE, shape
from tests.trace_maker import MAIN, trace, write
from trainyard import api
from trainyard.cli.main import cli
from trainyard.errors import BadFile, BadInput
from trainyard.trace.flops.formula_file import MAX_FILE_BYTES, library, read_formulas
from trainyard.trace.flops.op_costs import Formulas, cost_of
from trainyard.trace.flops.operands import CallFacts

ENTRY = """
[[formula]]
ops = ["mylib::fused_mlp"]
arguments = "x w1 w2 bias"
flops = "2 * x.numel * (w1[0] + w2[0])"
bytes = "bytes(x, w1, w2, bias) + x.bytes"
matrix = true
"""


def write_file(folder, text):
    path = folder / "formulas.toml"
    path.write_text(text, "utf-8")
    return path


def formulas(folder, text):
    return Formulas(read_formulas(write_file(folder, text)))


def test_a_formula_gives_the_cost_of_its_op(tmp_path):
    own = formulas(tmp_path, ENTRY)
    call = shape((HALF, (4, 8)), (HALF, (16, 8)), (HALF, (16, 8)), None)
    assert cost_of("mylib::fused_mlp", call) is None
    call_cost = cost_of("mylib::fused_mlp", call, formulas=own)
    assert (call_cost.flops, call_cost.bytes) == (2 * 32 * 32, 2 * (32 + 128 + 128 + 32))
    assert call_cost.format.word == "bfloat16"
    assert own.covers("mylib::fused_mlp")
    assert not own.covers("mylib::other")


def test_own_formulas_precede_built_in_ones(tmp_path):
    call = shape((SINGLE, (2, 3)), (SINGLE, (3, 4)))
    own = formulas(tmp_path, '[[formula]]\nops = ["aten::mm"]\narguments = "a b"\nflops = "7"\nbytes = "a.bytes"\n')
    assert cost_of("aten::mm", call, formulas=own)[:2] == (7, 24)
    # A call that its `requires` excludes, or that lacks a value, falls back to the built-in formula.
    text = '[[formula]]\nops = ["aten::mm"]\narguments = "a b c"\nrequires = "a[0] > 9"\nflops = "7"\nbytes = "7"\n'
    assert cost_of("aten::mm", call, formulas=formulas(tmp_path, text)).flops == 48
    text = text.replace('requires = "a[0] > 9"\n', "").replace('bytes = "7"', 'bytes = "c.bytes"')
    assert cost_of("aten::mm", call, formulas=formulas(tmp_path, text)).flops == 48


def test_first_entry_that_applies_counts(tmp_path):
    text = "".join(
        f'[[formula]]\nops = ["my*::f"]\narguments = "x"\nrequires = "x.ndim == {n}"\nflops = "{n}"\nbytes = "0"\n'
        for n in (1, 2)
    )
    own = formulas(tmp_path, text + text.replace('"0"', '"5"'))
    assert [cost_of("mylib::f", shape((HALF, (2,) * n)), formulas=own)[:2] for n in (1, 2)] == [(1, 0), (2, 0)]
    assert cost_of("mylib::f", shape((HALF, (2,) * 3)), formulas=own) is None


def test_backward_nodes_read_gradient_and_arguments(tmp_path):
    text = ENTRY.replace("mylib::fused_mlp", "MyMLP") + (
        '[formula.backward]\nflops = "2 * grad.numel * w1[0]"\nbytes = "grad.bytes + w1.bytes"\n'
    )
    own = formulas(tmp_path, text)
    forward = shape((HALF, (4, 8)), (HALF, (16, 8)), (HALF, (16, 8)), None)
    gradient = shape((HALF, (4, 8)))
    call_cost = cost_of("MyMLPBackward", gradient, CallFacts(partner=forward), own)
    assert (call_cost.flops, call_cost.bytes) == (2 * 32 * 16, 64 + 256)
    assert cost_of("MyMLPBackward", gradient, formulas=own) is None
    assert own.pairs("MyMLP", "MyMLPBackward")


BAD = {
    "no TOML": ("[[formula", "not a formula file"),
    "unknown key": (ENTRY.replace("matrix", "tensor_cores"), "tensor_cores"),
    "missing key": (ENTRY.replace("bytes =", "note ="), "bytes"),
    "no list": ('formula = "x"\n', "not a formula file"),
    "wrong type": (ENTRY.replace("true", '"yes"'), "matrix"),
    "no ops": (ENTRY.replace('["mylib::fused_mlp"]', "[]"), "formula 1"),
    "unknown argument": (ENTRY.replace("x.numel", "y.numel"), "'y'"),
    "repeated argument": (ENTRY.replace("x w1", "x x w1"), "'x'"),
    "reserved argument": (ENTRY.replace("x w1 w2", "x w1 w2 result"), "result"),
    "unknown format": (ENTRY + 'format = "z"\n', "'z'"),
    "code": (ENTRY.replace("2 * x.numel", "__import__('os').getpid()"), "fused_mlp"),
    "syntax": (ENTRY.replace("2 * x.numel", "2 * * x"), "flops"),
    "result backward": (ENTRY + '[formula.backward]\nflops = "result.numel"\nbytes = "0"\n', "backward.flops"),
    "nesting": ("a = " + "[" * 5000, "nested"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_by_entry(tmp_path, name):
    text, named = BAD[name]
    with pytest.raises(BadInput, match=r"formulas\.toml") as caught:
        read_formulas(write_file(tmp_path, text))
    assert named in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(BadFile):
        read_formulas(tmp_path / "absent.toml")
    with pytest.raises(BadFile):
        read_formulas(tmp_path)
    with pytest.raises(BadFile, match="bytes"):
        read_formulas(write_file(tmp_path, "#" * (MAX_FILE_BYTES + 1)))
    path = write_file(tmp_path, "")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadFile):
        read_formulas(path)
    with pytest.raises(BadFile):
        read_formulas(write_file(tmp_path, ""))


def test_the_packages_files_are_valid():
    assert len(library()) > 50
    assert all(entry.library for entry in library())


def recorded(folder):
    """A trace of one call of `mylib::fused_mlp` and one of an op without a formula, 300 and 100 ns."""
    args = {"Input Dims": [[4, 8], [16, 8], [16, 8], []], "Input type": [HALF] * 3 + [""], "Concrete Inputs": [""] * 4}
    host = [("mylib::fused_mlp", MAIN, 1000, 4000, "cpu_op", args), ("mylib::rest", MAIN, 5000, 6000, "cpu_op")]
    device = [("mlp_kernel", 7, 20_000, 20_300, 2000), ("rest_kernel", 7, 20_300, 20_400, 5500)]
    return write(folder, trace(host=host, device=device))


def test_analysis_lists_the_time_that_no_formula_covers(tmp_path):
    path, file = recorded(tmp_path), write_file(tmp_path, ENTRY)
    before, after = api.analyse(path).formulas, api.analyse(path, formulas=file).formulas
    assert (before.covered_ns, before.compute_ns, before.share) == (0, 400, 0.0)
    assert [(row.op, row.missing, row.ns, row.share) for row in before.uncovered] == [
        ("mylib::fused_mlp", "no_formula", 300, 0.75),
        ("mylib::rest", "no_formula", 100, 0.25),
    ]
    assert (after.covered_ns, after.share) == (300, 0.75)
    assert [row.op for row in after.uncovered] == ["mylib::rest"]


def added_warnings(folder, file):
    """The warnings of an analysis that it does not have without the formula file."""
    path = recorded(folder)
    without = api.analyse(path).warnings
    return [warning for warning in api.analyse(path, formulas=file).warnings if warning not in without]


def test_formulas_without_an_op_are_named(tmp_path):
    entry = '[[formula]]\nops = {ops}\narguments = "a"\nflops = "1"\nbytes = "1"\n'
    used = [["mylib::fused_*"], ["absent", "mylib::rest"]]
    unused = [["mylib::fused_mlpp"], ["MyLib::rest", "x*"]]
    file = write_file(tmp_path, "".join(entry.format(ops=json.dumps(ops)) for ops in (*used, *unused)))
    (warning,) = added_warnings(tmp_path, file)
    assert all(pattern in warning for ops in unused for pattern in ops)
    assert not any(pattern in warning for ops in used for pattern in ops)
    assert warning.startswith("2 ")


def test_backward_node_counts_as_a_match(tmp_path):
    backward = '[formula.backward]\nops = ["mylib::rest"]\nflops = "1"\nbytes = "1"\n'
    entry = '[[formula]]\nops = ["absent"]\nflops = "1"\nbytes = "1"\n'
    assert len(added_warnings(tmp_path, write_file(tmp_path, entry + backward))) == 0
    assert len(added_warnings(tmp_path, write_file(tmp_path, entry))) == 1


def test_every_command_takes_the_formulas(tmp_path):
    path, file = str(recorded(tmp_path)), str(write_file(tmp_path, ENTRY))
    plain = CliRunner().invoke(cli, ["trace", path, "--json"])
    with_file = CliRunner().invoke(cli, ["trace", path, "--json", "--formulas", file])
    assert json.loads(plain.stdout)["formulas"]["share"] == 0.0
    assert json.loads(with_file.stdout)["formulas"]["share"] == 0.75
    text = CliRunner().invoke(cli, ["trace", path, "--full", "--formulas", file]).stdout
    assert "mylib::rest" in text
    page = tmp_path / "page.html"
    CliRunner().invoke(cli, ["trace", path, "--page", str(page), "--formulas", file])
    assert "Compute without known FLOPs or bytes" in page.read_text("utf-8")
    change = ["--change", "op:mylib::fused_mlp=2x", "--json", "--formulas", file]
    predicted = CliRunner().invoke(cli, ["trace", "what-if", path, *change])
    assert predicted.exit_code == 0
    bad = CliRunner().invoke(cli, ["trace", path, "--formulas", str(tmp_path / "absent.toml")])
    assert isinstance(bad.exception, BadFile)


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_formulas_reach_ranks_booked_in_other_processes(tmp_path, engine):
    for rank in range(2):
        document = json.loads(recorded(tmp_path).read_text("utf-8"))
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        write(tmp_path, document, f"rank{rank}.json")
    files = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    call_cost = api.analyse(files, engine=engine, formulas=write_file(tmp_path, ENTRY))
    assert call_cost.formulas.share == 0.75
