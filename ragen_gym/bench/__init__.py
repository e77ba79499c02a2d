"""Benchmarks of anyone's agent, on levels that it cannot have seen.

A ``Suite`` is data: splits of frozen levels with their budgets (``suites``). An agent is anything that answers messages
or chooses moves (``agent``, ``agents``). The runner plays a suite and appends one ``EpisodeRecord`` an episode to a
file (``runner``, ``records``). Scores put success between random and optimal play on the same levels (``score``),
reports show it (``report``), and every record can be replayed (``verify``).
"""
