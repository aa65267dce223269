"""Mixing policies: rules from observations to the mixture of the next step."""

from mixer.policies.ado import ADO as ADO
from mixer.policies.balanced_pike import BalancedPiKE as BalancedPiKE
from mixer.policies.coba import CoBa as CoBa
from mixer.policies.contract import (
    Decision as Decision,
    Mixture as Mixture,
    Observation as Observation,
    Policy as Policy,
)
from mixer.policies.dga import DGA as DGA
from mixer.policies.doge import DoGE as DoGE
from mixer.policies.dynamic_weight_average import DWA as DWA
from mixer.policies.fixed import Fixed as Fixed
from mixer.policies.function import Function as Function
from mixer.policies.grad_norm import GradNorm as GradNorm
from mixer.policies.grape import GRAPE as GRAPE
from mixer.policies.group_dro import GroupDRO as GroupDRO
from mixer.policies.learnability import Learnability as Learnability
from mixer.policies.loss_change import LossChange as LossChange
from mixer.policies.marginal_value import MarginalValue as MarginalValue
from mixer.policies.mt_grpo import MTGRPO as MTGRPO
from mixer.policies.objective import Objective as Objective
from mixer.policies.odm import ODM as ODM
from mixer.policies.pike import PiKE as PiKE
from mixer.policies.proportional import Proportional as Proportional
from mixer.policies.registry import as_policy as as_policy, policy_classes as policy_classes
from mixer.policies.regularized_balance import RegularizedBalance as RegularizedBalance
from mixer.policies.scheduled import Scheduled as Scheduled
from mixer.policies.shared.static import StaticPolicy as StaticPolicy
from mixer.policies.shared.wrapper import Wrapper as Wrapper
from mixer.policies.skill_it import SkillIt as SkillIt
from mixer.policies.target_loss import TargetLoss as TargetLoss
from mixer.policies.temperature import Temperature as Temperature
from mixer.policies.uni_max import UniMax as UniMax
from mixer.policies.uniform import Uniform as Uniform
from mixer.policies.wrappers.floor import Floor as Floor
from mixer.policies.wrappers.hold import Hold as Hold
from mixer.policies.wrappers.overfit_guard import OverfitGuard as OverfitGuard
from mixer.policies.wrappers.safeguard import Safeguard as Safeguard
from mixer.policies.wrappers.smoothed import Smoothed as Smoothed
from mixer.policies.wrappers.trust_region import TrustRegion as TrustRegion
from mixer.policies.wrappers.warm_up import WarmUp as WarmUp
