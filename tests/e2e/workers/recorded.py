"""What scripts written for torchrun rely on: @record, its environment, env:// with gloo.

Words: gloo; fail or die, which rank 1 does; once: in the first generation only.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    words = sys.argv[1:]
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    assert dist.is_torchelastic_launched()
    assert dist.get_node_local_rank() == int(os.environ["LOCAL_RANK"])
    if "gloo" in words:
        dist.init_process_group("gloo")
        total = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(total)
        print(f"sum {total.item():g} of {dist.get_world_size()}", flush=True)
    rank = int(os.environ["RANK"])
    if rank == 1 and (is_first or "once" not in words):
        if "die" in words:
            os.kill(os.getpid(), signal.SIGKILL)
        if "fail" in words:
            raise ValueError("rank 1 has had enough")
    if "gloo" in words:
        dist.barrier()
        dist.destroy_process_group()


main()
