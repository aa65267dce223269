"""Around the training: what reads the records of runs, reads recipes, and starts runs. The core imports none of it."""
