"""The inspection, and the preview of `mixer train --dry_run`, on a terminal. Data cannot format or control it."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from mixer.mixture.stream import Stream
from mixer.tools.analysis.inspect.examples import Decoder
from mixer.tools.analysis.inspect.findings import Finding, count
from mixer.tools.analysis.inspect.inspection import Batch, InspectedObjective, InspectedStream, Inspection
from mixer.tools.analysis.inspect.measures import Limits, Measures
from mixer.tools.analysis.inspect.model_losses import SourceLosses
from mixer.tools.analysis.inspect.sample_reader import readable
from mixer.tools.console import table_of
from mixer.tools.recipe.data.file_list import in_words
from mixer.utils.text import listed, printable

_MOST_PREVIEWED = 1000  # samples of a stream whose length is measured


def view_of(inspection: Inspection, findings: Sequence[Finding]) -> Group:
    """Shows an inspection and its findings; `--json` has all figures."""
    parts: list[RenderableType] = [table_of("Streams", [_figures(stream) for stream in inspection.streams])]
    for stream in inspection.streams:
        parts += [Text(printable(f"{stream.name}: {in_words(stream.files)}"))] if stream.files else []
        parts += [Text(printable(f"{stream.name} {place}: ")) + marked(one) for place, one in stream.examples.items()]
    if inspection.objective is not None:
        parts.append(Text(printable(_objective(inspection.objective))))
    parts.append(Text(f"The first step: {printable(_batch(inspection.batch))}"))
    if inspection.losses is not None:
        parts.append(table_of("Losses of the model", [_losses(source) for source in inspection.losses]))
    parts.append(Rule(count(len(findings), "warning"), style="dim"))
    parts += [Text.assemble(("! ", "bold yellow"), printable(finding.sentence)) for finding in findings]
    parts.append(Text(f"\n{count(inspection.samples_read, 'sample')} read in {inspection.seconds:.1f} s.", "dim"))
    return Group(*parts)


def _figures(stream: InspectedStream) -> dict[str, Any]:
    training, cut = stream.training, stream.truncation
    lengths = {} if training.lengths is None else training.lengths.quantiles
    return {
        "stream": printable(stream.name),
        "weight": stream.weight,
        "samples": training.size,
        "read": training.num_read,
        "validation": None if stream.validation is None else stream.validation.size,
        f"{training.unit or 'length'}, mean": None if training.lengths is None else training.lengths.mean,
        **{f"{share:.0%} up to": lengths.get(share) for share in (0.5, 0.95, 1.0)},
        "learned": training.share_learned,
        "truncated": None if cut is None else cut.share_cut,
        "classes": len(training.classes) or None,
    }


def _objective(objective: InspectedObjective) -> str:
    rows = listed([f"{count(number, 'row')} of {name}" for name, number in objective.test_rows.items()])
    return f"{objective.in_words[:1].upper()}{objective.in_words[1:]}; evaluated on {rows}."


def _batch(batch: Batch) -> str:
    if batch.error:
        return f"it cannot be formed: {batch.error}"
    micro_batches = count(len(batch.micro_batches), "micro-batch", "micro-batches")
    padding = f", {batch.padding:.1%} of the token positions are padding" if batch.padding else ""
    counts = listed([f"{number:,} of {name}" for name, number in batch.counts.items()])
    return f"{count(sum(batch.counts.values()), 'sample')} in {micro_batches}, {counts}{padding}."


def _losses(source: SourceLosses) -> dict[str, Any]:
    own = vars(source)
    return {name: own[name] for name in ("source", "is_validation", "num_rows", "num_labels", "loss", "entropy")} | {
        f"{share:.0%} of rows up to": loss for share, loss in source.row_losses.items()
    }


def preview(
    streams: Sequence[Stream], evaluation: Mapping[str, Any], weights: Mapping[str, float], decoder: Decoder
) -> Group:
    """Shows the number of samples, the mean length and the first sample of each stream.

    Args:
        streams: The streams.
        evaluation: Data sets for evaluation, by stream.
        weights: Initial weights, by stream.
        decoder: Decodes the samples.
    """
    rows, samples = [], []
    for stream in streams:
        dataset = readable(stream)
        first = next(iter(dataset), None) if stream.is_iterable or stream.is_memory else dataset[0]
        measures = Measures(dataset, 1 if stream.is_iterable else _MOST_PREVIEWED, 0, Limits(decoder.task))
        rows.append(
            {
                "stream": printable(stream.name),
                "samples": _size(stream.dataset),
                "for evaluation": _size(evaluation[stream.name]) if stream.name in evaluation else "none",
                "tokens / sample": _mean_length(measures),
                "weight": f"{weights[stream.name]:.3f}",
                "at most": _limits(stream),
            }
        )
        text = Text("none yet") if first is None else marked(decoder.decode(first))
        samples.append(Text.assemble(f"\n{printable(stream.name)}, first sample: ", text))
    more = Text("\nmixer inspect shows more: duplicates, the first step, problems in the data.")
    return Group(table_of("Streams", rows), *samples, more)


def marked(example: str) -> Text:
    """Shows an example on one line, its learned parts (between ⟦ and ⟧) in colour."""
    text = Text(printable(example))
    text.highlight_regex("⟦.*?⟧", "bold green")
    return text


def _limits(stream: Stream) -> str:
    limits = {"epoch": stream.max_epochs, "sample": stream.max_samples, "token": stream.max_tokens}
    given = [f"{limit:,.12g} {unit}{'' if limit == 1 else 's'}" for unit, limit in limits.items() if limit]
    return listed(given) if given else "no limit"


def _size(dataset: Any) -> str:
    return f"{len(dataset):,}" if hasattr(dataset, "__len__") else "not known"


def _mean_length(measures: Measures) -> str:
    if measures.lengths is None or measures.unit != "tokens":
        return "not known"
    return f"{measures.lengths.mean:,.1f}" + (" (of the first)" if measures.num_read == 1 else "")
