"""The journal in memory keeps the same rows as the one in a database."""

from autoscaler.core.actions import BootStarted, Learn, Move
from autoscaler.core.states import IntentState as S
from autoscaler.core.world import BackOff, BackOffKey, BackOffKind, Intent
from autoscaler.store.journal import Journal
from gateway.wire.resources import Shape
from simulator.journal import MemoryJournal


def test_both_journals_keep_the_same_rows() -> None:
    real, memory = Journal.open("sqlite://"), MemoryJournal()
    for journal in (real, memory):
        rows = [
            Intent(f"op{n}", "cpu", "p", f"vm{n}", "t", "l", S.PLANNED, float(n), float(n), 500.0) for n in range(3)
        ]
        journal.add(rows)
        journal.move("op0", S.CALLING, now=5.0, reason="", attempts=1)
        journal.move("op0", S.BOOTING, now=6.0, reason="made", instance_id="i0")
        journal.settle([BootStarted("op0", 900.0, "runs"), Move("op0", S.READY, "registered", node_id="n0")], 7.0)
        journal.settle([Learn("cpu", "t", "s", Shape(cpus=4, memory_mb=5))], 8.0)
        journal.amend("op1", now=9.0, reason="note", next_try_at=11.0)
        journal.move("op2", S.GONE, now=10.0, reason="refused")
        journal.back_off(BackOff(BackOffKey(BackOffKind.POOL, "cpu"), 99.0, 1, 9.0, "no"))
        journal.back_off(BackOff(BackOffKey(BackOffKind.OFFER, "cloud", "small@here"), 99.0, 1, 9.0, "no"))
        journal.clear_backoffs([BackOffKey(BackOffKind.OFFER, "cloud", "small@here")])
        journal.record(12.0, "s", "k", "d")
    assert memory.open_intents() == real.open_intents()
    assert memory.gone_names() == real.gone_names() == {"vm2"}
    assert memory.backoffs() == real.backoffs()
    assert memory.learned() == real.learned()
    assert memory.spent(20.0) == real.spent(20.0)
    assert memory.events(100) == real.events(100)
    real.close()
