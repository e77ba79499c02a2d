"""How much memory a GPU of a run is expected to need: an estimate, with its arithmetic.

A trained model of N parameters, T of which are trained, on n GPUs holds, in bytes on each (ZeRO, arXiv 1910.02054,
section 3, with bfloat16 weights and gradients): weights 2 N, gradients 2 T / n, and float32 weights with Adam's two
moments 12 T / n; at stage 3 the weights too are divided by n. What a forward pass keeps for the backward pass is
counted for a Qwen2 layer without attention scores, which flash attention never writes. The logits come on top: in
bfloat16, in float32, once more with suppressed ids, and their gradient.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ragen_agent.config import Config
from ragen_agent.config.trainers import OpenRLHF

__all__ = ["SHAPES", "MemoryPart", "ModelShape", "memory_parts", "model_shape", "peak_memory"]

GIB = 2**30
LOGITS = 2 + 4 + 4 + 4  # bytes for each token and id
CONTEXT = 0.5  # GiB that a process on a GPU takes for itself


@dataclass(frozen=True)
class ModelShape:
    """A Qwen2 or Llama model: sizes of its layers. ``tied``: the output layer is the embedding."""

    hidden: int
    layers: int
    feed_forward: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    tied: bool = True
    biases: bool = True

    @property
    def projections(self) -> tuple[tuple[int, int], ...]:
        """(in, out) of the linear layers of one layer."""
        queries, keys = self.heads * self.head_size, self.key_value_heads * self.head_size
        attention = ((self.hidden, queries), (self.hidden, keys), (self.hidden, keys), (queries, self.hidden))
        return (*attention, *((self.hidden, self.feed_forward),) * 2, (self.feed_forward, self.hidden))

    @property
    def parameters(self) -> int:
        """How many there are."""
        linear = sum(a * b for a, b in self.projections)
        biases = sum(b for _, b in self.projections[:3]) if self.biases else 0
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return embeddings + self.layers * (linear + biases + 2 * self.hidden) + self.hidden

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA adapters on all linear layers."""
        return self.layers * sum(rank * (a + b) for a, b in self.projections)

    @property
    def activation_bytes(self) -> int:
        """Bytes of activations that one layer keeps for the backward pass, for each token."""
        return 2 * (8 * self.hidden + 4 * self.feed_forward)


#: Models that recipes name, for machines without their folders.
SHAPES = {
    "Qwen2.5-0.5B-Instruct": ModelShape(896, 24, 4864, 14, 2, 64, 151_936),
    "Qwen2.5-3B-Instruct": ModelShape(2048, 36, 11_008, 16, 2, 128, 151_936),
}


def model_shape(config: Config) -> ModelShape | None:
    """The shape of a run's model: from its folder, or by its name; None if both are unknown."""
    if not config.model:
        small = config.small_model
        heads = small.hidden // 32
        return ModelShape(small.hidden, small.layers, small.feed_forward, heads, heads, 32, 1000)
    path = Path(config.model)
    try:
        sizes = json.loads((path / "config.json").read_text(encoding="utf-8"))
        heads = sizes["num_attention_heads"]
        return ModelShape(
            sizes["hidden_size"],
            sizes["num_hidden_layers"],
            sizes["intermediate_size"],
            heads,
            sizes.get("num_key_value_heads") or heads,
            sizes.get("head_dim") or sizes["hidden_size"] // heads,
            sizes["vocab_size"],
            bool(sizes.get("tie_word_embeddings", False)),
            sizes.get("model_type") == "qwen2",
        )
    except (OSError, ValueError, KeyError):
        return SHAPES.get(path.name)


@dataclass(frozen=True)
class MemoryPart:
    """One thing that takes memory on a GPU.

    ``place``: actor, critic, reference, vllm, or all if they share it. ``when``: always, playing or training.
    """

    place: str
    name: str
    gib: float
    arithmetic: str
    when: str = "always"


def memory_parts(config: Config, settings: OpenRLHF, shape: ModelShape, gpu_gib: float) -> list[MemoryPart]:
    """What takes memory on the GPUs of a run.

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
    if training.critic and not together:
        found += _pass("critic", settings, shape, tokens, logits=False)
    share = settings.vllm_memory
    how = f"openrlhf.vllm_memory {share:g} x {gpu_gib:g} GiB"
    found.append(MemoryPart("vllm", "weights and cache", share * gpu_gib, how, "playing"))
    places = list(dict.fromkeys(part.place for part in found))
    found += [MemoryPart(place, "CUDA", CONTEXT, f"about {CONTEXT:g} GiB for each process") for place in places]
    found.sort(key=lambda part: places.index(part.place))
    return [replace(p, place="all", name=f"{p.place}: {p.name}") for p in found] if together else found


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
    trained = shape.adapters(rank) if rank else every
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
        size, text = (
            shape.layers * shape.activation_bytes,
            f"{how} x {shape.layers} layers x {shape.activation_bytes} B",
        )
    found = [MemoryPart(place, "layers", tokens * size / GIB, text, "training")]
    if logits:
        gib = tokens * shape.vocabulary * LOGITS / GIB
        found.append(MemoryPart(place, "logits", gib, f"{how} x {shape.vocabulary} ids x {LOGITS} B", "training"))
    return found


def _count(number: int) -> str:
    return f"{number / 1e6:.1f}M"
