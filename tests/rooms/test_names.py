"""Kernels, ops and frames by name: those that were once mistaken, and one of each kind."""

import pytest

from trainyard.trace.causes import host_cause
from trainyard.trace.ops import class_of
from trainyard.vendors.kernels import account_of

KERNELS = {
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": "compute/matmul",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT": "compute/matmul",
    "Cijk_Alik_Bljk_BBS_BH_MT128x128x64": "compute/matmul",
    "void fbgemm_gpu::permute_pooled_embs_kernel<float>(float const*)": "compute/embedding",
    "linearize_index_kernel<long>": "compute/embedding",
    "void at::native::GammaBetaBackwardCUDAKernel<float, float>": "compute/norm",
    "void convert_fp16_to_fp32_kernel(half*)": None,
    "triton_red_fused_native_layer_norm_1": "compute/reduction",
    "triton_per_fused_sum_2": "compute/reduction",
    "triton_poi_fused_convert_element_type_3": "compute/elementwise",
    "triton_tem_fused_addmm_relu_4": "compute/matmul",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<64>>": "compute/attention",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL": "comm/reduce_scatter",
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)": "comm/other",
    "multimem_all_reduce_kernel": "comm/all_reduce",
    "__amd_rocclr_copyBuffer": "copy/d2d",
    "__amd_rocclr_fillBufferAligned": "copy/memset",
    "somebody_elses_kernel": None,
}
OPS = {
    "aten::addmm": "matmul",
    "aten::add_": "elementwise",
    "aten::silu_backward": "elementwise",
    "aten::_foreach_addcdiv_": "elementwise",
    "aten::_foreach_norm": "reduction",
    "fbgemm::asynchronous_complete_cumsum": "embedding",
    "autograd::engine::evaluate_function: NllLossBackward0": "softmax",
    "NativeDropoutBackward0": "elementwise",
    "ConvolutionBackward0": "conv",
    "c10d::allreduce_": None,
}
CAUSES = {
    "cudaStreamSynchronize": "launch_gap/sync",
    "hipMemcpyWithStream": "launch_gap/sync",
    "cudaMalloc": "launch_gap/alloc",
    "cudaLaunchKernel": None,
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": "data_wait",
    "torch/utils/data/dataloader.py(730): __next__": "data_wait",
    "torch/utils/checkpoint.py(1010): __init_saved_tensors_hooks": None,
    "download/checkpoints/train.py(3): load": None,
    "c10d::barrier": "comm/barrier",
}


@pytest.mark.parametrize(("name", "account"), KERNELS.items())
def test_kernel(name, account):
    found = account_of(name)
    assert (str(found) if found else None) == account


@pytest.mark.parametrize(("name", "what"), OPS.items())
def test_op(name, what):
    assert class_of(name) == what


@pytest.mark.parametrize(("name", "cause"), CAUSES.items())
def test_cause(name, cause):
    assert host_cause(name) == cause
