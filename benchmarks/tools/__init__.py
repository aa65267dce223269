"""Tools of the tests and of the documentation: fuzzing, pictures."""
