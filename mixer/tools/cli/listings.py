"""`mixer policies` and `mixer schedules`: lists with needs and costs."""

from collections.abc import Callable, Mapping
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from mixer.measurements import names_of
from mixer.policies import Policy, Wrapper, policy_classes
from mixer.policies.registry import cost_of
from mixer.schedules import Schedule, schedule_classes
from mixer.tools.cli.command import Command, add_json
from mixer.tools.console import show, table_of

_Classes = Mapping[str, type[Policy] | type[Schedule]]


def policies() -> Command:
    """List the mixing policies."""
    return _listing("Mixing policies", "mixer policies", policy_classes)


def schedules() -> Command:
    """List the batch-size schedules."""
    return _listing("Batch-size schedules", "mixer schedules", schedule_classes)


def _listing(title: str, example: str, classes: Callable[[], _Classes]) -> Command:
    kind = title[0].lower() + title[1:]
    parser = ArgumentParser(description=f"Lists the {kind}: what each does, what it needs, and what that costs.")
    add_json(parser)

    def run(config: Namespace) -> None:
        rows = [_row(name, rule) for name, rule in classes().items()]
        show(lambda: rows, lambda: table_of(title, rows), config.json)

    return Command(parser, run, example=f"{example} --json")


def _row(name: str, rule: type[Policy] | type[Schedule]) -> dict[str, Any]:
    summary = (rule.__doc__ or "").strip().splitlines()[0]
    if issubclass(rule, Wrapper):
        return {"name": name, "needs": "its inner policy's", "costs": "its inner policy's", "summary": summary}
    return {"name": name, "needs": names_of(rule.needs), "costs": cost_of(rule), "summary": summary}
