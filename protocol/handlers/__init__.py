"""The rules of the built-in handlers: what CSI and DRA drivers say, and what is asked of them."""
