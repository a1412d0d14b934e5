"""The marks of the tests that need RocketMQ itself, whose jars come from Maven Central."""

import shutil

import pytest

# `./run test --long` runs the tests with these marks.
NEEDS_MAVEN = [
    pytest.mark.long,
    pytest.mark.skipif(not shutil.which("mvn"), reason="fetching RocketMQ needs Maven (mvn), which is not installed"),
]
# `./run test --interop` runs the tests with these marks.
INTEROP = [*NEEDS_MAVEN, pytest.mark.interop]
