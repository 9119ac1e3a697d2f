"""The configuration read again in a thread that nothing waits for: a disk that does not answer
holds up neither the loop nor the end of the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from monitor.config import Config, InvalidConfiguration

# s for a file to be read; one that takes longer is on a disk that does not answer.
READ_SECONDS = 10.0


async def read_again(read: Callable[[], Config], seconds: float = READ_SECONDS) -> Config:
    """What `read` returns. Raises what it raises, and InvalidConfiguration after so long."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Config] = loop.create_future()

    def settle(config: Config | None, error: Exception | None) -> None:
        if found.done():
            return
        if error is not None:
            found.set_exception(error)
        elif config is not None:
            found.set_result(config)

    def work() -> None:
        config, error = None, None
        try:
            config = read()
        except Exception as caught:
            error = caught
        try:
            loop.call_soon_threadsafe(settle, config, error)
        except RuntimeError:
            return  # the loop has ended meanwhile

    # Not the executor's thread: the end of the loop would wait for it.
    threading.Thread(target=work, name="configuration", daemon=True).start()
    try:
        # Not wait_for, which forgets that it was cancelled where both come at once: the sidecar
        # would never end.
        async with asyncio.timeout(seconds):
            return await found
    except TimeoutError:
        raise InvalidConfiguration(
            f"the configuration could not be read within {seconds:g} s: does the disk that it "
            "is on answer?"
        ) from None
