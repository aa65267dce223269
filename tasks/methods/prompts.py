"""Prompts: keys and values before those of a frozen encoder's own attention, chosen by what it makes of each row."""

import inspect
import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mixer.trainer.method import RunContext
from mixer.utils.errors import InvalidValueError
from mixer.utils.random_state import seeded
from mixer.utils.ranges import check_count, check_range
from tasks.methods.adapters import is_adapted
from tasks.methods.shared import TaskContext, TaskMethod

_PROMPTED, _KINDS = "prompted_", ("eager", "sdpa")  # prefix of the names of attention with prompts, and what it extends


class Prompts(nn.Module):
    """The prompts of a model, which are a part of it: what tasks have learnt is in lists of parameters.

    Before each forward of the encoder the query of a row is taken, as in L2P (arXiv:2112.08654): what the encoder
    without prompts gives for its first token. What is chosen by it goes before the keys and values of the layers, after
    their projections, as in prefix tuning. The encoder is in evaluation mode.

    Args:
        layers: Numbers of the layers that get prompts, in the order in which the encoder calls its attention.
        width: Size of a token.
    """

    def __init__(self, layers: Sequence[int], width: int):
        super().__init__()
        self.layers, self.width, self.made_by = tuple(layers), width, ""
        self.query = torch.empty(0)  # `[num_rows, width]`, of the last forward
        self.keys = nn.ParameterList()

    @abstractmethod
    def grow(self, number: int) -> None:
        """Makes the parameters of a task, by torch's generator, unless they are there; freezes what is not trained."""

    @abstractmethod
    def chosen(self, query: Tensor) -> Mapping[int, Tensor]:
        """Chooses by a query `[num_rows, width]`; gives keys and values `[num_rows, 2, length, width]` by layer."""

    def enter(self, encoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Chooses for a forward of the encoder that begins."""
        encoder.eval()
        token = _present.set(asked := _Forward({}))
        try:
            with torch.no_grad():
                output = encoder.forward(*args, **kwargs)
        finally:
            _present.reset(token)
        if asked.num_calls <= max(self.layers):
            raise InvalidValueError.about(
                "layers",
                f"must be below {asked.num_calls}, as often as {type(encoder).__name__} attends, got {self.layers}.",
            )
        self.query = first_token(output).detach().float()
        # DDP looks for all that is trained behind the output, where keys are not that a term alone has a gradient of.
        nothing = 0 * self.keys[-1].sum()
        _present.set(_Forward({layer: own + nothing for layer, own in self.chosen(self.query).items()}))

    def leave(self, encoder: nn.Module, args: Any, output: Any) -> None:
        """Ends what `enter` began."""
        _present.set(None)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Makes room for the parameters of tasks that a saved model has and this one has not."""
        for name, part in self.named_children():
            while (saved := state_dict.get(f"{prefix}{name}.{len(part)}")) is not None:  # type: ignore[arg-type]
                part.append(nn.Parameter(torch.empty_like(saved)))  # type: ignore[operator]
        super()._load_from_state_dict(state_dict, prefix, *args)

    def add(self, part: nn.ParameterList, values: Tensor) -> None:
        """Adds a parameter to a list, and freezes those that are there."""
        part.requires_grad_(requires_grad=False)
        part.append(nn.Parameter(values))


class PromptMethod(TaskMethod):
    """A method that trains prompts and the head of a model whose encoder is frozen.

    Args:
        layers: The layers that get prompts.
        weight: Factor of the method's term of the loss, 0 or more.
        counts: What must be 1 or more, by its name.
    """

    needs = frozenset({"whole weights"})
    adds_parameters = True
    _prompts: Any

    def __init__(self, layers: Iterable[int], weight: float, **counts: int):
        self.layers, self.weight = tuple(layers), float(weight)
        check_range("weight", weight, 0.0, float("inf"), "0 leaves the method's term out")
        for layer in self.layers:
            check_count("layers", layer, 0, "layers are numbered from 0")
        if not self.layers or len(set(self.layers)) < len(self.layers):
            raise InvalidValueError.about("layers", f"must be different numbers, one or more, got {list(self.layers)}.")
        for name, count in counts.items():
            check_count(name, count, 1, "see the paper for usual sizes")

    @abstractmethod
    def new_prompts(self, width: int) -> Prompts:
        """Returns prompts without those of any task."""

    def attach(self, run: RunContext) -> None:
        """Gives the model prompts, unless it has them, and freezes its encoder; see `Method.attach`."""
        super().attach(run)
        self._prompts = prompts_of(run.passes.model, self)

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Makes the prompts of the task; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        device = next(model.parameters()).device
        with seeded(self.run.seed, task.number):
            self._prompts.cpu().grow(task.number)
        self._prompts.to(device)
        if (count := len(self._prompts.keys)) > task.number + 1:
            raise InvalidValueError.about(
                "model", f"must have no prompts at first, but has those of {count} before task {task.number + 1}."
            )

    def prepare(self, model: nn.Module) -> None:
        """Refuses what an encoder in evaluation mode does not do; see `Method.prepare`."""
        super().prepare(model)
        if getattr(self.run.passes.model, "is_gradient_checkpointing", False):
            raise InvalidValueError.about(
                "gradient_checkpointing", f"has no effect with {self.name}, whose encoder stays in evaluation mode."
            )

    def settings(self) -> str:
        """Returns the sizes; see `Method.settings`."""
        names = inspect.signature(type(self)).parameters
        return f"{self.name}({', '.join(f'{name}={getattr(self, name)}' for name in names)})"


def prompts_of(model: nn.Module, method: PromptMethod) -> Prompts:
    """Returns the prompts of a model, which gets those of a method if it has none.

    Args:
        model: The model.
        method: The method.

    Raises:
        ValueError: If the model cannot have them, or has others.
    """
    found = getattr(model, "prompts", None)
    if found is None:
        encoder = _encoder_of(model)
        configs = _configs_of(encoder, method.name)
        found = method.new_prompts(int(configs[0].hidden_size))
        if max(found.layers) >= (most := getattr(configs[0], "num_hidden_layers", sys.maxsize)):
            raise InvalidValueError.about("layers", f"must be below {most}, got {list(found.layers)}.")
        for config in configs:
            kind = config._attn_implementation.removeprefix(_PROMPTED)  # noqa: SLF001  # public for whole models only
            config._attn_implementation = _PROMPTED + kind  # noqa: SLF001
        found.made_by, model.prompts = method.settings(), found
        encoder.requires_grad_(requires_grad=False)
        encoder.register_forward_pre_hook(found.enter, with_kwargs=True)
        encoder.register_forward_hook(found.leave, always_call=True)
    if not isinstance(found, Prompts) or found.made_by != method.settings():
        raise InvalidValueError.about(
            "model", f"must have no prompts, but has those of {getattr(found, 'made_by', type(found))}."
        )
    return found


def _encoder_of(model: nn.Module) -> nn.Module:
    encoder = getattr(model, "base_model", None)
    if is_adapted(model) or not isinstance(encoder, nn.Module) or encoder is model:
        raise InvalidValueError.about(
            "model", f"must have an encoder as base_model, but {type(model).__name__} has none."
        )
    return encoder


def _configs_of(encoder: nn.Module, asked_by: str) -> list[Any]:
    """Returns the configurations that say how an encoder attends, if it can take prompts."""
    found = {id(config): config for part in encoder.modules() if (config := _config_of(part)) is not None}
    kinds = {config._attn_implementation for config in found.values()}  # noqa: SLF001
    fits = all(part._can_set_attn_implementation() for part in encoder.modules() if isinstance(part, PreTrainedModel))  # noqa: SLF001
    if not fits or not kinds or not kinds <= {*_KINDS, *(_PROMPTED + kind for kind in _KINDS)}:
        raise InvalidValueError(
            f"{asked_by}: model must call its attention by transformers' AttentionInterface, as 'sdpa' or 'eager', but "
            f"that of {type(encoder).__name__} is {sorted(map(str, kinds)) if fits and kinds else 'its own'}. Load it "
            "with attn_implementation='sdpa', or take another model, such as ViT, DeiT, DINOv2, BERT or RoBERTa.",
            option="model",
        )
    if any(getattr(part, "is_causal", False) for part in encoder.modules()):
        raise InvalidValueError.about("model", f"must be an encoder, but {type(encoder).__name__} attends causally.")
    return list(found.values())


def _config_of(part: nn.Module) -> Any:
    config = getattr(part, "config", None)
    return config if hasattr(config, "_attn_implementation") else None


def first_token(output: Any) -> Tensor:
    """Returns the first token `[num_rows, width]` of what an encoder gave, or that itself if it has no tokens."""
    found = output[0] if isinstance(output, tuple) else getattr(output, "last_hidden_state", output)
    if not isinstance(found, Tensor) or found.dim() not in (2, 3):
        raise InvalidValueError("base_model must give [num_rows, (num_tokens,) width].", option="model")
    return found[:, 0] if found.dim() == 3 else found


# ---- Attention ----


class _Forward:
    """What the attention calls of a forward get, by their order."""

    def __init__(self, prefixes: Mapping[int, Tensor]):
        self.prefixes, self.num_calls = prefixes, 0

    def extended(self, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Puts prompts before keys and values `[num_rows, num_heads, num_tokens, size]`, which no mask hides."""
        prefix = self.prefixes.get(self.num_calls)
        self.num_calls += 1
        if prefix is None:
            return key, value, mask
        num_rows, num_heads, _, size = key.shape
        if prefix.shape[0] != num_rows or prefix.shape[-1] != num_heads * size:
            raise InvalidValueError(
                f"Keys must fit prompts {list(prefix.shape)}, got {list(key.shape)}", option="model"
            )
        parts = prefix.to(key.dtype).view(num_rows, 2, -1, num_heads, size).transpose(2, 3)
        if mask is not None:
            seen = torch.full_like(mask[..., :1], fill_value=mask.dtype == torch.bool)  # added ones are 0
            mask = torch.cat([seen.expand(*mask.shape[:-1], prefix.shape[2]), mask], dim=-1)
        return torch.cat([parts[:, 0], key], dim=2), torch.cat([parts[:, 1], value], dim=2), mask


_present: ContextVar[_Forward | None] = ContextVar("prompts", default=None)


def _attend(
    kind: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> Any:
    """Attends to prompts too; otherwise as a model does with `"eager"` or `"sdpa"`."""
    own: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)  # each model has its own
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(kind, own)
    if (present := _present.get()) is not None:
        key, value, mask = present.extended(key, value, mask)
    return attend(module, query, key, value, mask, **options)


for _kind in _KINDS:
    AttentionInterface.register(_PROMPTED + _kind, partial(_attend, _kind))
    AttentionMaskInterface.register(_PROMPTED + _kind, ALL_MASK_ATTENTION_FUNCTIONS[_kind])
