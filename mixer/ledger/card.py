"""The mixture card: what a model was trained on, as plain data and as a section of its model card."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mixer.ledger.folder import open_ledger, read_description
from mixer.ledger.ledger import Ledger
from mixer.utils.files import write_text
from mixer.utils.text import as_code, rule_in_words

TITLE = "## Training data and its mixture"
_MOST_POINTS = 5  # of the mixture over time
_COLUMNS = ["source", "rows", "samples", "share", "tokens", "passes", "rows never seen"]
_COLUMNS += ["licence", "origin", "content"]


def mixture_card(folder: str | Path) -> dict[str, Any]:
    """Reads what a run was trained on.

    Args:
        folder: Output folder of a trainer.

    Returns:
        JSON-compatible data: steps, samples and tokens; policy, mixing (as in a recipe), objective, groupings, seed and
        data_seed; sources (a row each: name, kind, rows, samples, share, tokens, token_share, passes, rows_never_seen,
        and where they are known fingerprint, content, licence, origin); over_time (share of samples of each source in
        parts of the run); never_drawn (names); evaluated_on_training_rows (a sentence, or `None` where nothing is
        known); development_rows; parent and forked_at of a fork; version.

    Raises:
        ValueError: If there is no such run, or it has no step.
    """
    run, rows = read_description(folder), open_ledger(folder).read("streams").to_pandas()
    described = {row["name"]: row for row in run.get("streams", [])}
    totals = rows.groupby("stream", sort=False).agg(
        samples=("count", "sum"), tokens=("tokens", "sum"), unique=("unique", "last"), skipped=("skipped", "last")
    )
    num_samples, num_tokens = int(totals["samples"].sum()), int(totals["tokens"].sum())
    sources = []
    for name, total in totals.iterrows():
        size = described.get(str(name), {}).get("num_samples")
        samples, tokens = int(total["samples"]), int(total["tokens"])
        row = {"name": name, "kind": described.get(str(name), {}).get("kind"), "rows": size, "samples": samples}
        row |= {"share": samples / max(num_samples, 1), "tokens": tokens, "token_share": tokens / max(num_tokens, 1)}
        row |= {"passes": samples / size if size else None, "skipped": int(total["skipped"])}
        row["rows_never_seen"] = None if size is None else size - int(total["unique"])
        sources.append({**row, **run.get("sources", {}).get(name, {})})
    kept = ["mixing", "objective", "groupings", "batch_size", "seed", "data_seed", "development_rows", "version"]
    kept += ["evaluated_on_training_rows", "parent", "forked_at", "final_weights"]
    return {
        "steps": int(rows["step"].max()),
        "samples": num_samples,
        "tokens": num_tokens,
        "policy": rule_in_words(run["mixing"]) if "mixing" in run else None,
        **{name: run.get(name) for name in kept},
        "sources": sources,
        "over_time": _over_time(rows),
        "never_drawn": [row["name"] for row in sources if not row["samples"]],
    }


def add_mixture_card(ledger: Ledger, folder: Path) -> None:
    """Adds the section to the model card in a folder, if there is one and the run has a step.

    Args:
        ledger: The run's ledger.
        folder: Folder of the model card, `README.md`.
    """
    path = folder / "README.md"
    if path.is_file() and ledger.read("streams", ["step"]).num_rows:  # which others can see from now on
        text = path.read_text(encoding="utf-8").partition(f"\n{TITLE}")[0].rstrip("\n")
        write_text(path, f"{text}\n\n{as_markdown(mixture_card(ledger.folder.parent))}")


def _over_time(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Gives the shares of samples in some parts of the run, of equal numbers of steps."""
    parts = []
    for steps in np.array_split(rows["step"].unique(), _MOST_POINTS):
        if len(steps):
            own = rows[rows["step"].isin(steps)]
            counts = own.groupby("stream", sort=False)["count"].sum()
            shares = (counts / max(int(counts.sum()), 1)).to_dict()
            parts.append({"to_step": int(steps[-1]), "shares": shares})
    return parts


def as_markdown(card: Mapping[str, Any]) -> str:
    """Writes a card as a section of Markdown, what comes from data and from the run's folder as code.

    Args:
        card: Result of `mixture_card`.
    """
    rows, names = card["sources"], [row["name"] for row in card["sources"]]
    lines = [
        TITLE,
        "",
        f"{card['steps']:,} steps on {card['samples']:,} samples ({card['tokens']:,} tokens) of {len(rows)} sources.",
        "",
        *_table(_COLUMNS, [_source(row) for row in rows]),
        "",
        "Share of samples over time:",
        "",
        *_table(
            ["source", *(f"to step {part['to_step']:,}" for part in card["over_time"])],
            [
                [as_code(name), *(f"{part['shares'].get(name, 0.0):.1%}" for part in card["over_time"])]
                for name in names
            ],
        ),
        "",
        *(f"- {name}: {value}" for name, value in _facts(card).items()),
    ]
    return "\n".join(lines) + "\n"


def _source(row: Mapping[str, Any]) -> list[str]:
    def number(name: str) -> str:
        return "unknown" if row[name] is None else f"{row[name]:,}"

    passes = "unknown" if row["passes"] is None else f"{row['passes']:.2f}"
    counts = [number("rows"), number("samples"), f"{row['share']:.1%}", number("tokens"), passes]
    origin = ", ".join(f"{name} {value}" for name, value in row.get("origin", {}).items())
    content = row.get("content") or row.get("fingerprint")
    texts = [row.get("licence"), origin, content]
    stated = [as_code(text) if text else "not stated" for text in texts]
    return [as_code(row["name"]), *counts, number("rows_never_seen"), *stated]


def _facts(card: Mapping[str, Any]) -> dict[str, str]:
    shared = card["evaluated_on_training_rows"]
    facts = {
        "policy": as_code(card["policy"] or "unknown"),
        "objective": "none declared" if card["objective"] is None else as_code(json.dumps(card["objective"])),
        "seeds": f"{as_code(card['seed'])} (training), {as_code(card['data_seed'])} (order of the data)",
        "sources that never joined": ", ".join(map(as_code, card["never_drawn"])) or "none",
        "evaluation sets with rows of sources": as_code(shared)
        if shared
        else "none known to the run (it compares data sets, not texts)",
    }
    if card["development_rows"]:
        facts["development rows of evaluation sets"] = as_code(json.dumps(card["development_rows"]))
    if card["final_weights"]:
        facts["weights"] = card["final_weights"]["in_words"]
    if card["parent"]:
        facts["forked"] = f"from {as_code(card['parent'])} at step {card['forked_at']:,}"
    return facts


def _table(titles: list[str], rows: list[list[str]]) -> list[str]:
    cells = [titles, ["---"] * len(titles), *rows]
    return ["| " + " | ".join(map(_in_cell, row)) + " |" for row in cells]


def _in_cell(text: str) -> str:
    """Keeps a text in its cell: a backslash of its own must not undo that before a bar."""
    return text.replace("\\", r"\\").replace("|", r"\|")
