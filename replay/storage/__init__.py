"""Storage of the contents and payloads of entries."""

from replay.storage.codec import Row as Row
from replay.storage.disk_rows import DiskRows as DiskRows
from replay.storage.rows import MemoryRows as MemoryRows, Rows as Rows
from replay.storage.storage import (
    InMemory as InMemory,
    OnDisk as OnDisk,
    References as References,
    Storage as Storage,
    as_storage as as_storage,
)
