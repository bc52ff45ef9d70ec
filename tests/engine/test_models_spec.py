"""From config.json to spec: detection of the family, sizes, and what is refused with which words."""

import json
import math
from typing import Any

import pytest

from mambad.engine.errors import LoadError
from mambad.engine.models.registry import build_spec
from mambad.engine.models.spec import AttentionSpec, Mamba1Spec, Mamba2Spec, ModelSpec

MAMBA: dict[str, Any] = {
    "architectures": ["MambaForCausalLM"],
    "model_type": "mamba",
    "hidden_size": 768,
    "num_hidden_layers": 24,
    "vocab_size": 50280,
    "state_size": 16,
    "time_step_rank": 48,
}
MAMBA2: dict[str, Any] = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "hidden_size": 4096,
    "num_hidden_layers": 64,
    "vocab_size": 32768,
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
    "norm_before_gate": True,
    "time_step_min": 0.001,
}
GRANITE: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "model_type": "granitemoehybrid",
    "hidden_size": 1536,
    "num_hidden_layers": 40,
    "vocab_size": 100352,
    "layer_types": ["attention" if index in (5, 15, 25, 35) else "mamba" for index in range(40)],
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "num_local_experts": 0,
    "shared_intermediate_size": 4096,
    "mamba_n_heads": 48,
    "mamba_d_head": "auto",
    "mamba_d_state": 128,
    "position_embedding_type": "nope",
    "max_position_embeddings": 131072,
    "attention_multiplier": 0.0078125,
}
ORIGINAL_MAMBA: dict[str, Any] = {
    "d_model": 768,
    "n_layer": 24,
    "vocab_size": 50277,
    "ssm_cfg": {},
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 8,
}
ORIGINAL_MAMBA2: dict[str, Any] = ORIGINAL_MAMBA | {
    "ssm_cfg": {"layer": "Mamba2"},
    "attn_layer_idx": [],
    "attn_cfg": {},
    "d_intermediate": 0,
    "pad_vocab_size_multiple": 16,
    "tie_embeddings": True,
}
MIB = 1 << 20


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def first_mixer(spec: ModelSpec) -> Any:
    return spec.layers[0].mixer


@pytest.mark.parametrize("missing", [(), ("architectures",), ("model_type",)])
@pytest.mark.parametrize("config", [MAMBA, MAMBA2, GRANITE], ids=lambda config: config["model_type"])
def test_either_name_of_a_family_is_enough(config: dict[str, Any], missing: tuple[str, ...]) -> None:
    assert build_spec(without(config, *missing)).family == config["model_type"]


@pytest.mark.parametrize(("config", "family"), [(ORIGINAL_MAMBA, "mamba"), (ORIGINAL_MAMBA2, "mamba2")])
def test_original_layout_is_detected_by_its_keys(config: dict[str, Any], family: str) -> None:
    assert build_spec(config).family == family


def test_hugging_face_config_that_keeps_original_keys_is_read_in_hugging_face_words() -> None:
    spec = build_spec(MAMBA | {"d_model": 1, "n_layer": 1, "ssm_cfg": {}})
    assert (spec.hidden_size, len(spec.layers), spec.vocab_size) == (768, 24, 50280)


def test_model_type_decides_when_the_class_is_that_of_another_family() -> None:
    assert build_spec(MAMBA2 | {"architectures": ["MambaForCausalLM"]}).family == "mamba2"


def test_sizes_of_mamba_130m_in_both_layouts() -> None:
    spec, original = build_spec(MAMBA), build_spec(ORIGINAL_MAMBA)
    assert first_mixer(spec) == first_mixer(original) == Mamba1Spec(1536, 16, 4, 48, True, False)
    assert spec.layers == original.layers
    assert spec.slot_bytes() == 24 * 1536 * (16 + 3) * 4
    assert (original.vocab_size, original.real_vocab_size, original.tied) == (50280, 50277, True)
    assert original.eos_token_ids == (0,)


def test_sizes_of_mamba2_130m() -> None:
    spec = build_spec(ORIGINAL_MAMBA2)
    mixer = first_mixer(spec)
    assert mixer == Mamba2Spec(24, 64, 128, 1, 4, (0.0, math.inf), 1e-5, True, False)
    assert mixer.proj_size == 2 * 1536 + 2 * 128 + 24
    assert sum(state.num_bytes for state in mixer.state_specs() if state.name == "ssm") * 24 == 18 * MIB
    assert (spec.vocab_size, spec.real_vocab_size) == (50288, 50277)


def test_sizes_of_codestral() -> None:
    spec = build_spec(MAMBA2)
    mixer = first_mixer(spec)
    assert mixer.proj_size == 18560
    assert sum(layer.mixer.state_specs()[1].num_bytes for layer in spec.layers) == 256 * MIB
    assert not spec.tied


def test_sizes_of_granite_h_1b() -> None:
    spec = build_spec(GRANITE)
    assert list(spec.attention_layers()) == [5, 15, 25, 35]
    assert spec.layers[5].mixer == AttentionSpec(12, 4, 128, 0.0078125, False)
    assert spec.slot_bytes() == 36 * (48 * 64 * 128 + 3 * (3072 + 256)) * 4
    assert spec.block_bytes(16) == 4 * 2 * 16 * 4 * 128 * 4
    assert spec.max_model_len == 131072


def test_a_bfloat16_ssm_state_takes_half_and_conv_states_stay_float32() -> None:
    spec = build_spec(GRANITE).with_ssm_dtype("bfloat16")
    assert spec.slot_bytes() == 36 * (48 * 64 * 128 * 2 + 3 * (3072 + 256) * 4)
    assert build_spec(MAMBA).with_ssm_dtype("bfloat16").slot_bytes() == 24 * 1536 * (16 * 2 + 3 * 4)
    assert spec.with_ssm_dtype("float32") == build_spec(GRANITE)


def test_layer_words_of_both_generations_mean_the_same() -> None:
    new_words = {"mamba": "linear_attention", "attention": "full_attention"}
    renamed = [new_words[word] for word in GRANITE["layer_types"]]
    assert build_spec(GRANITE | {"layer_types": renamed}) == build_spec(GRANITE)


@pytest.mark.parametrize(
    "written",
    ["[0.0, Infinity]", '[0.0, {"__float__": "Infinity"}]', "[0.0, null]", '[0.0, "inf"]', "null"],
)
def test_every_way_to_write_no_limit_is_read(written: str) -> None:
    config = json.loads(json.dumps(MAMBA2)[:-1] + f', "time_step_limit": {written}}}')
    assert first_mixer(build_spec(config)).dt_limit == (0.0, math.inf)


def test_finite_limits_are_kept_and_initialisation_values_ignored() -> None:
    config = MAMBA2 | {"time_step_limit": [0.01, 0.5], "time_step_min": 0.2, "time_step_floor": 0.3}
    assert first_mixer(build_spec(config)).dt_limit == (0.01, 0.5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "names neither architectures nor model_type; supported: MambaForCausalLM"),
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM is not supported; supported: Mamba"),
        (
            MAMBA | {"architectures": ["MambaForSequenceClassification"]},
            "MambaForSequenceClassification is not",
        ),
        ({"model_type": "falcon_mamba"}, "'falcon_mamba' is not supported"),
        (MAMBA | {"quantization_config": {"quant_method": "gptq"}}, r"quantised checkpoints \(gptq\)"),
        (MAMBA | {"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
        (MAMBA | {"vocab_size": "many"}, "vocab_size is 'many', expected a whole number"),
        (MAMBA | {"vocab_size": math.inf}, "vocab_size is inf, expected a whole number"),
        (MAMBA | {"num_hidden_layers": 0}, "num_hidden_layers is 0, expected at least 1"),
        (MAMBA | {"conv_kernel": 1}, "conv_kernel is 1, expected at least 2"),
        (MAMBA | {"use_bias": "no"}, "use_bias is 'no', expected true or false"),
        (MAMBA | {"layer_norm_epsilon": 0}, "layer_norm_epsilon is 0.0, expected a number above 0"),
        (without(MAMBA2, "n_groups"), "config.json lacks n_groups"),
        (MAMBA2 | {"n_groups": 3}, "128 Mamba-2 heads can't be divided among 3 groups"),
        (MAMBA2 | {"time_step_limit": [1.0, 0.5]}, "time_step_limit is .* expected .lowest, highest."),
        (MAMBA2 | {"time_step_limit": "none"}, "time_step_limit is 'none'"),
        (
            GRANITE | {"num_local_experts": 32},
            "num_local_experts=32 is not supported: only .* without experts",
        ),
        (without(GRANITE, "num_local_experts"), "config.json lacks num_local_experts"),
        (GRANITE | {"position_embedding_type": "rope"}, "='rope' is not supported: rotary positions"),
        (GRANITE | {"num_hidden_layers": 39}, "layer_types must list one word for each of the 39 layers"),
        (GRANITE | {"layer_types": ["mamba"] * 39 + ["moe"]}, "layer_types holds 'moe'"),
        (GRANITE | {"num_key_value_heads": 5}, "12 query heads can't share 5"),
        (GRANITE | {"num_attention_heads": 11, "num_key_value_heads": 1}, "no multiple of 11 heads"),
        (GRANITE | {"mamba_d_head": 32}, "mamba_n_heads . mamba_d_head = 1536, but"),
        (ORIGINAL_MAMBA | {"ssm_cfg": {"layer": "Mamba3"}}, "ssm_cfg.layer='Mamba3' is not supported"),
        (ORIGINAL_MAMBA | {"ssm_cfg": {"gate": 1}}, "keys that are not supported: gate"),
        (ORIGINAL_MAMBA | {"rms_norm": False}, "rms_norm=False is not supported"),
        (ORIGINAL_MAMBA2 | {"attn_layer_idx": [9, 18]}, "attention layers are not implemented here"),
        (ORIGINAL_MAMBA2 | {"d_intermediate": 64}, "mlp layers are not implemented here"),
        (ORIGINAL_MAMBA2 | {"ssm_cfg": {"layer": "Mamba2", "d_ssm": 64}}, "an mlp beside the ssm"),
        (
            ORIGINAL_MAMBA2 | {"ssm_cfg": {"layer": "Mamba2", "headdim": 100}},
            "no multiple of ssm_cfg.headdim",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message) as caught:
        build_spec(config)
    assert "\n" not in str(caught.value)
