"""The rules of the built-in handlers: the questions to CSI and DRA drivers, and the checks of their answers."""
