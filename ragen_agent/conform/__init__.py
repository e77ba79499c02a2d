"""Conformance of trainers: the advantages, losses and gradients that a library computes, beside the published formulas.

``batches`` holds small batches in float64, each made to show one difference; ``formulas`` the published rules with
their known variants; ``libraries`` calls the functions of other trainers; ``compare`` names the variant that a library
computes.
"""
