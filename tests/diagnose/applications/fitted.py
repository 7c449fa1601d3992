"""A module of Lightning's, compiled as a whole and given to its Trainer: `fitted.py [log]`."""

import sys

import fault
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Fitted(lightning.LightningModule):
    def __init__(self, logs: bool) -> None:
        super().__init__()
        self.net, self.logs = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)), logs

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.net(batch[0])[:, 0], batch[1])
        if self.logs:
            self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(how: str = "") -> None:
    torch.manual_seed(0)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet)
    rows = TensorDataset(torch.randn(16, 8), torch.randn(16))
    trainer.fit(torch.compile(Fitted(how == "log")), DataLoader(rows, batch_size=8))
    print("step", trainer.global_step)


if __name__ == "__main__":
    main(*fault.arguments(sys.argv[1:]))
