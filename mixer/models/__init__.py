"""Properties of models: heads, labels, per-row losses, and the normalisation of the loss."""
