"""Reports streams to the experiment trackers that the Trainer uses."""
