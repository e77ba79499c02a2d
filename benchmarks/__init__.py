"""Measurements and experiments of the repository; they are not part of the installed packages."""
