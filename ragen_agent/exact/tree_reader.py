"""Reading of token trees: the next token's distribution after each prefix, with one key-value cache for all of them.

The prefixes of a reply tree share their prompt and most of their tokens. A prompt is read once, the beginning that
all prompts have in common once for all of them, and every further token once: it attends to its prompt and to the
tokens of its own path.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from ragen_agent.inference.attention import cache_argument, use_attention
from ragen_agent.inference.sampling import suppression
from ragen_agent.inference.vision import vision_of
from ragen_agent.update.batches import common_prefix
from ragen_agent.update.prefix_tree import shares_prefixes

TOKENS_PER_PASS = 1024
"""Tokens that are read in one pass."""

LOGITS_AT_ONCE = 2**24
"""Logits that are held at a time: read no more prefixes than this allows in one call."""


class TreeReader:
    """Next-token distributions of a model, as ``ragen_agent.inference.torch_engine`` samples from them.

    Args:
        model: a causal language model whose layers all have full attention.
        vocabulary_size: see ``ragen_agent.inference.sampling.suppression``.
        temperature: of sampling, above 0.

    Attributes:
        tokens: distinct tokens read so far, prompts included.

    Raises:
        ValueError: a temperature that is not positive, or a model that cannot be read along a tree.
    """

    def __init__(self, model: PreTrainedModel, vocabulary_size: int, temperature: float) -> None:
        if not temperature > 0:
            raise ValueError(
                f"temperature is {temperature}; it must be positive (0.5 is the usual one for evaluation)."
            )
        if not shares_prefixes(model) or vision_of(model) is not None:
            raise ValueError(
                f"the model {model.config.model_type} cannot be read along a tree of replies: that needs a text model "
                "with PyTorch's general attention (attn_implementation='sdpa'), unlimited in every layer. "
                "Estimate its score from episodes instead: ragen-agent eval."
            )
        self.model, self.temperature = model, temperature
        self.bias = suppression(model, vocabulary_size)
        self.tokens = 0
        self._opening: tuple[list[int], DynamicCache] = [], DynamicCache()

    @torch.inference_mode()
    def prompts(self, prompts: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """Begin trees at these prompts; earlier trees are forgotten.

        Returns:
            float64 (prompts, vocabulary): the distribution of the first token after each.
        """
        self._length = torch.tensor([len(prompt) for prompt in prompts], device=self.model.device)
        opening = self._read_opening(prompts)
        width, begun = int(self._length.max()), len(opening)
        ids = torch.zeros(len(prompts), width - begun, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt) - begun] = torch.tensor(prompt[begun:])
        rows = max(1, TOKENS_PER_PASS // (width - begun))
        found: list[NDArray[np.float64]] = []
        states: list[list[tuple[Tensor, Tensor]]] = []
        for part in ids.to(self.model.device).split(rows):
            cache = DynamicCache()
            for layer, (key, value) in enumerate(_states(self._opening[1])):
                wide = [each.expand(len(part), -1, -1, -1) for each in (key, value)]
                cache.update(wide[0], wide[1], layer)
            some = self._length[len(found) * rows : len(found) * rows + len(part)]
            ends, of_row = (some - 1 - begun).unique(return_inverse=True)
            logits = self._forward(cache, part, begun, ends)
            found.append(self._distribution(logits[torch.arange(len(part)), of_row]))
            states.append(_states(cache))
        self.tokens += int(self._length.sum()) - begun * len(prompts)
        #: By layer: keys and values of the prompts, each (prompts, key heads, width, head size).
        self._read = [
            tuple(torch.cat(parts) for parts in zip(*layer, strict=True)) for layer in zip(*states, strict=True)
        ]
        #: By layer: keys and values of the tokens after them, each (room, key heads, head size).
        self._grown = [[key.new_zeros(0, *key.shape[1::2]) for key in layer] for layer in self._read]
        self._paths = torch.zeros(0, 1, dtype=torch.long, device=self.model.device)
        self._depth = torch.zeros(0, dtype=torch.long, device=self.model.device)
        return np.concatenate(found)

    @torch.inference_mode()
    def grow(
        self, trees: NDArray[np.int64], parents: NDArray[np.int64], tokens: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Read one further token after each of some prefixes.

        The prefixes are numbered from 0 in the order in which they were read.

        Args:
            trees: int64 (n,), the prompt of each.
            parents: int64 (n,), the number of the prefix before the token; -1 for the prompt itself.
            tokens: int64 (n,), the tokens.

        Returns:
            float64 (n, vocabulary): the distribution of the token after each.
        """
        found = []
        size = min(TOKENS_PER_PASS, max(1, LOGITS_AT_ONCE // len(self.bias)))
        for first in range(0, len(tokens), size):
            some = slice(first, first + size)
            found.append(self._grow(*(self._tensor(each[some]) for each in (trees, parents, tokens))))
        self.tokens += len(tokens)
        return np.concatenate(found)

    def _grow(self, trees: Tensor, parents: Tensor, tokens: Tensor) -> NDArray[np.float64]:
        count, new = len(self._depth), len(tokens)
        numbers = torch.arange(count, count + new, device=tokens.device)
        depth = torch.where(parents >= 0, self._depth[parents.clamp(min=0)] + 1, 0) if count else parents + 1
        self._reserve(count + new, int(depth.max()) + 1)
        width = self._paths.shape[1]
        paths = self._paths[parents.clamp(min=0)].masked_fill((parents < 0)[:, None], 0)
        paths[torch.arange(new), depth] = numbers
        self._paths[count : count + new], self._depth = paths, torch.cat([self._depth, depth])
        hidden = torch.arange(width, device=tokens.device) > depth[:, None]
        layout = _Layout(numbers, paths, hidden, *_padded(trees), self._length)
        inputs = {"input_ids": tokens[None], "position_ids": (self._length[trees] + depth)[None]}
        unread = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=tokens.device)
        with use_attention(self.model, partial(self._attend, layout)):
            logits = self.model(**inputs, attention_mask=unread, use_cache=False).logits[0]
        return self._distribution(logits)

    def _attend(
        self,
        layout: _Layout,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Attention of new tokens to their prompts and paths; query (1, heads, new, size), key and value likewise.

        Query heads that share keys are treated as several queries of one head.
        """
        layer: Any = module.layer_idx
        for grown, states in zip(self._grown[layer], (key, value), strict=True):
            grown[layout.numbers] = states[0].transpose(0, 1)
        (said_k, said_v), (own_k, own_v) = self._read[layer], self._grown[layer]
        new, groups, size = query.shape[2], key.shape[1], query.shape[3]
        scale = size**-0.5 if scaling is None else scaling
        q = query[0].transpose(0, 1).reshape(new, groups, -1, size)  # (new, groups, heads of a group, size)
        # Of each tree all new tokens against the prompt's keys at once.
        rows = q[layout.place].transpose(1, 2).flatten(2, 3)  # (trees, groups, tokens * heads, size)
        scores = rows @ said_k[layout.trees].transpose(2, 3)
        scores = scores.unflatten(2, (layout.place.shape[1], -1)).transpose(1, 2)[layout.tree, layout.column]
        column = torch.arange(said_k.shape[2], device=q.device)
        unwritten = column >= layout.length[layout.trees[layout.tree]][:, None]
        scores = scores.masked_fill(unwritten[:, None, None], -torch.inf)
        own = torch.einsum("nghs,nwgs->nghw", q, own_k[layout.paths])
        own = own.masked_fill(layout.hidden[:, None, None], -torch.inf)
        weights = (torch.cat([scores, own], 3) * scale).softmax(3)
        said, mine = weights.split([scores.shape[3], own.shape[3]], 3)
        spread = said[layout.place].transpose(1, 2).flatten(2, 3) @ said_v[layout.trees]
        output = spread.unflatten(2, (layout.place.shape[1], -1)).transpose(1, 2)[layout.tree, layout.column]
        output = output + torch.einsum("nghw,nwgs->nghs", mine, own_v[layout.paths])
        return output.reshape(1, new, -1, size), None

    def _read_opening(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Read the common beginning of all prompts, unless it was read before; the ids."""
        known, _ = self._opening
        rows = [list(prompt) for prompt in prompts]
        shared = min(min(map(len, rows)) - 1, common_prefix(min(rows), max(rows)))
        opening = rows[0][:shared]
        if known and opening[: len(known)] == known:
            return known
        self._opening = opening, DynamicCache()
        if opening:
            self._forward(self._opening[1], torch.tensor([opening], device=self.model.device), 0, 1)
            self.tokens += len(opening)
        return opening

    def _forward(self, cache: DynamicCache, ids: Tensor, begin: int, kept: Tensor | int) -> Tensor:
        """Logits (rows, number kept, vocabulary) of ids (rows, width) from position ``begin`` on.

        Rows are padded on the right, where causal attention does not read.
        """
        positions = torch.arange(begin, begin + ids.shape[1], device=ids.device).expand_as(ids)
        inputs = {"input_ids": ids, "position_ids": positions, cache_argument(self.model): cache}
        logits: Tensor = self.model(**inputs, use_cache=True, logits_to_keep=kept).logits
        return logits

    def _distribution(self, logits: Tensor) -> NDArray[np.float64]:
        scaled = (logits.double() + self.bias) / self.temperature
        probabilities: NDArray[np.float64] = scaled.softmax(-1).cpu().numpy()
        return probabilities

    def _reserve(self, count: int, width: int) -> None:
        """Room for so many tokens, in paths of so many."""
        rows, columns = self._paths.shape
        if count > rows or width > columns:
            more = (0, max(0, width - columns), 0, max(0, 2 * count - rows) if count > rows else 0)
            self._paths = nn.functional.pad(self._paths, more)
        if count > len(self._grown[0][0]):
            grown = [
                [nn.functional.pad(k, (0, 0, 0, 0, 0, 2 * count - len(k))) for k in layer] for layer in self._grown
            ]
            self._grown = grown

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, device=self.model.device)


class _Layout(NamedTuple):
    """Places of the new tokens of one pass, int64 unless said otherwise."""

    numbers: Tensor  # (new,), the tokens' own numbers
    paths: Tensor  # (new, width), the numbers of the tokens of each one's path; hidden beyond its end
    hidden: Tensor  # bool (new, width)
    trees: Tensor  # (trees,), the trees of these tokens
    place: Tensor  # (trees, most), the tokens of each tree, padded with any
    tree: Tensor  # (new,), the row of each token in ``place``
    column: Tensor  # (new,), its column
    length: Tensor  # (prompts,), the lengths of the prompts


def _padded(trees: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``trees``, ``place``, ``tree`` and ``column`` of a ``_Layout``."""
    found, tree, counts = trees.unique(return_inverse=True, return_counts=True)
    order = tree.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    column = torch.empty_like(tree)
    column[order] = torch.arange(len(trees), device=trees.device) - starts[tree[order]]
    place = torch.zeros(len(found), int(counts.max()), dtype=torch.long, device=trees.device)
    place[tree, column] = torch.arange(len(trees), device=trees.device)
    return found, place, tree, column


def _states(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer, (rows, key heads, width, head size)."""
    layers: list[Any] = cache.layers
    return [(layer.keys, layer.values) for layer in layers]
