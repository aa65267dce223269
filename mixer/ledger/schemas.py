"""Columns and types of the ledger's tables."""

import pyarrow as pa

STREAMS = pa.schema(
    {
        "step": pa.int64(),
        "stream": pa.string(),
        "weight": pa.float64(),
        "count": pa.int64(),
        "items": pa.int64(),
        "loss": pa.float64(),
        "tokens": pa.int64(),
        "seen": pa.int64(),
        "unique": pa.int64(),
        "coverage": pa.float64(),
        "epoch": pa.float64(),
        "staleness": pa.int64(),
        "undelivered": pa.int64(),
        "policy_weight": pa.float64(),
        "loss_weight": pa.float64(),
        "owed": pa.float64(),
        "active": pa.bool_(),
        "skipped": pa.int64(),
    }
)
TIMINGS = pa.schema(
    {
        "step": pa.int64(),
        "total": pa.int64(),
        "micro_batches": pa.int64(),
        "hits": pa.int64(),
        "misses": pa.int64(),
        "load_seconds": pa.float64(),
        "train_seconds": pa.float64(),
        "probe_seconds": pa.float64(),
    }
)
CLOCK = pa.schema(
    {
        "step": pa.int64(),
        "samples": pa.int64(),
        "tokens": pa.int64(),
        "epoch": pa.float64(),
        "progress": pa.float64(),
        "batch_size": pa.int64(),
        "total": pa.int64(),
        "learning_rate": pa.float64(),
        "learning_rate_factor": pa.float64(),
        "loss": pa.float64(),
        "gradient_norm": pa.float64(),
        "update_norm": pa.float64(),
    }
)
EVALUATIONS = pa.schema({"step": pa.int64(), "stream": pa.string(), "loss": pa.float64()})
METRICS = pa.schema({"step": pa.int64(), "stream": pa.string(), "metric": pa.string(), "value": pa.float64()})
MEMORIES = pa.schema({"step": pa.int64(), "stream": pa.string(), "source": pa.string(), "entries": pa.int64()})
MEMORY_CLASSES = pa.schema({"step": pa.int64(), "stream": pa.string(), "label": pa.int64(), "entries": pa.int64()})
COMPARISONS = pa.schema(
    {"step": pa.int64(), "stream": pa.string(), "excess_loss": pa.float64(), "loss_after": pa.float64()}
)
DECISIONS = pa.schema(
    {
        "step": pa.int64(),
        "control": pa.string(),
        "level": pa.int64(),
        "rule": pa.string(),
        "term": pa.string(),
        "values": pa.list_(pa.float64()),
    }
)
GRADIENTS = pa.schema(
    {
        "step": pa.int64(),
        "stream": pa.string(),
        "count": pa.int64(),
        "share": pa.float64(),
        "squared_norm": pa.float64(),
        "variance": pa.float64(),
        "gram": pa.list_(pa.float64()),
        "gram_error": pa.list_(pa.float64()),
    }
)
