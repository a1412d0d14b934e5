"""The code of the two server processes, the broker and the name server."""

from rocketsim_proto.extras import need

need("cli")
