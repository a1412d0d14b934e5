"""Which slave may be promoted: the decision, and the questions that it asks the brokers of the name."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from rocketsim_proto.replication_pb2 import Epoch, GetMemberRequest, GetMemberResponse, PromiseEpochResponse

from broker_service.admin.operations import Operations
from broker_service.broker.core.mastership import Standing
from broker_service.broker.core.peers import Member, Peers
from broker_service.errors import InvalidParameter
from broker_service.leadership import registration
from broker_service.leadership.membership import Membership, with_promise
from broker_service.leadership.promotion import Forfeit, MemberReport, OtherMember, forfeits, objections
from broker_service.leadership.role_file import RoleFile
from broker_service.leadership.roll_call import RollCall
from broker_service.modes import BrokerRole
from broker_service.put_result import PutStatus
from broker_service.replication.catch_up import LogState
from broker_service.replication.epoch_file import EpochFile
from broker_service.replication.epochs import PROMOTION, EpochList
from broker_service.replication.promise import Promise
from testbed.polling import until
from tests.support.brokers import name_server, put, running
from tests.support.tcp_proxy import TcpProxy

SLAVE: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
OTHER: dict[str, Any] = {"broker_role": BrokerRole.SLAVE, "broker_id": 2}

ONE, TWO = (1, 0, 0xA), (2, 600, 0xB)
OURS = LogState(EpochList.of(ONE, TWO), 0, 1000)


def other(end: int, *epochs: tuple[int, int, int], first: int = 0, is_master: bool = False) -> OtherMember:
    answer = MemberReport(epochs[-1][0], end, EpochList.of(*epochs), first, is_master=is_master)
    return OtherMember(0 if is_master else 2, "b:1", answer)


@pytest.mark.parametrize(
    ("others", "says", "costs"),
    [
        pytest.param([], [], [], id="nobody else"),
        pytest.param([other(1000, ONE, TWO)], [], [], id="one that has the same"),
        pytest.param([other(900, ONE, TWO)], [], [], id="one that has less"),
        pytest.param(
            [other(1500, ONE, TWO)],
            ["slave 2 at b:1 has more: up to 1500 in epoch 2, and here it is 1000 in epoch 2 (500 bytes"],
            [500],
            id="one that has more",
        ),
        pytest.param(
            [other(800, ONE, TWO, (3, 700, 0xC))],
            ["slave 2 at b:1 has more: up to 800 in epoch 3, and here it is 1000 in epoch 2 (100 bytes"],
            [100],
            id="one that is shorter, of a newer epoch",
        ),
        pytest.param([other(2000, ONE)], [], [], id="one that is longer, of an epoch that was replaced"),
        pytest.param(
            [other(900, ONE, (2, 600, 0xD))],
            ["slave 2 at b:1 has another history of epoch 2 (300 bytes would be cut there)"],
            [300],
            id="one whose epoch of this number is somebody else's",
        ),
        pytest.param(
            [other(900, (3, 0, 0xE), first=400)],
            ["has more: up to 900 in epoch 3"],
            [500],
            id="one without an epoch in common",
        ),
        pytest.param(
            [OtherMember(2, "b:1", MemberReport(2, 1500))],
            ["(500 bytes"],
            [500],
            id="one that knows no ids and has more",
        ),
        pytest.param([OtherMember(2, "b:1", MemberReport(2, 900))], [], [], id="one that knows no ids and has less"),
        pytest.param(
            [OtherMember(2, "b:1", MemberReport(3, 900))],
            ["(how much is not known"],
            [None],
            id="one that knows no ids, newer epoch",
        ),
        pytest.param(
            [OtherMember(2, "b:1", None)],
            ["slave 2 at b:1, which is known, does not answer and may have more: start it, or forget it"],
            [None],
            id="one that does not answer",
        ),
        pytest.param(
            [other(1001, ONE, TWO, (3, 1001, 0xC))],
            ["slave 2 at b:1 has more: up to 1001 in epoch 2, and here it is 1000 in epoch 2 (1 bytes"],
            [1],
            id="one that has more, and knows of an epoch without a byte of it",
        ),
        pytest.param(
            [other(900, ONE, TWO, (3, 900, 0xC))],
            [],
            [],
            id="one that has less, and knows of an epoch without a byte of it",
        ),
        pytest.param([OtherMember(0, "a:1", None)], [], [None], id="the master is dead"),
        pytest.param(
            [other(1500, ONE, TWO, is_master=True)],
            ["the master at b:1 answers, in epoch 2: stop it first"],
            [500],
            id="the master is alive",
        ),
        pytest.param([other(1500, ONE, is_master=True)], [], [], id="a master that was replaced is alive"),
        pytest.param(
            [OtherMember(3, "c:1", None), other(1500, ONE, TWO), other(1000, ONE, TWO)],
            ["slave 3 at c:1", "slave 2 at b:1 has more"],
            [None, 500],
            id="several",
        ),
    ],
)
def test_what_stands_against_a_promotion_and_what_it_costs(
    others: list[OtherMember], says: list[str], costs: list[int | None]
) -> None:
    found = objections(OURS, others)
    assert len(found) == len(says)
    for part, whole in zip(says, found, strict=True):
        assert part in whole
    assert [lost.bytes for lost in forfeits(OURS, others)] == costs


def test_a_slave_that_knows_of_an_epoch_without_a_byte_of_it_has_no_more_for_that() -> None:
    ours = LogState(EpochList.of(ONE, TWO, (3, 1600, 0xC)), 0, 1000)  # the master died before it sent a byte of epoch 3
    (reason,) = objections(ours, [other(1600, ONE, TWO)])
    assert "has more: up to 1600 in epoch 2, and here it is 1000 in epoch 2 (600 bytes" in reason


def promised(epoch: int, broker_id: int = 2) -> PromiseEpochResponse:
    epochs = [Epoch(epoch=number, start_offset=start, id=id_) for number, start, id_ in (ONE, TWO)]
    has = GetMemberResponse(broker_id=broker_id, epoch=TWO[0], end_offset=1000, epochs=epochs, promised_epoch=epoch)
    return PromiseEpochResponse(member=has)


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        pytest.param(promised(PROMOTION), "", id="its promise"),
        pytest.param(PromiseEpochResponse(), "has not promised epoch 1000000000000", id="nothing"),
        pytest.param(promised(0), "has not promised epoch 1000000000000", id="who it is, and no promise"),
        pytest.param(promised(PROMOTION - 1), "has not promised epoch 1000000000000", id="a promise of before"),
        pytest.param(
            PromiseEpochResponse(refusal="is a master", member=GetMemberResponse(epoch=1)),
            "is a master",
            id="a refusal",
        ),
    ],
)
def test_only_an_answer_that_names_the_epoch_is_a_promise(reply: PromiseEpochResponse, says: str) -> None:
    asked = other(1000, ONE, TWO)
    found = objections(OURS, [with_promise(asked, PROMOTION, reply)])
    assert [reason.removesuffix(": try again") for reason in found] == ([f"slave 2 at b:1 {says}"] if says else [])


async def promote(node: Any, *, force: bool = False) -> Any:
    return await node.leadership.promote("broker-a", 0, BrokerRole.SYNC_MASTER, force=force)


async def refused(node: Any) -> str:
    with pytest.raises(InvalidParameter) as refusal:
        await promote(node)
    assert node.broker.is_slave
    return str(refusal.value)


@pytest.mark.parametrize("with_name_server", [True, False])
async def test_a_slave_that_has_less_than_another_is_not_promoted_but_by_force(
    tmp_path: Path, with_name_server: bool
) -> None:
    async with name_server() as names:
        keys = {"namesrv_addr": names.address} if with_name_server else {}
        async with running(tmp_path / "m", broker_role=BrokerRole.SYNC_MASTER, **keys) as master:
            follow = keys | {"ha_master_address": master.address}
            async with running(tmp_path / "2", **OTHER, **follow) as ahead:
                async with running(tmp_path / "1", **SLAVE, **follow) as behind:
                    await put(master, "t", b"on all three")
                    await until(lambda: behind.store.end_offset == master.store.end_offset, "copied")
                    await until(lambda: ahead.store.end_offset == master.store.end_offset, "copied")
                    await until(lambda: 2 in behind.known_slaves.addresses, "they know each other")
                await put(master, "t", b"acknowledged by one slave only")
                await until(lambda: ahead.store.end_offset == master.store.end_offset, "copied")
                port = int(ahead.address.rpartition(":")[2])
        more = ahead.store.end_offset - behind.store.end_offset
        async with running(tmp_path / "1", **SLAVE, **follow) as behind:
            reason = await refused(behind)
            assert f"slave 2 at 127.0.0.1:{port}, which is known, does not answer" in reason and "--force" in reason
            async with running(tmp_path / "2", **OTHER, **follow, listen_port=port) as ahead:
                reason = await refused(behind)
                assert f"slave 2 at {ahead.address} has more" in reason and f"({more} bytes" in reason
                promoted = await promote(behind, force=True)
                assert Forfeit(2, ahead.address, more) in promoted.forfeits
                assert Forfeit(0, master.address, None) in promoted.forfeits


async def test_the_slave_that_has_most_is_promoted_and_the_others_follow_it(tmp_path: Path) -> None:
    async with name_server() as names:
        keys = {"namesrv_addr": names.address}
        async with (
            running(tmp_path / "1", **SLAVE, **keys) as behind,
            running(tmp_path / "2", **OTHER, **keys) as ahead,
        ):
            async with running(tmp_path / "m", **keys) as master:
                await put(master, "t", b"x")
                await until(
                    lambda: behind.store.end_offset == ahead.store.end_offset == master.store.end_offset, "copied"
                )
            await until(lambda: not ahead.replication.slave.is_following(), "the master is gone")
            await until(lambda: ahead.broker.peers.master() is None, "the name server knows")
            await promote(ahead)
            await put(ahead, "t", b"y")
            await until(lambda: behind.store.end_offset == ahead.store.end_offset, "it follows the new one")


async def test_a_live_master_is_asked_itself_also_while_the_slave_is_between_two_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "m") as master:
        async with running(tmp_path / "1", **SLAVE, ha_master_address=master.address) as slave:
            await until(slave.replication.slave.is_following, "it follows")
            monkeypatch.setattr(slave.replication.slave, "is_following", lambda: False)
            assert f"the master at {master.address} answers, in epoch 1: stop it first" in await refused(slave)
            monkeypatch.undo()
        assert not master.broker.is_slave


async def test_a_master_that_lives_when_a_slave_is_promoted_by_force_hears_of_it_from_that_one(
    tmp_path: Path,
) -> None:
    keys = {"register_name_server_period": 60_000}
    async with running(tmp_path / "m", **keys) as master:
        async with running(tmp_path / "1", **SLAVE, **keys, ha_master_address=master.address) as slave:
            await put(master, "t", b"x")
            await until(lambda: slave.store.end_offset == master.store.end_offset, "copied")
            promoted = await promote(slave, force=True)
            assert promoted.forfeits == ()
            await until(lambda: master.mastership.standing is Standing.FENCED, "it was told")


@asynccontextmanager
async def two_slaves(tmp_path: Path, **keys: Any) -> AsyncIterator[tuple[Any, Any, Any, TcpProxy, TcpProxy]]:
    """Starts a master with two slaves and no name server; the connection of each slave can be cut separately."""
    keys = {"slave_timeout": 10_000, "ha_send_heartbeat_interval": 300} | keys
    async with running(tmp_path / "m", broker_role=BrokerRole.SYNC_MASTER, **keys) as master:
        with TcpProxy(lambda: master.address) as to_one, TcpProxy(lambda: master.address) as to_two:
            async with (
                running(tmp_path / "1", **SLAVE, ha_master_address=to_one.address) as one,
                running(tmp_path / "2", **OTHER, ha_master_address=to_two.address) as two,
            ):
                await until(lambda: two.replication.slave.is_following() and one.replication.slave.is_following(), "")
                await put(master, "t", b"before")
                await until(lambda: two.store.end_offset == one.store.end_offset == master.store.end_offset, "copied")
                await until(lambda: 2 in one.known_slaves.addresses, "they know each other")
                await until(lambda: 1 in two.known_slaves.addresses, "they know each other")
                yield master, one, two, to_one, to_two


async def cut(wire: TcpProxy, slave: Any) -> None:
    """Cuts the wire and closes its connections, because a busy machine may be silent as long as a cut wire."""
    await asyncio.to_thread(wire.cut)
    await asyncio.to_thread(wire.reset)
    await until(lambda: not slave.replication.slave.is_following(), "it has lost its master")


async def heal(wire: TcpProxy) -> None:
    await asyncio.to_thread(wire.heal)


@pytest.fixture
def no_word_to_slaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master asks no slave, as if it were cut off from all of them."""
    monkeypatch.setattr(Membership, "slaves", lambda _: set())


@pytest.mark.usefixtures("no_word_to_slaves")
async def test_a_slave_is_not_promoted_while_another_one_follows_the_master(tmp_path: Path) -> None:
    async with two_slaves(tmp_path) as (master, one, two, to_one, to_two):
        await cut(to_one, one)
        assert f"slave 2 at {two.address} follows the master at {to_two.address}: stop it first" in await refused(one)
        assert await put(master, "t", b"acknowledged by the other one") == PutStatus.PUT_OK
        await heal(to_one)
        await until(lambda: one.store.end_offset == master.store.end_offset, "it follows again")


@pytest.mark.usefixtures("no_word_to_slaves")
async def test_a_slave_that_comes_back_to_the_old_master_after_a_promotion_acknowledges_nothing_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with two_slaves(tmp_path, slave_timeout=500) as (master, one, two, to_one, to_two):
        await cut(to_two, two)
        await cut(to_one, one)
        before = two.store.end_offset
        await promote(one)
        await heal(to_two)
        refusal = "is too low: this broker has promised"
        await until(lambda: refusal in caplog.text, "the other slave has been at the old master")
        for _ in range(3):
            assert await put(master, "t", b"only here") != PutStatus.PUT_OK
        assert master.mastership.standing is Standing.WRITABLE  # nobody could tell it
        assert two.epochs.promised == Promise(PROMOTION, 1, one.address) and two.store.end_offset == before


async def test_a_promotion_that_fails_lets_the_others_follow_their_master_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with two_slaves(tmp_path) as (master, one, two, to_one, to_two):
        await cut(to_one, one)
        await cut(to_two, two)
        monkeypatch.setattr(RoleFile, "save", full)
        with pytest.raises(OSError, match="No space left"):
            await promote(one)
        await until(lambda: two.epochs.promised is None, "the candidate says that it has given up")
        await heal(to_two)
        await until(two.replication.slave.is_following, "it follows again")
        there = master.acknowledgements.tracker.is_slave_available
        await until(lambda: there(master.store.end_offset), "it has acknowledged")
        assert await put(master, "t", b"after") == PutStatus.PUT_OK


async def test_a_promise_ends_when_the_candidate_is_back_at_another_address(tmp_path: Path) -> None:
    async with name_server() as names:
        keys: dict[str, Any] = {"namesrv_addr": names.address, "register_name_server_period": 1000}
        async with running(tmp_path / "m", broker_role=BrokerRole.SYNC_MASTER, **keys) as master:
            async with running(tmp_path / "2", **OTHER, **keys) as two:
                await until(two.replication.slave.is_following, "it follows")
            promise = Promise(PROMOTION, 1, "127.0.0.1:1")  # an address where nobody listens any more
            EpochFile(tmp_path / "2" / "rocketsim" / "epochs.json", two.store.end_offset).promise(promise)
            async with running(tmp_path / "2", **OTHER, **keys) as two:
                await until(lambda: two.broker.peers.master() is not None, "it knows the master")
                assert two.epochs.promised == promise
                async with running(tmp_path / "1", **SLAVE, **keys):
                    await until(two.replication.slave.is_following, "it follows again")
                    assert two.epochs.promised is None and master.mastership.is_master


async def test_a_promotion_does_not_wait_for_the_answer_of_a_silent_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_slaves(tmp_path, slave_timeout=500) as (_, one, _, to_one, _):
        asked = asyncio.Event()

        async def silent(promise: Promise) -> bool:
            asked.set()
            await asyncio.Event().wait()
            return False

        monkeypatch.setattr(one.replication.inquiry, "is_over", silent)
        await cut(to_one, one)
        assert one.replication.promises.promise(Promise(PROMOTION, 7, "127.0.0.1:1")) == ""
        await asked.wait()
        await promote(one, force=True)
        assert one.mastership.standing is Standing.WRITABLE


@pytest.mark.parametrize("is_back", [True, False])
async def test_a_promise_to_a_candidate_that_died_holds_until_it_is_back_or_gone_for_good(
    tmp_path: Path, is_back: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path / "m", broker_role=BrokerRole.SYNC_MASTER, slave_timeout=500) as master:
        follow: dict[str, Any] = {"ha_master_address": master.address}
        async with running(tmp_path / "1", **SLAVE, **follow) as one:
            await until(one.replication.slave.is_following, "it follows")
            promise = Promise(PROMOTION, 1, one.address)
            async with running(tmp_path / "2", **OTHER, **follow) as two:
                await until(lambda: 1 in two.known_slaves.addresses, "they know each other")
        EpochFile(tmp_path / "2" / "rocketsim" / "epochs.json", two.store.end_offset).promise(promise)
        async with running(tmp_path / "2", **OTHER, **follow) as two:
            await until(lambda: "is too low: this broker has promised" in caplog.text, "it tries")
            assert await put(master, "t", b"only here") != PutStatus.PUT_OK
            assert two.epochs.promised == promise and not two.replication.slave.is_following()
            assert f"has promised {promise}" in two.status.line()
            if is_back:
                port = int(promise.address.rpartition(":")[2])
                async with running(tmp_path / "1", **SLAVE, **follow, listen_port=port):
                    await until(two.replication.slave.is_following, "it follows again")
            else:
                Operations(two.broker, two.leadership).remove_slave(1)
                await until(two.replication.slave.is_following, "it follows again")
            assert two.epochs.promised is None
            await until(lambda: two.store.end_offset == master.store.end_offset, "copied")


@pytest.mark.usefixtures("no_word_to_slaves")
async def test_a_slave_that_hears_of_a_forced_promotion_leaves_its_master(tmp_path: Path) -> None:
    async with two_slaves(tmp_path, slave_timeout=500) as (master, one, two, to_one, _):
        await cut(to_one, one)
        await promote(one, force=True)
        await until(lambda: two.epochs.promised is not None, "it is told")
        await until(lambda: not two.replication.slave.is_following(), "it leaves the old master")
        assert await put(master, "t", b"only here") != PutStatus.PUT_OK


async def test_two_candidates_do_not_promise_each_other(tmp_path: Path) -> None:
    async with two_slaves(tmp_path) as (_, one, two, to_one, to_two):
        await cut(to_one, one)
        await cut(to_two, two)
        two.mastership.candidate_epoch = PROMOTION
        assert f"slave 2 at {two.address} is being promoted itself" in await refused(one)
        two.mastership.candidate_epoch = 0
        assert two.epochs.promised is None
        await promote(one)
        assert "this broker has promised" in await refused(two)


# --- what name servers have said --------------------------------------------------------------------------------------


@pytest.fixture
def told_of_a_master(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Collects the name servers that have told another broker of the master."""
    telling: set[str] = set()
    answered = Peers.answered

    def noted(peers: Peers, name_server: str, members: Iterable[Member], *others: Any) -> None:
        answered(peers, name_server, members := list(members), *others)
        if any(member.broker_id == 0 and member.address in peers.addresses() for member in members):
            telling.add(name_server)

    monkeypatch.setattr(Peers, "answered", noted)
    return telling


@pytest.mark.parametrize("dies", ["the process", "the machine"])
async def test_a_name_server_that_dies_together_with_the_master_does_not_stand_against_a_promotion(
    tmp_path: Path, dies: str, told_of_a_master: set[str]
) -> None:
    """When the process dies, its connections end; when the machine dies, its peers hear nothing more, not even that it
    ended.
    """
    async with name_server() as living, name_server() as dying:
        with TcpProxy(dying.address) as to_dying, TcpProxy(living.address) as to_living:
            keys = {"register_name_server_period": 60_000, "namesrv_addr": f"{to_dying.address};{to_living.address}"}
            async with running(tmp_path / "s", **SLAVE, **keys) as slave:
                async with running(tmp_path / "m", **keys, broker_role=BrokerRole.SYNC_MASTER) as master:
                    await until(slave.replication.slave.is_following, "it follows")
                    await put(master, "t", b"x")
                    await until(lambda: to_dying.address in told_of_a_master, "it has told the slave")
                    await asyncio.to_thread(to_dying.cut)  # the name server cannot hear that the master unregisters
                    if dies == "the process":
                        await asyncio.to_thread(to_dying.reset)
                await until(lambda: not slave.replication.slave.is_following(), "the master is gone")
                await promote(slave)


async def test_a_name_server_that_is_back_is_asked_at_once_before_a_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told_of_a_master: set[str]
) -> None:
    """The slave does not wait for the end of the pause after its last try, because the name server knows a master that
    the slave cannot reach.
    """
    monkeypatch.setattr(registration, "RETRY_S", (3600.0,))
    async with name_server() as names:
        with TcpProxy(names.address) as wire:
            async with running(tmp_path / "s", **SLAVE, namesrv_addr=wire.address) as slave:
                async with running(tmp_path / "m", namesrv_addr=names.address) as master:
                    await until(lambda: wire.address in told_of_a_master, "it has told the slave")
                    await asyncio.to_thread(wire.reset)
                    await until(lambda: slave.broker.peers.master() is None, "what it said is not believed any more")
                    assert f"a name server still knows a live master at {master.address}" in await refused(slave)


async def test_a_slave_that_does_not_answer_costs_the_others_no_time() -> None:
    heard: list[str] = []
    gone: list[str] = []
    addresses = {"good:1", "silent:1"}

    class Channel:
        """Every broker answers each question at once, except for the silent one."""

        def __init__(self, address: str, _: object) -> None:
            self.unary_stream = self.stream_stream = self.unary_unary
            self.is_silent = address == "silent:1"

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        def unary_unary(self, *_: object, **__: object) -> Callable[..., Awaitable[GetMemberResponse]]:
            return self.asked

        async def asked(self, request: GetMemberRequest, **_: float) -> GetMemberResponse:
            if self.is_silent:
                await asyncio.Event().wait()
            return GetMemberResponse()

    class Members(Membership):
        def __init__(self) -> None:
            pass

        def question(self) -> GetMemberRequest:
            return GetMemberRequest()

        def slaves(self) -> set[str]:
            return addresses

        def slave_answered(self, address: str, reply: GetMemberResponse | None) -> None:
            heard.append(address)

        def is_gone(self, address: str) -> None:
            gone.append(address)

        def pause_s(self) -> float:
            return 0.0

    call = RollCall(Members(), Channel)  # type: ignore[arg-type]
    task = asyncio.create_task(call.run())
    await until(lambda: len(heard) > 10, "each round asks the one that answers")
    addresses.remove("good:1")
    await until(lambda: gone, "it is asked no more")
    rounds = len(heard)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert set(heard) == {"good:1"} and gone == ["good:1"] and len(heard) <= rounds
