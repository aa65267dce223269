"""`mixer inspect`: a recipe's data as training will see them, and the problems in them."""
