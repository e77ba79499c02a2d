"""Experiments as data: a table of configurations with some seeds each, trained by the local trainer and evaluated.

``tables/NAME.toml`` holds an experiment: its question, the claim under test, what would count as evidence, the settings
of its arms and the comparisons between them. ``spec`` reads it, ``plan`` makes the runs, ``runner`` plays what is
missing of them in processes of ``worker``, ``metrics`` and ``hypothesis_tests`` turn run folders into numbers with
intervals and into verdicts, ``plots``, ``page`` and ``overview`` write them down. No sentence about a result is written
in a table: all follow from the intervals.

``python -m benchmarks.experiments --list`` names the experiments; ``ragen-agent experiment`` is the same command.
"""
