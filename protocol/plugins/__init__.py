"""The values that all rooms use: a plugin's info and its rules, health, devices, and the state of its registration."""
