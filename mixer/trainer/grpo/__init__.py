"""GRPO, and what derives from it, on prompts of several streams."""
