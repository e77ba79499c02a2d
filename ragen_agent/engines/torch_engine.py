"""The engine in this process: any Hugging Face causal LM, many rows, one key-value cache kept over all turns.

Nothing is read twice: a turn reads the template's glue and the next message, then writes one token at a time for all
rows together. Rows with equal histories, such as those of a group at its start, are computed once (`branches`). When
most rows have ended their turn and the others do not soon end theirs, they are answered and read their next message
while the others write on. Rows whose episode ended leave, and new ones join in their place.

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
from ragen_agent.engines.kv_cache import SlotCache, decoding, in_steps
from ragen_agent.engines.prefix_sharing import Branches
from ragen_gym.core.seeding import GOLDEN, Stream, episode_key, mix, stream_key, uniforms

__all__ = ["CACHED_TOKENS", "SUPPRESSED", "TorchEngine", "TorchSession", "Work", "suppression"]

SUPPRESSED = -1e9
"""Added to a logit that may not be sampled: probability exactly 0, yet finite, so no gradient is 0 times infinity."""

CACHED_TOKENS = 2**20
"""The most tokens in a session's cache, unless something else is asked for: 256 rows of 4,096."""

PATIENCE = 0.125
"""Of 256 rows, the last 32 do not hold up the others for long: they write on while these read their next message."""

GRACE = 8
"""The last rows may first write so many tokens more: most then end too, and one pass reads the messages of all."""

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
    looks. `cached_tokens`: the most tokens that a session's cache may hold, all rows together. `patience`: once no more
    than this share of the rows have written `GRACE` tokens alone, those that have stopped are answered first.
    `work`: counters.

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
        patience: float = PATIENCE,
    ) -> None:
        self.model = model
        self.stop_ids = tuple(sorted(stop_ids))
        self.pad_id = pad_id
        self.cached_tokens = cached_tokens
        self.patience = patience
        self.work = Work()
        self.spare: SlotCache | None = None  # a closed session's
        self.bias = suppression(model, vocabulary_size)
        self.stops = np.isin(np.arange(len(self.bias)), self.stop_ids)
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

    Arrays have one entry a row: `keys`, of its uniform numbers; `drawn`, how many of them were used.
    """

    def __init__(self, engine: TorchEngine, temperature: float, seed: int) -> None:
        self.engine = engine
        self.device = engine.bias.device
        self.temperature = temperature
        self.key = mix(stream_key(seed, Stream.LEVEL))  # mixed, or an environment of this seed drew the same numbers
        self.cache, engine.spare = engine.spare or SlotCache(engine.cached_tokens), None
        self.branches = Branches()
        self.pending: list[list[int]] = []  # of each row: ids that the cache does not hold yet
        self.begun: list[Sampled] = []  # of each row: what it has written of a reply that goes on
        self.keys = np.zeros(0, np.uint64)
        self.drawn = np.zeros(0, np.uint64)

    def join(self, prompts: Sequence[Sequence[int]], episodes: Sequence[int]) -> None:
        """See `Session.join`; raises a ValueError for no prompt or an empty one."""
        if not prompts or not all(prompts):
            raise ValueError("a session needs at least one prompt, and no prompt may be empty.")
        started = time.perf_counter()
        new = [episode_key(self.key, episode) for _, episode in zip(prompts, episodes, strict=True)]
        self.branches.join(len(prompts))
        self.pending += [list(prompt) for prompt in prompts]
        self.begun += [Sampled([], []) for _ in prompts]
        self.keys = np.concatenate([self.keys, np.array(new, np.uint64)])
        self.drawn = np.concatenate([self.drawn, np.zeros(len(prompts), np.uint64)])
        self.engine.work.seconds += time.perf_counter() - started

    @torch.inference_mode()
    def reply(self, limits: Sequence[int]) -> list[Sampled | None]:
        """See `Session.reply`."""
        rows = len(self.pending)
        if len(limits) != rows or not rows or min(limits) < 1:
            raise ValueError(f"{rows} rows need {rows} limits of at least 1, not {list(limits)}.")
        work, started = self.engine.work, time.perf_counter()
        with decoding(self.engine.model):
            replies, writing = self._write(self._read(), np.asarray(limits))
        work.sampled += sum(len(new.ids) for new in replies)
        self.pending = [[new.ids[-1]] for new in replies]  # drawn last, never read: it is read with what follows
        whole = [Sampled(b.ids + n.ids, b.log_probs + n.log_probs) for b, n in zip(self.begun, replies, strict=True)]
        self.begun = [reply if on else Sampled([], []) for reply, on in zip(whole, writing, strict=True)]
        work.seconds += time.perf_counter() - started
        return [None if on else reply for reply, on in zip(whole, writing, strict=True)]

    @torch.inference_mode()
    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        """See `Session.feed`."""
        started = time.perf_counter()
        self.pending = [self.pending[row] + list(new) for row, new in zip(rows, ids, strict=True)]
        self.begun = [self.begun[row] for row in rows]
        self.keys, self.drawn = self.keys[list(rows)], self.drawn[list(rows)]
        self.cache.move(*self.branches.keep(rows))
        self.engine.work.seconds += time.perf_counter() - started

    def close(self) -> None:
        """See `Session.close`; on a CPU the next session takes over the cache's memory, which costs time to get."""
        if self.device.type == "cpu":
            self.engine.spare = self.cache

    def _read(self) -> Tensor:
        """Reads what waits; returns the logits after it, one row for each slot."""
        branches, ways = self.branches, [tuple(ids) for ids in self.pending]
        waiting = np.array([len(ids) for ids in self.pending])
        needed = int((branches.length + waiting).max()) + 1
        self.cache.reserve(len(waiting), needed, branches.count)
        old = np.flatnonzero(branches.slot >= 0)
        copies, end = branches.part(old, [ways[row] for row in old], branches.count)
        self.cache.move(*copies)
        readers = dict(zip(branches.slot[old].tolist(), old.tolist(), strict=True))  # one row for each slot
        logits = []
        for first, last in _parts([len(ways[readers[slot]]) for slot in range(end)]):
            rows = [readers[slot] for slot in range(first, last)]
            offsets = torch.arange(max(waiting[rows]), device=self.device)
            positions = self._tensor(branches.length[rows])[:, None] + offsets
            # Padding is written to the last column, which no row has reached yet.
            self.cache.reading(slice(first, last), positions.clamp(max=self.cache.columns - 1))
            logits.append(self._last([ways[row] for row in rows], positions, self.cache.columns))
        prompts: dict[tuple[int, ...], list[int]] = {}
        for row in np.flatnonzero(branches.slot < 0):
            prompts.setdefault(ways[row], []).append(int(row))
        each = sorted(prompts, key=len)
        branches.open([prompts[prompt] for prompt in each])
        for first, last in _parts([len(prompt) for prompt in each]):
            positions = torch.arange(len(each[last - 1]), device=self.device)[None]
            self.cache.prompting(slice(end + first, end + last))
            logits.append(self._last(each[first:last], positions, positions.shape[1]))
        branches.length += waiting
        self.engine.work.read += int(waiting.sum())
        return torch.cat(logits)

    def _write(self, logits: Tensor, limits: NDArray[np.int64]) -> tuple[list[Sampled], NDArray[np.bool_]]:
        """Draws until few enough rows are still writing; what each wrote, and which go on. Arrays have an entry a row.

        `limits` count from a reply's beginning.
        """
        branches, left = self.branches, limits - [len(begun.ids) for begun in self.begun]
        most, few = int(left.max()), int(self.engine.patience * len(left))
        counts = np.zeros(len(left), np.int64)
        numbers = torch.from_numpy(uniforms(self.keys + self.drawn * np.uint64(GOLDEN), 0, most).astype(np.float32))
        ids, scores = torch.zeros(len(left), most, dtype=torch.long), torch.zeros(len(left), most)
        rows, front = np.arange(len(left)), branches.count  # rows that write, and the slots before which theirs are
        waited = 0  # how often no more than a few rows were still writing
        for step in range(most):
            tokens, log_probs = self._draw(logits, branches.slot[rows], numbers[rows, step])
            ids[rows, step], scores[rows, step] = tokens, log_probs
            counts[rows] += 1
            going = (counts[rows] < left[rows]) & ~self.engine.stops[tokens.numpy()]
            rows, tokens = rows[going], tokens[torch.from_numpy(going)]
            waited += len(rows) <= few
            if not len(rows) or waited > GRACE:
                break
            copies, front = branches.part(rows, tokens.tolist(), front)
            self.cache.move(*copies)
            if len(np.unique(branches.slot[rows])) <= front / 2:
                copies, front = branches.to_front(rows)
                self.cache.move(*copies)
            logits = self._step(rows, tokens, front)
        self.drawn += counts.astype(np.uint64)
        written = zip(ids.tolist(), scores.tolist(), counts, strict=True)
        return [Sampled(i[:count], s[:count]) for i, s, count in written], np.isin(np.arange(len(left)), rows)

    def _step(self, rows: NDArray[np.int64], tokens: Tensor, front: int) -> Tensor:
        """These rows read a token each; logits (front, vocabulary). Slots of others between them are carried along."""
        branches = self.branches
        self.cache.reserve(len(self.pending), int(branches.length.max()) + 1, branches.count)
        ids, positions = np.full(front, self.engine.pad_id), np.zeros(branches.count, np.int64)
        np.maximum.at(positions, branches.slot, branches.length)  # behind all that any row of the slot has read
        ids[branches.slot[rows]] = tokens.numpy()
        where = self._tensor(positions[:front])[:, None]
        self.cache.reading(slice(front), where)
        logits = self._forward(self._tensor(ids)[:, None], where, self.cache.columns, torch.zeros(1).long())
        branches.length[rows] += 1
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

    def _draw(self, logits: Tensor, slots: NDArray[np.int64], numbers: Tensor) -> tuple[Tensor, Tensor]:
        """An id for each row, by inversion of its slot's distribution, and its log-prob; both (rows,), on the CPU."""
        scaled = (logits.float() + self.engine.bias) / self.temperature
        of_row = self._tensor(slots)
        log_probs, cumulative = scaled.log_softmax(-1)[of_row], scaled.softmax(-1).cumsum(-1)[of_row]
        wanted = numbers.to(self.device)[:, None] * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, wanted, right=True).squeeze(1)
        if (over := ids == log_probs.shape[1]).any():  # draws rounded up to the very end
            ids = torch.where(over, log_probs.argmax(-1), ids)
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
