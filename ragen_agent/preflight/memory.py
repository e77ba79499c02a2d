"""Memory estimate of a distributed run, part by part: of each GPU, or of the machine that has none.

A trained model of N parameters, T of which are trained, on n GPUs holds, in bytes on each (ZeRO, arXiv 1910.02054,
section 3, with bfloat16 weights and gradients): weights 2 N, gradients 2 T / n, and float32 weights with Adam's two
moments 12 T / n; at stage 3 the weights too are divided by n. What a forward pass keeps for the backward pass is
counted for a Qwen2 layer without attention scores, which flash attention never writes. The logits come on top.

Without GPUs all of it lies in the machine's memory, vLLM's cache has a fixed size, a pass holds so many distinct
tokens at most (``ragen_agent.update.scoring``), and the processes' own share is measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Dict

from ragen_agent.config import Config
from ragen_agent.config.consent import check_no_kernels
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.inference.vision import SAME_PROCESSOR, ImageProcessor, Vision
from ragen_agent.preflight.plan import gpus_of_models, most_pictures, packs_rows
from ragen_agent.tasks.tasks import all_settings, make_env
from ragen_agent.update.scoring import TOKENS_PER_PASS

__all__ = [
    "CPU_CACHE",
    "Estimate",
    "ModelShape",
    "Part",
    "available_memory",
    "check_biased",
    "check_cpu_model",
    "estimate",
    "model_shape",
]

#: Head sizes that vLLM's attention has on a CPU.
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
CPU_CACHE = 1  # GiB of vLLM's cache on a CPU
CPU_PROCESS = 0.55  # GiB that a process takes on a CPU for its libraries, measured
SAMPLED_LOGITS = 2 + 2  # bytes for each sampled token and id: the logits, and their gradient
LOGITS = 2 + 4 + 4 + 4  # the same in OpenRLHF's own pass: in bfloat16, in float32, once more masked, their gradient
GPU_PROCESS = 0.5  # GiB that CUDA takes on a GPU for each process
MOST_BIASED = 1024  # ids that vLLM's second model runner, that of GPUs, biases in a request
GIB = 2**30


def available_memory() -> float:
    """GiB of the machine's memory that programs may still take, or all of it where the system does not say."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 2**20
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB


@dataclass(frozen=True)
class Layers:
    """Layers of a language model, or of a vision encoder."""

    parameters: int
    count: int
    hidden: int
    feed_forward: int

    @property
    def kept_by_one(self) -> int:
        """Bytes that one layer keeps of each token or patch for the backward pass."""
        return 2 * (8 * self.hidden + 4 * self.feed_forward)

    def kept(self, again: bool) -> int:
        """Bytes that all layers keep; ``again``: their inputs alone, and what the one that computes again needs."""
        return self.count * 2 * self.hidden + self.kept_by_one if again else self.count * self.kept_by_one


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model."""

    language: Layers  # with the parameters of the whole model
    key_value: int  # elements of a token's keys in a layer
    head_size: int
    vocabulary: int
    adapted: int  # inputs and outputs of the layers that LoRA adapts
    encoder: Layers | None = None
    processor: ImageProcessor | None = None


#: Kind and sizes of the recipes' models, for machines without their folders: their config.json on the Hugging Face Hub.
KNOWN: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "smollm2-135m": ("llama", (576, 30, 1536, 9, 3, 64, 49_152), {}),
    "qwen2.5-0.5b-instruct": ("qwen2", (896, 24, 4864, 14, 2, 64, 151_936), {}),
    "qwen2.5-7b-instruct": ("qwen2", (3584, 28, 18_944, 28, 4, 128, 152_064), {}),
    "qwen3-4b": ("qwen3", (2560, 36, 9728, 32, 8, 128, 151_936), {}),
    "qwen2.5-coder-0.5b": ("qwen2", (896, 24, 4864, 14, 2, 64, 151_936), {}),
    "qwen2.5-vl-3b-instruct": (
        "qwen2_5_vl",
        (2048, 36, 11_008, 16, 2, 128, 151_936),
        {"hidden_size": 1280, "depth": 32, "intermediate_size": 3420},
    ),
    "qwen3-vl-2b-instruct": (
        "qwen3_vl",
        (2048, 28, 6144, 16, 8, 128, 151_936),
        {"hidden_size": 1024, "depth": 24, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]},
    ),
}
UNTIED = ("qwen2.5-7b-instruct",)  # models with an output layer of their own
SIZES = (
    *("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size"),
)
_QWEN3_PROCESSOR = ImageProcessor(16, 2, 2, 256**2, 4096**2, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def model_shape(config: Config) -> ModelShape | None:
    """The shape of a run's model, by its folder's config.json or its name; None if neither says it."""
    from transformers import AutoConfig

    folder, small = Path(config.model), config.small_model
    heads = small.hidden // 32
    of_small: tuple[str, tuple[int, ...], dict[str, Any]] = (
        "qwen2",
        (small.hidden, small.layers, small.feed_forward, heads, heads, 32, 1000),
        {},
    )
    try:
        if config.model and (folder / "config.json").is_file():
            found = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            check_no_kernels(found)
            return _shape(found, folder)
        kind, sizes, seeing = KNOWN[folder.name.lower()] if config.model else of_small
        text = dict(zip(SIZES, sizes, strict=True))
        parts = {"text_config": text, "vision_config": {**seeing, "out_hidden_size": sizes[0]}} if seeing else text
        return _shape(AutoConfig.for_model(kind, **parts, tie_word_embeddings=folder.name.lower() not in UNTIED), None)
    except (OSError, ValueError, AttributeError, KeyError):  # damaged, or a kind of model with other sizes
        return None


def _shape(whole: Any, folder: Path | None) -> ModelShape:
    """The shape that a configuration describes; parameters are counted on a model without memory."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    text, seeing = whole.get_text_config(), getattr(whole, "vision_config", None)
    kind: Any = AutoModelForCausalLM if seeing is None else AutoModelForImageTextToText
    with torch.device("meta"):
        model = kind.from_config(whole, trust_remote_code=False)
    language = Layers(model.num_parameters(), text.num_hidden_layers, text.hidden_size, text.intermediate_size)
    adapted = sum(
        layer.in_features + layer.out_features
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and "visual" not in name and not name.endswith("lm_head")
    )
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if seeing is None:
        return ModelShape(language, heads * head, head, text.vocab_size, adapted)
    count = sum(each.numel() for name, each in model.named_parameters() if "visual" in name)
    encoder = Layers(count, seeing.depth, seeing.hidden_size, seeing.intermediate_size)
    vision = Vision.from_folder(whole, folder, SAME_PROCESSOR) if folder else None
    usual = _QWEN3_PROCESSOR if whole.model_type == "qwen3_vl" else ImageProcessor()
    processor = vision.processor if vision else usual
    return ModelShape(language, heads * head, head, text.vocab_size, adapted, encoder, processor)


def check_cpu_model(config: Config) -> None:
    """Checks that vLLM can play the run's model on a CPU, as far as the model's folder or name tells.

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
    token = 2 * 2 * shape.language.count * shape.key_value  # bytes: a key and a value, in bfloat16
    tokens, most = config.turns.max_tokens_per_episode, int(CPU_CACHE * GIB / token)
    if tokens > most:
        raise ValueError(
            f"turns.max_tokens_per_episode is {tokens}; vLLM's cache on a CPU has {CPU_CACHE} GiB, which hold {most} "
            f"tokens of this model ({token:,} bytes each): lower it, or use the local trainer or a GPU."
        )


def check_biased(count: int) -> None:
    """Raises a ValueError if vLLM on a GPU cannot leave out so many ids."""
    if count > MOST_BIASED:
        raise ValueError(
            f"{count:,} token ids of this model must not be sampled, and vLLM leaves out at most {MOST_BIASED:,} on a "
            "GPU: fit the output layer to the tokenizer with model.resize_token_embeddings(len(tokenizer))."
        )


@dataclass(frozen=True)
class Part:
    """One thing that takes memory."""

    place: str  # actor, critic, reference or vllm; all or host if they share it
    name: str
    gib: float
    when: str = "always"  # or playing, or training, or training the actor or the critic, if they take turns


@dataclass(frozen=True)
class Estimate:
    """Parts of the memory of a run."""

    parts: Sequence[Part]

    @property
    def peak(self) -> tuple[float, str]:
        """GiB of the fullest place, and when that is: playing or training."""
        phases = {part.when for part in self.parts} - {"always"} or {"always"}
        return max(
            (
                sum(p.gib for p in self.parts if p.place == place and (p.when == "always" or phase.startswith(p.when))),
                phase,
            )
            for place in {part.place for part in self.parts}
            for phase in phases
        )


def estimate(config: Config, settings: OpenRLHF, gpu_gib: float = 0.0) -> Estimate | None:
    """Estimate for GPUs of ``gpu_gib`` GiB each, or for a machine without one; None for a model of unknown sizes.

    If all models share their GPUs, ``openrlhf.sleep`` says what makes room: vLLM while they train, and the optimiser's
    states of a model while another one works.
    """
    shape = model_shape(config)
    if shape is None:
        return None
    on_cpu, gpus, rank = not gpu_gib, gpus_of_models(config, settings), config.lora.rank
    together = settings.colocate and not on_cpu
    in_turn = together and settings.sleep == "all"
    offloaded = settings.adam_offload and not on_cpu
    every = shape.language.parameters
    frozen = shape.encoder.parameters if shape.encoder and settings.freeze_vision else 0
    trained = rank * shape.adapted if rank else every - frozen
    parts = []
    for place in ("actor", "critic") if config.training.critic else ("actor",):
        copies, when = gpus[place] if on_cpu else 1, f"training the {place}" if in_turn else "training"
        weights = copies * 2 * (every + trained * bool(rank)) / (gpus[place] if settings.zero_stage == 3 else 1)
        state = copies * (2 if offloaded else 14) * trained / gpus[place]
        states = "gradients" if offloaded else "gradients and optimiser"
        parts.append(Part(place, "weights", weights / GIB))
        parts.append(Part(place, states, state / GIB, when if in_turn and not offloaded else "always"))
        parts += _passes(config, settings, shape, place, when, on_cpu)
    if gpus["reference"]:
        parts.append(Part("reference", "weights", (gpus["reference"] if on_cpu else 1) * 2 * every / GIB))
    if on_cpu:
        engines = settings.vllm_engines
        parts += [Part("vllm", "weights", engines * 2 * every / GIB), Part("vllm", "cache", engines * CPU_CACHE)]
        # Launcher, driver, trainer; one for each pretended GPU; each engine's own; the actor of an engine with workers.
        count = 3 + sum(gpus.values()) + engines * (1 if settings.vllm_tensor_parallel == 1 else 2)
        parts.append(Part("run", f"libraries of {count} processes", count * CPU_PROCESS))
    else:
        leaves = together and settings.sleep == "none"
        parts.append(
            Part("vllm", "weights and cache", settings.vllm_memory * gpu_gib, "always" if leaves else "playing")
        )
        parts += [Part(place, "CUDA", GPU_PROCESS) for place in dict.fromkeys(part.place for part in parts)]
    if on_cpu or together:
        parts = [Part("host" if on_cpu else "all", f"{p.place}: {p.name}", p.gib, p.when) for p in parts]
    return Estimate(sorted(parts, key=lambda part: part.place))


def _passes(
    config: Config, settings: OpenRLHF, shape: ModelShape, place: str, when: str, on_cpu: bool
) -> Iterator[Part]:
    """What a model keeps of one micro-batch, whose rows are as long as they can be, for the backward pass."""
    turns, rows, again = config.turns, settings.micro_batch, settings.gradient_checkpointing
    tokens = scored = rows * turns.max_tokens_per_episode
    size = LOGITS
    # Where rows are packed or weights divided, the policy's pass is OpenRLHF's own and scores all tokens.
    if place == "actor" and settings.zero_stage != 3 and (on_cpu or not packs_rows(config, settings)):
        tokens = min(tokens, max(TOKENS_PER_PASS, turns.max_tokens_per_episode))
        scored = rows * min(turns.max_turns * turns.max_tokens_per_turn, turns.max_tokens_per_episode)
        size = SAMPLED_LOGITS
    yield Part(place, "layers", tokens * shape.language.kept(again) / GIB, when)
    if place != "actor":
        return
    yield Part(place, "logits", min(scored, tokens) * shape.vocabulary * size / GIB, when)
    if shape.encoder and shape.processor and not on_cpu and (pictures := most_pictures(config)):
        spaces = [make_env(each, None).observation_space for each in all_settings(config) if each.turns.sees]
        boards = [tuple(space["image"].shape or ()) for space in spaces if isinstance(space, Dict)]
        grids = [shape.processor.grid(np.zeros(board, np.uint8)) for board in boards]
        patches = shape.processor.merge_size**2 * max(across * down for across, down in grids)
        each = shape.encoder.kept_by_one if settings.freeze_vision else shape.encoder.kept(again)
        yield Part(place, "pictures", rows * pictures * patches * each / GIB, when)
