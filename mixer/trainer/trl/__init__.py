"""TRL's trainers on a mixture of streams."""
