"""How each error is handled: the table in the code equals the one in docs/spark.md."""

import re
from pathlib import Path

import pytest

from rocketsim_client import errors
from rocketsim_client.retry import (
    NO_RETRY,
    RETRY_RULES,
    SENT_AGAIN,
    Another,
    Backoff,
    another_may_do_better,
    is_worth_asking_again,
    is_worth_sending_again,
    retry_rule_of,
    tells_more,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "spark.md"


def documented() -> dict[str, tuple[str, str, str]]:
    """Returns error -> (another member, asked again, sent again) as the document says."""
    table = DOCUMENT.read_text().partition("| error | another member at once |")[2].partition("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        names, another, read, send = (cell.strip() for cell in line.strip("|").split("|"))
        for name in re.sub(r"\([^)]*\)", "", names).split(","):
            found[name.strip(" `")] = another, read, send
    return found


def test_the_table_in_the_document_is_the_one_of_the_code() -> None:
    answers = {True: "yes", False: "no"}
    said = {
        kind.__name__: (str(cure.another), answers[cure.read], answers[cure.send]) for kind, cure in RETRY_RULES.items()
    }
    found = documented()
    assert found.pop("all others") == (str(NO_RETRY.another), "no", "no")
    # A send treats the codes of a refusal differently, which the document's table says in its own words.
    assert found.pop("BrokerRefused") == (
        *said.pop("BrokerRefused")[:2],
        f"codes {', '.join(map(str, sorted(SENT_AGAIN)))}",
    )
    assert found == said


def test_the_first_class_that_fits_is_the_most_particular() -> None:
    kinds = list(RETRY_RULES)
    for index, kind in enumerate(kinds):
        assert not any(issubclass(kind, before) for before in kinds[:index]), kind


def test_a_refusal_is_the_error_that_has_its_code() -> None:
    found = {code: type(errors.refusal(code, "no", "h:1")) for code in (1, 2, 3, 13, 14, 16, 17, 21, 22, 23, 26, 29)}
    assert found == {
        1: errors.BrokerRefused,
        2: errors.SystemBusy,
        3: errors.BrokerRefused,
        13: errors.MessageIllegal,
        14: errors.ServiceNotAvailable,
        16: errors.NoPermission,
        17: errors.TopicNotExist,
        21: errors.OffsetIllegal,
        22: errors.NotFound,
        23: errors.ExpressionInvalid,
        26: errors.GroupNotExist,
        29: errors.InvalidParameter,
    }
    assert type(errors.refusal(1, "no", "h:1", "DATA_LOSS")) is errors.StoreDamaged
    assert type(errors.refusal(16, "no", "h:1", "UNAUTHENTICATED")) is errors.AccessDenied


def made(name: str) -> errors.RocketSimError:
    return getattr(errors, name)("no")  # type: ignore[no-any-return]


MAY_PASS = (
    *("BrokerUnavailable", "CallTimeout", "NameServerUnavailable", "BrokerNotExist", "NoRoute"),
    *("ServiceNotAvailable", "SystemBusy", "BrokerRefused", "StoreDamaged", "BadAnswer"),
)


@pytest.mark.parametrize("name", MAY_PASS)
def test_trouble_that_may_pass_is_worth_another_question(name: str) -> None:
    assert is_worth_asking_again(made(name))


@pytest.mark.parametrize(
    "name", ["TopicNotExist", "NoPermission", "InvalidParameter", "ExpressionInvalid", "MessageIllegal", "ClientClosed"]
)
def test_what_stays_wrong_is_not_asked_again(name: str) -> None:
    assert not is_worth_asking_again(made(name))


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205])
def test_a_send_is_repeated_for_rocketmqs_codes(code: int) -> None:
    assert is_worth_sending_again(errors.refusal(code, "no", "h:1"))


@pytest.mark.parametrize("code", [3, 13, 22, 23, 26, 29])
def test_a_send_is_not_repeated_for_others(code: int) -> None:
    assert not is_worth_sending_again(errors.refusal(code, "no", "h:1"))


def test_what_is_no_error_of_the_client_is_incurable() -> None:
    assert retry_rule_of(ValueError("x")) is NO_RETRY


def test_a_slave_may_not_have_heard_yet_and_a_master_has() -> None:
    assert another_may_do_better(made("TopicNotExist"), broker_id=1)
    assert not another_may_do_better(made("TopicNotExist"), broker_id=0)
    assert another_may_do_better(made("SystemBusy"), broker_id=0)
    assert retry_rule_of(made("BadAnswer")).another is Another.BY_A_TASK


def test_an_answer_tells_more_than_silence_and_a_slaves_ignorance_least() -> None:
    refused, silent, unknown = made("BrokerRefused"), made("BrokerUnavailable"), made("TopicNotExist")
    assert tells_more(unknown, None)
    assert tells_more(silent, unknown) and tells_more(refused, silent)
    assert not tells_more(unknown, silent) and not tells_more(silent, refused)


def test_a_pause_doubles_up_to_the_longest_one_however_many_attempts_fail() -> None:
    assert [Backoff(0.5, 2.0).pause_s(failures) for failures in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 2.0]
    assert Backoff(0.5, 2.0).pause_s(5000) == 2.0
