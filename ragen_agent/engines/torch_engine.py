"""The engine in this process: any Hugging Face causal LM, many rows, one key-value cache kept over all turns.

Nothing is read twice: a turn reads the template's glue and the next message, then writes one token at a time for all
rows together. Equal prompts, such as those of a group, are read once. A row that has ended its turn is carried along
until half of the rows have; then the others go on alone. Between turns rows whose episode ended leave and new ones
join in their place.

Every row draws from uniform numbers of its own, a function of (seed, episode, tokens drawn so far), so its tokens
depend neither on the rows beside it nor on when it joined, up to the rounding of sums that a batch of another size
takes in another order.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ragen_agent.engines import Sampled
from ragen_agent.engines.attention import decoding
from ragen_agent.engines.cache import SlotCache, in_steps
from ragen_gym.seeding import GOLDEN, Stream, episode_keys, mix, stream_key, uniforms

__all__ = ["CACHED_TOKENS", "SUPPRESSED", "TorchEngine", "TorchSession", "Work", "suppression"]

SUPPRESSED = -1e9
"""Added to a logit that may not be sampled: probability exactly 0, yet finite, so no gradient is 0 times infinity."""

CACHED_TOKENS = 2**20
"""The most tokens in a session's cache, unless something else is asked for: 256 rows of 4,096."""

READ = 8192
"""Tokens that one pass reads, at most: prompts and messages of many rows are read in several passes."""


def suppression(model: PreTrainedModel, vocabulary_size: int | None = None) -> Tensor:
    """What is added to the logits so that some ids are never written, float32 (output layer,).

    `SUPPRESSED` at `generation_config.suppress_tokens` and at ids from `vocabulary_size` on (output layers are often
    padded beyond the tokenizer's ids), 0 elsewhere.

    Rollout and training both add it, so a suppressed id has probability zero in both and their log-probs agree.
    """
    weight = model.get_output_embeddings().weight
    assert isinstance(weight, Tensor)
    bias = torch.zeros(len(weight), device=weight.device)
    generation = model.generation_config
    suppressed = generation.suppress_tokens if generation is not None else None
    if suppressed:
        bias[torch.as_tensor(suppressed, device=weight.device)] = SUPPRESSED
    if vocabulary_size is not None:
        bias[vocabulary_size:] = SUPPRESSED
    return bias


@dataclass
class Work:
    """What an engine has done since it was made: tokens sampled, tokens read, seconds spent on both."""

    sampled: int = 0
    read: int = 0
    seconds: float = 0.0


class TorchEngine:
    """Samples from `model` in place; it reads the weights as they are at each call, so a trainer just goes on.

    `stop_ids`: ids that end a reply. `vocabulary_size`: see `suppression`. `pad_id`: any valid id, used where nobody
    looks. `cached_tokens`: the most tokens that a session's cache may hold, all rows together. `work`: counters.

    Raises:
        ValueError: a model with layers that keep something else than keys and values.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stop_ids: Collection[int],
        vocabulary_size: int | None = None,
        pad_id: int = 0,
        cached_tokens: int = CACHED_TOKENS,
    ) -> None:
        self.model = model
        self.stop_ids = tuple(sorted(stop_ids))
        self.pad_id = pad_id
        self.cached_tokens = cached_tokens
        self.work = Work()
        self.bias = suppression(model, vocabulary_size)
        self.windows = _windows(model)

    def start(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, seed: int, episodes: Sequence[int] | None = None
    ) -> TorchSession:
        """Opens a session; the rows are the episodes 0, 1, 2, ... of `seed` unless others are named.

        Raises:
            ValueError: an empty prompt or a temperature that is not positive.
        """
        if temperature <= 0:
            raise ValueError(
                f"temperature is {temperature}; it must be positive (0.5 is the usual one for evaluation)."
            )
        session = TorchSession(self, temperature, seed)
        session.join(prompts, range(len(prompts)) if episodes is None else episodes)
        return session

    def rows(self, tokens: int) -> int:
        """How many rows of so many tokens the cache may hold."""
        return self.cached_tokens // in_steps(tokens)


class TorchSession:
    """Rows in play against one cache; see `ragen_agent.engines.Session`.

    Rows sit in slots, the first `len(self.slots)` of the cache; arrays with one entry a slot: `lengths`, tokens in
    the cache; `keys`, of the uniform numbers; `drawn`, how many of them were used.
    """

    def __init__(self, engine: TorchEngine, temperature: float, seed: int) -> None:
        self.engine = engine
        self.device = engine.bias.device
        self.temperature = temperature
        self.key = mix(stream_key(seed, Stream.LEVEL))  # mixed, or an environment of this seed drew the same numbers
        self.cache = SlotCache(engine.cached_tokens)
        self.slots: list[int] = []  # of each row
        self.pending: list[list[int]] = []  # of each slot: ids that the cache does not hold yet
        self.lengths = np.zeros(0, np.int64)
        self.keys = np.zeros(0, np.uint64)
        self.drawn = np.zeros(0, np.int64)

    def join(self, prompts: Sequence[Sequence[int]], episodes: Sequence[int]) -> None:
        """See `Session.join`; raises a ValueError for no prompt or an empty one."""
        if not prompts or not all(prompts):
            raise ValueError("a session needs at least one prompt, and no prompt may be empty.")
        new = [episode_keys(self.key, episode, 1) for _, episode in zip(prompts, episodes, strict=True)]
        self.slots += range(len(self.pending), len(self.pending) + len(prompts))
        self.pending += [list(prompt) for prompt in prompts]
        self.keys = np.concatenate([self.keys, *new])
        self.lengths = np.concatenate([self.lengths, np.zeros(len(prompts), np.int64)])
        self.drawn = np.concatenate([self.drawn, np.zeros(len(prompts), np.int64)])

    @torch.inference_mode()
    def reply(self, limits: Sequence[int]) -> list[Sampled]:
        """See `Session.reply`."""
        rows = len(self.slots)
        if len(limits) != rows or not rows or min(limits) < 1:
            raise ValueError(f"{rows} rows need {rows} limits of at least 1, not {list(limits)}.")
        work, begun = self.engine.work, time.perf_counter()
        with decoding(self.engine.model):
            replies = self._write(self._read(), limits)
        work.sampled += sum(len(reply.ids) for reply in replies)
        work.seconds += time.perf_counter() - begun
        for slot, reply in zip(self.slots, replies, strict=True):
            self.pending[slot] = [reply.ids[-1]]  # drawn last, never fed: its turn ended there
        return replies

    @torch.inference_mode()
    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        """See `Session.feed`."""
        self.slots = [self.slots[row] for row in rows]
        for slot, new in zip(self.slots, ids, strict=True):
            self.pending[slot] += new
        count, taken = len(rows), set(self.slots)
        late = [slot for slot in self.slots if slot >= count]
        self._move(late, [slot for slot in range(count) if slot not in taken])
        self.pending = self.pending[:count]
        self.lengths, self.keys, self.drawn = self.lengths[:count], self.keys[:count], self.drawn[:count]

    def _move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Slot `targets[i]` gets what `sources[i]` holds, all at once."""
        if not len(sources):
            return
        self.cache.move(sources, targets)
        for array in (self.lengths, self.keys, self.drawn):
            array[list(targets)] = array[list(sources)]
        for target, ids in zip(targets, [self.pending[slot] for slot in sources], strict=True):
            self.pending[target] = ids
        place = dict(zip(sources, targets, strict=True))
        self.slots = [place.get(slot, slot) for slot in self.slots]

    def _read(self) -> Tensor:
        """Reads what waits; returns the logits after each slot's last id, (slots, vocabulary)."""
        waiting = [len(ids) for ids in self.pending]
        self.cache.reserve(len(waiting), int((self.lengths + waiting).max()) + 1)
        columns = self.cache.columns
        old = int((self.lengths > 0).sum())  # the slots from here on joined last and hold nothing yet
        slots: list[int] = []
        logits: list[Tensor] = []
        for first, end in _parts(waiting[:old]):
            offsets = torch.arange(max(waiting[first:end]), device=self.device)
            positions = self._tensor(self.lengths[first:end])[:, None] + offsets
            self.cache.reading(first, positions.clamp(max=columns - 1))  # padding: a column that no row has reached yet
            logits.append(self._last(self.pending[first:end], positions, columns))
            slots += range(first, end)
        readers: dict[tuple[int, ...], list[int]] = {}
        for slot in range(old, len(waiting)):
            readers.setdefault(tuple(self.pending[slot]), []).append(slot)
        prompts = sorted(readers, key=len)
        for first, end in _parts([len(prompt) for prompt in prompts]):
            targets = [(slot, row) for row, prompt in enumerate(prompts[first:end]) for slot in readers[prompt]]
            part, copies = [slot for slot, _ in targets], self._tensor([row for _, row in targets])
            self.cache.prompting(self._tensor(part), copies)
            positions = torch.arange(len(prompts[end - 1]), device=self.device)[None]
            logits.append(self._last(prompts[first:end], positions, positions.shape[1])[copies])
            slots += part
        self.lengths = self.lengths + waiting
        self.engine.work.read += sum(waiting)
        return torch.cat(logits)[self._tensor(slots).argsort()]

    def _write(self, logits: Tensor, limits: Sequence[int]) -> list[Sampled]:
        """Draws until every row has stopped or written `limits[row]` tokens. Arrays here have one entry a row."""
        rows, most = len(self.slots), max(limits)
        left, counts = np.asarray(limits), np.zeros(rows, np.int64)
        advanced = self.keys[self.slots] + self.drawn[self.slots].astype(np.uint64) * np.uint64(GOLDEN)
        numbers = torch.from_numpy(uniforms(advanced, 0, most).astype(np.float32))
        ids, scores = torch.zeros(rows, most, dtype=torch.long), torch.zeros(rows, most)
        writing = np.argsort(self.slots)  # the rows that go on, by slot; some have stopped and are carried along
        active = np.ones(rows, bool)
        for step in range(most):
            tokens, log_probs = self._draw(logits, numbers[writing, step])
            ids[writing, step], scores[writing, step] = tokens, log_probs
            counts[writing[active]] = step + 1
            active = active & (step + 1 < left[writing]) & ~np.isin(tokens, self.engine.stop_ids)
            if not active.any():
                break
            if active.sum() <= len(active) / 2:
                chosen = self._to_front(active)
                writing, tokens, active = writing[chosen], tokens[chosen], active[chosen]
            logits = self._step(torch.where(torch.from_numpy(active), tokens, self.engine.pad_id), active)
        self.drawn[self.slots] += counts
        return [
            Sampled(written[:count], drawn[:count])
            for written, drawn, count in zip(ids.tolist(), scores.tolist(), counts, strict=True)
        ]

    def _to_front(self, active: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Moves the active slots before the others; returns which slots now stand in front, as they were."""
        count = int(active.sum())
        late, free = np.flatnonzero(active[count:]) + count, np.flatnonzero(~active[:count])
        self._move([*late, *free], [*free, *late])
        front = np.arange(count)
        front[free] = late
        return front

    def _step(self, tokens: Tensor, active: NDArray[np.bool_]) -> Tensor:
        """Reads one token in each of the first slots; logits (slots, vocabulary). Only active slots grow by it."""
        self.cache.reserve(len(self.slots), int(self.lengths.max()) + 1)
        positions = self._tensor(self.lengths[: len(active)])[:, None]
        self.cache.reading(0, positions)
        logits = self._forward(tokens.to(self.device)[:, None], positions, self.cache.columns, torch.zeros(1).long())
        self.lengths[: len(active)] += active
        return logits[:, 0]

    def _last(self, parts: Sequence[Sequence[int]], positions: Tensor, columns: int) -> Tensor:
        """Reads rows of ids, padded on the right; the logits after the last id of each, (rows, vocabulary)."""
        pad, width = self.engine.pad_id, positions.shape[1]
        chunk = self._tensor([[*ids, *[pad] * (width - len(ids))] for ids in parts])
        ends, end_of = np.unique([len(ids) - 1 for ids in parts], return_inverse=True)
        logits = self._forward(chunk, positions.expand(len(parts), -1), columns, self._tensor(ends))
        return logits[torch.arange(len(parts), device=self.device), self._tensor(end_of)]

    def _forward(self, ids: Tensor, positions: Tensor, columns: int, kept: Tensor) -> Tensor:
        """Reads ids (rows, width) at `positions`; logits (rows, len(kept), vocabulary) of the kept places of width."""
        model = self.engine.model
        column = torch.arange(columns, device=self.device)
        distance = positions[:, None, :, None] - column
        masks = {}
        for kind, window in self.engine.windows.items():
            allowed = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
            mask = torch.zeros(allowed.shape, dtype=model.dtype, device=self.device)
            masks[kind] = mask.masked_fill_(~allowed, torch.finfo(model.dtype).min)
        output = model(
            input_ids=ids,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=kept.to(self.device),
        )
        logits: Tensor = output.logits
        return logits

    def _draw(self, logits: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """One id for each row by inversion of its distribution, and its log-prob; both of shape (rows,), on the CPU."""
        scaled = (logits.float() + self.engine.bias) / self.temperature
        log_probs, cumulative = scaled.log_softmax(-1), scaled.softmax(-1).cumsum(-1)
        wanted = numbers.to(self.device)[:, None] * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, wanted, right=True).squeeze(1)
        ids = torch.where(ids < log_probs.shape[1], ids, log_probs.argmax(-1))  # a draw rounded up to the very end
        return ids.cpu(), log_probs.gather(1, ids[:, None]).squeeze(1).cpu()

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, device=self.device)


def _parts(widths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of rows side by side that hold at most `READ` tokens each, padding included; one row at least."""
    first = width = 0
    for row, new in enumerate(widths):
        width = max(width, new)
        if row > first and (row + 1 - first) * width > READ:
            yield first, row
            first, width = row, new
    if widths:
        yield first, len(widths)


def _windows(model: PreTrainedModel) -> dict[str, int | None]:
    """How far back each kind of layer looks, by the name that `transformers` knows the kind by; None is everything."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"])
    known = {"full_attention": None, "sliding_attention": window}
    if kinds - set(known):
        raise ValueError(
            f"the model {model.config.model_type} has layers of the kinds {', '.join(sorted(kinds))}; the engine keeps "
            "keys and values only, so it plays models whose layers are full or sliding-window attention."
        )
    return {kind: known[kind] for kind in sorted(kinds)}
