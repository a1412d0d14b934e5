#!/opt/rocketsim/bin/python
"""Ends with status 0 if the server at HEALTH_ADDRESS (or the argument) answers SERVING to gRPC's health check.

For TLS, HEALTH_TLS_CA names the file with the CA, and HEALTH_TLS_CERT and HEALTH_TLS_KEY name the files with a client's
certificate and key.
"""

import os
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 4.0


def main() -> int:
    address = sys.argv[1] if len(sys.argv) > 1 else os.environ["HEALTH_ADDRESS"]
    files = [os.environ.get(f"HEALTH_TLS_{name}") for name in ("CA", "KEY", "CERT")]
    if files[0]:
        secrets = [Path(file).read_bytes() if file else None for file in files]
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(*secrets))
    else:
        channel = grpc.insecure_channel(address)
    with channel:
        try:
            found = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(found.status)
    print(f"{address}: {name}")
    return 0 if found.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
