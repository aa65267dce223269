"""A planned run as tables."""

from rich.console import Group, RenderableType
from rich.text import Text

from mixer.tools.analysis.simulate.simulated import Simulated
from mixer.tools.console import table_of

_OF_STREAMS = (
    *(
        "name",
        "samples",
        "share",
        "num_samples",
        "passes",
        "coverage",
        "tokens",
        "token_share",
        "labels",
        "label_share",
    ),
    *("first_step", "last_step", "runs_out"),
)


def screen(simulated: Simulated, every: float) -> RenderableType:
    """Lays a planned run out: the run, its streams, the mixture over the run, the source of the losses, and warnings.

    Args:
        simulated: The run.
        every: Share of the run that a row of the mixture has.
    """
    summary = simulated.summary(every)
    run = {name: summary[name] for name in ("steps", "samples", "tokens", "labels", "epochs", "planned_steps")}
    if not simulated.labels:  # counted only if an amount of the run is in labels
        run["labels"] = "-"
    for name in ("batch_size", "samples_of_a_step", "learning_rate"):
        ends = summary[name]
        run[name] = f"{ends['first']:.4g} → {ends['last']:.4g} ({ends['least']:.4g} to {ends['greatest']:.4g})"
    columns = [name for name in _OF_STREAMS if simulated.labels or not name.startswith("label")]
    parts = [part | part.pop("shares") for part in summary["mixture"]]
    return Group(
        table_of("The run", [run]),
        table_of("Streams", [{name: vars(stream)[name] for name in columns} for stream in simulated.streams]),
        table_of("Realised mixture, by parts of the run", parts),
        Text(simulated.source),
        *(Text(f"! {warning}", style="yellow") for warning in simulated.warnings),
    )
