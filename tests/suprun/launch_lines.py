"""Launch lines as they stand in scripts and notes about distributed training."""

SINGLE_NODE = "torchrun --nproc_per_node=8 train.py --batch-size 32"

STATIC = """\
# Node 0 (master):
torchrun \\
  --nproc_per_node=8 \\
  --nnodes=4 \\
  --node_rank={rank} \\
  --master_addr=10.0.0.1 \\
  --master_port=29500 \\
  train.py
"""

SLURM = """\
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8

# one launcher on every node
srun torchrun \\
  --nproc_per_node=8 \\
  --nnodes=$SLURM_NNODES \\
  --node_rank=$SLURM_NODEID \\
  --master_addr=$(scontrol show hostname $SLURM_NODELIST | head -n1) \\
  --master_port=29500 \\
  train.py
"""

ELASTIC = """\
torchrun \\
  --nproc_per_node=8 \\
  --nnodes=2:8 \\         # min 2 nodes, max 8 nodes
  --rdzv_backend=c10d \\  # rendezvous backend
  --rdzv_endpoint=10.0.0.1:29500 \\
  train.py
"""

INLINE = """\
NCCL_DEBUG=INFO torchrun --nproc_per_node=8 -c "
import torch.distributed as dist
dist.init_process_group('nccl')
print(f'Rank {dist.get_rank()} of {dist.get_world_size()} ready')
"
"""
