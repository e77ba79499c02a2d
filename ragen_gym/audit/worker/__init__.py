"""Code that runs in the interpreter of an audited environment, which need not have this package: the standard library alone."""
