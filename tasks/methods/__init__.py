"""Methods of continual learning, one file each, with its paper."""

from tasks.methods.inf_lora import InfLoRA
from tasks.methods.merging import Merging
from tasks.methods.o_lora import OLoRA
from tasks.methods.pseudo_samples import PseudoSamples
from tasks.methods.self_distillation import SelfDistillation

__all__ = ["InfLoRA", "Merging", "OLoRA", "PseudoSamples", "SelfDistillation"]
