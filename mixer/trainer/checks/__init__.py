"""What a run is refused or warned for: its class, its engine, needs of its policy, labels and classes of its data."""
