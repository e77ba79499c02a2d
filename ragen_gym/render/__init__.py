"""Pictures of the games: tiles drawn as shapes, frames, windows, GIFs, and the words that go with them.

Only the modules that draw import pygame (extra ``render``), and only when something is drawn.
"""
