"""Reports of continual runs in `mixer report`."""
