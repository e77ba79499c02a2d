"""Training runs to look at: one HTML page of one or more of them, and a dashboard of one in the terminal.

`runs` reads the folders and puts runs of one configuration together; `curves`, `rates` and `settings` are what the page
says of them, `episodes` fills the viewer, which is the benchmark's, and `page` puts all into one file. `follow` and
`dashboard` watch a run while it goes on. `events` writes a run's figures for TensorBoard.
"""
