"""A few steps of a tiny model, as a user of Lightning Fabric writes them."""

import torch
from lightning_fabric import Fabric, seed_everything

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp", num_nodes=1)
fabric.launch()
seed_everything(0, verbose=False)
model = torch.nn.Linear(4, 1)
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=4))
steps = 0
for inputs, targets in loader:
    optimizer.zero_grad()
    fabric.backward(torch.nn.functional.mse_loss(model(inputs), targets))
    optimizer.step()
    steps += 1
weights = next(model.parameters()).detach().sum()
assert torch.equal(fabric.all_reduce(weights.clone(), reduce_op="max"), weights)
environment = type(fabric.strategy.cluster_environment).__name__
print(f"fabric {fabric.global_rank} of {fabric.world_size}, {environment}: {steps} steps", flush=True)
