"""Weights after loading are those before saving, to the bit, also where the files have other names for them."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from mixer import MixingTrainer
from mixer.checkpoint.checkpoint_files import complete
from mixer.checkpoint.load_weights import loaded_whole
from tests.helpers import Tokens, weights_of
from tests.mixer.trainer.runs import train
from tests.ranks.warm import some
from tests.refusals import refused

SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "embed_dim", "moe_intermediate_size", "projection_dim"), 16),
    **dict.fromkeys(("shared_expert_intermediate_size", "out_hidden_size"), 16),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "mlp_dim", "image_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "encoder_layers", "decoder_layers", "depth"), 2),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "num_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("patch_size", "head_dim", "q_lora_rank", "kv_lora_rank", "v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **dict.fromkeys(("vocab_size", "max_position_embeddings"), 64),
    **dict.fromkeys(("n_group", "topk_group"), 1),
}
MOST_PARAMETERS = 1_000_000
# One of each kind of conversion, and those that people train most; an eighth of the others in `full`.
OFTEN = ("vit", "clip_vision_model", "swin", "mixtral", "qwen3_moe", "deepseek_v3", "llava", "gemma3", "jamba")


def shrunk(config: Any) -> Any:
    """Makes a configuration tiny, with those in it."""
    for inner in [value for value in vars(config).values() if isinstance(value, PreTrainedConfig)]:
        shrunk(inner)
    for name, size in SMALL.items():
        if type(getattr(config, name, None)) is int:
            setattr(config, name, size)
    for name, value in list(vars(config).items()):
        if name in ("layer_types", "mlp_layer_types") and isinstance(value, list):
            setattr(config, name, value[:2])
        if name.endswith("token_id") and type(value) is int and value >= SMALL["vocab_size"]:
            setattr(config, name, 3)
    return config


def with_values(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape, generator=generator))
    return model


def saved(name: str, folder: Path) -> PreTrainedModel | None:
    """Saves a tiny model of a type; `None` if its sizes have other rules, or its saved names do not differ."""
    try:
        config = shrunk(CONFIG_MAPPING[name]())
        kind = MODEL_MAPPING[type(config)]
        kind = kind[0] if isinstance(kind, tuple) else kind
        with torch.device("meta"):
            model = kind(copy.deepcopy(config))
        if not get_model_conversion_mapping(model, add_legacy=False) or model.num_parameters() > MOST_PARAMETERS:
            return None
        model = with_values(kind(config), 1)
        model.save_pretrained(folder)
    except Exception:  # whatever transformers says of sizes that do not go together; the tests count the others
        return None
    return model


def lost(name: str, folder: Path) -> list[str] | None:
    """Names the weights that saving and loading a type lose; `None` if there is no tiny model of it."""
    if (model := saved(name, folder)) is None:
        return None
    other = with_values(copy.deepcopy(model), 2)
    parameters = dict(other.named_parameters())
    result = other.load_state_dict(load_file(folder / SAFE_WEIGHTS_NAME), strict=False)
    assert not any(loaded_whole(other, result, folder)), name
    assert all(parameters[own] is parameter for own, parameter in other.named_parameters())
    state = other.state_dict()
    return [key for key, value in model.state_dict().items() if not torch.equal(value, state[key])]


def assert_none_lost(names: Any, folder: Path, at_least: int) -> None:
    found = {name: lost(name, folder / name) for name in names}
    built = {name: keys for name, keys in found.items() if keys is not None}
    assert not {name: keys for name, keys in built.items() if keys}
    assert len(built) >= at_least, sorted(found.keys() - built.keys())


def test_types_that_are_often_trained_lose_nothing(tmp_path: Path) -> None:
    assert_none_lost(OFTEN, tmp_path, 9)


@pytest.mark.full
def test_no_eighth_type_of_the_mapping_loses_a_weight(tmp_path: Path) -> None:
    assert_none_lost([name for name in CONFIG_MAPPING if name not in OFTEN][::8], tmp_path, 10)


# ---- The trainer: resuming, the best model, and refusals ----

IMAGES = [
    {"pixel_values": torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(n)), "labels": n % 3}
    for n in range(20)
]


def vit(**changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=3, **{**sizes, **changes})
    return transformers.ViTForImageClassification(config)


def moe(kind: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = shrunk(CONFIG_MAPPING[kind](pad_token_id=0))
    return transformers.AutoModelForCausalLM.from_config(config)


MODELS: dict[str, tuple[Any, Any]] = {
    "vit": (vit, IMAGES),
    "mixtral": (lambda: moe("mixtral"), Tokens(20, 1)),
    "qwen3_moe": (lambda: moe("qwen3_moe"), Tokens(20, 1)),
}


def run(folder: Path, model: Any, data: Any, resume: Any = None, **changes: Any) -> MixingTrainer:
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "learning_rate": 0.05, **changes}
    options |= {"per_device_train_batch_size": 4, "train_dataset": data, "eval_dataset": data}
    return train(folder, model, resume, **options)


@pytest.fixture(scope="module", params=some(MODELS, ("mixtral",)))
def trained(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path, torch.Tensor]:
    build, data = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return build, data, folder, weights_of(run(folder, build(), data).model)


def test_a_resumed_run_ends_with_the_same_weights(trained: Any) -> None:
    build, data, folder, weights = trained
    assert torch.equal(weights_of(run(folder, build(), data, folder / "checkpoint-2").model), weights)


def test_sharded_weights_are_loaded_whole(trained: Any) -> None:
    build, data, folder, weights = trained
    checkpoint = folder / "checkpoint-3"
    state = load_file(checkpoint / SAFE_WEIGHTS_NAME)
    place = {name: f"model-0000{number % 2 + 1}-of-00002.safetensors" for number, name in enumerate(state)}
    for file in set(place.values()):
        save_file({name: state[name] for name in state if place[name] == file}, checkpoint / file, {"format": "pt"})
    (checkpoint / SAFE_WEIGHTS_INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": place}))
    (checkpoint / SAFE_WEIGHTS_NAME).unlink()
    complete(checkpoint)
    resumed = run(folder, build(), data, checkpoint)
    assert torch.equal(weights_of(resumed.model), weights)


def test_the_best_model_is_the_one_that_was_saved(tmp_path: Path) -> None:
    best = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "learning_rate": 3.0}
    trainer = run(tmp_path, vit(), IMAGES, **best)
    assert trainer.state.best_global_step < 4  # the last one has other weights
    expected = transformers.ViTForImageClassification.from_pretrained(str(trainer.state.best_model_checkpoint))
    assert torch.equal(weights_of(trainer.model), weights_of(expected))


def test_another_model_is_refused_unless_that_is_wanted(tmp_path: Path) -> None:
    run(tmp_path, vit(), IMAGES, max_steps=2)
    deeper = vit(num_hidden_layers=3)
    with refused("resume_from_checkpoint"):
        run(tmp_path, deeper, IMAGES, tmp_path / "checkpoint-2")
    shallow = vit(num_hidden_layers=1)
    with refused("resume_from_checkpoint"):
        run(tmp_path, shallow, IMAGES, tmp_path / "checkpoint-2")


def test_an_adapter_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")

    def adapted() -> Any:
        return peft.get_peft_model(vit(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))

    weights = weights_of(run(tmp_path, adapted(), IMAGES).model)
    assert torch.equal(weights_of(run(tmp_path, adapted(), IMAGES, tmp_path / "checkpoint-2").model), weights)
    file = tmp_path / "checkpoint-3" / "adapter_model.safetensors"
    state = load_file(file)
    save_file({name: value for name, value in state.items() if "layers.1" not in name}, file, {"format": "pt"})
    complete(file.parent)
    with refused("resume_from_checkpoint"):
        run(tmp_path, adapted(), IMAGES, file.parent)
