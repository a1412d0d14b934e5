"""Closes an asyncio server of a test without losing a connection that it has just accepted."""

import asyncio

# turns of the event loop until asyncio has called the server's callback for an accepted connection
TURNS_OF_AN_ACCEPTED_CONNECTION = 5


async def stop_accepting(server: asyncio.Server) -> None:
    """Closes the server's port.  Afterwards its callback has been called for every connection that it had accepted.

    `Server.close` alone loses a connection that the loop accepted in its last turn: asyncio never closes that socket.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(TURNS_OF_AN_ACCEPTED_CONNECTION):
        await asyncio.sleep(0)
    server.close()
