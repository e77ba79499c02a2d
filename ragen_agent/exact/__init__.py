"""Exact values of a language-model policy: success, return, advantages and gradient without sampling.

For replies without thoughts and prompts of the current turn alone (``turns.think=false``, ``turns.history=0``) the
games are small enough to sum over all replies that a policy is likely to give. Every figure is an interval that holds
the true number; replies that are left out make it wider, never wrong. ``policy_value.solve`` gives the values of
``level.ExactLevel``s, ``advantages`` what follows from them for training. For replies with thoughts,
``thoughts.measure`` gives the distribution over answers after a thought is replaced.
"""
