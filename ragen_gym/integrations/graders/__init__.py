"""Checks of OpenEnv's validation (RFC 008) for any OpenEnv server, registered as entry points of this distribution.

``checks`` has them, by the audit and by replays (``replay``); ``validate`` runs them with OpenEnv's own parts.
"""
