"""The rules of health: when to look and check, and what follows from the answers.

Answers for behaviour 15 and faults 39 to 43.
"""
