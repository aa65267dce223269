"""TRL's trainers of preferences, DPOTrainer and RewardTrainer, on a mixture of streams."""

from dataclasses import dataclass

from mixer.run.config import MixingOptions
from mixer.trainer.trainer import MixingMixin

try:
    from trl import (  # type: ignore[attr-defined]  # lazy imports
        DPOConfig,
        DPOTrainer,
        RewardConfig,
        RewardTrainer,
    )
except ImportError as error:
    raise ImportError(f"MixingDPOTrainer needs TRL ({error}): pip install 'adaptive-mixer[trl]'.") from error


@dataclass
class MixingDPOConfig(MixingOptions, DPOConfig):
    """The training arguments of a `MixingDPOTrainer`; see `MixingOptions` and `trl.DPOConfig`."""


class MixingDPOTrainer(MixingMixin, DPOTrainer):
    """TRL's DPOTrainer on a mixture of streams; see `MixingMixin` and `trl.DPOTrainer` for the arguments."""


@dataclass
class MixingRewardConfig(MixingOptions, RewardConfig):
    """The training arguments of a `MixingRewardTrainer`; see `MixingOptions` and `trl.RewardConfig`."""


class MixingRewardTrainer(MixingMixin, RewardTrainer):
    """TRL's RewardTrainer on a mixture of streams; see `MixingMixin` and `trl.RewardTrainer` for the arguments."""
