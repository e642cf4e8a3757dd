"""`[run] backend`: what the ranks are told of it, and what a node has to have for it.

"auto" tells and asks nothing: torch.distributed chooses by the device of a tensor. NCCL wants a GPU of its own for each
rank, and refuses two ranks on one (NCCL's documentation, "Creating a communicator").
"""

from protocol.errors import Refused

NCCL = "nccl"
VARIABLE = "SUPD_BACKEND"


def backend_variables(backend: str) -> dict[str, str]:
    """What is added to the environment of every rank."""
    return {} if backend == "auto" else {VARIABLE: backend}


def check_backend(backend: str, ranks: int, gpus: int, how: str) -> None:
    """Raises Refused where so many ranks of a node cannot use it with so many GPUs; `how` they were counted."""
    if backend != NCCL or ranks <= gpus:
        return
    if not gpus:
        message = f'backend = "nccl" needs a GPU for each rank, and this node has none: {how}'
        raise Refused("F212", message, hint='write run.backend = "gloo", which runs on CPUs, or "auto"')
    message = f'backend = "nccl" needs a GPU for each of {ranks} ranks, and there are {gpus}: {how}'
    raise Refused("F212", message, hint=f'write topology.nproc_per_node = {gpus} or less, or run.backend = "gloo"')
