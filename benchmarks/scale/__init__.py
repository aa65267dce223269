"""The cost of every part at sizes that few runs have, and over long runs."""
