"""`mixer search RECIPE.yaml`, and `mixer headroom`, its short form: the best mixture by short runs."""

import math
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import ArgumentParser, Namespace

from mixer.tools.analysis.fit import FittedMixture
from mixer.tools.analysis.search.search_plan import BEST, PRIOR, ShortRun, first_runs, named, next_runs, to_check
from mixer.tools.analysis.search.verdict import Evidence, answer, gain_of, learned_in, noise_of, reasons
from mixer.tools.cli.command import Command, recipe_command
from mixer.tools.cli.fit import show
from mixer.tools.cli.mixtures import OPTIONS, constraints_of, how_to_train
from mixer.tools.cli.trials import Trials, fit_results
from mixer.tools.console import console, only_json, print_json, table_of
from mixer.tools.recipe.recipe import Recipe
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_range

_SHARE = "Length of each run, as a share of the recipe's. Streams are cut likewise, so they repeat as often."
_MORE_RUNS = 16  # to go on with, where the first ones cannot tell
_RUNS = "Maximum number of runs, not counting those that check and confirm."
_WORTH = "Stop where the best further run is expected to improve the objective by less than this."
_OPTIONS: dict[str, dict[str, Any]] = {
    "--share": {"type": float, "default": 0.1, "metavar": "SHARE", "help": _SHARE},
    "--parallel": {"type": int, "default": 1, "metavar": "NUMBER", "help": "Runs at the same time, in processes."},
    **{option: {"type": str, **arguments} for option, arguments in OPTIONS.items()},
    "--runs": {"type": int, "default": 24, "metavar": "NUMBER", "help": _RUNS},
    "--at_once": {"type": int, "default": 4, "metavar": "NUMBER", "help": "Runs between one fit and the next."},
    "--worth": {"type": float, "default": 0.001, "metavar": "SHARE", "help": _WORTH},
    "--propose": {
        "type": int,
        "metavar": "NUMBER",
        "help": "Write recipes for this many runs instead of running them.",
    },
    "--to": {"type": str, "metavar": "DIR", "help": "Where --propose writes them, one folder for each."},
    "--results": {"type": str, "metavar": "DIR", "help": "Folder of finished runs of proposed recipes, to fit."},
}
_RANGES = {
    "share": (0.01, 1.0, "0.1 takes a tenth of the recipe's steps for each run"),
    "parallel": (1, 256, "it is a number of processes"),
    "runs": (0, math.inf, "0 trains those before a fit alone"),
    "at_once": (1, math.inf, "it is a number of runs"),
    "worth": (0.0, math.inf, "0.001 is a tenth of a per cent"),
    "propose": (1, math.inf, "it is a number of runs"),
}


def search() -> Command:
    """Find the best mixture by short runs, chosen one after the other."""
    return recipe_command(
        Recipe,
        _run,
        description="Trains the recipe for a short while on fixed mixtures: the weights that it starts with, others "
        "spread over what is allowed, then those that are expected to improve the objective. Says whether the best is "
        "worth a change: it is checked on another seed, and a gain is confirmed by runs of twice the length. Runs are "
        "kept in OUTPUT/search; OUTPUT is training.output_dir.",
        usage="[--runs NUMBER] [--propose NUMBER --to DIR] [--results DIR] [--json]",
        example="mixer search recipes/demo.yaml --runs 16",
        options=_OPTIONS,
    )


def headroom() -> Command:
    """Say whether another mixture would lower the objective."""
    return recipe_command(
        Recipe,
        _run,
        description="Trains the recipe for a short while with the weights that it starts with, with more of each "
        "stream, and, on another seed, with the best mixture by a fit to these runs. Says whether there is anything "
        "to gain; two runs of twice the length confirm it. `mixer search` continues from these runs, which are kept "
        "in OUTPUT/search; OUTPUT is training.output_dir.",
        usage="[--share SHARE] [--json]",
        example="mixer headroom recipes/demo.yaml --share 0.1",
        options={**_OPTIONS, "--runs": {**_OPTIONS["--runs"], "default": 0}},
    )


def _run(parser: ArgumentParser, config: Namespace, own: Namespace) -> None:
    for name, (least, most, hint) in _RANGES.items():
        if own[name] is not None:
            check_range(f"--{name}", own[name], least, most, hint)
    if config.objective is None:
        text = "A search needs an objective: name the evaluation sets that the run is for."
        raise InvalidValueError.about("objective", text)
    if (own.propose is None) != (own.to is None):
        raise InvalidValueError.about("--propose", "says how many recipes to write and --to where: give both or none.")
    with only_json(own.json):
        recipe = str(config.recipe[0]) if config.recipe else ""
        words = getattr(parser, "words", ()) or [recipe]
        found = _Search(Trials(parser, config, own.share), own, recipe, words)
        document = found.offline() if own.propose or own.results else found.online()
    if own.json:
        print_json(document)
    else:
        found.show(document)


class _Search:
    """A search: its runs so far, and the fit to them.

    Args:
        trials: The recipe's short runs.
        options: The command's own options.
        recipe: Path of the recipe.
        words: What the user gave, from the recipe on.
    """

    def __init__(self, trials: Trials, options: Namespace, recipe: str, words: Sequence[str]):
        self.trials, self.options, self.recipe, self.words = trials, options, recipe, words
        self.done: list[tuple[ShortRun, float]] = []
        self.fitted: FittedMixture | None = None
        self.evidence: Evidence | None = None
        self.streams, self.at_most = list(trials.weights), 0
        self.constraints = constraints_of(options, self.streams, trials.natural(options.passes))
        self.region = self.constraints.of(self.streams)

    def online(self) -> dict[str, Any]:
        """Runs all, checks the best mixture, confirms a gain, and gives the figures."""
        options, first = self.options, first_runs(self.streams, self.region)
        if 0 < options.runs < len(first):
            least = f"{len(first)} or more, with those before a fit"
            raise InvalidValueError(option="--runs", expected=least, found=options.runs)
        self.at_most = max(len(first), options.runs)
        self._tell(first[0])
        self._train(first)
        self._take_bounds(first[0])
        best = ShortRun(BEST, self._found(), 1)
        own = ShortRun(f"{PRIOR}, other seed", first[0].weights, 1)
        self._train([own, best])
        self.evidence = self._evidence(first[0], best)
        if self.evidence.verdict == "not confirmed":
            values = self._train([self.trials.longer(own), self.trials.longer(best)])
            self.evidence = replace(self.evidence, confirmed_gain=gain_of(*values))
        return {**self._document(), "weights": dict(best.weights)}

    def _tell(self, first: ShortRun) -> None:
        """Says before the runs what they are, and what they cost."""
        trials = self.trials
        longer = trials.longer(ShortRun(BEST, first.weights))
        where = (
            "on a further seed" if longer.times == 1 else f"of {trials.steps_of(longer) / trials.steps:.3g} times that"
        )
        length = trials.length(trials.steps)
        _say(f"Your weights, which the recipe starts with: {first.weights}.")
        _say(f"Up to {self.at_most} runs of {length}, two more to check, and two {where} to confirm a gain, if any.")
        for note in trials.notes:
            _say(note)

    def _take_bounds(self, own: ShortRun) -> None:
        """Keeps the objective's bounds, multiples of first losses; losses that were given go before them."""
        if self.trials.bounds and not self.options.bounds:
            first = self.trials.losses(own, is_start=True)
            bounds = {name: most * first[name] for name, most in self.trials.bounds.items()}
            self.constraints = replace(self.constraints, bounds=bounds)

    def _found(self) -> Mapping[str, float]:
        """Goes on with runs until none is worth its cost, and gives the weights to check."""
        options = self.options
        while True:
            self.fitted = self.trials.fit([run for run, _ in self.done], self.constraints)
            count = min(options.at_once, self.at_most - len(self.done))
            if count <= 0:
                break
            runs, gain = next_runs(self.fitted, count)
            if gain < options.worth * abs(float(self.fitted.seen.mean())):
                _say(f"Another run is expected to improve the objective by {gain:.2g} only: not worth its cost.")
                break
            self._train(runs)
        # The fit alone keeps bounds of losses.
        is_bound = bool(self.constraints.bounds)
        return named(self.streams, self.fitted.shares) if is_bound else to_check(self.fitted, self.done)

    def _evidence(self, prior: ShortRun, best: ShortRun) -> Evidence:
        values = self._values([value for _, value in self.done])
        (before,) = self._values([self.trials.before(prior)])
        losses = self.trials.losses(best)
        return Evidence(
            gain=gain_of(values[-2], values[-1]),
            noise=noise_of(values[0], values[1], values[-2]),
            learned=learned_in(before, values[0]),
            is_explained=self.fitted is not None and not self.fitted.explains_nothing,
            broken=[name for name, most in self.constraints.bounds.items() if losses[name] > most],
        )

    def _values(self, objectives: Sequence[float]) -> list[float]:
        """Gives objectives of which less is better."""
        return [-value if self.trials.is_more_better else value for value in objectives]

    def offline(self) -> dict[str, Any]:
        """Fits results of proposed recipes, and writes further ones."""
        options, recipes, weights = self.options, list[Path](), {}
        if self.trials.bounds and not options.bounds:
            losses = ",".join(f"{name}=LOSS" for name in self.trials.bounds)
            text = f"Bounds {self.trials.bounds} are multiples of first losses: give losses, --bounds {losses}."
            raise InvalidValueError.about("objective", text)
        if options.results is not None:
            self.fitted = fit_results(Path(options.results), self.constraints)
            weights = {"weights": named(self.streams, self.fitted.shares)}
        if options.propose:
            recipes = [self.trials.write(run, Path(options.to)) for run in self._proposed(options.propose)]
            _say(f"{len(recipes)} runs of {self.trials.length(self.trials.steps)} are proposed.")
        return self._document() | weights | {"recipes": [str(path) for path in recipes]}

    def _proposed(self, count: int) -> list[ShortRun]:
        """Plans runs for elsewhere: the next by the fit, or the first and further ones around the prior."""
        if self.fitted is not None:
            return next_runs(self.fitted, count)[0]
        runs = first_runs(self.streams, self.region)
        drawn = self.region.draw(max(count - len(runs), 0), np.random.default_rng(1))
        runs += [ShortRun(f"spread {n}", named(self.streams, own)) for n, own in enumerate(drawn, 101)]
        return runs[:count]

    def _document(self) -> dict[str, Any]:
        found: dict[str, Any] = {"steps": self.trials.steps, "notes": self.trials.notes}
        if (evidence := self.evidence) is not None:
            flags = {name: getattr(evidence, name) for name in ("verdict", "is_clear", "is_too_short")}
            found = {**flags, **asdict(evidence), **found}
        found["runs"] = [
            {"name": run.name, "steps": self.trials.steps_of(run), "weights": dict(run.weights), "objective": value}
            for run, value in self.done
        ]
        return found if self.fitted is None else {**found, "fit": self.fitted.document()}

    def show(self, document: dict[str, Any]) -> None:
        """Prints the answer, its reasons, the runs and the fit, and what is to be done."""
        screen = console()
        for sentence in [*self._sentences(), *self.trials.notes]:
            screen.print(sentence, markup=False, highlight=False)
        if self.done:
            rows = [{"run": run.name, "steps": self.trials.steps_of(run), **run.weights} for run, _ in self.done]
            values = [{**row, "objective": value} for row, (_, value) in zip(rows, self.done, strict=True)]
            screen.print(table_of("Runs", values))
        if self.fitted is not None and (self.evidence is None or self.evidence.is_explained):
            show(self.fitted, [])
        for path in document.get("recipes", []):
            print(f"mixer train {path}")  # noqa: T201
        if self._is_advised and "weights" in document:
            print(how_to_train(self.trials.mixing(document["weights"]), self.recipe))  # noqa: T201

    @property
    def _is_advised(self) -> bool:
        """Whether the mixture is worth training on, as far as is known."""
        if self.evidence is None:
            return self.fitted is not None and not self.fitted.explains_nothing
        return self.evidence.verdict == "gain"

    def _sentences(self) -> list[str]:
        if self.evidence is None:
            return []
        more = max(_MORE_RUNS, 2 * len(self.done))
        going_on = search_again(self.words, self.options.share, more)
        longer = self.trials.steps_of(self.trials.longer(ShortRun(BEST, {})))
        found = [answer(self.evidence, going_on), *reasons(self.evidence, self.trials.steps, longer)]
        if self.evidence.verdict == "gain" and not self.trials.limits:
            found.append("Train with --mixing auto, which may find it in the run itself, or on the best mixture.")
        return found

    def _train(self, runs: Sequence[ShortRun]) -> list[float]:
        """Trains runs that are not finished; says which, and after the first one how long one takes."""
        began, start = time.perf_counter(), len(self.done)
        for run, value in self.trials.train(runs, self.options.parallel, is_first=start == 0):
            self.done.append((run, value))
            _say(f"run {len(self.done)}: {run.name}, objective {value:.4f}")
            if len(self.done) == 1:
                seconds = (time.perf_counter() - began) / self.options.parallel
                times_longer = self.trials.steps_of(self.trials.longer(run)) / self.trials.steps
                all_runs, longer = seconds * (self.at_most + 2), seconds * 2 * times_longer
                _say(f"All take about {all_runs:.0f} s at this rate, those that confirm about {longer:.0f} s.")
        return self._values([value for _, value in self.done[start:]])


def search_again(words: Sequence[str], share: float, runs: int) -> str:
    """Gives the command that goes on with a search, with what the user gave of the recipe and the mixtures.

    Args:
        words: The words of the command, from the recipe on.
        share: Length of the runs.
        runs: Number of runs.
    """
    kept, is_value = list[str](), False
    for word in words:
        option, _, value = word.partition("=")
        if option in ("--share", "--runs"):
            is_value = not value
        elif word != "--json" and not is_value:
            kept.append(word)
        else:
            is_value = False
    return f"mixer search {shlex.join(kept)} --share {share:g} --runs {runs}"


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201
