"""In-process engine: any Hugging Face causal LM, many rows, one key-value cache kept over all turns.

No token is read twice: a turn reads the template's tokens and the next message, then samples one token at a time for
all rows together. Rows with equal prefixes, such as those of a group at its start, are computed once
(``SharedPrefixes``), and so is the common prefix of all new prompts, such as the system message. When only a few
stragglers are still sampling, the finished replies are returned, and those rows read their next message while the
stragglers continue. Rows whose episode has ended leave, and new ones join.

Visual tokens are numbered by ``ragen_agent.inference.vision``, so rows with different pictures share no prefix. The
vision encoder runs once for each distinct picture of a session.

Every row draws from its own uniform numbers, a function of (seed, episode, tokens drawn so far), so its tokens do not
depend on other rows or on when it joined, up to rounding: batches of different size sum in different order.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ragen_agent.inference import RowImages, Sampled
from ragen_agent.inference.attention import attention_windows, cache_argument, decode_attention
from ragen_agent.inference.kv_cache import SharedPrefixes, SlotCache, padded_columns
from ragen_agent.inference.sampling import draw_at, suppression
from ragen_agent.inference.vision import ImageTable, vision_of
from ragen_agent.inference.weights import PrepackedLinears
from ragen_gym.core.seeding import GOLDEN, Stream, episode_key, mix, stream_key, uniforms

PADDING = 0
"""Padding: a valid id at positions that are never read."""

CACHED_TOKENS = 2**20
"""Default token limit of a session's cache: 256 rows of 4,096."""

STRAGGLER_SHARE = 0.125
"""Of 256 rows, the last 32 are stragglers: they continue while the others read their next message."""

STRAGGLER_TOKENS = 8
"""Extra tokens for stragglers before the others return; most finish within them, and one pass reads all messages."""

TOKENS_PER_PASS = 16384
"""Maximum tokens read in one pass; longer inputs take several passes."""

LOGITS_PER_PASS = 2**29
"""Maximum logits of one pass: 1 GiB in bfloat16. Rows of different lengths have logits at each other's ends too."""

SHARED_AT_LEAST = 256
"""Minimum tokens saved for a common prefix of new prompts to be read once in a pass of its own."""


class TorchEngine:
    """Samples from ``model`` in place, always with its current weights, so a trainer need not update the engine.

    Args:
        model: the model.
        stop_ids: ids that end a reply.
        vocabulary_size: see ``ragen_agent.inference.sampling.suppression``.
        cached_tokens: maximum tokens in a session's cache, all rows together.
        straggler_share: once at most this share of the rows is still sampling, and has sampled ``STRAGGLER_TOKENS``
            more tokens, finished replies are returned first; with 1, each call samples so many tokens of every row.
        top_p: share of probability to sample from, above 0 and up to 1.
        top_k: number of most likely ids to sample from, 0 for all.

    Attributes:
        seconds: spent in all sessions' calls.

    Raises:
        ValueError: a model with layer state other than keys and values.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stop_ids: Collection[int],
        vocabulary_size: int | None = None,
        cached_tokens: int = CACHED_TOKENS,
        straggler_share: float = STRAGGLER_SHARE,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> None:
        self.model = model
        self.top_p, self.top_k = top_p, top_k
        self.stop_ids = tuple(sorted(stop_ids))
        self.cached_tokens = cached_tokens
        self.straggler_share = straggler_share
        self.seconds = 0.0
        self.spare: SlotCache | None = None  # a closed session's cache, for the next one
        self.bias = suppression(model, vocabulary_size)
        self.stops = np.isin(np.arange(len(self.bias)), self.stop_ids)
        self.windows = attention_windows(model)
        self.cache_argument = cache_argument(model)
        self.linears = PrepackedLinears(model)

    def start(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        temperature: float,
        seed: int,
        episodes: Sequence[int] | None = None,
        images: RowImages = None,
    ) -> TorchSession:
        """Opens a session; the rows are the episodes 0, 1, 2, ... of ``seed`` unless ``episodes`` names others.

        Raises:
            ValueError: an empty prompt, a temperature that is not positive, or pictures for a model that reads text.
        """
        if temperature <= 0:
            raise ValueError(
                f"temperature is {temperature}; it must be positive (0.5 is the usual one for evaluation)."
            )
        session = TorchSession(self, temperature, seed)
        session.join(prompts, range(len(prompts)) if episodes is None else episodes, images=images)
        return session

    def max_rows(self, tokens: int) -> int:
        """Maximum number of rows of ``tokens`` tokens in the cache."""
        return self.cached_tokens // padded_columns(tokens)


class TorchSession:
    """Rows that share one cache; see ``ragen_agent.inference.GenerationSession``.

    Attributes:
        keys: uint64 (rows,), the key of each row's uniform numbers.
        drawn: uint64 (rows,), number of them used.
        pending: for each row, the ids not yet in the cache; visual tokens as ``images`` numbers them.
        partial: for each row, the tokens sampled so far of an unfinished reply.
        images: the pictures of all rows; None for a text-only model.
        features: the visual tokens encoded so far, float (tokens + 1, hidden).
        reached: int64 (rows,), the position of the next token of each row in a model that reads pictures.
    """

    def __init__(self, engine: TorchEngine, temperature: float, seed: int) -> None:
        self.engine = engine
        self.device = engine.bias.device
        self.temperature = temperature
        self.key = mix(stream_key(seed, Stream.LEVEL))  # mixed, so that an environment of this seed draws other numbers
        self.cache, engine.spare = engine.spare or SlotCache(engine.cached_tokens), None
        self.prefixes = SharedPrefixes()
        self.pending: list[list[int]] = []
        self.partial: list[Sampled] = []
        self.keys = np.zeros(0, np.uint64)
        self.drawn = np.zeros(0, np.uint64)
        self.vision = vision_of(engine.model)
        self.images = None if self.vision is None else ImageTable()
        self.features = torch.zeros(1, 0, device=self.device)
        self.reached = np.zeros(0, np.int64)

    def join(self, prompts: Sequence[Sequence[int]], episodes: Sequence[int], *, images: RowImages = None) -> None:
        """See ``GenerationSession.join``.

        Raises:
            ValueError: no prompt, an empty one, or pictures for a model that reads text only.
        """
        if not prompts or not all(prompts):
            raise ValueError("a session needs at least one prompt, and no prompt may be empty.")
        started = time.perf_counter()
        new = [episode_key(self.key, episode) for _, episode in zip(prompts, episodes, strict=True)]
        self.prefixes.add(len(prompts))
        self.pending += self._with_images(prompts, images)
        self.partial += [Sampled([], []) for _ in prompts]
        self.keys = np.concatenate([self.keys, np.array(new, np.uint64)])
        self.drawn = np.concatenate([self.drawn, np.zeros(len(prompts), np.uint64)])
        self.reached = np.concatenate([self.reached, np.zeros(len(prompts), np.int64)])
        self.engine.seconds += time.perf_counter() - started

    @torch.inference_mode()
    def reply(self, limits: Sequence[int]) -> list[Sampled | None]:
        """See ``GenerationSession.reply``."""
        rows = len(self.pending)
        if len(limits) != rows or not rows or min(limits) < 1:
            raise ValueError(f"{rows} rows need {rows} limits of at least 1, not {list(limits)}.")
        started = time.perf_counter()
        with decode_attention(self.engine.model), self.engine.linears.in_use():
            replies, unfinished = self._sample(self._read(), np.asarray(limits))
        self.pending = [[new.ids[-1]] for new in replies]  # sampled last and not read yet: read with the next ids
        whole = [Sampled(b.ids + n.ids, b.log_probs + n.log_probs) for b, n in zip(self.partial, replies, strict=True)]
        self.partial = [reply if on else Sampled([], []) for reply, on in zip(whole, unfinished, strict=True)]
        self.engine.seconds += time.perf_counter() - started
        return [None if on else reply for reply, on in zip(whole, unfinished, strict=True)]

    @torch.inference_mode()
    def feed(self, rows: Sequence[int], ids: Sequence[Sequence[int]], *, images: RowImages = None) -> None:
        """See ``GenerationSession.feed``."""
        started = time.perf_counter()
        fed = self._with_images(ids, images)
        self.pending = [self.pending[row] + new for row, new in zip(rows, fed, strict=True)]
        self.partial = [self.partial[row] for row in rows]
        self.keys, self.drawn = self.keys[list(rows)], self.drawn[list(rows)]
        self.reached = self.reached[list(rows)]
        self.cache.move(*self.prefixes.keep(rows))
        self.engine.seconds += time.perf_counter() - started

    def close(self) -> None:
        """See ``GenerationSession.close``; on a CPU the next session reuses the cache, which is slow to allocate."""
        if self.device.type == "cpu":
            self.engine.spare = self.cache

    def _with_images(self, ids: Sequence[Sequence[int]], images: RowImages) -> list[list[int]]:
        """The ids of rows, with visual-token numbers in place of placeholders."""
        if images is None or not any(images):
            return [list(each) for each in ids]
        if self.images is None:
            raise ValueError(
                f"the model {self.engine.model.config.model_type} reads text only, and the messages hold pictures; "
                "use a visual model, or observation='text'."
            )
        return [self.images.keys(each, spans).tolist() for each, spans in zip(ids, images, strict=True)]

    def _encode_new_images(self) -> None:
        """Runs the vision encoder over new pictures."""
        if self.images is None or self.images.tokens < len(self.features):
            return
        assert self.vision is not None
        read, pictures = len(self.features) - 1, self.images.pictures
        while read:  # pictures are numbered one after another
            read, pictures = read - pictures[0].tokens, pictures[1:]
        new = self.vision.features(self.engine.model, pictures)
        before = self.features if self.features.shape[1] else torch.zeros(1, new.shape[1], device=self.device)
        self.features = torch.cat([before.to(new.dtype), new])

    def _read(self) -> Tensor:
        """Reads the pending ids; returns the logits after them, float (slots, vocabulary)."""
        self._encode_new_images()
        prefixes, pending = self.prefixes, [tuple(ids) for ids in self.pending]
        waiting = np.array([len(ids) for ids in self.pending])
        needed = int((prefixes.length + waiting).max()) + 1
        self.cache.reserve(len(waiting), needed, prefixes.count)
        old = np.flatnonzero(prefixes.slot >= 0)
        copies, end = prefixes.split(old, [pending[row] for row in old], prefixes.count)
        self.cache.move(*copies)
        readers = dict(zip(prefixes.slot[old].tolist(), old.tolist(), strict=True))  # one row for each slot
        logits = []
        for first, last in self._parts([len(pending[readers[slot]]) for slot in range(end)]):
            rows = [readers[slot] for slot in range(first, last)]
            offsets = torch.arange(max(waiting[rows]), device=self.device)
            # Padding stops at the first position that no row has reached: models with learned positions have a last
            # one.
            positions = (self._tensor(prefixes.length[rows])[:, None] + offsets).clamp(max=needed - 1)
            self.cache.set_positions(slice(first, last), positions)
            reached = self.reached[rows]
            logits.append(self._last([pending[row] for row in rows], positions, self.cache.columns, reached))
        prompts: dict[tuple[int, ...], list[int]] = {}
        for row in np.flatnonzero(prefixes.slot < 0):
            prompts.setdefault(pending[row], []).append(int(row))
        each = sorted(prompts, key=len)
        prefixes.assign([prompts[prompt] for prompt in each])
        shared = self._read_shared(each, end)
        for first, last in self._parts([len(prompt) - shared for prompt in each]):
            slots, columns = slice(end + first, end + last), len(each[last - 1])
            positions = torch.arange(shared, columns, device=self.device)[None]
            if shared:
                self.cache.set_positions(slots, positions)
                columns = self.cache.columns
            else:
                self.cache.set_prompts(slots)
            parts = [prompt[shared:] for prompt in each[first:last]]
            logits.append(self._last(parts, positions, columns, np.zeros(last - first, np.int64)))
        prefixes.length += waiting
        self.reached += waiting if self.images is None else [self.images.length(ids) for ids in pending]
        return torch.cat(logits)

    def _read_shared(self, prompts: Sequence[tuple[int, ...]], first: int) -> int:
        """Reads the common prefix of these prompts once, for the slots from ``first`` on; returns its length.

        The length is 0 if little would be saved, and for visual models, whose positions differ from the ids' places.
        """
        if len(prompts) < 2 or self.images is not None:
            return 0
        pairs = enumerate(zip(min(prompts), max(prompts), strict=False))  # their common prefix is all prompts'
        shared = next((place for place, (one, other) in pairs if one != other), len(min(prompts)))
        shared = min(shared, *(len(prompt) - 1 for prompt in prompts))  # the last token is read for its logits
        if shared * (len(prompts) - 1) < SHARED_AT_LEAST:
            return 0
        self.cache.set_prompts(slice(first, first + 1))
        positions = torch.arange(shared, device=self.device)[None]
        self._last([prompts[0][:shared]], positions, shared, np.zeros(1, np.int64))
        targets = range(first + 1, first + len(prompts))
        self.cache.move([first] * len(targets), targets)
        return shared

    def _sample(self, logits: Tensor, limits: NDArray[np.int64]) -> tuple[list[Sampled], NDArray[np.bool_]]:
        """Samples until only stragglers are unfinished; returns each row's sample and a mask of unfinished rows.

        ``limits``, int64 (rows,), count from the beginning of a reply.
        """
        engine, prefixes, left = self.engine, self.prefixes, limits - [len(partial.ids) for partial in self.partial]
        most, few = int(left.max()), int(engine.straggler_share * len(left))
        counts = np.zeros(len(left), np.int64)
        numbers = torch.from_numpy(uniforms(self.keys + self.drawn * np.uint64(GOLDEN), 0, most).astype(np.float32))
        ids, scores = torch.zeros(len(left), most, dtype=torch.long), torch.zeros(len(left), most)
        rows, front = np.arange(len(left)), prefixes.count  # unfinished rows; their slots are the first ones
        waited = 0  # extra tokens of the stragglers
        for step in range(most):
            slots, drawn = self._tensor(prefixes.slot[rows]), numbers[rows, step].to(self.device)
            tokens, log_probs = draw_at(self.temperature, logits, engine.bias, slots, drawn, engine.top_p, engine.top_k)
            ids[rows, step], scores[rows, step] = tokens, log_probs
            counts[rows] += 1
            going = (counts[rows] < left[rows]) & ~engine.stops[tokens.numpy()]
            rows, tokens = rows[going], tokens[torch.from_numpy(going)]
            waited += len(rows) <= few
            if not len(rows) or waited > STRAGGLER_TOKENS:
                break
            copies, front = prefixes.split(rows, tokens.tolist(), front)
            self.cache.move(*copies)
            if len(np.unique(prefixes.slot[rows])) <= front / 2:
                copies, front = prefixes.to_front(rows)
                self.cache.move(*copies)
            logits = self._step(rows, tokens, front)
        if not bool(scores.isfinite().all()):
            self.cache.erase_broken()
        self.drawn += counts.astype(np.uint64)
        written = zip(ids[:, : counts.max()].tolist(), scores[:, : counts.max()].tolist(), counts, strict=True)
        return [Sampled(i[:count], s[:count]) for i, s, count in written], np.isin(np.arange(len(left)), rows)

    def _step(self, rows: NDArray[np.int64], tokens: Tensor, front: int) -> Tensor:
        """Reads one token for each of these rows; logits (front, vocabulary), other slots among them included."""
        prefixes = self.prefixes
        self.cache.reserve(len(self.pending), int(prefixes.length.max()) + 1, prefixes.count)
        ids, positions = np.full(front, PADDING), np.zeros(prefixes.count, np.int64)
        np.maximum.at(positions, prefixes.slot, prefixes.length)  # after the longest row of the slot
        ids[prefixes.slot[rows]] = tokens.numpy()
        where = self._tensor(positions[:front])[:, None]
        self.cache.set_positions(slice(front), where)
        reached = positions[:front].copy()
        reached[prefixes.slot[rows]] = self.reached[rows]
        logits = self._forward(self._tensor(ids)[:, None], where, self.cache.columns, 1, reached)
        prefixes.length[rows] += 1
        self.reached[rows] += 1
        return logits[:, 0]

    def _last(
        self, parts: Sequence[Sequence[int]], positions: Tensor, columns: int, reached: NDArray[np.int64]
    ) -> Tensor:
        """Reads rows of ids, padded on the right; returns the logits after the last id of each, (rows, vocabulary)."""
        width = positions.shape[1]
        chunk = self._tensor([[*ids, *[PADDING] * (width - len(ids))] for ids in parts])
        ends, end_of = np.unique([len(ids) - 1 for ids in parts], return_inverse=True)
        logits = self._forward(chunk, positions.expand(len(parts), -1), columns, self._tensor(ends), reached)
        return logits[torch.arange(len(parts), device=self.device), self._tensor(end_of)]

    def _forward(
        self, ids: Tensor, positions: Tensor, columns: int, kept: Tensor | int, reached: NDArray[np.int64]
    ) -> Tensor:
        """Reads ids (rows, width) into ``positions``; logits (rows, number kept, vocabulary) of the kept columns.

        ``kept`` are columns, int64, or a number of last columns. Visual models count positions from ``reached`` on,
        int64 (rows,).
        """
        model = self.engine.model
        column = torch.arange(columns, device=self.device)
        query = positions[:, None, :, None]
        masks = {}
        for kind, window in self.engine.windows.items():
            hidden = column > query if window is None else (column > query) | (column <= query - window)
            mask = torch.zeros(hidden.shape, dtype=model.dtype, device=self.device)
            masks[kind] = mask.masked_fill_(hidden, torch.finfo(model.dtype).min)
        if self.images is None:
            inputs = {"input_ids": ids, "position_ids": positions}
        else:
            inputs = {
                "inputs_embeds": self.images.embed(model, ids, self.features),
                "position_ids": self.images.positions(ids) + self._tensor(reached)[:, None],
            }
        output = model(
            **inputs,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            **{self.engine.cache_argument: self.cache},
            use_cache=True,
            logits_to_keep=kept,
        )
        logits: Tensor = output.logits
        return logits

    def _parts(self, widths: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Ranges of consecutive rows within ``TOKENS_PER_PASS`` and ``LOGITS_PER_PASS``; at least one row each."""
        vocabulary, first, ends = len(self.engine.bias), 0, set[int]()
        for row, new in enumerate(widths):
            ends.add(new)
            rows = row + 1 - first
            if rows > 1 and (rows * max(ends) > TOKENS_PER_PASS or rows * len(ends) * vocabulary > LOGITS_PER_PASS):
                yield first, row
                first, ends = row, {new}
        if widths:
            yield first, len(widths)

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, device=self.device)
