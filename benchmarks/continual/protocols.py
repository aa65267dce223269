"""Published protocols of continual learning, exactly as far as they are known, and what was published with them.

*tiny-episodic* (Chaudhry et al. 2019, arXiv:1902.10486): 17 tasks of permuted MNIST of 1,000 training examples each
and the whole test set; MLP 784-256-256-10, weights from a truncated normal of deviation 0.1, biases 0.1; SGD 0.1,
batches of 10 new samples and 10 of memory in one mean loss, one pass; memory of m a class and task. A-GEM takes up to
256 of memory.

*split-mnist* (Hsu et al. 2018, arXiv:1810.12488): 5 tasks of 2 classes, class-incremental; MLP of two hidden layers
of 400, Adam 1e-3, batches of 128 new samples and as many old ones, 4 epochs a task; memory is filled at each task's
end.

*split-mnist-task* is the same with the task known, a head for each; *split-mnist-long* has 21 epochs, about the 2,000
batches a task of van de Ven and Tolias 2019, arXiv:1904.07734. Published values of both are theirs.

*permuted-mnist-20* (Buzzega et al. 2020, arXiv:2004.07211): 20 tasks of permuted MNIST of 60,000; MLP of two hidden
layers of 100, SGD, batches of 128 and 128 of memory, one epoch; learning rate 0.2, and 0.1 for DER++; α = 1, β = 1.
*permuted-mnist-10* is the same with 10 tasks; nothing that is known to us was published by it. At this learning rate
strengths of 100 for EWC and 10 for SI diverge; 1 and 0.1 were chosen on a few tasks cut to 10,000, on one seed.
*tiny-episodic* takes the same.

*clinc150* (ours; data of Larson et al. 2019): ten tasks of 15 intents, the domains in the order of the alphabet,
class-incremental, 100 training and 30 test requests an intent, none out of scope. Requests are numbered by the 2,800
words that come at least twice in training, and cut to 20. A ModernBERT from scratch: one layer of width 128, four
heads, the mean of its tokens, weights of deviation 0.1, dropout 0.1. AdamW 1e-3 without decay, constant, batches of 32
new requests and as many of memory, 5 epochs a task. These were chosen by offline training and fine-tuning on one seed,
not by comparing selections. Memory is counted in all: 300 is 2 an intent, 750 is 5. Online selections are offered
every request in each epoch, the others a task at its end.

*text-domains* (ours): Python, C++, Wikipedia and Shakespeare one after the other, 150 batches of 32 new blocks each and
as many blocks of memory, one pass. What the model is and how it begins is said in `benchmarks.continual.text`: adapters
need a model that was trained, so that every method begins with the same one. AdamW 1e-3 with β₂ = 0.95, and 5e-3 for
adapters, LoRA of rank 8 on all linear layers; by a cosine to zero in each task. A score is the held-out loss in nats a
byte, and forgetting the rise of it; lower is better. A memory of 480 blocks is a tenth of a task. The strengths of EWC
and SI were chosen of a few powers of ten by the first two tasks, cut to 60 steps, on one seed.

*clinc150-pretrained* and *reviews-pretrained* (ours) train the upper two of six layers of a pre-trained encoder, as
told in `benchmarks.continual.pretrained`; the order of tasks is by seed. The first has the ten domains of CLINC150,
class-incremental, 15 training and 5 test requests an intent. The second has polarity in phrases (MPQA), reviews of
products (CR) and of films (MR, SST-2), domain-incremental, 150 texts a class for training and 75 for evaluation. AdamW
5e-4, constant, clipped to a norm of 1, batches of 16 new texts and as many of memory, one epoch, a reservoir of 300.
Nothing was tuned, but for the rate of prompts: 5e-3, of two powers of ten by CODA-Prompt on seed 4. They are in both
layers, DualPrompt's shared one in the first and that of a task in the second, under a masked head. *head-alone* has
that head, that rate and nothing else.

*fashion-pretrained* (ours) trains the top of a pre-trained image network, as told in `benchmarks.continual.images`:
Fashion-MNIST in five tasks of two kinds of clothes in an order by seed, class-incremental, the first 200 pictures of a
kind for training and the first 100 for evaluation. Rates, sizes of batches and memory and strengths are those of
*clinc150-pretrained*; nothing was tuned.

*joint*, where all tasks are trained on at once for as many epochs, is the upper bound. Methods have as many steps of as
many new samples each; what replay and measurements add to a step is not made up for, but shows in the time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, TrainingArguments

from benchmarks.common import QUIET
from benchmarks.continual import images, pretrained, text
from tasks.mlp import mlp
from tasks.sequences import by_class, by_column, permuted
from tasks.sources import clinc150, npz, words
from tasks.task import Scenario, TaskSequence

A_GEM_BATCH = 256


@dataclass(frozen=True)
class Protocol:
    """How tasks are trained.

    Args:
        sequence: Gives the tasks, by the data's folder and a seed.
        model: Makes the model, by a seed and a folder that keeps what it begins with.
        training: Training arguments.
        batch_size: New samples of a step.
        memory: Entries of the memory where nobody says how many.
        is_per_class: Whether the memory is counted a class and task.
        is_online: Whether the memory is filled as samples are trained on; else at a task's end.
        scenario: What the model is told; see `TaskSequence`.
        is_text: Whether a language model is trained, by blocks without a class.
        strengths: Strengths of methods that have another one than on `split-mnist-task`.
        learning_rates: Learning rates of methods that have another one.
        is_pretrained: Whether an encoder is trained on that was trained before.
        is_of_images: Whether that encoder is of convolutions, which have no place for prompts and adapters.
        row_bytes: What a remembered sample takes: its text or picture, and its label.
        published: What was published, by method and memory.
    """

    sequence: Callable[[Path, int], TaskSequence]
    model: Callable[[int, Path], nn.Module]
    training: Mapping[str, Any]
    batch_size: int
    memory: int
    is_per_class: bool
    is_online: bool
    scenario: Scenario
    is_text: bool = False
    strengths: Mapping[str, float] = field(default_factory=dict)
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    is_pretrained: bool = False
    is_of_images: bool = False
    row_bytes: int = 0
    published: Mapping[tuple[str, int], str] = field(default_factory=dict)

    def capacity(self, memory: int, num_tasks: int) -> int:
        """Counts the entries of a memory in all.

        Args:
            memory: Entries as the protocol counts them.
            num_tasks: Number of tasks.

        Raises:
            ValueError: If there is none.
        """
        if memory < 1:
            raise ValueError(
                f"memory must be 1 entry or more for this method, got {memory}: give --memory-per-class or --buffer."
            )
        return memory * 10 * num_tasks if self.is_per_class else memory

    def rate(self, method: str) -> float:
        """Gives the learning rate.

        Args:
            method: The method.
        """
        return float(self.learning_rates.get(method, self.training["learning_rate"]))

    def arguments(self, folder: str, seed: int, method: str, max_steps: int = -1) -> TrainingArguments:
        """Gives the training arguments.

        Args:
            folder: The output folder.
            seed: The seed.
            method: The method.
            max_steps: Steps of a task; -1 for the protocol's.

        Returns:
            The arguments of each task's run.
        """
        return TrainingArguments(
            folder,
            seed=seed,
            per_device_train_batch_size=4 * A_GEM_BATCH,
            **{
                "lr_scheduler_type": "constant",
                "max_grad_norm": 0.0,
                **self.training,
                "learning_rate": self.rate(method),
                **({} if max_steps < 0 else {"max_steps": max_steps}),
            },
            **QUIET,
        )


def _permuted(num_tasks: int, samples_per_task: int | None) -> Callable[[Path, int], TaskSequence]:
    def sequence(folder: Path, seed: int) -> TaskSequence:
        train, evaluation = npz(folder / "mnist.npz")
        options = {"samples_per_task": samples_per_task, "first_is_identity": False}
        return permuted(train, evaluation, num_tasks, seed, **options)

    return sequence


def _permuted_mnist(num_tasks: int, published: dict[tuple[str, int], str]) -> Protocol:
    return Protocol(
        _permuted(num_tasks, None),
        lambda seed, folder: mlp(hidden_sizes=(100, 100)),
        {"optim": "sgd", "learning_rate": 0.2, "num_train_epochs": 1},
        batch_size=128,
        memory=500,
        is_per_class=False,
        is_online=True,
        scenario="domain",
        learning_rates={"derpp": 0.1},
        strengths={"online-ewc": 1.0, "si": 0.1},
        published=published,
    )


def _split(scenario: Scenario, published: dict[tuple[str, int], str], num_epochs: int = 4) -> Protocol:
    return Protocol(
        lambda folder, seed: by_class(*npz(folder / "mnist.npz"), 2, scenario=scenario),
        lambda seed, folder: mlp(hidden_sizes=(400, 400)),
        {"optim": "adamw_torch", "learning_rate": 1e-3, "num_train_epochs": num_epochs},
        batch_size=128,
        memory=1_100,
        is_per_class=False,
        is_online=False,
        scenario=scenario,
        published=published,
    )


_NUM_WORDS, _LENGTH = 2_800, 20


def _intents(folder: Path, seed: int) -> TaskSequence:
    source = clinc150(folder / "clinc150")
    splits = words(source, max_length=_LENGTH, vocabulary_size=_NUM_WORDS, min_count=2)
    return by_column(*splits, "domain", scenario="class")


def _encoder(seed: int, folder: Path) -> nn.Module:
    config = AutoConfig.for_model(
        "modernbert",
        vocab_size=_NUM_WORDS,
        hidden_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=_LENGTH,
        classifier_pooling="mean",
        initializer_range=0.1,
        embedding_dropout=0.1,
        classifier_dropout=0.1,
        num_labels=150,
        pad_token_id=0,
        cls_token_id=2,
        sep_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: nn.Module = AutoModelForSequenceClassification.from_config(config)
    return model


def _pretrained(
    sequence: Callable[[Path, int], TaskSequence],
    model: Callable[[], nn.Module],
    scenario: Scenario,
    row_bytes: int,
    is_of_images: bool = False,
) -> Protocol:
    return Protocol(
        sequence,
        lambda seed, folder: model(),
        {"optim": "adamw_torch", "learning_rate": 5e-4, "num_train_epochs": 1, "max_grad_norm": 1.0},
        batch_size=16,
        memory=300,
        is_per_class=False,
        is_online=True,
        scenario=scenario,
        learning_rates={**dict.fromkeys(("head-alone", "l2p", "dual-prompt", "coda-prompt"), 5e-3), "slca": 1e-2},
        strengths={"online-ewc": 1e3},
        is_pretrained=True,
        is_of_images=is_of_images,
        row_bytes=row_bytes,
    )


PROTOCOLS = {
    "tiny-episodic": Protocol(
        _permuted(17, 1_000),
        lambda seed, folder: mlp(hidden_sizes=(256, 256), initial_deviation=0.1, initial_bias=0.1),
        {"optim": "sgd", "learning_rate": 0.1, "num_train_epochs": 1},
        batch_size=10,
        memory=3,
        is_per_class=True,
        is_online=True,
        scenario="domain",
        strengths={"online-ewc": 1.0, "si": 0.1},
        published={
            ("finetune", 0): "53.5 ± 1.5",
            **{("er-reservoir", m): acc for m, acc in ((1, "68.9"), (3, "75.2"), (5, "76.2"), (15, "79.8"))},
            **{("er-ring", m): acc for m, acc in ((1, "70.2"), (3, "73.5"), (15, "79.4"))},
            **{("agem", m): acc for m, acc in ((1, "62.1"), (3, "63.2"), (5, "64.1"), (15, "66.0"))},
        },
    ),
    "split-mnist": _split(
        "class",
        {
            ("finetune", 0): "19.71 ± .08",
            ("joint", 0): "97.53 ± .30",
            ("er-reservoir", 1_100): "90.78 ± .85",
            ("er-reservoir", 4_400): "95.59 ± .49",
        },
    ),
    "split-mnist-long": _split(
        "class",
        {
            ("finetune", 0): "19.90 ± .02",
            ("online-ewc", 0): "19.96 ± .07",
            ("si", 0): "19.99 ± .06",
            ("lwf", 0): "23.85 ± .44",
            ("icarl", 2_000): "94.57 ± .11",
        },
        num_epochs=21,
    ),
    "split-mnist-task": _split(
        "task",
        {
            ("finetune", 0): "87.19 ± .94",
            ("online-ewc", 0): "99.12 ± .11",
            ("si", 0): "99.09 ± .15",
            ("lwf", 0): "99.57 ± .02",
        },
    ),
    "permuted-mnist-10": _permuted_mnist(10, {}),
    "permuted-mnist-20": _permuted_mnist(
        20,
        {
            ("finetune", 0): "40.7",
            ("er-reservoir", 200): "72.4",
            ("der", 200): "81.7",
            ("derpp", 200): "83.6",
            ("er-reservoir", 500): "80.6",
            ("derpp", 500): "88.2",
            ("er-reservoir", 5_120): "89.9",
            ("derpp", 5_120): "92.3",
        },
    ),
    "clinc150": Protocol(
        _intents,
        _encoder,
        {"optim": "adamw_torch", "learning_rate": 1e-3, "num_train_epochs": 5},
        batch_size=32,
        memory=300,
        is_per_class=False,
        is_online=True,
        scenario="class",
    ),
    "clinc150-pretrained": _pretrained(pretrained.intents, lambda: pretrained.UpperLayers(150), "class", 42),
    "reviews-pretrained": _pretrained(pretrained.reviews, lambda: pretrained.UpperLayers(2), "domain", 86),
    "fashion-pretrained": _pretrained(images.fashion, lambda: images.UpperBlocks(10), "class", 785, is_of_images=True),
    "text-domains": Protocol(
        text.sequence,
        text.model,
        {**text.TRAINING, "num_train_epochs": 1},
        batch_size=text.BATCH,
        memory=480,
        is_per_class=False,
        is_online=True,
        scenario="domain",
        is_text=True,
        learning_rates=dict.fromkeys(("lora", "o-lora", "inf-lora"), 5e-3),
        strengths={"online-ewc": 1e3, "si": 300.0},
    ),
}
