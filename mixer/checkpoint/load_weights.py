"""Weights of a checkpoint, all of which have to arrive, whatever names they were saved under."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig, load_state_dict
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME

from mixer.run.hf_compat import without_ignored_weights
from mixer.run.replaced_methods import replaced
from mixer.utils.errors import InvalidValueError
from mixer.utils.text import shortened

_MOST_CHARACTERS = 300  # of the names in an error


def loaded_whole(model: nn.Module, result: Any, checkpoint: Path, allow_inexact: bool = False) -> Any:
    """Loads a checkpoint's weights with the model's conversions if loading them by name has left some out.

    `save_pretrained` writes the weights of many models under other names than at run time, in transformers 5.23 the
    Trainer loads them by name.

    Args:
        model: The model, into which the Trainer has loaded the weights by name.
        result: What that has returned.
        checkpoint: The checkpoint's folder.
        allow_inexact: Whether weights may be left out.

    Returns:
        The weights that are still missing, and those that the model has no place for.

    Raises:
        ValueError: If there are any, unless that is allowed.
    """
    left = _left_out(model, result)
    if isinstance(model, PreTrainedModel) and any(left):
        # Those that `from_pretrained` has used, which `save_pretrained` reverts; the second for models built otherwise.
        for conversions in (getattr(model, "_weight_conversions", None), get_model_conversion_mapping(model)):
            if conversions and any(left):
                left = _left_out(model, _load_converted(model, _read_weights(checkpoint), conversions))
    _refuse(model, left, checkpoint, allow_inexact)
    return left


@contextlib.contextmanager
def adapters_checked(model: Any, allow_inexact: bool) -> Iterator[None]:
    """Checks what PEFT returns of weights that an adapter's file lacks, and keeps the types of adapters that are there.

    The Trainer does not look at the former, and PEFT would turn adapters of half precision into single precision.

    Args:
        model: The model; nothing is checked unless it is PEFT's.
        allow_inexact: Whether weights may be left out.

    Raises:
        ValueError: If some are, unless that is allowed.
    """
    if isinstance(model, PreTrainedModel) or not hasattr(model, "load_adapter"):
        yield
        return
    load = model.load_adapter

    def load_and_check(folder: str, name: str, *args: Any, **kwargs: Any) -> Any:
        result = load(folder, name, *args, **{"autocast_adapter_dtype": name not in model.peft_config, **kwargs})
        _refuse(model, _IncompatibleKeys(result.missing_keys, []), folder, allow_inexact)
        return result

    with replaced(model, load_adapter=load_and_check):
        yield


def _refuse(model: nn.Module, left: Any, checkpoint: Path | str, allow_inexact: bool) -> None:
    """Refuses a checkpoint whose weights do not fit the model."""
    if allow_inexact or not any(left):
        return
    lists = {"it lacks": left.missing_keys, "the model has no place for": left.unexpected_keys}
    found = " and ".join(
        f"{what} {len(names)} ({shortened(', '.join(sorted(names)), _MOST_CHARACTERS)})"
        for what, names in lists.items()
        if names
    )
    raise InvalidValueError(
        f"{checkpoint}: its weights do not fit {type(model).__name__}: {found}. Build the model as in the run that "
        f"saved them. With allow_inexact=True missing weights stay as the script has built them.",
        option="resume_from_checkpoint",
    )


def _left_out(model: nn.Module, result: Any) -> Any:
    """Returns the missing and unexpected names of a loading but for those that are tied, or not saved on purpose."""
    state, missing = model.state_dict(), set(result.missing_keys)
    loaded = {_place(tensor) for name, tensor in state.items() if name not in missing}
    missing = {name for name in missing if name not in state or _place(state[name]) not in loaded}
    names = SimpleNamespace(missing_keys=missing, unexpected_keys=set(result.unexpected_keys))
    if isinstance(model, PreTrainedModel):
        without_ignored_weights(model, names)
    return _IncompatibleKeys(sorted(names.missing_keys), sorted(names.unexpected_keys))


def _place(tensor: Any) -> Any:
    """Returns where a tensor lies in memory, the same for tied weights."""
    return (tensor.data_ptr(), tensor.shape) if isinstance(tensor, Tensor) and tensor.numel() else None


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Reads all weights of a folder, under the names there."""
    weights: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        weights |= load_state_dict(str(folder / file))
    return weights


def _weight_files(folder: Path) -> Iterable[str]:
    """Returns the files of weights that the Trainer loads: one, or those of an index."""
    for file in (SAFE_WEIGHTS_NAME, WEIGHTS_NAME):
        if (folder / file).is_file():
            return (file,)
    index = next(name for name in (SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME) if (folder / name).is_file())
    return set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values())


def _load_converted(model: PreTrainedModel, weights: dict[str, Tensor], conversions: list[Any]) -> Any:
    """Loads weights as `from_pretrained` does, but into the model's own tensors, which optimizers may hold."""
    own = dict(chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)))
    before = {name: value for name, value in vars(model).items() if name == "_weight_conversions"}
    try:
        config = LoadStateDictConfig(weight_mapping=conversions)
        info, _ = convert_and_load_state_dict_in_model(model, weights, config)
        loaded = {name: tensor for name, tensor in model.state_dict().items() if name not in info.missing_keys}
    finally:
        for name, tensor in own.items():
            path, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(path), attribute, tensor)
        vars(model).pop("_weight_conversions", None)
        vars(model).update(before)
    model.load_state_dict(loaded, strict=False)
    lacking = info.missing_keys | info.conversion_errors.keys() | {name for name, *_ in info.mismatched_keys}
    return _IncompatibleKeys(sorted(lacking), sorted(info.unexpected_keys))
