"""Memory estimate of a run, part by part: on each GPU, or in the host's memory on a CPU.

The memory is an estimate, with its arithmetic. A trained model of N parameters, T of which are trained, on n GPUs
holds, in bytes on each (ZeRO, arXiv 1910.02054, section 3, with bfloat16 weights and gradients): weights 2 N, gradients
2 T / n, and float32 weights with Adam's two moments 12 T / n; at stage 3 the weights too are divided by n. What a
forward pass keeps for the backward pass is counted for a Qwen2 layer without attention scores, which flash attention
never writes. The logits come on top: in bfloat16, in float32, once more with suppressed ids, and their gradient.

On a CPU everything is in the host's memory: the same, but that logits are made where tokens are sampled alone, that a
pass holds so many distinct tokens at most (``ragen_agent.update.scoring``), that vLLM has a cache of fixed size next
to its own copy of the weights, and what the processes take for themselves. What reading pictures keeps is counted on
GPUs alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Dict

from ragen_agent.config import Config
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.inference.vision import SAME_PROCESSOR, ImageProcessor, Vision
from ragen_agent.preflight.plan import gpus_of_models, most_pictures
from ragen_agent.tasks.tasks import all_settings, make_env
from ragen_agent.update.scoring import TOKENS_PER_PASS
from ragen_gym.core.load_errors import check_no_kernels

__all__ = [
    "CPU_CACHE",
    "CPU_HEADS",
    "SHAPES",
    "MemoryPart",
    "ModelShape",
    "VisionShape",
    "check_cpu_model",
    "cpu_memory_parts",
    "memory_parts",
    "model_shape",
    "peak_memory",
]

CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes that vLLM's attention has on a CPU."""

GIB = 2**30
LOGITS = 2 + 4 + 4 + 4  # bytes for each token and id
CONTEXT = 0.5  # GiB that a process on a GPU takes for itself
CPU_CACHE = 1  # GiB of vLLM's cache on a CPU
CPU_PROCESS = 0.55  # GiB that a process takes on a CPU for its libraries, measured
CPU_LOGITS = 2 + 2  # bytes for each sampled token and id: the logits, and their gradient


@dataclass(frozen=True)
class VisionShape:
    """Vision encoder of a Qwen2.5-VL or Qwen3-VL model: its sizes and image processor."""

    parameters: int
    hidden: int
    layers: int
    feed_forward: int
    processor: ImageProcessor

    @property
    def activation_bytes(self) -> int:
        """Bytes of activations that one layer keeps for the backward pass, for each patch."""
        return 2 * (8 * self.hidden + 4 * self.feed_forward)


@dataclass(frozen=True)
class ModelShape:
    """A Qwen2, Qwen3 or Llama model, or the language model of a visual one: sizes of its layers.

    ``tied``: the output layer is the embedding. ``head_norms``: queries and keys are normalised in each head.
    """

    hidden: int
    layers: int
    feed_forward: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    tied: bool = True
    biases: bool = True
    head_norms: bool = False
    vision: VisionShape | None = None

    @property
    def projections(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of the linear layers of one layer."""
        queries, keys = self.heads * self.head_size, self.key_value_heads * self.head_size
        attention = ((self.hidden, queries), (self.hidden, keys), (self.hidden, keys), (queries, self.hidden))
        return (*attention, *((self.hidden, self.feed_forward),) * 2, (self.feed_forward, self.hidden))

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        linear = sum(a * b for a, b in self.projections)
        biases = sum(b for _, b in self.projections[:3]) if self.biases else 0
        norms = 2 * self.hidden + (2 * self.head_size if self.head_norms else 0)
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.hidden
        encoder = self.vision.parameters if self.vision else 0
        return embeddings + self.layers * (linear + biases + norms) + self.hidden + encoder

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA adapters on all linear layers."""
        return self.layers * sum(rank * (a + b) for a, b in self.projections)

    @property
    def activation_bytes(self) -> int:
        """Bytes of activations that one layer keeps for the backward pass, for each token."""
        return 2 * (8 * self.hidden + 4 * self.feed_forward)


_QWEN3_VL = ImageProcessor(
    patch_size=16, min_pixels=256**2, max_pixels=4096**2, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
)

_qwen3 = partial(ModelShape, biases=False, head_norms=True)

#: Models by name, for machines without their folders: the sizes in each one's config.json on the Hugging Face Hub.
SHAPES = {
    "SmolLM2-135M": ModelShape(576, 30, 1536, 9, 3, 64, 49_152, biases=False),
    "Qwen2.5-0.5B": ModelShape(896, 24, 4864, 14, 2, 64, 151_936),
    "Qwen2.5-1.5B": ModelShape(1536, 28, 8960, 12, 2, 128, 151_936),
    "Qwen2.5-3B": ModelShape(2048, 36, 11_008, 16, 2, 128, 151_936),
    "Qwen2.5-7B": ModelShape(3584, 28, 18_944, 28, 4, 128, 152_064, tied=False),
    "Qwen2.5-14B": ModelShape(5120, 48, 13_824, 40, 8, 128, 152_064, tied=False),
    "Qwen2.5-32B": ModelShape(5120, 64, 27_648, 40, 8, 128, 152_064, tied=False),
    "Qwen2.5-72B": ModelShape(8192, 80, 29_568, 64, 8, 128, 152_064, tied=False),
    "Qwen3-0.6B": _qwen3(1024, 28, 3072, 16, 8, 128, 151_936),
    "Qwen3-1.7B": _qwen3(2048, 28, 6144, 16, 8, 128, 151_936),
    "Qwen3-4B": _qwen3(2560, 36, 9728, 32, 8, 128, 151_936),
    "Qwen3-8B": _qwen3(4096, 36, 12_288, 32, 8, 128, 151_936, tied=False),
    "Qwen3-14B": _qwen3(5120, 40, 17_408, 40, 8, 128, 151_936, tied=False),
    "Qwen3-32B": _qwen3(5120, 64, 25_600, 64, 8, 128, 151_936, tied=False),
    "Llama-3.2-1B": ModelShape(2048, 16, 8192, 32, 8, 64, 128_256, biases=False),
    "Llama-3.2-3B": ModelShape(3072, 28, 8192, 24, 8, 128, 128_256, biases=False),
    "Qwen2.5-VL-3B": ModelShape(
        *(2048, 36, 11_008, 16, 2, 128, 151_936),
        vision=VisionShape(668_684_288, 1280, 32, 3420, ImageProcessor()),
    ),
    "Qwen3-VL-2B": _qwen3(
        *(2048, 28, 6144, 16, 8, 128, 151_936),
        vision=VisionShape(406_957_056, 1024, 24, 4096, _QWEN3_VL),
    ),
}

#: Parts of a name that leave the sizes as they are.
_VARIANT = re.compile(r"(?<=qwen2\.5)-(coder|math)|-(instruct|base|thinking|\d{4}|1m)(?=-|$)")


def model_shape(config: Config) -> ModelShape | None:
    """The shape of a run's model: from its folder, or by its name; None if both are unknown."""
    if not config.model:
        small = config.small_model
        heads = small.hidden // 32
        return ModelShape(small.hidden, small.layers, small.feed_forward, heads, heads, 32, 1000)
    path = Path(config.model)
    try:
        whole = json.loads((path / "config.json").read_text(encoding="utf-8"))
        sizes = whole.get("text_config", whole)
        heads, kind = sizes["num_attention_heads"], str(sizes.get("model_type"))
        return ModelShape(
            sizes["hidden_size"],
            sizes["num_hidden_layers"],
            sizes["intermediate_size"],
            heads,
            sizes.get("num_key_value_heads") or heads,
            sizes.get("head_dim") or sizes["hidden_size"] // heads,
            sizes["vocab_size"],
            bool(whole.get("tie_word_embeddings", sizes.get("tie_word_embeddings", False))),
            kind.startswith("qwen2"),
            kind.startswith("qwen3"),
            _vision_shape(path, whole["vision_config"]) if "vision_config" in whole else None,
        )
    except (OSError, ValueError, KeyError):
        return {name.lower(): shape for name, shape in SHAPES.items()}.get(_VARIANT.sub("", path.name.lower()))


def _vision_shape(folder: Path, sizes: Mapping[str, Any]) -> VisionShape:
    """Of a model in a folder; its parameters are counted on a model without memory."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    check_no_kernels(config)
    vision = Vision.from_folder(config, folder, SAME_PROCESSOR)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, trust_remote_code=False)
    parameters = sum(p.numel() for name, p in model.named_parameters() if "visual" in name)
    processor = vision.processor if vision else ImageProcessor()
    return VisionShape(parameters, sizes["hidden_size"], sizes["depth"], sizes["intermediate_size"], processor)


def check_cpu_model(config: Config) -> None:
    """Checks that vLLM can play the run's model on a CPU, as far as the model's folder tells.

    Raises:
        ValueError: a head size that it does not have there, or conversations that its cache cannot hold.
    """
    shape = model_shape(config)
    if shape is None:
        return
    if shape.head_size not in CPU_HEADS:
        raise ValueError(
            f"{config.model or 'the small model'} has attention heads of size {shape.head_size}; vLLM on a CPU "
            f"supports {', '.join(map(str, CPU_HEADS))}: use another model, the local trainer, or a GPU."
        )
    token = 2 * 2 * shape.layers * shape.key_value_heads * shape.head_size  # bytes: a key and a value, in bfloat16
    tokens, most = config.turns.max_tokens_per_episode, int(CPU_CACHE * GIB / token)
    if tokens > most:
        raise ValueError(
            f"turns.max_tokens_per_episode is {tokens}; vLLM's cache on a CPU has {CPU_CACHE} GiB, which hold {most} "
            f"tokens of this model ({token:,} bytes each): lower it, or use the local trainer or a GPU."
        )


@dataclass(frozen=True)
class MemoryPart:
    """One thing that takes memory on a GPU."""

    place: str  # actor, critic, reference, vllm, or all if they share it
    name: str
    gib: float
    arithmetic: str
    when: str = "always"  # or playing, or training


def memory_parts(config: Config, settings: OpenRLHF, shape: ModelShape, gpu_gib: float) -> list[MemoryPart]:
    """Parts of the memory on the GPUs of a run.

    If all models share their GPUs, vLLM sleeps while they train, and the actor and the critic take turns: the one that
    waits keeps only its weights there.
    """
    training, together = config.training, settings.colocate
    found: list[MemoryPart] = []
    for place in ("actor", "critic") if training.critic else ("actor",):
        actor = settings.actor_nodes * settings.actor_gpus
        gpus = actor if place == "actor" else settings.critic_nodes * settings.critic_gpus
        found += _model(place, settings, shape, gpus, config.lora.rank)
    if training.kl_estimate != "none":
        gib = 2 * shape.parameters / GIB
        found.append(MemoryPart("reference", "weights", gib, f"2 B x {_count(shape.parameters)}"))
    tokens = settings.micro_batch * config.turns.max_tokens_per_episode
    found += _pass("actor", settings, shape, tokens, logits=True)
    if shape.vision and (pictures := most_pictures(config)):
        found.append(_pictures(config, settings, shape.vision, pictures))
    if training.critic and not together:
        found += _pass("critic", settings, shape, tokens, logits=False)
    share = settings.vllm_memory
    how = f"openrlhf.vllm_memory {share:g} x {gpu_gib:g} GiB"
    found.append(MemoryPart("vllm", "weights and cache", share * gpu_gib, how, "playing"))
    places = list(dict.fromkeys(part.place for part in found))
    found += [MemoryPart(place, "CUDA", CONTEXT, f"about {CONTEXT:g} GiB for each process") for place in places]
    found.sort(key=lambda part: places.index(part.place))
    return [replace(p, place="all", name=f"{p.place}: {p.name}") for p in found] if together else found


def cpu_memory_parts(config: Config, settings: OpenRLHF, shape: ModelShape) -> list[MemoryPart]:
    """Parts of the host's memory in a run on its CPU; a pass over rows is counted at its largest."""
    training, turns, gpus = config.training, config.turns, gpus_of_models(config, settings)
    whole = settings.zero_stage == 3  # then OpenRLHF's own pass makes the logits of all tokens
    found: list[MemoryPart] = []
    for place in ("actor", "critic") if training.critic else ("actor",):
        for part in _model(
            place, replace(settings, colocate=False, adam_offload=False), shape, gpus[place], config.lora.rank
        ):
            found.append(replace(part, gib=part.gib * gpus[place]))
        tokens = settings.micro_batch * turns.max_tokens_per_episode
        if not whole and place == "actor":
            tokens = min(tokens, max(TOKENS_PER_PASS, turns.max_tokens_per_episode))
        found += _pass(place, settings, shape, tokens, logits=whole and place == "actor")
    if not whole:
        sampled = settings.micro_batch * min(turns.max_turns * turns.max_tokens_per_turn, turns.max_tokens_per_episode)
        text = f"{sampled} sampled tokens x {shape.vocabulary} ids x {CPU_LOGITS} B"
        gib = sampled * shape.vocabulary * CPU_LOGITS / GIB
        found.append(MemoryPart("actor", "logits", gib, text, "training"))
    weights = 2 * shape.parameters / GIB
    if training.kl_estimate != "none":
        found.append(
            MemoryPart("reference", "weights", gpus["reference"] * weights, f"2 B x {_count(shape.parameters)}")
        )
    engines = settings.vllm_engines
    found.append(MemoryPart("vllm", "weights", engines * weights, f"{engines} x 2 B x {_count(shape.parameters)}"))
    found.append(MemoryPart("vllm", "cache", engines * CPU_CACHE, f"{engines} x {CPU_CACHE} GiB"))
    # Launcher, driver, trainer; one for each pretended GPU; each engine's own; the actor of an engine with workers.
    processes = 3 + sum(gpus.values()) + engines * (1 if settings.vllm_tensor_parallel == 1 else 2)
    text = f"{processes} processes, each about {CPU_PROCESS:g} GiB"
    found.append(MemoryPart("run", "libraries", processes * CPU_PROCESS, text))
    return [replace(part, place="host", name=f"{part.place}: {part.name}") for part in found]


def peak_memory(found: Sequence[MemoryPart]) -> tuple[float, str]:
    """GiB on the fullest GPU, and when that is: playing or training."""
    sums = {
        (place, when): sum(part.gib for part in found if part.place == place and part.when in ("always", when))
        for place in {part.place for part in found}
        for when in ("playing", "training")
    }
    _, when = max(sums, key=lambda key: sums[key])
    return max(sums.values()), when


def _model(place: str, settings: OpenRLHF, shape: ModelShape, gpus: int, rank: int) -> list[MemoryPart]:
    """Weights, gradients and optimiser of one trained model; ``rank`` is LoRA's, or 0."""
    every = shape.parameters
    frozen = shape.vision.parameters if shape.vision and settings.freeze_vision else 0
    trained = shape.adapters(rank) if rank else every - frozen
    whole = every + (trained if rank else 0)
    divided = gpus if settings.zero_stage == 3 else 1
    by = f" / {divided} GPUs" if divided > 1 else ""
    found = [MemoryPart(place, "weights", 2 * whole / divided / GIB, f"2 B x {_count(whole)}{by}")]
    over = f" / {gpus} GPUs" if gpus > 1 else ""
    what, size = ("gradients", 2) if settings.adam_offload else ("gradients and optimiser", 14)
    if settings.colocate and place == "critic" and not settings.adam_offload:
        return found  # while the actor trains; at other times less memory is used
    when = "training" if settings.colocate and not settings.adam_offload else "always"
    gib = size * trained / gpus / GIB
    return [*found, MemoryPart(place, what, gib, f"{size} B x {_count(trained)} trained{over}", when)]


def _pass(place: str, settings: OpenRLHF, shape: ModelShape, tokens: int, logits: bool) -> list[MemoryPart]:
    """What a pass over one micro-batch keeps; ``tokens`` is the most that its rows can have."""
    how = f"{settings.micro_batch} rows x {tokens // settings.micro_batch} tokens"
    if settings.gradient_checkpointing:
        size = shape.layers * 2 * shape.hidden + shape.activation_bytes
        text = f"{how} x ({shape.layers} layers x 2 B x {shape.hidden} + {shape.activation_bytes} B of one layer)"
    else:
        size = shape.layers * shape.activation_bytes
        text = f"{how} x {shape.layers} layers x {shape.activation_bytes} B"
    found = [MemoryPart(place, "layers", tokens * size / GIB, text, "training")]
    if logits:
        gib = tokens * shape.vocabulary * LOGITS / GIB
        found.append(MemoryPart(place, "logits", gib, f"{how} x {shape.vocabulary} ids x {LOGITS} B", "training"))
    return found


def _pictures(config: Config, settings: OpenRLHF, shape: VisionShape, pictures: int) -> MemoryPart:
    """What reading the pictures of a micro-batch keeps; of a frozen encoder the layer that works alone."""
    spaces = [make_env(each, None).observation_space for each in all_settings(config) if each.turns.sees]
    boards = [space["image"].shape or () for space in spaces if isinstance(space, Dict)]
    grids = [shape.processor.grid(np.zeros(tuple(board), np.uint8)) for board in boards]
    patches = shape.processor.merge_size**2 * max(rows * columns for rows, columns in grids)
    if settings.freeze_vision or settings.gradient_checkpointing:
        kept = 0 if settings.freeze_vision else shape.layers * 2 * shape.hidden
        size, text = kept + shape.activation_bytes, f"({kept} B + {shape.activation_bytes} B of one layer)"
    else:
        size, text = shape.layers * shape.activation_bytes, f"{shape.layers} layers x {shape.activation_bytes} B"
    rows = settings.micro_batch
    gib = rows * pictures * patches * size / GIB
    text = f"{rows} rows x {pictures} pictures x {patches} patches x {text}"
    return MemoryPart("actor", "pictures", gib, text, "training")


def _count(number: int) -> str:
    return f"{number / 1e6:.1f}M"
