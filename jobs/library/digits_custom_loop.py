"""Train the digits classifier with a loop of one's own: GradientTape and tf.function.

Use this as a start when ``fit`` is not enough. A line "[metric] name=value …" is all it takes to
have a value drawn on the job's page.
"""

import argparse
import csv
import json
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

data_dir = Path(os.environ.get("STARLING_DATA_DIR", "data"))


def load():
    """Return images of shape (n, 64) in 0 to 1, and labels of shape (n,)."""
    files = sorted(path for folder in data_dir.iterdir() for path in folder.rglob("*.csv"))
    if not files:
        raise SystemExit("No CSV file in the dataset. Choose the digits dataset for this job.")
    with files[0].open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    pixels = [name for name in rows[0] if name != "label"]
    images = np.array([[float(row[name]) for name in pixels] for row in rows], dtype="float32")
    return images / 16.0, np.array([int(row["label"]) for row in rows], dtype="int64")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)

    images, labels = load()
    order = np.random.default_rng(options.seed).permutation(len(images))
    images, labels = images[order], labels[order]
    held_out = len(images) // 5
    train = (
        tf.data.Dataset.from_tensor_slices((images[held_out:], labels[held_out:]))
        .shuffle(4096, seed=options.seed)
        .batch(options.batch_size)
    )
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam(options.learning_rate)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(batch_images, batch_labels):
        with tf.GradientTape() as tape:
            loss = loss_of(batch_labels, model(batch_images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    def accuracy_on(some_images, some_labels):
        guesses = np.argmax(model(some_images, training=False), axis=1)
        return float((guesses == some_labels).mean())

    for epoch in range(1, options.epochs + 1):
        losses = [float(step(*batch)) for batch in train]
        accuracy = accuracy_on(images[held_out:], labels[held_out:])
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}", flush=True)
        print(f"[metric] step={epoch} loss={np.mean(losses):.6f} accuracy={accuracy:.6f}", flush=True)

    accuracy = accuracy_on(images[:held_out], labels[:held_out])
    print(f"test accuracy {accuracy:.4f}", flush=True)
    print(f"[metric] step=1 test_accuracy={accuracy:.6f}", flush=True)
    model.save("model.keras")
    Path("metrics.json").write_text(json.dumps({"test_accuracy": accuracy}))


if __name__ == "__main__":
    main()
