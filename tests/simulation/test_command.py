"""`python -m tests.simulation PLAY SEEDS` runs the plays, and its exit status says if a promise was broken."""

import pytest

from tests.simulation import deaths
from tests.simulation.__main__ import main
from tests.simulation.deliveries import Deliveries


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(deaths, "STEPS", 15)


def test_the_command_plays_each_seed_and_sums_up_each_mode(capsys):
    assert main(["deliveries", "4-6"]) == 0
    said = capsys.readouterr().out
    assert "SYNC_MASTER SYNC_FLUSH, 1 seeds: " in said
    assert "SYNC_MASTER ASYNC_FLUSH, 1 seeds: " in said
    assert " stored" in said
    assert "0 seeds broke a promise: []" in said


def test_the_command_says_which_seeds_break_a_promise_and_how_to_play_them_again(capsys, monkeypatch):
    monkeypatch.setattr(Deliveries, "left", lambda *_: {b"one"})
    assert main(["deliveries-on-bad-disks", "4"]) == 1
    said = capsys.readouterr().out
    assert "seed 4, SYNC_MASTER SYNC_FLUSH" in said
    assert "never delivered, or never acknowledged" in said
    assert "again: python -m tests.simulation deliveries-on-bad-disks 4" in said
    assert "1 seeds broke a promise: [4]" in said


def test_seeds_without_a_play_are_runs_of_the_world(capsys):
    assert main(["4-5", "10"]) == 0
    assert "crash points" in capsys.readouterr().out
