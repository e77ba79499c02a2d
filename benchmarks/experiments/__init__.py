"""Experiments as data: a table of configurations, some seeds each, run by the local trainer, and what the runs say.

`tables/NAME.toml` holds an experiment: its question, the claim it goes back to, what would count as evidence, the
settings of its arms and the comparisons between them. `table` reads it, `plan` makes the runs, `runner` plays what is
missing of them, `measures` and `statistics` turn run folders into numbers with intervals, `findings` into sentences,
`figures` and `markdown` into pictures and pages. No sentence about a result is written in a table: all follow from
the intervals.
"""
