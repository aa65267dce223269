"""Online filling of a buffer: each step offers its samples."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers.utils import logging

from mixer.distributed.consistency import check_shared
from mixer.loading.loaded_step import StepBatch
from mixer.mixture.stream import Stream
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import Method, RunContext
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError
from replay.memory.drawing import BufferCursor
from replay.memory.held_classes import HeldClasses
from replay.memory.kept_rows import KeptRows
from replay.memory.memory import Memory
from replay.retrieval import MIR
from replay.selection import Offers
from replay.shared.offered import Facts, Offered
from replay.storage import OnDisk
from replay.storage.sources import addresses

logger = logging.get_logger(__name__)

_UNSEEN = "Give OnDisk a folder that all ranks of a node see."
_CROWDED = "Give OnDisk a folder on each node's own disk."


class BufferFeeding(Method):
    """Offers the samples of each step to a buffer, identically on every rank.

    References, tasks and labels from a column are known on every rank. Everything else (labels without a column,
    losses, contents of iterable streams, payloads) is gathered after the backward pass, for the samples that need it
    only.

    Args:
        buffer: The buffer.
        name: Name of its stream.
        streams: The streams of the run.
    """

    name = ""  # in place of the property

    def __init__(self, buffer: Memory, name: str, streams: Sequence[Stream]):
        self._buffer, self.name = buffer, name
        names = buffer.stream_names
        fed = [stream for stream in streams if names is None or stream.name in names]
        of_retrieval = {"one stream each", "whole gradients"} if isinstance(buffer.retrieval, MIR) else set()
        has_iterables = buffer.storage.keeps_contents and any(stream.is_iterable for stream in fed)
        self.needs = frozenset(of_retrieval | ({"samples"} if has_iterables else set()))

    def attach(self, run: RunContext) -> None:
        """Resolves the streams to remember and checks them; see `Method.attach`."""
        buffer = self._buffer
        self._run, buffer.is_writer = run, run.is_writer
        self._classes = HeldClasses()
        self._memory_id = run.stream_id(self.name, "ReplayBuffer")
        own = [stream.name for stream in run.streams if stream.dataset is buffer]
        if len(own) > 1:
            raise self._refusal("train_dataset", f"{own} are the same buffer; give each a buffer of its own.")
        self._check_folder()
        names = buffer.stream_names
        if names is None:
            names = tuple(stream.name for stream in run.streams if not stream.is_memory)
        self._fed = [run.stream_id(name, f"Stream {self.name!r}: streams") for name in names]
        self._source_ids = np.full(len(run.streams), -1, dtype=np.int64)
        for stream_id in self._fed:
            stream = run.streams[stream_id]
            if stream.is_memory:
                raise self._refusal("streams", f"streams names {stream.name!r}, which is a buffer itself.")
            if stream.is_iterable and buffer.is_online and not buffer.storage.keeps_contents:
                text = f"rows of the iterable stream {stream.name!r} cannot be referred to. Keep their contents: "
                raise self._refusal("storage", f"{text}storage=InMemory() or OnDisk(folder).")
        if buffer.is_online:
            check_same_form(run.streams[self._memory_id], [run.streams[stream_id] for stream_id in self._fed])
        self.find_sources()
        self._find_labels()
        self.kept = KeptRows(run, self._fed, buffer)

    def prepare(self, model: nn.Module) -> None:
        """Refuses a model that the retrieval or selection does not support; see `Method.prepare`."""
        self._check_skipped()
        if isinstance(self._buffer.retrieval, MIR):
            self._buffer.retrieval.check(model, self._run.world_size)

    def retrieve(self, batch: StepBatch) -> bool:
        """Replaces the drawn entries if the retrieval depends on the model; see `Method.retrieve`."""
        retrieval, size = self._buffer.retrieval, len(self._buffer)
        return isinstance(retrieval, MIR) and retrieval.redraw(self._run, batch, self._memory_id, size)

    def find_sources(self) -> None:
        """Registers the data sets with the buffer and stores their ids, which a saved buffer brings along."""
        for stream_id in self._fed:
            stream, sources = self._run.streams[stream_id], self._buffer.sources
            if stream.is_iterable:
                self._source_ids[stream_id] = sources.add_unreadable(stream.name)
            else:
                is_read = not self._buffer.storage.keeps_contents
                self._source_ids[stream_id] = sources.add(stream.name, stream.dataset, is_read)

    def _check_folder(self) -> None:
        """Refuses a folder shared by two buffers or two nodes: they would overwrite each other."""
        folder = self._buffer.storage.working_folder
        if folder is None:
            return
        buffers = {stream.name: getattr(stream.dataset, "storage", None) for stream in self._run.streams}
        on_disk = {name: storage for name, storage in buffers.items() if isinstance(storage, OnDisk)}
        shared = [name for name, own in on_disk.items() if own.working_folder.resolve() == folder.resolve()]
        if len(shared) > 1:
            raise self._refusal("storage", f"{shared} share the folder {folder}: give each a folder of its own.")
        check_shared(folder, self._run.is_writer, self._run.rank_sync, _UNSEEN, _CROWDED)

    def _refusal(self, option: str | None, text: str) -> InvalidValueError:
        return InvalidValueError(f"Stream {self.name!r}: {text}", option=option, stream=self.name)

    def _find_labels(self) -> None:
        """Determines which columns the ranks must exchange; the same on all of them."""
        buffer = self._buffer
        needs = buffer.selection.needs if buffer.is_online else frozenset()
        self._labels_are_in_columns = False
        fed = [self._run.streams[stream_id] for stream_id in self._fed]
        iterable = [stream.name for stream in fed if stream.is_iterable]
        if "label" in needs and iterable and buffer.label_column is not None:
            text = f"label_column={buffer.label_column!r} cannot be read of the iterable streams {iterable}. "
            raise self._refusal("label_column", f"{text}Leave it out, to take the labels that are trained on.")
        if "label" in needs and not iterable:
            firsts = [addresses(int(self._source_ids[stream_id]), np.zeros(1, np.int64)) for stream_id in self._fed]
            self._labels_are_in_columns = buffer.read_labels(np.concatenate(firsts)) is not None
        self._follows_losses = buffer.is_online and buffer.selection.follows_losses
        self._asked = tuple(sorted(needs & ({"loss"} if self._labels_are_in_columns else {"loss", "label"})))

    def _check_skipped(self) -> None:
        """Refuses streams that may skip samples if the buffer stores data per sample: skipped samples have none."""
        streams = self._run.streams
        skipped = [streams[stream_id].name for stream_id in self._fed if stream_id in self._run.skipped]
        goes_by_more = self.asks or self._follows_losses or isinstance(self._buffer.retrieval, MIR)
        if skipped and self._buffer.is_online and (goes_by_more or self.kept.are_any):
            text = (
                f"samples of {skipped} may be skipped, and this buffer keeps something of each, or goes by its label "
                "or loss. Give those streams on_sample_error='raise', or take references and 'Reservoir'."
            )
            raise self._refusal("on_sample_error", text)

    @property
    def asks(self) -> bool:
        """Whether the ranks must exchange data about the samples."""
        return bool(self._asked)

    # ---- A step ----

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Resets the records of the step, which may be a repeated one; see `Method.begin_step`."""
        self._offered = Offered(batch.plan, self._fed if self._buffer.is_online else [])
        self._facts = Facts(self._asked, self._offered.count)
        self._replayed = Offered(batch.plan, [self._memory_id] if self._follows_losses else [])
        self._replayed_facts = Facts(("loss",), self._replayed.count)
        self.kept.begin(self._offered)
        self._no_classes = "another rank found none"

    def end_forward(self, trained: ForwardResult) -> None:
        """Records model outputs to store; see `Method.end_forward`."""
        self.kept.note(trained)

    def end_micro_batch(self, model: nn.Module, trained: ForwardResult, ends_priority: bool) -> None:
        """Records losses and labels of this rank; see `Method.end_micro_batch`."""
        for offered, facts in ((self._offered, self._facts), (self._replayed, self._replayed_facts)):
            numbers = offered.of_micro_batch(trained.micro)
            if "loss" in facts.names and (numbers >= 0).any():
                facts.note("loss", numbers, self._losses(trained))
            if "label" in facts.names and (numbers >= 0).any():
                self._note_labels(numbers, trained.micro.inputs.get("labels"))

    def _note_labels(self, numbers: Int64Array, labels: Any) -> None:
        if not isinstance(labels, Tensor):
            self._no_classes = "there are no 'labels'"
        elif labels.shape != numbers.shape or labels.is_floating_point():
            self._no_classes = f"'labels' are {labels.dtype} of shape {list(labels.shape)}"
        else:
            self._facts.note("label", numbers, labels)

    def _losses(self, trained: ForwardResult) -> Tensor:
        """Returns `[num_rows]`: the mean loss per item of each row."""
        rows = trained.row_losses
        if rows is None or len(rows) != len(trained.micro.stream_ids):
            text = "goes by the losses of samples, but the loss of this model cannot be told apart by row."
            raise self._refusal("selection", f"selection={self._buffer.selection.name} {text}")
        return rows / trained.items.to(rows.device).clamp(min=1)

    def close(self, batch: StepBatch) -> None:
        """Offers the step's samples; see `Method.close`."""
        buffer, offered = self._buffer, self._offered
        self._refresh_losses()
        if not offered.count:
            return
        known = self._facts.gathered(self._run.rank_sync) if self._asked else {}
        labels = self._read_labels() if self._labels_are_in_columns else self._noted_labels(known)
        tasks = self._source_ids[offered.stream_ids]
        offers = Offers(offered.count, buffer.num_offered, tasks, labels, known.get("loss"))
        make = partial(self.kept.make, batch) if self.kept.are_any else None
        buffer.offer(offers, self._addresses, make, renews_rows=self.kept.depend_on_model)

    def _noted_labels(self, known: Mapping[str, FloatArray]) -> Int64Array | None:
        if "label" not in self._asked:
            return None
        if "label" not in known:
            text = (
                f"selection={self._buffer.selection.name} needs the 'label' of each sample, a whole number, and in the "
                f"batches {self._no_classes}. Name the label_column, or take a selection that goes by no class."
            )
            raise self._refusal("selection", text)
        return known["label"].astype(np.int64)

    def _read_labels(self) -> Int64Array | None:
        read = partial(self._buffer.read_labels, self._addresses(np.arange(self._offered.count)))
        # A rank that cannot read must not leave others waiting for it in what comes after.
        return self._run.rank_sync.run_on_all(read) if self.kept.are_gathered else read()

    def _refresh_losses(self) -> None:
        """Updates the losses of replayed entries in the selection, before any of them is replaced."""
        if self._replayed.count:
            found = self._replayed_facts.gathered(self._run.rank_sync)["loss"]
            ((_, _, positions),) = self._replayed.by_stream(np.arange(self._replayed.count))
            cursor = self._run.planner().cursors[self._memory_id]
            assert isinstance(cursor, BufferCursor), "a buffer draws for its stream"  # noqa: S101
            self._buffer.selection.update_losses(cursor.slots(positions), found)

    def _addresses(self, numbers: Int64Array) -> Int64Array:
        where = np.full(len(numbers), -1, dtype=np.int64)
        cursors = self._run.planner().cursors
        for stream_id, are_own, positions in self._offered.by_stream(numbers):
            if not self._run.streams[stream_id].is_iterable:
                where[are_own] = addresses(int(self._source_ids[stream_id]), cursors[stream_id].references(positions))
        return where

    # ---- Logs and checkpoints ----

    def memory_counts(self) -> tuple[dict[str, int], dict[int, int]]:
        """Counts the buffer's entries by source and by class; see `Method.memory_counts`."""
        return self._buffer.num_samples_by_source, self._classes.count(self._buffer)

    def log_entries(self) -> dict[str, float]:
        """Returns the buffer's size, and the bytes gathered for it."""
        entries = {f"memory_size/{self.name}": float(len(self._buffer))}
        if self._buffer.num_gathered_bytes:
            entries[f"memory_bytes_gathered/{self.name}"] = float(self._buffer.num_gathered_bytes)
        return entries

    @property
    def log_state(self) -> dict[str, Any]:
        """The classes seen so far; see `Method`."""
        return {"classes": sorted(self._classes.seen)}

    @log_state.setter
    def log_state(self, state: Mapping[str, Any]) -> None:
        self._classes.seen = set(state.get("classes", ()))

    def save(self, folder: Path) -> None:
        """Writes the buffer; see `Method.save`."""
        self._buffer.save(folder)

    def load(self, folder: Path, allow_inexact: bool = False) -> None:
        """Loads the saved buffer; see `Method.load`."""
        try:
            if not folder.is_dir():
                raise InvalidValueError("the buffer is not in the checkpoint", option=str(folder))
            self._buffer.load(folder)
        except ValueError as error:
            problem, option = str(error).rstrip("."), getattr(error, "option", None)
            if not allow_inexact:
                hint = "To continue with the present buffer, set allow_inexact=True."
                raise self._refusal(option, f"{problem}. {hint}") from None
            logger.warning("Stream %r: %s. The run continues with the buffer as it is.", self.name, problem)
        self.find_sources()


def check_same_form(memory: Stream, offered: Sequence[Stream]) -> None:
    """Refuses a buffer with another collator, loss or head than the streams it samples from.

    Args:
        memory: The buffer's stream.
        offered: The streams that it samples from.

    Raises:
        ValueError: If they differ; the streams and fields are named.
    """
    differing = {stream.name: names for stream in offered if (names := _differing(memory, stream))}
    if not differing:
        return
    fields = ", ".join(sorted({name for names in differing.values() for name in names}))
    text = (
        f"Stream {memory.name!r}: it remembers samples of the streams {list(differing)}, whose {fields} differ from "
        f"its own. Make one for each, ReplayBuffer(..., streams={[next(iter(differing))]}), whose Stream has the same."
    )
    raise InvalidValueError(text, option=fields, stream=memory.name, found=list(differing))


def _differing(memory: Stream, stream: Stream) -> list[str]:
    # A model that takes a task needs the head of a memory; without one the streams' names are no heads.
    head = stream.head if memory.head is None else stream.head or stream.name
    differs = {
        "head": head != memory.head,
        "data_collator": stream.data_collator is not memory.data_collator,
        "compute_loss_func": stream.compute_loss_func != memory.compute_loss_func,
        "label_names": tuple(stream.label_names or ()) != tuple(memory.label_names or ()),
    }
    return [name for name, is_other in differs.items() if is_other]
