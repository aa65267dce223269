"""What a step measures beside its own loss."""
