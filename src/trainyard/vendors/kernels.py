"""What a kernel's name says it is: one ordered table for each place kernels come from.

The first pattern that occurs in the (lower-cased) name decides. These tables speak only when the op that
launched the kernel does not: names of one library change from release to release.
"""

from __future__ import annotations

import re
from functools import lru_cache

from trainyard.ledger import Account

# Communication libraries: which collective, where the name says so.
_COMM_LIBRARY = re.compile(
    r"^nccl|^rccl|ncclkernel|nccldevkernel|^msccl|mscclpp|nvshmem|deep_ep::|multimem_all|one_shot_all|two_shot_all"
    r"|cross_device_reduce|custom_all_reduce|allreduce_prototype"
)
_COLLECTIVES = (
    ("all_reduce", re.compile(r"all_?reduce|cross_device_reduce")),
    ("all_gather", re.compile(r"all_?gather")),
    ("reduce_scatter", re.compile(r"reduce_?scatter")),
    ("all_to_all", re.compile(r"all_?to_?all|dispatch|combine")),
    ("broadcast", re.compile(r"broadcast|bcast")),
    ("send_recv", re.compile(r"send_?recv|p2p|\bsend\b|\brecv\b")),
    ("reduce", re.compile(r"_reduce|\breduce")),
    ("barrier", re.compile(r"barrier")),
)

# Copies that run as kernels: the ROCm runtime's blits.
_BLITS = (
    ("memset", re.compile(r"__amd_rocclr_fill")),
    ("d2d", re.compile(r"__amd_rocclr_copy")),
)

_CLASSES = (
    # Inductor says what its Triton kernels are: templates of a product, reductions (looped, persistent), pointwise.
    ("attention", re.compile(r"^triton_tem_.*(attention|sdpa)")),
    ("matmul", re.compile(r"^triton_tem_")),
    ("reduction", re.compile(r"^triton_(red|per)_")),
    ("elementwise", re.compile(r"^triton_poi_")),
    ("attention", re.compile(r"flash|fmha|attn|attention|mha_|_mha|cudnn_generated_fort_native_sdpa|sdpa")),
    (
        "embedding",
        re.compile(r"embedding|pooled_embs|bounds_check_indices|linearize_index|_offsets_range|split_lookup|\btbe_"),
    ),
    ("moe_route", re.compile(r"moe_|topk_gating|token_permut|permute_token|sort_tokens")),
    ("optimizer", re.compile(r"multi_tensor_apply|fused_?adam|adam_|adagrad|lamb_|_sgd|sgd_")),
    (
        "conv",
        re.compile(
            r"conv(?!ert)|implicit_gemm|winograd|wgrad|dgrad|igemm_(fwd|bwd|wrw)|miopen.*gtcx|im2col|col2im|scudnn"
            r"|xdlops_bwd_weight|nchwtonhwc|nhwctonchw|batched_transpose_\d|subtensorop|transpose_(nchw|cnhw)|cudnn::ops::"
        ),
    ),
    (
        "norm",
        re.compile(
            r"batch_?norm|layer_?norm|rms_?norm|group_?norm|bn_(fw|bw)|cudnn::bn|norm_kernel|gammabeta|rowwisemoments"
        ),
    ),
    (
        "matmul",
        re.compile(
            r"(?<!fb)gemm|gemv|cutlass|cublas|^cijk_|ampere_.*(16816|1688)|sm\d0_xmma|nvjet|matmul|(?<!ga)mma_|tensile"
            r"|dot_kernel"
        ),
    ),
    ("softmax", re.compile(r"softmax|nll_loss|cross_entropy")),
    (
        "embedding",
        re.compile(r"embedding|index_?select|indexing|index_put|gather_kernel|scatter_kernel|index_elementwise|tbe"),
    ),
    ("reduction", re.compile(r"reduce|reduction|sort|scan|topk|argmax|cumsum|splitk|max_pool|avg_pool|pooling")),
    (
        "elementwise",
        re.compile(
            r"elementwise|pointwise|catarray|fill|copy|unrolled|dropout|activation|relu|gelu|silu|"
            r"upsample|distribution|transpose|permute|arange|triu|tril|tensor_apply"
        ),
    ),
)


@lru_cache(maxsize=65536)
def account_of(name: str) -> Account | None:
    """The account a kernel's name points to, or None when no table knows it."""
    text = name.lower()
    if is_communication(name):
        return Account("comm", collective_of(text))
    for what, pattern in _BLITS:
        if pattern.search(text):
            return Account("copy", what)
    for what, pattern in _CLASSES:
        if pattern.search(text):
            return Account("compute", what)
    return None


def is_communication(name: str) -> bool:
    """Whether the kernel belongs to a communication library."""
    return _COMM_LIBRARY.search(name.lower()) is not None


def collective_of(text: str) -> str:
    """The collective a kernel, op or annotation name speaks of; `other` where it does not say."""
    lower = text.lower()
    return next((what for what, pattern in _COLLECTIVES if pattern.search(lower)), "other")


def copy_of(name: str) -> str:
    """Which copy `Memcpy HtoD (Pageable -> Device)` and its like are; host to host counts as h2d."""
    lower = name.lower()
    for what, signs in (("h2d", ("htod", "htoh", "hosttodevice")), ("d2h", ("dtoh", "devicetohost"))):
        if any(sign in lower for sign in signs):
            return what
    return "d2d"
