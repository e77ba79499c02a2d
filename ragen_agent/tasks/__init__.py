"""Games, mixtures and curricula as a run plays them."""
