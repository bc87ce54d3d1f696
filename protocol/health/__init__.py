"""The rules of health: when to look and when to check, and what follows from the answer.

Answers for behaviour 15 and faults 39 to 43.
"""
