"""What measures the requests: one hook a file, and the passes beside the step that some of them need."""
