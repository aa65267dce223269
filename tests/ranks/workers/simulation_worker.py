"""Trains on each rank what the tests of simulations plan on none; `torchrun ... simulation_worker.py FOLDER`."""

import sys
from pathlib import Path

from tests.helpers import end_ranks
from tests.mixer.analysis.simulate.ranked import CASES
from tests.mixer.analysis.simulate.runs import train


def main() -> None:
    folder = Path(sys.argv[1])
    for name, fields in CASES.items():
        train(folder / name, **fields)
    end_ranks()


if __name__ == "__main__":
    main()
