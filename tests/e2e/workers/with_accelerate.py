"""A few steps of a tiny model, as a user of accelerate writes them."""

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
steps = 0
for inputs, targets in loader:
    optimizer.zero_grad()
    accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
    optimizer.step()
    steps += 1
weights = accelerator.unwrap_model(model).weight.detach().sum().reshape(1)
same = accelerator.gather(weights)
assert torch.equal(same, same[:1].expand_as(same)), same
print(
    f"accelerate {accelerator.process_index} of {accelerator.num_processes}, local {accelerator.local_process_index}, "
    f"{accelerator.state.backend}: {steps} steps",
    flush=True,
)
accelerator.end_training()
