"""The short runs of a recipe that `mixer search` trains: their recipes, folders and figures."""

import json
import multiprocessing
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from mixer.mixture.streams import describe
from mixer.tools.analysis.fit import Constraints, FittedMixture
from mixer.tools.analysis.fit.runs import RecordedRuns, fit_runs, objective_of
from mixer.tools.analysis.search.search_plan import PRIOR, ShortRun
from mixer.tools.analysis.search.short_recipe import (
    cut_limits,
    limits_in_data,
    shorten,
    shorten_schedule,
    varied,
    weights_in,
    with_weights,
)
from mixer.tools.analysis.short_runs import RECIPE_FILE, finish
from mixer.tools.cli.command import build_recipe
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.storage_options import without_credentials
from mixer.tools.recipe.yaml_files import load_yaml
from mixer.tools.records.run import Run
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import write_text
from mixer.utils.quiet import without_warnings

_LEAST_STEPS = 10


class Trials:
    """Short runs of a recipe on fixed weights, which differ by these and by their seeds.

    Args:
        parser: The parser of recipes.
        config: The recipe.
        share: Their length, as a share of the recipe's.

    Attributes:
        steps: Steps of a run, as planned at the first batch size.
        batch_size: Samples of a step.
        weights: The weights that the recipe starts with, of the streams whose weights are varied.
        unit: Their unit.
        bounds: Largest losses of evaluation sets, as multiples of their first ones.
        is_more_better: Whether more of the objective is better.
        limits: Names of the recipe's policies that limit the mixture, which are in force.
        notes: What is not as in the whole run, in sentences.

    Raises:
        ValueError: If the recipe is wrong, or fewer than two streams have weights.
    """

    def __init__(self, parser: ArgumentParser, config: Namespace, share: float):
        self._parser, self._config = parser, config
        trainer = build_recipe(Recipe, parser, config.clone()).build_parts(has_weights=False).trainer
        clock, policy = trainer.mixing.clock, trainer.mixing.policy
        self._streams, self._policy, self._max_steps = trainer.streams, policy, clock.max_steps
        self._schedule, self._limits = trainer.mixing.schedule, limits_in_data(clock, trainer.streams)
        self.steps = min(max(_LEAST_STEPS, round(share * clock.max_steps)), clock.max_steps)
        self.batch_size, self._share = clock.batch_size, share
        found = varied(policy, trainer.mixing.weights)
        self.weights, self.unit = found.weights, found.unit
        if sum(weight > 0.0 for weight in self.weights.values()) < 2:
            raise ValueError(f"A search compares mixtures of two or more streams, got the weights {self.weights}.")
        objective = trainer.describe_run()["objective"]
        self.is_more_better, self.bounds = bool(objective["greater_is_better"]), dict(objective.get("bounds") or {})
        if self.bounds and objective["metric"] != "loss":
            text = f"The bounds {self.bounds} are of losses, which a fit of {objective['metric']} does not keep."
            raise InvalidValueError.about("objective", f"{text} Leave out the bounds or the metric.")
        root = Path(str(config.training.output_dir or "trainer_output"))
        self._folder = root / "search"
        self.notes = self._shorten(config.clone(), self.steps)
        if found.limits:
            self.notes.append(f"In force in these runs as in the recipe: {', '.join(found.limits)}.")
        if found.others:
            text = f"Not in force in these runs: {', '.join(found.others)}. They keep the weights that they start with."
            self.notes.append(text)
        self.limits = found.limits

    def natural(self, passes: float | None) -> Constraints:
        """Gives the constraints of the recipe: its weights, and how often the whole run may repeat its streams."""
        none = {name: 0.0 for name, weight in self.weights.items() if weight == 0.0}
        found = Constraints(prior=self.weights, most=none)
        if passes is None:
            return found
        if self.unit != "samples" or self.limits:
            text = f"bounds shares of samples, and mixing asks for {', '.join(self.limits) or self.unit}: leave it out."
            raise InvalidValueError.about("--passes", text)
        mixture = describe(self._streams)
        sizes = zip(mixture.names, mixture.num_samples.tolist(), strict=True)
        known, budget = {name: float(size) for name, size in sizes if size > 0}, self._max_steps * self.batch_size
        return replace(found, sizes=known, budget=float(budget), passes=passes)

    def steps_of(self, run: ShortRun) -> int:
        """Gives the length of a run in steps."""
        return min(run.times * self.steps, self._max_steps)

    def longer(self, run: ShortRun) -> ShortRun:
        """Gives the run that confirms another one: twice as long, or on a further seed if that is as long as can be."""
        again = replace(run, name=f"{run.name}, again")
        is_whole = self.steps == self._max_steps
        return replace(again, seed_offset=run.seed_offset + 1) if is_whole else replace(again, times=2)

    def mixing(self, weights: Mapping[str, float]) -> Any:
        """Gives the option `mixing` with these weights, inside of the policies that limit the recipe's mixture."""
        return with_weights(self._policy, weights)

    def folder_of(self, run: ShortRun) -> Path:
        """Gives the folder of a run; runs of the same name with other weights have others."""
        of_weights = zlib.crc32(json.dumps([dict(run.weights), run.seed_offset]).encode())
        name = f"{run.name.replace(' ', '_')}-{of_weights:08x}"
        return self._folder / f"{self.steps_of(run)}_steps" / name

    def write(self, run: ShortRun, to: Path) -> Path:
        """Writes the recipe of a run into a folder of its own, without credentials."""
        folder = to / run.name.replace(" ", "_")
        write_text(folder / RECIPE_FILE, without_credentials(self._yaml(run, folder)))
        return folder / RECIPE_FILE

    def train(self, runs: Sequence[ShortRun], parallel: int, is_first: bool) -> Iterator[tuple[ShortRun, float]]:
        """Trains runs that are not finished, and gives each with its objective.

        Args:
            runs: The runs.
            parallel: Number of processes.
            is_first: Whether the first of them shows its warnings, which are those of all.
        """
        texts = [self._yaml(run, self.folder_of(run)) for run in runs]
        is_quiet = [number > 0 or not is_first for number in range(len(runs))]
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(parallel, spawn) if parallel > 1 else nullcontext() as pool:
            trained = (map if pool is None else pool.map)(_trained, texts, is_quiet)
            for run, _ in zip(runs, trained, strict=True):
                yield run, objective_of(self.folder_of(run))

    def losses(self, run: ShortRun, is_start: bool = False) -> dict[str, float]:
        """Gives the losses of a finished run by evaluation set, at its end or before it."""
        return Run(self.folder_of(run)).losses(0 if is_start else -1)

    def before(self, run: ShortRun) -> float:
        """Gives the objective before a finished run."""
        return objective_of(self.folder_of(run), is_start=True)

    def fit(self, runs: Sequence[ShortRun], constraints: Constraints) -> FittedMixture:
        """Fits finished runs by the weights that they were asked for."""
        return _fitted([self.folder_of(run) for run in runs], [run.weights for run in runs], constraints)

    def length(self, steps: int) -> str:
        """Says how long a run of so many planned steps is: in data if the recipe's is counted in data."""
        planned = f"{steps} steps of {self.batch_size:g} samples"
        if self._limits is None:
            return planned
        cut = cut_limits(self._limits, steps / self._max_steps)
        limits = [f"{limit:,} {unit}" for unit, limit in cut.items()]
        return f"{' or '.join(limits) or 'the amounts of the streams'} ({planned}, if all were as large as the first)"

    def _shorten(self, config: Any, steps: int) -> list[str]:
        shorten_schedule(config.batch_size, self._schedule, steps / self._max_steps)
        return shorten(config, self._streams, self._policy, steps, self._max_steps, self._limits)

    def _yaml(self, run: ShortRun, folder: Path) -> str:
        """Gives the recipe of a run, credentials too."""
        config: Any = self._config.clone()
        training = config.training
        self._shorten(config, self.steps_of(run))
        training.output_dir, training.seed = str(folder), training.seed + run.seed_offset
        has_rhythm = training.eval_steps < self.steps_of(run)  # a policy that goes by evaluations
        training.eval_on_start = run.name == PRIOR or (has_rhythm and training.eval_on_start)
        config.mixing = self.mixing(run.weights)
        build_recipe(Recipe, self._parser, config)
        config.pop("recipe", None)
        # The command's parser hides credentials.
        return str(_new_parser(config.trainer).dump(config, skip_validation=True))


def fit_results(folder: Path, constraints: Constraints) -> FittedMixture:
    """Fits finished runs of recipes that were proposed, by the weights that they were asked for.

    Args:
        folder: Has a folder of each run.
        constraints: Bounds of the mixture.

    Raises:
        ValueError: If there is no finished run.
    """
    found = sorted(folder.glob(f"*/{RECIPE_FILE}"))
    folders = [path.parent for path in found if (path.parent / "ledger").is_dir()]
    if not folders:
        text = f"{folder} has no folder of a run with a {RECIPE_FILE} and a ledger."
        raise InvalidValueError.about("--results", text)
    recipes = [load_yaml((own / RECIPE_FILE).read_text(encoding="utf-8")) for own in folders]
    return _fitted(folders, [weights_in(recipe["mixing"]) for recipe in recipes], constraints)


def _fitted(folders: Sequence[Path], asked: Sequence[Mapping[str, float]], constraints: Constraints) -> FittedMixture:
    return fit_runs(RecordedRuns(folders, allow_different_recipes=True, asked=asked), constraints)


def _new_parser(trainer: str | None) -> ArgumentParser:
    parser = ArgumentParser()
    parser.add_class_arguments(Recipe.for_trainer(trainer))
    return parser


def _trained(text: str, is_quiet: bool) -> None:
    """Trains a recipe."""
    parser = _new_parser(load_yaml(text).get("trainer"))
    recipe = build_recipe(Recipe, parser, parser.parse_string(text))
    with without_warnings(is_quiet):
        finish(recipe, without_credentials(text))
