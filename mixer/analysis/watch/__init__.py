"""`mixer watch`: a live view of a run in the terminal."""
