"""Op classes of framework ops, by name.

An op class is a kind of computation (words.OP_CLASSES): `matmul`, `attention`, `norm`, ... The kernels that an op
launches are booked to the account `compute/<class>`.
"""

from __future__ import annotations

import re
from functools import lru_cache

from trainyard import words
from trainyard.recorded_stacks import MODULE_PREFIX
from trainyard.trace.readers.gather import STATED
from trainyard.vendors.kernel_names import class_of_inductor

# Op class -> names of ATen ops (in-place, out and plain backward variants are looked up without their suffix).
_ATEN = {
    "matmul": "mm addmm bmm baddbmm addbmm matmul linear dot vdot mv addmv einsum inner chain_matmul bilinear "
    "tensordot _trilinear _scaled_mm _scaled_mm_v2 _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 _int_mm "
    "_weight_int4pack_mm _weight_int8pack_mm _mixed_dtypes_linear sparse_sampled_addmm sspaddmm hspmm smm "
    "mkldnn_linear linear_backward addr ger outer _addmm_activation matrix_power mkldnn_rnn_layer",
    "attention": "scaled_dot_product_attention _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention _flash_attention_forward "
    "_flash_attention_backward _flash_attention_forward_no_dropout_inplace _efficient_attention_forward "
    "_efficient_attention_backward _scaled_dot_product_flash_attention_backward "
    "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
    "_cudnn_attention_forward _cudnn_attention_backward _scaled_dot_product_attention_math "
    "_scaled_dot_product_fused_attention_overrideable _transformer_encoder_layer_fwd _triton_scaled_dot_attention "
    "_triton_multi_head_attention _native_multi_head_attention _transform_bias_rescale_qkv _fill_mem_eff_dropout_mask",
    "conv": "conv1d conv2d conv3d convolution _convolution cudnn_convolution cudnn_convolution_transpose "
    "miopen_convolution miopen_convolution_transpose miopen_depthwise_convolution miopen_convolution_relu "
    "miopen_convolution_add_relu mkldnn_convolution convolution_backward convolution_overrideable "
    "convolution_backward_overrideable thnn_conv2d _slow_conv2d_forward _slow_conv2d_backward slow_conv3d "
    "slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d conv_tbc "
    "conv_transpose1d conv_transpose2d conv_transpose3d conv_depthwise3d _conv_depthwise2d cudnn_convolution_relu "
    "cudnn_convolution_add_relu cudnn_convolution_backward cudnn_convolution_backward_input "
    "cudnn_convolution_backward_weight im2col col2im _nnpack_spatial_convolution",
    "norm": "batch_norm native_batch_norm native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward "
    "miopen_batch_norm miopen_batch_norm_backward layer_norm native_layer_norm native_layer_norm_backward group_norm "
    "native_group_norm native_group_norm_backward rms_norm _fused_rms_norm _fused_rms_norm_backward instance_norm "
    "_batch_norm_impl_index _batch_norm_with_update _batch_norm_no_update _native_batch_norm_legit "
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training batch_norm_backward batch_norm_stats "
    "batch_norm_elemt batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_gather_stats "
    "batch_norm_gather_stats_with_counts batch_norm_update_stats _weight_norm _weight_norm_interface "
    "_weight_norm_interface_backward",
    "softmax": "softmax _softmax _safe_softmax _masked_softmax log_softmax _log_softmax _softmax_backward_data "
    "_log_softmax_backward_data nll_loss nll_loss_forward nll_loss_backward nll_loss_nd cross_entropy_loss nll_loss2d "
    "nll_loss2d_forward nll_loss2d_backward ctc_loss _ctc_loss _cudnn_ctc_loss",
    "embedding": "embedding embedding_dense_backward embedding_bag _embedding_bag embedding_backward embedding_renorm "
    "_embedding_bag_dense_backward _embedding_bag_forward_only _embedding_bag_per_sample_weights_backward index_select "
    "index _unsafe_index gather scatter scatter_add index_add index_put _unsafe_index_put index_put_impl_ "
    "_index_put_impl take put take_along_dim index_copy index_fill index_reduce _embedding_bag_backward scatter_reduce "
    "masked_scatter masked_select select_scatter slice_scatter repeat_interleave",
    "reduction": "sum mean max min amax amin prod var std var_mean std_mean argmax argmin norm linalg_vector_norm "
    "linalg_norm frobenius_norm _foreach_norm _foreach_max _foreach_powsum any all cumsum cumprod cummax cummin "
    "_cummax_helper _cummin_helper logcumsumexp _logcumsumexp logsumexp sort argsort msort topk unique _unique "
    "_unique2 unique_dim unique_consecutive nonzero nonzero_static argwhere count_nonzero histc histogram bincount "
    "median nanmedian nanmean mode kthvalue searchsorted bucketize isnan equal nansum aminmax _aminmax trace "
    "segment_reduce multinomial max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices "
    "max_pool3d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool1d avg_pool2d "
    "avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
    "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d cdist _cdist_forward pdist "
    "_amp_foreach_non_finite_check_and_unscale",
    "elementwise": "add sub mul div neg abs exp exp2 expm1 log log1p log2 log10 sqrt rsqrt pow tanh sigmoid logit relu "
    "relu6 silu mish gelu glu elu selu celu prelu _prelu_kernel rrelu_with_noise threshold leaky_relu hardtanh "
    "hardswish hardsigmoid hardshrink softshrink softplus log_sigmoid log_sigmoid_forward clamp clamp_min clamp_max "
    "where copy _copy_from to _to_copy _to_dense contiguous clone fill fill_diagonal zero zeros ones full empty arange "
    "linspace eye range cat concat concatenate stack hstack vstack _chunk_cat _stack masked_fill dropout "
    "native_dropout _fused_dropout _masked_scale alpha_dropout feature_dropout eq ne lt le gt ge logical_not "
    "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift "
    "bitwise_right_shift sin cos tan asin acos atan atan2 sinh cosh erf erfc erfinv lgamma digamma reciprocal addcmul "
    "addcdiv lerp sign signbit sgn floor ceil round trunc frac remainder fmod floor_divide maximum minimum fmax fmin "
    "hypot copysign square xlogy logaddexp rsub uniform normal normal_ randn rand randint randperm exponential "
    "geometric cauchy log_normal poisson bernoulli random triu tril triu_indices tril_indices flip roll rot90 repeat "
    "expand_copy tile view_as_complex view_as_real polar complex angle conj_physical _conj_physical lift_fresh "
    "constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
    "replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle upsample_nearest1d "
    "upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d "
    "upsample_bicubic2d _upsample_nearest_exact2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d "
    "grid_sampler_3d cudnn_grid_sampler affine_grid_generator _cat split_with_sizes_copy isfinite isinf isin "
    "nan_to_num mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy "
    "binary_cross_entropy_with_logits soft_margin_loss one_hot diag diag_embed block_diag _amp_update_scale cross kron "
    "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell _lstm_cell "
    "_cudnn_rnn_flatten_weight "
    "meshgrid _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward pad_sequence",
    "optimizer": "_fused_adam _fused_adamw _fused_sgd _fused_adagrad",
}
# Bookkeeping ops move no data and cost only the call, which on a CPU is still time of the step.
_BOOKKEEPING = (
    "view _unsafe_view _reshape_alias reshape view_as transpose t numpy_T permute as_strided expand "
    "expand_as select slice squeeze unsqueeze detach detach_ alias narrow unbind split split_with_sizes "
    "chunk flatten unflatten movedim swapaxes diagonal empty_strided empty_like zeros_like ones_like "
    "full_like new_empty new_zeros new_ones new_full resize_ resolve_conj resolve_neg result_type "
    "is_same_size set_ _local_scalar_dense item is_nonzero scalar_tensor type_as requires_grad_ "
    "retain_grad _has_compatible_shallow_copy_type"
)
_CLASS_OF = {name: op_class for op_class, text in _ATEN.items() for name in text.split()} | dict.fromkeys(
    _BOOKKEEPING.split(), "elementwise"
)

# Other libraries' ops and autograd nodes, by words in their name. A name that matches two classes has kernels of both
# (a fused linear and cross-entropy, a norm and its projection); then each kernel's own name decides.
_BY_WORD = (
    (
        "attention",
        re.compile(r"flash_?attn|flash_?attention|attention|fused_?attn|attn_?func|fmha|sdpa|flash_?mla"),
    ),
    (
        "moe_route",
        re.compile(
            r"topk_?router|topk_?(softmax|sigmoid|gating)|grouped_?topk|token_?(dispatch|(un)?permut)"
            r"|moe_?(align|sum)|moe_?(un)?permut|(un)?permute_?tokens?",
        ),
    ),
    # FBGEMM's ops are embedding tables, except for its low-precision matrix products.
    (
        "embedding",
        re.compile(
            r"^fbgemm::(?!f8|i8|bf16|f4|quantize|.*gemm)|(?<!rotary)(?<!rotary_)(?<!pos_)embedding"
            r"|split_?lookup|pooled_?embs",
        ),
    ),
    ("norm", re.compile(r"(batch|layer|group|rms|instance)_?norm")),
    ("conv", re.compile(r"convolution|conv[123]d")),
    (
        "matmul",
        re.compile(
            r"(^|::|_)(mm|addmm|bmm|matmul|cublas\w*)(?![a-z])|(?<!fb)gemm|linear|^fbgemm::(f8f8|i8i8|bf16)", re.I
        ),
    ),
    ("softmax", re.compile(r"softmax|(?<!binary)(?<!binary_)cross_?entropy")),
    (
        "elementwise",
        re.compile(r"rotary|apply_?rope|fused_?rope|swiglu|geglu|silu_and_mul|gelu_and_mul|act_and_mul"),
    ),
    ("optimizer", re.compile(r"fused_?(adam|lamb|sgd|adagrad)|adam_?w?_?step")),
)
# Most names in a file are those of Python frames and kernels, not of ops.
_NON_OP_PREFIXES = ("<", "void ", MODULE_PREFIX)
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BACKWARD_NODE = re.compile(r"^(?:autograd::engine::evaluate_function: )?(\w+?)Backward\d*$")


@lru_cache(maxsize=65536)
def class_of(op: str) -> str | None:
    """The op class of a framework op's kernels, or None if the op's name does not determine it.

    `op`: a span's name. In this order: a class that a reader states, ATen's table, kernels of torch.compile's Inductor,
    autograd nodes by the op whose gradient they compute, and words in the name.
    """
    if ".py(" in op or op.startswith(_NON_OP_PREFIXES):
        return None
    if op.startswith(STATED):
        stated = op.removeprefix(STATED)
        return stated if stated in words.OP_CLASSES else None
    namespace, _, name = op.rpartition("::")
    # In-place ops end in an underscore: aten::add_ is looked up as add.
    if namespace == "aten":
        base_name = name.rstrip("_") if name not in _CLASS_OF else name
        op_class = _CLASS_OF.get(base_name) or _CLASS_OF.get(base_name.removesuffix("_backward"))
        return op_class or ("elementwise" if base_name.startswith("_foreach_") else None)
    # Inductor opens a span with the kernel's name around each launch.
    if inductor := class_of_inductor(op):
        return inductor
    # A node MmBackward0 or NativeLayerNormBackward0 is looked up as mm or native_layer_norm.
    if node := _BACKWARD_NODE.match(op):
        snake = _CAMEL_HUMP.sub("_", node[1]).lower()
        return _CLASS_OF.get(snake) or _class_by_word(snake)
    return _class_by_word(op)


def _class_by_word(text: str) -> str | None:
    """The op class whose pattern alone matches a name; None if none or several do."""
    lower = text.lower()
    classes = [op_class for op_class, pattern in _BY_WORD if pattern.search(lower)]
    return classes[0] if len(classes) == 1 else None
