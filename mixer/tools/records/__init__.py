"""What several tools read off a run's records: its summary, its comparison with others, forks, rows seen."""
