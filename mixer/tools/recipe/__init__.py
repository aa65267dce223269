"""A YAML recipe becomes data, model, streams and trainer."""
