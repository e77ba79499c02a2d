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

READ = 16384
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
        self.spare: SlotCache | None = None  # a closed session's
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
        self.cache, engine.spare = engine.spare or SlotCache(engine.cached_tokens), None
        self.slots: list[int] = []  # of each row
        self.pending: list[list[int]] = []  # of each slot: ids that the cache does not hold yet
        self.histories: list[int] = []  # of each slot: the number of what the cache holds
        self.numbered: dict[tuple[int, ...], int] = {}
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
        self.histories += [0] * len(prompts)
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
            self.histories[slot] = self._history((self.histories[slot], *reply.ids[:-1]))
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
        self.pending, self.histories = self.pending[:count], self.histories[:count]
        self.lengths, self.keys, self.drawn = self.lengths[:count], self.keys[:count], self.drawn[:count]

    def close(self) -> None:
        """See `Session.close`; on a CPU the next session takes over the cache's memory, which costs time to get."""
        if self.device.type == "cpu":
            self.engine.spare = self.cache

    def _move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Slot `targets[i]` gets what `sources[i]` holds, all at once."""
        if not len(sources):
            return
        self.cache.move(sources, targets)
        for array in (self.lengths, self.keys, self.drawn):
            array[list(targets)] = array[list(sources)]
        moved = [(self.pending[slot], self.histories[slot]) for slot in sources]
        for target, (ids, history) in zip(targets, moved, strict=True):
            self.pending[target], self.histories[target] = ids, history
        place = dict(zip(sources, targets, strict=True))
        self.slots = [place.get(slot, slot) for slot in self.slots]

    def _read(self) -> Tensor:
        """Reads what waits; returns the logits after each slot's last id, (slots, vocabulary)."""
        waiting = [len(ids) for ids in self.pending]
        self.cache.reserve(len(waiting), int((self.lengths + waiting).max()) + 1, int((self.lengths > 0).sum()))
        readers: dict[tuple[int, ...], list[int]] = {}  # slots by all that they have read and are to read
        for slot, ids in enumerate(self.pending):
            readers.setdefault((self.histories[slot], *ids), []).append(slot)
        groups = list(readers.values())
        parts = [*self._read_on([group for group in groups if self.lengths[group[0]]])]
        parts += self._read_prompts([group for group in groups if not self.lengths[group[0]]])
        for key, group in readers.items():
            for slot in group:
                self.histories[slot] = self._history(key)
        self.lengths = self.lengths + waiting
        self.engine.work.read += sum(waiting)
        slots = [slot for part, _ in parts for slot in part]
        return torch.cat([logits for _, logits in parts])[self._tensor(slots).argsort()]

    def _read_on(self, groups: list[list[int]]) -> Iterator[tuple[list[int], Tensor]]:
        """The first slot of each group reads what waits, and the others copy it; yields slots and their logits."""
        columns, leaders = self.cache.columns, [group[0] for group in groups]
        alone = sum(map(len, groups)) == len(leaders)
        for first, end in _parts([len(self.pending[slot]) for slot in leaders]):
            part = [self.pending[slot] for slot in leaders[first:end]]
            offsets = torch.arange(max(map(len, part)), device=self.device)
            positions = self._tensor(self.lengths[leaders[first:end]])[:, None] + offsets
            # Padding is written to the last column, which no row has reached yet.
            rows = slice(first, end) if alone else self._tensor(leaders[first:end])
            self.cache.reading(rows, positions.clamp(max=columns - 1))
            logits = self._last(part, positions, columns)
            yield [slot for group in groups[first:end] for slot in group], logits[self._copies(groups[first:end])]
        followers = [slot for group in groups for slot in group[1:]]
        if followers:
            self.cache.move([group[0] for group in groups for _ in group[1:]], followers)

    def _read_prompts(self, groups: list[list[int]]) -> Iterator[tuple[list[int], Tensor]]:
        """Reads a prompt for each group of slots, shorter ones first; yields slots and their logits."""
        groups = sorted(groups, key=lambda group: len(self.pending[group[0]]))
        prompts = [self.pending[group[0]] for group in groups]
        for first, end in _parts([len(prompt) for prompt in prompts]):
            slots = [slot for group in groups[first:end] for slot in group]
            copies = self._copies(groups[first:end])
            self.cache.prompting(self._tensor(slots), copies)
            positions = torch.arange(len(prompts[end - 1]), device=self.device)[None]
            yield slots, self._last(prompts[first:end], positions, positions.shape[1])[copies]

    def _copies(self, groups: list[list[int]]) -> Tensor:
        return self._tensor([row for row, group in enumerate(groups) for _ in group])

    def _history(self, key: tuple[int, ...]) -> int:
        """A number for an earlier history and the ids that followed it; equal histories have equal numbers."""
        return self.numbered.setdefault(key, len(self.numbered) + 1)

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
        self.cache.reserve(len(self.slots), int(self.lengths.max()) + 1, len(self.slots))
        positions = self._tensor(self.lengths[: len(active)])[:, None]
        self.cache.reading(slice(len(active)), positions)
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
        query = positions[:, None, :, None]
        masks = {}
        for kind, window in self.engine.windows.items():
            hidden = column > query if window is None else (column > query) | (column <= query - window)
            mask = torch.zeros(hidden.shape, dtype=model.dtype, device=self.device)
            masks[kind] = mask.masked_fill_(hidden, torch.finfo(model.dtype).min)
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
