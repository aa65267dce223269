"""Mixing policies: each one a rule from what was observed to the weights of the next update."""

from mixer.policies.ado import ADO
from mixer.policies.balanced_pike import BalancedPiKE
from mixer.policies.base import Decision, Mixture, Observation, Policy
from mixer.policies.doremi import DoReMi
from mixer.policies.fixed import Fixed
from mixer.policies.floor import Floor
from mixer.policies.function import Function
from mixer.policies.group_dro import GroupDRO
from mixer.policies.hold import Hold
from mixer.policies.loss_change import LossChange
from mixer.policies.odm import ODM
from mixer.policies.pike import PiKE
from mixer.policies.proportional import Proportional
from mixer.policies.registry import as_policy, policy_classes
from mixer.policies.scheduled import Scheduled
from mixer.policies.smoothed import Smoothed
from mixer.policies.static import StaticPolicy
from mixer.policies.target_loss import TargetLoss
from mixer.policies.temperature import Temperature
from mixer.policies.uniform import Uniform
from mixer.policies.warm_up import WarmUp
from mixer.policies.wrapper import Wrapper

__all__ = [
    "ADO",
    "ODM",
    "BalancedPiKE",
    "Decision",
    "DoReMi",
    "Fixed",
    "Floor",
    "Function",
    "GroupDRO",
    "Hold",
    "LossChange",
    "Mixture",
    "Observation",
    "PiKE",
    "Policy",
    "Proportional",
    "Scheduled",
    "Smoothed",
    "StaticPolicy",
    "TargetLoss",
    "Temperature",
    "Uniform",
    "WarmUp",
    "Wrapper",
    "as_policy",
    "policy_classes",
]
