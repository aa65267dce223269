"""What replay costs and what it is good for."""
