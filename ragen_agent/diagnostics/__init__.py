"""What an iteration says about the health of a run: pure functions of trajectories, histories and tensors."""
