"""`mixer explain RUN --step N`: why a step had its weights, counts and batch size."""

from jsonargparse import Namespace

from mixer.tools.analysis.explanation import explain as explain_step
from mixer.tools.cli.command import Command, add_json, parser_of_run
from mixer.tools.console import print_json
from mixer.utils.text import print_lines


def explain() -> Command:
    """Explain the mixture of a step."""
    parser = parser_of_run(
        "Explains a step from the run's ledger: which share changed most, and why. --json adds the rest: "
        "the losses of the step before, the terms of the policy's decision, the changes that wrappers made, "
        "the active streams, how shares became counts, and the batch size."
    )
    parser.add_argument("--step", type=int, metavar="N", help="Number of the step, from 1; the last by default.")
    add_json(parser)

    def run(config: Namespace) -> None:
        explanation = explain_step(config.run, config.step)
        if config.json:
            print_json(explanation.as_data())
        else:
            print_lines(*explanation.sentences())

    return Command(parser, run, example="mixer explain runs/demo/adaptive --step 120")
