"""A recipe's model: loaded or new, with heads or adapters, and with the names of its classes."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast

import huggingface_hub
import torch
import transformers
from torch import nn
from transformers import AutoConfig, BitsAndBytesConfig, PreTrainedModel
from transformers.utils.import_utils import is_bitsandbytes_available

from mixer.models.class_names import NamedClasses, check_same_classes
from mixer.models.heads import Head
from mixer.models.inputs import heads_of, inner_model, takes_task
from mixer.models.multi_task import MultiTaskModel
from mixer.tools.recipe.gguf import convert_gguf
from mixer.tools.recipe.places import placed
from mixer.tools.recipe.streams import Factory, call_by_name
from mixer.utils.errors import require, wrong_value
from mixer.utils.text import did_you_mean

Task = Literal[
    "causal-lm",
    "masked-lm",
    "seq2seq-lm",
    "sequence-classification",
    "token-classification",
    "encoder",
    "image-classification",
    "image-text-to-text",
    "ctc",
]

# The class of transformers, and peft's name, of each task.
_AUTO_CLASSES: dict[str, tuple[str, str | None]] = {
    "causal-lm": ("AutoModelForCausalLM", "CAUSAL_LM"),
    "masked-lm": ("AutoModelForMaskedLM", None),
    "seq2seq-lm": ("AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM"),
    "sequence-classification": ("AutoModelForSequenceClassification", "SEQ_CLS"),
    "token-classification": ("AutoModelForTokenClassification", "TOKEN_CLS"),
    "encoder": ("AutoModel", None),
    "image-classification": ("AutoModelForImageClassification", None),
    "image-text-to-text": ("AutoModelForImageTextToText", "CAUSAL_LM"),
    "ctc": ("AutoModelForCTC", None),
}


@dataclass
class ModelRecipe:
    """The model to train.

    Args:
        task: The model's task, which determines its head.
        name_or_path: A model to load: a folder, a name on the hub, or a function that returns a folder, such as
            `{"factory": "tasks.sources.smollm2"}`.
        gguf_file: The model's file in that folder, in the form of llama.cpp; it is converted once, in the user's cache.
        config: Without `name_or_path`: the configuration of a new model, including `model_type`. With it: entries of
            the loaded configuration to change.
        factory: In their place: dotted name of a function or class that gives the model, `package.module.function`.
        arguments: Arguments of that function, by name.
        heads: For the task `"encoder"`: one head per task on a shared encoder (`MultiTaskModel`), by the name of the
            stream or of its `head`, such as `{"topic": {"num_labels": 6}}`. A saved `MultiTaskModel` has its own.
        lora: Arguments of `peft.LoraConfig`, such as `{"r": 8, "target_modules": ["q_proj", "v_proj"]}`, to train
            adapters instead of the model. `task_type` follows from the task. Needs the extra `peft`.
        quantization: Arguments of `transformers.BitsAndBytesConfig` to load the model by, such as
            `{"load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}`; with `lora` this is QLoRA. Needs bitsandbytes.
    """

    task: Task = "causal-lm"
    name_or_path: str | Factory | None = None
    gguf_file: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    factory: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    heads: dict[str, Head] = field(default_factory=dict)
    lora: dict[str, Any] | None = None
    quantization: dict[str, Any] | None = None

    def build(self, has_weights: bool = True, adapts: bool = True) -> PreTrainedModel:
        """Loads the model, or creates a new one.

        Args:
            has_weights: `False` creates it from its configuration on torch's meta device: without weights, memory or
                adapters.
            adapts: Whether to add the adapters here; TRL's trainers add them themselves.

        Raises:
            ValueError: If neither a model nor the type of a new one is named, or two of them are, the function fails,
                heads and task do not fit, or the arguments of the adapters are wrong.
        """
        model: Any = self._with_heads(True) if has_weights else self._weightless()
        if self.lora is None or not (has_weights and adapts):
            return cast(PreTrainedModel, model)
        # The heads of several tasks are trained fully, beside the adapters.
        heads = [f"heads.{name}" for name in heads_of(model) or ()]
        config = self.adapters(**({"modules_to_save": heads} if heads else {}))
        import peft

        with placed("lora"):
            if getattr(model, "is_quantized", False):
                model = peft.prepare_model_for_kbit_training(model)  # type: ignore[no-untyped-call]
            return peft.get_peft_model(model, config)  # type: ignore[no-any-return]

    @functools.cached_property
    def loaded_from(self) -> str | None:
        """The folder, or the name on the hub, that the model is loaded from; `None` for a new one.

        Raises:
            ValueError: If the function fails, or the GGUF file cannot be read.
        """
        name = self.name_or_path
        if isinstance(name, Factory):
            name = folder_from("name_or_path", name)
        if self.gguf_file is None:
            return name
        if name is None:
            raise wrong_value("gguf_file", "is a file in the folder name_or_path: give that, too.")
        return str(convert_gguf(name, self.gguf_file, self.config.get("revision")))

    @property
    def own_tokenizer(self) -> str | None:
        """The folder of the tokenizer that comes with a GGUF file; `None` for another model."""
        return None if self.gguf_file is None else self.loaded_from

    def adapters(self, **defaults: Any) -> Any:
        """Returns the configuration of the adapters, a `peft.LoraConfig`, with the type of the task.

        Args:
            **defaults: Its arguments that the recipe does not name.

        Raises:
            ValueError: If peft is not installed, or an argument is wrong.
        """
        try:
            import peft
        except ModuleNotFoundError:
            raise wrong_value("lora", "needs peft: pip install 'adaptive-mixer[peft]'.") from None
        arguments = {"task_type": _AUTO_CLASSES[self.task][1], **defaults, **(self.lora or {})}
        _check_known(arguments, [field.name for field in fields(peft.LoraConfig)], "lora", "peft.LoraConfig")
        with placed("lora"):
            return peft.LoraConfig(**arguments)

    def _weightless(self) -> PreTrainedModel:
        """Creates the model on the meta device, or takes it there where its function reads values of its tensors."""
        try:
            with torch.device("meta"):
                return self._with_heads(False)
        except Exception:
            if self.factory is None:
                raise
        model: nn.Module = self._with_heads(False)
        return cast(PreTrainedModel, model.to("meta"))

    def _with_heads(self, has_weights: bool) -> PreTrainedModel:
        if self.heads and self.task != "encoder":
            raise wrong_value("heads", f"are for an encoder, and task is {self.task!r}: set it to encoder.")
        model = self._build(has_weights)
        if self.heads:
            return MultiTaskModel.from_encoder(model, self.heads)
        if self.task == "encoder" and not takes_task(model):
            text = f"must be given, as {type(model).__name__} has no loss of its own, or another task"
            raise wrong_value("heads", f'{text}: {{"topic": {{"num_labels": 6}}}} is a head for the stream topic.')
        return model

    def _build(self, has_weights: bool) -> PreTrainedModel:
        if self.factory is not None:
            if self.name_or_path is not None or self.gguf_file is not None or self.config:
                raise wrong_value("factory", "gives the whole model: leave out name_or_path, gguf_file and config.")
            return call_by_name("factory", self.factory, self.arguments)  # type: ignore[no-any-return]
        if self.arguments:
            raise wrong_value("arguments", "are those of factory, which gives the model: name it.")
        auto: Any = getattr(transformers, _AUTO_CLASSES[self.task][0])
        quantized, name = self._quantized(), self.loaded_from
        if name is not None and has_weights:
            return load_pretrained(auto, name, **self.config, **quantized)  # type: ignore[no-any-return]
        if name is not None:
            config = load_pretrained(AutoConfig, name, **self.config)
        elif "model_type" in self.config:
            config = AutoConfig.for_model(**self.config)
        else:
            text = "is needed, or factory, or for a new model a config with a model_type, such as 'llama'."
            raise wrong_value("name_or_path", text)
        return auto.from_config(config)  # type: ignore[no-any-return]

    def _quantized(self) -> dict[str, Any]:
        """Returns the argument of `from_pretrained` that quantizes, if any."""
        if self.quantization is None:
            return {}
        if self.name_or_path is None:
            raise wrong_value("quantization", "is of a trained model: give name_or_path.")
        known = list(inspect.signature(BitsAndBytesConfig).parameters)
        _check_known(self.quantization, known, "quantization", "transformers.BitsAndBytesConfig")
        if not is_bitsandbytes_available():
            raise wrong_value("quantization", "needs bitsandbytes: pip install bitsandbytes.")
        with placed("quantization"):
            return {"quantization_config": BitsAndBytesConfig(**self.quantization)}  # type: ignore[no-untyped-call]


def _check_known(arguments: Mapping[str, Any], known: Sequence[str], option: str, kind: str) -> None:
    for name in arguments:
        if name not in known:
            raise wrong_value(option, f"{name!r} is no argument of {kind}.{did_you_mean(name, known)}", found=name)


def folder_from(field_name: str, function: Factory) -> str:
    """Calls a function that returns a folder.

    Args:
        field_name: The recipe's field, for errors.
        function: The function.

    Raises:
        ValueError: If it fails, or returns none.
    """
    folder = call_by_name(field_name, function.factory, function.arguments)
    is_path = isinstance(folder, str | Path)
    require(is_path, field_name, f"a folder from {function.factory}", type(folder).__name__)
    return str(folder)


def load_pretrained(kind: Any, name: str, **options: Any) -> Any:
    """Loads a model, a configuration or a tokenizer.

    Args:
        kind: A class of transformers, such as `AutoTokenizer`.
        name: A folder, or a name on the hub.
        **options: Further arguments of `from_pretrained`.

    Raises:
        FileNotFoundError: If neither the folder nor the name on the hub exists.
    """
    try:
        return kind.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        if Path(name).exists():
            raise
        offline = huggingface_hub.constants.is_offline_mode()
        why = "HF_HUB_OFFLINE is set, so the hub is not searched" if offline else str(error).splitlines()[0]
        raise FileNotFoundError(
            f"there is no folder {str(Path(name).absolute())!r}, and {name!r} was not found on the hub, where names "
            f"have the form org/name ({why})."
        ) from error


def note_class_names(
    model: nn.Module, heads: Mapping[str, str], names: Mapping[tuple[str, str], Sequence[str]]
) -> None:
    """Writes the names of classes into the model's configuration, which is saved with the model.

    A model with one head gets `id2label` and `label2id`; one with several gets `class_names`, by head.

    Args:
        model: The model.
        heads: The head of each stream; ignored for a model with one head.
        names: By field of the recipe and name of the stream or set, the names of its classes in the order of their
            numbers, or none of numbers without names; streams first.

    Raises:
        ValueError: If streams or sets that share a head number their classes differently.
    """
    has_several = takes_task(model)
    by_head = check_same_classes(
        NamedClasses(f"{field}.{name}.format", repr(name), own, head=heads.get(name, name) if has_several else "")
        for (field, name), own in names.items()
    )
    config: Any = getattr(inner_model(model), "config", None)
    if config is None or not by_head:
        return
    if heads_of(model) is not None:
        config.class_names = {head: list(own.names) for head, own in by_head.items()}
    elif not has_several and getattr(config, "num_labels", None) == len(by_head[""].names):
        config.id2label = dict(enumerate(by_head[""].names))
        config.label2id = {name: number for number, name in config.id2label.items()}
