"""Training runs on the simulated allocator, with stacks like those of torch's Python and C++ code."""

from __future__ import annotations

import random
from contextlib import suppress

from tests.caching_allocator import MIB, CachingAllocator


def frame(file: str, line: int, name: str) -> dict:
    return {"filename": file, "line": line, "name": name}


TORCH = "/env/lib/python3.11/site-packages/torch"
SCRIPT = frame("/home/user/train.py", 90, "<module>")
CALLS = [
    frame(f"{TORCH}/nn/modules/module.py", 1782, "_call_impl"),
    frame("/home/user/model.py", 40, "forward"),
    SCRIPT,
]


def linear(layer: int) -> list[dict]:
    """The stack of a layer's forward pass: C++ frames first, as with stacks="all"."""
    inner = [
        frame("??", 0, "at::_ops::linear::call(at::Tensor const&)"),
        frame(f"{TORCH}/nn/modules/linear.py", 130, "forward"),
    ]
    return [*inner, CALLS[0], frame("/home/user/model.py", 20 + layer, "forward"), *CALLS]


BUILD = [
    frame(f"{TORCH}/nn/modules/module.py", 1370, "convert"),
    frame(f"{TORCH}/nn/modules/module.py", 950, "_apply"),
    frame(f"{TORCH}/nn/modules/module.py", 1385, "to"),
    frame("/home/user/train.py", 30, "<module>"),
]
BACKWARD = [
    frame("??", 0, "at::native::mm(at::Tensor const&)"),
    frame("??", 0, "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)"),
    frame("??", 0, "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)"),
]
OPTIMIZER = [
    frame(f"{TORCH}/optim/adamw.py", 201, "_init_group"),
    frame(f"{TORCH}/optim/adamw.py", 233, "step"),
    frame(f"{TORCH}/optim/optimizer.py", 509, "wrapper"),
    frame("/home/user/train.py", 70, "<module>"),
]
UPDATE = [frame(f"{TORCH}/optim/adamw.py", 420, "_multi_tensor_adamw"), *OPTIMIZER[1:]]
REDUCE = [
    frame(f"{TORCH}/distributed/distributed_c10d.py", 4000, "all_gather_into_tensor"),
    frame("/home/user/train.py", 66, "<module>"),
]
BATCH = [frame("/home/user/train.py", 60, "<module>")]


def training(
    layers: int = 24, steps: int = 3, width: int = 24 * MIB, seed: int = 0, **allocator
) -> tuple[CachingAllocator, dict[str, int]]:
    """A run of `steps` steps (fewer if out of memory), and the peak of requested bytes by category."""
    run = CachingAllocator(**allocator)
    weights = [width + 1000 * layer for layer in range(layers)]
    requested = {
        "parameter": sum(weights),
        "gradient": sum(weights),
        "optimizer_state": 2 * sum(weights),
        "activation": 0,
    }
    with suppress(MemoryError):
        for size in weights:
            run.malloc(size, BUILD)
        for step in range(steps):
            _step(run, weights, requested, random.Random(seed + step), first=step == 0)  # noqa: S311
    return run, requested


def _step(
    run: CachingAllocator, weights: list[int], requested: dict[str, int], random_: random.Random, first: bool
) -> None:
    activations = []
    batch = run.malloc(4 * MIB + 7, BATCH)
    for layer, weight in enumerate(weights):
        size = 3 * weight // 2 + random_.randrange(4 * MIB)
        activations.append((run.malloc(size, linear(layer)), size))
        run.free(run.malloc(weight // 3 + 900 * layer, linear(layer)))
    requested["activation"] = max(requested["activation"], sum(size for _, size in activations))
    gradients = []
    for (address, _), weight in reversed(list(zip(activations, weights))):
        temporary = run.malloc(weight // 2, BACKWARD)
        gradients.append(run.malloc(weight, BACKWARD))
        run.free(address)
        run.free(temporary)
    bucket = run.malloc(8 * MIB, REDUCE, stream=7)
    run.free(bucket, pending=True)
    run.complete(bucket)
    if first:
        for size in weights:
            run.malloc(size, OPTIMIZER)
            run.malloc(size, OPTIMIZER)
    for size in weights[:4]:
        run.free(run.malloc(size, UPDATE))
    for gradient in gradients:
        run.free(gradient)
    run.free(batch)
