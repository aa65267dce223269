"""Trains a LoRA of a diffusion model on folders of pictures that are repeated, in a loop with accelerate.

    python examples/diffusion_lora.py --folder FOLDER

The folder has one for each concept, named as by kohya's scripts: `10_mug` is repeated ten times and its pictures are
"mug", unless a text file beside one says more. A stream's weight is repeats times pictures: the share that copies would
have, exact in every batch, without copies, and an epoch is as long. `--share mug=0.5` sets a share instead.

`Denoiser` stands in for a pretrained model; here it first learns the pictures that are not repeated. For the real
thing load `UNet2DConditionModel`, its text encoder and VAE with diffusers: names of the layers, `to_q`, `to_k` and
`to_v`, are the same, and so is the loop. It needs peft and Pillow.
"""

import argparse
import itertools
import zlib
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

from mixer import MixingDataLoader

SIZE, PATCH, NUM_TIMES = 16, 4, 100


class Pictures(Dataset[dict[str, Tensor]]):
    """Pictures of a folder with the numbers of their captions."""

    def __init__(self, folder: Path):
        self.paths = sorted(
            path for path in folder.iterdir() if path.suffix.lower() in {".jpg", ".jpeg", ".png", ".webp"}
        )
        self.concept = folder.name.partition("_")[2]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        path = self.paths[index]
        text = path.with_suffix(".txt")
        caption = text.read_text().strip() if text.exists() else self.concept
        picture = np.asarray(Image.open(path).convert("RGB").resize((SIZE, SIZE)), dtype=np.float32)
        pixels = torch.from_numpy(picture / 127.5 - 1).permute(2, 0, 1)
        return {"pixels": pixels, "caption": torch.tensor(zlib.crc32(caption.encode()) % 64)}


class Attention(nn.Module):
    """Attention of one head among patches, with a layer after it."""

    def __init__(self, width: int):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, patches: Tensor) -> Tensor:
        """Adds to each patch what it reads off the others."""
        queries, keys, values = self.to_q(patches), self.to_k(patches), self.to_v(patches)
        patches = patches + nn.functional.scaled_dot_product_attention(queries, keys, values)
        mixed: Tensor = patches + self.feed(patches)
        return mixed


class Denoiser(nn.Module):
    """Predicts the noise in a picture from the picture, the time and the caption."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.cut = nn.Conv2d(3, width, PATCH, PATCH)
        self.times, self.captions = nn.Embedding(NUM_TIMES, width), nn.Embedding(64, width)
        self.places = nn.Parameter(torch.randn((SIZE // PATCH) ** 2, width) * 0.1)
        self.blocks = nn.Sequential(Attention(width), Attention(width))
        self.join = nn.ConvTranspose2d(width, 3, PATCH, PATCH)

    def forward(self, noisy: Tensor, times: Tensor, captions: Tensor) -> Tensor:
        """Returns the noise: `[num_rows, 3, SIZE, SIZE]`."""
        patches = self.cut(noisy).flatten(2).transpose(1, 2) + self.places
        patches = self.blocks(patches + (self.times(times) + self.captions(captions))[:, None])
        noise: Tensor = self.join(patches.transpose(1, 2).unflatten(2, (SIZE // PATCH, SIZE // PATCH)))
        return noise


def noise_losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Returns each row's mean square error of the noise predicted at a random time: DDPM, Ho et al. 2020, eq. 14."""
    pixels, captions = batch["pixels"], batch["caption"]
    times = torch.randint(NUM_TIMES, (len(pixels),), device=pixels.device)
    kept = torch.cos((times + 1) / (NUM_TIMES + 1) * torch.pi / 2)[:, None, None, None] ** 2
    noise = torch.randn_like(pixels)
    predicted = model(kept.sqrt() * pixels + (1 - kept).sqrt() * noise, times, captions)
    return (predicted - noise).square().mean(dim=(1, 2, 3))


def train(accelerator: Accelerator, model: nn.Module, loader: MixingDataLoader, steps: int, rate: float) -> Tensor:
    """Trains what has gradients; returns the mean loss of each stream over the last half of the steps."""
    optimizer = torch.optim.AdamW([own for own in model.parameters() if own.requires_grad], lr=rate)
    model, optimizer = accelerator.prepare(model, optimizer)  # not the loader: it shares out the rows itself
    totals = torch.zeros(2, len(loader.streams), device=accelerator.device)
    batches = (batch for _ in itertools.count() for batch in loader)  # one epoch after the other
    for step, batch in zip(range(steps), batches, strict=False):
        row_losses = noise_losses(model, {name: part.to(accelerator.device) for name, part in batch.items()})
        accelerator.backward(row_losses.mean() * loader.loss_scale)
        optimizer.step()
        optimizer.zero_grad()
        sums, ids = torch.zeros_like(totals), torch.from_numpy(loader.stream_ids).to(accelerator.device)
        if not loader.is_padding:
            sums.index_add_(1, ids, torch.stack([row_losses.detach(), torch.ones_like(row_losses)]))
        sums = accelerator.reduce(sums)
        loader.observe((sums[0] / sums[1]).tolist())
        totals += sums if step >= steps // 2 else 0
    return totals[0] / totals[1]


def main() -> None:
    """Trains the stand-in for a pretrained model, then the LoRA, and saves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="Holds REPEATS_CONCEPT folders.")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/examples/diffusion_lora"))
    parser.add_argument(
        "--share", nargs="*", default=[], help="CONCEPT=SHARE of the batches; the others share the rest."
    )
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--base_steps", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    accelerator = Accelerator()
    torch.manual_seed(0)
    folders = {path.name.partition("_")[2]: path for path in sorted(options.folder.iterdir()) if path.is_dir()}
    data = {concept: Pictures(path) for concept, path in folders.items()}
    repeats = {concept: int(path.name.partition("_")[0]) for concept, path in folders.items()}
    weights = {concept: repeats[concept] * len(own) for concept, own in data.items()}
    ranks = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    plain = {concept: own for concept, own in data.items() if repeats[concept] == 1} or data
    model: nn.Module = Denoiser()
    train(accelerator, model, MixingDataLoader(plain, options.batch_size, **ranks), options.base_steps, 2e-3)
    model = get_peft_model(model, LoraConfig(r=8, target_modules=["to_q", "to_k", "to_v"]))
    loader = MixingDataLoader(data, options.batch_size, mixing=weights, epoch_size=sum(weights.values()), **ranks)
    if options.share:
        shares = {concept: float(share) for concept, share in (entry.split("=") for entry in options.share)}
        rest = sum(weight for concept, weight in weights.items() if concept not in shares)
        left = 1 - sum(shares.values())
        loader.set_weights({concept: shares.get(concept, left * own / rest) for concept, own in weights.items()})
    losses = train(accelerator, model, loader, options.steps, 5e-3)
    if accelerator.is_main_process:
        for concept, loss, seen in zip(data, losses.tolist(), loader.mixing.seen.tolist(), strict=True):
            print(f"{concept}: loss {loss:.3f}, {seen} pictures, {seen / len(data[concept]):.1f} passes")
        model.save_pretrained(options.output_dir)
        torch.save(loader.state_dict(), options.output_dir / "loader.pt")


if __name__ == "__main__":
    main()
