"""Arguments, random numbers and offered samples, which all rooms of replay need."""
