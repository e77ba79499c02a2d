"""Games at the grain of tokens: chat templates, TokenMDP, Trajectory, rollout."""
