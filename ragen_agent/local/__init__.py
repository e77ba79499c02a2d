"""The local trainer: one process, one CPU core or one GPU, from nothing to a trained policy in minutes.

``run`` holds the phases of a run from the warm start to the last comparison, ``trainer`` the loop of reinforcement,
``policy_update`` the steps of the optimiser, and ``diagnostics`` what the measurements next to them ask of the model.
"""
