"""Columns and types of the ledger's tables."""

import pyarrow as pa

_TYPES = {
    **dict.fromkeys(["stream", "source", "metric", "control", "rule", "term", "kind"], pa.string()),
    **dict.fromkeys(
        ["step", "count", "items", "tokens", "labels", "seen", "unique", "staleness", "undelivered"], pa.int64()
    ),
    **dict.fromkeys(["skipped", "total", "micro_batches", "hits", "misses", "samples", "batch_size"], pa.int64()),
    **dict.fromkeys(["entries", "label", "level"], pa.int64()),
    **dict.fromkeys(["length", "key", "shift", "position", "groups"], pa.int64()),
    **dict.fromkeys(["values", "gram", "gram_error"], pa.list_(pa.float64())),
    "rows": pa.list_(pa.int64()),
    **dict.fromkeys(["active", "shuffle"], pa.bool_()),
}


def _schema(*columns: str) -> pa.Schema:
    return pa.schema([(name, _TYPES.get(name, pa.float64())) for name in columns])


STREAMS = _schema(
    *("step", "stream", "weight", "count", "items", "loss", "tokens", "seen", "unique", "coverage", "epoch"),
    *("staleness", "undelivered", "policy_weight", "loss_weight", "owed", "active", "skipped", "labels"),
)
TIMINGS = _schema(
    *("step", "total", "micro_batches", "hits", "misses", "load_seconds", "train_seconds", "probe_seconds")
)
CLOCK = _schema(
    *("step", "samples", "tokens", "epoch", "progress", "batch_size", "total", "learning_rate"),
    *("learning_rate_factor", "loss", "gradient_norm", "labels"),
)
EVALUATIONS = _schema("step", "stream", "loss")
METRICS = _schema("step", "stream", "metric", "value")
SCHEMAS = {
    "streams": STREAMS,
    "clock": CLOCK,
    "timings": TIMINGS,
    "evaluations": EVALUATIONS,
    "metrics": METRICS,
    "gradients": _schema("step", "stream", "count", "share", "squared_norm", "variance", "gram", "gram_error"),
    "decisions": _schema("step", "control", "level", "rule", "term", "values"),
    "memories": _schema("step", "stream", "source", "entries"),
    "memory_classes": _schema("step", "stream", "label", "entries"),
    "orders": _schema("step", "stream", "kind", "length", "key", "shuffle", "shift"),
    "left_out": _schema("step", "stream", "position"),
    "rewards": _schema("step", "stream", "groups", "reward", "spread", "silent", "mean_length", "kl"),
    "replays": _schema("step", "stream", "source", "rows"),
    "terms": _schema("step", "term", "value"),
}
