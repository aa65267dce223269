"""Intents of short requests: CLINC150, ten domains of 15 intents (Larson et al. 2019)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets

from tasks.sources.splits import Splits


def clinc150(path: Path | str, evaluation_split: str = "test") -> Splits:
    """Loads `data_full.json` and `domains.json` of clinc/oos-eval; out-of-scope requests are left out.

    Args:
        path: The folder with both files.
        evaluation_split: `"test"` or `"val"`.

    Returns:
        Two `datasets.Dataset` with columns `text`, `label` (intents numbered domain by domain: 0 to 14 are those of the
        first) and `domain` (its name).

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If there is no such split, or an intent belongs to no domain.
    """
    domains, requests = _read_json(Path(path), "domains.json"), _read_json(Path(path), "data_full.json")
    if evaluation_split not in ("test", "val"):
        raise ValueError(f"clinc150: evaluation_split must be 'test' or 'val', got {evaluation_split!r}.")
    domain_of = {intent: domain for domain, intents in domains.items() for intent in intents}
    return Splits(*(_as_dataset(requests[split], domain_of) for split in ("train", evaluation_split)))


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    if not (folder / name).is_file():
        raise FileNotFoundError(
            f"clinc150: {str(folder / name)!r} is missing. Give the folder with data_full.json and domains.json of "
            "github.com/clinc/oos-eval/tree/master/data."
        )
    content: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return content


def _as_dataset(requests: Sequence[tuple[str, str]], domain_of: dict[str, str]) -> datasets.Dataset:
    unknown = sorted({intent for _, intent in requests} - set(domain_of))
    if unknown:
        raise ValueError(f"clinc150: the intents {unknown[:5]} belong to no domain of domains.json.")
    text, intents = datasets.Value("string"), datasets.ClassLabel(names=list(domain_of))
    features = datasets.Features({"text": text, "label": intents, "domain": text})
    rows = [{"text": request, "label": intent, "domain": domain_of[intent]} for request, intent in requests]
    return datasets.Dataset.from_list(rows, features=features)
