"""Estimates of a distributed run before it starts: the memory of its GPUs, and its hours.

Memory: A trained model of N parameters, T of which are trained, on n GPUs holds, in bytes on each (ZeRO, arXiv
1910.02054, section 3, with bfloat16 weights and gradients): weights 2 N, gradients 2 T / n, and float32 weights with
Adam's two moments 12 T / n; at stage 3 the weights too are divided by n. What a forward pass keeps for the backward
pass is counted for a Qwen2 layer without attention scores, which flash attention never writes. The logits come on top.
Pictures, which take some 0.3 GiB in the recipes, are left out.

Hours: An iteration plays, then trains. A decoding step reads the weights and the cache of its rows once (memory bound)
and computes 2 N operations a row; training computes 6 N a token, and 2 N more with gradient checkpointing; a pass that
only scores computes 2 N. Attention's own operations and padding are left out. Nothing of it was measured with this
trainer, so every figure is a range: ``FAST`` and ``SLOW``. Steps that NVIDIA measured on H100s lie within it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ragen_agent.config import Config
from ragen_agent.config.consent import check_no_kernels
from ragen_agent.config.trainers import OpenRLHF
from ragen_agent.preflight.plan import BatchPlan, devices_needed, gpus_of_models, packs_rows, rows_of_episode
from ragen_agent.update.scoring import tokens_per_pass

SAMPLED_LOGITS = 2 + 2  # bytes for each sampled token and id: the logits, and their gradient
LOGITS = 2 + 4 + 4 + 4  # the same in OpenRLHF's own pass: in bfloat16, in float32, once more masked, their gradient
GPU_PROCESS = 0.5  # GiB that CUDA takes on a GPU for each process
GIB = 2**30


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model."""

    parameters: int  # those of a vision encoder included
    vision: int  # parameters of the vision encoder, 0 without one
    layers: int
    hidden: int
    feed_forward: int
    key_value: int  # elements of a token's keys in a layer
    vocabulary: int
    adapted: int  # inputs and outputs of the layers that LoRA adapts

    def kept(self, recomputed: bool) -> int:
        """Bytes that the layers keep of a token for the backward pass; of ``recomputed`` ones their inputs alone."""
        one = 2 * (8 * self.hidden + 4 * self.feed_forward)
        return self.layers * 2 * self.hidden + one if recomputed else self.layers * one


#: Kind and sizes of the GPU recipes' models, for machines without their folders: their config.json on the Hub.
KNOWN: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "qwen2.5-0.5b-instruct": ("qwen2", (896, 24, 4864, 14, 2, 64, 151_936), {}),
    "qwen2.5-7b-instruct": ("qwen2", (3584, 28, 18_944, 28, 4, 128, 152_064), {"tie_word_embeddings": False}),
    "qwen3-4b": ("qwen3", (2560, 36, 9728, 32, 8, 128, 151_936), {}),
    "qwen2.5-vl-3b-instruct": (
        "qwen2_5_vl",
        (2048, 36, 11_008, 16, 2, 128, 151_936),
        {"vision_config": {"hidden_size": 1280, "depth": 32, "intermediate_size": 3420, "out_hidden_size": 2048}},
    ),
    "qwen3-vl-2b-instruct": (
        "qwen3_vl",
        (2048, 28, 6144, 16, 8, 128, 151_936),
        {
            "vision_config": {
                "hidden_size": 1024,
                "depth": 24,
                "intermediate_size": 4096,
                "out_hidden_size": 2048,
                "deepstack_visual_indexes": [5, 11, 17],
            }
        },
    ),
}
SIZES = (
    *("hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size"),
)


def model_shape(config: Config) -> ModelShape | None:
    """The shape of a run's model, by its folder's config.json or its name; None if neither says it."""
    from transformers import AutoConfig

    folder, small = Path(config.model), config.small_model
    heads = small.hidden // 32
    sizes_of_small = (small.hidden, small.layers, small.feed_forward, heads, heads, 32, 1000)
    try:
        if config.model and (folder / "config.json").is_file():
            found = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            check_no_kernels(found)
            return _shape(found)
        kind, sizes, more = KNOWN[folder.name.lower()] if config.model else ("qwen2", sizes_of_small, {})
        text = dict(zip(SIZES, sizes, strict=True))
        parts = {"text_config": text} if "vision_config" in more else text
        return _shape(AutoConfig.for_model(kind, **{"tie_word_embeddings": True, **parts, **more}))
    except (OSError, ValueError, AttributeError, KeyError):  # damaged, or a kind of model with other sizes
        return None


def _shape(whole: Any) -> ModelShape:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    text, sees = whole.get_text_config(), hasattr(whole, "vision_config")
    kind: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(whole, trust_remote_code=False)
    adapted = sum(
        layer.in_features + layer.out_features
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and "visual" not in name and not name.endswith("lm_head")
    )
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return ModelShape(
        parameters=model.num_parameters(),
        vision=sum(each.numel() for name, each in model.named_parameters() if "visual" in name),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        feed_forward=text.intermediate_size,
        key_value=heads * head,
        vocabulary=text.vocab_size,
        adapted=adapted,
    )


@dataclass(frozen=True)
class Part:
    """One thing that takes memory."""

    place: str  # actor, critic, reference or vllm; all if they share their GPUs
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
        phases = {part.when for part in self.parts} - {"always"}
        return max(
            (sum(p.gib for p in self.parts if p.place == place and p.when in ("always", phase)), phase)
            for place in {part.place for part in self.parts}
            for phase in phases
        )


def estimate(config: Config, settings: OpenRLHF, gpu_gib: float) -> Estimate | None:
    """Estimate for GPUs of ``gpu_gib`` GiB each; None for a model of unknown sizes.

    If all models share their GPUs, ``openrlhf.sleep`` says what makes room: vLLM while they train, and the optimiser's
    states of a model while another one works.
    """
    shape = model_shape(config)
    if shape is None:
        return None
    gpus, rank = gpus_of_models(config, settings), config.lora.rank
    in_turn = settings.colocate and settings.sleep == "all"
    trained = rank * shape.adapted if rank else shape.parameters - shape.vision * settings.freeze_vision
    adapters = trained * bool(rank)
    parts = []
    for place in ("actor", "critic") if config.training.critic else ("actor",):
        when = f"training the {place}" if in_turn else "training"
        weights = 2 * (shape.parameters + adapters) / (gpus[place] if settings.zero_stage == 3 else 1)
        state = (2 if settings.adam_offload else 14) * trained / gpus[place]
        parts.append(Part(place, "weights", weights / GIB))
        leaves = in_turn and not settings.adam_offload
        name = "gradients" if settings.adam_offload else "gradients and optimiser"
        parts.append(Part(place, name, state / GIB, when if leaves else "always"))
        parts += [Part(place, name, gib, when) for name, gib in _pass(config, settings, shape, place).items()]
    if gpus["reference"]:
        parts.append(Part("reference", "weights", 2 * shape.parameters / GIB))
    stays = settings.colocate and settings.sleep == "none"
    parts.append(Part("vllm", "weights and cache", settings.vllm_memory * gpu_gib, "always" if stays else "playing"))
    parts += [Part(place, "CUDA", GPU_PROCESS) for place in dict.fromkeys(part.place for part in parts)]
    if settings.colocate:
        parts = [Part("all", f"{part.place}: {part.name}", part.gib, part.when) for part in parts]
    return Estimate(parts)


def _pass(config: Config, settings: OpenRLHF, shape: ModelShape, place: str) -> dict[str, float]:
    """GiB that a model keeps of one micro-batch, whose rows are as long as they can be, for the backward pass."""
    turns, rows = config.turns, settings.micro_batch
    tokens = scored = rows * turns.max_tokens_per_episode
    size = LOGITS
    # Where rows are packed or weights divided, the policy's pass is OpenRLHF's own and scores all tokens.
    if place == "actor" and settings.zero_stage != 3 and not packs_rows(config, settings):
        tokens = min(tokens, max(tokens_per_pass(shape.vocabulary), turns.max_tokens_per_episode))
        scored = rows * min(turns.max_turns * turns.max_tokens_per_turn, turns.max_tokens_per_episode)
        size = SAMPLED_LOGITS
    layers = {"layers": tokens * shape.kept(settings.gradient_checkpointing) / GIB}
    return layers | ({"logits": min(scored, tokens) * shape.vocabulary * size / GIB} if place == "actor" else {})


PEAK, BANDWIDTH = 989e12, 3.35e12
"""Operations a second in bfloat16 and bytes a second of an H100 (SXM) by its data sheet."""


@dataclass(frozen=True)
class Pace:
    """Shares of the hardware's peak that a run reaches, and the length of its replies."""

    compute: float  # share of PEAK in training
    memory: float  # share of BANDWIDTH in decoding
    step: float  # seconds that a decoding step takes at least
    between: float  # seconds of an iteration for the environment, the weights' way to vLLM and waking up
    length: float  # share of the token limits that replies use


FAST = Pace(compute=0.4, memory=0.6, step=0.003, between=5.0, length=0.25)
SLOW = Pace(compute=0.15, memory=0.2, step=0.015, between=40.0, length=1.0)


@dataclass(frozen=True)
class Hours:
    """A run's duration at one pace."""

    playing: float  # seconds of an iteration
    training: float  # the same
    run: float  # hours of the whole run, evaluations included


def estimate_hours(config: Config, settings: OpenRLHF, gpu_gib: float, pace: Pace) -> Hours | None:
    """The duration on GPUs of ``gpu_gib`` GiB as fast as an H100; None for a model of unknown sizes."""
    shape = model_shape(config)
    if shape is None:
        return None
    training, plan = config.training, BatchPlan.of(config, distributed=True)
    playing = _playing(config, settings, shape, gpu_gib, pace, plan.episodes)
    gpus, size = gpus_of_models(config, settings), shape.parameters
    tokens = plan.rows * config.turns.max_tokens_per_episode * pace.length
    learn = training.updates * (8 if settings.gradient_checkpointing else 6)
    work = {"actor": 2 + learn, "critic": 2 + learn, "reference": 2}
    seconds = [work[m] * size * tokens / (gpus[m] * PEAK * pace.compute) for m in work if gpus[m]]
    learning = sum(seconds) if settings.colocate else max(seconds)
    iteration = max(playing, learning) if settings.staleness else playing + learning
    often = 2 + (training.iterations - 1) // settings.evaluate_every if settings.evaluate_every else 2
    measuring = often * _playing(config, settings, shape, gpu_gib, pace, config.evaluation.levels)
    run = (training.iterations * (iteration + pace.between) + measuring) / 3600
    return Hours(playing, learning, run)


def _playing(config: Config, settings: OpenRLHF, shape: ModelShape, gpu_gib: float, pace: Pace, episodes: int) -> float:
    turns, gpus = config.turns, settings.vllm_tensor_parallel
    token = 4 * shape.layers * shape.key_value  # bytes of a key and a value in bfloat16, in all layers
    weights = 2 * shape.parameters
    context = turns.max_tokens_per_episode * pace.length
    room = max(gpus * settings.vllm_memory * gpu_gib * GIB - weights, token * context)
    each = math.ceil(episodes / settings.vllm_engines)
    rows = max(1, min(each, int(room / (token * context))))
    read = (weights + rows * token * context) / (gpus * BANDWIDTH * pace.memory)
    computed = weights * rows / (gpus * PEAK * pace.compute)
    prompts = turns.max_turns if rows_of_episode(config) > 1 else 1  # each may be as long as an episode's limit
    sampled = min(turns.max_turns * turns.max_tokens_per_turn, prompts * turns.max_tokens_per_episode) * pace.length
    return math.ceil(each / rows) * sampled * max(read, computed, pace.step)


def hours_in_words(config: Config, settings: OpenRLHF, gpu_gib: float) -> list[str]:
    """The estimate in sentences; empty for a model of unknown sizes."""
    found = [estimate_hours(config, settings, gpu_gib, pace) for pace in (FAST, SLOW)]
    fast, slow = found
    if fast is None or slow is None:
        return []
    count = devices_needed(config, settings)
    said = [
        f"Hours, estimated and not measured: {_range(fast.run, slow.run)} on {count} GPU{'s' * (count > 1)} as fast as "
        f"an H100, {_range(fast.run * count, slow.run * count)} GPU-hours. An iteration plays for "
        f"{_range(fast.playing, slow.playing)} s and trains for {_range(fast.training, slow.training)} s. "
        f"Assumed: replies of {FAST.length:.0%} to all of their limits, {SLOW.compute:.0%} to {FAST.compute:.0%} of "
        f"{PEAK / 1e12:.0f} TFLOP/s in training, {SLOW.memory:.0%} to {FAST.memory:.0%} of {BANDWIDTH / 1e12:g} TB/s "
        f"in decoding, {FAST.between:g} to {SLOW.between:g} s between. Two steps that NVIDIA measured with NeMo RL 0.4 "
        "on 16 and 32 H100 lie within the range that this arithmetic has for them."
    ]
    engines, episodes = settings.vllm_engines, BatchPlan.of(config, distributed=True).episodes
    if not settings.colocate:
        trains = count - gpus_of_models(config, settings)["vllm"]
        half = "the slower half" if settings.staleness else "the engines while these play"
        said.append(f"Idle: the GPUs that train ({trains}) wait for {half}; openrlhf.colocate=true shares them.")
    elif engines > 1:
        said.append(
            f"Idle: GPUs whose {math.ceil(episodes / engines)} episodes end first wait for the longest one of all "
            f"{episodes}; in training none."
        )
    return said


def _range(low: float, high: float) -> str:
    """Two numbers with as many digits as an estimate deserves."""
    return " to ".join(f"{x:.{0 if x >= 10 else 1 if x >= 1 else 2}f}" for x in (low, high))
