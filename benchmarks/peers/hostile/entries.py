"""Kinds that fill directories, or change them all the time."""

from __future__ import annotations

from pathlib import Path

from plugind.benchmarks.peers.hostile.server import HostileServer, Kind


class Symlinks(Kind):
    """Puts 1,000 symbolic links to a socket into one directory, which all peers share."""

    accepts = False
    links = 1000

    def appear(self, server: HostileServer, index: int) -> None:
        """Make the links of one peer."""
        directory = Path("symlinks")
        directory.mkdir(exist_ok=True)
        if index == 0:
            server.listen(index)
        for number in range(index * self.links, (index + 1) * self.links):
            (directory / f"link-{number:07d}.sock").symlink_to(Path("..") / server.file(0))
            server.acts += 1


class Files(Kind):
    """Creates and removes a regular file for each peer, 5,000 times a second in all."""

    accepts = False
    rate = 5000

    def appear(self, server: HostileServer, index: int) -> None:
        """Make no socket."""

    def act(self, server: HostileServer, number: int) -> None:
        """Create or remove the next file."""
        round_, index = divmod(number, server.peers)
        path = Path(f"{server.name}-{index:05d}.txt")
        if round_ % 2:
            path.unlink(missing_ok=True)
        else:
            path.touch()


class Directories(Kind):
    """Makes 1,000 directories for each peer, each of which wants to be watched."""

    accepts = False
    directories = 1000

    def appear(self, server: HostileServer, index: int) -> None:
        """Make the directories of one peer, in one of its own."""
        for number in range(self.directories):
            (Path(f"{server.name}-{index:05d}") / f"{number:04d}").mkdir(parents=True)


class Rebind(Kind):
    """Replaces its socket before anybody is answered: 1,000 times a second in all."""

    rate = 1000

    def act(self, server: HostileServer, number: int) -> None:
        """Replace the next socket."""
        peer = server.sockets[number % len(server.sockets)]
        server.stop_listening(peer)
        server.listen(peer.index)


class Renames(Kind):
    """Renames its socket all the time: 1,000 times a second in all."""

    rate = 1000

    def act(self, server: HostileServer, number: int) -> None:
        """Rename the next socket, to and fro."""
        peer = server.sockets[number % len(server.sockets)]
        name = server.file(peer.index)
        other = name if peer.path != name else f"renamed-{name}"
        Path(peer.path).rename(other)
        peer.path = other


class MovingDirectories(Kind):
    """Has its socket in a directory that is renamed all the time: 1,000 times a second in all."""

    rate = 1000

    def appear(self, server: HostileServer, index: int) -> None:
        """Bind inside of the directory."""
        self._here(server, index).mkdir()
        peer = server.listen(index)
        Path(peer.path).rename(self._here(server, index) / "plugin.sock")

    def act(self, server: HostileServer, number: int) -> None:
        """Rename the next directory, to and fro."""
        round_, index = divmod(number, server.peers)
        here = self._here(server, index)
        there = here.with_name(f"{here.name}-renamed")
        (there if round_ % 2 else here).rename(here if round_ % 2 else there)

    def _here(self, server: HostileServer, index: int) -> Path:
        return Path(f"{server.name}-{index:05d}")
