"""Installs RocketSim's packages.  `rocketsim_proto` and `rocketmq_v2` are in the folder `proto/`; `tests`, `testbed`,
`benchmarks` and `conf` are not installed.

The installation without extras is enough for producers, consumers and admin programs.  The `rocketsim` command
with its servers, and the Spark data source, need extras.

The module `rocketsim_proto.records._kernels` is compiled if Cython, a C compiler and Python's headers are installed.
Without Cython, a compiler or the headers, the installation also succeeds, and Python code does the same work more
slowly.  ROCKETSIM_KERNELS=python leaves out the compiled module, and the wheel then fits every platform.
ROCKETSIM_KERNELS=compiled makes the build fail if the module cannot be compiled.
"""

import os
import re
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

NAME = "rocketsim"
VERSION = "0.2.0"
HOME = "https://rocketsim.example"  # stands for the address of the repository; nobody can own a name in .example
WANTED_KERNELS = os.environ.get("ROCKETSIM_KERNELS")

RECORDS = "proto/rocketsim_proto/records"
KERNELS = Extension(
    "rocketsim_proto.records._kernels",
    [f"{RECORDS}/_kernels.pyx"],
    depends=[f"{RECORDS}/_crc32.h"],
    include_dirs=[RECORDS],
    extra_compile_args=["-O2", "-g0", *os.environ.get("ROCKETSIM_KERNELS_CFLAGS", "").split()],
    optional=WANTED_KERNELS != "compiled",
)
KERNELS.cython_c_in_temp = True  # writes the generated C code into `build`, not beside its source


class BuildIfPossible(build_ext):
    """Builds the package without the compiled module if compiling fails for any reason.  Setuptools' own `build_ext`
    goes on only after errors of the compiler.
    """

    def build_extension(self, extension):
        try:
            super().build_extension(extension)
        except Exception as error:
            if not extension.optional:
                raise
            self.warn(f"{extension.name} is not compiled, so records are processed more slowly: {error}")


def description() -> str:
    """Returns README.md for a package index, with links to this version's files, because the index has no other file of
    the repository.
    """
    text = (Path(__file__).parent / "README.md").read_text()
    text = re.sub(r"(!\[[^]]*\]\()(?!\w+:)", rf"\g<1>{HOME}/raw/v{VERSION}/", text)
    return re.sub(r"(\]\()(?!\w+:|#)", rf"\g<1>{HOME}/blob/v{VERSION}/", text)


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
    name=NAME,
    version=VERSION,
    description="RocketMQ's master/slave broker pair in Python on gRPC, with a Spark source and sink",
    long_description=description(),
    long_description_content_type="text/markdown",
    url=HOME,
    project_urls={
        "Documentation": f"{HOME}/tree/v{VERSION}/docs",
        "Changelog": f"{HOME}/blob/v{VERSION}/CHANGELOG.md",
        "Source": HOME,
        "Issues": f"{HOME}/issues",
    },
    author="The RocketSim maintainers",
    license_expression="Apache-2.0",
    keywords=["rocketmq", "message broker", "message queue", "spark", "structured streaming", "arrow", "grpc"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Framework :: AsyncIO",
        "Framework :: Pytest",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Cython",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)),
        "Topic :: Software Development :: Testing",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=PACKAGES,
    package_dir={"rocketsim_proto": "proto/rocketsim_proto", "rocketmq_v2": "proto/rocketmq_v2"},
    py_modules=["pyspark_rocketsim"],
    cmdclass={"build_ext": BuildIfPossible},
    ext_modules=[] if WANTED_KERNELS == "python" else [KERNELS],
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
        "native": ["pygrpc-native>=0.5,<1"],
        "spark": ["pyspark>=4.2"],
        "testing": [*CLI, "pytest"],
        "connect": ["grpcio-status>=1.85", "googleapis-common-protos>=1.65", "pandas<3"],
        "dev": [
            "check-wheel-contents",
            "fastapi",
            "grpcio-tools==1.85.1",
            "httpx2",
            "hypothesis",
            "mypy",
            "pygrpc-native",
            "pytest",
            "pytest-xdist",
            "rocketmq-python-client",
            "ruff",
            "twine",
        ],
    },
    entry_points={
        "console_scripts": ["rocketsim = rocketsim_cli.__main__:main"],
        "pytest11": ["rocketsim = rocketsim_testing.plugin"],
    },
)
