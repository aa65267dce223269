"""How far the streams of a run conflicted and were aligned, by the gradients that its policy measured.

Streams are c-conflicted if -c (||g_j||² + ||g_k||²) <= <g_j, g_k>, and c̄-aligned if <g_j, g_k> <= c̄ ||g_j|| ||g_k||.
"""

import numpy as np
import pandas as pd

from mixer.gradients.records import measurements_in
from mixer.policies.gradient_statistics import alignment_of, conflict_of

KINDS = {
    "conflict": "c",
    "alignment": "c̄",
    "least_cosine": "least cosine",
    "mean_cosine": "mean",
    "largest_cosine": "largest",
    "share_negative": "share below 0",
}


def gradients_seen(rows: pd.DataFrame) -> dict[str, float] | None:
    """Says how far the streams conflicted and were aligned.

    Args:
        rows: The ledger's table of gradients.

    Returns:
        `conflict` and `alignment`: the least c and c̄ of the products and norms averaged over the run, every measurement
        by its own scale; `least_cosine`, `mean_cosine` and `largest_cosine` of single measurements, which noise draws
        to 0, and `share_negative` of them; `num_measurements`. `None` without any.
    """
    found = [statistics for _, _, statistics in measurements_in(rows)] if len(rows) else []
    found = [one for one in found if np.isfinite(one.gram).all() and np.isfinite(one.squared_norm).all()]
    if not found:
        return None
    gram = np.mean([one.gram / np.trace(one.gram) for one in found], axis=0)
    squared_norm = np.mean([one.squared_norm / np.trace(one.gram) for one in found], axis=0)
    above = np.triu_indices(len(gram), 1)
    cosines = np.concatenate([one.cosines[above] for one in found])
    return {
        "conflict": conflict_of(gram, squared_norm),
        "alignment": alignment_of(gram, squared_norm),
        "least_cosine": float(cosines.min()),
        "mean_cosine": float(cosines.mean()),
        "largest_cosine": float(cosines.max()),
        "share_negative": float((cosines < 0.0).mean()),
        "num_measurements": len(found),
    }
