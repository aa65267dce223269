"""Per-stream gradients: the probe, conflicts between streams, and gradient noise from ranks."""
