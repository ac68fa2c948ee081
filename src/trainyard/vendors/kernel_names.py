"""Accounts of kernels by name: ordered tables of patterns for the libraries that kernels come from.

The first pattern that occurs in the lower-cased name decides. Kernels of a communication library are always booked as
communication; for all others the op that launched the kernel takes precedence, since names change between releases. An
account is a category of time of the step ledger: a kind and a subdivision, such as `compute/matmul`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from trainyard.ledger import Account

# Communication libraries, by the name of the function; its template arguments may name other libraries.
_COMM_LIBRARY = re.compile(
    r"^nccl|nccl(sym)?k?(dev)?kernel|^rccl|^msccl|mscclpp|nvshmem|rocshmem|^oneccl|deep_?ep::|dpsk::ep"
    # PyTorch's symmetric memory, and the all-reduces that inference engines write themselves.
    r"|symmetric_memory|symm_mem|barrier_kernel|(put|wait)_signal_kernel|multimem_|(one|two)_?shot_?(all|reduce)"
    r"|cross_device_reduce|(?<!warp)(?<!block)(?<!warp_)(?<!block_)all_?reduce|moe_?(a2a|alltoall)|epdispatch|epcombine"
    r"|userbuffers|quickreduce"
    # XLA's instructions.
    r"|^%?((ragged-)?all-(reduce|gather|to-all)|reduce-scatter|collective-(permute|broadcast)|(send|recv)(-done)?\b)",
)
# Computing where tokens go is not communication, although the kernel is DeepEP's.
_DISPATCH_LAYOUT = re.compile(r"get_dispatch_layout")
# The collective of a kernel that `_COMM_LIBRARY` matches.
_COLLECTIVE_PATTERNS = (
    ("all_reduce", re.compile(r"all[_-]?reduce|cross_device_reduce|quickreduce|(one|two)_shot_reduce")),
    ("all_gather", re.compile(r"all[_-]?gather")),
    ("reduce_scatter", re.compile(r"reduce[_-]?scatter")),
    ("all_to_all", re.compile(r"all[_-]?to[_-]?all|a2a|dispatch|combine")),
    ("broadcast", re.compile(r"broadcast|bcast")),
    ("send_recv", re.compile(r"send_?recv|collective-permute|p2p|push_?recv|\bsend\b|\brecv\b")),
    ("reduce", re.compile(r"_reduce|\breduce")),
    ("barrier", re.compile(r"barrier")),
)

# Copies that run as kernels: the ROCm runtime's blits.
_BLIT_PATTERNS = (
    ("memset", re.compile(r"__amd_rocclr_fill")),
    ("d2d", re.compile(r"__amd_rocclr_copy")),
)

_CLASS_PATTERNS = (
    (
        "attention",
        re.compile(
            r"flash_?(fwd|bwd|attn|attention|mla)|flash::|fmha|attn|attention|mha_|_mha|sdpa"
            r"|with(paged|ragged)?kvcache|\bmla_|aiter\d*mla_|aiter(::|\d+)pa_|bwd_kernel_(dk_dv|dq|fuse)|\bbwd_(pre|post)process"
            r"|_fwd_(grouped_)?kernel_stage[12]|_bwd_preprocess_do_o"
        ),
    ),
    # An expert's matrix products are matmul; only the steps before and after them are routing.
    ("matmul", re.compile(r"fused_moe_kernel|fmoe_|moe\w*gemm|gemm\w*moe|moeflatmm|_moe_mm")),
    (
        "embedding",
        re.compile(
            r"(split|dense|ssd)_embedding|pooled_embs|bounds_check_indices|linearize_index|_offsets_range"
            r"|split_lookup|\btbe_|fbgemm_gpu::(?!.*(quantize|gemm))|recat_copy_async"
        ),
    ),
    (
        "moe_route",
        re.compile(
            r"moe|topk_?gating|grouped_?topk|permute_?tokens?|tokens?_permut|sort_tokens|expert_?tokens"
            r"|tokens_per_expert|get_dispatch_layout|megablocks|_(padded|binned)_(copy|gather|scatter)|routingindices|expandinputrows"
            r"|buildexpertmaps|_sort_chunks_by_map|row_id_map|_fill_indices_kernel|noaux_tc"
        ),
    ),
    # One launch over many tensors: norms of all gradients, unscaling and copies; all others are optimizer updates.
    ("reduction", re.compile(r"multi_tensor_apply.*(lpnorm|l2norm|lpmax|non_finite)|l2norm_?(kernel|functor)")),
    ("elementwise", re.compile(r"multi_tensor_apply.*(copyfunctor|::copy<|scalefunctor|axpbyfunctor)")),
    (
        "optimizer",
        re.compile(
            r"multi_tensor_apply|fusedoptimizer|fused_?adam|adam_|adamw|adamfunctor|fusedsgd|fusedadagrad|adagrad|lamb_"
            r"|lambstage|lambfunctor"
            r"|sgdfunctor|_sgd|sgd_|koptimizer|kpreconditionoptimizer|novograd|distributed_?adam|_adam\b"
        ),
    ),
    (
        "norm",
        re.compile(
            r"batch_?norm|layer_?norm|rms_?norm|group_?norm|instance_?norm|\bbn_?(fw|bw)|cudnn::bn|gammabeta"
            r"|rowwisemoments|computefusedparams|computeinternalgradients|computebackwardfusedparams|\bln_(fwd|bwd)"
            r"|_ln_(fwd|bwd)|welford_(kernel|parallel)|weight_norm|cuapplyln|l2norm_(fwd|bwd)|(?<!re)norm_kernel"
        ),
    ),
    (
        "conv",
        re.compile(
            r"conv(?!ert)|implicit_gemm|winograd|fprop|wgrad|dgrad|igemm_(fwd|bwd|wrw)|miopen.*gtcx|im2(d2)?col|col2im"
            r"|vol2col|scudnn|xdlops_bwd_weight|nchwtonhwc|nhwctonchw|batched_transpose_\d|subtensorop"
            r"|transpose_(nchw|cnhw)|cudnn::ops::|cask_cudnn|cutlass_cudnn"
        ),
    ),
    ("elementwise", re.compile(r"rotary|(?<!p)rope(?!rt)")),
    (
        "matmul",
        re.compile(
            r"(?<!fb)gemm|gemv|cublas|cijk_|sm\d+_xmma|nvjet|mat_?mul|(?<!ga)mma_|tensile|dot_kernel"
            r"|(\b|_)b?mm(_|\b)|marlin|wvsplitk|llmm1|ampere_.*(16816|1688)|^%?dot\b"
        ),
    ),
    ("softmax", re.compile(r"soft_?max|nll_?loss|nllcriterion|(?<!binary_)cross_?entropy|logsumexp|ctc_loss")),
    (
        "embedding",
        re.compile(
            r"embedding|index_?select|indexing|index_put|index_?func|index_copy|index_add|gather(?!topk)|scatter_kernel"
            r"|scatter_add|scatter_gather|index_elementwise|compute_grad_weight|sum_and_scatter|krn_partial"
            r"|input_scatter"
        ),
    ),
    # CUTLASS's wrappers name the operation in their template arguments; without a name there, it is a product.
    ("matmul", re.compile(r"cutlass::kernel|cutlass::device_kernel|cutlass_\d|cutlass3x|cutlass_tensorop")),
    (
        "reduction",
        re.compile(
            r"reduce|reduction|sort|scan|topk|arg_?m(ax|in)|cumsum|cumprod|splitk|max_?pool|avg_?pool|pooling|histogram"
            r"|bincount|bucketize|median|deviceselect|devicecompact|nonzero|\bunique|_kth|multinomial"
        ),
    ),
    (
        "elementwise",
        re.compile(
            r"elementwise|pointwise|catarray|chunk_cat|fill|copy|unrolled|dropout|activation|act_and_mul|relu|gelu|silu"
            r"|swiglu|geglu|upsample|distribution|transpose|permute|arange|triu|tril|tensor_apply|tensorapply|foreach"
            r"|convert|(?<!broad)cast|quant|bias_?add|add_?bias|reshape_and_cache|\bpad_|_pad_|\bflip"
            r"|\broll_|loop_\w*fusion"
        ),
    ),
)

# Inductor's names: triton_<kind>_fused_<names of the fused ops>_<number>.
_INDUCTOR_PREFIX = re.compile(
    r"^(?:graph_\d+_)?(?:triton_(?P<kind>poi|red|per|tem|mm|bmm|for|mix|split_scan|spl)|(?P<cpp>cpp))_(?:fused_)?"
)
_TEMPLATE_CLASSES = (
    ("attention", re.compile(r"attention|sdpa")),
    ("conv", re.compile(r"convolution")),
)
_FUSED_REDUCTIONS = (
    # RMS and layer norms that were decomposed keep their mean and their inverse square root.
    ("norm", re.compile(r"(batch|layer|group|rms|instance)_norm|(mean|var).*rsqrt")),
    ("softmax", re.compile(r"softmax|nll_loss|cross_entropy|logsumexp")),
    ("embedding", re.compile(r"embedding")),
)


@lru_cache(maxsize=65536)
def account_of(name: str) -> Account | None:
    """The account of a kernel by its name: communication, a copy or the op class of a computation. None if no pattern
    matches."""
    lower_name = name.lower()
    if is_communication(name):
        return Account("comm", collective_of(_function_name(lower_name)))
    for direction, pattern in _BLIT_PATTERNS:
        if pattern.search(lower_name):
            return Account("copy", direction)
    if op_class := class_of_inductor(lower_name):
        return Account("compute", op_class)
    for op_class, pattern in _CLASS_PATTERNS:
        if pattern.search(lower_name):
            return Account("compute", op_class)
    return None


def is_communication(name: str) -> bool:
    """Whether the kernel belongs to a communication library."""
    function = _function_name(name.lower())
    return _COMM_LIBRARY.search(function) is not None and _DISPATCH_LAYOUT.search(function) is None


def collective_of(text: str) -> str:
    """The collective in the name of a kernel, op or annotation; `other` if the name has none."""
    lower = text.lower()
    return next((collective for collective, pattern in _COLLECTIVE_PATTERNS if pattern.search(lower)), "other")


def class_of_inductor(name: str) -> str | None:
    """The op class of a kernel generated by torch.compile: templates are matmul, attention or conv; other kernels are
    classified by their kind, and reductions by the ops fused into them. None for other names."""
    match = _INDUCTOR_PREFIX.match(name)
    if match is None:
        return None
    # Kinds: tem, mm and bmm are templates, poi is pointwise and for is foreach; the others reduce.
    fused, kind = name[match.end() :], match["kind"]
    if kind in ("tem", "mm", "bmm"):
        return next((op_class for op_class, pattern in _TEMPLATE_CLASSES if pattern.search(fused)), "matmul")
    if kind in ("poi", "for"):
        return "embedding" if fused.startswith("embedding") else "elementwise"
    reduction_class = next((op_class for op_class, pattern in _FUSED_REDUCTIONS if pattern.search(fused)), None)
    # The name of a C++ kernel does not show whether it reduces.
    return reduction_class or ("elementwise" if match["cpp"] else "reduction")


def copy_of(name: str) -> str:
    """The direction of a copy by its name (`Memcpy HtoD (Pageable -> Device)`): h2d, d2h or d2d. Host to host counts as
    h2d, peer to peer as d2d."""
    letters = re.sub(r"[\W_]", "", name.lower())
    texts_of_direction = (("h2d", ("htod", "htoh", "h2d", "hosttodevice")), ("d2h", ("dtoh", "d2h", "devicetohost")))
    return next((direction for direction, texts in texts_of_direction if any(text in letters for text in texts)), "d2d")


def _function_name(text: str) -> str:
    """A kernel's own name: without return type, template arguments and parameters."""
    for anonymous in ("(anonymous namespace)::", "<unnamed>::", "void "):
        text = text.replace(anonymous, "")
    return text.lstrip().split("<", 1)[0].split("(", 1)[0]
