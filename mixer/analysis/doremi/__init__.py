"""DoReMi: mixture weights from a reference run and a proxy run."""
