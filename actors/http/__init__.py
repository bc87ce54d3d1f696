"""HTTP/1 on unix sockets and on TCP: the server of a daemon, and what asks one.

h11 reads the requests and frames the answers.
"""
