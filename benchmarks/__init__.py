"""What the README claims about speed and memory, one command each."""
