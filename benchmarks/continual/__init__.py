"""Tasks one after the other, by published protocols."""
