"""Model presets: the bundled files, their use in jobs, and Hugging Face config.json files."""

import json
import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import refused
from trainyard import job_file as jobs
from trainyard import limits
from trainyard.errors import BadFile, BadInput, BadJob, FileTooLarge, UnknownName
from trainyard.job_file import parse
from trainyard.model import Model
from trainyard.models import hugging_face_architectures, presets
from trainyard.workloads.ops.matrices import parameters

DECODERS = [name for name in presets.known() if presets.load(name).model is not None]
TRAINED = [name for name in DECODERS if "hybrid_pattern" not in (presets.load(name).model or {})]
"""Without hybrids, which can only be planned (test_plan_hybrids.py)."""
PUBLISHED = [name for name in TRAINED if presets.load(name).parameters is not None]
LENGTH = {"gpt2-xl": 1024, "gpt3-175b": 2048}
"""Number of positions of models with learned position embeddings."""
WITHOUT_EMBEDDING = ("gpt-oss-20b", "gpt-oss-120b")
"""Models whose published parameters of a token leave out the embedding."""
RECIPE = "[recipe]\nseq_len = 16\ntokens_per_step = 16\n"

# The published config.json of each model, with the keys of transformers.
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.40.0",
    "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 3584,
    "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
    "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": False,
    "use_cache": True, "use_mrope": False, "use_sliding_window": False, "vocab_size": 152064,
}  # fmt: skip
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288, "max_window_layers": 36,
    "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
GPT2 = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.0, "bos_token_id": 50256,
    "embd_pdrop": 0.0, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024,
    "resid_pdrop": 0.0, "summary_activation": None, "summary_first_dropout": 0.1, "summary_use_proj": True,
    "vocab_size": 50257,
}  # fmt: skip
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": True,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None,
    "tie_word_embeddings": False, "vocab_size": 32000,
}  # fmt: skip
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "auto_map": {},
    "aux_loss_alpha": 0.001, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
    "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"fmt": "e4m3"}, "rms_norm_eps": 1e-06, "rope_theta": 10000,
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True, "tie_word_embeddings": False,
    "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
CONFIGS = {
    "llama3-8b": LLAMA,
    "qwen2.5-7b": QWEN2,
    "qwen3-8b": QWEN3,
    "gpt2-xl": GPT2,
    "mixtral-8x7b": MIXTRAL,
    "deepseek-v3": DEEPSEEK,
}


def published(name, field="parameters"):
    claim = getattr(presets.load(name), field)
    return None if claim is None else claim.value


def decoder(name):
    return msgspec.convert(presets.load(name).model, Model)


def converted(config, *without):
    return hugging_face_architectures.model(json.dumps(config).encode(), "some/config.json", without)


def job_text(section):
    return f"[model]\n{section}\n{RECIPE}"


# The files


@pytest.mark.parametrize("name", presets.known())
def test_preset_has_a_source(name):
    preset = presets.load(name)
    assert preset.source
    assert (preset.model is None) != (preset.sizes is None)
    if preset.model is not None:
        assert decoder(name).name == name


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count_is_the_published_one(name):
    model = decoder(name)
    total = parameters(model, LENGTH.get(name, 0))
    of_a_token = msgspec.structs.replace(model, experts=model.top_k, n_group=1, topk_group=1)
    active = parameters(of_a_token, LENGTH.get(name, 0))
    if name in WITHOUT_EMBEDDING:
        active -= model.vocab * model.hidden_size
    assert total == pytest.approx(published(name), rel=3e-3)
    assert active == pytest.approx(published(name, "active") or total, rel=2e-2)


def test_expected_models_are_bundled():
    wanted = {"llama3-8b": 8.03e9, "llama3-70b": 70.6e9, "llama3-405b": 405e9, "qwen2.5-7b": 7.62e9, "gpt3-175b": 175e9}
    wanted |= {"mixtral-8x7b": 46.7e9, "deepseek-v3": 671e9}
    assert {name: published(name) for name in wanted} == wanted
    assert (published("mixtral-8x7b", "active"), published("deepseek-v3", "active")) == (12.9e9, 37e9)
    assert {"tiny", "tiny-moe", "tiny-mla", "qwen3-8b", "gpt2-xl"} <= set(DECODERS)


# Use in jobs


@pytest.mark.parametrize("name", DECODERS)
def test_job_takes_a_model_by_name(name):
    job = parse(job_text(f'from = "{name}"'), "job.toml")
    assert job.model == decoder(name)
    assert b"from" not in msgspec.json.encode(job.model)


def test_own_keys_override_the_preset():
    job = parse(job_text('from = "llama3-8b"\nlayers = 4\nname = "cut"'), "job.toml")
    assert job.model == msgspec.structs.replace(decoder("llama3-8b"), layers=4, name="cut")


def test_stored_job_is_self_contained(tmp_path):
    sizes = "layers = 1\nhidden_size = 8\nffn_hidden_size = 8\nheads = 1\nkv_heads = 1\nhead_dim = 8\n"
    (tmp_path / "mine.toml").write_text(f'[model]\nname = "é \\u007f \\"x\\""\n{sizes}', "utf-8")
    path = tmp_path / "job.toml"
    path.write_text(
        job_text('from = "mine.toml"\nnorm_eps = 1e-6') + "learning_rate = 1e-22\n[recovery]\nhang_timeout_s = inf\n"
    )
    job = jobs.load(path)
    kept = jobs.complete(path.read_text(), job)
    assert "from" not in tomllib.loads(kept)["model"]
    assert parse(kept, "elsewhere") == job
    plain = job_text(
        "\n".join(f"{key} = {json.dumps(value)}" for key, value in (presets.load("tiny").model or {}).items())
    )
    assert jobs.complete(plain, parse(plain, "job")) == plain, "comments and order of a complete job are unchanged"


@given(st.text(), st.floats(min_value=1e-300, max_value=1e300), st.sampled_from(DECODERS))
def test_job_survives_a_round_trip(name, rate, model):
    text = job_text(f"from = {json.dumps(model)}")
    job = parse(text, "job")
    job = msgspec.structs.replace(job, name=name, recipe=msgspec.structs.replace(job.recipe, learning_rate=rate))
    assert parse(jobs.write(job), "written") == job


@pytest.mark.parametrize(
    ("section", "kind", "values"),
    [
        ('from = "lama3-8b"', BadJob, ["job.toml", "$.model.from", "lama3-8b", "llama3-8b"]),
        ("from = 3", BadJob, ["job.toml", "$.model.from", 3]),
        ('from = "tiny"\nheeds = 3', BadJob, ["job.toml", "$.model", "heeds", "heads"]),
        ('from = "tiny"\nkv_heads = 3', BadJob, ["job.toml", "$.model", "heads 4 % kv_heads 3"]),
        ('from = "tiny"\nwithout = 1', BadJob, ["job.toml", "$.model.without", 1]),
        ('from = "tiny"\nwithout = ["dropout"]', BadFile, ["tiny.toml", "without = ['dropout']", "config.json"]),
        ('from = "mine.toml"', BadJob, ["mine.toml", "$.model", "hiden_size", "hidden_size"]),
        ('from = "sizes.toml"', BadFile, ["sizes.toml", "[model]", "[sizes]"]),
        ('from = "odd.toml"', BadFile, ["odd.toml", "modle"]),
        ('from = "broken.toml"', BadFile, ["broken.toml", "0xff"]),
        ('from = "deep.toml"', BadFile, ["deep.toml"]),
        ('from = "large.json"', FileTooLarge, ["large.json", "1,048,576 bytes"]),
        ('from = "folder"', BadJob, ["$.model.from", "folder"]),
        ('from = ""', BadJob, ["$.model.from", "''"]),
        ('from = "a\\u0000b"', BadJob, ["$.model.from", r"a\x00b"]),
        (f'from = "{"x" * 5000}"', BadJob, ["$.model.from", "x" * 100]),
        ('without = ["a"]', BadJob, ["job.toml", "$.model", "without"]),
    ],
)  # fmt: skip
def test_invalid_preset_is_reported_with_file_and_key(section, kind, values, tmp_path):
    (tmp_path / "mine.toml").write_text("[model]\nlayers = 1\nhiden_size = 8\n")
    (tmp_path / "sizes.toml").write_text('workload = "vision"\n[sizes]\nfamily = "resnet"\n')
    (tmp_path / "odd.toml").write_text("[modle]\nlayers = 1\n")
    (tmp_path / "broken.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    (tmp_path / "large.json").write_bytes(b" " * (presets.MAX_FILE_BYTES + 1))
    (tmp_path / "folder").mkdir()
    with refused(kind, *values):
        parse(job_text(section), "job.toml", tmp_path)


def test_preset_of_sizes_sets_the_workload(tmp_path):
    (tmp_path / "net.toml").write_text('workload = "vision"\n[sizes]\nfamily = "resnet"\ndepths = [3, 4]\n')
    text = f'[sizes]\nfrom = "net.toml"\nclasses = 10\n{RECIPE}'
    job = parse(text, "job.toml", tmp_path)
    assert job.sizes == {"family": "resnet", "depths": [3, 4], "classes": 10}
    assert job.workload == "vision"
    assert parse(jobs.complete(text, job), "kept") == job
    with refused(BadJob, "job.toml", "$.workload", "diffusion", "net.toml", "vision"):
        parse(f'workload = "diffusion"\n{text}', "job.toml", tmp_path)


def test_unknown_model_name():
    with refused(UnknownName, "mixtral-8x7", "mixtral-8x7b"):
        presets.load("mixtral-8x7")


# Hugging Face


@pytest.mark.parametrize("name", CONFIGS)
def test_config_gives_the_model_dimensions(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    job = parse(job_text(f'from = "config.json"\nname = "{name}"'), "job.toml", tmp_path)
    assert job.model == decoder(name)


def test_config_is_named_by_its_key_or_folder(tmp_path):
    assert converted({**LLAMA, "_name_or_path": "/home/x/my-llama"})["name"] == "my-llama"
    assert converted(LLAMA)["name"] == "some"


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("key", ["rope_scaling", "residual_multiplier", "attention_chunk_size"])
def test_unmodelled_key_is_refused_unless_left_out(name, key):
    config = {**CONFIGS[name], key: {"rope_type": "yarn", "factor": 40}}
    with refused(BadFile, "some/config.json", key, f'without = ["{key}"]'):
        converted(config)
    left_out = converted(config, key)
    assert left_out.pop("name") == f"some without {key}", "the stored name lists the keys left out"
    unchanged = converted(CONFIGS[name])
    unchanged.pop("name")
    assert left_out == unchanged
    with refused(BadFile, "some/config.json", f"without = {key!r}"):
        converted(CONFIGS[name], key)


@pytest.mark.parametrize(
    ("config", "change", "value"),
    [
        (LLAMA, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'llama3'"),
        (LLAMA, {"hidden_act": "gelu"}, "'gelu'"),
        (LLAMA, {"attention_dropout": 0.1}, 0.1),
        (LLAMA, {"attention_bias": True}, "matrices"),
        (LLAMA, {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "'yarn'"),
        (QWEN2, {"use_sliding_window": True}, True),
        (QWEN2, {"layer_types": ["sliding_attention"] * 28}, "['sliding_attention'"),
        (QWEN3, {"attention_bias": True}, True),
        (MIXTRAL, {"sliding_window": 4096}, 4096),
        (MIXTRAL, {"router_jitter_noise": 0.1}, 0.1),
        (DEEPSEEK, {"num_nextn_predict_layers": 1}, 1),
        (DEEPSEEK, {"scoring_func": "softmax"}, "'softmax'"),
        (DEEPSEEK, {"num_key_value_heads": 8}, 8),
        (GPT2, {"attn_pdrop": None}, 0.1),
        (GPT2, {"activation_function": "relu"}, "'relu'"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, True),
    ],
)
def test_refusal_names_key_and_value(config, change, value):
    with refused(BadFile, "some/config.json", f'without = ["{next(iter(change))}"]', value):
        converted({**config, **change})


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("PhiForCausalLM", ""),
        ("GemmaForCausalLM", ""),
        ("Qwen2MoeForCausalLM", ""),
        ("DeepseekV2ForCausalLM", ""),
        ("MinistralForCausalLM", ""),
        ("NemotronForCausalLM", ""),
        ("LlamaForCausaLM", "LlamaForCausalLM"),
        ("Qwen3MoEForCausalLM", "Qwen3MoeForCausalLM"),
        ("MixtrallForCausalLM", "MixtralForCausalLM"),
    ],
)
def test_only_misspelt_architectures_have_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(BadFile) as caught:
        converted({**LLAMA, "architectures": [name]})
    assert caught.value.next_step.startswith(f"Did you mean {suggestion!r}?" if suggestion else "Known: ")


def test_plan_leaves_out_keys_that_do_not_affect_cost():
    """Such keys are listed, as are parts that are predicted differently; other keys are refused."""
    odd = {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "attention_dropout": 0.1, "a_new_key": 3}
    config = hugging_face_architectures.convert(json.dumps({**LLAMA, **odd}).encode(), "some/config.json", planned=True)
    assert config.fields == converted(LLAMA)
    assert (set(config.ignored), config.unknown) == (set(odd) - {"a_new_key"}, ("a_new_key",))
    qwen = json.dumps({**CONFIGS["qwen3-8b"], "use_sliding_window": True}).encode()
    assert any(
        "use_sliding_window = True" in text
        for text in hugging_face_architectures.convert(qwen, "some/config.json", planned=True).approximated
    )
    gelu = json.dumps({**LLAMA, "hidden_act": "gelu"}).encode()
    with refused(BadFile, "some/config.json", "hidden_act", 'without = ["hidden_act"]'):
        hugging_face_architectures.model(gelu, "some/config.json", planned=True)


def test_rope_parameters_of_new_configs():
    config = {key: value for key, value in LLAMA.items() if key not in ("rope_theta", "rope_scaling")}
    assert converted({**config, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}) == converted(LLAMA)


def test_unknown_architecture_is_refused():
    with refused(BadFile, "$.architectures", "LlamaForCausaLM", "LlamaForCausalLM"):
        converted({**LLAMA, "architectures": ["LlamaForCausaLM"]})
    with refused(BadFile, "$.architectures", "GPT2LMHeadModel"):
        converted({"hidden_size": 8})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_mutated_config_is_refused_or_valid(name, data):
    config = dict(CONFIGS[name])
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), max_size=3)):
        config[key] = data.draw(ANYTHING)
    try:
        keys = converted(config)
        msgspec.convert(keys, Model)
    except (BadInput, msgspec.ValidationError):
        return
    assert keys["layers"] <= limits.LAYERS.most


@given(st.binary())
def test_arbitrary_bytes_are_refused(data):
    with refused(BadFile, "config.json"):
        hugging_face_architectures.model(data, "config.json")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": ' + "[" * 100_000, "nested"),
        ('{"layers": 1, "layers": 2}', "'layers'"),
        ('{"layers": 1' + "0" * 5000 + "}", "5,001 digits"),
    ],
)
def test_the_reason_for_which_json_is_refused_is_named(text, value):
    with refused(BadFile, "config.json", value):
        hugging_face_architectures.model(text.encode(), "config.json")


def test_context_of_a_config():
    for key, config in (("max_position_embeddings", LLAMA), ("n_positions", GPT2)):
        data = json.dumps({**config, key: 123}).encode()
        tokens, source = hugging_face_architectures.convert(data, "config.json", planned=True).context
        assert (tokens, source) == (123, f"{key} in config.json")
        with refused(BadFile, f"$.{key}", "'8k'"):
            converted({**config, key: "8k"})


def test_contexts_of_presets_are_powers_of_two():
    contexts = [presets.load(name).context for name in presets.known()]
    assert sum(context is not None for context in contexts) > 15
    for context in filter(None, contexts):
        assert context.unit == "tokens"
        assert int(context.value).bit_count() == 1


@pytest.mark.parametrize(("name", "similar"), [("LamaForCausalLM", "LlamaForCausalLM"), ("FooForCausalLM", "")])
def test_suggested_architectures_are_of_a_similar_family(name: str, similar: str) -> None:
    with pytest.raises(BadFile) as caught:
        hugging_face_architectures.model(json.dumps({"architectures": [name]}).encode(), "some/config.json")
    listed = [known for known in ("LlamaForCausalLM", "Olmo2ForCausalLM") if known in caught.value.next_step]
    assert listed == ([similar] if similar else ["LlamaForCausalLM", "Olmo2ForCausalLM"])
