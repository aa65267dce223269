"""Loading: turns each step's plan into this rank's micro-batches, for the trainer and for your own training loop."""
