"""Records of a run: ledger tables and progress bars."""

from typing import TYPE_CHECKING

from mixer.utils.lazy_imports import lazy_names

if TYPE_CHECKING:
    from mixer.ledger.ledger import Ledger
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "mixer.ledger.ledger": ["Ledger"],
        },
    )

__all__ = ["Ledger"]
