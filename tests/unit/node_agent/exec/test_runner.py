"""Input on its way to a process."""

from node_agent.exec.runner import StdinBuffer, StdinRoom


def test_input_is_taken_whole_or_not_at_all() -> None:
    buffer = StdinBuffer(StdinRoom(), bound=10)
    assert buffer.offer(b"x" * 8)
    assert not buffer.offer(b"y" * 3)
    assert buffer.take() == b"x" * 8
    assert not buffer.offer(b"y" * 3)
    buffer.taken()
    assert buffer.offer(b"y" * 30)  # larger than the bound, alone


def test_the_end_of_input_comes_after_what_was_taken() -> None:
    buffer = StdinBuffer(StdinRoom())
    buffer.offer(b"last")
    buffer.close()
    assert buffer.take() == b"last"
    buffer.taken()
    assert buffer.take() is None


def test_a_discarded_buffer_takes_no_more_input() -> None:
    buffer = StdinBuffer(StdinRoom())
    buffer.offer(b"unread")
    buffer.discard()
    assert buffer.take() is None


def test_all_sessions_together_are_bounded_and_give_their_room_back() -> None:
    room = StdinRoom(bound=10)
    one, two = StdinBuffer(room), StdinBuffer(room)
    assert one.offer(b"x" * 8)
    assert not two.offer(b"y" * 8)
    one.discard()
    one.discard()
    assert two.offer(b"y" * 8)
    assert two.take() == b"y" * 8
    two.taken()
    assert one.offer(b"z" * 10)
