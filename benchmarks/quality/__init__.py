"""How good a model gets: mixing policies on real mixtures, and what else decides what is learned."""
