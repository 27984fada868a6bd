"""Train the digits classifier with PyTorch; metrics by ``starling_kit.report``."""

import argparse
import csv
import json
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

try:
    from starling_kit import report
except ImportError:  # at home

    def report(step=None, **metrics):
        print(step, metrics)


data_dir = Path(os.environ.get("STARLING_DATA_DIR", "data"))


def load():
    """Return images of shape (n, 1, 8, 8) in 0 to 1, and labels of shape (n,)."""
    files = sorted(path for folder in data_dir.iterdir() for path in folder.rglob("*.csv"))
    if not files:
        raise SystemExit("No CSV file in the dataset. Choose the digits dataset for this job.")
    with files[0].open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    pixels = [name for name in rows[0] if name != "label"]
    images = np.array([[float(row[name]) for name in pixels] for row in rows], dtype="float32")
    labels = np.array([int(row["label"]) for row in rows])
    return torch.tensor(images.reshape(-1, 1, 8, 8) / 16.0), torch.tensor(labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    images, labels = load()
    order = torch.randperm(len(images))
    images, labels = images[order].to(device), labels[order].to(device)
    held_out = len(images) // 5
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 16, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    loss_of = nn.CrossEntropyLoss()

    for epoch in range(1, options.epochs + 1):
        model.train()
        total = 0.0
        for part in torch.randperm(len(images) - held_out).split(options.batch_size):
            batch = part.to(device) + held_out
            optimizer.zero_grad()
            loss = loss_of(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        mean = total / (len(images) - held_out)
        print(f"epoch {epoch}: loss {mean:.4f}", flush=True)
        report(step=epoch, loss=mean)

    model.eval()
    with torch.no_grad():
        guesses = model(images[:held_out]).argmax(dim=1)
    accuracy = (guesses == labels[:held_out]).float().mean().item()
    print(f"test accuracy {accuracy:.4f}", flush=True)
    report(step=1, test_accuracy=accuracy)
    torch.save(model.state_dict(), "model.pt")
    Path("metrics.json").write_text(json.dumps({"test_accuracy": accuracy}))


if __name__ == "__main__":
    main()
