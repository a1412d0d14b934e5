"""Skips tests that need the compiled record codec, which is optional (`./run test --python-codec`)."""

import pytest
from rocketsim_proto.records import kernels

NOT_IN_USE = "the compiled record codec is not in use: it is not installed, or ROCKETSIM_KERNELS=python leaves it out"
needs_compiled_codec = pytest.mark.skipif(kernels.compiled is None, reason=NOT_IN_USE)
