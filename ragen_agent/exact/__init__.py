"""Exact values of a language-model policy: success, return, advantages and gradient without sampling.

For replies without thoughts and prompts of the current turn alone (``turns.think=false``, ``turns.history=0``) the
games are small enough to sum over all replies that a policy is likely to give. Every figure is an interval that holds
the true number; replies that are left out make it wider, never wrong.

- ``tree_reader.TreeReader(model, vocabulary_size, temperature)``: next-token distributions along trees of tokens.
- ``level.ExactLevel(env, chat, turns, instance)``: a level's states, prompts and transitions; ``level.check_exact``
  refuses what cannot be computed; ``level.QUANTITIES`` names the rows of arrays of values.
- ``policy_value.solve(reader, levels, mass=1e-3, by_reach=True)``: a ``LevelValue`` of each level, with a
  ``StateValue`` of each state that the policy reaches: its ``tree`` of replies, its ``weight``, V (``value``) and Q of
  each outcome of a reply (``outcome_values``).
- ``advantages.prefix_values(state)``: E[quantity | prefix] of every node of a tree.
- ``advantages.token_advantages(state, ids)``: the true advantage of each token of a reply.
- ``advantages.return_variance(found)``: of the variance of a level's returns, the policy's part and the noise's.
- ``advantages.exact_gradient(model, bias, temperature, found)``: the gradient of the exact return;
  ``advantages.gradient_batches(found)``: the same as rows and weights for a trainer's own scores.
- ``reply_tree.walk``: reply trees of prompts.

For replies with thoughts, ``thoughts.measure`` gives the distribution over answers after a thought is replaced.
"""
