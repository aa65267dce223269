"""What `mixer report` shows of continual runs."""
