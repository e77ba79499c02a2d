"""What both trainers share: a policy that plays, the tasks it plays, iterations, run folders, diagnostics."""
