"""Recipes with something wrong in them, and what is said of it."""

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from mixer.models.heads import Head
from mixer.tools.analysis.inspect.findings import Finding, findings_of
from mixer.tools.analysis.inspect.inspect_view import view_of
from mixer.tools.analysis.inspect.inspection import Inspection, first_batch, inspect_recipe
from mixer.tools.console import console, print_json
from mixer.tools.recipe.model import ModelRecipe
from tests.mixer.tools.analysis.inspect.sources import LLAMA, recipe

BERT = {"model_type": "bert", "vocab_size": 64, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CLASSIFIER = ModelRecipe("sequence-classification", config={**BERT, "intermediate_size": 8, "num_labels": 3})
Found = dict[tuple[str, ...], Finding]


def look(folder: Path, streams: dict[str, Any], num_samples: int = 1000, **changes: Any) -> tuple[Inspection, Found]:
    inspection = inspect_recipe(recipe(folder, streams, **changes), num_samples, 0)
    findings = findings_of(inspection)
    screen = console()
    with screen.capture():  # whatever it is, it can be written and shown
        print_json(inspection)
        screen.print(view_of(inspection, findings))
    found = {(finding.kind, *finding.streams): finding for finding in findings}
    assert len(found) == len(findings)
    return inspection, found


def test_nothing_is_said_of_good_data_for_which_no_weights_are_made(tmp_path: Path) -> None:
    streams = {"a": ("plain", {}, {}), "b": ("plain", {"seed": 9}, {})}
    inspection, found = look(tmp_path, streams)
    assert found == {}
    assert inspection.samples_read == 80
    assert list(tmp_path.iterdir()) == []
    huge = {**LLAMA, "hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 100}
    model = recipe(tmp_path, streams, model=ModelRecipe(config=huge)).build_parts(has_weights=False).trainer.model
    assert sum(parameter.numel() for parameter in model.parameters()) > 10**11
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_faulty_samples_are_counted(tmp_path: Path) -> None:
    found = look(tmp_path, {"faulty": ("faulty", {}, {})})[1]
    figures = {kind: finding.figure for (kind, *_), finding in found.items()}
    assert figures.pop("failed_batch") == 1
    assert figures.pop("repeated_samples") == 1 / 20  # an empty one
    assert figures == {"empty_samples": 2, "nothing_learned": 3, "unknown_tokens": 1, "beyond_positions": 2}
    assert "such as 64 at index 15" in found["unknown_tokens", "faulty"].sentence
    assert "the longest has 33 tokens" in found["beyond_positions", "faulty"].sentence


def test_samples_that_cannot_be_read_do_not_end_the_look(tmp_path: Path) -> None:
    broken = {"torn": list(range(5, 30)), "void": list(range(30))}
    streams = {name: ("Breaking", {"broken": indices}, {}) for name, indices in broken.items()}
    inspection, found = look(tmp_path, {**streams, "good": ("plain", {}, {})})
    assert found["broken_samples", "torn"].figure == 25
    assert "the first at index 5 (KeyError: '[red]page 5[/red] is torn')" in found["broken_samples", "torn"].sentence
    assert inspection.streams[0].training.num_read == 5
    assert found["no_samples", "void"].figure == 0
    assert ("failed_batch",) in found
    # Rows of a stream are looked at as they come.
    lost = {"num_rows": 50, "breaks_at": 44}
    streams = {"rows": ("Streamed", {"num_rows": 50}, {}), "lost": ("Streamed", lost, {}), "good": ("plain", {}, {})}
    inspection, found = look(tmp_path, streams, num_samples=45, mixing="Uniform")
    rows = inspection.streams[0]
    assert (rows.training.num_read, rows.training.size) == (45, None)
    assert list(rows.examples) == [0, 1]
    assert {key for key in found if "lost" not in key} == set()
    assert "at index 44 (OSError: connection lost)" in found["broken_samples", "lost"].sentence


def test_longer_samples_weigh_more_where_samples_are_counted(tmp_path: Path) -> None:
    half = {"weight": 0.5}
    streams = {"long": ("plain", {"length": 24}, half), "short": ("plain", {"length": 2, "seed": 8}, half)}
    found = look(tmp_path, streams)[1]
    assert found["unequal_lengths", "long", "short"].figure == 12
    assert "with a weight of 0.50 it has 92% of the tokens" in found["unequal_lengths", "long", "short"].sentence


def test_classes_that_are_rare_or_missing_are_named(tmp_path: Path) -> None:
    streams = {"one": ("images", {"labels": [0] * 42 + [1, 1]}, {}), "two": ("images", {"labels": [0, 1, 2, -100]}, {})}
    inspection, found = look(tmp_path, streams, model=CLASSIFIER)
    assert found["unbalanced_classes", "one"].figure == 21
    assert "1 of 3 classes of 'one' have no sample" in found["classes_without_samples", "one"].sentence
    assert inspection.streams[0].training.classes == {0: 42, 1: 2}
    assert found["nothing_learned", "two"].figure == 1
    assert not [key for key in found if key[1:] == ("two",) and key[0] != "nothing_learned"]


def test_heads_have_classes_and_micro_batches_of_their_own(tmp_path: Path) -> None:
    model = ModelRecipe(
        "encoder", config={**BERT, "intermediate_size": 8}, heads={"a": Head(2), "b": Head(1, kind="regression")}
    )
    streams = {"a": ("images", {"labels": [0, 1] * 8}, {}), "b": ("images", {"labels": [0.5, 7.0] * 8}, {})}
    inspection, found = look(tmp_path, streams, model=model)
    assert [one.limits.num_classes for one in inspection.streams] == [2, None]
    assert [one.training.classes for one in inspection.streams] == [{0: 8, 1: 8}, {}]
    assert {(one.limits.vocabulary, one.limits.positions) for one in inspection.streams} == {(64, 512)}
    assert [set(micro.streams) for micro in inspection.batch.micro_batches] == [{"a"}, {"b"}]
    assert found == {}


def test_what_a_run_refuses_is_refused_alike_and_so_are_several_ranks(tmp_path, monkeypatch, refused) -> None:
    wrong = recipe(tmp_path, {"one": ("images", {"labels": [0, 7]}, {})}, model=CLASSIFIER)
    with pytest.raises(ValueError, match="it has the label 7") as inspected:
        inspect_recipe(wrong, 10, 0)
    with pytest.raises(type(inspected.value)) as built:
        wrong.build()
    assert str(built.value) == str(inspected.value)
    (tmp_path / "recipe.yaml").write_text(
        f"model: {{config: {LLAMA}}}\nstreams: {{a: {{factory: tests.mixer.tools.analysis.inspect.sources.plain}}}}\n"
        f"training: {{output_dir: {tmp_path}, use_cpu: true}}\n".replace("'", "")
    )
    monkeypatch.setattr(TrainingArguments, "world_size", 2)
    assert "mixer inspect runs in one process" in refused("inspect", tmp_path / "recipe.yaml")


@pytest.mark.parametrize(("mixing", "length"), [("PiKE", 8), (None, 6)])
def test_the_first_step_is_that_of_the_run(tmp_path: Path, mixing: str | None, length: int) -> None:
    streams = {"a": ("plain", {"length": length}, {}), "b": ("plain", {"seed": 9, "length": length}, {})}
    made = recipe(tmp_path, streams, mixing=mixing, batch_size=20)
    batch = first_batch(made.build_parts(has_weights=False).trainer)
    trainer = made.build()
    step_batch = trainer.get_train_dataloader().next_batch()
    assert step_batch is not None
    assert batch.counts == dict(zip("ab", step_batch.plan.counts.tolist(), strict=True))
    for shown, micro in zip(batch.micro_batches, step_batch.micro_batches, strict=True):
        assert shown.streams == ["ab"[number] for number in micro.stream_ids]
        assert shown.shapes["input_ids"] == list(micro.inputs["input_ids"].shape)
    trainer.train()
    counts = trainer.ledger.to_pandas().query("step == 1").set_index("stream")["count"].to_dict()
    assert counts == batch.counts
