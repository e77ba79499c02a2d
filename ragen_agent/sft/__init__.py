"""Supervised fine-tuning: demonstrations of the oracle as conversations, trained on by trl, LoRA merged by peft.

`data` writes the conversations, `rows` makes the exact tokens of them that a rollout would have made, `train` trains,
and `merge` makes an adapter part of its model. What comes out is a folder that `ragen-agent train --model`,
`ragen-agent eval` and `ragen-gym bench run hf:` read.
"""
