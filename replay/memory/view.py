"""The interface of a replay buffer, for the modules below it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from mixer.utils.arrays import Int64Array
from replay.memory.sources import Sources
from replay.retrieval.base import Retrieval
from replay.selection.base import Offers, Selection
from replay.storage import Row, Rows, Storage


class BufferView(Protocol):
    """Attributes and methods of a `ReplayBuffer`; see there."""

    selection: Selection
    retrieval: Retrieval
    storage: Storage
    sources: Sources
    key: int | None
    capacity: int
    is_online: bool
    is_writer: bool
    label_column: str | None
    stream_names: tuple[str, ...] | None
    num_offered: int
    num_drawn: int
    num_gathered_bytes: int

    def __len__(self) -> int: ...

    @property
    def rows(self) -> Rows: ...  # noqa: D102

    @property
    def entries(self) -> Mapping[str, NDArray[Any]]: ...  # noqa: D102

    @property
    def num_samples_by_source(self) -> dict[str, int]: ...  # noqa: D102

    def addresses(self, slots: Int64Array) -> Int64Array: ...  # noqa: D102

    def numbers(self, slots: Int64Array) -> Int64Array: ...  # noqa: D102

    def reader(self, datasets: Mapping[str, Any]) -> Any: ...  # noqa: D102

    def read_labels(self, where: Int64Array) -> Int64Array | None: ...  # noqa: D102

    def offer(  # noqa: D102
        self,
        offers: Offers,
        addresses_of: Callable[[Int64Array], Int64Array],
        make_rows: Callable[[Int64Array], list[Row]] | None = None,
    ) -> Int64Array: ...

    def save(self, folder: Path | str) -> None: ...  # noqa: D102

    def load(self, folder: Path | str) -> None: ...  # noqa: D102
