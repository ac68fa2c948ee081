"""Kernels, ops and frames by name, as libraries really write them."""

import tomllib
from pathlib import Path

import pytest

from trainyard.trace.classify.host_causes import host_cause
from trainyard.trace.classify.kernels import account_by_kernel_name
from trainyard.trace.classify.ops import class_of
from trainyard.vendors.kernel_names import copy_of

KERNELS = tomllib.loads((Path(__file__).parent / "kernel_names.toml").read_text("utf-8"))
COPIES = {
    "Memcpy HtoD (Pageable -> Device)": "h2d",
    "Memcpy DtoH (Device -> Pinned)": "d2h",
    "Memcpy DtoD (Device -> Device)": "d2d",
    "Memcpy PtoP (Device -> Device)": "d2d",
    "Memcpy HtoH (Pinned -> Pinned)": "h2d",
    "CopyHostToDevice": "h2d",
    "MEMORY_COPY_DEVICE_TO_HOST": "d2h",
    "[CUDA memcpy Device-to-Host]": "d2h",
    "MemcpyH2D": "h2d",
}
OPS = {
    "aten::mkldnn_rnn_layer_backward": "matmul",
    "aten::_thnn_fused_lstm_cell": "elementwise",
    "aten::addmm": "matmul",
    "aten::_scaled_mm": "matmul",
    "aten::_grouped_mm": "matmul",
    "aten::add_": "elementwise",
    "aten::silu_backward": "elementwise",
    "aten::hardswish_": "elementwise",
    "aten::_foreach_addcdiv_": "elementwise",
    "aten::_foreach_norm": "reduction",
    "aten::_fused_adamw_": "optimizer",
    "aten::_scaled_dot_product_flash_attention": "attention",
    "aten::unique_consecutive": "reduction",
    "aten::_embedding_bag_forward_only": "embedding",
    "fbgemm::asynchronous_complete_cumsum": "embedding",
    "fbgemm::f8f8bf16_rowwise": "matmul",
    "flash_attn::_flash_attn_forward": "attention",
    "flash_attn_3::fwd": "attention",
    "FlashAttnVarlenFuncBackward": "attention",
    "xformers::efficient_attention_forward_cutlass": "attention",
    "vllm::unified_attention_with_output": "attention",
    "LigerRMSNormFunction": "norm",
    "LigerCrossEntropyFunctionBackward": "softmax",
    # Two classes match: each kernel's own name decides.
    "LigerFusedLinearCrossEntropyFunction": None,
    "_LayerNormLinear": None,
    "_LayerNormLinearBackward": None,
    "vllm::moe_forward": None,
    "_moe_C::topk_softmax": None,
    "_C::rotary_embedding": "elementwise",
    "_C::silu_and_mul": "elementwise",
    "_C::rms_norm": "norm",
    "triton_poi_fused_add_mul_0": "elementwise",
    "triton_red_fused_native_layer_norm_1": "norm",
    "graph_0_cpp_fused_add_mul_0": "elementwise",
    "graph_0_cpp_fused_native_layer_norm_1": "norm",
    "autograd::engine::evaluate_function: NllLossBackward0": "softmax",
    "NativeDropoutBackward0": "elementwise",
    "ConvolutionBackward0": "conv",
    "CompiledFunction": None,
    "Torch-Compiled Region: 0/0": None,
    "c10d::allreduce_": None,
}
CAUSES = {
    "cudaStreamSynchronize": "launch_gap/sync",
    "cudaEventSynchronize": "launch_gap/sync",
    "hipMemcpyWithStream": "launch_gap/sync",
    "cuCtxSynchronize": "launch_gap/sync",
    "aten::item": "launch_gap/sync",
    "<built-in method item of Tensor object at 0x7f0e88f0a200>": "launch_gap/sync",
    "<built-in method items of dict object at 0x7f0e88f0a200>": None,
    "torch/cuda/__init__.py(1030): synchronize": "launch_gap/sync",
    "cudaEventQuery": None,
    "cudaMemcpyAsync": None,
    "cudaMalloc": "launch_gap/alloc",
    "cudaFree": "launch_gap/alloc",
    "cudaFreeHost": "launch_gap/alloc",
    "cudaMallocHost": "launch_gap/alloc",
    "hipMalloc": "launch_gap/alloc",
    "hipHostMalloc": "launch_gap/alloc",
    "hipExtMallocWithFlags": "launch_gap/alloc",
    "cuMemMap": "launch_gap/alloc",
    "cuMemAddressReserve": "launch_gap/alloc",
    "cuMemSetAccess": "launch_gap/alloc",
    "torch/cuda/memory.py(222): empty_cache": "launch_gap/alloc",
    "cuMemcpyDtoHAsync_v2": None,
    "cudaLaunchKernel": None,
    "Python GC": "launch_gap/gc",
    "<built-in function collect>": "launch_gap/gc",
    "_compile.compile_inner (dynamo_timed)": "launch_gap/compile",
    "CachingAutotuner.benchmark_all_configs (dynamo_timed)": "launch_gap/compile",
    "entire_frame_compile": "launch_gap/compile",
    "dynamo": "launch_gap/compile",
    "Torch-Compiled Region: 0/0": None,
    "TorchDynamo Cache Lookup": None,
    "CompiledFunction": None,
    "cuModuleLoadData": "launch_gap/compile",
    "torch/_dynamo/convert_frame.py(1100): __call__": "launch_gap/compile",
    "torch/_inductor/compile_fx.py(700): compile_fx": "launch_gap/compile",
    "torch/_inductor/compile_fx.py(1100): run": None,
    "torch/_dynamo/eval_frame.py(655): _fn": None,
    "torch/_inductor/runtime/triton_heuristics.py(880): benchmark_all_configs": "launch_gap/compile",
    "torch/_inductor/runtime/triton_heuristics.py(1100): run": None,
    "triton/runtime/autotuner.py(150): _bench": "launch_gap/compile",
    "triton/compiler/compiler.py(230): compile": "launch_gap/compile",
    "triton/runtime/jit.py(560): run": None,
    "torch/compiler/__init__.py(367): is_compiling": None,
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": "data_wait",
    "[pl][profile][_TrainingEpochLoop].train_dataloader_next": "data_wait",
    "torch/utils/data/dataloader.py(730): __next__": "data_wait",
    "torch/utils/data/_utils/pin_memory.py(18): _pin_memory_loop": "data_wait",
    "nvidia/dali/plugin/pytorch.py(219): __next__": "data_wait",
    "torch/utils/checkpoint.py(1010): __init_saved_tensors_hooks": None,
    "torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py(144): forward": None,
    "nn.Module: CheckpointWrapper_0": None,
    "download/checkpoints/train.py(3): load": None,
    "torch/serialization.py(912): save": "checkpoint/save",
    "torch/serialization.py(1315): load": "checkpoint/load",
    "torch/distributed/checkpoint/state_dict_saver.py(80): async_save": "checkpoint/save",
    "megatron/training/checkpointing.py(300): save_checkpoint": "checkpoint/save",
    "transformers/trainer.py(3200): _save_checkpoint": "checkpoint/save",
    "safetensors/torch.py(305): load_file": "checkpoint/load",
    "c10d::barrier": "comm/barrier",
    "torch/distributed/distributed_c10d.py(4600): barrier": "comm/barrier",
    "torch/distributed/distributed_c10d.py(3000): all_gather_object": "comm/all_gather",
    "torch/distributed/distributed_c10d.py(3400): broadcast_object_list": "comm/broadcast",
    "torch/distributed/distributed_c10d.py(2900): all_reduce": None,
    "torch/distributed/distributed_c10d.py(1700): init_process_group": "comm/other",
    "<built-in method wait of torch._C._distributed_c10d.Work object at 0x7f2e8b958090>": "comm/other",
}


@pytest.mark.parametrize(("name", "account"), [(name, account) for account, names in KERNELS.items() for name in names])
def test_kernel(name, account):
    by_name = account_by_kernel_name(name)
    assert (str(by_name) if by_name else "nothing") == account


@pytest.mark.parametrize(("name", "expected"), COPIES.items())
def test_copy(name, expected):
    assert copy_of(name) == expected


@pytest.mark.parametrize(("name", "expected"), OPS.items())
def test_op(name, expected):
    assert class_of(name) == expected


@pytest.mark.parametrize(("name", "cause"), CAUSES.items())
def test_cause(name, cause):
    assert host_cause(name) == cause
