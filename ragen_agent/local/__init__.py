"""The embedded trainer: one process, one CPU core or one GPU, from nothing to a trained agent in minutes.

`train` reads from top to bottom: make the small model and its tokenizer (`small_model`, `tokenizer`), imitate
demonstrations (`demonstrations`, `warm_start`), reinforce (`trainer`), measure (`evaluation`), and keep it all in a
run folder (`run_folder`).
"""
