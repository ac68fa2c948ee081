"""Published config.json files: parameters, total and of a token, against the counts of their authors."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.refused import refused
from trainyard.errors import BadFile
from trainyard.model import Model
from trainyard.models import hugging_face_architectures
from trainyard.models.hugging_face_architectures import ConvertedConfig
from trainyard.workloads.ops.matrices import parameters


class Published(NamedTuple):
    """A config, with the keys of transformers that matter, and its published parameters, total and of a token.
    `uncounted_tables`: tables of vocabulary x hidden size that the published count of a token leaves out. `source`: of
    the counts."""

    config: dict[str, Any]
    total: float
    active: float
    source: str
    uncounted_tables: int = 0


def keys(architecture: str, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocab: int, **others: Any):
    return {
        "architectures": [architecture], "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": ffn,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab, "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16", "attention_dropout": 0.0, **others,
    }  # fmt: skip


def nested(architecture: str, text: dict[str, Any]) -> dict[str, Any]:
    text = {key: value for key, value in text.items() if key != "architectures"}
    return {
        "architectures": [architecture], "text_config": text, "vision_config": {"hidden_size": 1152},
        "image_token_index": 262144,
    }  # fmt: skip


GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256}
GPT_OSS = {
    "head_dim": 64, "attention_bias": True, "num_experts_per_tok": 4, "experts_per_token": 4, "sliding_window": 128,
    "hidden_act": "silu", "rope_theta": 150000, "swiglu_limit": 7.0, "tie_word_embeddings": False,
    "initial_context_length": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 32.0}, "router_aux_loss_coef": 0.9,
    "output_router_logits": False,
}  # fmt: skip
LLAMA4 = {
    "head_dim": 128, "intermediate_size_mlp": 16384, "num_experts_per_tok": 1, "attention_chunk_size": 8192,
    "hidden_act": "silu", "rope_theta": 500000.0, "use_qk_norm": True, "tie_word_embeddings": False,
    "no_rope_layers": [], "output_router_logits": False, "router_jitter_noise": 0.0,
}  # fmt: skip
GLM45 = {
    "head_dim": 128, "attention_bias": True, "first_k_dense_replace": 1, "hidden_act": "silu", "n_group": 1,
    "topk_group": 1, "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 8, "rope_theta": 1000000,
    "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5, "routed_scaling_factor": 1.0,
    "tie_word_embeddings": False, "rope_scaling": None,
}  # fmt: skip
KIMI_K2 = {
    "model_type": "kimi_k2", "attention_bias": False, "aux_loss_alpha": 0.001, "ep_size": 1, "first_k_dense_replace": 1,
    "hidden_act": "silu", "kv_lora_rank": 512, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1,
    "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 0, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rope_scaling": {"type": "yarn", "factor": 32.0}, "rope_theta": 50000.0, "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid", "seq_aux": True, "tie_word_embeddings": False, "topk_group": 1,
    "topk_method": "noaux_tc", "v_head_dim": 128,
}  # fmt: skip
QWEN3_MOE = {
    "head_dim": 128, "attention_bias": False, "decoder_sparse_step": 1, "hidden_act": "silu", "mlp_only_layers": [],
    "moe_intermediate_size": 768, "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8,
    "output_router_logits": False, "rope_scaling": None, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
    "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False,
}  # fmt: skip
PHI = {
    "attention_bias": False, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "hidden_act": "silu", "sliding_window": None,
    "rope_scaling": None, "rope_theta": 250000, "tie_word_embeddings": False, "partial_rotary_factor": 1.0,
    "original_max_position_embeddings": 16384,
}  # fmt: skip
PUBLISHED = {
    "Qwen3-30B-A3B": Published(
        keys("Qwen3MoeForCausalLM", 48, 2048, 6144, 32, 4, 151936, **QWEN3_MOE), 30.5e9, 3.3e9,
        "huggingface.co/Qwen/Qwen3-30B-A3B, model card",
    ),
    "Mistral-7B-v0.1": Published(
        keys("MistralForCausalLM", 32, 4096, 14336, 32, 8, 32000, hidden_act="silu", sliding_window=4096,
             rope_theta=10000.0, tie_word_embeddings=False), 7.24e9, 7.24e9,
        "huggingface.co/mistralai/Mistral-7B-v0.1, safetensors",
    ),
    "gemma-2-9b": Published(
        keys("Gemma2ForCausalLM", 42, 3584, 14336, 16, 8, 256000, head_dim=256, sliding_window=4096,
             attn_logit_softcapping=50.0, final_logit_softcapping=30.0, **GEMMA), 9.24e9, 9.24e9,
        "huggingface.co/google/gemma-2-9b, safetensors",
    ),
    "gemma-3-27b": Published(
        nested("Gemma3ForConditionalGeneration", {
            "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504, "model_type": "gemma3_text",
            "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16,
            "query_pre_attn_scalar": 168, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        }), 27.0e9, 27.0e9, "arXiv:2503.19786, table 1: 25,600 + 1,416 million, without the vision encoder",
    ),
    "gpt-oss-20b": Published(
        keys("GptOssForCausalLM", 24, 2880, 2880, 64, 8, 201088, num_local_experts=32,
             layer_types=["sliding_attention", "full_attention"] * 12, **GPT_OSS), 20.9e9, 3.6e9,
        "arXiv:2508.10925, table 1: the embedding is not counted as active", 1,
    ),
    "gpt-oss-120b": Published(
        keys("GptOssForCausalLM", 36, 2880, 2880, 64, 8, 201088, num_local_experts=128, **GPT_OSS), 116.8e9, 5.1e9,
        "arXiv:2508.10925, table 1: the embedding is not counted as active", 1,
    ),
    "Llama-4-Scout": Published(
        nested("Llama4ForConditionalGeneration", keys(
            "", 48, 5120, 8192, 40, 8, 202048, num_local_experts=16, interleave_moe_layer_step=1, **LLAMA4)),
        109e9, 17e9, "huggingface.co/meta-llama/Llama-4-Scout-17B-16E, model card, with the vision encoder",
    ),
    "Llama-4-Maverick": Published(
        nested("Llama4ForConditionalGeneration", keys(
            "", 48, 5120, 8192, 40, 8, 202048, num_local_experts=128, interleave_moe_layer_step=2, **LLAMA4)),
        400e9, 17e9, "huggingface.co/meta-llama/Llama-4-Maverick-17B-128E, model card, with the vision encoder",
    ),
    "GLM-4-9B-0414": Published(
        keys("Glm4ForCausalLM", 40, 4096, 13696, 32, 2, 151552, head_dim=128, attention_bias=False, hidden_act="silu",
             partial_rotary_factor=0.5, tie_word_embeddings=False), 9.40e9, 9.40e9,
        "huggingface.co/zai-org/GLM-4-9B-0414, safetensors",
    ),
    "GLM-4.5-Air": Published(
        keys("Glm4MoeForCausalLM", 46, 4096, 10944, 96, 8, 151552, moe_intermediate_size=1408, n_routed_experts=128,
             **GLM45), 106e9, 12e9, "arXiv:2508.06471, section 2.1: without embedding and head", 2,
    ),
    "Kimi-K2": Published(
        keys("DeepseekV3ForCausalLM", 61, 7168, 18432, 64, 64, 163840, **KIMI_K2), 1.03e12, 32.6e9,
        "arXiv:2507.20534, table 2: 1.04 T, 32.6 B",
    ),
    "phi-4": Published(
        keys("Phi3ForCausalLM", 40, 5120, 17920, 40, 10, 100352, **PHI), 14.7e9, 14.7e9,
        "huggingface.co/microsoft/phi-4, safetensors",
    ),
    "OLMo-2-1124-7B": Published(
        keys("Olmo2ForCausalLM", 32, 4096, 11008, 32, 32, 100352, attention_bias=False, hidden_act="silu",
             rope_theta=500000, tie_word_embeddings=False), 7.3e9, 7.3e9,
        "huggingface.co/allenai/OLMo-2-1124-7B, safetensors",
    ),
}  # fmt: skip


def converted(config: dict[str, Any], planned: bool = True) -> ConvertedConfig:
    return hugging_face_architectures.convert(json.dumps(config).encode(), "models/Mine/config.json", planned=planned)


def decoder(config: dict[str, Any]) -> Model:
    return msgspec.convert(converted(config).fields, Model)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    published = PUBLISHED[name]
    model = decoder(published.config)
    assert model.name == "Mine"
    assert parameters(model) == pytest.approx(published.total, rel=0.02)
    of_a_token = msgspec.structs.replace(model, experts=model.top_k, n_group=1, topk_group=1)
    active = parameters(of_a_token) - published.uncounted_tables * model.vocab * model.hidden_size
    assert active == pytest.approx(published.active, rel=0.02)


def test_interleaved_layers_without_experts_are_counted() -> None:
    assert decoder(PUBLISHED["Llama-4-Maverick"].config).dense_layers == 24
    assert any("24 of 48" in text for text in converted(PUBLISHED["Llama-4-Maverick"].config).approximated)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gemma-2-9b", "sliding_window = 4096"), ("gemma-3-27b", "text_config.sliding_window = 1024"),
        ("gpt-oss-20b", "12 of 24"), ("Mistral-7B-v0.1", "sliding_window = 4096"), ("Llama-4-Scout", "chunked"),
        ("GLM-4.5-Air", "num_nextn_predict_layers = 1"),
    ],
)  # fmt: skip
def test_windows_and_other_parts_are_listed_as_predicted_differently(name: str, key: str) -> None:
    assert any(key in text for text in converted(PUBLISHED[name].config).approximated)


@pytest.mark.parametrize("name", ["OLMo-2-1124-7B", "Llama-4-Scout", "GLM-4.5-Air", "gpt-oss-20b"])
def test_only_gated_activations_are_planned(name: str) -> None:
    config = PUBLISHED[name].config
    text = config.get("text_config", config)
    assert "hidden_act" not in converted({**config, "hidden_act": "silu"}).unknown
    changed = {**config, "text_config": {**text, "hidden_act": "relu2"}} if "text_config" in config else config
    with refused(BadFile, "hidden_act", "relu2", "SwiGLU"):
        converted({**changed, "hidden_act": "relu2"})


@pytest.mark.parametrize("name", ["Qwen3-30B-A3B", "phi-4"])
def test_models_like_the_decoder_can_be_trained(name: str) -> None:
    fields = converted(PUBLISHED[name].config, planned=False).fields
    assert {**fields, "name": ""} == {**converted(PUBLISHED[name].config).fields, "name": ""}


@pytest.mark.parametrize("name", ["gemma-2-9b", "gemma-3-27b", "gpt-oss-20b", "Llama-4-Scout", "GLM-4.5-Air"])
def test_training_refuses_other_decoders(name: str) -> None:
    with refused(BadFile, "models/Mine/config.json", "$.architectures", "trainyard plan"):
        converted(PUBLISHED[name].config, planned=False)


@pytest.mark.parametrize("name", ["Mistral-7B-v0.1", "gemma-2-9b", "Llama-4-Scout", "Qwen3-30B-A3B", "OLMo-2-1124-7B"])
@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"num_key_value_heads": 3}, 3),
        ({"num_attention_heads": 11, "head_dim": None, "num_key_value_heads": 11}, "11 heads"),
        ({"hidden_size": -4096}, -4096),
        ({"num_hidden_layers": 10**9}, 10**9),
        ({"intermediate_size": 0}, 0),
        ({"vocab_size": "many"}, "many"),
        ({"num_key_value_heads": 2.5}, 2.5),
    ],
)
def test_contradictory_config_is_refused(name: str, change: dict[str, Any], value: object) -> None:
    config, prefix = PUBLISHED[name].config, ""
    if "text_config" in config:
        changed, prefix = {**config, "text_config": {**config["text_config"], **change}}, "text_config."
    else:
        changed = {**config, **change}
    key = "hidden_size" if "num_attention_heads" in change else next(iter(change))
    with refused(BadFile, "models/Mine/config.json", f"$.{prefix}{key}", value):
        converted(changed)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("/some/dir/My-Model/config.json", "My-Model"),
        ("/some/dir/mine.json", "mine"),
        ("hub/models--meta-llama--Llama-3.1-8B/snapshots/0123abc/config.json", "Llama-3.1-8B"),
    ],
)
def test_config_is_named_by_its_folder_or_file(where: str, name: str) -> None:
    config = json.dumps(PUBLISHED["phi-4"].config).encode()
    assert hugging_face_architectures.convert(config, where, planned=True).fields["name"] == name


def test_relative_config_is_named_by_the_working_folder(tmp_path, monkeypatch) -> None:
    (tmp_path / "My-Model").mkdir()
    monkeypatch.chdir(tmp_path / "My-Model")
    config = json.dumps(PUBLISHED["phi-4"].config).encode()
    assert hugging_face_architectures.convert(config, "config.json").fields["name"] == "My-Model"
