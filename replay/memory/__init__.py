"""Content of a buffer: entries, their samples, and the order of replay."""
