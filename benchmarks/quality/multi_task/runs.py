"""One run of `benchmarks.quality.multi_task`: a model for some of the tasks, and how well it does on them."""

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from transformers import PrinterCallback, set_seed
from transformers.utils import logging

from benchmarks.common import QUIET
from benchmarks.quality.cache import write_whole
from benchmarks.quality.multi_task.data import Texts, cut, cut_padding, number
from benchmarks.quality.multi_task.encoder import ConvolutionConfig, ConvolutionEncoder
from benchmarks.quality.sentences import NUM_CLASSES, Sentences, accuracy
from mixer import Budget, Head, MixingConfig, MixingTrainer, MultiTaskModel, Objective
from mixer.policies import Policy
from mixer.policies.registry import built_in_policies
from mixer.trainer.best_of_each import folder_of

NUM_SAMPLES = "the run's samples"  # in arguments, replaced when a policy is made
NUM_EVALUATIONS = 24  # of a run whose policy follows evaluations
PROTOCOL = 3  # to be raised when results of earlier runs do not count any more


@dataclass(frozen=True)
class Setting:
    """What was chosen by validation parts, apart for separate models and for those of several tasks.

    Args:
        learning_rate: The learning rate, at its highest.
        num_epochs: Samples trained on, over those of all tasks of the model.
        dropout: Share of the words' elements, and of the heads' inputs, that are dropped.
        num_maps: Outputs of each convolution.
        word_size: Width of a word.
        batch: Samples of a step.
        length: Most words of a sentence.
        windows: Words that each convolution sees at once.
    """

    learning_rate: float
    num_epochs: float
    dropout: float
    num_maps: int = 64
    word_size: int = 64
    batch: int = 256
    length: int = 33
    windows: tuple[int, ...] = (1, 3)


# Both sides are searched over the same settings, by validation parts; `--search` prints what they come to.
_SEARCHED = ((5e-3, 4, 0.2), (1e-2, 4, 0.2), (2e-2, 4, 0.2), (1e-2, 4, 0.4), (1e-2, 6, 0.2), (1e-2, 3, 0.0))
GRID = tuple(Setting(*searched) for searched in _SEARCHED)
SEPARATE = GRID[2]
JOINT = GRID[1]
QUICK = Setting(1e-2, 1, 0.2, num_maps=4, word_size=4, batch=32, length=8)


@dataclass(frozen=True)
class Run:
    """What a run is; another one has another file.

    Args:
        tasks: The tasks of the model.
        policy: Class of the policy; `None` mixes in proportion to size.
        arguments: Arguments of the policy, plain data; `[class, arguments]` stands for a policy inside.
        setting: How it is trained.
        seed: Seed of the parts, the weights and the order of the samples.
        is_cut: Whether the tasks have sizes of 100 : 1.
        keeps_best: Whether each task is judged by the weights that are best for it on its validation part.
    """

    tasks: tuple[str, ...]
    policy: str | None
    arguments: Mapping[str, Any]
    setting: Setting
    seed: int
    is_cut: bool = False
    keeps_best: bool = False

    def path(self, folder: Path, texts: Texts) -> Path:
        """Names the file of the result.

        Args:
            folder: Where results are kept.
            texts: The data, which results depend on.

        Returns:
            The file.
        """
        sizes = {task: [len(rows) for rows in texts[task].values()] for task in self.tasks}
        key = json.dumps({"protocol": PROTOCOL, "sizes": sizes, **asdict(self)}, sort_keys=True)
        digest = hashlib.blake2b(key.encode(), digest_size=6).hexdigest()
        return folder / f"{'-'.join(self.tasks)}-{self.seed}-{digest}.json"


def result_of(run: Run, read: Callable[[int], Texts], folder: Path) -> dict[str, Any]:
    """Trains once, or reads what an earlier run came to.

    Args:
        run: What to run.
        read: Gives the data, in the parts of a seed.
        folder: Where results are kept.

    Returns:
        Accuracy and loss by task of the `validation` and `test` parts, `steps`, `samples` trained on by task and
        `seconds`.
    """
    texts = read(run.seed)
    path = run.path(folder, texts)
    if not path.is_file():
        write_whole(path, json.dumps(_train(run, texts), indent=2).encode())
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def new_policy(name: str, arguments: Mapping[str, Any], num_samples: int) -> Policy:
    """Builds a policy.

    Args:
        name: Its class.
        arguments: Its arguments, as in `Run`.
        num_samples: Samples of the run, for an argument that names them.

    Returns:
        The policy.
    """
    given = {key: num_samples if value == NUM_SAMPLES else value for key, value in arguments.items()}
    given = {k: new_policy(v[0], v[1], num_samples) if isinstance(v, list) else v for k, v in given.items()}
    kind: Any = built_in_policies()[name]
    policy: Policy = kind(**given)
    return policy


def new_model(num_words: int, tasks: tuple[str, ...], setting: Setting) -> MultiTaskModel:
    """Builds a model.

    Args:
        num_words: Size of the vocabulary.
        tasks: What has a head.
        setting: How large it is.

    Returns:
        The model, by torch's global generator.
    """
    config = ConvolutionConfig(num_words, setting.word_size, setting.num_maps, setting.windows, setting.dropout)
    heads = {task: Head(NUM_CLASSES[task], dropout=setting.dropout) for task in tasks}
    return MultiTaskModel.from_encoder(ConvolutionEncoder(config), heads)


def _train(run: Run, texts: Texts) -> dict[str, Any]:
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    parts = number(cut(texts, run.seed) if run.is_cut else texts, run.tasks, run.setting.length)
    num_words = 1 + max(int(part.input_ids.max()) for own in parts.values() for part in own.values())
    set_seed(run.seed)
    num_samples = round(run.setting.num_epochs * sum(len(own["train"]) for own in parts.values()))
    policy = None if run.policy is None else new_policy(run.policy, run.arguments, num_samples)
    with tempfile.TemporaryDirectory() as output:
        trainer = MixingTrainer(
            new_model(num_words, run.tasks, run.setting),
            _arguments(output, run, run.keeps_best or (policy is not None and "evaluation_loss" in policy.needs)),
            cut_padding,
            {task: own["train"] for task, own in parts.items()},
            {task: own["validation"] for task, own in parts.items()},
            mixing=policy,
            batch_size=run.setting.batch,
            budget=Budget(epochs=run.setting.num_epochs),
            compute_metrics=accuracy,
            objective=_best_of_each(parts) if run.keeps_best else None,
        )
        trainer.remove_callback(PrinterCallback)
        started = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - started
        samples = trainer.ledger.to_pandas().groupby("stream")["count"].sum()
        return {
            "steps": trainer.state.global_step,
            "samples": {task: int(samples[task]) for task in run.tasks},
            "seconds": seconds,
            **{part: _metrics(trainer, parts, part, run.keeps_best) for part in ("validation", "test")},
        }


def _arguments(folder: str, run: Run, evaluates: bool) -> MixingConfig:
    return MixingConfig(
        folder,
        per_device_train_batch_size=run.setting.batch,
        per_device_eval_batch_size=256,
        learning_rate=run.setting.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=0.05,
        seed=run.seed,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=1.0 / NUM_EVALUATIONS,
        save_best_of_each=run.keeps_best,
        **QUIET,
    )


def _best_of_each(parts: Mapping[str, Mapping[str, Sentences]]) -> Objective:
    """The objective by which the weights of the best accuracy of each task are kept."""
    validation = {task: own["validation"] for task, own in parts.items()}
    return Objective([*parts], metric="accuracy", greater_is_better=True, steering_sets=validation)


def _metrics(
    trainer: MixingTrainer, parts: Mapping[str, Mapping[str, Sentences]], part: str, keeps_best: bool
) -> dict[str, dict[str, float]]:
    if not keeps_best:
        metrics = trainer.evaluate({task: own[part] for task, own in parts.items()})
        return {task: {name: metrics[f"eval_{task}_{name}"] for name in ("accuracy", "loss")} for task in parts}
    found, model = {}, trainer.model
    assert model is not None
    for task, own in parts.items():
        folder = folder_of(str(trainer.args.output_dir), task)
        model.load_state_dict(load_file(folder / "model.safetensors"))
        metrics = trainer.evaluate({task: own[part]})
        found[task] = {name: metrics[f"eval_{task}_{name}"] for name in ("accuracy", "loss")}
    return found
