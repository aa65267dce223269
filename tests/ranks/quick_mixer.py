"""The command line in a process of its own, with what `quicken` leaves out: `-m tests.ranks.quick_mixer train`."""

from mixer.tools.cli.entry import main
from tests.helpers import quicken

if __name__ == "__main__":
    quicken()
    main()
