"""The .proto files and the code generated from them; see regenerate.py for the command."""
