"""How a job's processes are laid out over nodes."""

from __future__ import annotations

import pytest

from memgate_worker.hook.memgate_hook.layout import Layout, find_given_world


def test_a_rank_has_the_variables_of_its_node() -> None:
    """Only those that its launcher sets, with the values of the real layout."""
    present = dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "CROSS_SIZE"), "")

    assert Layout(8, 4).variables(26, present) == {
        "RANK": "26",
        "WORLD_SIZE": "32",
        "LOCAL_RANK": "2",
        "GROUP_RANK": "3",
        "CROSS_SIZE": "4",
    }


@pytest.mark.parametrize(
    ("variables", "want"),
    [
        ({}, None),
        ({"WORLD_SIZE": "1", "RANK": "0"}, None),
        ({"SLURM_NTASKS": "1"}, None),
        ({"WORLD_SIZE": "many"}, None),
        ({"WORLD_SIZE": "8"}, ("WORLD_SIZE", Layout(8, 1))),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4"}, ("WORLD_SIZE", Layout(4, 4))),
        ({"SLURM_NTASKS": "32", "SLURM_NNODES": "4"}, ("SLURM_NTASKS", Layout(8, 4))),
        ({"SLURM_NTASKS": "6", "SLURM_NTASKS_PER_NODE": "3"}, ("SLURM_NTASKS", Layout(3, 2))),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, ("OMPI_COMM_WORLD_SIZE", Layout(2, 1))),
    ],
)
def test_variables_say_how_many_processes_there_are(
    variables: dict[str, str], want: tuple[str, Layout] | None
) -> None:
    """Torchrun's, Slurm's or Open MPI's; of one process, there is nothing to say."""
    found = find_given_world(variables)

    assert (found and (found.source, found.layout)) == want


def test_what_is_asked_for_says_how_many_are_on_a_node() -> None:
    """Where variables only say how many there are in all."""
    found = find_given_world({"WORLD_SIZE": "16"}, nproc=8)

    assert found is not None
    assert found.layout == Layout(8, 2)
    assert found.variables(9, {"WORLD_SIZE": "16"}) == {
        "WORLD_SIZE": "16",
        "RANK": "9",
        "LOCAL_RANK": "1",
    }
