"""Reads what Weights & Biases keeps of a run in offline mode: records of protocol buffers in a log of blocks."""

import json
import struct
import time
from pathlib import Path
from typing import Any

_BLOCK, _HEADER = 32768, 7


def records(path: Path) -> list[Any]:
    """Gives the records of a `.wandb` file."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts, found = path.read_bytes(), _HEADER, b"", []
    while place + _HEADER <= len(data):
        if _BLOCK - place % _BLOCK < _HEADER:  # the rest of a block is too short for a piece
            place += _BLOCK - place % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + _HEADER])
        parts += data[place + _HEADER : place + _HEADER + length]
        place += _HEADER + length
        if kind in (1, 4):  # whole, or the last piece of a record
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            found.append(record)
            parts = b""
    return found


def wait_for_the_end(path: Path, timeout_seconds: float = 60.0) -> None:
    """Waits until all is written: a process of its own does it."""
    end = time.monotonic() + timeout_seconds
    while not any(record.WhichOneof("record_type") == "exit" for record in records(path)):
        assert time.monotonic() < end, f"{path} never ended"
        time.sleep(0.1)


def logged(path: Path, kind: str) -> list[dict[str, Any]]:
    """Gives the rows that were logged (`history`), or what was put into the config (`config`)."""
    told = [getattr(record, kind) for record in records(path) if record.WhichOneof("record_type") == kind]
    batches = [one.item if kind == "history" else one.update for one in told]
    return [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in items} for items in batches]
