"""Around continual runs: their recipe, commands and report. The rest of `tasks` imports none of them."""
