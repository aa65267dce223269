"""`python -m mixer`, for launchers: `torchrun -m mixer train RECIPE.yaml`."""

from mixer.tools.cli.entry import main

if __name__ == "__main__":
    main()
