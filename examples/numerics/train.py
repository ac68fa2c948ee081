"""A small transformer for the how-to on numerical differences.

`--norm-eps` is the fault to find: a norm whose epsilon is a hundred thousand times too large in one layer.
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCAB, WIDTH, HEADS, TOKENS = 128, 64, 4, 32


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch = len(x)
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, TOKENS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        heads = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, TOKENS, WIDTH))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--norm-eps", type=float, default=1e-5)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = Decoder()
    model.layers[2].mlp_norm.eps = options.norm_eps
    model.to(options.device)  # initialised on the CPU: weights are the same on all devices
    step_model = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(5):
        tokens = torch.randint(VOCAB, (8, TOKENS + 1)).to(options.device)
        with torch.autocast(torch.device(options.device).type, torch.bfloat16, enabled=options.bfloat16):
            logits = step_model(tokens[:, :-1])
        loss = cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
