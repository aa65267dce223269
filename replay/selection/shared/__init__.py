"""What several selections share."""
