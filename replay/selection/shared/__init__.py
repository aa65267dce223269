"""Data structures shared by selections."""
