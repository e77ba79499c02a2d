"""Any data set of reasoning-gym (https://github.com/open-thought/reasoning-gym) as a text task of one turn."""

from __future__ import annotations

import string
from typing import Any

import gymnasium
from gymnasium import spaces

from ragen_gym.core.validation import did_you_mean
from ragen_gym.tasks.arithmetic import answer_of


class ReasoningGym(gymnasium.Env[str, str]):
    """A question of a data set of reasoning-gym; the reward of an answer is the data set's own score, 0 to 1.

    Only the full score is a success. ``optimal_reply`` is the answer that comes with the question; data sets without
    answers have no ``optimal_reply``. There are no random replies, because the form of an answer is unknown.

    ## Arguments
    dataset: the name of the data set, such as ``"chain_sum"``.
    config: its settings, such as ``{"max_terms": 3}``; its ``size`` and ``seed`` are set here.

    Raises:
        ImportError: reasoning-gym is not installed.
        ValueError: an unknown data set, or a setting that it does not accept.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(self, dataset: str = "chain_sum", config: dict[str, Any] | None = None) -> None:
        try:
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
        except ImportError as error:
            raise ImportError(f"{error}: pip install 'ragen-gym[tasks]' for the data sets of reasoning-gym.") from error
        if dataset not in DATASETS:
            hint = did_you_mean(str(dataset), DATASETS)
            raise ValueError(f"ReasoningGym: dataset={dataset!r} is none of reasoning-gym's {len(DATASETS)}.{hint}")
        self.dataset, self.config = dataset, dict(config or {})
        if own := {"size", "seed"} & self.config.keys():
            raise ValueError(f"ReasoningGym: leave {', '.join(sorted(own))} out of config: the seed decides.")
        self._create = reasoning_gym.create_dataset
        self._take(0)
        if self._entry["answer"] is not None:
            self.optimal_reply = self._known_answer
        self.instructions = "Answer the question. Reply with <answer>your answer</answer>."
        self.observation_space = self.action_space = spaces.Text(100_000, min_length=0, charset=string.printable)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The question."""
        super().reset(seed=seed)
        self._take(int(self.np_random.integers(2**31)) if seed is None else seed)
        return str(self._entry["question"]), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score the answer."""
        answer = answer_of(action)
        read = [None] if answer is None else [answer, answer.strip()]  # some scores count white space, some do not
        score = max(float(self._data.score_answer(each, self._entry)) for each in read)
        return f"Score: {score:g}.", score, True, False, {"success": score == 1}

    def _known_answer(self) -> str:
        return f"<answer>{self._entry['answer']}</answer>"

    def _take(self, seed: int) -> None:
        try:
            self._data = self._create(self.dataset, size=1, seed=seed, **self.config)
            self._entry: dict[str, Any] = self._data[0]
        except (AssertionError, TypeError) as error:
            raise ValueError(f"ReasoningGym: config={self.config!r} does not fit {self.dataset}: {error}.") from error
