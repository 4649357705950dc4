"""Creating instances: operation ids."""

from autoscaler.instances import new_operation_id


def test_operation_ids_fit_into_names_and_do_not_repeat() -> None:
    made = {new_operation_id() for _ in range(200)}
    assert len(made) == 200
    assert all(len(each) == 12 and each.isalnum() and each == each.lower() for each in made)
