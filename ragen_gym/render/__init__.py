"""Pictures of the games: tiles drawn as shapes, frames, windows, GIFs, and the words that go with them.

Shapes are drawn in NumPy. Pygame (extra ``render``) is needed for windows and for text in captions and on signs, and is
imported only then; pictures for visual models (``images``) have a font of their own and need nothing.
"""
