"""The games in the libraries that train and evaluate language models: one adapter a library, all made of ``Rollout``.

Nothing here is imported by the rest of the package, and each module imports the library that it is for. ``ragen-gym
export-env`` writes the package that a hub asks for; it holds the game's facts and a few lines that import an adapter.

| module | for | what it gives |
|---|---|---|
| ``verifiers`` | verifiers, Environments Hub | a ``Taskset`` and an ``Env`` |
| ``openenv`` | OpenEnv | the server's ``Environment``, its app, a client |
| ``graders`` | OpenEnv's validation | checks of any OpenEnv server, by the audit and by replays |
| ``nemo``, ``nemo_fixture`` | NeMo Gym | a ``GymnasiumServer``; the cases of its verifier |
| ``ors`` | OpenReward | an ``Environment`` of the Open Reward Standard, its server |
| ``trl``, ``trl_rollout`` | TRL | ``environment_factory``; ``rollout_func`` |
| ``verl`` | verl | an ``AgentLoopBase``; ``rollout.verl_rows`` writes its data sets |
| ``molt`` | Molt | an ``Env`` and its ``StepEnvRunner``; ``molt_rows`` writes its data sets |
| ``skyrl`` | SkyRL-gym | a ``BaseTextEnv`` and its registration |
| ``atropos`` | Atropos | a ``BaseEnv`` |
| ``art`` | ART | an async rollout that returns a ``Trajectory`` |
| ``inspect`` | Inspect AI | a task for each suite of the benchmark |
| ``sb3`` | Stable-Baselines3 | a ``VecEnv`` over the native batch of single moves |
| ``requirement`` | these modules | what to install where a library is missing |
| ``token_rollout`` | trainers whose engines take ids and give ids | a ``Rollout`` as a row of ids with its mask |
"""

from ragen_gym.integrations.rollout import METRICS, Rollout, noise_seed_of, rows

__all__ = ["METRICS", "Rollout", "noise_seed_of", "rows"]
