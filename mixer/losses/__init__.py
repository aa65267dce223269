"""The losses of streams: how a loss is normalised, and what it is by row and by set."""
