"""Input pictures of a visual model: patches of pixels, visual tokens, and their positions.

Models of the families Qwen2-VL and Qwen2.5-VL (arXiv 2409.12191, 2502.13923) cut a picture into square patches; their
vision encoder merges squares of patches into visual tokens, which take the places of placeholder ids in the row. A
visual token has a position of three numbers (time, row, column), counted from the text before the picture, and the
text after it goes on behind the largest of them (multimodal rotary embedding).

Rollout and training read rows through the same ``ImageTable``. It numbers the distinct pictures of some rows and gives
each visual token a negative number of its own. So rows with equal placeholders but different pictures compare as
different, and prefixes are shared between equal pictures only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ragen_agent.inference import ImageSpan

FAMILIES = ("qwen2_vl", "qwen2_5_vl")
"""Supported kinds of visual models (``config.model_type``)."""

SAME_PROCESSOR = (*FAMILIES, "qwen3_vl")
"""Kinds with the same placeholders, supported or not (arXiv 2511.21631)."""

FILES = ("preprocessor_config.json", "processor_config.json")
"""Files of an image processor's settings in ``transformers``; in the second under ``image_processor``."""

#: Statistics of CLIP's training pictures, by which these models normalise colours.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class ImageProcessor:
    """Qwen2-VL's image processor in NumPy: the same patches as ``transformers``' own, which needs torchvision.

    Attributes:
        patch_size: side of a patch, in pixels.
        temporal_patch_size: frames in a patch; a picture is repeated as often.
        merge_size: merge_size x merge_size patches become one visual token.
        min_pixels, max_pixels: a picture with fewer or more is scaled.
        mean, std: of the colours red, green, blue, from 0 to 1.
        rescale: factor from 0 to 255 to 0 to 1.
    """

    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    mean: tuple[float, ...] = CLIP_MEAN
    std: tuple[float, ...] = CLIP_STD
    rescale: float = 1 / 255

    @property
    def tile(self) -> int:
        """Side in pixels of the square that becomes one visual token."""
        return self.patch_size * self.merge_size

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ImageProcessor:
        """From settings written by ``transformers``; missing ones take Qwen2-VL's defaults."""
        size = settings.get("size") or {}
        given: dict[str, Any] = {
            "min_pixels": settings.get("min_pixels") or size.get("shortest_edge"),
            "max_pixels": settings.get("max_pixels") or size.get("longest_edge"),
            "mean": tuple(settings["image_mean"]) if settings.get("image_mean") else None,
            "std": tuple(settings["image_std"]) if settings.get("image_std") else None,
            "rescale": settings.get("rescale_factor"),
        }
        given |= {name: settings.get(name) for name in ("patch_size", "temporal_patch_size", "merge_size")}
        return cls(**{name: value for name, value in given.items() if value is not None})

    def settings(self) -> dict[str, Any]:
        """The settings in the form of ``transformers``."""
        values = asdict(self)
        kept = {name: values[name] for name in ("patch_size", "temporal_patch_size", "merge_size")}
        return {
            **kept,
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
            "resample": 3,
            "rescale_factor": self.rescale,
            "size": {"shortest_edge": self.min_pixels, "longest_edge": self.max_pixels},
        }

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """The size to which a picture is scaled: whole visual tokens, within ``min_pixels`` and ``max_pixels``.

        Raises:
            ValueError: a picture more than 200 times as long as it is wide.
        """
        if max(height, width) > 200 * min(height, width):
            raise ValueError(f"a picture of {height}x{width} pixels is too narrow: at most 200 times as long as wide.")
        tile = self.tile
        sizes = round(height / tile) * tile, round(width / tile) * tile
        if sizes[0] * sizes[1] > self.max_pixels:
            factor = math.sqrt(height * width / self.max_pixels)
            return tuple(max(tile, math.floor(side / factor / tile) * tile) for side in (height, width))  # type: ignore[return-value]
        if sizes[0] * sizes[1] < self.min_pixels:
            factor = math.sqrt(self.min_pixels / (height * width))
            return tuple(math.ceil(side * factor / tile) * tile for side in (height, width))  # type: ignore[return-value]
        return sizes

    def grid(self, pixels: NDArray[np.uint8]) -> tuple[int, int]:
        """Rows and columns of visual tokens of a picture, uint8 (height, width, 3).

        Raises:
            ValueError: not a picture of this form.
        """
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
            raise ValueError(
                f"a picture is {pixels.dtype} of shape {pixels.shape}; it must be uint8 (height, width, 3)."
            )
        height, width = self.scaled(*pixels.shape[:2])
        return height // self.tile, width // self.tile

    def resized(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A picture scaled to the size at which it is read; further processors of this kind leave it unchanged."""
        rows, columns = self.grid(pixels)
        height, width = rows * self.tile, columns * self.tile
        if pixels.shape[:2] == (height, width):
            return pixels
        from PIL import Image

        return np.asarray(Image.fromarray(pixels).resize((width, height), resample=Image.Resampling.BICUBIC))

    def patches(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The patches of a picture, uint8 (height, width, 3), as float32 (patches, values of a patch).

        Patches of one visual token stand next to each other; the values of a patch are colour, frame, row, column.
        """
        pixels = self.resized(pixels)
        rows, columns = pixels.shape[0] // self.tile, pixels.shape[1] // self.tile
        merged, side = self.merge_size, self.patch_size
        blocks = pixels.reshape(rows, merged, side, columns, merged, side, 3).transpose(0, 3, 1, 4, 6, 2, 5)
        values = self._normalised[np.arange(3)[:, None, None], blocks]
        values = np.broadcast_to(values[:, :, :, :, :, None], (*values.shape[:5], self.temporal_patch_size, side, side))
        return values.reshape(rows * columns * merged**2, -1)

    @cached_property
    def _normalised(self) -> NDArray[np.float32]:
        """Normalised value of each colour's 256 values, float32 (3, 256)."""
        scaled = (np.arange(256) * self.rescale).astype(np.float32)
        mean, std = (np.array(values, np.float32)[:, None] for values in (self.mean, self.std))
        return ((scaled - mean) / std).astype(np.float32)


@dataclass(frozen=True)
class Vision:
    """Picture handling of one visual model, besides its weights.

    Attributes:
        processor: cuts pictures into patches.
        image_id: the placeholder's id.
        reserved_ids: ids that mean pictures or videos; no reply may hold one.
    """

    processor: ImageProcessor
    image_id: int
    reserved_ids: frozenset[int]

    @classmethod
    def from_config(cls, config: Any, processor: ImageProcessor, families: Sequence[str] = FAMILIES) -> Vision:
        """From a model's config.

        Raises:
            ValueError: a family not in ``families``, or a processor whose patches are not the model's.
        """
        if config.model_type not in families:
            raise ValueError(
                f"pictures are not supported for the model family {config.model_type}; use one of "
                f"{', '.join(families)}, or observation='text'."
            )
        vision = config.vision_config
        found = processor.patch_size, processor.temporal_patch_size, processor.merge_size
        needed = vision.patch_size, vision.temporal_patch_size, vision.spatial_merge_size
        if found != needed:
            raise ValueError(
                f"the image processor cuts pictures by (patch_size, temporal_patch_size, merge_size) = {found}, but "
                f"the model reads {needed}; put the model's own {FILES[0]} next to it."
            )
        return cls(processor, config.image_token_id, reserved_ids(config))

    @classmethod
    def from_folder(cls, config: Any, folder: Path, families: Sequence[str] = FAMILIES) -> Vision | None:
        """From a model's folder; None for a text-only model or one of another family.

        Raises:
            ValueError: a visual model without its image processor; see also ``from_config``.
        """
        if getattr(config, "vision_config", None) is None or config.model_type not in families:
            return None
        for name in FILES:
            if (folder / name).is_file():
                settings = json.loads((folder / name).read_text(encoding="utf-8"))
                settings = settings.get("image_processor") or settings
                if "patch_size" in settings or "image_processor_type" in settings:
                    return cls.from_config(config, ImageProcessor.from_settings(settings), families)
        raise ValueError(
            f"{folder}: a visual model without image processor settings ({FILES[0]} or {FILES[1]}); copy the "
            "image processor's file from the model's source."
        )

    def save(self, folder: Path) -> None:
        """Writes the image processor's settings into a model's folder, in the form of ``transformers``."""
        (folder / FILES[0]).write_text(json.dumps(self.processor.settings(), indent=2) + "\n", encoding="utf-8")

    def placed(self, ids: Sequence[int], pictures: Sequence[NDArray[np.uint8]]) -> tuple[list[int], list[ImageSpan]]:
        """Ids with one placeholder per picture: the same with one per visual token, and the pictures' places.

        Raises:
            ValueError: another number of placeholders than of pictures, or a picture of another form.
        """
        if (shown := ids.count(self.image_id)) != len(pictures):
            raise ValueError(
                f"the messages show {shown} picture{'s' * (shown != 1)}, but {len(pictures)} are given; an environment "
                "gives the pictures of its last message in info['images'], and the chat template must write each."
            )
        widened: list[int] = []
        spans: list[ImageSpan] = []
        for token in ids:
            if token == self.image_id:
                pixels = pictures[len(spans)]
                spans.append(ImageSpan(len(widened), self.processor.grid(pixels), pixels))
                widened += [token] * spans[-1].tokens
            else:
                widened.append(token)
        return widened, spans

    def features(self, model: nn.Module, pictures: Sequence[ImageSpan]) -> Tensor:
        """The visual tokens of pictures in order, float (tokens, hidden), with gradient."""
        weight = next(model.parameters())
        values = np.concatenate([self.processor.patches(picture.pixels) for picture in pictures])
        merged = self.processor.merge_size
        grids = torch.tensor([[1, rows * merged, columns * merged] for rows, columns in (p.grid for p in pictures)])
        with _embed_by_products(model):
            found: Any = model.get_image_features(  # type: ignore[operator]
                torch.from_numpy(values).to(weight.device), grids.to(weight.device)
            )
        return torch.cat(list(getattr(found, "pooler_output", found)))


@contextmanager
def _embed_by_products(model: nn.Module) -> Iterator[None]:
    """Within it, patches are embedded by a matrix product: the non-overlapping convolution is slow on a CPU."""
    (embedding,) = (module for name, module in model.named_modules() if name.rpartition(".")[2] == "patch_embed")
    weight = embedding.proj.weight
    assert isinstance(weight, Tensor)
    embedding.__dict__["forward"] = lambda patches: nn.functional.linear(patches.to(weight.dtype), weight.flatten(1))
    try:
        yield
    finally:
        del embedding.__dict__["forward"]


def reserved_ids(config: Any) -> frozenset[int]:
    """The picture and video ids of a model's config; empty for a text-only model."""
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ids = [getattr(config, name, None) for name in names]
    return frozenset(index for index in ids if index is not None)


def attach(model: Any, vision: Vision) -> None:
    """Attaches ``vision`` to the model, and to copies of its base."""
    model.base_model.__dict__["ragen_vision"] = vision


def vision_of(model: Any) -> Vision | None:
    """The ``Vision`` attached to the model or its base; None for a text-only model."""
    found = getattr(model, "base_model", model).__dict__.get("ragen_vision")
    assert found is None or isinstance(found, Vision)
    return found


class ImageTable:
    """The distinct pictures of some rows; their visual tokens are numbered -1, -2, -3, ... across pictures.

    Attributes:
        pictures: in the order of the numbers.
    """

    def __init__(self) -> None:
        self.pictures: list[ImageSpan] = []
        self._first: dict[bytes, int] = {}  # by picture, the number of its first token, without the sign
        self._starts: list[int] = []
        # For each visual token, after a dummy: its picture, its place in the picture, and the shift of the text's
        # positions after it.
        self._owner = torch.zeros(1, dtype=torch.long)
        self._offset = torch.zeros(3, 1, dtype=torch.long)
        self._advance = torch.ones(1, dtype=torch.long)

    @property
    def tokens(self) -> int:
        """Number of visual tokens."""
        return len(self._owner) - 1

    def keys(self, ids: Sequence[int] | NDArray[np.int64], images: Sequence[ImageSpan]) -> NDArray[np.int64]:
        """A row with visual-token numbers in place of placeholders; adds new pictures."""
        keys = np.array(ids, dtype=np.int64)
        for image in images:
            first = self._first.get(image.digest)
            if first is None:
                first = self._add(image)
            keys[image.start : image.end] = -np.arange(first, first + image.tokens)
        return keys

    def pictures_of(self, keys: Sequence[int]) -> list[ImageSpan]:
        """The pictures of a row of keys, with their places."""
        found: list[ImageSpan] = []
        at = 0
        while at < len(keys):
            if keys[at] >= 0:
                at += 1
                continue
            picture = self.pictures[int(self._owner[-keys[at]])]
            found.append(replace(picture, start=at))
            at += picture.tokens
        return found

    def positions(self, keys: Tensor) -> Tensor:
        """Positions of rows of keys, int64 (..., width): int64 (3, ..., width), from 0 at the start of each row."""
        token = (-keys).clamp(min=0)
        advance, offset = self._advance.to(keys.device)[token], self._offset.to(keys.device)[:, token]
        return advance.cumsum(-1) - advance + offset

    def length(self, keys: Sequence[int]) -> int:
        """Number of positions that these keys take: the distance from the first key to the next one after them."""
        token = (-torch.tensor(keys, dtype=torch.long)).clamp(min=0)
        return int(self._advance[token].sum())

    def embed(self, model: Any, keys: Tensor, features: Tensor | None = None) -> Tensor:
        """The inputs of a model at these keys, float (..., width, hidden).

        Args:
            model: a visual model, or its base.
            keys: int64 (..., width).
            features: of all visual tokens, after a dummy; if None, computed for those that occur.
        """
        words: Tensor = model.get_input_embeddings()(keys.clamp(min=0))
        visual = keys < 0
        if not bool(visual.any()):
            return words
        tokens = -keys[visual]
        if features is None:
            chosen = self._owner.to(keys.device)[tokens].unique().tolist()
            vision = vision_of(model)
            assert vision is not None, "a model that reads pictures"
            features = vision.features(model, [self.pictures[picture] for picture in chosen])
            place = torch.zeros(len(self._owner), dtype=torch.long)
            places = [torch.arange(self.pictures[p].tokens) + self._starts[p] for p in chosen]
            place[torch.cat(places)] = torch.arange(len(features))
            tokens = place.to(keys.device)[tokens]
        return words.masked_scatter(visual[..., None], features[tokens].to(words.dtype))

    def inputs(self, model: Any, keys: Tensor) -> dict[str, Tensor]:
        """Model inputs in place of ``input_ids`` for rows of keys, int64 (rows, width)."""
        return {"inputs_embeds": self.embed(model, keys), "position_ids": self.positions(keys)}

    def _add(self, image: ImageSpan) -> int:
        first, (rows, columns) = len(self._owner), image.grid
        place = torch.arange(image.tokens)
        advance = torch.zeros(image.tokens, dtype=torch.long)
        advance[-1] = max(rows, columns)
        self._owner = torch.cat([self._owner, torch.full((image.tokens,), len(self.pictures))])
        self._offset = torch.cat([self._offset, torch.stack([place * 0, place // columns, place % columns])], 1)
        self._advance = torch.cat([self._advance, advance])
        self._first[image.digest] = first
        self._starts.append(first)
        self.pictures.append(image)
        return first
