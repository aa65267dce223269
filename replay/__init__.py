"""Experience replay: buffers that are streams of a mixture, with selection, storage, retrieval and replay policies."""

from typing import TYPE_CHECKING

try:
    from mixer.utils.lazy_imports import lazy_names
except ImportError as error:
    import mixer

    raise ImportError(
        f"replay needs the package 'mixer' of adaptive-mixer, but Python finds {mixer}. Rename your own "
        "file; a package that pip installed belongs in another environment."
    ) from error

if TYPE_CHECKING:
    from replay.buffer import ReplayBuffer as ReplayBuffer
    from replay.feeding.features import extract_features as extract_features
    from replay.generation import self_generated as self_generated
    from replay.methods import AGEM as AGEM, DER as DER, DERPlusPlus as DERPlusPlus, ReferenceKL as ReferenceKL
    from replay.policies import ReplayBound as ReplayBound, ReplayRatio as ReplayRatio
    from replay.retrieval import MIR as MIR
    from replay.storage import InMemory as InMemory, OnDisk as OnDisk, References as References
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "replay.buffer": ["ReplayBuffer"],
            "replay.feeding.features": ["extract_features"],
            "replay.generation": ["self_generated"],
            "replay.methods": ["AGEM", "DER", "DERPlusPlus", "ReferenceKL"],
            "replay.policies": ["ReplayBound", "ReplayRatio"],
            "replay.retrieval": ["MIR"],
            "replay.storage": ["InMemory", "OnDisk", "References"],
        },
    )
