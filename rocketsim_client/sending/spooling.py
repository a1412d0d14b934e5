"""Puts together a producer's spool, the sender that fills it, and the replay that sends its records to brokers."""

from collections.abc import Callable

from rocketsim_client.sending.attempts import SendAttempts
from rocketsim_client.sending.options import ProducerOptions, SpoolOptions
from rocketsim_client.sending.publish_info import PublishTable
from rocketsim_client.sending.replay import Replay
from rocketsim_client.sending.sender import Sender
from rocketsim_client.sending.spool import Spool
from rocketsim_client.sending.spooling_sender import AcceptingTable, SpoolingSender


class Spooling:
    def __init__(
        self,
        spool: SpoolOptions,
        options: ProducerOptions,
        sender: Sender,
        attempts: SendAttempts,
        publish_table: PublishTable,
        peer: str,
        clock: Callable[[], float],
    ) -> None:
        self.spool = Spool(spool.directory, spool.max_bytes)
        self.choice = AcceptingTable(publish_table, self.spool)
        self.sender = SpoolingSender(sender, attempts, publish_table, peer, self.spool)
        try:
            self.replay = Replay(
                self.spool, attempts, publish_table, timeout_s=options.timeout_s, clock=clock, enough=spool.enough
            )
        except BaseException:  # for example, the system has no thread for replay
            self.spool.close()
            raise

    def close(self) -> None:
        """Stops replay and closes the spool.  The next producer that opens the spool sends the records in it.  In a
        forked child nothing is closed."""
        if not self.spool.is_parents:
            self.replay.close()
            self.spool.close()
