"""Properties of models: inputs, heads, labels, per-row losses."""
