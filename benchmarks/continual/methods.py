"""Methods of continual learning that `benchmarks.continual` compares: what is remembered, and what is done with it.

*fine-tune* trains on one task after the other and nothing else, *offline* on all at once: the bounds. *er-NAME* replays
a memory that `replay.selection` of that name fills. One that goes by losses or gradients needs a memory that is filled
as samples are trained on; one that chooses among all samples of a task at once needs a task that is there to be read
again at its end, and so more than one pass. The other methods are those of `tasks.methods` and `replay`; *icarl* has
a herding memory, is scored by the nearest mean, and has the temperature of van de Ven and Tolias and an optimizer that
goes on from task to task. *lora* is fine-tuning of one adapter for all tasks, to compare *o-lora* and *inf-lora* with,
which have one per task; *lamol* fills its memory with what the model writes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from benchmarks.continual.protocols import A_GEM_BATCH, Protocol
from mixer import MixingTrainer
from mixer.policies import Policy
from mixer.trainer.method import Method as TakesPart
from replay import AGEM, DER, DERPlusPlus, ReplayBuffer, ReplayRatio
from replay.selection import ClassBalanced, Herding, Reservoir, Ring, Selection, selection_classes
from tasks.continual.rehearsal import Methods
from tasks.methods import (
    CLSER,
    ERACE,
    L2P,
    SI,
    SLCA,
    CODAPrompt,
    DualPrompt,
    ICaRL,
    InfLoRA,
    LwF,
    Merging,
    OLoRA,
    OnlineEWC,
    PseudoSamples,
    RanPAC,
    nearest_mean,
    slow_encoder,
)
from tasks.score import Score, as_score
from tasks.sequences import joined
from tasks.task import Task, TaskSequence

_STRENGTHS = {"online-ewc": 1e6, "si": 10.0, "lwf": 4.0}  # of a few powers of ten, by split-mnist-task on one seed


@dataclass(frozen=True)
class Setting:
    """What a method adds to a run.

    Args:
        memory: The buffer, or `None`.
        mixing: How much of it is replayed.
        methods: What else takes part, or gives it anew for each task.
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
        of_task = as_score(self.score, tasks)

        def mean(trainer: MixingTrainer, task: Task) -> float:
            return float(np.mean([of_task.measure(trainer, own) for own in tasks]))

        return joined(tasks), Score(mean, of_task.metric, of_task.higher_is_better)


Method = Callable[[Protocol, int, int], Setting]


def _buffer(protocol: Protocol, memory: int, num_tasks: int, kind: type[Selection] = Reservoir) -> ReplayBuffer:
    capacity = protocol.capacity(memory, num_tasks)
    is_fixed = kind is Ring and protocol.is_per_class
    selection = Ring(slots_per_group=memory) if is_fixed else kind()
    return ReplayBuffer(capacity, selection, is_online=protocol.is_online and not kind.is_by_task)


def _fine_tune(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    return Setting()


def _offline(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    return Setting(is_offline=True)


def _replay(kind: type[Selection]) -> Method:
    return lambda protocol, memory, num_tasks: Setting(_buffer(protocol, memory, num_tasks, kind))


def _a_gem(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    ratio = A_GEM_BATCH / (A_GEM_BATCH + protocol.batch_size)
    mixing = ReplayRatio(ratio, additional=True)
    return Setting(
        _buffer(protocol, memory, num_tasks, Ring if protocol.is_per_class else Reservoir), mixing, lambda: [AGEM()]
    )


def _der(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    return Setting(_buffer(protocol, memory, num_tasks), methods=lambda: [DER(alpha=1.0)])


def _der_plus_plus(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    return Setting(
        _buffer(protocol, memory, num_tasks),
        methods=lambda: [DERPlusPlus(alpha=1.0, beta=1.0, second="again")],
        options={"second_draw": "again"},
    )


def _alone(make: Callable[[], TakesPart]) -> Method:
    return lambda protocol, memory, num_tasks: Setting(methods=[make()])


def _held(name: str, kind: Callable[[float], TakesPart]) -> Method:
    def setting(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
        return Setting(methods=[kind(protocol.strengths.get(name, _STRENGTHS[name]))])

    return setting


def _with_adapter(model: nn.Module, is_text: bool) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    rank, kind = (8, "CAUSAL_LM") if is_text else (16, None)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type=kind)
    adapted: nn.Module = get_peft_model(model, config)  # type: ignore[arg-type]
    return adapted


def _adapted(*kinds: Callable[[], TakesPart]) -> Method:
    return lambda protocol, memory, num_tasks: Setting(
        methods=[kind() for kind in kinds], adapt=partial(_with_adapter, is_text=protocol.is_text)
    )


def _ran_pac(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    method = RanPAC(2_000)
    return Setting(methods=[method], score=Score(method.score, "accuracy"), max_steps=1)


def _slca(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    method = SLCA()
    score = Score(method.score, "accuracy")
    return Setting(methods=[method], score=score, trainer_class=partial(slow_encoder, 0.01))


def _frozen(model: nn.Module) -> nn.Module:
    model.get_submodule("base_model").requires_grad_(requires_grad=False)
    vars(model)["output_layer"] = "classifier"  # which a masked head masks
    return model


def _on_frozen(*kinds: Callable[[], TakesPart]) -> Method:
    return lambda protocol, memory, num_tasks: Setting(
        methods=[kind() for kind in kinds], options={"head": "masked"}, adapt=_frozen
    )


def _lamol(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    capacity = protocol.capacity(memory, num_tasks)
    return Setting(ReplayBuffer(capacity, is_online=False), methods=[PseudoSamples()])


def _er_ace(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    capacity = protocol.capacity(memory, num_tasks)
    return Setting(ReplayBuffer(capacity, ClassBalanced()), methods=[ERACE()])


def _cls_er(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    method = CLSER(decay=0.99, stable_rate=0.7)  # a run has a tenth of the steps of the paper's
    return Setting(_buffer(protocol, memory, num_tasks), methods=[method], score=Score(method.score, "accuracy"))


def _by_nearest_mean(make: Callable[[], TakesPart], **options: Any) -> Method:
    def setting(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
        buffer = _buffer(protocol, memory, num_tasks, Herding)
        return Setting(buffer, methods=[make()], options=options, score=nearest_mean(buffer))

    return setting


# `er-class-balanced` is of `ClassBalanced`
_SELECTIONS = {
    "er-" + re.sub(r"(?<=.)(?=[A-Z])", "-", name).lower(): kind for name, kind in selection_classes().items()
}
WITHOUT_MEMORY: dict[str, Method] = {
    "fine-tune": _fine_tune,
    "offline": _offline,
    "online-ewc": _held("online-ewc", OnlineEWC),
    "si": _held("si", SI),
    "lwf": _held("lwf", LwF),
    "merge-average": _alone(Merging),
    "merge-ties": _alone(partial(Merging, "ties", start="initial")),
    "lora": _adapted(),
    "o-lora": _adapted(OLoRA),
    "inf-lora": _adapted(InfLoRA),
    "head-alone": _on_frozen(),
    "l2p": _on_frozen(partial(L2P, layers=(0, 1))),
    "dual-prompt": _on_frozen(partial(DualPrompt, (0,), (1,))),
    "coda-prompt": _on_frozen(partial(CODAPrompt, layers=(0, 1))),
    "ran-pac": _ran_pac,
    "slca": _slca,
}
METHODS: dict[str, Method] = {
    **WITHOUT_MEMORY,
    **{name: _replay(kind) for name, kind in _SELECTIONS.items()},
    "a-gem": _a_gem,
    "der": _der,
    "der++": _der_plus_plus,
    "er-ace": _er_ace,
    "cls-er": _cls_er,
    "icarl": _by_nearest_mean(partial(ICaRL, temperature=2.0), optimizer="kept"),
    "lamol": _lamol,
}
_OF_ENCODERS = frozenset({"ran-pac", "slca"})
_OF_ADAPTERS = frozenset({"lora", "o-lora", "inf-lora"})
_PROMPTS = frozenset({"head-alone", "l2p", "dual-prompt", "coda-prompt"})
_OF_NEW_CLASSES = frozenset({"er-ace", "icarl"})
_OF_CLASSES = _OF_NEW_CLASSES | {"cls-er", "lwf", "er-ring", "er-class-balanced", "er-herding"}


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
    if name == "lamol" and not protocol.is_text:
        return f"{name} is for language models, but this protocol trains a classifier. Take text-domains."
    if name in _OF_CLASSES and protocol.is_text:
        return f"{name} goes by classes, but blocks of text have none. Take a protocol of classes, such as clinc150."
    if name in _OF_NEW_CLASSES and protocol.scenario != "class":
        return (
            f"{name} is for new classes that compete with earlier ones, but this protocol is "
            f"{protocol.scenario}-incremental. Take a class-incremental one, such as split-mnist or clinc150."
        )
    if (kind := _SELECTIONS.get(name)) is None:
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
