"""Parts shared by both trainers: the playing policy, its tasks, iterations, run folders, diagnostics."""
