"""The command ``plugind``: one module for each of its commands, with the same two functions in each."""
