"""Small changes to the code that a test should notice."""
