"""Reply trees: the replies that a model may sample after a prompt, with the probability of each.

A tree is walked best first, many trees at a time. A token is followed if its prefix is likely enough; the rest stays
closed, and the walk ends as soon as the closed prefixes of a tree hold no more than the mass that may be left out.
Every token sequence that the sampler could produce is a path of its own, so no spelling of an action is assumed: the
text of a path is read by the environment's own grammar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import regex
from numpy.typing import NDArray

from ragen_agent.exact.tree_reader import LOGITS_AT_ONCE, TreeReader
from ragen_agent.tokens.chat import ChatFormat
from ragen_gym.envs.reply import Reply, reply_form

#: Kinds of node: a reply that goes on, one that a stop token ended, one that the length limit cut, and one that goes on
#: but is malformed whatever follows.
INNER, ENDED, CUT, HOPELESS = range(4)

_FAINT = 1e-6
"""Share of the mass that may be left out below which a single prefix is counted, but not kept."""

_WAITING = 0.03
"""Part of the weight of the weightiest prefix below which others wait."""

_TAG = regex.compile(r"</?(?:think|answer)>")


class Outcome(NamedTuple):
    """The part of a reply that the game depends on."""

    actions: tuple[int, ...]
    """The actions played, if the game goes on so long."""
    malformed: bool
    """True if the reply earns the penalty: it breaks the form, or names an unknown action."""


@dataclass(frozen=True)
class Root:
    """A prompt to walk from."""

    ids: list[int]
    room: int  # tokens that a reply may have, 1 or more
    most: int  # actions that are played of a reply
    mass: float  # probability that may be left out, above 0
    parse: Callable[[str], Reply]  # the environment's reading of a reply


@dataclass(frozen=True)
class ReplyTree:
    """The likely replies to one prompt; node 0 is the prompt itself, and a node comes after its parent.

    Attributes:
        parent: int64 (nodes,), -1 for node 0.
        token: int64 (nodes,), -1 for node 0.
        reach: float64 (nodes,), the probability of the prefix, in [0, 1].
        kind: int8 (nodes,), ``INNER``, ``ENDED``, ``CUT`` or ``HOPELESS``.
        outcome: int64 (nodes,), the index in ``outcomes`` of a reply that is over, -1 for ``INNER``.
        closed: float64 (nodes,), the probability of the prefixes after it that were not followed.
        outcomes: the different outcomes.
    """

    parent: NDArray[np.int64]
    token: NDArray[np.int64]
    reach: NDArray[np.float64]
    kind: NDArray[np.int8]
    outcome: NDArray[np.int64]
    closed: NDArray[np.float64]
    outcomes: tuple[Outcome, ...]

    @property
    def chances(self) -> NDArray[np.float64]:
        """The probability of each outcome, float64 (outcomes,); with ``left_out`` they add up to 1."""
        over = self.outcome >= 0
        return np.bincount(self.outcome[over], self.reach[over], len(self.outcomes)).astype(np.float64)

    @property
    def left_out(self) -> float:
        """Probability of the replies that were not followed."""
        return float(self.closed.sum())

    @property
    def malformed(self) -> float:
        """Probability of a malformed reply, without ``left_out``."""
        return float(sum(p for p, each in zip(self.chances, self.outcomes, strict=True) if each.malformed))

    def path(self, node: int) -> list[int]:
        """The tokens from the prompt to a node."""
        tokens: list[int] = []
        while node > 0:
            tokens.append(int(self.token[node]))
            node = int(self.parent[node])
        return tokens[::-1]

    def find(self, ids: Sequence[int]) -> list[int]:
        """The nodes along a reply, from node 0 on: one more than ``ids``, or fewer where it leaves the tree."""
        children = {
            (p, t): node for node, (p, t) in enumerate(zip(self.parent.tolist(), self.token.tolist(), strict=True))
        }
        nodes = [0]
        for token in ids:
            node = children.get((nodes[-1], token))
            if node is None:
                break
            nodes.append(node)
        return nodes


class ReplyTexts:
    """Texts of token sequences, kept over all trees: different prompts have the same replies.

    Args:
        chat: decodes replies.
        think: whether replies must think.
        budget: whether they must state one.
        known_form: True if a well-formed reply matches ``reply_form``; then prefixes that cannot are recognised.
    """

    def __init__(self, chat: ChatFormat, *, think: bool, known_form: bool, budget: bool = False) -> None:
        self.chat = chat
        form = reply_form(think, budget).pattern
        self._form = regex.compile(form, regex.DOTALL) if known_form and not chat.begun else None
        self._ids: list[tuple[int, ...]] = [()]
        self._texts: list[str] = [chat.decode_reply([])]
        self._hopeless = [False]
        self._children: dict[tuple[int, int], int] = {}

    def child(self, node: int, token: int) -> int:
        """The number of a sequence with one more token; the empty sequence is 0."""
        found = self._children.get((node, token))
        if found is None:
            found = self._children[node, token] = len(self._ids)
            ids = (*self._ids[node], token)
            text = self.chat.decode_reply(ids)
            self._ids.append(ids)
            self._texts.append(text)
            self._hopeless.append(self._hopeless[node] or self._cannot_match(text))
        return found

    def text(self, node: int) -> str:
        """The text of a reply that ends here, as the environment reads it."""
        return self._texts[node]

    def hopeless(self, node: int) -> bool:
        """True if every reply that begins so is malformed and names no action."""
        return self._hopeless[node]

    def _cannot_match(self, text: str) -> bool:
        if self._form is None:
            return False
        text = text.rstrip("\ufffd")  # the bytes of a character that is not complete yet
        tags = _TAG.findall(text)
        return len(tags) != len(set(tags)) or self._form.fullmatch(text, partial=True) is None


def walk(reader: TreeReader, texts: ReplyTexts, roots: Sequence[Root], *, most_nodes: int = 2**16) -> list[ReplyTree]:
    """The reply trees of some prompts.

    Args:
        reader: the model.
        texts: of its tokenizer.
        roots: the prompts, at least one.
        most_nodes: tokens that are read in all of the trees together; where that is not enough, more is left out.
    """
    return _Walk(reader, texts, roots).run(most_nodes)


class _Walk:
    """All nodes of all trees in one list: node i below ``len(roots)`` is the prompt of tree i."""

    def __init__(self, reader: TreeReader, texts: ReplyTexts, roots: Sequence[Root]) -> None:
        self.reader, self.texts, self.roots = reader, texts, roots
        count = len(roots)
        self.tree, self.parent, self.token = list(range(count)), [-1] * count, [-1] * count
        self.reach, self.kind, self.outcome = [1.0] * count, [INNER] * count, [-1] * count
        self.text, self.depth, self.number = [0] * count, [0] * count, [-1] * count
        self.read = 0
        self.outcomes: list[dict[Outcome, int]] = [{} for _ in roots]
        self._replies: list[dict[int, int]] = [{} for _ in roots]  # by text, the outcome
        self.mass = np.array([root.mass for root in roots])
        self.faint = np.zeros(count)  # by node, the mass of what is not kept
        #: Closed prefixes: the node before, the token, the probability.
        self.closed = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))

    def run(self, most_nodes: int) -> list[ReplyTree]:
        stops = np.zeros(len(self.reader.bias), bool)
        stops[list(self.texts.chat.stop_ids)] = True
        self._add_closed(np.arange(len(self.roots)), self.reader.prompts([root.ids for root in self.roots]))
        while True:
            nodes, tokens, reach = self.closed
            trees = np.array(self.tree)[nodes]
            likely = self._likely(trees, reach) & ~stops[tokens]
            opened = self._at_once(likely, reach / self.mass[trees], most_nodes - self.read) | stops[tokens]
            if not opened.any():
                break
            self.closed = nodes[~opened], tokens[~opened], reach[~opened]
            inner = [
                node
                for each in zip(nodes[opened].tolist(), tokens[opened].tolist(), reach[opened].tolist(), strict=True)
                if self.kind[node := self._open(*each)] == INNER
            ]
            if inner:
                self._read(inner)
        return self._trees()

    def _likely(self, trees: NDArray[np.int64], reach: NDArray[np.float64]) -> NDArray[np.bool_]:
        """The closed prefixes of each tree but the least likely, which together hold no more than may be left out."""
        faint = np.bincount(np.array(self.tree), self._faint_of_nodes(), len(self.roots))
        order = np.argsort(reach)
        order = order[np.argsort(trees[order], kind="stable")]
        sizes = np.bincount(trees, minlength=len(self.roots))
        below = np.append(0.0, reach[order].cumsum())
        before = below[sizes.cumsum() - sizes]  # the mass of the trees before each
        likely = np.zeros(len(reach), bool)
        likely[order] = below[1:] - np.repeat(before + self.mass - faint, sizes) > 0
        return likely

    def _at_once(self, wanted: NDArray[np.bool_], weight: NDArray[np.float64], room: int) -> NDArray[np.bool_]:
        """The prefixes of the next pass: the weightiest of those wanted, as many as may be read and memory allows.

        A prefix far lighter than the weightiest waits, as weightier ones may come up that leave no room for it.
        """
        most = min(room, max(1, LOGITS_AT_ONCE // len(self.reader.bias)))
        places = np.flatnonzero(wanted & (weight > _WAITING * weight[wanted].max(initial=0.0)))
        chosen = np.zeros_like(wanted)
        chosen[places[np.argsort(-weight[places])[:most]] if len(places) > most else places] = True
        return chosen

    def _open(self, node: int, token: int, reach: float) -> int:
        """A new node."""
        tree, text, depth = self.tree[node], self.text[node], self.depth[node] + 1
        root, kind = self.roots[tree], INNER
        if token in self.texts.chat.stop_ids:
            kind = ENDED  # its text is that of the tokens before it
        else:
            text = self.texts.child(text, token)
            kind = HOPELESS if self.texts.hopeless(text) else CUT if depth == root.room else INNER
        outcome = -1 if kind == INNER else self._outcome(tree, text, kind)
        self.tree.append(tree)
        self.parent.append(node)
        self.token.append(token)
        self.reach.append(reach)
        self.kind.append(kind)
        self.outcome.append(outcome)
        self.text.append(text)
        self.depth.append(depth)
        self.number.append(-1)
        return len(self.tree) - 1

    def _outcome(self, tree: int, text: int, kind: int) -> int:
        known = self._replies[tree].get(text)
        if known is None:
            outcome = Outcome((), malformed=True)
            if kind != HOPELESS:
                root = self.roots[tree]
                reply = root.parse(self.texts.text(text))
                outcome = Outcome(reply.actions[: root.most], reply.problem is not None)
            known = self._replies[tree][text] = self.outcomes[tree].setdefault(outcome, len(self.outcomes[tree]))
        return known

    def _read(self, nodes: Sequence[int]) -> None:
        """Read the last token of these nodes, and close all that may follow."""
        before = [self.parent[node] for node in nodes]
        columns = [
            [self.tree[node] for node in nodes],
            [self.number[node] for node in before],
            [self.token[node] for node in nodes],
        ]
        found = self.reader.grow(*(np.array(column) for column in columns))
        for place, node in enumerate(nodes):
            self.number[node] = self.read + place
        self.read += len(nodes)
        self._add_closed(np.array(nodes), found)

    def _add_closed(self, nodes: NDArray[np.int64], following: NDArray[np.float64]) -> None:
        """Close all tokens after some nodes, by their distributions, float64 (nodes, vocabulary)."""
        reach = following * np.array(self.reach)[nodes, None]
        least = _FAINT * self.mass[np.array(self.tree)[nodes]]
        kept = reach >= least[:, None]
        faint = np.zeros(len(self.tree))
        faint[: len(self.faint)] = self.faint
        faint[nodes] = np.where(kept, 0.0, reach).sum(1)
        self.faint = faint
        rows, tokens = kept.nonzero()
        new = nodes[rows], tokens, reach[rows, tokens]
        self.closed = tuple(np.concatenate(pair) for pair in zip(self.closed, new, strict=True))  # type: ignore[assignment]

    def _faint_of_nodes(self) -> NDArray[np.float64]:
        return np.pad(self.faint, (0, len(self.tree) - len(self.faint)))

    def _trees(self) -> list[ReplyTree]:
        tree, count = np.array(self.tree), len(self.tree)
        closed = self._faint_of_nodes() + np.bincount(self.closed[0], self.closed[2], count)
        place = np.zeros(count, np.int64)
        columns = [np.array(c) for c in (self.parent, self.token, self.reach, self.kind, self.outcome)]
        trees = []
        for number, outcomes in enumerate(self.outcomes):
            own = np.flatnonzero(tree == number)
            place[own] = np.arange(len(own))
            parent, token, reach, kind, outcome = (column[own] for column in columns)
            parent = np.where(parent >= 0, place[parent], -1)
            trees.append(ReplyTree(parent, token, reach, kind.astype(np.int8), outcome, closed[own], tuple(outcomes)))
        return trees
