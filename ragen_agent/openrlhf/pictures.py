"""Pictures between the processes of a run, as the pixels that the model reads.

OpenRLHF takes the first pictures of an episode from its dataset (``--data.image_key``) and later ones from the answers
of the environment (``environment_images``). Here both come from the environment, as the prompt's text does: the
executor shows vLLM the pictures of the prefix, and the trajectory brings them to the trainer.

To the models' processes they go as ``mm_train_inputs``: ``pixels``, uint8, those of all pictures one after another, and
``image_grid_thw``, int64 (pictures, 3), one, and how many patches each is high and wide, as ``transformers`` names it.
They are cut into patches there: as float32, and for two frames, the patches would take eight times the bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ragen_agent.inference import ImageSpan
from ragen_agent.inference.vision import FILES, ImageProcessor, ImageTable, Vision

PIXELS, GRIDS = "pixels", "image_grid_thw"


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer of a visual model's processor, which OpenRLHF calls the tokenizer; that of another model itself."""
    return getattr(processor, "tokenizer", processor)


def copy_processor(model: Path, folder: Path) -> None:
    """Copies into a folder what says how a model's pictures are cut; nothing for one that reads text only."""
    for name in (*FILES, "video_preprocessor_config.json"):
        if (model / name).is_file():
            shutil.copyfile(model / name, folder / name)


def packed(images: Sequence[ImageSpan], processor: ImageProcessor) -> dict[str, Tensor] | None:
    """The pictures of a row for the models' processes; None where there are none."""
    if not images:
        return None
    merged = processor.merge_size
    grids = [[1, rows * merged, columns * merged] for rows, columns in (image.grid for image in images)]
    pixels = [processor.resized(image.pixels).ravel() for image in images]
    return {PIXELS: torch.from_numpy(np.concatenate(pixels)), GRIDS: torch.tensor(grids)}


def unpacked(inputs: Mapping[str, Tensor], processor: ImageProcessor) -> list[NDArray[np.uint8]]:
    """The pictures that ``packed`` made such tensors of, those of several rows concatenated."""
    pixels, side = inputs[PIXELS].cpu().numpy(), processor.patch_size
    shapes = [(height * side, width * side, 3) for _, height, width in inputs[GRIDS].tolist()]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(pixels, ends[:-1]), shapes, strict=True)]


def visual_rows(sequences: Tensor, inputs: Mapping[str, Tensor], vision: Vision) -> tuple[Tensor, ImageTable | None]:
    """Rows of ids, int64 (rows, width), as a ``Batch`` holds them: with the numbers of their visual tokens.

    ``inputs`` are the pictures of all rows; the rows are as they are where there are none.
    """
    if PIXELS not in inputs:
        return sequences, None
    pictures = iter(unpacked(inputs, vision.processor))
    table, keys = ImageTable(), []
    for ids in sequences.tolist():
        images: list[ImageSpan] = []
        places = [place for place, token in enumerate(ids) if token == vision.image_id]
        shown = 0
        while shown < len(places):
            pixels = next(pictures)
            images.append(ImageSpan(places[shown], vision.processor.grid(pixels), pixels))
            shown += images[-1].tokens
        keys.append(torch.from_numpy(table.keys(ids, images)))
    assert next(pictures, None) is None, "every picture has its placeholders"
    return torch.stack(keys).to(sequences.device), table


def cut_into_patches(module: nn.Module, processor: ImageProcessor) -> None:
    """Makes every forward pass of a model take pictures as they travel, as ``transformers`` takes their patches."""

    def cut(
        module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if PIXELS in named:
            patches = [processor.patches(picture) for picture in unpacked(named, processor)]
            values = torch.from_numpy(np.concatenate(patches)).to(named.pop(PIXELS).device)
            named |= {"pixel_values": values}
        return inputs, named

    module.register_forward_pre_hook(cut, with_kwargs=True)
