"""Who gets in beside a pause, and when the pause begins."""

from node_agent.sandboxes.pause_gate import Need, PauseGate

COMMAND, FILE = Need.COMMAND, Need.FILE


def test_without_a_pause_everybody_gets_in() -> None:
    gate = PauseGate()
    assert all(gate.enter(need).done() for need in (COMMAND, FILE, COMMAND, FILE))


def test_a_pause_waits_for_files_and_lets_commands_start_meanwhile() -> None:
    gate = PauseGate()
    gate.enter(FILE)
    pause = gate.close()
    command, file = gate.enter(COMMAND), gate.enter(FILE)
    assert (pause.done(), command.done(), file.done()) == (False, True, False)
    gate.leave(FILE)
    assert (pause.done(), gate.enter(COMMAND).done()) == (False, False), "now it waits for the command only"
    gate.leave(COMMAND)
    assert (pause.done(), file.done()) == (True, False)
    gate.open(pause)
    assert file.done()


def test_nobody_gets_in_while_another_pause_is_under_way() -> None:
    gate = PauseGate()
    one, other = gate.close(), gate.close()
    command = gate.enter(COMMAND)
    gate.open(one)
    assert (other.done(), command.done()) == (True, False)
    gate.open(other)
    assert command.done()


def test_a_pause_that_is_given_up_holds_nobody_up() -> None:
    gate = PauseGate()
    gate.enter(FILE)
    pause = gate.close()
    file = gate.enter(FILE)
    gate.open(pause)
    assert file.done()


def test_who_gave_up_waiting_is_not_let_in() -> None:
    gate = PauseGate()
    pause = gate.close()
    assert gate.enter(COMMAND).cancel()
    gate.open(pause)
    assert gate.close().done()
