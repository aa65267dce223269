"""One run of `benchmarks.quality.batch_size`: the demo's text and model under a schedule, and its losses."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PrinterCallback, TrainingArguments

from benchmarks.domains import Data, Stopwatch, new_model, read_domains
from benchmarks.quality.batch_size.rules import Configuration
from mixer import Budget, MixingTrainer

MICRO_BATCH_SIZE = 64
EVALUATION_SHARE = 0.05


@dataclass(frozen=True)
class Scale:
    """How much is trained and evaluated.

    Args:
        num_samples: The budget of a run, over all streams.
        num_blocks: Blocks of each stream, so many that none is read twice.
        num_validation_blocks: Blocks that each stream is evaluated on.
        block_length: Bytes of a block.
        hidden: Width of the model.
        layers: Its depth.
    """

    num_samples: int = 6_144
    num_blocks: int = 6_000
    num_validation_blocks: int = 96
    block_length: int = 64
    hidden: int = 144
    layers: int = 4


@dataclass(frozen=True)
class Course:
    """How a run went: where it stood at each evaluation, and at its end.

    Args:
        losses: `[num_evaluations]`: validation loss, the plain mean of the streams'.
        steps: `[num_evaluations]`: steps before each evaluation.
        samples: `[num_evaluations]`: samples before it.
        seconds: `[num_evaluations]`: seconds of training before it, without those of evaluating.
        largest_batch: Samples of the largest step.
    """

    losses: list[float]
    steps: list[int]
    samples: list[int]
    seconds: list[float]
    largest_batch: int

    def to_target(self, target: float) -> dict[str, float] | None:
        """Finds where the loss first came down to a target, on straight lines between the evaluations.

        Args:
            target: The loss.

        Returns:
            The `steps`, `samples` and `seconds` until then; `None` if it never did.
        """
        after = next((number for number, loss in enumerate(self.losses) if loss <= target), None)
        if after is None:
            return None
        before = max(after - 1, 0)  # the first evaluation stands for itself: there is none before
        fall = self.losses[before] - self.losses[after]
        share = (self.losses[before] - target) / fall if fall > 0.0 else 1.0
        courses: dict[str, Sequence[float]] = {
            "steps": self.steps,
            "samples": self.samples,
            "seconds": self.seconds,
        }
        return {name: values[before] + share * (values[after] - values[before]) for name, values in courses.items()}


def load_data(scale: Scale) -> Data:
    """Reads the text.

    Args:
        scale: How much.

    Returns:
        The sets `"train"` and `"validation"` of each stream.
    """
    return read_domains([scale.num_blocks] * 3, scale.num_validation_blocks, scale.block_length)


def run(configuration: Configuration, data: Data, scale: Scale, seed: int, learning_rate: float) -> Course:
    """Trains once.

    Args:
        configuration: The batch-size schedule and what goes with it.
        data: The streams.
        scale: How much is trained.
        seed: Seed of the weights and of the order of the samples.
        learning_rate: Peak learning rate of the small batch.

    Returns:
        The course of the run.
    """
    stopwatch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = MixingTrainer(
            new_model(scale.hidden, scale.layers, scale.block_length, seed),
            _training_arguments(folder, seed, learning_rate * configuration.learning_rate_factor),
            train_dataset={name: splits["train"] for name, splits in data.items()},
            eval_dataset={name: splits["validation"] for name, splits in data.items()},
            mixing="Uniform",
            batch_size=configuration.schedule(),
            budget=Budget(samples=scale.num_samples),
            callbacks=[stopwatch],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return _course(trainer, stopwatch)


def _course(trainer: MixingTrainer, stopwatch: Stopwatch) -> Course:
    losses = trainer.ledger.evaluations().groupby("step")["loss"].mean()
    clock = trainer.ledger.clock().set_index("step")
    steps: list[int] = losses.index.tolist()
    return Course(
        losses=losses.tolist(),
        steps=steps,
        samples=clock["samples"].loc[steps].tolist(),
        seconds=[stopwatch.seconds[step - 1] for step in steps],
        largest_batch=int(clock["total"].max()),
    )


def _training_arguments(folder: str, seed: int, learning_rate: float) -> TrainingArguments:
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=MICRO_BATCH_SIZE,
        per_device_eval_batch_size=MICRO_BATCH_SIZE,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=0.05,  # a share of the data, whatever the size of the steps
        weight_decay=0.1,
        eval_strategy="steps",
        eval_steps=EVALUATION_SHARE,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=seed,
    )
