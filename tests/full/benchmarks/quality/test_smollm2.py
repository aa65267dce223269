"""The scenarios of `--model smollm2`, and the model whose lower layers are computed once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.quality.instructions import EXACT, SOURCES, calls, last_number
from benchmarks.quality.policies import REPLAY_BOUND, competitors, make, settings_of
from benchmarks.quality.scenarios import Scenario, names_of
from benchmarks.quality.smollm2 import Row, encoded, padded, upper_layers
from mixer.tools.recipe.fields import check_fields
from mixer.tools.recipe.recipe import Recipe

ROWS = [Row((5, 6, 7, 8, 9, 10), 3), Row((11, 12, 13, 14), 0), Row((3, 4, 5, 6, 7, 8, 9), 6)]
NUM_UPPER = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 5, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=20, num_key_value_heads=1, tie_word_embeddings=True, **sizes))
    model.save_pretrained(found := tmp_path_factory.mktemp("llama"))
    return found


def whole_loss(model: Any) -> torch.Tensor:
    """The loss over all labels of `ROWS`, a row at a time and without padding."""
    losses, count = torch.zeros(()), 0
    for row in ROWS:
        ids = torch.tensor([row.ids])
        first = max(row.num_prompt, 1)
        logits = model(input_ids=ids).logits[0, first - 1 : -1]
        losses = losses + torch.nn.functional.cross_entropy(logits, ids[0, first:], reduction="sum")
        count += len(row.ids) - first
    return losses / count


# ---- The model ----


def test_upper_layers_have_the_loss_and_gradients_of_the_whole_model(folder: Path) -> None:
    upper, whole = upper_layers(folder, NUM_UPPER), LlamaForCausalLM.from_pretrained(folder)
    rows = encoded(ROWS, folder, NUM_UPPER)
    loss = upper(**rows.read_columns(np.arange(len(ROWS)))).loss
    expected = whole_loss(whole)
    loss.backward()
    expected.backward()
    assert float(loss) == pytest.approx(float(expected), rel=1e-2)  # frozen layers compute in bfloat16
    for own, other in zip(upper.model.layers, whole.model.layers[-NUM_UPPER:], strict=True):
        mine, theirs = own.mlp.down_proj.weight.grad, other.mlp.down_proj.weight.grad
        assert mine is not None
        assert torch.linalg.norm(mine - theirs) < 0.03 * torch.linalg.norm(theirs)
    assert upper.lm_head.weight.grad is None


def test_rows_of_a_batch_have_the_loss_that_they_have_alone(folder: Path) -> None:
    upper, rows = upper_layers(folder, NUM_UPPER), encoded(ROWS, folder, NUM_UPPER)
    counts = [len(row.ids) - max(row.num_prompt, 1) for row in ROWS]
    with torch.no_grad():
        alone = [float(upper(**rows.read_columns(np.array([place]))).loss) for place in range(len(ROWS))]
        together = float(upper(**rows.read_columns(np.arange(len(ROWS)))).loss)
    assert together == pytest.approx(np.average(alone, weights=counts), rel=1e-5)


def test_lower_layers_run_once(folder: Path) -> None:
    first = encoded(ROWS[:2], folder, NUM_UPPER)
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("lower-*")}
    again = encoded(ROWS[:2], folder, NUM_UPPER)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("lower-*")} == kept
    assert torch.equal(first[0]["inputs_embeds"], again[0]["inputs_embeds"])
    assert kept


def test_padding_is_on_the_left_and_a_text_has_no_label_before_its_second_token() -> None:
    found = padded(ROWS[:2])
    assert found["input_ids"].tolist() == [[5, 6, 7, 8, 9, 10], [0, 0, 11, 12, 13, 14]]
    assert found["labels"].tolist() == [[-100, -100, -100, 8, 9, 10], [-100, -100, -100, 12, 13, 14]]
    assert found["attention_mask"].tolist() == [[1] * 6, [0, 0, 1, 1, 1, 1]]


# ---- Scenarios and competitors ----


@pytest.mark.parametrize("name", names_of("smollm2"))
def test_a_scenario_is_a_recipe_whose_sources_and_targets_are_known(name: str) -> None:
    scenario = Scenario(name, "smollm2")
    check_fields(Recipe, scenario.content)
    sets = {**scenario.content["streams"], **scenario.content.get("evaluation", {})}
    assert {own["arguments"]["name"] for own in sets.values()} <= {*SOURCES}
    assert {*scenario.objective.names} <= {*sets}


@pytest.mark.parametrize("name", ["bounded_text", "outside"])
def test_competitors_can_be_made_and_replay_needs_a_bound(name: str) -> None:
    scenario = Scenario(name, "smollm2")
    for own, entry in competitors("smollm2").items():
        settings = settings_of(entry, scenario)
        if entry.class_name == REPLAY_BOUND:
            assert bool(settings["old"]) == (name == "bounded_text")
        elif own != "concatenation by TRL":
            shares = [1.0 for _ in scenario.streams]
            make(entry.class_name, settings, {str(value): shares for value in settings.values()})


# ---- Exact answers ----


def test_answers_count_by_their_last_number_and_calls_by_what_they_say() -> None:
    assert last_number("2 + 1,000 = 1,002\n#### 1,002") == "1002"
    assert last_number("1002") == ""
    assert calls('{"name": "f", "arguments": {"a": 1, "b": 2}}') == calls(
        '{"arguments": {"b": 2, "a": 1}, "name": "f"}\n'
    )
    assert calls("f(1, 2)") == "f(1, 2)"
    assert {*EXACT} <= {*SOURCES}
