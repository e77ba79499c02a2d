"""A picture of an episode at the grain of tokens: which of them the policy samples and training learns from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from rich.text import Text

from ragen_agent.chat import ChatFormat
from ragen_agent.config import Config
from ragen_agent.local.agent import make_env
from ragen_agent.local.demonstrations import demonstrate
from ragen_agent.local.mixture import games_at
from ragen_agent.rollout import Instance
from ragen_agent.token_mdp import TokenMDP, Trajectory

__all__ = ["LEGEND", "Picture", "scripted_episode"]

SAMPLED, GIVEN = "bold green", "dim"
OPEN, CLOSE = "⟦", "⟧"
LEGEND = f"Sampled tokens are green and stand in {OPEN}{CLOSE}: they alone are learned from. The rest is given."


@dataclass(frozen=True)
class Picture:
    """One episode: its text in alternating spans, and its counts."""

    trajectory: Trajectory
    spans: tuple[tuple[bool, str], ...]

    @classmethod
    def of(cls, trajectory: Trajectory, chat: ChatFormat) -> Picture:
        """The row decoded span by span, special tokens written out."""
        edges = [0, *(trajectory.sampled[1:] != trajectory.sampled[:-1]).nonzero()[0] + 1, len(trajectory.ids)]
        spans = [
            (bool(trajectory.sampled[a]), str(chat.tokenizer.decode(trajectory.ids[a:b].tolist())))
            for a, b in pairwise(edges)
        ]
        return cls(trajectory, tuple(spans))

    @property
    def text(self) -> Text:
        """Coloured, and bracketed for where there are no colours."""
        text = Text()
        for sampled, words in self.spans:
            text.append(f"{OPEN}{words}{CLOSE}" if sampled else words, style=SAMPLED if sampled else GIVEN)
        return text

    @property
    def counts(self) -> str:
        """One sentence."""
        t = self.trajectory
        rewards, turns = ", ".join(f"{reward:g}" for reward in t.turn_rewards), len(t.turn_rewards)
        return (
            f"{len(t.ids)} tokens, {int(t.sampled.sum())} of them sampled, in {turns} turn{'s' * (turns > 1)} "
            f"(reward {rewards}); {'solved' if t.success else 'not solved'}."
        )


def scripted_episode(config: Config, chat: ChatFormat, seed: int = 0) -> Picture:
    """An episode on a training level of the first game, whose replies the demonstrator writes.

    Raises:
        ValueError: see `demonstrate`.
    """
    share = games_at(config, 0)[0].config
    turns = share.turns
    process = TokenMDP(
        make_env(share, "train"),
        chat,
        max_tokens_per_turn=turns.max_tokens_per_turn,
        max_tokens_per_episode=turns.max_tokens_per_episode,
        history=turns.history,
    )
    how = replace(share.demonstrations, mistakes=0.0)
    return Picture.of(demonstrate(process, [Instance(seed, seed)], how, seed)[0], chat)
