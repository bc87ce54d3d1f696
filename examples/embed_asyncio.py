"""A node inside of an asyncio program: Trio runs as a guest of asyncio's loop, in the same thread.

::

    mkdir -p /tmp/plugins
    python examples/embed_asyncio.py /tmp/plugins &
    plugind fake --socket /tmp/plugins/red.sock --type ColourPlugin --name red.example.com
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from outcome import Outcome

from plugind import Config, Plugin, Root, Supervisor


class ColourHandler:
    """A handler runs on Trio, so it passes what asyncio is to do on to a queue."""

    follow = None

    def __init__(self, news: asyncio.Queue[str]) -> None:
        self.news = news

    async def validate(self, plugin: Plugin) -> None:
        """Accept each plugin."""

    async def register(self, plugin: Plugin) -> None:
        """Report the plugin."""
        self.news.put_nowait(f"in service: {plugin.name}, at {plugin.endpoint}")

    async def deregister(self, plugin: Plugin) -> None:
        """Report that the plugin is gone."""
        self.news.put_nowait(f"out of service: {plugin.name}")


@asynccontextmanager
async def node(root: str, news: asyncio.Queue[str]) -> AsyncIterator[None]:
    """Run a node on the directory ``root`` for an ``async with`` block of asyncio."""
    loop = asyncio.get_running_loop()
    started, ended = loop.create_future(), loop.create_future()

    async def run() -> None:
        with trio.CancelScope() as scope:
            token = trio.lowlevel.current_trio_token()
            async with Supervisor(Config(roots=(Root(root),)), handlers={"ColourPlugin": ColourHandler(news)}):
                # Only the token may be used from outside of Trio.
                started.set_result(lambda: token.run_sync_soon(scope.cancel))
                await trio.sleep_forever()

    def end(outcome: Outcome[None]) -> None:
        ended.set_result(outcome)
        if not started.done():
            started.cancel()

    trio.lowlevel.start_guest_run(
        run,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=end,
        # Signal handlers of asyncio's loop, also those that are added before, go on to work.
        host_uses_signal_set_wakeup_fd=True,
    )
    stop = None
    try:
        await asyncio.wait([started, ended], return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            stop = started.result()
            yield
    finally:
        if stop is not None:
            stop()
        (await ended).unwrap()


async def main(root: str) -> None:
    """Print the news of a node until the first plugin is in service."""
    news = asyncio.Queue[str]()
    async with node(root, news):
        print(await asyncio.wait_for(news.get(), 60), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python examples/embed_asyncio.py DIRECTORY", file=sys.stderr)
        sys.exit(2)
    asyncio.run(main(os.path.abspath(sys.argv[1])))
