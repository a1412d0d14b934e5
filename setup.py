"""Installs the packages.  `rocketsim_proto` and `rocketmq_v2` are inside `proto/`; `tests`, `testbed`, `benchmarks` and
`conf` are not installed.

Without extras, the installation has what a producer, a pull consumer or an admin program needs.  The command with its
servers and the Spark data source are extras.

`rocketsim_proto.records._kernels` is compiled if Cython, a C compiler and Python's headers are installed.  Without them
the installation succeeds, and code in Python does the same work more slowly.  ROCKETSIM_KERNELS=python builds without
the compiled module, and the wheel then fits every platform.
"""

import os

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

RECORDS = "proto/rocketsim_proto/records"
KERNELS = Extension(
    "rocketsim_proto.records._kernels",
    [f"{RECORDS}/_kernels.pyx"],
    depends=[f"{RECORDS}/_crc32.h"],
    include_dirs=[RECORDS],
    extra_compile_args=["-O2", "-g0", *os.environ.get("ROCKETSIM_KERNELS_CFLAGS", "").split()],
    optional=True,
)
KERNELS.cython_c_in_temp = True  # writes the generated C into `build`, not beside its source


class BuildIfPossible(build_ext):
    """Continues without the module after any error.  Setuptools itself continues only if the compiler fails."""

    def build_extension(self, extension):
        try:
            super().build_extension(extension)
        except Exception as error:
            self.warn(f"{extension.name} is not compiled, so records are processed more slowly: {error}")


PACKAGES = [
    *find_packages(include=[f"{name}*" for name in ("broker_service", "rocketsim_cli", "rocketsim_client")]),
    *find_packages(include=["rocketsim_console*", "rocketsim_source*", "rocketsim_testing*"]),
    *find_packages("proto", include=["rocketsim_proto*", "rocketmq_v2"]),
]

CLI = [
    "cryptography>=42",
    "grpcio-health-checking>=1.85",
    "grpcio-reflection>=1.85",
    "javaproperties>=0.8",
    "prometheus-client>=0.20",
    "psutil>=6",
    "rich>=13",
    "typer>=0.16",
]

setup(
    name="rocketsim",
    version="0.2.0",
    description="RocketMQ's master/slave broker pair in Python on gRPC, with Spark as its consumer",
    license="Apache-2.0",
    classifiers=["Operating System :: POSIX :: Linux", "Programming Language :: Python :: 3", "Typing :: Typed"],
    python_requires=">=3.11",
    packages=PACKAGES,
    package_dir={"rocketsim_proto": "proto/rocketsim_proto", "rocketmq_v2": "proto/rocketmq_v2"},
    py_modules=["pyspark_rocketsim"],
    cmdclass={"build_ext": BuildIfPossible},
    ext_modules=[] if os.environ.get("ROCKETSIM_KERNELS") == "python" else [KERNELS],
    package_data={"": ["py.typed"], "rocketsim_proto": ["*.proto", "*.pyi"], "rocketmq_v2": ["*.proto", "*.pyi"]}
    | {"rocketsim_console": ["static/*", "static/pages/*"]},
    license_files=["LICENSE", "NOTICE"],
    install_requires=[
        "grpcio>=1.85",
        "isal>=1.8",
        "lark>=1.2",
        "lz4>=4.4",
        "numpy>=2.0",
        "protobuf>=7.36",
        "pyarrow>=20",
        "zstandard>=0.25",
    ],
    extras_require={
        "cli": CLI,
        "console": ["starlette>=1.0", "uvicorn>=0.40"],
        "spark": ["pyspark>=4.2"],
        "testing": [*CLI, "pytest"],
        "connect": ["grpcio-status>=1.85", "googleapis-common-protos>=1.65", "pandas<3"],
        "dev": [
            "grpcio-tools==1.85.1",
            "httpx2",
            "hypothesis",
            "mypy",
            "pytest",
            "pytest-xdist",
            "rocketmq-python-client",
            "ruff",
        ],
    },
    entry_points={
        "console_scripts": ["rocketsim = rocketsim_cli.__main__:main"],
        "pytest11": ["rocketsim = rocketsim_testing.plugin"],
    },
)
