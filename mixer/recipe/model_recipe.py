"""A recipe's model: loaded or new, with heads or adapters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from mixer.models.heads import Head
from mixer.models.inputs import heads_of, takes_task
from mixer.models.multi_task import MultiTaskModel
from mixer.recipe.pretrained import load_pretrained
from mixer.utils.text import did_you_mean

Task = Literal["causal-lm", "masked-lm", "seq2seq-lm", "sequence-classification", "token-classification", "encoder"]

_AUTO_CLASSES: dict[str, str] = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "encoder": "AutoModel",
}
# What peft calls them; it has no name of its own for the others.
_PEFT_TASKS = {
    "causal-lm": "CAUSAL_LM",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
    "sequence-classification": "SEQ_CLS",
    "token-classification": "TOKEN_CLS",
}


@dataclass
class ModelRecipe:
    """Which model to train.

    Args:
        task: The kind of head.
        name_or_path: A model to load, from a folder or by its name on the hub.
        config: Without `name_or_path`: the configuration of a new model, `model_type` among its entries. Beside it:
            entries that are changed.
        heads: With the task `"encoder"`: one head for each task, on one encoder (`MultiTaskModel`), by the name of the
            stream or of its `head`, such as `{"topic": {"num_labels": 6}}`. A saved `MultiTaskModel` has its own.
        lora: Arguments of `peft.LoraConfig`, such as `{"r": 8, "target_modules": ["q_proj", "v_proj"]}`: adapters are
            trained in place of the model. Its `task_type` follows from the task. Needs the extra `peft`.
    """

    task: Task = "causal-lm"
    name_or_path: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    heads: dict[str, Head] = field(default_factory=dict)
    lora: dict[str, Any] | None = None

    def build(self) -> PreTrainedModel:
        """Loads the model, or makes a new one.

        Returns:
            The model.

        Raises:
            ValueError: If neither a model nor the type of a new one is named, heads are given to a task that has
                one of its own, or an encoder has none; or adapters cannot be made.
        """
        model = self._with_heads(self._build)
        if self.lora is None:
            return model
        # Heads of several tasks are trained as a whole, beside the adapters.
        heads = [f"heads.{name}" for name in heads_of(model) or ()]
        return with_lora(model, {**({"modules_to_save": heads} if heads else {}), **self.lora}, self.task)

    def build_empty(self) -> PreTrainedModel:
        """Makes the model by its configuration alone: nothing in it has a value or takes memory.

        Returns:
            The model on torch's meta device, without adapters, which take the same inputs.

        Raises:
            ValueError: As `build`.
        """
        with torch.device("meta"):
            return self._with_heads(self._new)

    def _with_heads(self, build: Callable[[], PreTrainedModel]) -> PreTrainedModel:
        if not self.heads:
            return self._with_loss(build())
        if self.task != "encoder":
            raise ValueError(
                f"heads are for an encoder, and the task {self.task!r} has a head of its own: set task to encoder."
            )
        return MultiTaskModel.from_encoder(build(), self.heads)

    def _with_loss(self, model: PreTrainedModel) -> PreTrainedModel:
        if self.task == "encoder" and not takes_task(model):
            raise ValueError(
                f"{type(model).__name__} is an encoder, which has no loss: give it heads, such as "
                '{"topic": {"num_labels": 6}}, or set task to another one.'
            )
        return model

    def _build(self) -> PreTrainedModel:
        if self.name_or_path is None:
            return self._new()
        return load_pretrained(self._auto, self.name_or_path, **self.config)  # type: ignore[no-any-return]

    def _new(self) -> PreTrainedModel:
        return self._auto.from_config(self._configuration())  # type: ignore[no-any-return]

    def _configuration(self) -> PreTrainedConfig:
        if self.name_or_path is not None:
            return load_pretrained(AutoConfig, self.name_or_path, **self.config)  # type: ignore[no-any-return]
        if "model_type" not in self.config:
            raise ValueError("give name_or_path, or a config with a model_type (such as 'llama') for a new model.")
        return AutoConfig.for_model(**self.config)

    @property
    def _auto(self) -> Any:
        return getattr(transformers, _AUTO_CLASSES[self.task])


def with_lora(model: PreTrainedModel, arguments: Mapping[str, Any], task: Task) -> PreTrainedModel:
    """Puts adapters into a model, which are trained in its place.

    Args:
        model: The model.
        arguments: Those of `peft.LoraConfig`.
        task: The model's task.

    Returns:
        The model with adapters.

    Raises:
        ValueError: If peft is not installed, or an argument is wrong.
    """
    try:
        import peft
    except ModuleNotFoundError:
        raise ValueError("lora needs peft, which is not installed: pip install 'adaptive-mixer[peft]'.") from None
    known = [field.name for field in fields(peft.LoraConfig)]
    for name in arguments:
        if name not in known:
            raise ValueError(f"lora: {name!r} is no argument of peft.LoraConfig.{did_you_mean(name, known)}")
    own = {"task_type": _PEFT_TASKS.get(task), **arguments}
    try:
        adapted: Any = peft.get_peft_model(model, peft.LoraConfig(**own))
    except (ValueError, TypeError) as error:
        raise ValueError(f"lora: {error}") from error
    return adapted  # type: ignore[no-any-return]
