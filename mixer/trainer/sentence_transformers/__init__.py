"""The trainers of sentence-transformers on a mixture of streams."""
