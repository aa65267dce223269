"""Properties of models: inputs, heads, labels, per-row losses."""

from typing import TYPE_CHECKING

from mixer.utils.lazy_imports import lazy_names

if TYPE_CHECKING:
    from mixer.models.heads import Head
    from mixer.models.multi_task import MultiTaskConfig, MultiTaskModel
else:
    __getattr__, __dir__ = lazy_names(
        __name__, {"mixer.models.heads": ["Head"], "mixer.models.multi_task": ["MultiTaskConfig", "MultiTaskModel"]}
    )

__all__ = ["Head", "MultiTaskConfig", "MultiTaskModel"]
