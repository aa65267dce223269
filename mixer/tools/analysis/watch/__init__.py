"""`mixer watch`: a live view of a run on the terminal."""
