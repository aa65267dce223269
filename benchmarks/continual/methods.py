"""Methods of continual learning that `benchmarks.continual` compares: set-ups of `tasks.tools.set_ups`, in a protocol.

*finetune* trains on one task after the other and nothing else, *joint* on all at once: the bounds. *er-NAME* replays
a memory that `replay.selection` of that name fills. One that goes by losses or gradients needs a memory that is filled
as samples are trained on; one that chooses among all samples of a task at once needs a task that is there to be read
again at its end, and so more than one pass. *icarl* has a herding memory, is scored by the nearest mean, and has the
temperature of van de Ven and Tolias and an optimizer that goes on from task to task. *lora* is fine-tuning of one
adapter for all tasks, to compare *o-lora* and *inf-lora* with, which have one a task; *lamol* fills its memory with
what the model writes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from benchmarks.continual.protocols import A_GEM_BATCH, Protocol
from mixer import MixingTrainer
from mixer.policies import Policy
from mixer.tools.recipe.streams import named
from replay import ReplayBuffer, ReplayRatio
from replay.selection import Ring, selection_classes
from tasks.continual.rehearsal import Methods
from tasks.methods import nearest_mean, slow_encoder
from tasks.score import Score, mean_over
from tasks.sequences import joined
from tasks.task import TaskSequence
from tasks.tools.set_ups import SELECTIONS, SET_UPS, SetUp

_STRENGTHS = {"online-ewc": 1e6, "si": 10.0, "lwf": 4.0}  # of a few powers of ten, by split-mnist-task on one seed
# What methods have here in place of what set-ups have: of the papers, or smaller for small models.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "der": {"alpha": 1.0},
    "derpp": {"alpha": 1.0, "beta": 1.0},
    "cls-er": {"decay": 0.99},  # a run has a tenth of the steps of the paper's
    "ran-pac": {"num_projections": 2_000},
    "l2p": {"layers": (0, 1)},
    "dual-prompt": {"shared_layers": (0,), "layers": (1,)},
    "coda-prompt": {"layers": (0, 1)},
}
_ALONE = {"lora": SetUp(), "head-alone": SetUp(changes={"head": "masked"})}
# `er` is `er-reservoir` here: a protocol says nothing of a selection.
METHODS = {name: own for name, own in {**SET_UPS, **_ALONE}.items() if name != "er"}
_OF_ENCODERS = frozenset({"ran-pac", "slca"})
_OF_ADAPTERS = frozenset({"lora", "o-lora", "inf-lora"})
_PROMPTS = frozenset({"head-alone", "l2p", "dual-prompt", "coda-prompt"})
_OF_TRANSFORMERS = _OF_ADAPTERS | _PROMPTS - {"head-alone"}
_OF_NEW_CLASSES = frozenset({"er-ace", "icarl"})
_OF_CLASSES = _OF_NEW_CLASSES | {"cls-er", "lwf", "er-ring", "er-class-balanced", "er-herding"}


@dataclass(frozen=True)
class Setting:
    """What a method adds to a run.

    Args:
        memory: The buffer, or `None`.
        mixing: How much of it is replayed.
        methods: What else takes part.
        options: Further arguments of the run.
        is_offline: Whether all tasks are trained on at once.
        score: How a task is scored; `None` for the accuracy, or the loss of text.
        adapt: Changes the model before the first task.
        max_steps: Steps of a task; -1 for the protocol's.
        trainer_class: Makes the trainer's class of another one.
    """

    memory: ReplayBuffer | None = None
    mixing: Policy | None = None
    methods: Methods | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    is_offline: bool = False
    score: Score | None = None
    adapt: Callable[[nn.Module], nn.Module] | None = None
    max_steps: int = -1
    trainer_class: Callable[[type[MixingTrainer]], type[MixingTrainer]] = lambda trainer_class: trainer_class

    def arranged(self, tasks: TaskSequence) -> tuple[TaskSequence, Score | None]:
        """Says what is trained on, and how a task is scored.

        Args:
            tasks: The protocol's tasks.

        Returns:
            The tasks, or one of all; and what scores them, `None` for the usual, or what gives its mean over the tasks.
        """
        if not self.is_offline:
            return tasks, self.score
        return joined(tasks), mean_over(tasks, self.score)


def setting_of(name: str, protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    """Puts a method into a protocol.

    Args:
        name: The method.
        protocol: The protocol.
        memory: Entries of the memory, as the protocol counts them.
        num_tasks: Number of tasks.

    Raises:
        ValueError: If the method replays, and the memory has no entry.
    """
    own = METHODS[name]
    changes, options = dict(own.changes), {}
    buffer = _buffer(name, own, protocol, memory, num_tasks) if own.replays else None
    methods = [] if own.method is None else [named("method", own.method)(**_arguments(name, own, protocol))]
    for option in ("head", "optimizer", "second_draw"):
        if option in changes:
            options[option] = changes[option]
    score = None
    if changes.get("score") == "method":
        score = Score(methods[0].score, "accuracy")
    elif changes.get("score") == "nearest-mean" and buffer is not None:
        score = nearest_mean(buffer)
    ratio = A_GEM_BATCH / (A_GEM_BATCH + protocol.batch_size)
    return Setting(
        buffer,
        ReplayRatio(ratio, additional=True) if name == "agem" else None,
        methods,
        options,
        is_offline="joint" in changes,
        score=score,
        adapt=_adaptation(name, protocol),
        max_steps=changes.get("training.max_steps", -1),
        trainer_class=partial(slow_encoder, 0.01) if name == "slca" else lambda trainer_class: trainer_class,
    )


def _arguments(name: str, own: SetUp, protocol: Protocol) -> dict[str, Any]:
    found = {**own.arguments, **_ARGUMENTS.get(name, {})}
    if name in _STRENGTHS:
        found["strength"] = protocol.strengths.get(name, _STRENGTHS[name])
    return found


def _buffer(name: str, own: SetUp, protocol: Protocol, memory: int, num_tasks: int) -> ReplayBuffer:
    kind = selection_classes()[_selection(name, own, protocol)]
    is_fixed = kind is Ring and protocol.is_per_class
    selection = Ring(slots_per_group=memory) if is_fixed else kind()
    is_online = own.memory.get("is_online", name == "er-ace" or protocol.is_online)
    return ReplayBuffer(protocol.capacity(memory, num_tasks), selection, is_online=is_online)


def _selection(name: str, own: SetUp, protocol: Protocol) -> str:
    if name == "er-ace":
        return "ClassBalanced"
    if name == "agem" and protocol.is_per_class:
        return "Ring"
    return str(own.memory.get("selection", "Reservoir"))


def _adaptation(name: str, protocol: Protocol) -> Callable[[nn.Module], nn.Module] | None:
    if name in _OF_ADAPTERS:
        return partial(_with_adapter, is_text=protocol.is_text)
    return _frozen if name in _PROMPTS else None


def _with_adapter(model: nn.Module, is_text: bool) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    rank, kind = (8, "CAUSAL_LM") if is_text else (16, None)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type=kind)
    adapted: nn.Module = get_peft_model(model, config)  # type: ignore[arg-type]
    return adapted


def _frozen(model: nn.Module) -> nn.Module:
    model.get_submodule("base_model").requires_grad_(requires_grad=False)
    vars(model)["output_layer"] = "classifier"  # which a masked head masks
    return model


def why_unfit(name: str, protocol: Protocol) -> str | None:
    """Says why a protocol has no place for a method.

    Args:
        name: The method.
        protocol: The protocol.

    Returns:
        The reason and the way out; `None` if there is a place.
    """
    if name in _OF_ENCODERS and not protocol.is_pretrained:
        return f"{name} is for trained encoders. Take clinc150-pretrained."
    if name in _PROMPTS and not protocol.is_pretrained:
        return f"{name} is for encoders that are frozen. Take clinc150-pretrained."
    if name in _OF_ADAPTERS and not (protocol.is_text or protocol.is_pretrained):
        return f"{name} is for trained models, but this protocol begins anew. Take clinc150-pretrained or text-domains."
    if name in _OF_TRANSFORMERS and protocol.is_of_images:
        return f"{name} is for transformers, but this protocol trains convolutions. Take clinc150-pretrained."
    if name == "lamol" and not protocol.is_text:
        return f"{name} is for language models, but this protocol trains a classifier. Take text-domains."
    if name in _OF_CLASSES and protocol.is_text:
        return f"{name} goes by classes, but blocks of text have none. Take a protocol of classes, such as clinc150."
    if name in _OF_NEW_CLASSES and protocol.scenario != "class":
        return (
            f"{name} is for new classes that compete with earlier ones, but this protocol is "
            f"{protocol.scenario}-incremental. Take a class-incremental one, such as split-mnist or clinc150."
        )
    if (kind := SELECTIONS.get(name)) is None:
        return None
    if (measured := sorted(kind.needs & {"loss"})) and not protocol.is_online:
        return (
            f"{name}: {kind.__name__} goes by the {measured[0]} of samples as they are trained on, but the memory of "
            "this protocol is filled at each task's end. Take one that fills it online, such as clinc150."
        )
    if kind.is_by_task and protocol.training["num_train_epochs"] == 1:
        return (
            f"{name}: {kind.__name__} reads a whole task again at its end, but this protocol sees a sample once. Take "
            "a protocol of several epochs, such as split-mnist or clinc150."
        )
    return None
