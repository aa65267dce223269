"""What a run is made of before any part is built: options, plan, facts of the Trainer, hooks, loading."""
