"""One actor per plugin type, and the handlers that come with plugind."""
