"""A few steps of a tiny model, as a user of Hugging Face's Trainer writes them; nothing is loaded from anywhere."""

import sys

import torch
from transformers import Trainer, TrainingArguments


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, inputs, labels):
        outputs = self.linear(inputs)
        return {"loss": torch.nn.functional.mse_loss(outputs, labels), "logits": outputs}


class Numbers(torch.utils.data.Dataset):
    def __init__(self):
        torch.manual_seed(0)
        self.inputs, self.labels = torch.randn(32, 4), torch.randn(32, 1)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, place):
        return {"inputs": self.inputs[place], "labels": self.labels[place]}


arguments = TrainingArguments(
    output_dir=sys.argv[1],
    use_cpu=True,
    ddp_backend="gloo",
    per_device_train_batch_size=4,
    num_train_epochs=1,
    report_to=[],
    save_strategy="no",
    logging_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model=Tiny(), args=arguments, train_dataset=Numbers())
trainer.train()
place = f"{arguments.process_index} of {arguments.world_size}, local {arguments.local_process_index}"
print(f"trainer {place}, {arguments.parallel_mode.value}: {trainer.state.global_step} steps", flush=True)
torch.distributed.destroy_process_group()
