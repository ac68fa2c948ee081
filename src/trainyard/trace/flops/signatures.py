"""Argument names of ATen ops, in the order of their schemas: traces list arguments by position only.

The formulas of `products` and `traffic` look arguments up by these names.

Arguments after the last one that a formula needs are left out. A test compares the names with torch's schemas.
"""

from __future__ import annotations

import re

_TEXT = """
conv1d conv2d conv3d: input weight bias stride padding dilation groups
convolution _convolution convolution_overrideable:
    input weight bias stride padding dilation transposed output_padding groups
cudnn_convolution: self weight padding stride dilation groups
cudnn_convolution_relu: self weight bias stride padding dilation groups
cudnn_convolution_add_relu: self weight z alpha bias stride padding dilation groups
cudnn_convolution_transpose: self weight padding output_padding stride dilation groups
miopen_convolution miopen_depthwise_convolution mkldnn_convolution: self weight bias padding stride dilation groups
miopen_convolution_transpose: self weight bias padding output_padding stride dilation groups
thnn_conv2d _slow_conv2d_forward slow_conv3d_forward: self weight kernel_size bias stride padding
_conv_depthwise2d conv_depthwise3d: self weight kernel_size bias stride padding dilation
conv_transpose2d: input weight bias stride padding output_padding groups dilation
convolution_backward:
    grad_output input weight bias_sizes stride padding dilation transposed output_padding groups output_mask

scaled_dot_product_attention _scaled_dot_product_attention_math: query key value attn_mask dropout_p is_causal
_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu: query key value dropout_p is_causal
_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention:
    query key value attn_bias compute_log_sumexp dropout_p is_causal
_scaled_dot_product_fused_attention_overrideable: query key value attn_bias dropout_p is_causal
_flash_attention_forward:
    query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask scale window_size_left
    window_size_right
_efficient_attention_forward:
    query key value bias cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p custom_mask_type
    compute_log_sumexp scale seqlen_k window_size
_cudnn_attention_forward:
    query key value attn_bias cum_seq_q cum_seq_k max_q max_k compute_log_sumexp dropout_p is_causal

_scaled_dot_product_flash_attention_backward:
    grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal
_scaled_dot_product_flash_attention_for_cpu_backward: grad_out query key value out logsumexp dropout_p is_causal
_scaled_dot_product_efficient_attention_backward:
    grad_out_ query key value attn_bias out logsumexp philox_seed philox_offset dropout_p grad_input_mask is_causal
_scaled_dot_product_fused_attention_overrideable_backward:
    grad_out query key value attn_bias grad_input_mask out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal
_scaled_dot_product_cudnn_attention_backward _cudnn_attention_backward:
    grad_out query key value out logsumexp philox_seed philox_offset attn_bias cum_seq_q cum_seq_k max_q max_k
    dropout_p is_causal
_flash_attention_backward:
    grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal rng_state unused scale
    window_size_left window_size_right
_efficient_attention_backward:
    grad_out_ query key value bias out cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k logsumexp dropout_p
    philox_seed philox_offset custom_mask_type bias_requires_grad scale num_splits_key window_size

native_batch_norm: input weight bias running_mean running_var training
cudnn_batch_norm miopen_batch_norm: input weight bias running_mean running_var training
native_batch_norm_backward: grad_out input weight running_mean running_var save_mean save_invstd train eps output_mask
cudnn_batch_norm_backward miopen_batch_norm_backward: input grad_output weight
native_layer_norm: input normalized_shape weight bias
native_layer_norm_backward: grad_out input normalized_shape mean rstd weight bias output_mask
_fused_rms_norm: input normalized_shape weight
_fused_rms_norm_backward: grad_out input normalized_shape rstd weight output_mask
native_group_norm: input weight bias N C HxW group
native_group_norm_backward: grad_out input mean rstd weight N C HxW group output_mask

max_pool2d_with_indices: self kernel_size stride padding dilation ceil_mode
avg_pool2d: self kernel_size stride padding ceil_mode
max_pool2d_with_indices_backward: grad_output self kernel_size stride padding dilation ceil_mode indices
embedding: weight indices
embedding_dense_backward: grad_output indices num_weights
_embedding_bag:
    weight indices offsets scale_grad_by_freq mode sparse per_sample_weights include_last_offset
index_select: self dim index
gather: self dim index
nll_loss_forward: self target weight reduction
nll_loss_backward: grad_output self target weight
"""

SIGNATURES = {
    name: arguments
    for names, arguments in re.findall(r"^([\w ]+):\s+([\w\s]+?)(?=\n[\w ]+:|\n*\Z)", _TEXT, re.M)
    for name in names.split()
}
"""Name without `aten::` -> argument names, separated by blanks."""
CONVOLUTIONS = tuple(name for name in SIGNATURES if "conv" in name and not name.endswith("_backward"))
ATTENTIONS = tuple(name for name in SIGNATURES if "attention" in name)
