"""What holds for every declared setting, and what settings need of each other."""

from __future__ import annotations

import re
from math import inf, nan
from typing import Any

import pytest

from ragen_agent.cli.settings import catalog
from ragen_agent.config import Config, Training, with_settings
from ragen_agent.config.trainers import OPENRLHF, OpenRLHF
from ragen_gym.core.settings import Setting
from ragen_gym.core.turn_config import TurnConfig


def given(name: str, value: Any) -> object:
    """The settings with one of them changed."""
    table, _, field = name.rpartition(".")
    if table == OPENRLHF:
        return with_settings(OpenRLHF(), {field: value}, "openrlhf.")
    return with_settings(Config(), {table: {field: value}} if table else {field: value})


def outside(each: Setting) -> list[Any]:
    """Values of the right type just out of range."""
    if each.choices:
        return [-7 if isinstance(each.default, int) else "no such choice"]
    whole = each.type is int or each.type == int | None
    ends = [
        *([each.low - (1 if whole else 1e-6)] if each.low is not None else []),
        *([each.high + (1 if whole else 1e-3)] if each.high not in (None, inf) else []),
        *(end for end in (each.above, each.below) if end is not None),
    ]
    found = [int(end) if whole else float(end) for end in ends]
    return found if whole or each.type is not float else [*found, nan, *([] if each.high == inf else [inf])]


NUMBERED = [(name, value) for name, each in catalog().items() for value in outside(each)]
WRONG = {int: "3", float: "3", bool: 1, str: 3, list: "a", dict: [1]}


@pytest.mark.parametrize(("name", "value"), NUMBERED, ids=str)
def test_a_value_out_of_range_is_refused_by_its_full_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(name)} is .*; (it must be|choose)"):
        given(name, value)


@pytest.mark.parametrize("name", catalog())
def test_a_setting_says_what_it_is_and_refuses_another_type(name: str) -> None:
    each = catalog()[name]
    assert each.doc
    assert each.allows(each.default) or (each.default == "" and each.empty)
    with pytest.raises(ValueError, match=f"^{re.escape(name)} is "):
        given(name, WRONG[type(each.default)])
    if each.meanings:
        assert all(each.meanings.values())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gmae": "Bandit"}, r"unknown setting 'gmae'.*Did you mean game\?"),
        ({"training": {"learning_rat": 1.0}}, r"'training\.learning_rat'.*Did you mean learning_rate\?"),
        ({"training": 3}, "training is 3; it must be a table"),
        ({"training": {"iterations": "many"}}, r"training\.iterations is 'many'; it must be an integer"),
        ({"training": {"algo": "trpo"}}, r"training\.algo is 'trpo'; choose one of grpo, ppo, dr_grpo"),
        ({"training": {"filter": "best"}}, r"training\.filter is 'best'; choose one of none, top, top_k, top_p"),
        ({"training": {"policy_loss": "gspo"}}, r"aggregation=sequence_mean \(got token_mean\)"),
        ({"training": {"correction_bounds": [2.0]}}, r"correction_bounds is \[2\.0\]; give a bound from 0 to 1 and"),
        (
            {"training": {"correction_bounds": ["a", "b"]}},
            r"bounds is \['a', 'b'\]; it must be a list, each item a number, such as",
        ),
        (
            {"training": {"policy_loss": "gspo", "aggregation": "sequence_mean", "correction": "clip"}},
            r"there is nothing to correct; use training\.correction=none",
        ),
        (
            {"training": {"policy_loss": "gspo", "aggregation": "sequence_mean", "groups_by": "state"}},
            r"training\.groups_by=state would be lost; use .* training\.groups_by=level",
        ),
        (
            {"training": {"groups_by": "tree"}},
            r"branches is \[\]; .* product is training.group_size, 8: such as \[4, 2\]",
        ),
        (
            {"training": {"groups_by": "tree", "branches": [1, 8]}},
            r"branches is \[1, 8\]; .* at least 2 in the first turn",
        ),
        ({"training": {"groups_by": "tree", "branches": [4]}}, r"branches is \[4\]; .* training.group_size, 8"),
        (
            {"training": {"groups_by": "tree", "branches": [2, 2, 2]}, "turns": {"max_turns": 2}},
            r"branches is \[2, 2, 2\], for more turns than turns\.max_turns, 2",
        ),
        (
            {"training": {"groups_by": "tree", "branches": [4, 2]}, "program": {"command": "agent"}},
            r"groups_by=tree plays the turns of an episode again .* use training\.groups_by=level",
        ),
        (
            {"training": {"policy_loss": "gspo", "aggregation": "sequence_mean", "algo": "ppo", "credit": "turn"}},
            r"training\.credit=turn would be lost; use .* training\.credit=trajectory",
        ),
        (
            {"training": {"group_size": 1, "algo": "arpo", "filter": "none", "refills": 2}},
            r"With 1 use training\.refills=0",
        ),
        ({"training": {"filter": "top_k"}}, r"keep is 0\.25; .* a whole number from 1 to training\.groups, 32"),
        ({"training": {"keep": 2.0}}, r"keep is 2; with training\.filter=top it must be above 0 and at most 1"),
        (
            {"training": {"filter": "top_p", "filter_statistic": "mean"}},
            r"'mean', which only orders .* use training\.filter=top, top_k, reverse, or",
        ),
        (
            {"training": {"loss_tokens": "reasoning"}, "turns": {"think": False}},
            r"training\.loss_tokens is 'reasoning', but with turns\.think=false",
        ),
        (
            {"training": {"algo": "ppo", "loss_tokens": "answer", "advantage_tokens": "reasoning"}},
            r"no token in the loss would have an advantage",
        ),
        ({"training": {"entropy_smoothing": 0.5, "entropy_bonus": 0.0}}, r"raise it, for example to 0\.001"),
        ({"training": {"zero_task_advantage": True, "entropy_bonus": 0.0}}, r"both are off; raise"),
        (
            {"training": {"zero_task_advantage": True, "algo": "ppo", "kl_kind": "k1"}},
            r"would remove the KL term too.* use training\.kl_place=loss",
        ),
        ({"training": {"overlong_buffer": 41}}, r"overlong_buffer is 41; it must be at most .*, 40"),
        (
            {"training": {"starpo_s": False, "kl_place": "loss"}},
            r"kl_kind is k1, .* use training\.kl_kind=k2 or k3, or",
        ),
        (
            {"games": [{"game": "Bandit", "turns": {"keep_thinking": False}}]},
            r"games gives Bandit turns whose keep_thinking is False, and the run's is True",
        ),
        (
            {"games": [{"game": "Bandit", "turns": {"prompt": "ragen-v1"}}]},
            r"whose reply_opening is '<think>', and the run's is ''.* choose keep_thinking, template_options, prompt",
        ),
        ({"games": [{"weight": 1.0}]}, r"games holds \{'weight': 1\.0\}; give tables with game"),
        ({"games": ["Sokoban"]}, r"games is \['Sokoban'\]; it must be a list, each item a table"),
        ({"games": [{"game": "Sokoban", "weight": 0}]}, r"games gives Sokoban the weight 0"),
        ({"curriculum": [{"iteration": 3, "env_options": {}}] * 2}, r"curriculum holds.*ascending"),
        ({"training": {"group_size": 1}}, r"training\.group_size is 1; it must be at least 2"),
        ({"small_model": {"hidden": 50}}, "multiple of 32"),
        ({"demonstrations": {"moves": []}}, r"demonstrations\.moves"),
        ({"lora": {"rank": 4, "targets": []}}, r"lora\.targets"),
        ({"stops": {"validation_levels": 3}}, r"no effect without stops\.validate_every; give that too"),
        ({"lora": {"alpha": 8.0}}, r"no effect without lora\.rank; give that too"),
    ],
)
def test_what_settings_need_of_each_other_is_said(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_settings(Config(), settings)


@pytest.mark.parametrize(
    ("unread", "choice", "reader"),
    [
        ({"gae_lambda": 0.9}, "algo=grpo", {"algo": "ppo"}),
        ({"credit": "turn"}, "algo=grpo", {"algo": "ppo"}),
        ({"advantage_tokens": "answer"}, "algo=grpo", {"algo": "ppo"}),
        ({"algo": "ppo", "advantage_length_weight": True}, "algo=ppo", {"algo": "grpo"}),
        ({"algo": "arpo", "groups_by": "state"}, "algo=arpo", {"algo": "rloo"}),
        ({"branches": [4, 2]}, "groups_by=level", {"groups_by": "tree"}),
        ({"algo": "ppo", "credit": "turn", "gamma": 0.9}, "credit=turn", {"credit": "bi_level"}),
        ({"algo": "ppo", "gamma_turn": 0.9}, "credit=trajectory", {"credit": "turn"}),
        ({"gamma_turn": 0.9}, "credit=trajectory", {"groups_by": "state"}),
        ({"filter": "none", "filter_statistic": "variance"}, "filter=none", {"filter": "top"}),
        ({"filter": "none", "filter_loss_scaling": "sqrt"}, "filter=none", {"filter": "top"}),
        ({"policy_loss": "cispo", "clip_low": 0.3}, "policy_loss=cispo", {"clip": "symmetric"}),
        ({"policy_loss": "kl_cov", "clip_high": 0.4}, "policy_loss=kl_cov", {"policy_loss": "cispo"}),
        ({"starpo_s": False, "clip_high": 0.4}, "clip=symmetric", {"clip": "higher"}),
        ({"kl": 0.01}, "kl_kind=none", {"kl_kind": "k3"}),
        ({"kl_place": "loss"}, "kl_kind=none", {"kl": 0.0}),
        ({"correction": "none", "correction_bounds": [0.5, 5.0]}, "correction=none", {"correction": ""}),
    ],
)
def test_a_setting_without_effect_is_refused(unread: dict[str, Any], choice: str, reader: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{[*unread][-1]} is .*, which has no effect with training.{choice}; leave"):
        Training(**unread)
    Training(**{**unread, **reader})


def test_a_setting_that_loses_its_effect_is_named() -> None:
    adapted = with_settings(Config(), {"lora": {"rank": 4, "alpha": 8.0}})
    with pytest.raises(ValueError, match=r"^lora\.alpha is 8\.0, which has no effect without lora\.rank"):
        with_settings(adapted, {"lora": {"rank": 0}})


def test_each_part_of_starpo_s_may_be_chosen_by_itself() -> None:
    both = Training()
    assert (both.filter_rule, both.kl_estimate, both.upper_clip) == ("top", "none", 0.28)
    vanilla = Training(starpo_s=False)
    assert (vanilla.filter_rule, vanilla.kl_estimate, vanilla.upper_clip) == ("none", "k1", 0.2)
    alone = Training(starpo_s=False, filter="top_p", kl_kind="none", clip="higher")
    assert (alone.filter_rule, alone.kl_estimate, alone.upper_clip) == ("top_p", "none", 0.28)
    assert Training(kl_kind="k2", kl=0.0).kl_estimate == "none"
    single = Training(group_size=1, algo="brpo", filter="none")
    assert with_settings(Config(), {"training": {"group_size": 1, "algo": "brpo", "filter": "none"}}).training == single


def test_an_option_of_a_turn_is_a_setting_by_itself() -> None:
    assert {f"turns.{name}" for name in TurnConfig.__dataclass_fields__} <= set(catalog())
    turns = with_settings(Config(), {"turns": {"grounding": True, "state_reward": 0.5}}).turns
    assert turns.of_environment(states_limit=False) == TurnConfig(grounding=True, state_reward=0.5)
    assert turns.of_environment(states_limit=True).max_tokens_per_turn == 40
    with pytest.raises(ValueError, match=r"turns\.state_reward=0\.5 has no effect"):
        given("turns.state_reward", 0.5)
