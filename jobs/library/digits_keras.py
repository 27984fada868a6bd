"""Train a small convolutional network on handwritten digits with Keras.

The dataset is a CSV file with 64 pixel columns (0 to 16) and a column "label". The platform draws
the loss and accuracy that Keras reports; nothing in this script is there for the platform alone.
"""

import argparse
import csv
import json
import os
from pathlib import Path

import keras
import numpy as np

data_dir = Path(os.environ.get("STARLING_DATA_DIR", "data"))


def load():
    """Return images of shape (n, 8, 8, 1) in 0 to 1, and labels of shape (n,)."""
    files = sorted(path for folder in data_dir.iterdir() for path in folder.rglob("*.csv"))
    if not files:
        raise SystemExit("No CSV file in the dataset. Choose the digits dataset for this job.")
    with files[0].open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    pixels = [name for name in rows[0] if name != "label"]
    images = np.array([[float(row[name]) for name in pixels] for row in rows], dtype="float32")
    labels = np.array([int(row["label"]) for row in rows], dtype="int64")
    return images.reshape(-1, 8, 8, 1) / 16.0, labels


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)

    images, labels = load()
    order = np.random.default_rng(options.seed).permutation(len(images))
    images, labels = images[order], labels[order]
    held_out = len(images) // 5
    print(f"{len(images) - held_out} images to learn from, {held_out} held out", flush=True)

    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu", padding="same"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu", padding="same"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(options.learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.summary(print_fn=lambda line: print(line, flush=True))
    model.fit(
        images[held_out:],
        labels[held_out:],
        validation_split=0.1,
        epochs=options.epochs,
        batch_size=options.batch_size,
        verbose=2,
    )
    loss, accuracy = model.evaluate(images[:held_out], labels[:held_out], verbose=0)
    print(f"test accuracy {accuracy:.4f}, test loss {loss:.4f}", flush=True)

    guesses = model.predict(images[:held_out], verbose=0).argmax(axis=1)
    confusion = np.zeros((10, 10), dtype=int)
    np.add.at(confusion, (labels[:held_out], guesses), 1)
    with open("confusion.csv", "w", newline="") as stream:
        csv.writer(stream).writerows(confusion.tolist())
    model.save("model.keras")
    Path("metrics.json").write_text(
        json.dumps({"test_accuracy": float(accuracy), "test_loss": float(loss)})
    )


if __name__ == "__main__":
    main()
