"""What the trackers that the Trainer reports to are told of streams: one file a tracker."""
