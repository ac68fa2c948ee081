"""Ops on lists of tensors: element formats by kernel names, bytes of real tensors, FLOPs of textbook updates."""

from math import prod, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.flops.shapes import Listed, shape
from tests.trace_maker import MAIN, trace, write
from trainyard.trace.flops.lists import element_format
from trainyard.trace.flops.op_costs import cost_of
from trainyard.trace.flops.operands import FORMATS, CallFacts
from trainyard.trace.flops.roofline import op_roofline
from trainyard.trace.measure import measure, read

FLOAT = CallFacts(element=FORMATS["float"])
_AT = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
KERNELS = {
    _AT + "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
    "(at::native::(anonymous namespace)::ADAM_MODE)1, false>, float const*, double, double>": 4,
    _AT + "TensorListMetadata<2>, at::native::(anonymous namespace)::BinaryOpListAlphaFunctor<c10::BFloat16, 2, 2, 0>, "
    "std::plus<float>, float>(at::native::(anonymous namespace)::TensorListMetadata<2>)": 2,
    _AT + "TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<double, 1, 1, 0>>": 8,
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float, float>(int, int volatile*)": 4,
    _AT + "TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<float, c10::BFloat16, 2, 1, 1>>": None,
    _AT + "TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<float, float, 2, 1, 1>>": 4,
    "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>, "
    "at::native::<unnamed>::UnaryOpFunctor<c10::BFloat16, (int)2, (int)1, (int)1>, "
    "at::native::Copy<c10::BFloat16, float>>(T1, T2, T3...)": None,
    "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::TensorListMetadata<(int)2>, "
    "at::native::<unnamed>::UnaryOpFunctor<c10::BFloat16, (int)2, (int)1, (int)1>, "
    "at::native::Copy<c10::BFloat16, c10::BFloat16>>(T1, T2, T3...)": 2,
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<at::native::(anonymous namespace)::"
    "OpaqueType<2u>, unsigned int, 2, 128, 1>(char)": 2,
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 3, 64, 64>(float*)": 4,
    "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_tn": None,
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, at::detail::Array<char*, 1>>": 4,
}  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS, ids=range(len(KERNELS)))
def test_element_format_is_the_functors_first_type(kernel):
    format = element_format(kernel)
    assert (format and format.size) == KERNELS[kernel]


class Counted:
    """A number that counts the operations in which it takes part."""

    operations = 0

    def __init__(self, value=1.0):
        self.value = value

    def _apply(self, other):
        Counted.operations += 1
        return Counted(self.value + getattr(other, "value", other))

    __add__ = __sub__ = __mul__ = __truediv__ = __radd__ = __rsub__ = __rmul__ = _apply

    def root(self):
        Counted.operations += 1
        return Counted(sqrt(abs(self.value)))


def operations(update):
    Counted.operations = 0
    update()
    return Counted.operations


def adam(*, decay_of_gradient=False, decay_of_parameter=False):
    """Adam (arXiv:1412.6980, algorithm 1) and AdamW (arXiv:1711.05101) on one parameter, scalars of the step given."""
    p, g, m, v = Counted(), Counted(), Counted(), Counted()
    if decay_of_parameter:
        p = p * 0.99
    if decay_of_gradient:
        g = g + p * 0.01
    m = m + (g - m) * 0.1
    v = v * 0.999 + g * g * 0.001
    return p - m * 0.001 / (v.root() / 0.9 + 1e-8)


def sgd(*, momentum=False, decay=False):
    p, g, buffer = Counted(), Counted(), Counted()
    if decay:
        g = g + p * 0.01
    if momentum:
        g = buffer = buffer * 0.9 + g
    return p - g * 0.1


def adagrad():
    p, g, total = Counted(), Counted(), Counted()
    total = total + g * g
    return p - g * 0.1 / (total.root() + 1e-10)


SIZES = Listed([(3, 4), (5,)])
STEPS = Listed([(), ()])


def test_fused_optimizers_count_the_textbook_update():
    rest = (STEPS, 0.001, 0.9, 0.999)
    plain = cost_of("aten::_fused_adam_", shape(*[SIZES] * 4, None, *rest, 0, 1e-8, False, False, None, None), FLOAT)
    assert (plain.flops, plain.bytes) == (17 * operations(adam), 17 * 4 * 7)
    decayed = cost_of(
        "aten::_fused_adam_", shape(*[SIZES] * 4, None, *rest, 0.1, 1e-8, False, False, None, None), FLOAT
    )
    assert decayed.flops == 17 * operations(lambda: adam(decay_of_gradient=True))
    decoupled = cost_of("aten::_fused_adamw_", shape(*[SIZES] * 4, None, *rest, 0.1, 1e-8, False), FLOAT)
    assert decoupled.flops == 17 * operations(lambda: adam(decay_of_parameter=True))
    amsgrad = cost_of("aten::_fused_adamw_", shape(*[SIZES] * 5, *rest, 0.1, 1e-8, True), FLOAT)
    assert amsgrad.bytes == 17 * 4 * 9
    for momentum, decay in ((False, False), (True, False), (True, True)):
        call = shape(SIZES, SIZES, SIZES if momentum else None, 0.1 * decay, 0.9 * momentum, 0.1)
        call_cost = cost_of("aten::_fused_sgd_", call, FLOAT)
        assert call_cost.flops == 17 * operations(lambda m=momentum, d=decay: sgd(momentum=m, decay=d))
        assert call_cost.bytes == 17 * 4 * (5 if momentum else 3)
    call_cost = cost_of("aten::_fused_adagrad_", shape(*[SIZES] * 3, STEPS, 0.1, 0, 0), FLOAT)
    assert (call_cost.flops, call_cost.bytes) == (17 * operations(adagrad), 17 * 4 * 5)


@given(st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=4), st.integers(1, 3))
def test_foreach_ops_move_each_list_once(dims, operands):
    """In place: all lists are read, the first is written."""
    tensors = Listed(tuple(map(tuple, dims)))
    numel = sum(prod(each) for each in dims)
    call_cost = cost_of("aten::_foreach_addcmul_", shape(*[tensors] * operands, 1), FLOAT)
    assert (call_cost.flops, call_cost.bytes) == (numel, 4 * numel * (operands + 1))
    unknown = cost_of("aten::_foreach_addcmul_", shape(*[tensors] * operands, 1))
    assert (unknown.flops, unknown.bytes) == (numel, None)
    norm = cost_of("aten::_foreach_norm", shape(tensors, 2, None), FLOAT)
    assert (norm.flops, norm.bytes) == (numel, 4 * (numel + len(dims)))
    joined = cost_of("aten::cat", shape(tensors, 0), FLOAT)
    assert (joined.flops, joined.bytes) == (0, 8 * numel)


def test_lists_without_dims_have_no_bytes():
    assert cost_of("aten::_foreach_mul_", shape(None, 1), FLOAT) is None
    assert cost_of("aten::cat", shape(None, 0), FLOAT)[:2] == (0, None)
    assert cost_of("aten::_foreach_zero_", shape(None), FLOAT)[:2] == (0, None)
    by_result = CallFacts(partner=shape(("float", (4, 6))))
    assert cost_of("aten::cat", shape(None, 0), by_result).bytes == 2 * 96


def test_kernel_gives_the_format_of_listed_tensors(tmp_path):
    """Two fused updates of the same dims in float32 and bfloat16: their rows differ in bytes."""
    dims = [[[3, 4], [5]]] * 4 + [[], [[], []]] + [[]] * 9
    types = ["TensorList"] * 6 + ["Scalar"] * 7 + ["", ""]
    values = [""] * 6 + ["0.001", "0.9", "0.999", "0.01", "1e-08", "False", "False", "", ""]
    args = {"Input Dims": dims, "Input type": types, "Concrete Inputs": values}
    names = [name for name in KERNELS if "FusedAdam" in name]
    kernels = [names[0], names[0].replace("<float, 4", "<c10::BFloat16, 4")]
    host = [("aten::_fused_adamw_", MAIN, 1000 + 9000 * i, 5000 + 9000 * i, "cpu_op", args) for i in range(2)]
    device = [(kernel, 7, 20000 + 500 * i, 20300 + 500 * i, 2000 + 9000 * i) for i, kernel in enumerate(kernels)]
    rows = op_roofline(measure(read([write(tmp_path, trace(host=host, device=device))]))).rows
    assert sorted(row.bytes for row in rows) == [17 * 2 * 7, 17 * 4 * 7]
    assert {row.dtype for row in rows} == {"float32", "bfloat16"}
