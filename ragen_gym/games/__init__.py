"""The games: pure rules, generators and oracles. Nothing in here knows Gymnasium, pygame or files."""
