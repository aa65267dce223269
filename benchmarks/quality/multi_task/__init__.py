"""One model for six tasks, against six models."""
