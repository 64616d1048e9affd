"""A web server on uvicorn that says where it listens once it does: with port 0 only then is the address known."""

from __future__ import annotations

from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from verifiable.errors import EngineError


class Server(uvicorn.Server):
    """Calls `announce` with its base URL. Uvicorn's own lines are warnings and errors alone.

    Args:
        grace: seconds that running answers get at shutdown; None for as long as they take.
    """

    def __init__(
        self, app: ASGIApp, host: str, port: int, announce: Callable[[str], None], *, grace: int | None = None
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app, host=host, port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=grace
            )
        )
        self._announce = announce

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup()
        for server in getattr(self, "servers", ()):
            for socket in server.sockets:
                address, port = socket.getsockname()[:2]
                self._announce(f"http://{address}:{port}")

    async def listen(self) -> None:
        """Serve until a signal ends it. Raises EngineError where the address can't be had."""
        try:
            await self.serve()
        except SystemExit as error:  # uvicorn's way to say that it could not listen
            where = f"{self.config.host}:{self.config.port}"
            raise EngineError(f"can't listen on {where}", hint="Is the port in use? Choose another.") from error
