"""This toolkit beside others: the same work in processes of the same kind."""
