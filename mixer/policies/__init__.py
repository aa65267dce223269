"""Mixing policies: rules from observations to the mixture of the next step."""

from mixer.policies.ado import ADO
from mixer.policies.aioli import Aioli
from mixer.policies.balanced_pike import BalancedPiKE
from mixer.policies.coba import CoBa
from mixer.policies.contract import Decision, Mixture, Observation, Policy
from mixer.policies.dga import DGA
from mixer.policies.doge import DoGE
from mixer.policies.doremi import DoReMi
from mixer.policies.dynamic_weight_average import DWA
from mixer.policies.famo import FAMO
from mixer.policies.fixed import Fixed
from mixer.policies.floor import Floor
from mixer.policies.function import Function
from mixer.policies.grad_norm import GradNorm
from mixer.policies.grape import GRAPE
from mixer.policies.group_dro import GroupDRO
from mixer.policies.hold import Hold
from mixer.policies.loss_change import LossChange
from mixer.policies.marginal_value import MarginalValue
from mixer.policies.objective import Objective
from mixer.policies.odm import ODM
from mixer.policies.op_mix import OPMix
from mixer.policies.overfit_guard import OverfitGuard
from mixer.policies.pike import PiKE
from mixer.policies.proportional import Proportional
from mixer.policies.registry import as_policy, policy_classes
from mixer.policies.regularized_balance import RegularizedBalance
from mixer.policies.safeguard import Safeguard
from mixer.policies.scheduled import Scheduled
from mixer.policies.shared.static import StaticPolicy
from mixer.policies.shared.wrapper import Wrapper
from mixer.policies.skill_it import SkillIt
from mixer.policies.smoothed import Smoothed
from mixer.policies.target_loss import TargetLoss
from mixer.policies.temperature import Temperature
from mixer.policies.trust_region import TrustRegion
from mixer.policies.uni_max import UniMax
from mixer.policies.uniform import Uniform
from mixer.policies.warm_up import WarmUp

__all__ = [
    "ADO",
    "DGA",
    "DWA",
    "FAMO",
    "GRAPE",
    "ODM",
    "Aioli",
    "BalancedPiKE",
    "CoBa",
    "Decision",
    "DoGE",
    "DoReMi",
    "Fixed",
    "Floor",
    "Function",
    "GradNorm",
    "GroupDRO",
    "Hold",
    "LossChange",
    "MarginalValue",
    "Mixture",
    "OPMix",
    "Objective",
    "Observation",
    "OverfitGuard",
    "PiKE",
    "Policy",
    "Proportional",
    "RegularizedBalance",
    "Safeguard",
    "Scheduled",
    "SkillIt",
    "Smoothed",
    "StaticPolicy",
    "TargetLoss",
    "Temperature",
    "TrustRegion",
    "UniMax",
    "Uniform",
    "WarmUp",
    "Wrapper",
    "as_policy",
    "policy_classes",
]
