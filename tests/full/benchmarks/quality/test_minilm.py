"""The scenarios of `benchmarks quality --model minilm`, on made-up data and an encoder that has learned nothing."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, set_seed

from benchmarks.continual import pretrained
from benchmarks.made_up_data import make_data
from benchmarks.quality import minilm
from benchmarks.quality.cache import Run
from benchmarks.quality.data import PARTS, part_of
from benchmarks.quality.grid import few
from benchmarks.quality.minilm_heads import HeadByTask, TextsAndPairs
from benchmarks.quality.plan import planned
from benchmarks.quality.policies import TARGET_ONLY, UNIFORM, similar_shares
from benchmarks.quality.runs import run_once
from benchmarks.quality.scenarios import Scenario, names_of
from mixer import MixingTrainer, Stream
from mixer.tools.recipe.fields import check_fields
from mixer.tools.recipe.recipe import Recipe
from tasks.sources.arrays import InMemory
from tests.helpers import arguments
from tests.mixer.tools.recipe.small_tokenizers import byte_level

DOMAINS = {"banking": ["pay", "owe"], "credit_cards": ["lose", "find"]}
WIDTH = 16


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_data(tmp_path_factory.mktemp("work") / "data")
    intents = [intent for own in DOMAINS.values() for intent in own]
    rows = [[f"{intent} number {number}", intent] for intent in intents for number in range(120)]
    content = json.dumps({"train": rows[::2], "val": [], "test": rows[1::2]})
    (folder / "clinc150" / "data_full.json").write_text(content)
    (folder / "clinc150" / "domains.json").write_text(json.dumps(DOMAINS))
    return folder


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reads texts as their numbers in a list, which is given."""
    seen: list[str] = []

    def numbered(rows: pretrained.Texts) -> InMemory:
        hidden = [[[float(len(seen) + place)]] for place in range(len(rows))]
        seen.extend(text for _, text in rows)
        mask = torch.ones(len(rows), 1, dtype=torch.int64)
        return InMemory(
            {"hidden": torch.tensor(hidden), "attention_mask": mask, "labels": [label for label, _ in rows]}
        )

    monkeypatch.setattr(minilm, "encoded", numbered)
    return seen


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_level()
    sizes = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    for part in (tokenizer, BertModel(BertConfig(vocab_size=len(tokenizer), **sizes))):
        part.save_pretrained(tmp_path / "encoder")
    monkeypatch.setenv(pretrained.FOLDER, str(tmp_path / "encoder"))


def read(dataset: Any, texts: list[str]) -> list[tuple[list[str], int]]:
    """The texts of each row, and its label."""
    columns = dataset.read_columns(np.arange(len(dataset)))
    counts = columns["attention_mask"].squeeze(-1).sum(dim=-1).tolist()
    rows = zip(columns["hidden"].flatten(1).long().tolist(), counts, columns["labels"].tolist(), strict=True)
    return [([texts[place] for place in places[:count]], label) for places, count, label in rows]


# ---- Data ----


def test_half_of_the_pairs_have_one_intent_and_half_two_of_one_domain(data_dir: Path, texts: list[str]) -> None:
    found = minilm.similarity(str(data_dir), [*DOMAINS], num_samples=40, first_class=7)
    domain_of = {intent: domain for domain, own in DOMAINS.items() for intent in own}
    rows = read(found["train"], texts)
    assert Counter(label for _, label in rows) == {7: 20, 8: 20}
    for pair, label in rows:
        first, second = (text.split()[0] for text in pair)
        assert (first == second) == (label == 8)
        assert domain_of[first] == domain_of[second]
        assert pair[0] != pair[1]


def test_no_text_is_trained_on_and_held_out(data_dir: Path, texts: list[str]) -> None:
    folder, own = str(data_dir), dict[str, set[str]]()
    for parts in (minilm.similarity(folder, [*DOMAINS]), minilm.intents(folder, [*DOMAINS])):
        for part in PARTS:
            own.setdefault(part, set()).update(text for row, _ in read(parts[part], texts) for text in row)
    for part, there in own.items():
        assert {part_of(text) for text in there} == {part}


def test_a_target_outside_is_held_out_of_another_set_with_the_same_classes(data_dir: Path, texts: list[str]) -> None:
    folder = str(data_dir)
    outside = minilm.sentences("mr", folder, num_samples=10, first_class=30, held_out="cr")
    films, products = (minilm.sentences(name, folder, num_samples=10) for name in ("mr", "cr"))
    above = lambda part, own: [(row, label + 30) for row, label in read(own[part], texts)]  # noqa: E731
    assert read(outside["train"], texts) == above("train", films)
    assert read(outside["test"], texts) == above("test", products)


@pytest.mark.parametrize("name", names_of("minilm"))
def test_a_scenario_is_a_recipe_whose_labels_the_model_has(name: str, data_dir: Path, encoder: None) -> None:
    scenario = Scenario(name, "minilm", is_quick=True)
    check_fields(Recipe, scenario.content)
    model: Any = scenario.new_model(1)
    heads = getattr(model, "heads", None)
    for stream, parts in scenario.read(data_dir).items():
        head = model.head if heads is None else heads[scenario.head_of(stream)]
        assert max(int(own.labels.max()) for own in parts.values()) < head.num_classes  # type: ignore[attr-defined]


# ---- Model ----


def test_the_features_of_a_text_are_those_of_the_encoder_and_pairs_have_no_order(encoder: None) -> None:
    set_seed(0)
    model, alone = TextsAndPairs().eval(), pretrained.UpperEncoder().eval()
    hidden, mask = torch.randn(3, 2, 4, WIDTH), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]).repeat(3, 1, 1)
    mask[0, 1] = 0  # a text alone
    with torch.no_grad():
        found, turned = model(hidden, mask), model(hidden.flip(1), mask.flip(1))
        first, second = (alone(hidden[:, side], mask[:, side]) for side in (0, 1))
    torch.testing.assert_close(found[0], first[0])
    torch.testing.assert_close(found[1:], 0.25 - (first - second)[1:].abs())
    torch.testing.assert_close(found[1:], turned[1:])


def test_heads_by_task_have_the_gradient_of_each_tasks_mean_loss(encoder: None, tmp_path: Path) -> None:
    set_seed(0)
    model = HeadByTask({"a": 2, "b": 3})
    rows = {
        name: InMemory(
            {
                "hidden": torch.randn(4, 2, 3, WIDTH),
                "attention_mask": torch.ones(4, 2, 3, dtype=torch.int64),
                "labels": torch.arange(4) % 2,
            }
        )
        for name in ("a", "b")
    }
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    wanted = sum(model(task=name, **own.read_columns(np.arange(4))).loss for name, own in rows.items()) / 2
    args = arguments(tmp_path, max_steps=1, per_device_train_batch_size=8)
    trainer = MixingTrainer(model, args, train_dataset=[Stream(name, own) for name, own in rows.items()], batch_size=8)
    assert trainer.train().training_loss == pytest.approx(float(wanted.detach()), rel=1e-5)


def test_a_run_evaluates_every_set_by_its_head(data_dir: Path, encoder: None, tmp_path: Path) -> None:
    run = Run(Scenario("heads_outside", "minilm", is_quick=True), UNIFORM, "Uniform", {}, 11)
    run_once(run, tmp_path / "runs", data_dir)
    found = run.result(tmp_path / "runs")
    assert found is not None
    assert [*found["test"]] == ["reviews", "phrases", "intents", "topics", "similarity"]
    assert all(0.0 <= own["accuracy"] <= 1.0 and np.isfinite(own["loss"]) for own in found["test"].values())


# ---- Competitors ----


def test_few_mixtures_lead_to_the_target_or_give_half_to_each_stream() -> None:
    to_target = few([0.0, 1.0], 4)
    np.testing.assert_allclose(to_target[:, 1], [0.6, 0.7, 0.8, 0.9])
    halves = few([1.0, 1.0, 1.0], 4)
    np.testing.assert_allclose(halves, 0.25 + 0.25 * np.eye(3))
    np.testing.assert_allclose(few([1.0, 0.0, 1.0], 1).sum(axis=1), 1.0)


def test_target_only_is_the_stream_of_the_target_and_no_competitor_where_all_are(data_dir: Path, encoder: None) -> None:
    small = Scenario("one_head_small_target", "minilm", is_quick=True)
    shares = similar_shares(small, small.read(data_dir), takes_targets=True)
    assert dict(zip(small.streams, np.round(shares, 6), strict=True))["products"] == 1.0
    average = Scenario("one_head_average", "minilm", is_quick=True)
    names = {run.name for run in planned(average, [UNIFORM, TARGET_ONLY], [11], data_dir)}
    assert names == {UNIFORM}
