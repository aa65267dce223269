"""Methods of prompts: attention and formulas by hand, what is trained, and runs that are killed and resumed."""

import copy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2ForSequenceClassification, MPNetConfig, MPNetForSequenceClassification

from tasks.methods import L2P, CODAPrompt, DualPrompt
from tasks.methods.coda_prompt import orthonormal
from tasks.methods.prompts import prompts_of
from tests.helpers import weights_of
from tests.ranks.warm import some
from tests.refusals import refused
from tests.tasks.killed import assert_goes_on, whole_runs
from tests.tasks.methods.prompted import METHODS, SIZES, bert, build_named, rows, run_of, vit
from tests.tasks.methods.runs import context
from tests.tasks.methods.test_losses import trained
from tests.tasks.test_continual import new_model

NAMES = [f"{model} {method}" for model in ("vit", "bert") for method in METHODS]
WIDTH, HEADS = SIZES["hidden_size"], SIZES["num_attention_heads"]
whole = whole_runs(build_named)


@pytest.mark.parametrize("name", some(NAMES, ("vit dual", "bert coda")))
def test_a_run_killed_in_a_task_ends_as_one_that_was_not(name: str, whole: Any, tmp_path: Path) -> None:
    assert_goes_on(build_named, name, whole, tmp_path, seed=7)


# ---- Attention ----


def prompted(model: Any, name: str, num_tasks: int = 2) -> Any:
    """Gives a model prompts of tasks; returns them."""
    prompts = prompts_of(model, METHODS[name]())
    for number in range(num_tasks):
        torch.manual_seed(number)
        prompts.grow(number)
    return prompts


def attention_by_hand(query: Any, key: Any, value: Any, prefix: Any, seen: Any) -> np.ndarray:
    """One softmax after the other, `[num_rows, num_tokens, width]`; prefix `[num_rows, 2, length, width]`."""
    found, size = np.zeros(query.shape), WIDTH // HEADS
    for row, token, head in np.ndindex(*query.shape[:2], HEADS):
        own = slice(head * size, (head + 1) * size)
        keys = [*prefix[row, 0, :, own], *key[row, seen[row], own]]
        values = [*prefix[row, 1, :, own], *value[row, seen[row], own]]
        weights = np.exp([float(query[row, token, own] @ vector) / np.sqrt(size) for vector in keys])
        found[row, token, own] = sum(w * vector for w, vector in zip(weights / weights.sum(), values, strict=True))
    return found


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
@pytest.mark.parametrize("make", [vit, bert])
def test_prompts_are_keys_and_values_that_every_token_attends_to_and_padding_stays_unseen(make: Any, kind: str) -> None:
    model, inputs = make(kind=kind).eval(), rows(make is bert)
    prompts = prompted(model, "dual")
    seen = inputs["attention_mask"].bool().numpy() if make is bert else np.ones((4, 5), bool)
    names = ("query", "key", "value", "self") if make is bert else ("q_proj", "k_proj", "v_proj", "o_proj")
    given: list[dict[str, np.ndarray]] = []
    parts = [{name.split(".")[-1]: module for name, module in layer.named_modules()} for layer in layers_of(model)]

    def keep(module: Any, args: Any, output: Any, name: str, number: int) -> None:
        # The output of attention: of BERT that of its own module, of ViT what its last projection gets.
        kept = args[0] if name == "o_proj" else output[0] if name == "self" else output
        given[number][name] = kept.detach().numpy()

    for number, part in enumerate(parts):
        given.append({})
        for name in names:
            part[name].register_forward_hook(lambda m, a, o, name=name, number=number: keep(m, a, o, name, number))
    with torch.no_grad():
        model(**inputs)
        chosen = prompts.chosen(prompts.query)
    for number, arrays in enumerate(given):
        prefix = chosen[number].detach().numpy()
        assert prefix.shape == (4, 2, 2 if number == 0 else 3, WIDTH)
        by_hand = attention_by_hand(*(arrays[name] for name in names[:3]), prefix, seen)
        np.testing.assert_allclose(arrays[names[3]][seen], by_hand[seen], rtol=1e-4, atol=1e-5)


def layers_of(model: Any) -> Any:
    return model.bert.encoder.layer if hasattr(model, "bert") else model.vit.layers


@pytest.mark.parametrize("make", [vit, bert])
def test_a_query_is_the_first_token_of_the_encoder_without_prompts_and_dropout(make: Any) -> None:
    model, plain, inputs = make(), make(), rows(make is bert)
    prompts = prompted(model, "l2p")
    model.train()
    model(**inputs)
    own = {name: column for name, column in inputs.items() if name != "labels"}
    with torch.no_grad():
        expected = plain.eval().base_model(**own).last_hidden_state[:, 0]
    torch.testing.assert_close(prompts.query, expected)
    assert model.training
    assert not model.base_model.training
    twin = copy.deepcopy(model)  # its prompts are its own
    with torch.no_grad():
        twin.prompts.prompts[0].add_(1.0)
        assert torch.equal(model.eval()(**inputs).logits, model(**inputs).logits)
        assert not torch.equal(twin.eval()(**inputs).logits, model(**inputs).logits)


# ---- Formulas ----


def cosine(one: Any, other: Any) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_l2p_takes_the_prompts_of_the_likest_keys() -> None:
    prompts = prompted(vit(), "l2p")
    query = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(3))
    pool, keys = prompts.prompts[0].detach(), prompts.keys[0].detach()
    taken, likeness = prompts.likest(query)
    for row in range(5):
        by_hand = [cosine(query[row], key) for key in keys]
        best = sorted(range(4), key=lambda number: -by_hand[number])[:2]
        assert taken[row].tolist() == best
        np.testing.assert_allclose(likeness[row].tolist(), [by_hand[number] for number in best], rtol=1e-5)
        for place, layer in enumerate((0, 2)):
            expected = torch.cat([pool[number, place] for number in best], dim=1)
            assert torch.equal(prompts.chosen(query)[layer][row], expected)


def test_dual_prompt_takes_the_task_of_the_likest_key_and_in_training_the_present_one() -> None:
    prompts = prompted(vit(), "dual", num_tasks=3)
    query = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))
    by_hand = [int(np.argmax([cosine(row, key.detach()) for key in prompts.keys])) for row in query]
    assert len(set(by_hand)) > 1
    for expected, is_training in ((by_hand, False), ([2] * 6, True)):
        prompts.train(is_training)
        chosen = prompts.chosen(query)
        for row, task in enumerate(expected):
            assert torch.equal(chosen[0][row], prompts.shared[0][0])
            for place, layer in enumerate((1, 2)):
                assert torch.equal(chosen[layer][row], prompts.prompts[task][place])


def test_coda_prompt_weighs_components_by_attended_queries() -> None:
    prompts = prompted(vit(), "coda")
    query = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        for part in (*prompts.prompts, *prompts.keys, *prompts.attentions):
            part.add_(0.1)
        chosen, overlap = prompts.chosen(query), float(prompts.overlap())
    kinds = [
        torch.cat([*part], dim=1).detach().double().numpy()
        for part in (prompts.prompts, prompts.keys, prompts.attentions)
    ]
    for place, layer in enumerate((2, 0)):
        components, keys, attentions = (kind[place] for kind in kinds)
        for row in range(3):
            weights = [cosine(query[row].double().numpy() * attentions[m], keys[m]) for m in range(6)]
            expected = sum(weights[m] * components[m] for m in range(6)).reshape(2, 2, WIDTH)
            np.testing.assert_allclose(chosen[layer][row].numpy(), expected, rtol=1e-4, atol=1e-6)
    squares = [np.mean((part @ part.T - np.eye(6)) ** 2) for kind in kinds for part in kind]
    assert overlap == pytest.approx(sum(squares), rel=1e-4)


def test_new_components_are_orthonormal_to_the_last_earlier_ones_there_is_room_for() -> None:
    torch.manual_seed(0)
    earlier = torch.randn(2, 7, 8)
    new = orthonormal(earlier, 3)
    for place in range(2):
        torch.testing.assert_close(new[place] @ new[place].T, torch.eye(3), rtol=0, atol=1e-5)
        torch.testing.assert_close(new[place] @ earlier[place, 2:].T, torch.zeros(3, 5), rtol=0, atol=1e-5)
        assert (new[place] @ earlier[place, :2].T).abs().max() > 0.05
    assert prompted(vit(), "coda").overlap().item() == pytest.approx(0.0, abs=1e-10)


def test_terms_are_the_mean_distance_of_the_chosen_keys_over_the_samples_of_a_step() -> None:
    query = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(4))
    for name, method, count in (("l2p", L2P(4, top=2, weight=0.7), 2), ("dual", DualPrompt(weight=0.7), 1)):
        prompts = method._prompts = prompted(vit(), name)
        prompts.query, method.run = query, context(SimpleNamespace(num_skipped=0))
        keys = prompts.keys[0] if name == "l2p" else prompts.keys[-1:]
        distances = [sum(sorted(1 - cosine(row, key.detach()) for key in keys)[:count]) for row in query]
        assert method.term(trained(8, (0, 0, 0, 0))).item() == pytest.approx(0.7 * sum(distances) / 8, rel=1e-5)


# ---- What runs do ----


@pytest.mark.parametrize("name", some(NAMES, ("vit l2p", "vit dual", "bert coda")))
def test_only_prompts_and_head_are_trained_and_those_of_earlier_tasks_stay(name: str, whole: Any) -> None:
    run, _ = whole(name)
    make, method = name.split()
    now, fresh = run.model.state_dict(), {"vit": vit, "bert": bert}[make]().state_dict()
    ends = [load_file(run.folder / f"0{number + 1}-task_{number}" / "end" / "model.safetensors") for number in range(3)]
    assert all(torch.equal(now[key], value) for key, value in fresh.items() if "classifier" not in key)
    assert not torch.equal(now["classifier.weight"], fresh["classifier.weight"])
    for kind in dict(run.model.prompts.named_children()):
        if method == "l2p" or kind == "shared":
            key = f"prompts.{kind}.0"
            assert not any(torch.equal(ends[number][key], ends[number + 1][key]) for number in range(2))
            continue
        for task in range(3):
            own = [end.get(f"prompts.{kind}.{task}") for end in ends]
            assert [part is not None for part in own] == [task <= number for number in range(3)]
            assert all(torch.equal(own[task], part) for part in own[task + 1 :])
    trained = {key for key, parameter in run.model.named_parameters() if parameter.requires_grad}
    last = 0 if method == "l2p" else 2
    expected = {f"prompts.{kind}.{0 if kind == 'shared' else last}" for kind, _ in run.model.prompts.named_children()}
    assert trained == {"classifier.weight", "classifier.bias"} | expected


def own_encoder() -> Any:
    """A model of no library: an encoder of transformers' layers, and a head."""
    model = torch.nn.Module()
    model.base_model, model.classifier = bert().bert, torch.nn.Linear(WIDTH, 6)
    return model


def test_a_model_of_ones_own_has_its_encoder_as_base_model() -> None:
    model, inputs = own_encoder(), rows(is_text=True)
    prompts = prompted(model, "coda")
    own = {name: column for name, column in inputs.items() if name != "labels"}
    other, _ = bert(), prompted(reference := bert(), "coda")
    assert torch.equal(model.base_model(**own).last_hidden_state, reference.bert(**own).last_hidden_state)
    assert not torch.equal(model.base_model(**own).last_hidden_state, other.eval().bert(**own).last_hidden_state)
    assert len(prompts.query) == 4


def causal() -> Any:
    return GPT2ForSequenceClassification(
        GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, pad_token_id=0, num_labels=6)
    )


def without_interface() -> Any:
    return MPNetForSequenceClassification(MPNetConfig(**SIZES, vocab_size=9, num_labels=6))


def adapted() -> Any:
    return get_peft_model(vit(), LoraConfig(target_modules=["q_proj"]))


REFUSED: list[tuple[Any, Any, str]] = [
    (lambda: new_model(num_labels=6), L2P, "model"),
    (adapted, L2P, "model"),
    (causal, L2P, "columns"),
    (without_interface, L2P, "columns"),
    (vit, CODAPrompt, "layers"),
    (vit, DualPrompt, "layers"),
]


@pytest.mark.parametrize(("model", "method", "option"), REFUSED)
def test_models_that_prompts_do_not_fit_are_refused_before_a_run(
    model: Any, method: Any, option: str, tmp_path: Path
) -> None:
    with refused(option):
        run_of(tmp_path, model(), [method()], head="whole").check()


@pytest.mark.parametrize(
    "method",
    [
        partial(L2P, layers=()),
        partial(L2P, layers=(1, 1)),
        partial(DualPrompt, (0,), (0, 1)),
        partial(DualPrompt, (0,), ()),
    ],
)
def test_layers_are_different_ones_at_least_one(method: Any) -> None:
    with refused("layers"):
        method()


def test_a_second_method_a_second_run_and_checkpoints_of_activations_are_refused(whole: Any, tmp_path: Path) -> None:
    run, _ = whole("vit dual")
    model = copy.deepcopy(run.model)
    with refused("model"):
        run_of(tmp_path / "other", model, [METHODS["coda"]()]).check()
    with refused("model"):
        run_of(tmp_path / "again", model, [METHODS["dual"]()]).run()
    with refused("gradient_checkpointing"):
        run_of(tmp_path / "checkpointing", vit(), [METHODS["l2p"]()], gradient_checkpointing=True).run()


def test_a_model_with_too_few_layers_of_its_own_says_how_many_there_are() -> None:
    model = own_encoder()
    model.base_model.encoder.layer = model.base_model.encoder.layer[:1]
    prompted(model, "coda")
    with refused("layers"):
        model.base_model(input_ids=rows(is_text=True)["input_ids"])
    assert weights_of(model).isfinite().all()
