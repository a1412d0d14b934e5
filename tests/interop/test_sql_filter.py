"""Our SQL92 filter and RocketMQ's select the same messages, for random filters."""

import time
from pathlib import Path

import pyarrow as pa
from rocketsim_proto.records import sql_filter

from tests.interop.marks import NEEDS_MAVEN
from tests.interop.sql_filters import CHOSEN, expressions, outcomes
from tests.support.sql_filters import Outcomes

pytestmark = NEEDS_MAVEN


def test_rocketmq_still_says_what_is_kept_of_it(tmp_path: Path) -> None:
    measured = Outcomes.measured()
    assert outcomes(list(measured.outcomes), tmp_path) == measured
    assert set(CHOSEN) <= measured.outcomes.keys()


def test_random_filters_select_the_same_messages(tmp_path: Path) -> None:
    seed = int(time.time())
    asked = outcomes(list(dict.fromkeys(expressions(seed, 2_000))), tmp_path)
    columns = {
        name: pa.array([row.get(name) for row in asked.rows], pa.string()) for name in ("a", "b", "absent", "$x", "_y")
    }
    for text, outcome in asked.outcomes.items():
        try:
            selected = sql_filter.selected(sql_filter.parse(text), columns.__getitem__, len(asked.rows)).tolist()
        except sql_filter.SqlFilterInvalid:
            assert outcome == "invalid", f"seed {seed}: {text}"
        else:
            assert selected == [one == "t" for one in outcome], f"seed {seed}: {text}"
