"""The model at the end of a task, on disk: whole, or only its adapters."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from mixer.utils.errors import InvalidValueError
from mixer.utils.files import read_json, write_json
from tasks.methods.adapters import activate, are_wide, is_adapted
from tasks.methods.shared import trainable

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel

_WHOLE, _ADAPTERS, _STATE_FILE = "model.safetensors", "adapters", "adapters.json"
_FIRST = "default"  # PEFT writes the adapter of this name into the folder itself
_MOST_VALUES = 64  # of each frozen tensor in the fingerprint
_OF_FILES = frozenset({"inference_mode", "base_model_name_or_path", "revision", "auto_mapping", "peft_version"})


class ModelFile:
    """Saves and loads the model of a continual run.

    Of a model with adapters (`get_peft_model`) only the adapters are saved, all of them, in the form of
    `PeftModel.save_pretrained`. The frozen model below must be the same when the run resumes; it is recognised by some
    values of each tensor.

    Args:
        model: The model.

    Raises:
        ValueError: If it has adapters, but also trains parameters that belong to none.
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._base = ""
        if is_adapted(model):
            _check_trained(model)
            self._base = _fingerprint(model)

    def save(self, folder: Path) -> None:
        """Writes the model.

        Args:
            folder: The folder, which exists.

        Raises:
            ValueError: If the model below the adapters has changed.
        """
        model = self._model
        if not is_adapted(model):
            save_model(model, str(folder / _WHOLE))
            return
        if _fingerprint(model) != self._base:
            raise InvalidValueError(
                "Only adapters are saved, but a method has changed the model below them.", option="methods"
            )
        trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        model.save_pretrained(str(folder / _ADAPTERS), save_embedding_layers=False)
        state = {"adapters": list(model.peft_config), "active": list(model.active_adapters), "trained": trained}
        write_json(folder / _STATE_FILE, {**state, "base": self._base})

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote; adapters that the model lacks are added.

        Args:
            folder: The folder.

        Raises:
            ValueError: If the model has adapters and the saved one has none or others, or the reverse.
        """
        model, has_adapters = self._model, (folder / _STATE_FILE).exists()
        if has_adapters != is_adapted(model):
            were, are = ("adapters" if is_true else "no adapters" for is_true in (has_adapters, not has_adapters))
            raise InvalidValueError.about("model", f"has {are}, but that of {folder.parent} has {were}.")
        if not is_adapted(model):
            try:
                load_model(model, folder / _WHOLE)
            except RuntimeError as error:
                reason = " ".join(str(error).split())
                raise ValueError(
                    f"model: its parameters are not those of the run in {folder.parent}; give the model that the run "
                    f"began with ({reason})."
                ) from None
            return
        state = read_json(folder / _STATE_FILE)
        if state["base"] != self._base:
            raise InvalidValueError.about(
                "model", f"must be, below its adapters, the pretrained model of the run in {folder.parent}."
            )
        for name in set(model.peft_config) - set(state["adapters"]):
            model.delete_adapter(name)
        for name in state["adapters"]:
            _load_adapter(model, folder / _ADAPTERS, name)
        activate(model, state["active"], [model.get_parameter(name) for name in state["trained"]])


def _load_adapter(model: PeftModel, folder: Path, name: str) -> None:
    path = folder if name == _FIRST else folder / name
    if name in model.peft_config:
        from peft import PeftConfig

        saved = _settings(PeftConfig.from_pretrained(str(path)))
        own = _settings(model.peft_config[name])
        if different := sorted(key for key in own if saved.get(key) != own[key]):
            changes = "; ".join(f"{key} {saved.get(key)} -> {own[key]}" for key in different)
            raise InvalidValueError.about("model", f"has an adapter {name!r} with other settings: {changes}.")
    casts = name not in model.peft_config and are_wide(model)  # one that is there keeps its type
    model.load_adapter(str(path), name, is_trainable=True, torch_device="cpu", autocast_adapter_dtype=casts)


def _settings(config: PeftConfig) -> dict[str, Any]:
    """Returns what makes an adapter another one, as plain data."""
    entries = {key: value for key, value in config.to_dict().items() if key not in _OF_FILES}
    return {key: sorted(value) if isinstance(value, (set, list)) else value for key, value in entries.items()}


def _of_adapters(model: PeftModel) -> set[int]:
    """Returns the ids of the parameters that `save_pretrained` writes, of any adapter."""
    from peft import get_peft_model_state_dict

    places = {
        tensor.data_ptr()
        for name in model.peft_config
        for tensor in get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False).values()
    }
    return {id(parameter) for parameter in model.parameters() if parameter.data_ptr() in places}


def _check_trained(model: PeftModel) -> None:
    own = _of_adapters(model)
    if others := [name for name, parameter in trainable(model).items() if id(parameter) not in own]:
        raise InvalidValueError.about(
            "modules_to_save", f"must name the module of {others[:3]}, which train but belong to no adapter."
        )


def _fingerprint(model: PeftModel) -> str:
    """Returns a digest of some evenly spread values of each tensor that belongs to no adapter."""
    own, digest = _of_adapters(model), hashlib.sha256()
    with torch.no_grad():
        for parameter in model.parameters():  # new adapters may change names, but not the order
            if id(parameter) not in own:
                digest.update(str(list(parameter.shape)).encode())
                digest.update(_sample(parameter).numpy().tobytes())
    return digest.hexdigest()


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: max(len(flat) // _MOST_VALUES, 1)].to("cpu", torch.float64)
