"""Rows that a model writes itself, to be replayed where its old data are missing."""

from replay.generation.self_generated import self_generated as self_generated
