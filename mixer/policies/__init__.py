"""Mixing policies: each one a rule from what was observed to the weights of the next update."""

from mixer.policies.balanced_pike import BalancedPiKE
from mixer.policies.base import Decision, Mixture, Observation, Policy
from mixer.policies.doge import DoGE
from mixer.policies.fixed import Fixed
from mixer.policies.floor import Floor
from mixer.policies.function import Function
from mixer.policies.grad_norm import GradNorm
from mixer.policies.grape import GRAPE
from mixer.policies.hold import Hold
from mixer.policies.loss_change import LossChange
from mixer.policies.objective_descent import ObjectiveDescent
from mixer.policies.pike import PiKE
from mixer.policies.proportional import Proportional
from mixer.policies.registry import as_policy, policy_classes
from mixer.policies.regularized_balance import RegularizedBalance
from mixer.policies.scheduled import Scheduled
from mixer.policies.smoothed import Smoothed
from mixer.policies.static import StaticPolicy
from mixer.policies.temperature import Temperature
from mixer.policies.uniform import Uniform
from mixer.policies.warm_up import WarmUp
from mixer.policies.wrapper import Wrapper

__all__ = [
    "GRAPE",
    "BalancedPiKE",
    "Decision",
    "DoGE",
    "Fixed",
    "Floor",
    "Function",
    "GradNorm",
    "Hold",
    "LossChange",
    "Mixture",
    "ObjectiveDescent",
    "Observation",
    "PiKE",
    "Policy",
    "Proportional",
    "RegularizedBalance",
    "Scheduled",
    "Smoothed",
    "StaticPolicy",
    "Temperature",
    "Uniform",
    "WarmUp",
    "Wrapper",
    "as_policy",
    "policy_classes",
]
