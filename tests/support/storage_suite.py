"""What every storage backend must do. A backend's test subclasses :class:`StorageSuite` and names a place.

Files are put and looked at behind the API's back (``put_raw``, ``get_raw``), so that a backend whose
mistakes cancel out is still found.
"""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.faults import FaultPlan, attach, detach
from tests.support.writers import pool as processes
from trinitylake_core.errors import AlreadyExists, FileMissing, InvalidLocation, OutcomeUnknown, StorageError
from trinitylake_core.storage import Storage, Tagged, check_conformance, open_storage

Place = tuple[str, dict[str, Any]]
RACERS = 8
PROCESSES = 3
ROUNDS = 10


def race(storage: Storage, path: str, racer: int, starts_at: float) -> bool:
    """Try to create ``path`` at a moment all racers agree on; return whether this one won."""
    time.sleep(max(0.0, starts_at - time.time()))
    try:
        storage.create(path, content_of(racer))
    except AlreadyExists:
        return False
    return True


def race_rounds(place: Place, racer: int, starts_at: float) -> list[bool]:
    """Run ``ROUNDS`` races against the other processes; return the outcome of each."""
    storage = open_storage(*place)
    storage.exists()  # connected before the start
    return [race(storage, f"race-{number}", racer, starts_at + number * 0.05) for number in range(ROUNDS)]


def content_of(racer: int) -> bytes:
    """Return the data of racer number ``racer``: long enough that half of it would be noticed."""
    return b"%d" % racer * 50_000


def count_up(place: Place, rounds: int) -> None:
    """Add one to a counter, ``rounds`` times, by compare-and-set."""
    storage = open_storage(*place)
    while rounds:
        state = storage.read_tagged("counter")
        if storage.compare_and_set("counter", b"%d" % (int(state.data or 0) + 1), state) is not None:
            rounds -= 1


def read_in_child(storage: Storage, path: str, answer: Any) -> None:
    """Send what a forked child reads through its parent's storage object."""
    answer.send(storage.read(path))
    answer.close()


def failure_in_child(storage: Any, answer: Any) -> None:
    """Send what a forked child is told when it reads through its parent's storage object."""
    try:
        storage.read("a")
    except StorageError as error:
        answer.send(str(error))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def refuses_after_a_fork(_: StorageSuite, storage: Storage) -> None:
    """A forked child cannot use its parent's threads: it is told so, instead of waiting for ever."""
    storage.write_many([("a", b"x")])
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=failure_in_child, args=(storage, theirs))
    child.start()
    try:
        assert ours.poll(120)
        assert "this process was forked" in ours.recv()
    finally:
        child.kill()
        child.join()
    assert b"x" == storage.read("a")


class StorageSuite:
    """The contract of ``Storage``, method by method."""

    @pytest.fixture
    def place(self) -> Place:
        """Return root URI and storage options of an empty place."""
        raise NotImplementedError

    @pytest.fixture
    def storage(self, place: Place) -> Iterator[Storage]:
        """Open the place."""
        storage = open_storage(*place)
        yield storage
        detach(storage)

    @pytest.fixture
    def put_raw(self, place: Place) -> Callable[[str, bytes], None]:
        """Return a function that writes a file without the storage API."""
        raise NotImplementedError

    @pytest.fixture
    def get_raw(self, place: Place) -> Callable[[str], bytes]:
        """Return a function that reads a file without the storage API."""
        raise NotImplementedError

    # Reading and writing.

    @pytest.mark.parametrize("data", [b"", b"\0\r\n", bytes(range(256)) * 5000], ids=["empty", "short", "big"])
    @pytest.mark.parametrize("path", ["_root.ipc", "0101/0011/0000/01010101-größe-表 🙂.ipc", "a+b %41&=?#;,.bin"])
    def test_what_is_written_is_what_is_stored_and_read(
        self, storage: Storage, get_raw: Callable[[str], bytes], path: str, data: bytes
    ) -> None:
        """Bytes and names of all kinds come through unchanged."""
        storage.write_many([(path, data)])
        storage.barrier()
        assert data == get_raw(path)
        assert data == storage.read(path)
        assert [path] == [info.path for info in storage.list()]

    def test_a_memoryview_is_written(self, storage: Storage) -> None:
        """Views are taken as they are, also those of something larger."""
        storage.write_many([("view", memoryview(b"0123456789")[2:5])])
        storage.create("created", memoryview(b"0123456789")[5:])
        assert (b"234", b"56789") == (storage.read("view"), storage.read("created"))

    def test_what_others_wrote_is_read(self, storage: Storage, put_raw: Callable[[str, bytes], None]) -> None:
        """Nothing that this library writes beside a file is needed to read it."""
        put_raw("foreign/file", b"data")
        assert b"data" == storage.read("foreign/file")

    def test_a_missing_file_is_missing(self, storage: Storage, put_raw: Callable[[str, bytes], None]) -> None:
        """A missing file and a missing directory are the same."""
        put_raw("file", b"")
        for path in ("missing", "missing/too"):
            with pytest.raises(FileMissing, match="missing"):
                storage.read(path)
            with pytest.raises(FileMissing, match="missing"):
                storage.info(path)

    def test_a_range_is_read(self, storage: Storage) -> None:
        """Only its bytes, in one request; less where the file ends, nothing behind it."""
        storage.write_many([("file", bytes(range(256)) * 1000)])
        before = storage.counts.snapshot()
        assert bytes(range(10, 20)) == storage.read_range("file", 266, 276)
        assert {"get": 1, "bytes_read": 10} == (storage.counts - before).as_dict()
        assert b"\xfe\xff" == storage.read_range("file", 255_998, 300_000)
        assert (b"", b"") == (storage.read_range("file", 256_000, 256_001), storage.read_range("file", 5, 5))
        with pytest.raises(FileMissing, match="missing"):
            storage.read_range("missing", 0, 1)

    def test_many_files_are_read_in_order(self, storage: Storage) -> None:
        """Order is that of the question, and a missing file does not stop the others."""
        files = {f"d{i % 7}/f{i}": b"%d" % i for i in range(150)}
        storage.write_many(files.items())
        paths = [*list(files)[::-1], "missing", "d0/f0"]
        before = storage.counts.snapshot()
        answers = list(storage.read_many(paths))
        assert paths == [path for path, _ in answers]
        assert {**files} == {path: data for path, data in answers if isinstance(data, bytes)}
        assert ["missing"] == [path for path, data in answers if isinstance(data, FileMissing)]
        assert {"get": 152, "bytes_read": sum(map(len, files.values())) + 1} == (storage.counts - before).as_dict()

    def test_reading_may_stop_early(self, storage: Storage) -> None:
        """A reader that has seen enough leaves nothing running and reads only a window ahead."""
        storage.write_many((f"f{i}", b"x") for i in range(200))
        before = storage.counts.get
        assert "f0" == next(iter(storage.read_many([f"f{i}" for i in range(200)])))[0]
        assert storage.counts.get - before <= 70

    @pytest.mark.parametrize("path", ["../up", "a/../../up", "/abs", "", "a\0b"])
    def test_paths_do_not_lead_out(self, storage: Storage, path: str) -> None:
        """A path that would leave the root is refused by every method, without a request."""
        before = storage.counts.requests()
        for call in (
            lambda: storage.read(path),
            lambda: storage.read_range(path, 0, 1),
            lambda: storage.create(path, b""),
            lambda: storage.replace(path, b""),
            lambda: storage.read_tagged(path),
            lambda: storage.compare_and_set(path, b"", Tagged(None)),
            lambda: storage.write_many([(path, b"")]),
            lambda: storage.delete_many([path]),
            lambda: storage.info(path),
            lambda: list(storage.read_many([path])),
        ):
            with pytest.raises(InvalidLocation):
                call()
        assert before == storage.counts.requests()

    # Exclusive creation.

    def test_a_second_create_is_refused(self, storage: Storage, get_raw: Callable[[str], bytes]) -> None:
        """The file that is there stays, even if the second has the same content."""
        storage.create("root", b"first")
        for data in (b"second", b"first"):
            with pytest.raises(AlreadyExists):
                storage.create("root", data)
        assert b"first" == get_raw("root")
        assert ["root"] == [info.path for info in storage.list()]

    def test_create_respects_what_others_wrote(self, storage: Storage, put_raw: Callable[[str, bytes], None]) -> None:
        """A file made behind our back counts."""
        put_raw("root", b"theirs")
        with pytest.raises(AlreadyExists):
            storage.create("root", b"ours")

    def test_one_of_many_threads_wins(self, place: Place, get_raw: Callable[[str], bytes]) -> None:
        """Racing creates have one winner, and the file is the winner's."""
        storages = [open_storage(*place) for _ in range(RACERS)]
        with ThreadPoolExecutor(RACERS) as pool:
            list(pool.map(Storage.exists, storages))  # connected before the start
            for path in (f"race-{number}" for number in range(5)):
                start = time.time() + 0.05
                won = list(pool.map(race, storages, [path] * RACERS, range(RACERS), [start] * RACERS))
                assert 1 == sum(won)
                assert content_of(won.index(True)) == get_raw(path)

    def test_one_of_many_processes_wins(self, place: Place, get_raw: Callable[[str], bytes]) -> None:
        """The same across processes, which share nothing but the storage."""
        with processes(PROCESSES) as pool:
            list(pool.map(time.sleep, [0.01] * PROCESSES))
            start = time.time() + 1.5
            outcomes = list(pool.map(race_rounds, [place] * PROCESSES, range(PROCESSES), [start] * PROCESSES))
        for number in range(ROUNDS):
            won = [outcome[number] for outcome in outcomes]
            assert 1 == sum(won)
            assert content_of(won.index(True)) == get_raw(f"race-{number}")

    def test_the_proof_accepts_a_safe_store(self, storage: Storage) -> None:
        """The proof changes nothing, and a second one in the same process costs nothing."""
        storage.create("root", b"data")
        storage.prove_exclusive_create()
        before = storage.counts.snapshot()
        storage.prove_exclusive_create()
        assert 0 == (storage.counts - before).requests()
        assert b"data" == storage.read("root")

    # Failures.

    @pytest.mark.parametrize("mode", ["fail", "lose"])
    def test_a_failed_create_is_settled_by_reading_back(self, storage: Storage, mode: Any) -> None:
        """After a lost answer, finding our own bytes is success; finding nothing means another try."""
        plan = attach(storage, FaultPlan(mode, at=1, kinds={"create"}))
        storage.create("root", b"ours")
        assert (2 if mode == "fail" else 1) == plan.count
        assert b"ours" == storage.read("root")
        with pytest.raises(AlreadyExists):
            storage.create("root", b"ours")

    def test_a_lost_create_sees_the_winner(self, storage: Storage, put_raw: Callable[[str, bytes], None]) -> None:
        """When another writer's bytes are found after a failure, the race is lost."""
        put_raw("root", b"theirs")
        attach(storage, FaultPlan("fail", at=1, kinds={"create"}))
        with pytest.raises(AlreadyExists):
            storage.create("root", b"ours")
        assert b"theirs" == storage.read("root")

    @pytest.mark.parametrize("mode", ["fail_from", "lose_from"])
    def test_an_unsettled_create_says_so(self, storage: Storage, mode: Any) -> None:
        """When nothing can be read back either, the outcome is called unknown."""
        attach(storage, FaultPlan(mode, at=1, kinds={"create", "get"}))
        with pytest.raises(StorageError, match="outcome is unknown"):
            storage.create("root", b"ours")

    @pytest.mark.parametrize("mode", ["fail", "lose"])
    def test_every_single_failure_is_mended(self, storage: Storage, mode: Any) -> None:
        """Whichever request fails once, each operation succeeds as a whole."""

        def scenario(prefix: str) -> None:
            storage.write_many([(f"{prefix}/a", b"1"), (f"{prefix}/b", b"2")])
            storage.barrier()
            storage.create(f"{prefix}/root", b"root")
            storage.replace(f"{prefix}/hint", b"7")
            seen = storage.read_tagged(f"{prefix}/boundary")
            assert storage.compare_and_set(f"{prefix}/boundary", b"7", seen) is not None
            assert b"root" == storage.read(f"{prefix}/root")
            assert 5 == len(list(storage.list(f"{prefix}/")))
            assert 4 == storage.info(f"{prefix}/root").size
            result = storage.delete_many([f"{prefix}/a"])
            assert [f"{prefix}/a"] == result.deleted + result.missing

        dry = attach(storage, FaultPlan("count"))
        scenario("dry")
        assert dry.count >= 8
        for number in range(1, dry.count + 1):
            attach(storage, FaultPlan(mode, at=number))
            scenario(f"{mode}{number}")

    def test_lasting_failure_is_raised_after_the_retries(
        self, storage: Storage, put_raw: Callable[[str, bytes], None]
    ) -> None:
        """A storage that stays broken is reported, with the number of tries."""
        put_raw("file", b"")
        for call in (
            lambda: storage.read("file"),
            lambda: list(storage.read_many(["file"])),
            lambda: storage.write_many([("other", b"")]),
            lambda: storage.replace("hint", b""),
            lambda: storage.read_tagged("file"),
            lambda: list(storage.list()),
            storage.list_dirs,
            lambda: storage.info("file"),
            storage.exists,
            lambda: storage.delete_many(["file"]),
        ):
            plan = attach(storage, FaultPlan("fail_from"))
            with pytest.raises(StorageError, match="failed 6 times"):
                call()
            assert 6 == plan.count

    def test_a_permanent_failure_is_not_tried_again(self, storage: Storage) -> None:
        """What cannot be mended is raised at once."""
        plan = attach(storage, FaultPlan("fail_permanently"))
        with pytest.raises(StorageError, match="permanent"):
            storage.read("file")
        assert 1 == plan.count

    # Replacing.

    def test_replace_overwrites(self, storage: Storage, get_raw: Callable[[str], bytes]) -> None:
        """The newest content is seen, shorter or longer."""
        for data in (b"long content", b"", b"x"):
            storage.replace("_latest_hint.txt", data, durable=len(data) > 0)
            assert data == get_raw("_latest_hint.txt") == storage.read("_latest_hint.txt")

    def test_replace_is_atomic_for_readers(self, place: Place) -> None:
        """A reader sees one whole content or another, never none and never a mixture."""
        storage = open_storage(*place)
        contents = [b"a" * 200_000, b"b" * 100]
        storage.replace("hint", contents[0])
        stop = threading.Event()

        def read_until_stopped() -> set[bytes]:
            seen: set[bytes] = set()
            while not stop.is_set():
                seen.add(storage.read("hint"))
            return seen

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read_until_stopped) for _ in range(2)]
            try:
                for number in range(60):
                    storage.replace("hint", contents[number % 2], durable=False)
            finally:
                stop.set()
            for reader in readers:
                assert reader.result() <= set(contents)

    # Comparing and setting.

    def test_compare_and_set_replaces_what_was_read(self, storage: Storage, get_raw: Callable[[str], bytes]) -> None:
        """From no file on, each state is the expectation of the next; one request each."""
        before = storage.counts.snapshot()
        state = storage.read_tagged("_oldest_version.txt")
        assert state.data is None
        for data in (b"1", b"22", b""):
            following = storage.compare_and_set("_oldest_version.txt", data, state)
            assert following is not None
            assert data == following.data == get_raw("_oldest_version.txt")
            state = following
        assert state == storage.read_tagged("_oldest_version.txt")
        assert ["_oldest_version.txt"] == [info.path for info in storage.list()]
        spent = (storage.counts - before).as_dict()
        assert (3, 2) == (spent["put"], spent["get"])

    def test_an_outdated_compare_and_set_changes_nothing(
        self, storage: Storage, put_raw: Callable[[str, bytes], None], get_raw: Callable[[str], bytes]
    ) -> None:
        """Neither where another file stands, nor where there is one, nor where there is none any more."""
        absent = storage.read_tagged("file")
        put_raw("file", b"theirs")
        assert storage.compare_and_set("file", b"ours", absent) is None
        seen = storage.read_tagged("file")
        put_raw("file", b"changed")
        assert storage.compare_and_set("file", b"ours", seen) is None
        assert b"changed" == get_raw("file")
        current = storage.read_tagged("file")
        storage.delete_many(["file"])
        assert storage.compare_and_set("file", b"ours", current) is None
        assert [] == list(storage.list())

    def test_one_of_many_compare_and_sets_wins(self, place: Place, get_raw: Callable[[str], bytes]) -> None:
        """Racers that expect the same have one winner, round after round."""
        storages = [open_storage(*place) for _ in range(RACERS)]
        state = storages[0].read_tagged("mutable")

        def swap(storage: Storage, racer: int, expected: Tagged) -> Tagged | None:
            return storage.compare_and_set("mutable", content_of(racer), expected)

        with ThreadPoolExecutor(RACERS) as pool:
            list(pool.map(Storage.exists, storages))  # connected before the start
            for number in range(5):
                racers = [number * RACERS + racer for racer in range(RACERS)]
                left = [each for each in pool.map(swap, storages, racers, [state] * RACERS) if each is not None]
                assert 1 == len(left)
                state = left[0]
                assert state.data == get_raw("mutable")

    def test_no_increment_is_lost_between_processes(self, place: Place, get_raw: Callable[[str], bytes]) -> None:
        """A counter that several processes increase by compare-and-set counts them all."""
        with processes(PROCESSES) as pool:
            list(pool.map(count_up, [place] * PROCESSES, [ROUNDS] * PROCESSES))
        assert b"%d" % (PROCESSES * ROUNDS) == get_raw("counter")

    @pytest.mark.parametrize("mode", ["fail", "lose"])
    def test_a_failed_compare_and_set_is_settled_by_reading_back(self, storage: Storage, mode: Any) -> None:
        """After a lost answer, finding our own content is success; finding the old one means another try."""
        state = storage.compare_and_set("file", b"old", storage.read_tagged("file"))
        assert state is not None
        plan = attach(storage, FaultPlan(mode, at=1, kinds={"put"}))
        done = storage.compare_and_set("file", b"ours", state)
        assert done is not None
        assert (2 if mode == "fail" else 1) == plan.count
        assert done == storage.read_tagged("file")

    def test_a_lost_compare_and_set_sees_the_winner(
        self, storage: Storage, put_raw: Callable[[str, bytes], None]
    ) -> None:
        """When the content of another process is found after a lost answer, it may have replaced ours."""
        state = storage.read_tagged("file")
        put_raw("file", b"theirs")
        attach(storage, FaultPlan("fail", at=1, kinds={"put"}))
        with pytest.raises(OutcomeUnknown):
            storage.compare_and_set("file", b"ours", state)
        assert b"theirs" == storage.read("file")

    @pytest.mark.parametrize("mode", ["fail_from", "lose_from"])
    def test_an_unsettled_compare_and_set_says_so(self, storage: Storage, mode: Any) -> None:
        """When nothing can be read back either, the outcome is called unknown."""
        state = storage.read_tagged("file")
        attach(storage, FaultPlan(mode, at=1, kinds={"put", "get"}))
        with pytest.raises(StorageError, match="outcome is unknown"):
            storage.compare_and_set("file", b"ours", state)

    def test_the_proof_accepts_a_store_that_compares(self, storage: Storage) -> None:
        """The proof changes nothing, and a second one in the same process costs nothing."""
        storage.create("immutable", b"data")
        storage.prove_compare_and_set()
        before = storage.counts.snapshot()
        storage.prove_compare_and_set()
        assert 0 == (storage.counts - before).requests()
        assert b"data" == storage.read("immutable")
        assert ["immutable"] == [info.path for info in storage.list()]

    # Listing.

    def test_list_finds_all_files_below_a_prefix(self, storage: Storage, put_raw: Callable[[str, bytes], None]) -> None:
        """Prefixes may end within a name; sizes and ages are those of the files."""
        files = ["_a", "_ab", "d/x", "d/e/y", "d/e/yy", "dd/z"]
        for number, path in enumerate(files):
            put_raw(path, b"x" * number)
        expected: dict[str, set[str]] = {
            "": set(files),
            "_a": {"_a", "_ab"},
            "_ab": {"_ab"},
            "d": {"d/x", "d/e/y", "d/e/yy", "dd/z"},
            "d/": {"d/x", "d/e/y", "d/e/yy"},
            "d/e/y": {"d/e/y", "d/e/yy"},
            "nothing": set(),
            "nothing/at/all": set(),
        }
        assert expected == {prefix: {info.path for info in storage.list(prefix)} for prefix in expected}
        infos = {info.path: info for info in storage.list()}
        assert {path: number for number, path in enumerate(files)} == {path: info.size for path, info in infos.items()}
        assert all(abs(info.modified_millis - time.time() * 1000) < 60_000 for info in infos.values())
        assert storage.info("d/e/y").size == infos["d/e/y"].size
        assert abs(storage.info("d/e/y").modified_millis - infos["d/e/y"].modified_millis) < 1000

    def test_a_listing_of_some_files_shows_those_that_are_wanted(
        self, storage: Storage, put_raw: Callable[[str, bytes], None]
    ) -> None:
        """They are described as in a listing of all, for as many requests; what is asked for are paths."""
        for path in ("a", "d/x", "d/e/y", "d/e/yy", "dd/z"):
            put_raw(path, path.encode())
        before = storage.counts.snapshot()
        every = list(storage.list("d"))
        between = storage.counts.snapshot()
        some = list(storage.list_if("d", lambda path: path.endswith("y")))
        assert [info for info in every if info.path in {"d/e/y", "d/e/yy"}] == some
        assert between - before == storage.counts - between

    def test_a_listing_is_never_stale(self, storage: Storage, put_raw: Callable[[str, bytes], None]) -> None:
        """What others wrote since the last listing is in the next."""
        assert [] == list(storage.list())
        put_raw("new", b"")
        assert ["new"] == [info.path for info in storage.list()]

    def test_list_dirs_shows_one_level(self, storage: Storage, put_raw: Callable[[str, bytes], None]) -> None:
        """Directories end in a slash; what is deeper is not shown."""
        for path in ("a", "d/x", "d/e/y", "f/z"):
            put_raw(path, b"1")
        for prefix, directories, files in (("", ["d/", "f/"], ["a"]), ("d/", ["d/e/"], ["d/x"]), ("g/", [], [])):
            seen_directories, seen_files = storage.list_dirs(prefix)
            assert (directories, files) == (sorted(seen_directories), [info.path for info in seen_files])

    def test_exists_means_that_something_is_there(
        self, storage: Storage, put_raw: Callable[[str, bytes], None]
    ) -> None:
        """An empty place does not exist; one with a single deep file does."""
        assert not storage.exists()
        put_raw("deep/file", b"")
        assert storage.exists()

    # Deleting.

    def test_deleted_files_are_gone(self, storage: Storage, put_raw: Callable[[str, bytes], None]) -> None:
        """Exactly the named files go; deleting again is no error."""
        for path in ("a", "d/b", "d/c"):
            put_raw(path, b"")
        result = storage.delete_many(["a", "d/b"])
        assert (["a", "d/b"], [], {}) == (result.deleted, result.missing, result.failed)
        assert ["d/c"] == [info.path for info in storage.list()]
        again = storage.delete_many(["a"])
        assert (["a"], {}) == (again.deleted + again.missing, again.failed)
        assert [] == storage.delete_many([]).deleted

    def test_deletes_are_batched(self, storage: Storage) -> None:
        """1001 files are two requests."""
        names = [f"d/{number}" for number in range(1001)]
        before = storage.counts.snapshot()
        result = storage.delete_many(names)
        assert 1001 == len(result.deleted) + len(result.missing)
        assert {"delete": 2} == (storage.counts - before).as_dict()

    # Counting.

    def test_requests_and_bytes_are_counted(self, storage: Storage) -> None:
        """One request each, as documented; durability barriers are not requests."""
        storage.write_many([("a", b"123"), ("b", b"4")])
        storage.barrier()
        storage.create("root", b"56")
        storage.replace("hint", b"7", durable=False)
        storage.read("a")
        storage.info("a")
        storage.delete_many(["a", "b"])
        expected = {"get": 1, "put": 3, "create": 1, "delete": 1, "head": 1, "bytes_read": 3, "bytes_written": 7}
        seen = storage.counts.as_dict()
        seen.pop("sync", None)
        assert expected == seen
        assert 7 == storage.counts.requests()

    def test_counting_is_thread_safe(self, storage: Storage) -> None:
        """No count gets lost between threads."""
        storage.write_many([("a", b"x")])
        before = storage.counts.snapshot()
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: storage.read("a"), range(100)))
        assert {"get": 100, "bytes_read": 100} == (storage.counts - before).as_dict()

    # Travelling.

    def test_a_storage_can_be_sent_to_another_process(self, storage: Storage) -> None:
        """Spec and pickle give an equal storage with fresh counts."""
        storage.write_many([("a", b"x")])
        for copy in (pickle.loads(pickle.dumps(storage)), open_storage(*storage.spec())):
            assert (storage.root, b"x", 1) == (copy.root, copy.read("a"), copy.counts.requests())

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_storage_works_after_a_fork(self, storage: Storage) -> None:
        """A forked child may go on using its parent's object."""
        storage.write_many([("a", b"x")])
        list(storage.read_many(["a"] * 5))
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=read_in_child, args=(storage, "a", theirs))
        child.start()
        theirs.close()
        try:
            assert ours.poll(120)
            assert b"x" == ours.recv()
        finally:
            ours.close()
            child.join(5)
            child.kill()
            child.join()
        assert b"x" == storage.read("a")

    def test_nothing_secret_is_shown(self, storage: Storage, place: Place) -> None:
        """The representation tells the root and nothing else."""
        assert f"{type(storage).__name__}({place[0]!r})" == repr(storage)

    def test_the_doctor_finds_no_fault(self, place: Place) -> None:
        """The checks that run in the field pass here, and leave nothing behind."""
        assert [] == [result for result in check_conformance(*place) if not result.ok]
        assert not open_storage(*place).exists()
