"""What several tools read off a run's records: the run, its comparison with others, forks, rows seen."""
