"""plugind beside the kubelet's own plugin manager: both see the same plugins and files, each in a directory of its own.

``acts`` makes the random sequences, ``world`` performs them, ``managers`` runs both managers and collects what their
handlers were called with, and ``compare`` says in what they differ and which rule of docs/rules.md allows it.
"""
