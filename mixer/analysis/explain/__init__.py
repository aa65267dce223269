"""Why the weights of an update were what they were: a run's decisions, replayed from its ledger."""
