"""Train a small transformers model with random weights on random tokens, in samples of several lengths."""

import argparse

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MixtralConfig, Qwen3Config, Qwen3MoeConfig

VOCAB, SAMPLES, TOKENS = 256, 8, 32
SIZES = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MODELS = {
    "llama": LlamaConfig(**SIZES, **HEADS),
    "qwen3": Qwen3Config(**SIZES, **HEADS),
    "gpt2": GPT2Config(vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, **NO_DROPOUT),
    "mixtral": MixtralConfig(**SIZES, **HEADS, num_local_experts=4),
    "qwen3-moe": Qwen3MoeConfig(**SIZES, **HEADS, **EXPERTS, num_experts=4),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="llama")
    parser.add_argument("--bfloat16", choices=("autocast", "full"))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="sdpa")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()

    torch.manual_seed(0)
    dtype = torch.bfloat16 if options.bfloat16 == "full" else torch.float32
    model = AutoModelForCausalLM.from_config(MODELS[options.model], dtype=dtype, attn_implementation=options.attention)
    if options.compile:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        tokens = torch.randint(VOCAB, (SAMPLES, TOKENS))
        is_token = torch.arange(TOKENS) < torch.randint(TOKENS // 4, TOKENS + 1, (SAMPLES, 1))
        labels = tokens.where(is_token, -100)
        total = 0.0
        for inputs, targets in zip(tokens.chunk(options.micro_batches), labels.chunk(options.micro_batches)):
            with torch.autocast("cpu", torch.bfloat16, enabled=options.bfloat16 == "autocast"):
                loss = model(inputs, labels=targets, num_items_in_batch=(labels[:, 1:] != -100).sum()).loss
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {total:.6f}")


if __name__ == "__main__":
    main()
