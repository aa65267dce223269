"""`mixer explain RUN --step N`: why a step had its weights, counts and batch size."""

from jsonargparse import ArgumentParser, Namespace

from mixer.tools.analysis.explain.explanation import explain as explain_step
from mixer.tools.analysis.explain.screen import as_json, screen
from mixer.tools.cli.command import Command, add_json
from mixer.tools.console import show
from mixer.tools.records.recorded_run import RecordedRun


def explain() -> Command:
    """Explain the mixture of a step."""
    parser = ArgumentParser(
        description="Explains the mixture of a step by the run's ledger: the losses of the step before, the terms of "
        "the policy's decision, the changes that wrappers made, the active streams, how counts came of shares, and the "
        "batch size."
    )
    parser.add_argument("run", type=str, help="Output folder of a run.")
    parser.add_argument("--step", type=int, metavar="N", help="Number of the step, from 1.")
    add_json(parser)

    def run(config: Namespace) -> None:
        if config.step is None:
            held = RecordedRun(config.run).held_steps
            raise ValueError(f"give --step N: the ledger of {config.run} holds the steps {held}.")
        explanation = explain_step(config.run, config.step)
        show(lambda: as_json(explanation), lambda: screen(explanation), config.json)

    return Command(parser, run, example="mixer explain runs/demo/adaptive --step 120")
