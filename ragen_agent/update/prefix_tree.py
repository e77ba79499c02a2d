"""Rows with common prefixes as one tree of tokens, so that a training pass computes each distinct prefix once.

The rows of a group have the same prompt, and in most turns some still share their replies; rows of all groups begin
with the same instructions. In a padded batch each shared token is computed once per row. Here it is one node:
token-wise layers (all but attention) run over the nodes in one row, and attention runs over blocks of nodes, each node
attending to its ancestors and itself. Gradients equal the padded rows' gradients up to rounding, since a prefix's
gradient is the sum over the rows that share it. (Prefix Grouper, arXiv 2506.05433, does this for one prompt a group; a
tree holds any number of turns.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from ragen_agent.inference.attention import GENERAL_ATTENTION, use_attention
from ragen_agent.inference.vision import ImageTable
from ragen_agent.update.batches import common_prefix, distinct_prefixes

BLOCK_COST = 4096
"""Fixed cost of a block, in products of a query and a key."""

PADDING = 1.25
"""Blocks are computed together as long as their padding adds at most this factor."""


def shares_prefixes(model: nn.Module) -> bool:
    """True if the model can run over a tree: PyTorch's general attention, unlimited in all layers, and no dropout.

    Activation checkpointing is excluded too: it recomputes layers after the tree is gone.
    """
    if not isinstance(model, PreTrainedModel):
        return False
    if model.training and any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        return False
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        model.config._attn_implementation == GENERAL_ATTENTION
        and bool(getattr(model, "_supports_attention_backend", False))
        and kinds == {"full_attention"}
        and (bool(getattr(config, "layer_types", None)) or not getattr(config, "sliding_window", None))
        and not (model.training and any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules()))
    )


def parts_of(readings: Sequence[list[list[int]]], limit: int) -> Iterator[list[int]]:
    """Indices of items that hold at most ``limit`` prefixes together, unless one item alone holds more.

    An item is a unit of reading: the ids of a row, or of each of its contexts.
    """
    waiting = [sorted(range(len(readings)), key=readings.__getitem__)]
    while waiting:
        chosen = waiting.pop()
        if len(chosen) == 1 or distinct_prefixes([row for item in chosen for row in readings[item]]) <= limit:
            yield chosen
        else:
            half = (len(chosen) + 1) // 2
            waiting += [chosen[half:], chosen[:half]]


@dataclass(frozen=True)
class _Bucket:
    """Blocks of similar size, computed together.

    Attributes:
        queries: int64 (blocks, n), the query nodes; padded with any node.
        keys: int64 (blocks, m), the nodes that they may attend to; padded with any node.
        mask: float32 (blocks, n, m), added to the scores: 0, or -inf if a key is not an ancestor.
    """

    queries: Tensor
    keys: Tensor
    mask: Tensor


@dataclass(frozen=True)
class PrefixTree:
    """The distinct prefixes of some rows.

    Attributes:
        ids: int64 (nodes,), the last token of each prefix.
        positions: int64 (nodes,), number of preceding tokens; (3, nodes) if rows hold pictures, see ``ImageTable``.
        node: int64 (rows, width), the prefix that ends at each token of a row; 0 at padding.
        buckets: the blocks of attention.
        place: int64 (nodes,), the index of each node in the concatenated outputs of the buckets.
        images: the pictures of the rows, if there are any.
    """

    ids: Tensor
    positions: Tensor
    node: Tensor
    buckets: tuple[_Bucket, ...]
    place: Tensor
    images: ImageTable | None = None

    @classmethod
    def of(cls, ids: Tensor, attention: Tensor, images: ImageTable | None = None) -> PrefixTree:
        """The tree of rows padded on the right; ``ids`` and ``attention`` are int64 (rows, width)."""
        lengths = attention.sum(1).tolist()
        rows = [row[:length] for row, length in zip(ids.tolist(), lengths, strict=True)]
        node = np.zeros(ids.shape, np.int64)
        tokens: list[int] = []
        depth: list[int] = []
        parent: list[int] = []
        last, before = -1, list[int]()  # rows in alphabetical order: a node's descendants follow it without a gap
        for row in sorted(range(len(rows)), key=rows.__getitem__):
            shared = common_prefix(before, rows[row])
            node[row, :shared] = node[last, :shared]
            new = np.arange(len(tokens), len(tokens) + len(rows[row]) - shared)
            node[row, shared : len(rows[row])] = new
            parent += [int(node[row, shared - 1]) if shared else -1, *new[:-1].tolist()][: len(new)]
            tokens += rows[row][shared:]
            depth += range(shared, len(rows[row]))
            last, before = row, rows[row]
        buckets, place = _plan(np.array(parent), np.array(depth), ids.device)
        own_ids, positions, nodes = (torch.as_tensor(values, device=ids.device) for values in (tokens, depth, node))
        if images is not None:  # a node's position is the same in all of its rows
            read = attention.bool()
            positions = positions.repeat(3, 1)
            positions[:, nodes[read]] = images.positions(ids)[:, read]
        return cls(own_ids, positions, nodes, buckets, place, images)

    @classmethod
    def parts(
        cls, ids: Tensor, attention: Tensor, limit: int, images: ImageTable | None = None
    ) -> Iterator[tuple[PrefixTree, Tensor]]:
        """Trees of at most ``limit`` prefixes, unless one row alone is longer, each with its rows, int64 (some,)."""
        lengths = attention.sum(1).tolist()
        readings = [[row[:length]] for row, length in zip(ids.tolist(), lengths, strict=True)]
        for chosen in parts_of(readings, limit):
            rows = torch.tensor(chosen, device=ids.device)
            width = int(attention[rows].sum(1).max())
            yield cls.of(ids[rows, :width], attention[rows, :width], images), rows

    def before(self, marked: Tensor) -> Tensor:
        """The prefixes that the marked tokens continue, int64 (marked,); ``marked`` is bool (rows, width)."""
        return self.node[:, :-1][marked[:, 1:]]

    @contextmanager
    def attention(self, model: nn.Module) -> Iterator[dict[str, Tensor]]:
        """Within it, ``model`` attends along the tree; yields the inputs that read all nodes as one row."""
        assert isinstance(model, PreTrainedModel)
        if self.images is None:
            inputs = {"input_ids": self.ids[None], "position_ids": self.positions[None]}
        else:  # pictures are read first, with the model's own attention
            words = self.images.embed(model, self.ids[None])
            inputs = {"inputs_embeds": words, "position_ids": self.positions[:, None]}
        with use_attention(model, partial(_attention, self, {})):
            yield {
                **inputs,
                "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.ids.device),  # not read
            }


def _plan(
    parent: NDArray[np.int64], depth: NDArray[np.int64], device: torch.device
) -> tuple[tuple[_Bucket, ...], Tensor]:
    """Plan of the attention; see ``PrefixTree``."""
    end = np.arange(1, len(parent) + 1)  # after a node's last descendant
    for node in range(len(parent) - 1, -1, -1):
        if parent[node] >= 0:
            end[parent[node]] = max(end[parent[node]], end[node])
    blocks = sorted(_blocks(parent, depth, end), key=lambda block: (block[1] - block[0], depth[block[0]]))
    buckets: list[_Bucket] = []
    place = torch.zeros(len(parent), dtype=torch.int64)
    filled = 0
    for some in _alike([(b - a, int(depth[a]) + b - a) for a, b in blocks]):
        chosen = [blocks[index] for index in some]
        n, m = max(b - a for a, b in chosen), max(int(depth[a]) + b - a for a, b in chosen)
        queries, keys = np.zeros((len(chosen), n), np.int64), np.zeros((len(chosen), m), np.int64)
        mask = np.full((len(chosen), n, m), -np.inf, np.float32)
        for row, (a, b) in enumerate(chosen):
            size, above = b - a, int(depth[a])
            nodes = np.arange(a, b)
            queries[row, :size] = nodes
            keys[row, above : above + size] = nodes
            up = a
            for column in range(above - 1, -1, -1):
                up = keys[row, column] = parent[up]
            mask[row, :, :above] = 0.0
            mask[row, :, 0] = 0.0  # padded queries need some key
            own = (nodes <= nodes[:, None]) & (nodes[:, None] < end[a:b])  # [i, j]: j is i or above it
            mask[row, :size, above : above + size] = np.where(own, 0.0, -np.inf)
            place[a:b] = torch.arange(filled + row * n, filled + row * n + size)
        filled += len(chosen) * n
        buckets.append(_Bucket(*(torch.as_tensor(part, device=device) for part in (queries, keys, mask))))
    return tuple(buckets), place.to(device)


def _blocks(parent: NDArray[np.int64], depth: NDArray[np.int64], end: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of nodes that attend together, each a whole subtree or an unbranched path, at the least total cost."""
    children: dict[int, list[int]] = {}
    for node, above in enumerate(parent.tolist()):
        children.setdefault(above, []).append(node)
    path_end: dict[int, int] = {}  # by each path's first node, its last node
    starts = [node for above, nodes in children.items() if above < 0 or len(nodes) > 1 for node in nodes]
    for start in starts:
        last = start
        while len(children.get(last, ())) == 1:
            last += 1
        path_end[start] = last
    whole: dict[int, bool] = {}
    cost: dict[int, int] = {}
    for start in sorted(starts, reverse=True):
        above, size, length = int(depth[start]), int(end[start] - start), path_end[start] + 1 - start
        together = size * (above + size) + BLOCK_COST
        apart = length * (above + length) + BLOCK_COST
        apart += sum(cost[child] for child in children.get(path_end[start], ()))
        whole[start], cost[start] = together <= apart, min(together, apart)
    left = list(children[-1])
    while left:
        start = left.pop()
        yield start, int(end[start]) if whole[start] else path_end[start] + 1
        left += [] if whole[start] else children.get(path_end[start], [])


def _alike(sizes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Consecutive blocks, by their queries and keys, that are computed together."""
    some: list[int] = []
    for index in range(len(sizes)):
        wide = [*some, index]
        padded = len(wide) * max(sizes[i][0] for i in wide) * max(sizes[i][1] for i in wide)
        if some and padded > PADDING * sum(sizes[i][0] * sizes[i][1] for i in wide) + BLOCK_COST:
            yield some
            wide = [index]
        some = wide
    if some:
        yield some


def _attention(
    tree: PrefixTree,
    masks: dict[int, Tensor],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Query (1, heads, nodes, size), key and value (1, key heads, nodes, size); see ``PrefixTree.attention``.

    Query heads that share keys are treated as several queries of one head, so no key is copied. ``masks`` holds each
    bucket's mask, as wide as the heads need, for all layers.
    """
    heads, groups, size = query.shape[1], key.shape[1], query.shape[3]
    each = heads // groups
    asked, given, content = (states[0].transpose(0, 1) for states in (query, key, value))
    outputs = []
    for index, bucket in enumerate(tree.buckets):
        (blocks, n), m = bucket.queries.shape, bucket.keys.shape[1]
        if index not in masks:
            wide = bucket.mask.to(query.dtype)[:, None, None].expand(blocks, groups, each, n, m)
            masks[index] = wide.reshape(blocks * groups, each * n, m)
        q = asked.index_select(0, bucket.queries.flatten()).view(blocks, n, groups, each, size)
        q = q.permute(0, 2, 3, 1, 4).reshape(blocks * groups, each * n, size)
        k, v = (
            states.index_select(0, bucket.keys.flatten())
            .view(blocks, m, groups, size)
            .transpose(1, 2)
            .reshape(blocks * groups, m, size)
            for states in (given, content)
        )
        scale = size**-0.5 if scaling is None else scaling
        weights = torch.baddbmm(masks[index], q, k.transpose(1, 2), alpha=scale).softmax(-1)
        output = (weights @ v).view(blocks, groups, each, n, size).permute(0, 3, 1, 2, 4)
        outputs.append(output.reshape(blocks * n, heads, size))
    return torch.cat(outputs).index_select(0, tree.place)[None], None
