"""The source's tests find bugs: each bug that is planted here fails the test that is named with it."""

from collections.abc import Callable

import pytest

from rocketsim_client import retry
from rocketsim_client.errors import NoRoute, TopicNotExist
from rocketsim_client.routing.routes import Routes
from rocketsim_source.commits.committer import Committer
from rocketsim_source.options.source_options import SourceOptions
from tests.source import test_client_cluster, test_commits, test_stream_query
from tests.source.test_client_cluster import FakeCluster, fake

__all__ = ["fake"]

Plant = Callable[..., None]
Named = Callable[[FakeCluster, pytest.MonkeyPatch], None]


def an_empty_route_is_a_deletion(plant: Plant) -> None:
    """A topic for which no name server has a route counts as deleted."""

    def by_route(self: Routes, topic: str, broker_name: str) -> object:
        try:
            return self.route(topic).addresses(broker_name) or {}
        except NoRoute as error:
            raise TopicNotExist(str(error)) from None

    plant(Routes, "addresses", by_route)


def a_slave_s_word_is_believed(plant: Plant) -> None:
    """A topic that a slave does not know counts as deleted."""
    rules = dict(retry.RETRY_RULES)
    rules[TopicNotExist] = retry.RetryRule(retry.Another.NO, read=False, send=True)
    plant(retry, "RETRY_RULES", rules)


def a_commit_under_way_is_forgotten(plant: Plant) -> None:
    plant(Committer, "_is_pending", lambda self: self._ledger.dirty)


def a_checkpoint_is_read_whatever_the_options_name(plant: Plant) -> None:
    plant(SourceOptions, "reads", lambda self, queue: True)


@pytest.mark.parametrize(
    ("bug", "named"),
    [
        pytest.param(
            an_empty_route_is_a_deletion,
            lambda fake, _: test_client_cluster.test_an_empty_route_is_silence_or_nothing_at_all(fake),
            id="C1: an empty route",
        ),
        pytest.param(
            a_slave_s_word_is_believed,
            lambda fake, _: test_client_cluster.test_what_only_a_slave_lacks_is_silence(fake, "topic"),
            id="C1: a slave's word",
        ),
        pytest.param(
            a_checkpoint_is_read_whatever_the_options_name,
            lambda _, plant: test_stream_query.test_what_the_options_do_not_name_any_more_is_not_read_any_more(
                {"topic": "U"}, set()
            ),
            id="C7",
        ),
        pytest.param(
            a_commit_under_way_is_forgotten,
            lambda _, plant: test_commits.test_closing_waits_for_a_commit_that_is_under_way(plant),
            id="C9",
        ),
    ],
)
def test_a_planted_bug_is_caught(
    fake: FakeCluster, monkeypatch: pytest.MonkeyPatch, bug: Callable[[Plant], None], named: Named
) -> None:
    bug(monkeypatch.setattr)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        named(fake, monkeypatch)
