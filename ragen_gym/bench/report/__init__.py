"""Runs as one page to look at and as tables: scores, plots, and a viewer of every episode.

``benchmark_page`` makes the page, ``tables`` Markdown, CSV and JSON. The viewer's scripts under ``templates/`` know
nothing of benchmarks: what they show is documented in ``templates/viewer.js`` and filled in by ``viewer_data``.
"""
