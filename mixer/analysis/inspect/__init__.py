"""A look at the data of a recipe before it is trained: what a run would be given, and what of it will hurt."""
