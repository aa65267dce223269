"""Methods of continual learning, for `ContinualRun(methods=[...])`: one file each."""

from tasks.methods.cls_er import CLSER
from tasks.methods.coda_prompt import CODAPrompt
from tasks.methods.dual_prompt import DualPrompt
from tasks.methods.er_ace import ERACE
from tasks.methods.ewc import OnlineEWC
from tasks.methods.icarl import ICaRL
from tasks.methods.inf_lora import InfLoRA
from tasks.methods.l2p import L2P
from tasks.methods.lwf import LwF
from tasks.methods.merging import Merging
from tasks.methods.nearest_mean import nearest_mean
from tasks.methods.o_lora import OLoRA
from tasks.methods.pseudo_samples import PseudoSamples
from tasks.methods.ran_pac import RanPAC
from tasks.methods.si import SI
from tasks.methods.slca import SLCA, slow_encoder

__all__ = [
    "CLSER",
    "ERACE",
    "L2P",
    "SI",
    "SLCA",
    "CODAPrompt",
    "DualPrompt",
    "ICaRL",
    "InfLoRA",
    "LwF",
    "Merging",
    "OLoRA",
    "OnlineEWC",
    "PseudoSamples",
    "RanPAC",
    "nearest_mean",
    "slow_encoder",
]
