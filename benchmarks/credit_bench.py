"""A policy on fixed levels, its exact gradient, and the gradients that estimators of advantages make of its episodes.

Each estimator of the trainer turns the same batches into advantages and a gradient, as the first step of an update
does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.credit_page import TREE, TRUE
from ragen_agent import algo
from ragen_agent.config import Training, with_settings
from ragen_agent.config.algorithms import ADVANTAGE_RULES, CREDITS, GROUPINGS
from ragen_agent.exact.advantages import exact_gradient, token_advantages
from ragen_agent.exact.level import ExactLevel
from ragen_agent.exact.policy_value import LevelValue, solve
from ragen_agent.exact.tree_reader import TreeReader
from ragen_agent.local.policy_update import Critic, Learner, targets_of
from ragen_agent.models.parameters import adamw
from ragen_agent.run.policy import Policy
from ragen_agent.tasks.tasks import make_game_env
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.rollout_tree import grow, own_tokens
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_agent.update.batches import Batch
from ragen_agent.update.iteration import Iteration
from ragen_agent.update.loss import Divisors, loss_terms
from ragen_agent.update.scoring import passes, sampled_scores
from ragen_agent.update.shaping import shaped

#: What all estimators share: the gradient of the policy's term alone, of the undiscounted return.
_SHARED: dict[str, Any] = {
    "aggregation": "sequence_sum",
    "filter": "none",
    "kl_kind": "none",
    "entropy_bonus": 0.0,
}
#: Each estimator by name, with its settings; a new rule is a new row, but for one that tells games apart.
ESTIMATORS: dict[str, dict[str, Any]] = {
    **{name: {"algo": name} for name, rule in ADVANTAGE_RULES.items() if not rule.critic and rule.across != "game"},
    "grpo, states": {"algo": "grpo", "groups_by": "state"},
    "dr_grpo, states": {"algo": "dr_grpo", "groups_by": "state"},
    "grpo, history": {"algo": "grpo", "groups_by": "history"},
    "dr_grpo, history": {"algo": "dr_grpo", "groups_by": "history"},
    **{f"ppo, {credit}": {"algo": "ppo", "credit": credit} for credit in CREDITS},
    TREE: {"algo": "rloo", "groups_by": "tree"},
}
BRANCHES = {1: [8], 2: [4, 2], 3: [2, 2, 2]}
"""Branches of a tree of ``GROUP_SIZE`` episodes, by the most turns of an episode."""
CRITICS = {name for name, settings in ESTIMATORS.items() if ADVANTAGE_RULES[settings["algo"]].critic}
ROWS = (*ESTIMATORS, TRUE)

GROUP_SIZE, CRITIC_EPOCHS = 8, 8
EPISODES = 2**16
"""Episodes of one seed, at most: each has its own noise seed. Those that critics are fitted to, seed 0, meet the noise
of the first ones that are measured, seed 1, on other levels and after other replies."""
LEAST = 0.01
"""True advantages nearer to 0 have no sign that an estimator is held to."""


@dataclass
class Bench:
    """A policy on fixed levels, its exact gradient, and the estimators' gradients of its episodes.

    Args:
        policy: without thoughts and history.
        seeds: of the levels, each counted alike.
        mass: see ``ragen_agent.exact.policy_value.solve``.

    Attributes:
        found: exact values of the levels.
        truth: float (parameters,), the exact gradient of the mean return.
    """

    policy: Policy
    seeds: Sequence[int]
    mass: float

    def __post_init__(self) -> None:
        config = self.policy.config
        # Its episodes hold what every estimator reads: the oracle's values and the states of the game.
        self.env = make_game_env(with_settings(config, {"training": {"algo": "ppo", "credit": "regret"}}), "train")
        self.temperature = config.training.temperature
        reader = TreeReader(self.policy.model, len(self.policy.tokenizer), self.temperature)
        self.bias = reader.bias
        levels = [ExactLevel(self.env, self.policy.chat, config.turns, Instance(seed, 0)) for seed in self.seeds]
        self.found: list[LevelValue] = solve(reader, levels, mass=self.mass)
        self.truth = _flat(exact_gradient(self.policy.model, self.bias, self.temperature, self.found))
        self._states = {
            (level.level_id, state.state.turn, tuple(state.prompt)): state
            for level, found in zip(levels, self.found, strict=True)
            for state in found.states
        }
        self._true: dict[tuple[Any, ...], np.ndarray] = {}
        self._critics: dict[str, Learner] = {}

    def play(self, groups: int, seed: int) -> list[Trajectory]:
        """Groups of episodes on levels drawn at random, adjacent; each episode has its own transition noise."""
        drawn = np.random.default_rng(seed).choice(self.seeds, groups).repeat(GROUP_SIZE).tolist()
        first = max(seed - 1, 0) * EPISODES
        return self._played([Instance(level, number) for number, level in enumerate(drawn, first)], seed)

    @property
    def branches(self) -> list[int]:
        """Branches of the trees."""
        return BRANCHES[self.policy.config.turns.max_turns]

    def grow(self, groups: int, seed: int) -> list[Trajectory]:
        """Rollout trees on levels drawn at random, the episodes of each adjacent."""
        drawn = np.random.default_rng(seed).choice(self.seeds, groups).repeat(GROUP_SIZE).tolist()
        instances = [Instance(level, number) for number, level in enumerate(drawn, seed * EPISODES)]
        # A seed for each turn, or branches would draw the replies of their siblings.
        return grow(instances, self.branches, lambda some, turn: self._played(some, seed * len(self.branches) + turn))

    def _played(self, instances: Sequence[Instance], seed: int) -> list[Trajectory]:
        config = self.policy.config
        processes = [
            TokenMDP.from_settings(self.env.twin(), self.policy.chat, config.turns, record_states=True)
            for _ in range(min(len(instances), config.evaluation.batch))
        ]
        played = self.policy.play(processes, instances, self.temperature, seed)
        if failed := [each.failure for each in played if each.failure is not None]:
            raise RuntimeError(f"{len(failed)} of {len(played)} episodes failed, the first with {failed[0]}.")
        return played

    def settings(self, name: str) -> Training:
        """The trainer's settings of an estimator."""
        rule = ESTIMATORS[name] | ({"branches": self.branches} if name == TREE else {})
        by_turn = (
            GROUPINGS[rule.get("groups_by", "level")].turns
            or CREDITS[rule.get("credit", "trajectory")].recursion != "tokens"
        )
        undiscounted: dict[str, Any] = {"gamma_turn": 1.0} if by_turn else {}
        return Training(**_SHARED, **rule, **undiscounted, group_size=GROUP_SIZE, temperature=self.temperature)

    def fit_critics(self, played: Sequence[Trajectory]) -> None:
        """Critics fitted to these episodes, one for each rule of credit."""
        for name in CRITICS:
            self._critics[name] = self._fitted(self.settings(name), played)

    def _fitted(self, settings: Training, played: Sequence[Trajectory]) -> Learner:
        learner = self._learner(Critic(self.policy.model))
        assert learner.critic is not None
        optimiser = adamw(learner.critic, settings.critic_learning_rate, weight_decay=0.0)
        rows, generator = shaped(played, settings), torch.Generator().manual_seed(0)
        batch, unused = Batch.of(rows), torch.zeros(len(rows))
        for _ in range(CRITIC_EPOCHS):
            targets = targets_of(learner, batch, rows, unused, settings)
            for chosen in torch.randperm(len(rows), generator=generator).split(settings.minibatch):
                part = batch.rows(chosen)
                old, returns, mask = (
                    targets[key][chosen, : part.ids.shape[1]] for key in ("values", "returns", "critic_mask")
                )
                optimiser.zero_grad()
                algo.value_loss(learner.critic(part), old, returns, mask).backward()
                optimiser.step()
        return learner

    def _learner(self, critic: Critic | None = None) -> Learner:
        unused = adamw(self.policy.model, 1e-3, weight_decay=0.0)
        return Learner(self.policy.model, unused, self.bias, critic)

    def advantages(self, name: str, played: Sequence[Trajectory], batch: Batch) -> tuple[Tensor, Tensor]:
        """An estimator's advantages of the sampled tokens, and the weights of their log-probs in its gradient.

        Both are float (rows, width). The gradient is the one that the first step of an update goes up.
        """
        settings = self.settings(name)
        iteration = Iteration.score_and_filter(0, played, [self.env.name] * (len(played) // GROUP_SIZE), settings, 0)
        learner = self._critics.get(name) or self._learner()
        found = torch.zeros_like(batch.log_probs)
        if not iteration.rows:  # nothing to learn from
            return found, found
        rows, whole = iteration.update_on
        targets = targets_of(learner, batch, rows, whole, settings)
        log_probs = batch.log_probs.clone().requires_grad_()
        divisors = Divisors.of(batch.sampled, targets["mask"], settings)
        terms, _ = loss_terms(log_probs, found, batch.sampled, targets, settings, divisors, length=learner.longest)
        (weights,) = torch.autograd.grad(terms["policy"], log_probs)
        return targets["advantages"], -weights

    def true_advantages(self, played: Sequence[Trajectory], batch: Batch) -> tuple[Tensor, Tensor]:
        """The true advantages of the sampled tokens, and where their sign is known; (rows, width) each."""
        bounds = np.zeros((*batch.ids.shape, 2))
        for row, episode in enumerate(played):
            for turn, end in enumerate(episode.turn_ends):
                first = max(start for start in (episode.contexts or (0,)) if start <= end)
                begun = first + int(episode.sampled[first:].argmax())
                prompt, reply = tuple(episode.ids[first:begun].tolist()), tuple(episode.ids[begun : end + 1].tolist())
                key = episode.level_id, turn, prompt
                state = self._states.get(key)
                if state is None:  # so unlikely that the exact solution leaves it out
                    continue
                if (*key, reply) not in self._true:
                    self._true[(*key, reply)] = token_advantages(state, reply)
                bounds[row, begun : end + 1] = self._true[(*key, reply)]
        low, high = (torch.tensor(bounds[..., end], dtype=torch.float32) for end in (0, 1))
        return (low + high) / 2, (low > LEAST) | (high < -LEAST)

    def gradients(self, batch: Batch, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradients, float (parameters,) each, of sums of weighted log-probs."""
        parameters = [each for each in self.policy.model.parameters() if each.requires_grad]
        sums = {name: torch.zeros_like(self.truth) for name in weights}
        for rows in passes(self.policy.model, batch):
            part = batch.rows(rows)
            scores = sampled_scores(self.policy.model, part, self.bias, self.temperature).log_probs
            for name, each in weights.items():
                along = each[rows, : part.ids.shape[1]]
                sums[name] += _flat(torch.autograd.grad(scores, parameters, along, retain_graph=True))
        return sums

    def measure(
        self,
        groups: Sequence[Sequence[Trajectory]],
        names: Sequence[str] = ROWS,
        tick: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Figures of some estimators on some batches of episodes; lists have an entry for each batch.

        Args:
            groups: the episodes of each batch. Rollout trees are grown on as many groups of their own.
            names: of the estimators, of ``ROWS``.
            tick: called after each batch.

        Returns:
            ``tokens``, the sampled ones; ``known``, the share of them whose true sign is known; and by estimator
            ``along``, the part of its gradient along the exact one, ``norm2``, its square, and ``with_sum``, its
            product with the sum over the batches, all in units of the exact gradient; ``sign`` and ``rank``, see
            ``_agreement``. Trees have ``tokens`` of their own.
        """
        found: dict[str, Any] = {name: {"sign": [], "rank": []} for name in names}
        vectors: dict[str, list[Tensor]] = {name: [] for name in found}
        tokens, tree_tokens, shares = [], [], []
        for number, played in enumerate(groups):
            batch = Batch.of(played)
            true, known = self.true_advantages(played, batch)
            estimated = {name: self.advantages(name, played, batch) for name in names if name not in (TREE, TRUE)}
            if TRUE in names:
                estimated[TRUE] = true, true / len(played)
            self._compare(batch, estimated, true, known, vectors, found)
            if TREE in names:
                size = len(played) // GROUP_SIZE
                tree = self.grow(size, 100 * size + number)
                grown = Batch.of(tree)
                own = pad_sequence([torch.tensor(each) for each in own_tokens(tree, self.branches)], batch_first=True)
                true, known_too = self.true_advantages(tree, grown)
                self._compare(grown, {TREE: self.advantages(TREE, tree, grown)}, true, known_too & own, vectors, found)
                tree_tokens.append(int(own.sum()))
            tokens.append(int(batch.sampled.sum()))
            shares.append(float(known.sum() / batch.sampled.sum()))
            tick()
        if TREE in names:
            found[TREE]["tokens"] = tree_tokens
        unit = self.truth / self.truth.norm()
        for name, each in vectors.items():
            rows = torch.stack(each)
            found[name] |= {
                "along": (rows @ unit).tolist(),
                "norm2": rows.square().sum(1).tolist(),
                "with_sum": (rows @ rows.sum(0)).tolist(),
            }
        return {"tokens": tokens, "known": shares, "estimators": found}

    def _compare(
        self,
        batch: Batch,
        estimated: Mapping[str, tuple[Tensor, Tensor]],
        true: Tensor,
        known: Tensor,
        vectors: Mapping[str, list[Tensor]],
        found: Mapping[str, Any],
    ) -> None:
        """Add a batch's gradients, and the agreement of its advantages with the true ones, by estimator."""
        for name, gradient in self.gradients(batch, {k: weights for k, (_, weights) in estimated.items()}).items():
            vectors[name].append(gradient / self.truth.norm())
            sign, rank = _agreement(estimated[name][0][known], true[known])
            found[name]["sign"].append(sign)
            found[name]["rank"].append(rank)


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.flatten() for each in parts])


def _agreement(estimated: Tensor, true: Tensor) -> tuple[float, float]:
    """Share of right signs, and rank correlation; one half and 0 where nothing differs."""
    if not len(true):
        return 0.5, 0.0
    sign = float(((estimated.sign() * true.sign() + 1) / 2).mean())
    constant = len(estimated.unique()) < 2 or len(true.unique()) < 2
    return sign, 0.0 if constant else float(spearmanr(estimated.numpy(), true.numpy()).statistic)
