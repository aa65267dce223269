"""Methods for language models: their formulas by hand, and runs that are killed and resumed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from peft import OSFConfig, PeftModel, get_peft_model

from replay import ReplayBuffer
from tasks.continual.continual import ContinualRun
from tasks.continual.continual_checks import check_added_parameters
from tasks.methods import CLSER, InfLoRA, Merging, OLoRA, PseudoSamples
from tasks.methods.adapters import matrices_of
from tasks.methods.inf_lora import directions, extended, without
from tasks.methods.merging import average, magmax, ties
from tasks.methods.o_lora import overlap
from tasks.methods.pseudo_samples import PseudoRows
from tasks.methods.shared import load_tensors
from tests.helpers import arguments, weights_of
from tests.mixer.checkpoint.test_resume import Instants
from tests.ranks.warm import some
from tests.refusals import refused
from tests.tasks.killed import assert_goes_on, assert_saved_as_it_is, whole_runs
from tests.tasks.methods.language import NUM_TOKENS, adapted, counting, llama, run_of
from tests.tasks.methods.runs import context
from tests.tasks.methods.test_losses import trained


def osf(seed: int) -> Any:
    return get_peft_model(llama(), OSFConfig(target_modules=["q_proj"], effective_rank=8))


RUNS: dict[str, tuple[Callable[[int], Any], Callable[[], list[Any]], dict[str, Any]]] = {
    "o-lora": (adapted, lambda: [OLoRA(weight=2.0)], {}),
    "o-lora, half": (partial(adapted, is_half=True), lambda: [OLoRA()], {}),
    "inf-lora": (adapted, lambda: [InfLoRA(threshold=0.9, num_samples=12)], {}),
    "adapter": (adapted, list, {"optimizer": "kept"}),
    "osf": (osf, list, {}),  # of PEFT, without a method
    "slow copy": (llama, lambda: [CLSER(strength=0.0, plastic_rate=1.0)], {"memory": "reservoir"}),
    "average": (adapted, lambda: [Merging()], {}),
    "ties": (llama, lambda: [Merging("ties", start="initial", density=0.5)], {}),
    "pseudo-samples": (llama, lambda: [PseudoSamples()], {"memory": "by hand", "prompt_length": 0}),
}


def build_named(folder: Path, name: str, instants: Instants | None = None, seed: int = 0, **changes: Any) -> Any:
    model, methods, options = RUNS[name]
    return run_of(folder, model(seed), methods(), instants, **{**options, **changes})


FEW = ("o-lora", "ties")
whole = whole_runs(build_named)


@pytest.mark.parametrize("name", some(RUNS, FEW))
def test_a_run_killed_in_a_task_ends_as_one_that_was_not(name: str, whole: Any, tmp_path: Path) -> None:
    assert_goes_on(build_named, name, whole, tmp_path, seed=7)


@pytest.mark.parametrize("name", some(RUNS, FEW))
def test_what_a_method_has_learnt_is_laid_out_after_a_save_as_before(name: str, whole: Any, tmp_path: Path) -> None:
    assert_saved_as_it_is(whole(name)[0], tmp_path)


# ---- Formulas ----


def test_a_merged_model_is_what_the_formula_says() -> None:
    vectors = torch.tensor([[3.0, -1.0, 0.5, 0.0], [-1.0, -2.0, 4.0, 0.1], [-1.5, 0.2, -1.0, 5.0]])
    torch.testing.assert_close(average(vectors), vectors.sum(dim=0) / 3)
    assert magmax(vectors).tolist() == [3.0, -2.0, 4.0, 5.0]
    # Of each row the two largest are kept: [3, -1, 0, 0], [0, -2, 4, 0] and [-1.5, 0, 0, 5].
    assert ties(vectors, density=0.5).tolist() == [3.0, -1.5, 4.0, 5.0]
    assert ties(vectors[:1], density=1.0).tolist() == vectors[0].tolist()


def test_adapters_overlap_by_the_squares_of_all_products_of_their_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    own, other = (torch.randn(rank, 5, generator=generator) for rank in (2, 3))
    by_hand = sum(float(a @ b) ** 2 for a in own for b in other)
    assert float(overlap(own, other)) == pytest.approx(by_hand, rel=1e-5)
    orthogonal = torch.linalg.qr(torch.randn(5, 5, generator=generator))[0]
    assert float(overlap(orthogonal[:2], orthogonal[2:])) == pytest.approx(0.0, abs=1e-10)


def test_a_basis_takes_in_the_fewest_directions_that_reach_the_threshold() -> None:
    axes = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))[0]
    first = axes @ torch.diag(torch.tensor([6.0, 3.0, 1.0, 0.0])) @ axes.T
    for threshold, count in ((0.5, 1), (0.55, 1), (0.7, 2), (0.95, 3)):
        assert extended(None, first, threshold).shape == (4, count)
    basis = extended(None, first, 0.9)
    torch.testing.assert_close(basis @ basis.T, axes[:, :2] @ axes[:, :2].T, rtol=0, atol=1e-5)
    second = axes @ torch.diag(torch.tensor([8.0, 0.0, 0.0, 2.0])) @ axes.T  # 0.8 of it is there already
    assert extended(basis, second, 0.7).shape == (4, 2)
    grown = extended(basis, second, 0.9)
    torch.testing.assert_close(grown[:, 2:] @ grown[:, 2:].T, axes[:, 3:] @ axes[:, 3:].T, rtol=0, atol=1e-5)
    free = directions(without(second, basis), 1)[0]
    torch.testing.assert_close((basis.T @ free).abs().max(), torch.tensor(0.0), rtol=0, atol=1e-5)


# ---- What runs do ----


def test_a_new_adapter_has_no_part_in_what_earlier_tasks_give_a_layer(whole: Any) -> None:
    run, _ = whole("inf-lora")
    (method,) = run.rehearsal.new_methods()
    for place, matrix in matrices_of(run.model, "task_2", "A").items():
        state = load_tensors(next(run.folder.glob("02-*/end/methods/*/")), "cpu")
        assert state is not None
        basis = state["bases"][place]
        assert float((matrix.detach() @ basis).abs().max()) < 1e-5
        assert method._bases[place].shape[1] >= basis.shape[1] > 0


def test_the_adapters_of_earlier_tasks_stay_as_they_were_and_all_are_active(whole: Any) -> None:
    run, _ = whole("o-lora")
    model, end = run.model, "end/adapters"
    assert model.active_adapters == ["default", "task_1", "task_2"]
    assert {name.split(".")[-2] for name, parameter in model.named_parameters() if parameter.requires_grad} == {
        "task_2"
    }
    for number, adapter in enumerate(model.active_adapters):
        own = {name: parameter for name, parameter in model.named_parameters() if f".{adapter}." in name}
        assert any(parameter.abs().sum() > 0 for name, parameter in own.items() if "lora_B" in name)
        folder = run.folder / f"0{number + 1}-by_{number + 1}" / end
        after = PeftModel.from_pretrained(llama(), folder if adapter == "default" else folder / adapter)
        for name, parameter in after.named_parameters():
            if "lora" in name:
                assert torch.equal(parameter, own[name.replace("default", adapter)])


def test_the_term_of_o_lora_is_its_weight_times_the_overlaps_whatever_the_micro_batches(whole: Any) -> None:
    run, _ = whole("o-lora")
    (method,) = run.rehearsal.new_methods()
    overlaps = sum(float(overlap(own.detach(), other)) for own, other in method._pairs)
    assert len(method._pairs) == 8  # four matrices, each with those of two earlier tasks
    method.run = context(SimpleNamespace(num_skipped=0))
    parts = [method.term(trained(5, ids)) for ids in ((0, 0), (0, 0, 0))]
    assert sum(map(float, parts)) == pytest.approx(method.weight * overlaps, rel=1e-5)
    assert overlaps > 0.0


def test_only_adapters_are_saved_and_a_run_of_another_model_is_refused(whole: Any, tmp_path: Path) -> None:
    run, _ = whole("o-lora")
    sizes = {path: path.stat().st_size for path in run.folder.rglob("end/**/*.safetensors")}
    assert {path.name for path in sizes} == {"adapter_model.safetensors"}
    num_trained = sum(parameter.numel() for name, parameter in run.model.named_parameters() if ".task_2." in name)
    assert max(sizes.values()) < 4 * num_trained + 8000
    same, other, end = adapted(), adapted(), run.folder / "03-by_3" / "end"
    run_of(tmp_path, same, [OLoRA()])._model_file.load(end)
    assert weights_of(same).tolist() == weights_of(run.model).tolist()
    assert same.active_adapters == run.model.active_adapters
    with torch.no_grad():
        other.get_base_model().lm_head.weight.mul_(1.01)
    for model, methods in ((adapted(lora_alpha=8), []), (llama(), []), (other, [OLoRA()])):
        with refused("model"):
            run_of(tmp_path, model, methods)._model_file.load(end)


def test_the_memory_holds_only_what_the_model_wrote(whole: Any, tmp_path: Path) -> None:
    run, _ = whole("pseudo-samples")
    written = [run.memory[slot] for slot in range(len(run.memory))]
    assert run.memory.num_samples_by_source["written before by_3"] == len(written) == run.memory.capacity
    for sample in written:
        assert sample["input_ids"][0] == 1
        assert ((sample["input_ids"] >= 0) & (sample["input_ids"] < NUM_TOKENS)).all()
        counts = sample["labels"] != -100
        assert torch.equal(sample["labels"][counts], sample["input_ids"][counts])
        assert torch.equal(counts.long(), sample["attention_mask"])


def test_rows_that_are_written_fit_one_batch_with_the_samples_of_the_task() -> None:
    rows = np.array([[1, 5, -1], [1, 6, 7]])
    lists = PseudoRows(rows, 0, {"input_ids": [1, 2], "attention_mask": [1, 1]})
    assert lists[0] == {"input_ids": [1, 5, 0], "attention_mask": [1, 1, 0], "labels": [1, 5, -100]}
    tensors = PseudoRows(rows, 0, {"input_ids": torch.tensor([1, 2])})
    assert {name: column.tolist() for name, column in tensors[1].items()} == {
        "input_ids": [1, 6, 7],
        "labels": [1, 6, 7],
    }


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (llama, {"methods": [OLoRA()]}, "model"),
    (adapted, {"methods": [OLoRA()], "optimizer": "kept"}, "optimizer"),
    (lambda: adapted(modules_to_save=["lm_head"]), {"methods": [OLoRA()]}, "modules_to_save"),
    (lambda: adapted(init_lora_weights=False), {"methods": [OLoRA()]}, "init_lora_weights"),
    (lambda: adapted(target_modules=["embed_tokens"]), {"methods": [InfLoRA()]}, "target_modules"),
    (llama, {"methods": lambda: [Merging()]}, "methods"),
    (llama, {"methods": [PseudoSamples()], "memory": ReplayBuffer(6)}, "memory"),
    (llama, {"methods": [PseudoSamples()], "memory": ReplayBuffer(6, is_online=False)}, "labels"),
    (llama, {"methods": [PseudoSamples(start=5)], "memory": ReplayBuffer(6, is_online=False)}, "start"),
]


@pytest.mark.parametrize(("model", "options", "option"), REFUSED)
def test_what_does_not_fit_is_refused(model: Any, options: dict[str, Any], option: str, tmp_path: Path) -> None:
    args = arguments(tmp_path / "run", max_steps=1, save_strategy="no", use_cpu=True)
    with refused(option):
        ContinualRun(model(), **{"sequence": counting(), "args": args, "scores_before": False, **options}).run()


def test_the_best_checkpoint_cannot_be_restored_where_tasks_add_adapters() -> None:
    args: Any = SimpleNamespace(load_best_model_at_end=True)
    with refused("load_best_model_at_end"):
        check_added_parameters(args, "fresh")


def test_parameters_that_belong_to_no_adapter_are_refused(tmp_path: Path) -> None:
    model = adapted()
    model.get_base_model().lm_head.weight.requires_grad_(True)
    with refused("modules_to_save"):
        run_of(tmp_path, model, [])
