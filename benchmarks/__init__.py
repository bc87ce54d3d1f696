"""The benchmarks of plugind. Each one runs as ``python -m benchmarks.NAME`` from a checkout."""
