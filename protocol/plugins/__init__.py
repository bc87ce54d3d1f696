"""What plugins are: their info and its rules, their health, their devices, and the state of their registration.

These are the values of which all other rooms speak.
"""
