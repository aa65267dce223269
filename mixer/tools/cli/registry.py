"""The commands by name, those of other packages included; a command is imported when it is called."""

from functools import partial
from importlib.metadata import EntryPoint

from mixer.tools.cli.command import Command
from mixer.utils.entry_points import entry_point, load_plug_in, load_plug_ins, plug_in_names, summarised

PLUG_IN_GROUP = "adaptive_mixer.commands"
# In the order of `mixer --help`. Each is a function of the module of its name, but for the lists.
_NAMES = (
    *(
        "new",
        "train",
        "fork",
        "value",
        "inspect",
        "recipe",
        "policies",
        "schedules",
        "compare",
        "report",
        "watch",
        "seen",
    ),
    *("card", "fit", "search", "headroom", "simulate", "explain", "schema", "help"),
)
# Their first argument is its path.
WITH_RECIPE = ("train", "fork", "value", "inspect", "search", "headroom", "simulate")
_MODULES = {"headroom": "search", "policies": "listings", "schedules": "listings"}
_OWN = {name: EntryPoint(name, f"mixer.tools.cli.{_MODULES.get(name, name)}:{name}", PLUG_IN_GROUP) for name in _NAMES}


def command_names() -> list[str]:
    """Lists the names of all commands."""
    return list(dict.fromkeys([*_OWN, *plug_in_names(PLUG_IN_GROUP)]))


def summaries() -> dict[str, str]:
    """Returns a line on each command by name, without importing the commands; warns of those that are not there."""
    load = partial(summarised, kind="command")
    own = dict(load(entry, ()) for entry in _OWN.values())
    return {**own, **load_plug_ins(PLUG_IN_GROUP, "command", load, _OWN, stacklevel=2)}


def entry_of(name: str) -> EntryPoint:
    """Returns the entry point of a command that exists."""
    return _OWN.get(name) or entry_point(PLUG_IN_GROUP, name)


def load_command(name: str) -> Command:
    """Imports a command.

    Args:
        name: One of `command_names()`.

    Raises:
        ValueError: If a command of another package cannot be loaded.
    """
    command: Command = _OWN[name].load()() if name in _OWN else load_plug_in(PLUG_IN_GROUP, "command", name, Command)
    return command
