"""DoReMi: mixture weights from two small runs."""
