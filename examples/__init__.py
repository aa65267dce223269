"""Complete scripts to copy from, and the small data that they run on here; see `recipes/README.md`."""
