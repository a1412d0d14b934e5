"""The demo reports why its query has failed."""

import pytest

from rocketsim_cli.demo.query import in_few_words


@pytest.mark.parametrize(
    ("error", "said"),
    [
        pytest.param("It broke.\n  at a.b(c)\n\nJVM stacktrace:\nmore", "It broke", id="no stacks"),
        pytest.param("[STREAM_FAILED] It broke\n=== Streaming Query ===\nId", "[STREAM_FAILED] It broke", id="no plan"),
        pytest.param(
            "Python worker failed to connect back.",
            "Python worker failed to connect back "
            "(Spark gives its Python process ten seconds to start: this machine is too busy now)",
            id="a busy machine",
        ),
    ],
)
def test_a_failed_query_is_told_in_few_words(error, said):
    assert in_few_words(error) == said
