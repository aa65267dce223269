"""`mixer card RUN`: what a model was trained on."""

from jsonargparse import Namespace

from mixer.ledger.card import as_markdown, mixture_card
from mixer.tools.cli.command import Command, add_json, parser_of_run
from mixer.tools.console import print_json
from mixer.utils.text import print_lines


def card() -> Command:
    """Write the card of a run's mixture."""
    parser = parser_of_run(
        "Writes what a run was trained on, as Markdown: sources, shares, passes, tokens, the mixture over "
        "time, policy and seeds. The model card that the trainer writes has the same section."
    )
    add_json(parser)
    return Command(parser, _card, example="mixer card runs/demo/uniform")


def _card(config: Namespace) -> None:
    content = mixture_card(config.run)
    if config.json:
        print_json(content)
    else:
        print_lines(*as_markdown(content).splitlines())
