"""Mixtures by regression: fits and searches on tables of real models and of known laws."""
