"""How measurements are reported: tables, plots, JSON, samples."""
