"""The server half: it serves ``kubelet.sock``, and plugins in the test kit.

Answers for the faults of a hostile caller (50 to 63): each connection has a budget.
"""
