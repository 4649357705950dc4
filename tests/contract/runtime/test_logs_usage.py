"""What a sandbox shows from outside: its first process's output, its use, the node's images."""

from gateway.wire.states import DeathReason
from node_agent.runtime.base import Stream
from node_agent.runtime.counters import Counters
from tests.contract.runtime.lab import UNTIL_GO, Lab, in_thread
from tests.contract.runtime.marks import also_on_runc


@also_on_runc
def test_logs_by_stream_and_offset(lab: Lab) -> None:
    with lab.sandbox(command=["sh", "-c", f"{UNTIL_GO}; echo out one; echo out two; printf '\\377\\000' >&2"]) as box:
        ending = in_thread(lab.runtime.wait, box.id)
        box.go()
        death = ending.result()

        out = lab.runtime.logs(box.id, Stream.STDOUT, 0, 1000)
        part = lab.runtime.logs(box.id, Stream.STDOUT, 8, 3)
        err = lab.runtime.logs(box.id, Stream.STDERR, 0, 1000)
        beyond = lab.runtime.logs(box.id, Stream.STDOUT, 999, 10)
        far = [lab.runtime.logs(box.id, Stream.STDOUT, offset, 10) for offset in (2**44 - 1, 2**46, 2**63 - 1)]

    assert (death.reason, death.exit_code) == (DeathReason.EXITED, 0)
    assert (out.data, out.size) == (b"out one\nout two\n", 16)
    assert (part.data, part.size) == (b"out", 16)
    assert (err.data, err.size) == (b"\xff\x00", 2)
    assert (beyond.data, beyond.size) == (b"", 16)
    assert {(piece.data, piece.size) for piece in far} == {(b"", 16)}


@also_on_runc
def test_logs_of_a_silent_process_are_empty(lab: Lab) -> None:
    with lab.sandbox() as box:
        piece = lab.runtime.logs(box.id, Stream.STDOUT, 0, 1000)

    assert (piece.data, piece.size) == (b"", 0)


@also_on_runc
def test_usage_counts_what_is_used(lab: Lab) -> None:
    with lab.sandbox() as box:
        before = lab.runtime.usage(box.id)
        box.text("head -c 20000000 /dev/zero >/workspace/big; n=0; while [ $n -lt 200000 ]; do n=$((n+1)); done")
        process = box.exec("sleep", "77300")
        after = lab.runtime.usage(box.id)
        process.kill()
        process.close()

    assert before.memory_mb > 0
    assert after.cpu_seconds > before.cpu_seconds
    assert 18 < after.disk_mb - before.disk_mb < 22
    assert after.pids > before.pids >= 1


@also_on_runc
def test_what_was_used_is_counted_to_the_end_and_beyond(lab: Lab) -> None:
    burn = f"{UNTIL_GO}; timeout 1 sh -c 'while :; do :; done'; nc -w 1 192.0.2.1 9 </dev/null; exit 0"
    ends: list[Counters] = []
    lab.runtime.listen_endings(lambda _, files: ends.append(files.read()))
    with lab.sandbox(command=["sh", "-c", burn], network="bridge") as box:
        ending = in_thread(lab.runtime.wait, box.id)
        box.go()
        assert ending.result().exit_code == 0
        files = lab.runtime.counter_files(box.id)
        assert files is not None
        assert files.generation == 1
        assert files.read().disk_mb is not None

    assert ends[0].cpu_seconds is not None
    assert 0.2 < ends[0].cpu_seconds < 30  # of the second, as much as a busy machine spares
    assert ends[0].egress_bytes is not None
    assert ends[0].egress_bytes > 0
    assert lab.runtime.counter_files(box.id) is None


def test_images_name_what_starts_without_a_pull(lab: Lab) -> None:
    with lab.sandbox() as box:
        found = lab.found(box.id)

        assert found is not None
        assert found.image_digest in lab.runtime.images()


def test_facts_of_the_engine(lab: Lab) -> None:
    facts = lab.runtime.probe()

    assert facts.name == lab.runtime.name
    assert facts.version
    assert facts.pause
    assert "gvisor" in facts.isolations
