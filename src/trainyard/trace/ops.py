"""What a framework op says its kernels are."""

from __future__ import annotations

import re
from functools import lru_cache

# Op class -> names of ATen ops (in-place and out variants are found without their suffix).
_ATEN = {
    "matmul": "mm addmm bmm baddbmm addbmm matmul linear dot vdot mv addmv einsum _scaled_mm _grouped_mm "
    "_scaled_grouped_mm _int_mm sparse_sampled_addmm mkldnn_linear linear_backward addr ger outer _addmm_activation",
    "attention": "scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _flash_attention_forward "
    "_flash_attention_backward _efficient_attention_forward _efficient_attention_backward "
    "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward _cudnn_attention_forward _cudnn_attention_backward "
    "_scaled_dot_product_attention_math _scaled_dot_product_fused_attention_overrideable "
    "_transformer_encoder_layer_fwd",
    "conv": "conv1d conv2d conv3d convolution _convolution cudnn_convolution cudnn_convolution_transpose "
    "miopen_convolution miopen_convolution_transpose mkldnn_convolution convolution_backward convolution_overrideable "
    "thnn_conv2d _slow_conv2d_forward _slow_conv2d_backward slow_conv3d_forward conv_transpose2d conv_depthwise3d "
    "_conv_depthwise2d cudnn_convolution_relu cudnn_convolution_add_relu cudnn_convolution_backward "
    "cudnn_convolution_backward_input cudnn_convolution_backward_weight",
    "norm": "batch_norm native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward "
    "miopen_batch_norm miopen_batch_norm_backward layer_norm native_layer_norm native_layer_norm_backward group_norm "
    "native_group_norm native_group_norm_backward rms_norm _fused_rms_norm _fused_rms_norm_backward instance_norm "
    "_batch_norm_impl_index _batch_norm_with_update batch_norm_backward batch_norm_stats batch_norm_elemt",
    "softmax": "softmax _softmax log_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data nll_loss "
    "nll_loss_forward nll_loss_backward nll_loss_nd cross_entropy_loss nll_loss2d_forward nll_loss2d_backward",
    "embedding": "embedding embedding_dense_backward embedding_bag _embedding_bag embedding_backward "
    "_embedding_bag_dense_backward index_select index gather scatter scatter_add index_add index_put index_put_impl_ "
    "_index_put_impl take index_copy _embedding_bag_backward scatter_reduce",
    "reduction": "sum mean max min amax amin prod var std var_mean std_mean argmax argmin norm linalg_vector_norm "
    "_foreach_norm any all cumsum cumprod logsumexp sort topk unique nonzero count_nonzero histc bincount median "
    "kthvalue searchsorted isnan equal nansum aminmax max_pool2d "
    "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool2d "
    "_adaptive_avg_pool2d_backward",
    "elementwise": "add sub mul div neg abs exp log log1p sqrt rsqrt pow tanh sigmoid relu silu gelu threshold "
    "threshold_backward silu_backward gelu_backward tanh_backward sigmoid_backward leaky_relu hardtanh softplus clamp "
    "clamp_min clamp_max where copy to _to_copy contiguous clone fill zero zeros ones full empty arange cat stack "
    "masked_fill dropout native_dropout native_dropout_backward eq ne lt le gt ge logical_not logical_and bitwise_and "
    "bitwise_or sin cos reciprocal addcmul addcdiv lerp sign floor ceil round remainder fmod maximum minimum square "
    "rsub uniform normal normal_ randn rand randint bernoulli random triu tril flip roll repeat expand_copy "
    "view_as_complex view_as_real polar erf tan atan atan2 lift_fresh constant_pad_nd pad "
    "upsample_nearest2d upsample_bilinear2d _cat split_with_sizes_copy isfinite bitwise_not sgn nan_to_num mse_loss "
    "mse_loss_backward binary_cross_entropy binary_cross_entropy_backward _amp_foreach_non_finite_check_and_unscale",
    "optimizer": "_fused_adam _fused_adamw _fused_sgd _fused_adagrad",
}
# Bookkeeping ops move no data and cost their call alone; on a CPU that is time of the step all the same.
_BOOKKEEPING = (
    "view _unsafe_view _reshape_alias reshape view_as transpose t numpy_T permute as_strided expand "
    "expand_as select slice squeeze unsqueeze detach detach_ alias narrow unbind split split_with_sizes "
    "chunk flatten unflatten movedim swapaxes diagonal empty_strided empty_like zeros_like ones_like "
    "full_like new_empty new_zeros new_ones new_full resize_ resolve_conj resolve_neg result_type "
    "is_same_size set_ _local_scalar_dense item is_nonzero scalar_tensor type_as requires_grad_ "
    "retain_grad _has_compatible_shallow_copy_type"
)
_CLASS_OF = {name: what for what, text in _ATEN.items() for name in text.split()} | dict.fromkeys(
    _BOOKKEEPING.split(), "elementwise"
)

# Other libraries' ops and autograd nodes, by a word in their name.
_BY_WORD = (
    ("attention", re.compile(r"flash_?attn|attention|fmha", re.I)),
    ("moe_route", re.compile(r"moe|topk_router|token_dispatch", re.I)),
    # FBGEMM is a library of embedding tables, whatever its name says.
    ("embedding", re.compile(r"^fbgemm::|embedding|split_?lookup|pooled_?embs", re.I)),
    ("norm", re.compile(r"(batch|layer|group|rms)_?norm", re.I)),
    ("conv", re.compile(r"convolution", re.I)),
    ("matmul", re.compile(r"(^|::)(mm|addmm|bmm)\b|(?<!fb)gemm|linear", re.I)),
    ("softmax", re.compile(r"softmax|cross_?entropy", re.I)),
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NODE = re.compile(r"^(?:autograd::engine::evaluate_function: )?(\w+?)Backward\d*$")


@lru_cache(maxsize=65536)
def class_of(op: str) -> str | None:
    """The op class of a framework op's kernels, or None where the op does not decide."""
    space, _, name = op.rpartition("::")
    if space == "aten":
        bare = name.rstrip("_") if name not in _CLASS_OF else name
        found = _CLASS_OF.get(bare) or _CLASS_OF.get(bare.removesuffix("_backward"))
        return found or ("elementwise" if bare.startswith("_foreach_") else None)
    if node := _NODE.match(op):
        snake = _HUMP.sub("_", node[1]).lower()
        return _CLASS_OF.get(snake) or _by_word(snake)
    return _by_word(op)


def _by_word(text: str) -> str | None:
    return next((what for what, pattern in _BY_WORD if pattern.search(text)), None)
