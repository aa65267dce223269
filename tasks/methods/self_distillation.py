"""Self-distillation fine-tuning: a model learns from itself, shown the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from mixer.models.labels import IGNORED
from mixer.trainer.method import Method, RunContext, TaskContext
from mixer.utils.ranges import check_count, check_range
from tasks.generation.answers import padded
from tasks.methods.generation import check_generates, padding_of, sample
from tasks.methods.shared import copied, load_tensors, save_tensors, trainable

if TYPE_CHECKING:
    from mixer.loading.loaded_step import StepBatch
    from mixer.mixture.step_plan import Plan
    from mixer.run.hooks import ForwardResult
    from mixer.utils.arrays import FloatArray, Int64Array

Tokens = list[int]


def shown(prompt: Tokens, answer: Tokens) -> Tokens:
    """Returns the prompt, its answer, and the prompt again: an example in the context of the teacher."""
    return [*prompt, *answer, *prompt]


class SelfDistillation(Method):
    """Trains a model on its own answers, with itself as the teacher that has seen the right answer.

    Shenfeld et al. 2026, "Self-Distillation Enables Continual Learning", arXiv:2601.19897 (SDFT): for a prompt x with
    the answer c, the student samples `y ~ π_θ(·|x)`, and the loss is the mean over the tokens of y of
    `KL(π_θ(·|x, y_<t) || π_φ(·|x, c, y_<t))`, over the whole vocabulary. The teacher's parameters φ begin as those of
    the model before the task and follow θ as a moving average. It takes the place of the loss of the answers, which is
    still measured and logged. What the model does not need to change stays as it is, as the samples are its own.

    A sample's prompt is what comes before its first label, its answer the labels. Micro-batches contain one stream
    each. A step runs the model three times more and samples; one more copy of the trained parameters is kept.

    Args:
        rate: Share of θ in the moving average at each step; 0.01 in the paper, and 0 keeps the model before the task.
        max_new_tokens: Largest number of tokens to sample; `None` for the longest answer of the micro-batch.
        context: Makes the teacher's context of the tokens of a prompt and its answer; with a chat template it says
            that the answer is an example. The default is the prompt, the answer and the prompt again.

    Raises:
        ValueError: If a value is outside its range; when the trainer is made, if the model does not write text; during
            training, if a sample has no prompt or no answer.

    Example:
        >>> run = ContinualRun(model, sequence, args, methods=[SelfDistillation()])  # doctest: +SKIP
    """

    adds_term = True
    takes_weights = True
    one_stream_each = True

    def __init__(
        self,
        rate: float = 0.01,
        max_new_tokens: int | None = None,
        context: Callable[[Tokens, Tokens], Tokens] = shown,
    ):
        check_range("rate", rate, 0.0, 1.0, "0.01 is usual, and 0 keeps the teacher as it is")
        if max_new_tokens is not None:
            check_count("max_new_tokens", max_new_tokens, 1, "None takes the length of the longest answer")
        self.rate, self.max_new_tokens, self.context = float(rate), max_new_tokens, context
        self._teacher: dict[str, Tensor] | None = None
        self._num_sampled = 0

    def attach(self, run: RunContext) -> None:
        """Refuses models that do not write text; see `Method.attach`."""
        check_generates(run.runs.model, self.name)
        self._run, self._teacher = run, None

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Forgets the teacher of the task before; see `Method.begin_task`."""
        self._teacher = None

    def prepare(self, model: nn.Module) -> None:
        """Begins with the model as its own teacher; see `Method.prepare`."""
        if self._teacher is None:
            self._teacher = copied(self._run.runs.model)

    def factors(self, plan: Plan, items: Int64Array) -> FloatArray:
        """Leaves out the loss of the answers; see `Method.factors`."""
        return np.zeros(len(items))

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Counts micro-batches, for their random keys; see `StepHook.begin_step`."""
        self._num_sampled = 0

    def term(self, trained: ForwardResult) -> Tensor:
        """Returns this micro-batch's part of the mean divergence; see `Method.term`."""
        micro = trained.micro
        ids, labels = micro.inputs["input_ids"], micro.inputs["labels"]
        masks = micro.inputs.get("attention_mask", torch.ones_like(ids)).bool()
        rows = [self._parts(*row) for row in zip(ids, labels, masks, strict=True)]
        written = self._written([prompt for prompt, _ in rows], max(len(answer) for _, answer in rows), trained.plan)
        student = self._log_probabilities([prompt for prompt, _ in rows], written, None)
        with torch.no_grad():
            contexts = [self.context(prompt, answer) for prompt, answer in rows]
            teacher = self._log_probabilities(contexts, written, self._teacher)
        return self._run.mean_over_step(mean_divergences(student, teacher, written), trained)

    def _parts(self, ids: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tokens, Tokens]:
        """Returns the tokens of a row's prompt and answer."""
        places = labels.ne(IGNORED).nonzero().flatten().tolist()
        prompt = ids[: places[0]][mask[: places[0]]].tolist() if places else []
        if not prompt:
            raise ValueError(
                f"{self.name} samples answers to prompts, but a sample has no "
                f"{'prompt before its first label' if places else 'label'}. Set labels to -100 for the tokens of the "
                "prompt, and only for them."
            )
        return prompt, ids[places].tolist()

    def _written(self, prompts: Sequence[Tokens], longest: int, plan: Plan) -> Tensor:
        """Samples the student's answers `[num_rows, num_tokens]`; -1 after their end."""
        run = self._run
        key = (run.seed, plan.step, run.rank, self._num_sampled)
        self._num_sampled += 1
        ids, mask = self._padded(prompts)
        return sample(run.runs, ids, mask, self.max_new_tokens or longest, key)

    def _padded(self, rows: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """Returns rows padded on the left, and their mask."""
        ids, mask = padded(rows, padding_of(self._run.runs.model))
        return ids.to(self._run.device), mask.to(self._run.device)

    def _log_probabilities(
        self, contexts: Sequence[Tokens], written: Tensor, parameters: dict[str, Tensor] | None
    ) -> Tensor:
        """Returns the log-probabilities of all tokens at each written one, `[num_rows, num_tokens, num_words]`.

        Args:
            contexts: What comes before, by row.
            written: The tokens, -1 after a row's end.
            parameters: The teacher's; `None` for the model as it is trained.
        """
        ids, mask = self._padded(contexts)
        whole = torch.cat([mask, written.ge(0).long()], dim=1)
        inputs = {
            "input_ids": torch.cat([ids, written.clamp(min=0)], dim=1),
            "attention_mask": whole,
            "position_ids": (whole.cumsum(dim=1) - 1).clamp(min=0),
        }
        model = self._run.runs.model
        if parameters is None:
            logits = model(**inputs).logits
        else:
            with self._run.runs.without_gradients(training=False):
                logits = functional_call(model, parameters, kwargs=inputs).logits
        return logits[:, ids.shape[1] - 1 : -1].float().log_softmax(dim=-1)  # type: ignore[no-any-return]

    @torch.no_grad()
    def close(self, batch: StepBatch) -> None:
        """Moves the teacher towards the model; see `Method.close`."""
        for name, parameter in trainable(self._run.runs.model).items() if self.rate else ():
            assert self._teacher is not None, "a run has begun"  # noqa: S101
            self._teacher[name].lerp_(parameter.to(self._teacher[name].dtype), self.rate)

    def save(self, folder: Path) -> None:
        """Writes the teacher; see `Method.save`."""
        if self._teacher is not None:
            save_tensors(folder, teacher=self._teacher)

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Reads the teacher; see `Method.load`."""
        if (state := load_tensors(folder, self._run.device)) is not None:
            self._teacher = state["teacher"]

    def end_task(self, task: TaskContext, model: nn.Module) -> None:
        """Drops the teacher; see `Method.end_task`."""
        self._teacher = None


def mean_divergences(student: Tensor, teacher: Tensor, written: Tensor) -> Tensor:
    """Returns the mean over a row's tokens of the divergence of the student from the teacher.

    Args:
        student: `[num_rows, num_tokens, num_words]`: log-probabilities.
        teacher: Likewise.
        written: int64 `[num_rows, num_tokens]`: the tokens, -1 after a row's end.

    Returns:
        `[num_rows]`.
    """
    counts = written.ge(0)
    divergences = (student.exp() * (student - teacher)).sum(dim=-1)
    return divergences.where(counts, 0.0).sum(dim=1) / counts.sum(dim=1).clamp(min=1)
