"""What a buffer holds: entries, their samples, and the order in which they are replayed."""
