"""Former name of a part of `ragen_gym.bench.report.html_page`."""

from ragen_gym.bench.report.html_page import Archive, Entry, pack, packed

__all__ = ["Archive", "Entry", "pack", "packed"]
