"""Methods of continual learning, for `ContinualRun(methods=[...])`: one file each."""

from tasks.methods.cls_er import CLSER as CLSER
from tasks.methods.coda_prompt import CODAPrompt as CODAPrompt
from tasks.methods.dual_prompt import DualPrompt as DualPrompt
from tasks.methods.er_ace import ERACE as ERACE
from tasks.methods.ewc import OnlineEWC as OnlineEWC
from tasks.methods.final_weights import FinalWeights as FinalWeights
from tasks.methods.icarl import ICaRL as ICaRL
from tasks.methods.inf_lora import InfLoRA as InfLoRA
from tasks.methods.l2p import L2P as L2P
from tasks.methods.lwf import LwF as LwF
from tasks.methods.merging import Merging as Merging
from tasks.methods.nearest_mean import nearest_mean as nearest_mean
from tasks.methods.o_lora import OLoRA as OLoRA
from tasks.methods.pseudo_samples import PseudoSamples as PseudoSamples
from tasks.methods.ran_pac import RanPAC as RanPAC
from tasks.methods.shared import TaskContext as TaskContext, TaskMethod as TaskMethod
from tasks.methods.si import SI as SI
from tasks.methods.slca import SLCA as SLCA, slow_encoder as slow_encoder
