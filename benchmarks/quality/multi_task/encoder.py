"""The encoder of `benchmarks.quality.multi_task`: words, convolutions over them, the maximum over the sentence.

After Kim 2014, "Convolutional Neural Networks for Sentence Classification" (arXiv:1408.5882), CNN-rand: all words begin
at random.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


class ConvolutionConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """What an encoder is like.

    Args:
        num_words: Size of the vocabulary.
        word_size: Width of a word.
        num_maps: Outputs of each convolution.
        windows: Words that each convolution sees at once; odd numbers.
        dropout: Share of the words' elements that are dropped in training.
        **kwargs: As for every configuration.
    """

    model_type = "benchmark_convolution"

    def __init__(
        self,
        num_words: int = 100,
        word_size: int = 100,
        num_maps: int = 100,
        windows: Sequence[int] = (1, 3, 5),
        dropout: float = 0.0,
        **kwargs: Any,
    ):
        self.num_words, self.word_size, self.num_maps = num_words, word_size, num_maps
        self.windows, self.dropout = list(windows), dropout
        self.hidden_size = num_maps * len(self.windows)
        super().__init__(**kwargs)


class ConvolutionEncoder(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Gives one state a sentence: the largest value of every map.

    Args:
        config: What it is like.
    """

    config_class = ConvolutionConfig
    config: ConvolutionConfig
    main_input_name = "input_ids"

    def __init__(self, config: ConvolutionConfig):
        super().__init__(config)
        self.words = nn.Embedding(config.num_words, config.word_size, padding_idx=0)
        self.dropout = nn.Dropout(config.dropout)
        # Linear layers over neighbouring words, whose gradients by stream the mixer can read.
        self.maps = nn.ModuleList(nn.Linear(window * config.word_size, config.num_maps) for window in config.windows)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Draws the words' weights; maps begin as linear layers do in torch."""
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.25)
            nn.init.zeros_(module.weight[0])
        elif isinstance(module, nn.Linear):
            module.reset_parameters()

    def forward(self, input_ids: Tensor) -> BaseModelOutput:
        """Encodes sentences.

        Args:
            input_ids: int64 `[num_rows, length]`, 0 is padding.

        Returns:
            `last_hidden_state` `[num_rows, 1, hidden_size]`.
        """
        is_padding = input_ids.eq(0).unsqueeze(-1)
        words = self.dropout(self.words(input_ids))
        states = []
        for window, layer in zip(self.config.windows, self.maps, strict=True):
            padded = F.pad(words, (0, 0, window // 2, window // 2))
            near = torch.cat([padded[:, place : place + words.shape[1]] for place in range(window)], dim=-1)
            states.append(layer(near).relu().masked_fill(is_padding, 0.0).amax(dim=1))
        return BaseModelOutput(last_hidden_state=torch.cat(states, dim=-1).unsqueeze(1))
