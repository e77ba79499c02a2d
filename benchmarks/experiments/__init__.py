"""Experiments as data: a table of configurations with some seeds each, trained by the local trainer and evaluated.

``tables/NAME.toml`` holds an experiment: its question, the claim under test, what would count as evidence, the settings
of its arms and the comparisons between them. ``spec`` reads it and has the measures of a run, ``plan`` makes the runs,
``runner`` plays what is missing of them in processes, ``records`` keeps what pages are made of,
``hypothesis_tests`` turns measures into intervals and verdicts, ``plots`` and ``pages`` write them down. No sentence
about a result is written in a table: all follow from the intervals.

``python -m benchmarks.experiments --list`` names the experiments.
"""
