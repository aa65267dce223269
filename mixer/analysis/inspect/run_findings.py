"""What of a run as a whole will hurt: its first step, how its streams go together, its evaluation."""

from collections.abc import Callable, Iterator
from typing import Any

from mixer.analysis.inspect.finding import Finding, count
from mixer.analysis.inspect.inspection import Inspection

MOST_PADDING = 0.3  # share of a batch's places for tokens
MOST_TIMES_LONGER = 4.0  # mean length of the longest stream's samples over that of the shortest one's


def _failed_batch(inspection: Inspection) -> Iterator[Finding]:
    if inspection.batch.error:
        yield Finding("failed_batch", [], 1, f"The first step cannot be made: {inspection.batch.error}")


def _padded(inspection: Inspection) -> Iterator[Finding]:
    padding = inspection.batch.padding
    if padding is not None and padding > MOST_PADDING:
        yield Finding(
            "padding",
            [],
            padding,
            f"{padding:.0%} of the first step is padding: put samples of similar length together "
            "(training.train_sampling_strategy: group_by_length), bound micro-batches by max_tokens_per_micro_batch, "
            "or pack texts (Text does by itself).",
        )


def _unequal_lengths(inspection: Inspection) -> Iterator[Finding]:
    """Long samples weigh more in a loss that is a mean over tokens, where weights count samples."""
    means = {
        one.stream.name: one.lengths.mean
        for one in inspection.streams
        if one.lengths is not None and one.measures.unit == "tokens" and one.weight > 0
    }
    per_token = inspection.task in ("causal-lm", "masked-lm", "seq2seq-lm")
    if len(means) < 2 or not per_token or inspection.trainer.mixing.policy.unit != "samples":
        return
    longest, shortest = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    ratio = means[longest] / means[shortest] if means[shortest] else float("inf")
    if ratio > MOST_TIMES_LONGER:
        weights = {one.stream.name: one.weight for one in inspection.streams}
        tokens = {name: weights[name] * mean for name, mean in means.items()}
        share = tokens[longest] / sum(tokens.values())
        yield Finding(
            "unequal_lengths",
            [longest, shortest],
            ratio,
            f"Samples of {longest!r} are {ratio:.1f} times as long as those of {shortest!r} ({means[longest]:,.0f} "
            f"and {means[shortest]:,.0f} tokens), and weights count samples: with a weight of {weights[longest]:.2f} "
            f"it has {share:.0%} of the tokens. A policy with unit: tokens shares out tokens.",
        )


def _unevaluated(inspection: Inspection) -> Iterator[Finding]:
    without = [one.stream.name for one in inspection.streams if one.evaluation is None and not one.stream.is_memory]
    if inspection.trainer.args.eval_strategy != "no" and without:
        yield Finding(
            "no_evaluation",
            without,
            len(without),
            f"Of {count(len(inspection.streams), 'stream')} these have no data to evaluate on: "
            f"{', '.join(map(repr, without))}. Give validation, or data.validation_split.",
        )


def _without_special_tokens(inspection: Inspection) -> Iterator[Finding]:
    tokenizer: Any = inspection.trainer.processing_class
    if tokenizer is None or inspection.task not in ("causal-lm", "seq2seq-lm"):
        return
    for name in ("pad_token", "eos_token"):
        if getattr(tokenizer, name, None) is None:
            yield Finding(
                f"no_{name}", [], 0, f"The tokenizer has no {name}: give it one, or batches or texts lack it."
            )
        elif inspection.vocabulary is not None and getattr(tokenizer, f"{name}_id") >= inspection.vocabulary:
            number = getattr(tokenizer, f"{name}_id")
            yield Finding(
                f"unknown_{name}",
                [],
                number,
                f"The tokenizer's {name} is the number {number}, beyond the model's vocabulary of "
                f"{inspection.vocabulary:,}: the run ends when it is put in.",
            )


LOOKS: tuple[Callable[[Inspection], Iterator[Finding]], ...] = (
    *(_failed_batch, _padded, _unequal_lengths, _unevaluated, _without_special_tokens),
)
