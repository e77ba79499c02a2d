"""Former name of a part of `ragen_gym.bench.report.viewer_data`."""

from ragen_gym.bench.report.viewer_data import board_style as look

__all__ = ["look"]
