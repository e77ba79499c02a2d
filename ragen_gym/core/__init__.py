"""The leaves of the suite, which every other part may use: text, levels, seeds, statistics."""
