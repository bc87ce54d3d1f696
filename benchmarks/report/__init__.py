"""Reports of measurements: tables, plots, JSON, samples."""
