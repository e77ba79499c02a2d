"""Demonstrations of an oracle with deliberate faults, and conversations on disk, as tokens of a rollout.

The demonstrator knows the best moves; ``Demonstrations`` sets its faults: the number of moves in a reply, and the
chances of a random move or a random reply. FrozenLake's mostly replies with one move, so the turns run out on long
paths, and only the reward shows the learner that long replies pay.

A line of a file of conversations holds ``messages``, from the system message to the last reply, and their origin:
``env``, ``env_options`` and ``turns`` (the budgets), ``split`` (always train), ``seed``, ``noise_seed``, ``level_id``,
the demonstrator's settings, the ``run_seed`` and ``index``; and the outcome: ``success`` and ``return``. A game without
options has no ``env_options``: other libraries read the format too, and Parquet has no type for an empty table. With
the same settings, the warm start of ``ragen-agent train`` shows the same demonstrations, episode by episode (if they
fit its token budgets).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ragen_agent.config import Config, Demonstrations
from ragen_agent.run.console import Display
from ragen_agent.run.evaluation import baseline_notices, baselines, scripted_rate
from ragen_agent.run.policy import Policy
from ragen_agent.tasks.demo_thoughts import thinking
from ragen_agent.tasks.tasks import SeedStream, all_settings, derive_seed, draw_games, games_at, make_env
from ragen_agent.tokens.chat import ChatFormat
from ragen_agent.tokens.rollout import Instance
from ragen_agent.tokens.token_mdp import TokenMDP
from ragen_agent.tokens.trajectory import Trajectory
from ragen_gym.core.command_line import shell_word
from ragen_gym.core.stats import Rate
from ragen_gym.core.storage import json_line, read_json_lines, write_atomic
from ragen_gym.envs.policies import plan_moves
from ragen_gym.envs.reply import write_reply
from ragen_gym.envs.reply_env import ReplyEnv
from ragen_gym.envs.task import TaskEnv, make_reply_env
from ragen_gym.envs.turn import TurnEnv
from ragen_gym.games.registry import find, task_of

SPLIT = "train"
CHUNK = 500  # demonstrations from one generator, and between two reports of progress


def faultless(config: Config) -> Demonstrations:
    """The demonstrator without its faults: the maximum moves per reply in each game, none drawn at random."""
    most = max(game.turns.max_actions_per_turn for game in all_settings(config))
    return replace(config.demonstrations, moves=[0.0] * (most - 1) + [1.0], mistakes=0.0, quality=1.0)


def scripted_reply(env: ReplyEnv, how: Demonstrations, rng: np.random.Generator) -> str:
    """The demonstrator's reply in this state.

    In a text task it is the task's best reply, or, by ``quality`` and ``mistakes``, a random reply of the task.

    Raises:
        ValueError: an unknown thought, or a text task without a needed oracle or random reply.
    """
    if isinstance(env, TaskEnv):
        wrong = rng.random() >= how.quality or rng.random() < how.mistakes
        return env.random_reply(rng) if wrong else env.optimal_reply()
    assert isinstance(env, TurnEnv)
    probabilities = np.asarray(how.moves) / sum(how.moves)
    moves = min(1 + int(rng.choice(len(probabilities), p=probabilities)), env.max_actions_per_turn)
    # At full quality nothing is drawn, so the episodes are the same as without the setting.
    knows = how.quality >= 1 or rng.random() < how.quality
    actions = plan_moves(env, moves, how.mistakes if knows else 1.0, rng)
    return thinking(env, how.thought, actions) + write_reply([env.action_names[action] for action in actions])


def demonstrate(process: TokenMDP, instances: Sequence[Instance], how: Demonstrations, seed: int) -> list[Trajectory]:
    """Episodes with the demonstrator's replies as the sampled tokens (their log-probs are 0).

    Raises:
        ValueError: an unknown thought, or a reply longer than ``max_tokens_per_turn`` or the rest of
            ``max_tokens_per_episode``.
    """
    env, chat = process.env.unwrapped, process.chat
    assert isinstance(env, ReplyEnv)
    rng = np.random.default_rng(seed)
    trajectories = []
    for instance in instances:
        process.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
        while not process.done:
            ids = chat.reply_ids(scripted_reply(env, how, rng))
            if len(ids) > process.max_tokens_per_turn:
                raise ValueError(
                    f"a reply has {len(ids)} tokens, turns.max_tokens_per_turn is {process.max_tokens_per_turn}; "
                    "raise it, or demonstrate shorter replies."
                )
            if len(ids) > (left := process.max_tokens_per_episode - len(process.ids)):
                raise ValueError(
                    f"a reply has {len(ids)} tokens, and turns.max_tokens_per_episode={process.max_tokens_per_episode} "
                    f"leaves {left} for it; raise it, or demonstrate shorter replies."
                )
            process.append_reply(ids, [0.0] * len(ids))
        trajectories.append(process.trajectory())
    return trajectories


@dataclass(frozen=True)
class Chunk:
    """Demonstrations drawn one after the other from one generator."""

    config: Config  # the settings of their game
    how: Demonstrations  # the demonstrator
    indices: list[int]  # their places among all demonstrations
    instances: list[Instance]  # the episodes, one for each index
    seed: int  # the generator's seed


def chunks(config: Config, how: Demonstrations) -> Iterator[Chunk]:
    """All ``how.episodes`` demonstrations: levels of the run's first games, by their weights."""
    rng = np.random.default_rng(derive_seed(config.seed, SeedStream.DEMONSTRATIONS))
    instances = [Instance(int(s), i) for i, s in enumerate(rng.integers(2**62, size=how.episodes))]
    shares = games_at(config, 0)
    drawn = draw_games(shares, config.seed, 0, len(instances))
    for game, share in enumerate(shares):
        demonstrator = replace(how, thought=share.config.demonstrations.thought)
        of_game = np.flatnonzero(drawn == game).tolist()
        for start in range(0, len(of_game), CHUNK):
            indices = of_game[start : start + CHUNK]
            path = (start,) if len(shares) == 1 else (start, 1 + game)
            seed = derive_seed(config.seed, SeedStream.DEMONSTRATOR, *path)
            yield Chunk(share.config, demonstrator, indices, [instances[index] for index in indices], seed)


def generate_demonstrations(config: Config, policy: Policy, how: Demonstrations, display: Display) -> list[Trajectory]:
    """``how.episodes`` demonstrations on training levels of the run's first games, by their weights."""
    episodes: dict[int, Trajectory] = {}
    process, game = None, None
    with display.progress("demonstrations", how.episodes):
        for chunk in chunks(config, how):
            if process is None or chunk.config != game:
                process, game = replace(policy, config=chunk.config).processes("train", 1)[0], chunk.config
            played = demonstrate(process, chunk.instances, chunk.how, chunk.seed)
            episodes.update(zip(chunk.indices, played, strict=True))
            display.advance({}, len(chunk.indices))
    return [episodes[index] for index in range(how.episodes)]


def demonstrated_families(config: Config) -> Iterator[int]:
    """The family (``ragen_gym.games.game.Game.family``) of the level of each demonstration of the warm start."""
    for chunk in chunks(config, config.demonstrations) if config.warm_start.epochs else ():
        yield from make_env(chunk.config, SPLIT).level_families(instance.seed for instance in chunk.instances)


def demonstrator_rate(how: Demonstrations, env: ReplyEnv, instances: list[Instance]) -> Rate:
    """The success rate of the demonstrator on fixed levels."""
    seed = derive_seed(0, SeedStream.DEMONSTRATOR_RATE)
    return scripted_rate(env, instances, lambda env, rng: scripted_reply(env, how, rng), seed)


def measure_baselines(
    config: Config, env: ReplyEnv, instances: list[Instance], summary: dict[str, Any], display: Display
) -> None:
    """Adds to a run's summary, and shows, the baselines and the demonstrator's rate, if it has none yet."""
    rates: dict[str, Rate] = {}
    if "optimal" not in summary:
        rates = baselines(env, instances)
        for notice in baseline_notices(env, instances):
            display.say(notice)
    if config.warm_start.epochs and "demonstrator" not in summary:
        rates["demonstrator"] = demonstrator_rate(config.demonstrations, env, instances)
    for name, rate in rates.items():
        summary[name] = rate.to_dict()
        display.rate(name, summary[name])


def write_conversations(config: Config, path: Path, display: Display) -> dict[str, int]:
    """Writes ``config.demonstrations.episodes`` conversations into a new file; returns ``episodes`` and ``successes``.

    Raises:
        ValueError: ``path`` exists, or settings do not fit.
    """
    if config.turns.history != -1:
        raise ValueError(
            f"turns.history is {config.turns.history}, but a conversation shows every turn; leave it out for sft data."
        )
    if any(game.turns.sees for game in all_settings(config)):
        raise ValueError(
            "turns.observation asks for pictures, which a file of conversations does not hold; use text, or the warm "
            "start of ragen-agent train, which draws them."
        )
    if path.exists():
        raise ValueError(f"{path} exists already; choose another name, or remove it.")
    how, lines = config.demonstrations, list[dict[str, Any]]()
    with display.progress("conversations", how.episodes):
        for chunk in chunks(config, how):
            lines += _conversations(config, chunk)
            display.advance({}, len(chunk.indices))
    write_atomic(path, b"".join(map(json_line, sorted(lines, key=lambda line: line["index"]))))
    return {"episodes": len(lines), "successes": sum(line["success"] for line in lines)}


def check_data(path: Path) -> None:
    """Raises a ValueError if the file of conversations is missing."""
    if not path.is_file():
        raise ValueError(
            f"--data {path}: there is no such file; make one with ragen-agent sft data --out {shell_word(path)}"
        )


def read_conversations(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of conversations.

    Raises:
        ValueError: a missing or empty file, or a line without a conversation of system (optional), user, assistant,
            user, assistant and so on, the last message the assistant's.
    """
    check_data(path)
    lines = read_json_lines(path)
    if not lines:
        raise ValueError(f"--data {path} is empty; make one with ragen-agent sft data.")
    for number, line in enumerate(lines, start=1):
        messages = line.get("messages") if isinstance(line, dict) else None
        if not isinstance(messages, list) or not _fits(messages):
            raise ValueError(
                f"--data {path}, line {number}: messages must be system (or none), user, assistant, user, assistant, "
                "..., each with a content, and end with the assistant."
            )
    return lines


def families_of(lines: Sequence[Mapping[str, Any]]) -> frozenset[int] | None:
    """The families (``ragen_gym.games.game.Game.family``) of the conversations' levels.

    None unless every line names its environment and level, as ``write_conversations`` does.
    """
    envs: dict[str, ReplyEnv] = {}
    families = set[int]()
    for line in lines:
        try:
            split, options = line["split"], line.get("env_options", {})
            name = json.dumps([line["env"], options, split])
            if name not in envs:
                # Never imports a module or calls a function that only a file names.
                known = line["env"] if task_of(line["env"]) else find(line["env"]).name
                envs[name] = make_reply_env(known, split=split, **options)
            _, info = envs[name].reset(seed=line["seed"])
            if info["level_id"] != line["level_id"]:
                return None
            families.update(envs[name].level_families([line["seed"]]))
        except (KeyError, TypeError, ValueError):
            return None
    return frozenset(families)


def trajectory_of(chat: ChatFormat, line: Mapping[str, Any]) -> Trajectory:
    """A conversation as a rollout in which the assistant's messages were sampled; its rewards are 0.

    The ids come from ``ChatFormat``, piece by piece as in ``TokenMDP``: prompt, reply and its end token, glue, reply
    and its end token. With ``ChatFormat.drops_thinking``, each turn whose past the template rewrites begins a new
    context.
    """
    messages = line["messages"]
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    first, *turns = messages[1:] if messages[0]["role"] == "system" else messages
    ids = chat.prompt_ids(system, first["content"])
    sampled = [False] * len(ids)
    ends, contexts = [], [0]
    for number, message in enumerate(turns, start=len(messages) - len(turns)):
        written = message["role"] == "assistant"
        new = chat.reply_ids(message["content"]) if written else chat.glue_ids(message["content"])
        if chat.drops_thinking and not written:
            prompt = chat.conversation_ids(messages[: number + 1])
            if prompt != ids[contexts[-1] :] + new:
                contexts.append(len(ids))
                new = prompt
        ids += new
        sampled += [written] * len(new)
        if written:
            ends.append(len(ids) - 1)
    return Trajectory(
        ids=np.array(ids, dtype=np.int64),
        sampled=np.array(sampled, dtype=np.bool_),
        log_probs=np.zeros(len(ids), dtype=np.float32),
        turn_ends=tuple(ends),
        turn_rewards=(0.0,) * len(ends),
        terminated=True,
        truncated=False,
        success=bool(line.get("success", False)),
        failure=None,
        level_id=str(line.get("level_id", "")),
        seed=line.get("seed"),
        messages=tuple(messages),
        contexts=tuple(contexts) if len(contexts) > 1 else (),
    )


def trajectories_of(
    chat: ChatFormat, lines: Sequence[Mapping[str, Any]], max_tokens: int, *, successes_only: bool = False
) -> tuple[list[Trajectory], dict[str, int]]:
    """The conversations as trajectories, and the numbers left out: ``too_long`` and ``failures``.

    Raises:
        ValueError: none is left, or a line cannot be encoded, such as a reply that spells a special token.
    """
    kept, rows = 0, []
    for number, line in enumerate(lines, start=1):
        if successes_only and not line.get("success", False):
            continue
        kept += 1
        try:
            row = trajectory_of(chat, line)
        except ValueError as error:
            raise ValueError(f"line {number} of the conversations: {error}") from None
        if max(len(part.ids) for part in row.split_contexts()) <= max_tokens:
            rows.append(row)
    left_out = {"too_long": kept - len(rows), "failures": len(lines) - kept}
    if not rows:
        raise ValueError(
            f"no conversation is left: {left_out['too_long']} are longer than {max_tokens} tokens, "
            f"{left_out['failures']} did not succeed; raise --max-tokens, or leave out --successes-only."
        )
    return rows, left_out


def _conversations(config: Config, chunk: Chunk) -> Iterator[dict[str, Any]]:
    env, rng = make_env(chunk.config, SPLIT), np.random.default_rng(chunk.seed)
    for number, instance in enumerate(chunk.instances):
        _, info = env.reset(seed=instance.seed, options={"noise_seed": instance.noise_seed})
        earned = 0.0
        while not env.over:
            _, reward, _, _, info = env.step(scripted_reply(env, chunk.how, rng))
            earned += reward
        messages = list(info["messages"][:-1])  # without the last one, which has no reply
        outcome = {"level_id": info["level_id"], "success": bool(info["success"]), "return": earned}
        yield {"messages": messages, **_origin(config, chunk, number), **outcome}


def _origin(config: Config, chunk: Chunk, number: int) -> dict[str, Any]:
    instance, how = chunk.instances[number], asdict(chunk.how)
    episodes = how.pop("episodes")
    origin = {
        "env": chunk.config.game,
        "env_options": chunk.config.env_options,
        "turns": {name: value for name, value in asdict(chunk.config.turns).items() if value != {}},
        "split": SPLIT,
        "seed": instance.seed,
        "noise_seed": instance.noise_seed,
        "demonstrator": how,
        "model": config.model,
        "run_seed": config.seed,
        "index": chunk.indices[number],
        "of": episodes,
    }
    return {name: value for name, value in origin.items() if value != {}}


def _fits(messages: Sequence[Any]) -> bool:
    texts = all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages)
    roles = [m.get("role") for m in messages] if texts else []
    roles = roles[1:] if roles[:1] == ["system"] else roles
    expected = ["user", "assistant"] * (len(roles) // 2)
    return bool(roles) and roles == expected
