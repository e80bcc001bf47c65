"""What a newcomer meets: the browser, the command line, an environment with nothing in it."""
