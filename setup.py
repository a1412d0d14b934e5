"""Packages one by one: `tests` and `conf` are not installed, and `rocketsim_proto` lives inside `proto/`."""

from setuptools import setup

setup(
    name="rocketsim",
    version="0.1.0",
    description="RocketMQ's master/slave broker pair in Python on gRPC, with Spark as its consumer",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[
        "broker_service",
        "broker_service.admin",
        "broker_service.broker",
        "broker_service.namesrv",
        "broker_service.replication",
        "broker_service.store",
        "rocketsim_cli",
        "rocketsim_cli.admin",
        "rocketsim_client",
        "rocketsim_proto",
        "rocketsim_source",
    ],
    package_dir={"rocketsim_proto": "proto/rocketsim_proto"},
    py_modules=["pyspark_rocketsim"],
    package_data={"rocketsim_proto": ["*.proto", "*.pyi", "py.typed"]},
    install_requires=[
        "grpcio>=1.85",
        "grpcio-health-checking>=1.85",
        "grpcio-reflection>=1.85",
        "isal>=1.8",
        "javaproperties>=0.8",
        "lz4>=4.4",
        "numpy>=2.0",
        "prometheus-client>=0.20",
        "protobuf>=7.36",
        "psutil>=6",
        "pyarrow>=20",
        "pyspark>=4.2",
        "rich>=13",
        "typer>=0.16",
        "zstandard>=0.25",
    ],
    extras_require={
        "connect": ["grpcio-status>=1.85", "googleapis-common-protos>=1.65", "pandas<3", "zstandard>=0.25"],
        "dev": ["grpcio-tools==1.85.1", "hypothesis", "mypy", "pytest", "pytest-xdist", "ruff"],
    },
    entry_points={"console_scripts": ["rocketsim = rocketsim_cli.main:main"]},
)
