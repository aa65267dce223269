"""The options of a mixture as fields of the training arguments."""

import dataclasses
import inspect
import json
from pathlib import Path

import pytest
import torch
from transformers import HfArgumentParser, Seq2SeqTrainingArguments, TrainingArguments

import mixer
from mixer import Budget, MixingConfig, MixingOptions, MixingTrainer, Objective, Uniform
from mixer.run.config import OF_TRAINER
from mixer.utils.errors import InvalidTypeError
from tests.helpers import Tokens, arguments, build_model, plain_options, three_streams, weights_of
from tests.mixer.trainer.runs import train
from tests.refusals import refused

# As a user gives them, and as they are afterwards.
GIVEN = {
    "mixing": ('{"a": 2, "b": 1, "c": 1}', {"a": 2, "b": 1, "c": 1}),
    "batch_size": ("12", 12),
    "budget_tokens": ("1000", 1000),
    "objective": ('["a", "b"]', ["a", "b"]),
    "development_share": ("0.5", 0.5),
    "drawing": ("multinomial", "multinomial"),
    "loss_reduction": ("mean", "mean"),
    "loss_units": ("initial", "initial"),
    "eval_weights": ('{"a": 1, "b": 3}', {"a": 1, "b": 3}),
    "nonfinite": ("skip", "skip"),
    "max_skipped_share": ("0.2", 0.2),
    "save_best_of_each": ("true", True),
    "handle_signals": ("false", False),
}
QUIET = {"report_to": "none", "use_cpu": True}


def test_the_constructor_has_at_most_twelve_arguments_of_its_own() -> None:
    parameters = inspect.signature(MixingTrainer.__init__).parameters.values()
    own = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.name != "compute_metrics"]
    assert len(own) <= 12
    assert {*own} & {option.name for option in dataclasses.fields(MixingOptions)} == {*OF_TRAINER}


def test_each_field_is_read_from_a_command_line_yaml_and_json_and_documented(tmp_path: Path) -> None:
    parser = HfArgumentParser((MixingConfig,))
    words = [word for name, (text, _) in GIVEN.items() for word in (f"--{name}", text)]
    expected = {name: value for name, (_, value) in GIVEN.items()}
    (by_words,) = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), "--report_to", "none", *words])
    content = {"output_dir": str(tmp_path), **QUIET, **expected}
    (tmp_path / "run.json").write_text(json.dumps(content))  # JSON is YAML
    (by_file,), (by_yaml,) = (
        read(str(tmp_path / "run.json")) for read in (parser.parse_json_file, parser.parse_yaml_file)
    )
    for args in (by_words, by_file, by_yaml):
        assert {name: getattr(args, name) for name in GIVEN} == expected
    shown = " ".join(parser.format_help().split())
    for option in dataclasses.fields(MixingOptions):
        assert f"--{option.name}" in shown
        assert len(option.metadata["help"]) > 20


def test_a_config_is_saved_loaded_and_changed_as_training_arguments_are(tmp_path: Path) -> None:
    args = MixingConfig(str(tmp_path), mixing=["1", "2"], nonfinite="skip", **QUIET)
    assert json.loads(args.to_json_string())["mixing"] == ["1", "2"]
    assert MixingConfig(**{**args.to_dict(), "report_to": "none"}).own_options() == args.own_options()
    assert dataclasses.replace(args, nonfinite="raise").own_options() == {**args.own_options(), "nonfinite": "raise"}
    torch.save(args, tmp_path / "training_args.bin")
    assert torch.load(tmp_path / "training_args.bin", weights_only=False) == args


@pytest.mark.parametrize("budgeted", [False, True])
def test_a_run_is_the_same_wherever_its_options_are_given(tmp_path: Path, budgeted: bool) -> None:
    length = ({"budget_samples": 36, "max_steps": -1}, {"budget": Budget(samples=36)}) if budgeted else ({}, {})
    by_config = train(tmp_path / "a", mixing="Uniform", batch_size=6, **length[0])
    plain = TrainingArguments(**plain_options(tmp_path / "b", max_steps=-1 if budgeted else 3))
    own = {"train_dataset": three_streams(), "mixing": Uniform(), "batch_size": 6, **length[1]}
    by_trainer = MixingTrainer(build_model("llama"), plain, **own)
    by_trainer.train()
    assert torch.equal(weights_of(by_config.model), weights_of(by_trainer.model))
    assert by_config.ledger.to_pandas()["count"].tolist() == by_trainer.ledger.to_pandas()["count"].tolist()
    assert by_config.state.global_step == (6 if budgeted else 3)  # 36 samples in batches of 6


@pytest.mark.parametrize(
    ("config", "own", "option"),
    [
        ({"mixing": "Uniform"}, {"mixing": "Proportional"}, "mixing"),
        ({"budget_tokens": 9}, {"budget": Budget(samples=9)}, "budget"),
        (
            {"development_share": 0.5},
            {"objective": Objective(["a"], development_share=0.25)},
            "Objective.development_share",
        ),
        ({"development_share": 0.5}, {}, "development_share"),
        ({"eval_weights": {"a": "x", "b": 1}}, {}, "eval_weights"),
        ({"budget_samples": 0}, {}, "budget_samples"),
        ({"budget_tokens": 1.5}, {}, "budget_tokens"),
    ],
)
def test_what_is_given_twice_or_wrong_is_refused_by_the_name_of_its_option(tmp_path, config, own, option) -> None:
    args = arguments(tmp_path, **config)
    options = {"train_dataset": three_streams(), "eval_dataset": {"a": Tokens(8, 4), "b": Tokens(8, 5)}, **own}
    with refused(option, kind=(ValueError, TypeError)):
        MixingTrainer(build_model("llama"), args, **options)


def test_the_same_value_in_both_places_is_taken(tmp_path: Path) -> None:
    both = {"mixing": {"a": 1, "b": 1, "c": 2}, "batch_size": 8}
    args = arguments(tmp_path, budget_samples=16, **both)
    own = {"train_dataset": three_streams(), "budget": Budget(samples=16), **both}
    assert MixingTrainer(build_model("llama"), args, **own).mixing.weights == {"a": 0.25, "b": 0.25, "c": 0.5}


@pytest.mark.parametrize(
    "name", ["nonfinite", "max_tokens_per_micro_batch", "allow_inexact", "targets", "development_sets"]
)
def test_what_is_no_argument_of_the_trainer_any_more_says_where_it_is(tmp_path: Path, name: str) -> None:
    place = "Objective" if name in ("targets", "development_sets") else "MixingConfig"
    with refused(name, InvalidTypeError) as caught:
        MixingTrainer(build_model("llama"), arguments(tmp_path), **{name: 1})
    assert f"set it in {place}(" in str(caught.value)


@pytest.mark.parametrize(
    ("error", "options", "option"),
    [
        (ValueError, {"nonfinite": "ignore"}, "nonfinite"),
        (ValueError, {"mixing": '{"a": '}, "mixing"),
        (TypeError, {"mixing": Uniform()}, "mixing"),
        (TypeError, {"epoch_size": object()}, "epoch_size"),
        (TypeError, {"handle_signals": "no"}, "handle_signals"),
    ],
)
def test_a_value_that_no_option_takes_is_refused_by_the_config(tmp_path, error, options, option) -> None:
    with refused(option, kind=error):
        MixingConfig(str(tmp_path), **QUIET, **options)


def test_options_are_fixed_at_construction(tmp_path: Path) -> None:
    args = arguments(tmp_path, mixing="Uniform")
    trainer = MixingTrainer(args=args, model_init=lambda: build_model("llama"), train_dataset=three_streams())
    args.mixing = "Proportional"
    with refused("mixing"):
        trainer.train()


def test_training_arguments_without_them_have_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for args in (None, TrainingArguments("out", **QUIET)):
        trainer = MixingTrainer(build_model("llama"), args, train_dataset=three_streams())
        assert trainer._parts.plan.config == MixingOptions()


def test_the_fields_go_with_arguments_of_other_classes(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Own(MixingOptions, Seq2SeqTrainingArguments):
        number: int = 3

    for kind in (Own, mixer.MixingSeq2SeqConfig):
        (args,) = HfArgumentParser((kind,)).parse_args_into_dataclasses(
            ["--output_dir", str(tmp_path), "--batch_size=4"]
        )
        assert (args.batch_size, args.predict_with_generate) == (4, False)
    with refused("drawing"):
        Own(str(tmp_path), drawing="all")
