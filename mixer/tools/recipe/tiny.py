"""Recipes in miniature, and a model in miniature with a tokenizer: what any machine trains in seconds."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from mixer.tools.recipe.given import read_recipe_file
from mixer.utils.errors import wrong_value
from mixer.utils.nested import merged

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FLAG = "--tiny"
# Of a Llama with the tokens of `byte_tokenizer`.
TINY_CONFIG = {
    "model_type": "llama",
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 3,
}
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_tokenizer(**changes: Any) -> "PreTrainedTokenizerFast":
    """Makes a tokenizer with a chat template from nothing: a token for each byte, and four special ones.

    Args:
        **changes: Arguments of `transformers.PreTrainedTokenizerFast`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([], trainer)
    options = {"eos_token": "<|endoftext|>", "pad_token": "<pad>", "chat_template": CHATML, **changes}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **options)  # type: ignore[no-untyped-call]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    return tokenizer


@contextlib.contextmanager
def tiny(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Puts the recipe in miniature in the place of the recipe, if the flag says so.

    Args:
        arguments: Arguments of a command, the recipe's path first.

    Yields:
        The arguments, in which a file that lasts as long as this context is the recipe.

    Raises:
        ValueError: If there is nothing in miniature, or the recipe does not come first.
        FileNotFoundError: If the recipe does not exist.
    """
    if FLAG not in arguments:
        yield list(arguments)
        return
    path, *options = arguments
    if path.startswith("-"):
        raise wrong_value(FLAG, f"Give the path of the recipe first, as in mixer train RECIPE.yaml {FLAG}.")
    recipe, small = read_recipe_file(path), Path(path).parent / "tiny" / Path(path).name
    if not small.is_file():
        text = f"needs a miniature, which would be {small}. recipes/models has recipes with one."
        raise wrong_value(FLAG, text, found=path)
    options = [word for word in options if word != FLAG]
    own = {"training": {"output_dir": f"{recipe['training']['output_dir']}-tiny"}}  # not that of the whole run
    named = {word.partition("=")[0] for word in options}
    if not named & {"--training.output_dir", "--output_dir", "--resume"}:
        options.append("--overwrite")
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / Path(path).name
        content = merged(merged(recipe, read_recipe_file(str(small))), own)
        written.write_text(yaml.safe_dump(content, sort_keys=False))
        yield [str(written), *options]
