"""`mixer explain RUN --step N`: why the weights of a step were what they were."""

from jsonargparse import ArgumentParser, Namespace

from mixer.analysis.explain.explanation import explain as explain_step
from mixer.analysis.explain.screen import as_json, screen
from mixer.cli.command import Command
from mixer.ledger.recorded_run import RecordedRun
from mixer.policies import Policy, policy_classes
from mixer.utils.console import add_json, console, print_json
from mixer.utils.registry import choose


def explain() -> Command:
    """Gives the command that explains a step.

    Returns:
        The command.
    """
    parser = ArgumentParser(
        description="Says why the mixture of a step was what it was: what the policy saw, its terms, what wrappers "
        "made of them, who was there, and how counts came of shares. The policy is led once more through what the "
        "ledger recorded."
    )
    parser.add_argument("run", type=str, help="Output folder of a run.")
    parser.add_argument("--step", type=int, default=None, metavar="N", help="Number of the step, from 1.")
    parser.add_argument(
        "--policy",
        type=Policy | str | None,
        default=None,
        help="The run's policy with its arguments, where it is one of your own: a class that can be imported.",
    )
    add_json(parser)

    def run(config: Namespace) -> None:
        if config.step is None:
            held = RecordedRun(config.run).held_steps
            raise ValueError(f"give --step N: the ledger of {config.run} holds the steps {held}.")
        policy = _policy(parser.instantiate(config).policy)
        explanation = explain_step(config.run, config.step, policy)
        if config.json:
            print_json(as_json(explanation))
        else:
            console().print(screen(explanation))

    return Command(
        parser,
        run,
        "say why the mixture of a step was what it was",
        example="mixer explain runs/demo/adaptive --step 120",
    )


def _policy(given: Policy | str | None) -> Policy | None:
    """Gives the policy; a text is what the parser could not make one of, and a name or a reason comes of it."""
    return choose(given, policy_classes(), "--policy", "policy") if isinstance(given, str) else given
