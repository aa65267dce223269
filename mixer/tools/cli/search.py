"""`mixer search RECIPE.yaml`, and `mixer headroom`, its short form: the best mixture by short runs."""

import json
import math
import multiprocessing
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import ArgumentParser, Namespace

from mixer.mixture.streams import describe
from mixer.tools.analysis.fit import Constraints, FittedMixture
from mixer.tools.analysis.fit.runs import RecordedRuns, fit_runs, objective_of
from mixer.tools.analysis.search.search_plan import (
    BEST,
    PRIOR,
    Headroom,
    ShortRun,
    first_runs,
    named,
    next_runs,
    to_check,
)
from mixer.tools.analysis.short_runs import RECIPE_FILE, finish
from mixer.tools.cli.command import Command, build_recipe, recipe_command
from mixer.tools.cli.fit import show
from mixer.tools.cli.mixtures import OPTIONS, constraints_of, how_to_train
from mixer.tools.console import console, only_json, print_json, table_of
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.storage_options import without_credentials
from mixer.tools.recipe.yaml_files import load_yaml
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import write_text
from mixer.utils.quiet import without_warnings
from mixer.utils.ranges import check_range

_LEAST_STEPS = 10
_SHARE = "Length of each run, as a share of the recipe's. Streams are cut likewise, so they repeat as often."
_WORTH = "Stop where the best further run is expected to improve the objective by less than this."
_OPTIONS: dict[str, dict[str, Any]] = {
    "--share": {"type": float, "default": 0.1, "metavar": "SHARE", "help": _SHARE},
    "--parallel": {"type": int, "default": 1, "metavar": "NUMBER", "help": "Runs at the same time, in processes."},
    **{option: {"type": str, **arguments} for option, arguments in OPTIONS.items()},
    "--runs": {"type": int, "default": 24, "metavar": "NUMBER", "help": "Runs at most, the two that check apart."},
    "--at_once": {"type": int, "default": 4, "metavar": "NUMBER", "help": "Runs between one fit and the next."},
    "--worth": {"type": float, "default": 0.001, "metavar": "SHARE", "help": _WORTH},
    "--propose": {"type": int, "metavar": "NUMBER", "help": "Write recipes of so many runs in place of running them."},
    "--to": {"type": str, "metavar": "DIR", "help": "Where --propose writes them, a folder each."},
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
        "spread over what is allowed, then those that are expected to improve the objective. Says which is best, and "
        "checks it against the own weights on another seed. Runs are kept in OUTPUT/search; OUTPUT is "
        "training.output_dir.",
        usage="[--runs NUMBER] [--propose NUMBER --to DIR] [--results DIR] [--json]",
        example="mixer search recipes/demo.yaml --runs 16",
        options=_OPTIONS,
    )


def headroom() -> Command:
    """Say whether another mixture would lower the objective."""
    return recipe_command(
        Recipe,
        _run,
        description="The first runs of `mixer search`: the weights that the recipe starts with, more of each stream, "
        "and the best by a fit to these, on another seed. Says whether there is anything to gain. Runs are in "
        "OUTPUT/search, where `mixer search` goes on; OUTPUT is training.output_dir.",
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
        found = _Search(parser, config, own)
        document = found.offline() if own.propose or own.results else found.online()
    if own.json:
        print_json(document)
    else:
        found.show(document)


@dataclass
class _Search:
    """A search: its runs so far, and the fit to them.

    Args:
        parser: The parser of recipes.
        config: The recipe.
        options: The command's own options.
    """

    parser: ArgumentParser
    config: Namespace
    options: Namespace
    done: list[tuple[ShortRun, float]] = field(default_factory=list)
    fitted: FittedMixture | None = None
    verdict: Headroom | None = None

    def __post_init__(self) -> None:
        trainer = build_recipe(Recipe, self.parser, self.config.clone()).build_parts(has_weights=False).trainer
        clock, mixture = trainer.mixing.clock, describe(trainer.streams)
        self.steps = max(_LEAST_STEPS, round(self.options.share * clock.max_steps))
        # Where the least number of steps is a larger share, streams keep that share of their rows.
        self.share = max(self.options.share, min(1.0, _LEAST_STEPS / clock.max_steps))
        self.batch_size, self.streams = clock.batch_size, list(mixture.names)
        objective = trainer.describe_run()["objective"]
        self.is_more_better = bool(objective["greater_is_better"])
        bounds = objective.get("bounds")
        if bounds and not self.options.bounds:
            losses = ",".join(f"{name}=LOSS" for name in bounds)
            text = f"Bounds {bounds} are multiples of first losses: give a search losses, --bounds {losses}."
            raise InvalidValueError.about("objective", text)
        self.unit, weights = trainer.mixing.policy.unit, dict(trainer.mixing.weights)
        if sum(weight > 0.0 for weight in weights.values()) < 2:
            raise ValueError(f"A search compares mixtures of two or more streams, got the weights {weights}.")
        natural = Constraints(prior=weights, most={name: 0.0 for name, weight in weights.items() if weight == 0.0})
        if self.options.passes is not None:
            if self.unit != "samples":
                raise InvalidValueError.about("--passes", f"counts samples, but mixing {self.unit}: leave it out.")
            sizes = zip(self.streams, mixture.num_samples.tolist(), strict=True)
            known, budget = {name: float(size) for name, size in sizes if size > 0}, clock.max_steps * clock.batch_size
            natural = replace(natural, sizes=known, budget=float(budget), passes=self.options.passes)
        self.constraints = constraints_of(self.options, self.streams, natural)
        self.region = self.constraints.of(self.streams)
        self.folder = Path(str(self.config.training.output_dir or "trainer_output")) / "search" / f"{self.steps}_steps"

    def online(self) -> dict[str, Any]:
        """Runs all, checks the best mixture, and gives the figures."""
        options, first = self.options, first_runs(self.streams, self.region)
        if 0 < options.runs < len(first):
            least = f"{len(first)} or more, with those before a fit"
            raise InvalidValueError(option="--runs", expected=least, found=options.runs)
        at_most = max(len(first), options.runs)
        _say(f"Own weights, which the recipe starts with: {first[0].weights}.")
        _say(f"Up to {at_most} runs of {self.steps} steps of {self.batch_size:g} samples, and two to check.")
        self._train(first, at_most)
        best = ShortRun(BEST, self._found(at_most), 1)
        again = ShortRun(f"{PRIOR}, other seed", self.done[0][0].weights, 1)
        self._train([again, best], at_most + 2)
        sign = -1.0 if self.is_more_better else 1.0
        values = [sign * value for _, value in self.done]
        before = sign * objective_of(self._folder_of(self.done[0][0]), is_start=True)
        self.verdict = Headroom.of(values, values[-2], values[-1], before)
        said = {name: getattr(self.verdict, name) for name in ("gain", "noise", "is_clear", "is_too_short")}
        return {**self._document(), **said, "weights": dict(best.weights)}

    def _found(self, at_most: int) -> Mapping[str, float]:
        """Goes on with runs until none is worth its cost, and gives the weights to check."""
        options = self.options
        while True:
            self.fitted = self._fit([self._folder_of(run) for run, _ in self.done])
            count = min(options.at_once, at_most - len(self.done))
            if count <= 0:
                break
            runs, gain = next_runs(self.fitted, count)
            if gain < options.worth * abs(float(self.fitted.seen.mean())):
                _say(f"Another run is expected to improve the objective by {gain:.2g} only: not worth its cost.")
                break
            self._train(runs, at_most)
        # The fit alone keeps bounds of losses.
        return named(self.streams, self.fitted.shares) if options.bounds else to_check(self.fitted, self.done)

    def offline(self) -> dict[str, Any]:
        """Fits results of proposed recipes, and writes further ones."""
        options, recipes, weights = self.options, list[Path](), {}
        if options.results is not None:
            found = sorted(Path(options.results).glob(f"*/{RECIPE_FILE}"))
            folders = [path.parent for path in found if (path.parent / "ledger").is_dir()]
            if not folders:
                text = f"{options.results} has no folder of a run with a {RECIPE_FILE} and a ledger."
                raise InvalidValueError.about("--results", text)
            self.fitted = self._fit(folders)
            weights = {"weights": named(self.streams, self.fitted.shares)}
        if options.propose:
            recipes = [self._write(run, Path(options.to)) for run in self._proposed(options.propose)]
            _say(f"{len(recipes)} runs of {self.steps} steps of {self.batch_size:g} samples are proposed.")
        return self._document() | weights | {"recipes": [str(path) for path in recipes]}

    def _fit(self, folders: Sequence[Path]) -> FittedMixture:
        return fit_runs(RecordedRuns(folders, allow_different_recipes=True), self.constraints)

    def _proposed(self, count: int) -> list[ShortRun]:
        """Plans runs for elsewhere: the next by the fit, or the first and further ones around the prior."""
        if self.fitted is not None:
            return next_runs(self.fitted, count)[0]
        runs = first_runs(self.streams, self.region)
        drawn = self.region.draw(max(count - len(runs), 0), np.random.default_rng(1))
        runs += [ShortRun(f"spread {n}", named(self.streams, own)) for n, own in enumerate(drawn, 101)]
        return runs[:count]

    def _document(self) -> dict[str, Any]:
        rows = [{"name": run.name, "weights": dict(run.weights), "objective": value} for run, value in self.done]
        fit = {} if self.fitted is None else {"fit": self.fitted.document()}
        return {"steps": self.steps, "runs": rows, **fit}

    def show(self, document: dict[str, Any]) -> None:
        """Prints the runs, the fit and what is to be done."""
        screen = console()
        if self.done:
            screen.print(
                table_of("Runs", [{"run": run.name, **run.weights, "objective": own} for run, own in self.done])
            )
        if self.fitted is not None:
            show(self.fitted, [])
        for path in document.get("recipes", []):
            print(f"mixer train {path}")  # noqa: T201
        if self.verdict is None:
            if "weights" in document:
                print(how_to_train(self._mixing(document["weights"])))  # noqa: T201
            return
        for sentence in self.verdict.sentences():
            screen.print(sentence, markup=False, highlight=False)
        if self.verdict.is_clear:
            path = self._folder_of(self.done[-1][0]) / RECIPE_FILE
            command = how_to_train(self._mixing(document["weights"]))
            print(f"Its short run, with the weights filled in, is {path}.\n{command}")  # noqa: T201

    def _mixing(self, weights: Mapping[str, float]) -> dict[str, Any]:
        """Gives the option `mixing` with these weights, in the unit of the recipe's policy."""
        if self.unit == "samples":
            return dict(weights)
        return {"class_path": "mixer.Fixed", "init_args": {"weights": dict(weights), "unit": self.unit}}

    def _folder_of(self, run: ShortRun) -> Path:
        of_weights = zlib.crc32(json.dumps(dict(run.weights)).encode())  # other bounds make other runs of a name
        return self.folder / f"{run.name.replace(' ', '_')}-{of_weights:08x}"

    def _yaml(self, run: ShortRun, folder: Path) -> str:
        """Gives the recipe of a short run, credentials too."""
        config: Any = self.config.clone()
        training, share = config.training, self.share
        training.output_dir = str(folder)
        training.max_steps, training.seed = self.steps, training.seed + run.seed_offset
        is_share = training.warmup_steps < 1
        training.warmup_steps = training.warmup_steps if is_share else round(share * training.warmup_steps)
        training.eval_strategy, training.eval_steps, training.eval_delay = "steps", self.steps, 0
        training.save_strategy, training.load_best_model_at_end = "no", False
        training.eval_on_start = run.name == PRIOR  # how much a run learns
        config.mixing, config.budget = self._mixing(run.weights), None
        training.budget_samples = training.budget_tokens = None
        for stream in config.streams.values():
            stream["rows_share"] = stream["rows_share"] * share
        build_recipe(Recipe, self.parser, config)
        config.pop("recipe", None)
        return str(_parser(config.trainer).dump(config, skip_validation=True))  # the command's parser hides credentials

    def _write(self, run: ShortRun, to: Path) -> Path:
        folder = to / run.name.replace(" ", "_")
        write_text(folder / RECIPE_FILE, without_credentials(self._yaml(run, folder)))
        return folder / RECIPE_FILE

    def _train(self, runs: Sequence[ShortRun], at_most: int) -> None:
        """Trains runs that are not finished; says which, and after the first one how long all will take."""
        texts, start = [self._yaml(run, self._folder_of(run)) for run in runs], len(self.done)
        began, numbers = time.perf_counter(), range(start + 1, start + 1 + len(runs))
        count, spawn = self.options.parallel, multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(count, spawn) if count > 1 else nullcontext() as pool:
            trained = (map if pool is None else pool.map)(_trained, texts, [number > 1 for number in numbers])
            for number, run, _ in zip(numbers, runs, trained, strict=True):
                value = objective_of(self._folder_of(run))
                self.done.append((run, value))
                _say(f"run {number} of {at_most}: {run.name}, objective {value:.4f}")
                if number == 1:
                    seconds = time.perf_counter() - began
                    seconds *= (at_most + 2) / count
                    _say(f"All {at_most + 2} take about {seconds:.0f} s at this rate.")


def _parser(trainer: str | None) -> ArgumentParser:
    parser = ArgumentParser()
    parser.add_class_arguments(Recipe.for_trainer(trainer))
    return parser


def _trained(text: str, is_quiet: bool) -> None:
    """Trains a recipe; warnings of the first run are shown, those of others are the same."""
    parser = _parser(load_yaml(text).get("trainer"))
    recipe = build_recipe(Recipe, parser, parser.parse_string(text))
    with without_warnings(is_quiet):
        finish(recipe, without_credentials(text))


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201
