"""How measurements are shown."""
