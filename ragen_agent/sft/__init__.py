"""Supervised fine-tuning: the warm start of ``ragen-agent train``, and ``ragen-agent sft``, by one loop.

``demonstrations`` lets an oracle play, writes conversations and reads them as exact tokens, ``trainer`` is the loop,
and ``fine_tune`` runs it on a file of conversations. The result is a folder for ``ragen-agent train --model``,
``ragen-agent eval`` and ``ragen-gym bench run hf:``.
"""
