"""The checks, a row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import check_levels, check_play, check_robust, check_seeds, check_splits
from .context import Context
from .protocol import Outcome

__all__ = ["CHECKS", "SEVERITIES", "Check"]

#: From the gravest: a number that is reported is wrong; it may be wrong; good to know.
SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Check:
    """One question that is asked of every environment.

    ``run`` is None where the parent process answers, since it takes more than one process to tell.
    """

    id: str
    severity: str
    title: str  # what holds where it passes
    why: str
    fix: str
    run: Callable[[Context], Outcome] | None


_ROWS = (
    Check(
        "plays",
        "error",
        "Seeds and actions play without an exception",
        "One exception in thousands of episodes ends a run, or quietly removes the episodes that raise from the score.",
        "Handle every action that the environment itself offers, and every seed.",
        check_robust.plays,
    ),
    # seeds
    Check(
        "seed_repeats",
        "error",
        "The same seed gives the same episode",
        "Nobody can repeat a result, evaluate two models on the same levels, or debug a failed episode.",
        "Draw everything from one generator that reset(seed) makes, and pass the seed on to what the environment wraps.",
        check_seeds.seed_repeats,
    ),
    Check(
        "seed_varies",
        "note",
        "Different seeds give different episodes",
        "An agent can learn the one episode by heart; a mean over seeds is a mean over copies.",
        "Draw the level from the seed, or say in the documentation that there is one level.",
        check_seeds.seed_varies,
    ),
    Check(
        "seed_process",
        "error",
        "A seed gives the same episode in another process",
        "Workers of one run, and two runs, meet different levels under one seed; nothing can be repeated.",
        "Do not derive seeds from hash(), id(), the clock or the order of a set; use numpy.random.SeedSequence.",
        None,
    ),
    Check(
        "seed_threads",
        "error",
        "A seed gives the same episode in a thread",
        "Rollout workers are threads: what one draws depends on what the others draw at that moment.",
        "Keep a generator in each environment instead of seeding the global one.",
        check_seeds.seed_threads,
    ),
    Check(
        "seed_order",
        "error",
        "An episode does not depend on another environment that is played in turn with it",
        "A rollout plays many environments in turn: each changes what the others draw.",
        "Keep a generator in each environment, and no state in the class or the module.",
        check_seeds.seed_order,
    ),
    Check(
        "reset_clean",
        "error",
        "A reset leaves nothing of the episodes before",
        "The n-th episode depends on how the earlier ones were played; prompts grow with what is long over.",
        "Set all state of an episode in reset, wrappers included.",
        check_seeds.reset_clean,
    ),
    Check(
        "global_random_read",
        "error",
        "The global random generators do not decide an episode",
        "Any library that draws a number in between, or another worker, changes the episode of a seed.",
        "Replace random.* and numpy.random.* by methods of a generator of the environment's own.",
        check_seeds.global_random_read,
    ),
    Check(
        "global_random_moved",
        "warning",
        "The global random generators are left alone",
        "A reset that seeds them repeats the trainer's own sampling and shuffling: the same exploration again and again.",
        "Make a generator of the environment's own from the seed: numpy.random.default_rng(seed) or random.Random(seed).",
        check_seeds.global_random_moved,
    ),
    # groups
    Check(
        "group_level",
        "error",
        "Members of a group that share a seed meet one level",
        "Group-relative advantages (GRPO, RLOO) compare returns on one level; on different levels an easy one counts as a good reply.",
        "Make the level a function of the seed alone, and let reset take the seed of the group.",
        check_seeds.group_level,
    ),
    Check(
        "group_noise",
        "note",
        "Members of a group can share the level without sharing its noise",
        "With shared noise a group's returns differ by the actions under one draw only, and filters by return std "
        "choose the draws in which risk happened to pay.",
        'Take a seed of the dynamics of its own, such as reset(seed=s, options={"noise_seed": k}).',
        check_seeds.group_noise,
    ),
    # levels
    Check(
        "split_exact",
        "error",
        "Training and test share no level",
        "The test measures memory of training levels.",
        "Decide the split by a hash of the level, not by the seed, and draw again what falls on the other side.",
        check_splits.split_exact,
    ),
    Check(
        "split_symmetry",
        "warning",
        "No level of the test is a rotation or reflection of one of training",
        "A rotated board is the same task; the test is easier than it says.",
        "Decide the split by a hash of the canonical form, the smallest of the eight rotations and reflections.",
        check_splits.split_symmetry,
    ),
    Check(
        "split_near",
        "note",
        "No level of the test is next to one of training",
        "A board with the player one cell further, or a question with its numbers in another order, is no new task.",
        "Decide the split by what stays when the player's place, or the order of words, is taken away.",
        check_splits.split_near,
    ),
    Check(
        "levels_repeat",
        "warning",
        "Seeds far apart give different levels",
        "Without a declared split, training and test are ranges of seeds, and these levels are in both.",
        "Declare splits by the level's hash, or say how many levels there are and how they are to be divided.",
        check_splits.levels_repeat,
    ),
    Check(
        "levels_solvable",
        "error",
        "Levels can be solved, and the environment's own answers are right",
        "No agent can reach the best score; the distance to it says nothing.",
        "Solve each level when it is generated, and draw again those that have no solution.",
        check_levels.levels_solvable,
    ),
    Check(
        "levels_trivial",
        "warning",
        "Levels take more than one action",
        "An agent that knows nothing succeeds; differences between agents vanish.",
        "Generate levels by the length of their shortest solution.",
        check_levels.levels_trivial,
    ),
    # observations
    Check(
        "observation_in_space",
        "error",
        "Observations lie in the declared space",
        "Vector environments and networks are sized by the space: they cut, overflow or fail.",
        "Declare the space with the dtype, shape and limits that observations have.",
        check_play.observation_in_space,
    ),
    Check(
        "observation_aliased",
        "error",
        "An observation stays as it was given",
        "Replay buffers hold one array many times: every stored observation is the last one.",
        "Return a copy of the array.",
        check_play.observation_aliased,
    ),
    Check(
        "text_parses",
        "warning",
        "A text observation reads back as the state that it shows",
        "No agent can distinguish two states that look alike.",
        "Give each state a symbol of its own, such as a player who stands on a target.",
        check_play.text_parses,
    ),
    Check(
        "text_hides_state",
        "note",
        "Equal observations and actions have equal results",
        "The task is partially observable: an agent that is shown the last observation alone cannot know what to do.",
        "Show the whole state, or say that the agent needs its history.",
        check_play.text_hides_state,
    ),
    # rewards
    Check(
        "reward_finite",
        "error",
        "Rewards are finite numbers",
        "One NaN ends a training run, or spoils it silently.",
        "Return a float, and check divisions.",
        check_play.reward_finite,
    ),
    Check(
        "reward_idle",
        "error",
        "Doing nothing earns nothing",
        "A collapsed policy that answers nothing still scores, and training moves towards it.",
        "Give no reward to an empty or malformed reply.",
        check_play.reward_idle,
    ),
    Check(
        "reward_constant",
        "warning",
        "No single action or answer solves levels",
        "A policy that ignores what it is shown scores as well as one that understands it.",
        "Balance the levels, and score the answer instead of searching for it in the reply.",
        check_play.reward_constant,
    ),
    Check(
        "reward_random",
        "warning",
        "Random play does not solve most levels",
        "Rates near that of random play look like skill.",
        "Make the levels harder or the budget of actions smaller, and print the random rate beside every result.",
        check_play.reward_random,
    ),
    Check(
        "reward_after_end",
        "warning",
        "Actions after the end earn nothing",
        "A loop that misses the end adds rewards of an episode that is over.",
        "Refuse actions until the next reset, as gymnasium.wrappers.OrderEnforcing does before the first.",
        check_play.reward_after_end,
    ),
    # info and masks
    Check(
        "info_success",
        "error",
        "info says success where the episode ends with it",
        "Success rates are computed from it.",
        "Set it from the state after the action, and only at the end.",
        check_play.info_success,
    ),
    Check(
        "info_effective",
        "warning",
        "What info says of an action's effect is true",
        "Metrics and penalties of ineffective actions are computed from it.",
        "Compare the whole state before and after, not one part of it, and copy arrays before comparing.",
        check_play.info_effective,
    ),
    Check(
        "mask_matches",
        "warning",
        "The action mask is 1 exactly for actions that change something",
        "Masked policies cannot choose a useful action, or waste their budget on one that does nothing.",
        "Compute the mask from the same function that plays the action.",
        check_play.mask_matches,
    ),
    # robustness and cost
    Check(
        "action_in_space",
        "error",
        "Every action of the declared space is taken",
        "A policy that samples from the space ends the run with an exception.",
        "Handle every action of the space, or declare a smaller one.",
        check_robust.action_in_space,
    ),
    Check(
        "action_out_of_range",
        "warning",
        "An action outside the space is not played",
        "An index of -1 plays the last action, and an error of the agent's program goes unnoticed.",
        "Check action_space.contains(action) first and raise.",
        check_robust.action_out_of_range,
    ),
    Check(
        "exception_state",
        "error",
        "An action that raises leaves the episode as it was",
        "One malformed reply silently costs a step or corrupts the episode.",
        "Check the action before anything is changed.",
        check_robust.exception_state,
    ),
    Check(
        "resources",
        "warning",
        "Closed environments leave nothing open",
        "A run that makes thousands of environments ends with 'too many open files'.",
        "Close files, sockets, pools and threads in close().",
        check_robust.resources,
    ),
    Check(
        "memory",
        "warning",
        "Memory does not grow with the number of episodes",
        "A long run is killed, after hours, for lack of memory.",
        "Clear histories in reset, and bound caches.",
        check_robust.memory,
    ),
    Check(
        "speed",
        "note",
        "Resets and steps are fast",
        "The environment, not the model, sets the time of training.",
        "Generate levels ahead, cache what does not change, and avoid drawing pictures that nobody asked for.",
        check_robust.speed,
    ),
    Check(
        "process_survives",
        "error",
        "The environment does not end its process or hang",
        "One episode ends all episodes of a rollout worker.",
        "Raise an exception instead of calling exit, and bound loops that draw until something fits.",
        None,
    ),
)

CHECKS: dict[str, Check] = {check.id: check for check in _ROWS}
