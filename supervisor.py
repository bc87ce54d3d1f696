"""Child specs, wiring, order of start and stop."""


def main() -> int:
    """Run the command line."""
    return 0
