"""The decoder's options, each against plain formulas: one head, one position, one expert at a time."""

from math import pi, sqrt

import pytest

from tests.refused import refused
from trainyard.errors import BadJob
from trainyard.job import Job
from trainyard.model import Model
from trainyard.recipe import Recipe
from trainyard.train.rules import decoder_rules as rules

SMALL = {"layers": 2, "hidden_size": 16, "ffn_hidden_size": 24, "heads": 4, "kv_heads": 2, "head_dim": 4, "vocab": 32}
LATENT = {"kv_heads": 4, "kv_lora_rank": 6, "q_lora_rank": 10, "qk_rope_head_dim": 4, "v_head_dim": 3}
EXPERTS = {"experts": 4, "top_k": 2, "moe_ffn_hidden_size": 8}
OPTIONS = {
    "llama": {},
    "all heads": {"kv_heads": 4},
    "layer norm": {"norm": "layer"},
    "layer norm with bias": {"norm": "layer", "bias": "all"},
    "eps": {"norm_eps": 0.1},
    "gelu": {"mlp": "gelu"},
    "learned": {"position": "learned"},
    "base": {"rope_theta": 10.0},
    "bias of q, k, v": {"bias": "qkv"},
    "all biases": {"bias": "all"},
    "norm of q and k": {"qk_norm": True},
    "tied": {"tie_word_embeddings": True},
    "gpt": {
        "norm": "layer",
        "mlp": "gelu",
        "position": "learned",
        "bias": "all",
        "tie_word_embeddings": True,
        "kv_heads": 4,
    },
    "latent": LATENT,
    "latent, queries from the width": {**LATENT, "q_lora_rank": 0},
    "mixtral": EXPERTS,
    "shared": {**EXPERTS, "shared_experts": 2},
    "first dense": {**EXPERTS, "dense_layers": 1},
    "deepseek": {
        **LATENT,
        **EXPERTS,
        "router": "sigmoid",
        "shared_experts": 1,
        "route_scale": 2.5,
        "n_group": 2,
        "topk_group": 1,
        "load_balancing": "bias",
    },
}


def a_model(**options):
    return Model(**{**SMALL, **options})


def built(model, length=6, seed=0):
    """A decoder with no weight at its initial one or zero."""
    torch = pytest.importorskip("torch")
    from trainyard.train.model.decoder import Decoder

    torch.manual_seed(seed)
    decoder = Decoder(model, torch.float32, range(model.layers), length)
    with torch.no_grad():
        for values in decoder.state_dict().values():
            values.normal_(0.5 if values.dim() == 1 else 0.0, 0.4)
    return decoder


class Plain:
    """The model as formulas over `weights` by name: maps one sequence of T tokens to logits (T, V)."""

    def __init__(self, model, weights):
        self.model, self.weights = model, weights

    def logits(self, tokens):
        import torch

        model = self.model
        x = torch.stack([self.weights["embed.weight"][token] for token in tokens])
        if model.position == "learned":
            x = x + self.weights["place.weight"][: len(tokens)]
        for number in range(model.layers):
            layer = f"layers.{number}"
            h = self.norm(f"{layer}.attention_norm", x)
            x = x + (self.latent if model.kv_lora_rank else self.attention)(f"{layer}.attention", h)
            h = self.norm(f"{layer}.mlp_norm", x)
            mixed = model.experts and number >= model.dense_layers
            x = x + (self.mixture if mixed else self.mlp)(f"{layer}.mlp", h)
        head = self.weights["embed.weight" if model.tie_word_embeddings else "head.weight"]
        return self.norm("norm", x) @ head.T

    def linear(self, name, x):
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def norm(self, name, x):
        if self.model.norm == "rms":
            return self.rms(name, x)
        centred = x - x.mean(-1, keepdim=True)
        y = centred / (centred.square().mean(-1, keepdim=True) + self.model.norm_eps).sqrt()
        y = y * self.weights[f"{name}.weight"]
        return y + self.weights[f"{name}.bias"] if self.model.bias == "all" else y

    def rms(self, name, x):
        return x / (x.square().mean(-1, keepdim=True) + self.model.norm_eps).sqrt() * self.weights[f"{name}.weight"]

    def turn(self, x):
        """Channels (c, c + C/2) of position t are a complex number, turned by t * base^(-2c/C)."""
        import torch

        half = x.shape[1] // 2
        rate = torch.tensor([self.model.rope_theta ** (-c / half) for c in range(half)])
        angle = torch.arange(len(x)).unsqueeze(1) * rate
        turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat((turned.real, turned.imag), dim=1)

    def head(self, q, k, v):
        """Each position's mean of the values before and at it, weighted by softmax."""
        import torch

        rows = []
        for query_index in range(len(q)):
            scores = torch.stack([q[query_index] @ k[before] for before in range(query_index + 1)]) / sqrt(q.shape[1])
            weights = scores.exp() / scores.exp().sum()
            rows.append(sum(weight * v[before] for before, weight in enumerate(weights)))
        return torch.stack(rows)

    def attention(self, name, x):
        import torch

        model = self.model
        q, k, v = (self.linear(f"{name}.{part}", x).split(model.head_dim, dim=1) for part in ("q", "k", "v"))
        if model.qk_norm:
            q, k = (
                [self.rms(f"{name}.{part}_norm", vector) for vector in heads] for part, heads in (("q", q), ("k", k))
            )
        if model.position == "rope":
            q, k = [self.turn(vector) for vector in q], [self.turn(vector) for vector in k]
        shared = model.heads // model.kv_heads
        heads = [self.head(q[h], k[h // shared], v[h // shared]) for h in range(model.heads)]
        return self.linear(f"{name}.out", torch.cat(heads, dim=1))

    def latent(self, name, x):
        """DeepSeek-V2, equations 9 to 19; matrices are joined as in equations 37 to 47's names."""
        import torch

        model = self.model
        if model.q_lora_rank:
            queries = self.linear(f"{name}.q_up", self.rms(f"{name}.q_norm", self.linear(f"{name}.q_down", x)))
        else:
            queries = self.linear(f"{name}.q", x)
        down = self.linear(f"{name}.kv_down", x)
        shared_key = self.turn(down[:, model.kv_lora_rank :])
        up = self.linear(f"{name}.kv_up", self.rms(f"{name}.kv_norm", down[:, : model.kv_lora_rank]))
        heads = []
        for q, kv in zip(queries.chunk(model.heads, dim=1), up.chunk(model.heads, dim=1)):
            q = torch.cat((q[:, : model.head_dim], self.turn(q[:, model.head_dim :])), dim=1)
            k = torch.cat((kv[:, : model.head_dim], shared_key), dim=1)
            heads.append(self.head(q, k, kv[:, model.head_dim :]))
        return self.linear(f"{name}.out", torch.cat(heads, dim=1))

    def mlp(self, name, x):
        if self.model.mlp == "gelu":
            h = self.linear(f"{name}.up", x)
            h = 0.5 * h * (1 + (sqrt(2 / pi) * (h + 0.044715 * h**3)).tanh())
        else:
            h = self.linear(f"{name}.gate", x)
            h = h / (1 + (-h).exp()) * self.linear(f"{name}.up", x)
        return self.linear(f"{name}.down", h)

    def mixture(self, name, x):
        import torch

        y = torch.stack([self.token(name, vector) for vector in x])
        return y + self.mlp(f"{name}.shared", x) if self.model.shared_experts else y

    def token(self, name, x):
        import torch

        model = self.model
        logits = self.weights[f"{name}.router.weight"] @ x
        scores = logits.exp() / logits.exp().sum() if model.router == "softmax" else 1 / (1 + (-logits).exp())
        choose = scores.tolist()
        if model.load_balancing == "bias":
            choose = [score + bias for score, bias in zip(choose, self.weights[f"{name}.router.bias"].tolist())]
        size = model.experts // model.n_group
        groups = [list(range(start, start + size)) for start in range(0, model.experts, size)]
        groups.sort(key=lambda group: -sum(sorted((choose[e] for e in group), reverse=True)[:2]))
        able = [expert for group in groups[: model.topk_group] for expert in group]
        chosen = sorted(able, key=lambda expert: -choose[expert])[: model.top_k]
        total = sum(scores[expert] for expert in chosen)
        y = torch.zeros_like(x)
        for e in chosen:
            gate, up, down = (self.weights[f"{name}.experts.{part}"][e] for part in ("gate", "up", "down"))
            h = gate @ x
            y = y + model.route_scale * scores[e] / total * (down @ (h / (1 + (-h).exp()) * (up @ x)))
        return y


def both(model, tokens):
    """(logits, gradients by name) of the mean cross-entropy of predicting 0, by the decoder and by the formulas."""
    decoder = built(model, len(tokens))
    weights = {name: values.clone() for name, values in decoder.state_dict().items()}
    for name, _ in decoder.named_parameters():
        weights[name].requires_grad_()
    ours, plain = decoder(tokens.unsqueeze(0))[0], Plain(model, weights).logits(tokens)
    for logits in (ours, plain):
        (-logits.log_softmax(1)[:, 0].mean()).backward()
    trained = dict(decoder.named_parameters())
    return (ours, {n: p.grad for n, p in trained.items()}), (plain, {n: weights[n].grad for n in trained})


@pytest.mark.torch
@pytest.mark.parametrize("option", OPTIONS)
def test_logits_and_gradients_match_the_formulas(option):
    torch = pytest.importorskip("torch")
    (ours, grads), (plain, expected) = both(a_model(**OPTIONS[option]), torch.tensor([3, 1, 4, 1, 5, 9]))
    assert torch.allclose(ours, plain, rtol=1e-4, atol=1e-5)
    for name, grad in grads.items():
        assert torch.allclose(grad, expected[name], rtol=1e-3, atol=1e-5), name


@pytest.mark.torch
@pytest.mark.parametrize("option", sorted(OPTIONS.keys() - {"llama", "all heads"}))
def test_each_option_changes_the_output(option):
    """Weights of equal name and shape are equal, so that an option without effect would be detected."""
    torch = pytest.importorskip("torch")
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9]])
    assert not torch.allclose(built(a_model(**OPTIONS[option]))(tokens), built(a_model())(tokens), rtol=1e-3)


@pytest.mark.torch
@pytest.mark.parametrize("option", OPTIONS)
def test_initial_norms_are_one_and_biases_zero(option):
    torch = pytest.importorskip("torch")
    from trainyard.train.model import initial_weights
    from trainyard.train.model.language_task import Language

    model = a_model(**{"vocab": 256, **OPTIONS[option], "layers": 2})
    task = Language(Job(model=model, recipe=Recipe(seq_len=8, tokens_per_step=8)))
    decoder = task.module()
    initial_weights.fill(decoder, task)
    for name, values in decoder.state_dict().items():
        if name.endswith("bias"):
            assert not values.any(), name
        elif "norm" in name:
            assert torch.equal(values, torch.ones_like(values)), name
        else:
            back = name.endswith(("attention.out.weight", "down", "down.weight")) and "_down" not in name
            deviation = 0.02 / sqrt(2 * model.layers) if back else 0.02
            assert float(values.std()) == pytest.approx(deviation, rel=0.3), name


@pytest.mark.torch
@pytest.mark.parametrize(
    ("parameters", "length", "model"),
    [
        # The numbers of values in the published checkpoint files.
        (
            8_030_261_248,
            0,
            {
                "layers": 32,
                "hidden_size": 4096,
                "ffn_hidden_size": 14336,
                "heads": 32,
                "kv_heads": 8,
                "head_dim": 128,
                "vocab": 128256,
            },
        ),
        (
            7_615_616_512,
            0,
            {
                "layers": 28,
                "hidden_size": 3584,
                "ffn_hidden_size": 18944,
                "heads": 28,
                "kv_heads": 4,
                "head_dim": 128,
                "vocab": 152064,
            }
            | {"bias": "qkv"},
        ),
        (
            8_190_735_360,
            0,
            {
                "layers": 36,
                "hidden_size": 4096,
                "ffn_hidden_size": 12288,
                "heads": 32,
                "kv_heads": 8,
                "head_dim": 128,
                "vocab": 151936,
            }
            | {"qk_norm": True},
        ),
        (
            124_439_808,
            1024,
            {
                "layers": 12,
                "hidden_size": 768,
                "ffn_hidden_size": 3072,
                "heads": 12,
                "kv_heads": 12,
                "head_dim": 64,
                "vocab": 50257,
            }
            | {"norm": "layer", "mlp": "gelu", "position": "learned", "bias": "all", "tie_word_embeddings": True},
        ),
        (
            46_702_792_704,
            0,
            {
                "layers": 32,
                "hidden_size": 4096,
                "ffn_hidden_size": 14336,
                "heads": 32,
                "kv_heads": 8,
                "head_dim": 128,
                "vocab": 32000,
            }
            | {"experts": 8, "top_k": 2, "moe_ffn_hidden_size": 14336},
        ),
        (
            671_026_404_352,
            0,
            {
                "layers": 61,
                "hidden_size": 7168,
                "ffn_hidden_size": 18432,
                "heads": 128,
                "kv_heads": 128,
                "head_dim": 128,
            }
            | {
                "vocab": 129280,
                "q_lora_rank": 1536,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "experts": 256,
            }
            | {"top_k": 8, "moe_ffn_hidden_size": 2048, "shared_experts": 1, "dense_layers": 3, "router": "sigmoid"},
        ),
    ],
    ids=["Llama 3 8B", "Qwen2.5 7B", "Qwen3 8B", "GPT-2", "Mixtral 8x7B", "DeepSeek-V3"],
)
def test_real_models_have_the_published_parameter_counts(parameters, length, model):
    torch = pytest.importorskip("torch")
    from trainyard.train.model.decoder import Decoder

    parsed = Model(**model)
    with torch.device("meta"):
        decoder = Decoder(parsed, torch.float32, range(parsed.layers), length)
    assert sum(parameter.numel() for parameter in decoder.parameters()) == parameters


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"bias": "qkv", **LATENT}, ["bias = 'qkv'", "bias = 'none'"]),
        ({"qk_norm": True, **LATENT}, ["qk_norm = true", "qk_norm = false"]),
        ({"position": "learned", **LATENT}, ["position = 'learned'", "qk_rope_head_dim = 4", "position = 'rope'"]),
        ({"mlp": "gelu", **EXPERTS}, ["mlp = 'gelu'", "mlp = 'swiglu'", "experts = 0"]),
        ({"bias": "all", **EXPERTS}, ["bias = 'all'", "bias = 'qkv'", "'none'", "experts = 0"]),
    ],
)
def test_incompatible_options_are_refused(options, values):
    job = Job(model=a_model(**{"vocab": 256, **options}), recipe=Recipe(seq_len=8, tokens_per_step=8))
    with refused(BadJob, "$.model", *values):
        rules.check(job)


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({"head_dim": 5}, ["head_dim = 5"]),
        ({**LATENT, "qk_rope_head_dim": 3}, ["qk_rope_head_dim = 3"]),
        ({**LATENT, "v_head_dim": 0}, ["kv_lora_rank", "qk_rope_head_dim", "v_head_dim = 0"]),
        ({**EXPERTS, "top_k": 5}, ["top_k = 5", "experts = 4"]),
        ({**EXPERTS, "n_group": 3}, ["experts = 4", 3, "n_group"]),
        ({**EXPERTS, "n_group": 2, "topk_group": 3}, ["topk_group = 3", "n_group = 2"]),
        ({**EXPERTS, "n_group": 4}, ["experts 4", "n_group 4", "topk_group 1", "top_k = 2"]),
        ({**EXPERTS, "route_scale": 0.0}, ["route_scale = 0.0"]),
        ({**EXPERTS, "shared_experts": -1}, ["shared_experts = -1"]),
    ],
)
def test_impossible_dimensions_are_refused(options, values):
    with refused(BadJob, *values):
        a_model(**options)


def test_only_rotary_channels_must_be_even():
    a_model(head_dim=5, position="learned")
    a_model(**{**LATENT, "head_dim": 5})
