"""What an iteration is measured by beside its training, what each measurement costs, and when a run is given up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ragen_agent.algo import spread_stop, validation_stop
from ragen_agent.config import Config
from ragen_agent.local.policy_update import Learner
from ragen_agent.local.probes import gradient_figures, information_figures, rollout_entropy
from ragen_agent.token_mdp import Trajectory
from ragen_agent.training.alarm import Sign, signs_at
from ragen_agent.training.console import Display
from ragen_agent.training.evaluation import fixed_instances, play_fixed, rate_of_played
from ragen_agent.training.iteration import ScoredGroups
from ragen_agent.training.policy import Policy
from ragen_agent.training.replies import reply_figures
from ragen_agent.training.run_folder import RunFolder
from ragen_agent.training.tasks import make_env
from ragen_gym.core.storage import read_json_lines

__all__ = ["Monitor"]

T = TypeVar("T")


class Monitor:
    """The diagnostics of a run; `records` are the iterations written down so far."""

    def __init__(self, config: Config, agent: Policy, folder: RunFolder, display: Display) -> None:
        self.config, self.agent, self.display = config, agent, display
        self.records: list[dict[str, Any]] = read_json_lines(folder.metrics)
        self._costs: dict[str, float] = {}
        stops = config.stops
        self.validator = replace(
            agent,
            config=replace(
                config, evaluation=replace(config.evaluation, split="validation", levels=stops.validation_levels)
            ),
        )
        if stops.validate_every:
            self.instances = fixed_instances(make_env(self.validator.config, "validation"), stops.validation_levels)

    def before_update(
        self, policy: Learner, played: Sequence[Trajectory], scored: ScoredGroups, iteration: int
    ) -> dict[str, float]:
        """The measurements that need the policy that played."""
        settings, training = self.config.diagnostics, self.config.training
        figures = self._timed("replies", lambda: reply_figures(played, policy.piece))
        if _due(settings.entropy_every, iteration):
            figures |= self._timed("entropy", lambda: rollout_entropy(policy, played, training))
        if _due(settings.gradients_every, iteration):
            figures |= self._timed("gradients", lambda: gradient_figures(policy, played, scored, training))
        if _due(settings.information_every, iteration):
            figures |= self._timed("information", lambda: information_figures(policy, played, training, settings))
        return figures

    def after_update(self, record: dict[str, Any]) -> dict[str, Any]:
        """Validation and the alarm; each sign is told the first time."""
        found: dict[str, Any] = {}
        if _due(self.config.stops.validate_every, record["iteration"] + 1):
            rate = self._timed("validation", lambda: rate_of_played(play_fixed(self.validator, self.instances)))
            found["validation"] = rate.rate
        if self.config.diagnostics.alarm:
            known = {name for past in self.records for name in past.get("alarm", ())}
            signs = self._timed("alarm", lambda: signs_at([*self.records, record]))
            new = [sign for sign in signs if sign.name not in known]
            self._tell(new)
            found |= {"alarm": [sign.name for sign in new]} if new else {}
        return found

    def take_costs(self) -> dict[str, float]:
        """Seconds that each measurement took since the last call."""
        costs, self._costs = self._costs, {}
        return costs

    @property
    def reason(self) -> str:
        """Why to stop by the rules of `Config.stops`, or the empty text."""
        stops, done = self.config.stops, len(self.records)
        spreads = [record["spread"] for record in self.records]
        if stops.return_std_patience and spread_stop(
            spreads, first=stops.return_std_baseline, share=stops.return_std_share, patience=stops.return_std_patience
        ):
            return (
                f"Stopped after iteration {done}: for {stops.return_std_patience} iterations the spread of returns was "
                f"below {100 * stops.return_std_share:g} % of what it was in the first {stops.return_std_baseline}."
            )
        rates = [record["validation"] for record in self.records if "validation" in record]
        if stops.validation_patience and validation_stop(
            rates, floor=stops.validation_floor, times=stops.validation_patience
        ):
            return (
                f"Stopped after iteration {done}: {stops.validation_patience} validations in a row were below "
                f"{100 * stops.validation_floor:g} %."
            )
        return ""

    def _tell(self, signs: Sequence[Sign]) -> None:
        for sign in signs:
            self.display.say(str(sign))

    def _timed(self, name: str, measure: Callable[[], T]) -> T:
        started = time.monotonic()
        result = measure()
        self._costs[name] = time.monotonic() - started
        return result


def _due(every: int, iteration: int) -> bool:
    return bool(every) and iteration % every == 0
