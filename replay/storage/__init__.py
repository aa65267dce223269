"""Storage of the contents and payloads of entries."""

from replay.storage.codec import Row
from replay.storage.disk_rows import DiskRows
from replay.storage.rows import MemoryRows, Rows
from replay.storage.storage import InMemory, OnDisk, References, Storage, as_storage

__all__ = ["DiskRows", "InMemory", "MemoryRows", "OnDisk", "References", "Row", "Rows", "Storage", "as_storage"]
