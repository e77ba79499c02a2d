"""The commands of ``ragen-gym``, a module for each group of them."""
