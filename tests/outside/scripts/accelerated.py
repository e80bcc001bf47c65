"""Hugging Face accelerate, as its quick tour has it: prepare, backward, gather."""

import torch
from accelerate import Accelerator


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
    losses = accelerator.gather(loss.detach().reshape(1))
    print(f"result {losses.double().sum().item():.12f} {len(losses)} {accelerator.num_processes}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
