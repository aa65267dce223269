"""One contestant in a process of its own: `python -m benchmarks.peers.child MODULE:FUNCTION FILE < options.json`."""

import importlib
import json
import sys
import warnings
from pathlib import Path

from transformers.utils import logging

from benchmarks.peak import Peak


def main() -> None:
    """Does the work and writes the figures, with the peak of memory, to the file."""
    work, path = sys.argv[1:]
    options = json.load(sys.stdin)
    module, function = work.split(":")
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    action = getattr(importlib.import_module(f"benchmarks.peers.{module}"), function)
    peak = Peak()
    figures = action(options)
    # Who compares its result with something at the end takes the peak itself before that.
    Path(path).write_text(json.dumps({**peak.figures(), **figures}))


if __name__ == "__main__":
    main()
