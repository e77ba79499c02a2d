"""Gymnasium's view of the games: ``step`` (one move an action) and ``turn`` (one reply an action)."""
