"""A command on each rank: `torchrun ... command_worker.py FOLDER COMMAND ...` as `torchrun ... -m mixer COMMAND`."""

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[1]
    runpy.run_module("mixer", run_name="__main__", alter_sys=True)
