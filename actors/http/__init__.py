"""HTTP/1 on unix sockets and on TCP: the server of a daemon, and what asks one.

The server answers the requests that ``plugind.protocol.http`` reads at one look, and has h11 read all others.
"""
