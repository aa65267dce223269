"""The Hugging Face Trainer on a mixture of streams."""
