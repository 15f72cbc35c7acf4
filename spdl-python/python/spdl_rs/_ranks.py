"""The rank of this process among the processes of a training run."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from . import _arguments as check

# The variables of the rank, the number of ranks, and the number of ranks on this machine.
_LAUNCHERS = (
    # torchrun, Accelerate, Lightning, DeepSpeed
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    # mpirun of Open MPI; of MPICH and Intel MPI. In a job of Slurm, mpirun starts its daemons by srun, whose
    # variables, with a number for each machine, the ranks inherit.
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    # srun. In a batch script, which is no step, SLURM_NTASKS is set although one process runs.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE"),
)


class Ranks(NamedTuple):
    """A rank, and how many there are."""

    rank: int
    world_size: int
    on_this_machine: int
    """The number of ranks on this machine; 1 if it is unknown."""
    place: str
    """Where the numbers are from."""


def found(*, strict: bool = False) -> Ranks:
    """Returns the rank of this process: of PyTorch, of a launcher, of JAX, or 0 of 1.

    Raises:
        ValueError: `strict` is set, and a launcher has set only a part of its variables, or invalid ones.
    """
    launched, fault = _of_launcher()
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        return Ranks(rank, world_size, launched.on_this_machine, "torch.distributed")
    if launched.world_size > 1:
        return launched
    jax = sys.modules.get("jax")
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if jax is not None and is_initialized is not None and is_initialized():
        return Ranks(jax.process_index(), jax.process_count(), 1, "jax.distributed")
    if strict and fault is not None and launched.place == _NO_LAUNCHER:
        raise ValueError(fault)
    return launched


_NO_LAUNCHER = "no launcher"


def _of_launcher() -> tuple[Ranks, str | None]:
    """The rank that the environment names, and what is wrong with variables that name none."""
    fault = found = None
    for names in _LAUNCHERS:
        rank, world_size, on_this_machine = map(_variable, names)
        if rank is not None and world_size is not None and rank < world_size:
            ranks = Ranks(rank, world_size, on_this_machine or 1, f"{names[0]} and {names[1]}")
            if found is None:
                found = ranks
            elif found[:2] == ranks[:2] and found.on_this_machine == 1:
                # `srun --mpi=pmi2` sets the variables of MPICH without the number of ranks on this machine.
                found = found._replace(on_this_machine=ranks.on_this_machine)
            continue
        texts = [os.environ.get(name) for name in names[:2]]
        # A batch script of Slurm has a number, but it is no step.
        is_batch_script = names[0] == "SLURM_PROCID" and texts == ["0", None]
        if texts != [None, None] and not is_batch_script:
            shown = " and ".join(
                f"{name} is not set" if text is None else f"{name} is {text!r}"
                for name, text in zip(names, texts)
            )
            fault = fault or (
                f'rank="auto": {shown}; expected a rank and a larger number of ranks: set both variables, or pass '
                "rank and world_size"
            )
    return found or Ranks(0, 1, 1, _NO_LAUNCHER), fault


def _variable(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def chosen(rank: Any, world_size: Any) -> tuple[int, int]:
    """Returns rank and number of ranks for the arguments."""
    if isinstance(rank, str):
        if rank != "auto":
            raise TypeError(f'rank must be a whole number or "auto", not {check.shown(rank)}')
        if world_size is not None:
            raise ValueError('world_size must be omitted with rank="auto"')
        ranks = found(strict=True)
        return ranks.rank, ranks.world_size
    total = check.whole("world_size", 1 if world_size is None else world_size, 1, 2**20)
    if rank is None and total > 1:
        raise ValueError(
            f'rank is missing: with world_size={total}, pass rank, 0 to {total - 1}, or only rank="auto"'
        )
    if rank is not None and world_size is None and check.whole("rank", rank, 0) > 0:
        raise ValueError(
            f'world_size is missing: with rank={rank}, pass world_size, or only rank="auto"'
        )
    return check.whole("rank", 0 if rank is None else rank, 0, total - 1), total


def overlooked(rank: Any, world_size: Any) -> str | None:
    """Returns a warning if this process is one of several, but the arguments name no rank."""
    if rank is not None or world_size is not None:
        return None
    ranks = found()
    if ranks.world_size == 1:
        return None
    return (
        f"this process is rank {ranks.rank} of {ranks.world_size} ({ranks.place}), but each rank loads all "
        'samples; pass rank="auto" to divide them among the ranks, or rank=0 and world_size=1 to load all'
    )


def threads_of(ranks: Ranks) -> int | None:
    """Returns the threads of this rank, if it shares all CPUs of the machine with others."""
    if ranks.on_this_machine == 1 or not hasattr(os, "sched_getaffinity"):
        return None
    cpus = len(os.sched_getaffinity(0))
    # A launcher that assigns CPUs to each rank has divided them.
    return max(1, cpus // ranks.on_this_machine) if cpus == os.cpu_count() else None
