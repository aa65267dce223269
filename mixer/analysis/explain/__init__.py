"""Why the weights of a step were what they were: a run's decisions, replayed from its ledger."""
