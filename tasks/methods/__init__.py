"""Methods of continual learning, one file each, with its paper."""

from tasks.methods.o_lora import OLoRA

__all__ = ["OLoRA"]
