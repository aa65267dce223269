"""Whether there is anything to gain from another mixture."""
