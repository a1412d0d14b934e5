"""The lightweight future behaves like the standard one, with and without a condition."""

import threading
from concurrent.futures import CancelledError, as_completed, wait
from contextlib import suppress

import pytest

from rocketsim_client.sending.pending import Pending, succeed_all


def pending() -> Pending:
    return Pending(None, None)


def test_a_result_that_is_there_is_returned_without_a_condition(monkeypatch):
    monkeypatch.setattr(threading, "Condition", lambda: pytest.fail("no thread waits for it"))
    future = pending()
    assert not future.done()
    future.succeed(7)
    assert future.done() and future.result() == future.result(0) == 7
    monkeypatch.undo()
    assert future.exception() is None


def test_an_error_is_raised():
    future = pending()
    future.fail(KeyError("x"))
    for _ in range(2):
        with pytest.raises(KeyError):
            future.result()
    assert isinstance(future.exception(), KeyError)


def test_waiting_ends_with_the_result_or_the_timeout():
    future = pending()
    with pytest.raises(TimeoutError):
        future.result(0.01)
    threading.Timer(0.05, future.succeed, (1,)).start()
    assert future.result(5) == 1


@pytest.mark.parametrize("end", [lambda future: future.succeed(7), lambda future: succeed_all([future], [7])])
def test_threads_that_wait_are_woken_without_a_condition(monkeypatch, end):
    future, got = pending(), []
    threads = [threading.Thread(target=lambda: got.append(future.result(60))) for _ in range(3)]
    for thread in threads:
        thread.start()
    with pytest.raises(TimeoutError):
        pending().result(0.01)  # one that gives up disturbs nobody
    monkeypatch.setattr(future, "set_result", lambda result: pytest.fail("the standard way needs a condition"))
    end(future)
    for thread in threads:
        thread.join(60)
    assert got == [7, 7, 7]


@pytest.mark.parametrize("has_condition", [False, True])
def test_cancelling_wakes_a_thread_that_waits(has_condition):
    future, got = pending(), []

    def wait_for_it():
        try:
            future.result(60)
        except CancelledError:
            got.append("cancelled")

    if has_condition:
        assert future.cancelled() is False  # makes the condition
    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    assert future.cancel()
    waiter.join(60)
    assert got == ["cancelled"]


@pytest.mark.parametrize("end", [lambda future: future.succeed(7), lambda future: future.fail(KeyError("x"))])
def test_a_thread_that_waits_is_woken_if_there_is_a_condition_too(end):
    future, got = pending(), []

    def wait_for_it():
        try:
            got.append(future.result(60))
        except KeyError:
            got.append("error")

    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    assert not wait([future], 0).done  # makes the condition
    end(future)
    waiter.join(60)
    assert len(got) == 1


@pytest.mark.parametrize("has_condition", [False, True])
@pytest.mark.parametrize("end", [lambda future: future.succeed(7), lambda future: future.cancel()])
def test_a_callback_may_wait_for_a_thread_that_waits_for_the_result(end, has_condition):
    future, has_gone_on = pending(), []

    def wait_for_it():
        with suppress(CancelledError):
            future.result(60)

    waiter = threading.Thread(target=wait_for_it)

    def wait_for_waiter(_):
        waiter.join(60)
        has_gone_on.append(not waiter.is_alive())

    if has_condition:
        assert future.cancelled() is False  # makes the condition
    future.add_done_callback(wait_for_waiter)
    waiter.start()
    end(future)
    assert has_gone_on == [True]


def test_a_result_can_be_asked_for_again_after_a_timeout():
    future = pending()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            future.result(0.001)
    future.succeed(7)
    assert future.result(0) == 7


@pytest.mark.parametrize("waited_before", [False, True])
def test_callbacks_run_once_whenever_they_were_left(waited_before):
    future, heard = pending(), []
    if waited_before:
        assert future.cancelled() is False  # makes the condition
    future.add_done_callback(lambda done: heard.append(("before", done.result())))
    future.succeed(1)
    future.add_done_callback(lambda done: heard.append(("after", done.result())))
    assert heard == [("before", 1), ("after", 1)]


def test_a_batch_is_finished_together_whoever_waits_for_it_and_whoever_gave_up():
    futures, heard = [pending() for _ in range(4)], []
    waiter = threading.Thread(target=lambda: heard.append(futures[0].result(5)))
    waiter.start()
    assert futures[1].cancel()
    # all futures are done before the first callback runs
    futures[2].add_done_callback(lambda done: heard.append(futures[3].result(0)))
    succeed_all(futures, iter("abcd"))
    waiter.join()
    assert sorted(heard) == ["a", "d"]
    assert futures[1].cancelled() and futures[2].result() == "c"
    with pytest.raises(ValueError):
        succeed_all([pending()], [])


def test_the_standard_library_can_wait_for_many():
    futures = [pending() for _ in range(5)]
    for number, future in enumerate(futures[:3]):
        future.succeed(number)
    threading.Timer(0.05, lambda: [future.succeed(9) for future in futures[3:]]).start()
    assert sorted(future.result() for future in as_completed(futures, 5)) == [0, 1, 2, 9, 9]
    assert not wait(futures, 5).not_done


def test_a_cancelled_future_stays_cancelled():
    future = pending()
    assert future.cancel()
    future.succeed(1)
    with pytest.raises(CancelledError):
        future.result()


def test_no_waiter_is_missed_in_a_race():
    for _ in range(300):
        future, got = pending(), []
        waiter = threading.Thread(target=lambda future=future, got=got: got.append(future.result(5)))
        waiter.start()
        future.succeed(1)
        waiter.join()
        assert got == [1]
