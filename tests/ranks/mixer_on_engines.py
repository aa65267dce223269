"""The command line where accelerate takes ranks for those of GPUs: `-m tests.ranks.mixer_on_engines train`."""

import os
import sys

from mixer.tools.cli.entry import main
from tests.helpers import quicken
from tests.ranks.engines import as_on_gpus, without_compiling

if __name__ == "__main__":
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") or "--training.deepspeed" in sys.argv:
        without_compiling()
    quicken()
    with as_on_gpus():
        main()
