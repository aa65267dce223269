"""A model with one encoder for all tasks and one head per task."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from mixer.models.heads import Head, HeadModule
from mixer.utils.errors import wrong_type, wrong_value


class MultiTaskConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """The configuration of a `MultiTaskModel`.

    Args:
        encoder: The configuration of the encoder, including its `model_type`.
        heads: The fields of each `Head`, by the task's name.
        head_names: Their order, which is that of the weights; a saved configuration does not keep the order of
            mappings.
        **kwargs: Arguments of every configuration.
    """

    model_type = "mixer_multi_task"

    def __init__(
        self,
        encoder: Mapping[str, Any] | None = None,
        heads: Mapping[str, Mapping[str, Any]] | None = None,
        head_names: Sequence[str] | None = None,
        **kwargs: Any,
    ):
        self.encoder = dict(encoder or {})
        heads = heads or {}
        self.head_names = list(heads if head_names is None else head_names)
        self.heads = {name: dict(heads[name]) for name in self.head_names}
        super().__init__(**kwargs)


class MultiTaskModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """One encoder for all tasks and one head per task; `MixingTrainer` passes the task of every micro-batch.

    Save and load it as any model of transformers: `save_pretrained`, `from_pretrained`. Your own model works in its
    place if its `forward` has a parameter `task`; if it also has a mapping `heads` by task, streams without a head are
    refused before the run. Adapters of PEFT wrap the whole model, with the heads' names as `modules_to_save`.

    Args:
        config: The configuration; see `from_encoder` for a shorter way.

    Raises:
        ValueError: If there is no head, or one is invalid.

    Example:
        >>> from transformers import BertConfig
        >>> tiny = dict(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> encoder = AutoModel.from_config(BertConfig(**tiny), add_pooling_layer=False)
        >>> model = MultiTaskModel.from_encoder(encoder, {"topic": Head(6), "stars": Head(1, kind="regression")})
        >>> list(model.heads)
        ['topic', 'stars']
    """

    config_class = MultiTaskConfig
    config: MultiTaskConfig
    encoder: Any
    main_input_name = "input_ids"
    base_model_prefix = "encoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True

    def __init__(self, config: MultiTaskConfig, encoder: nn.Module | None = None):
        super().__init__(config)
        self.loss_type = "ForSequenceClassification"  # no label is another token's
        if not config.heads:
            raise wrong_value("heads", ': a MultiTaskModel needs at least one, such as {"topic": Head(num_labels=6)}.')
        self.encoder = _new_encoder(config.encoder) if encoder is None else encoder
        size = self.encoder.config.get_text_config().hidden_size
        self.heads = nn.ModuleDict({name: HeadModule(Head(**head), size) for name, head in config.heads.items()})
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def from_encoder(cls, encoder: PreTrainedModel, heads: Mapping[str, Head]) -> "MultiTaskModel":
        """Adds new heads to a pretrained encoder.

        Args:
            encoder: The encoder, as from `AutoModel.from_pretrained(...)`.
            heads: The heads by name: the stream's, or its `head`.

        Raises:
            ValueError: If a name cannot be that of a module, such as `"train"` or `"type"`.
            TypeError: If a value is no `Head`, or the encoder is another model than `AutoModel` gives.
        """
        expected = cast(Any, MODEL_MAPPING).get(type(getattr(encoder, "config", None)), PreTrainedModel)
        if not isinstance(encoder, expected):
            raise wrong_type(
                "encoder", f"must be a model without a head, as from AutoModel, got {type(encoder).__name__}."
            )
        for name, head in heads.items():
            if not isinstance(head, Head):
                raise wrong_type("heads", f"[{name!r}] must be a Head, such as Head(num_labels=6), got {head!r}.")
            _check_name(name)
        if getattr(encoder, "pooler", None) is not None:
            encoder.pooler = None  # no head uses it
        described = {name: head.to_dict() for name, head in heads.items()}
        return cls(MultiTaskConfig(encoder.config.to_dict(), described), encoder)

    def _init_weights(self, module: nn.Module) -> None:
        """Leaves the encoder's weights alone; heads start like torch's linear layers."""
        if isinstance(module, nn.Linear):
            module.reset_parameters()  # of a head: new, or not in the checkpoint

    def get_input_embeddings(self) -> nn.Module:
        """Returns the encoder's embeddings; see `PreTrainedModel`."""
        return cast(nn.Module, self.encoder.get_input_embeddings())

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Sets the encoder's embeddings; see `PreTrainedModel`."""
        self.encoder.set_input_embeddings(value)

    def forward(
        self,
        task: str,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Runs the encoder and one head.

        Args:
            task: The head's name.
            input_ids: `[num_rows, num_tokens]`: for the encoder.
            attention_mask: `[num_rows, num_tokens]`: 0 for padding.
            token_type_ids: For the encoder.
            position_ids: For the encoder.
            inputs_embeds: For the encoder.
            pixel_values: For the encoder.
            labels: As for `HeadModule.loss`.

        Returns:
            `loss`, the mean per label, if there are labels, and `logits`.

        Raises:
            ValueError: If there is no such head.
        """
        if task not in self.heads:
            raise wrong_value("task", f"={task!r}: the model has the heads {list(self.heads)}.")
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
            "pixel_values": pixel_values,
        }
        states = self.encoder(**{name: value for name, value in inputs.items() if value is not None})[0]
        head: Any = self.heads[task]
        logits = head(states, attention_mask)
        return SequenceClassifierOutput(loss=None if labels is None else head.loss(logits, labels), logits=logits)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise wrong_type("heads", f": names must be texts, those of streams or of their head, got {name!r}.")
    if not name or "." in name:
        raise wrong_value("heads", f": the name {name!r} must not be empty or have a dot: it names a module.")
    if hasattr(nn.ModuleDict(), name):
        raise wrong_value(
            "heads", f": modules of torch are called {name!r}. Choose another name; name it in Stream(head=...)."
        )


def _new_encoder(description: Mapping[str, Any]) -> nn.Module:
    """Creates an encoder without the pooling layer, which no head here uses."""
    config = AutoConfig.for_model(**description)
    has_choice = "add_pooling_layer" in inspect.signature(cast(Any, MODEL_MAPPING[type(config)])).parameters
    options = {"add_pooling_layer": False} if has_choice else {}
    return cast(nn.Module, cast(Any, AutoModel).from_config(config, **options))


AutoConfig.register(MultiTaskConfig.model_type, MultiTaskConfig)
AutoModel.register(MultiTaskConfig, MultiTaskModel)
