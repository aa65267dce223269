"""What several schedules share."""
