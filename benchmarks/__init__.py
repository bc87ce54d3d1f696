"""What plugind costs, measured: each benchmark runs as `python -m benchmarks.NAME` from a checkout."""
