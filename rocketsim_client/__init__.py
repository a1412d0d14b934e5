"""What an application imports: producer, pull consumer, admin, and their words."""

from rocketsim_client.cluster import Cluster

__all__ = ["Cluster"]
