"""Reports of training runs: one HTML page of one or more runs, and a dashboard of one in the terminal.

``runs`` reads the folders and groups runs that differ only in their seed; ``charts`` and ``rates`` prepare what the
page plots and says, ``episodes`` fills the viewer, which is the benchmark's, and ``run_page`` writes all into one file.
``watch`` follows a run while it goes on, and draws it.
"""
