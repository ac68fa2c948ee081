"""Ops and their nodes in the backward pass: paired by sequence number, by neighbours, and not when in doubt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace_maker import MAIN, trace, write
from trainyard.trace.flops.roofline import op_roofline
from trainyard.trace.measure import measure, read

SINGLE = "float"


def op(name, start, dims, types, seq=None, backward=False, values=None):
    """An op of 500 ns, on the thread of the backward pass if `backward`."""
    args = {"Input Dims": dims, "Input type": types}
    if values:
        args["Concrete Inputs"] = values
    if seq is not None:
        args |= {"Sequence number": seq, "Fwd thread id": 1 if backward else 0}
    return (name, MAIN + backward, start, start + 500, "cpu_op", args)


def rows(tmp_path, host, launches):
    """Name -> row of the roofline; one kernel is launched 100 ns into each op that starts at one of `launches`."""
    threads = {row[2]: row[1] for row in host}
    device = [
        ("kernel", 7, 90_000 + 1000 * i, 90_400 + 1000 * i, start + 100, {"thread": threads[start]})
        for i, start in enumerate(launches)
    ]
    op_rows = op_roofline(measure(read([write(tmp_path, trace(host=host, device=device))])))
    return {(row.op, row.shape): row for row in op_rows.rows}


def test_convolution_without_strides_uses_its_gradient(tmp_path):
    """Files from before 2023 record no strides: the gradient of the result has its size."""
    x, w, out = [2, 4, 9, 9], [6, 4, 3, 3], [2, 6, 4, 4]
    host = [
        op("aten::cudnn_convolution", 1000, [x, w, [], []], [SINGLE, SINGLE, "", ""], seq=5),
        op("CudnnConvolutionBackward", 5000, [out], [SINGLE], seq=5, backward=True),
    ]
    (row,) = rows(tmp_path, host, [1000]).values()
    assert row.flops == 2 * 2 * 6 * 4 * 4 * (4 * 3 * 3)
    assert row.bytes == 4 * (2 * 4 * 81 + 6 * 4 * 9 + 2 * 6 * 16)
    unpaired = rows(tmp_path, [host[0], op("CudnnConvolutionBackward", 5000, [out], [SINGLE], 6, True)], [1000])
    assert next(iter(unpaired.values())).flops is None


def test_nodes_of_functions_read_the_forward_arguments(tmp_path):
    x, w = [6, 16], [16]
    host = [
        op("LigerRMSNormFunction", 1000, [x, w], [SINGLE, SINGLE], seq=3),
        op("LigerRMSNormFunctionBackward", 5000, [x], [SINGLE], seq=3, backward=True),
    ]
    op_rows = rows(tmp_path, host, [1000, 5000])
    assert sorted(row.flops for row in op_rows.values()) == [4 * 96, 8 * 96]


def lookup(start, width):
    """A look-up of FBGEMM, without a sequence number; `width` is not in its arguments."""
    dims = [[0], [8 * width], [0], [0], [1], [1], [2], [], [], [2], [], [6], [5], [], []]
    types = [SINGLE] * 4 + ["int", "long int", "int", "Scalar", "Scalar", "long int", "Scalar", "long int", "long int",
                            "Scalar", ""]  # fmt: skip
    return op("fbgemm::split_embedding_codegen_lookup_sgd_function", start, dims, types)


def node(start, seq, width):
    return op("torch::autograd::CppNode<SplitLookupFunction_sgd_Op>", start, [[4, width]], [SINGLE], seq, True)


def other(start, seq):
    return op("aten::relu", start, [[4]], [SINGLE], seq)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.booleans())
def test_unnumbered_ops_pair_with_the_nodes_between_neighbours(tmp_path_factory, widths, several):
    """Ops with numbers around each look-up, or around all of them: widths follow from the gradients of their nodes."""
    folder = tmp_path_factory.mktemp("trace")
    host, seq, starts = [other(0, 0)], 1, []
    for number, width in enumerate(widths):
        starts.append(1000 + 2000 * number)
        host.append(lookup(starts[-1], width))
        seq += 1
        if not several:
            host.append(other(2000 + 2000 * number, seq))
            seq += 1
    host.append(other(20_000, seq + several))
    nodes = [1 + (number if several else 2 * number) for number in range(len(widths))]
    for number, width in enumerate(widths):
        host.append(node(40_000 - 1000 * number, nodes[number], width))
    op_rows = rows(folder, sorted(host, key=lambda row: row[2]), starts)
    total = sum(row.flops for row in op_rows.values() if row.op.startswith("fbgemm"))
    assert total == sum(6 * width for width in widths)


def test_ambiguous_nodes_are_not_paired(tmp_path):
    """Two look-ups between the same neighbours, and one node."""
    host = [other(0, 0), lookup(1000, 3), lookup(3000, 5), other(5000, 4), node(9000, 2, 3)]
    op_rows = rows(tmp_path, host, [1000, 3000])
    assert all(row.flops is None for row in op_rows.values() if row.op.startswith("fbgemm"))
    assert {row.missing for row in op_rows.values()} == {"missing_values"}


def test_recorded_values_take_precedence_over_the_gradient(tmp_path):
    """The gradient of a wrong size does not matter if strides and padding are recorded."""
    x, w = [2, 4, 9, 9], [6, 4, 3, 3]
    values = ["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]
    types = [SINGLE, SINGLE, "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"]
    host = [
        op("aten::convolution", 1000, [x, w, *[[]] * 7], types, seq=5, values=values),
        op("ConvolutionBackward0", 5000, [[1, 6, 1, 1]], [SINGLE], seq=5, backward=True),
    ]
    (row,) = rows(tmp_path, host, [1000]).values()
    assert row.flops == 2 * 2 * 6 * 16 * 36


@pytest.mark.parametrize("inner", ["aten::sum", "aten::mm"])
def test_a_library_function_is_a_wrapper_of_heavy_ops_only(tmp_path, inner):
    """A sum inside Liger's norm prepares its work; a product inside a grouped product is its work."""
    outer = (
        ("LigerRMSNormFunction", [[6, 16], [16]]) if inner == "aten::sum" else ("GroupedGemm", [[6, 16], [2, 16, 8]])
    )
    args = {"Input Dims": outer[1], "Input type": [SINGLE, SINGLE]}
    if inner == "aten::mm":
        args = {"Input Dims": [*outer[1], [2], []], "Input type": [SINGLE, SINGLE, "long int", "Scalar"],
                "Concrete Inputs": ["", "", "", "False"]}  # fmt: skip
    small = {"Input Dims": [[3, 2], [2, 3]], "Input type": [SINGLE, SINGLE]}
    if inner == "aten::sum":
        small = {"Input Dims": [[3], []], "Input type": [SINGLE, ""]}
    host = [(outer[0], MAIN, 1000, 9000, "cpu_op", args), (inner, MAIN, 2000, 3000, "cpu_op", small)]
    device = [("a", 7, 20_000, 20_100, 2500), ("b", 7, 21_000, 21_100, 5000)]
    op_rows = {
        row.op: row for row in op_roofline(measure(read([write(tmp_path, trace(host=host, device=device))]))).rows
    }
    assert op_rows[inner].flops in (3, 2 * 3 * 2 * 3)
    assert op_rows[outer[0]].flops == (4 * 96 if inner == "aten::sum" else None)
