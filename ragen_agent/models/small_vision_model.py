"""The small visual model: a Qwen2.5-VL of a few hundred thousand parameters, from scratch.

Its tokenizer is the small model's, with picture ids after all others, so a text has the same ids in both. A patch has
14 pixels and 2 x 2 patches become a visual token, so a tile of 28 pixels is one visual token. The vision encoder is as
wide and deep as the language model; its attention covers the whole picture in every layer. The checkpoint loads
wherever a Qwen2.5-VL loads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transformers import (
    PreTrainedTokenizerBase,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
)

from ragen_agent.config import Config, SmallModel
from ragen_agent.inference.vision import ImageProcessor, Vision, attach
from ragen_agent.models.checkpoint import tokenizer_hash
from ragen_agent.models.small_model import (
    CONTEXT,
    HEAD_SIZE,
    INITIAL_SCALE,
    build_tokenizer,
    from_scratch,
    game_texts,
)
from ragen_agent.tasks.tasks import all_settings, make_env
from ragen_gym.core.settings import declared
from ragen_gym.core.turn_config import TILE_SETS, TurnConfig

IMAGE, VIDEO, VISION_START, VISION_END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

PROCESSOR = ImageProcessor(min_pixels=28 * 28, max_pixels=28 * 28 * 1024)
"""Pictures of up to 1,024 tiles of 28 pixels are read unscaled."""

SECTIONS = [HEAD_SIZE // 2 - 4 * (HEAD_SIZE // 11), *[2 * (HEAD_SIZE // 11)] * 2]
"""Rotary frequencies of a head for time, rows and columns, about in Qwen2.5-VL's proportion of 16, 24, 24 of 64."""


def small_tokenizer(config: Config) -> Qwen2Tokenizer:
    """The tokenizer of the small model that these settings train from scratch.

    A visual model's tokenizer also has the words of messages with other pictures and with text boards, so that the
    model can be evaluated on unseen pictures and compared with a text model.
    """
    games = all_settings(config)
    if visual := config.small_model.kind == "vision":
        observations: list[dict[str, Any]] = [
            {"observation": seen, "image_tiles": tiles} for seen in ("image", "both") for tiles in TILE_SETS
        ]
        plain = {name: each.default for name, each in declared(TurnConfig).items() if name.startswith("image_")}
        observations.append({**plain, "observation": "text"})
        games += [replace(game, turns=replace(game.turns, **each)) for game in games for each in observations]
    texts = [game_texts(make_env(game, None), game.demonstrations.thought) for game in games]
    tokenizer = build_tokenizer(texts)
    if visual:
        with_images(tokenizer)
    return tokenizer


def with_images(tokenizer: PreTrainedTokenizerBase) -> None:
    """Adds picture ids and a template with pictures to the small model's tokenizer."""
    names = [VISION_START, VISION_END, IMAGE, VIDEO]
    tokenizer.add_special_tokens({"additional_special_tokens": [*_extra(tokenizer), *names]})
    tokenizer.chat_template = TEMPLATE


def vision_config(shape: SmallModel, tokenizer: PreTrainedTokenizerBase) -> Qwen2_5_VLConfig:
    """The model's config; ``tokenizer`` comes from ``with_images``."""
    heads = shape.hidden // HEAD_SIZE
    ids = tokenizer.get_vocab()
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": shape.hidden,
            "intermediate_size": shape.feed_forward,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "max_position_embeddings": CONTEXT,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": SECTIONS},
            "initializer_range": INITIAL_SCALE,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": shape.layers,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.feed_forward,
            "num_heads": heads,
            "out_hidden_size": shape.hidden,
            "patch_size": PROCESSOR.patch_size,
            "spatial_merge_size": PROCESSOR.merge_size,
            "temporal_patch_size": PROCESSOR.temporal_patch_size,
            "fullatt_block_indexes": list(range(shape.layers)),
            "initializer_range": INITIAL_SCALE,
        },
        image_token_id=ids[IMAGE],
        video_token_id=ids[VIDEO],
        vision_start_token_id=ids[VISION_START],
        vision_end_token_id=ids[VISION_END],
        tie_word_embeddings=True,
    )
    config.tokenizer_sha256 = tokenizer_hash(tokenizer)
    return config


def small_vision(shape: SmallModel, tokenizer: PreTrainedTokenizerBase) -> Vision:
    """The model's picture handling, without the model."""
    return Vision.from_config(vision_config(shape, tokenizer), PROCESSOR)


def build_vision_model(
    shape: SmallModel, tokenizer: PreTrainedTokenizerBase, seed: int
) -> Qwen2_5_VLForConditionalGeneration:
    """A model with weights drawn from ``seed``, which may not write the tokenizer's ids for reading only.

    Its image processor is attached (``ragen_agent.inference.vision.vision_of``). ``tokenizer`` comes from
    ``with_images``.
    """
    config = vision_config(shape, tokenizer)
    model = from_scratch(Qwen2_5_VLForConditionalGeneration, config, tokenizer, seed)
    attach(model, Vision.from_config(config, PROCESSOR))
    return model


def _extra(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The tokenizer's additional special tokens, without a role of their own."""
    roles = {tokenizer.pad_token, tokenizer.eos_token, tokenizer.unk_token}
    return [token for token in tokenizer.all_special_tokens if token not in roles]
