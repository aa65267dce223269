"""The mixture that a run was asked for, which is the same for every seed."""

import pandas as pd


def asked_shares(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Gives the shares that steps were asked for, of samples and of tokens.

    What a run trained on differs from it by what was drawn, and by how long samples were. A policy with
    `unit="tokens"` asks for shares of tokens, which become shares of samples by the mean length of each stream's
    samples so far: the same lengths turn them back, to rounding.

    Args:
        rows: The ledger's, of steps and streams.

    Returns:
        By `"samples"` and `"tokens"`: shares, one row a step and one column a stream.
    """
    weights, counts, tokens = (
        rows.pivot(index="step", columns="stream", values=name).fillna(0) for name in ("weight", "count", "tokens")
    )
    samples_before, tokens_before = counts.cumsum() - counts, tokens.cumsum() - tokens
    lengths = (tokens_before / samples_before).where(tokens_before > 0)
    means = lengths.mean(axis=1).fillna(1.0)  # what stands for a stream without tokens so far
    of_tokens = weights * lengths.apply(lambda column: column.fillna(means))
    return {"samples": weights, "tokens": of_tokens.div(of_tokens.sum(axis=1), axis=0).fillna(0.0)}
