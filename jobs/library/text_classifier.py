"""Train a text classifier on a CSV file with the columns "text" and "label"."""

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
    """Return the texts, their labels as numbers, and the names of the labels."""
    for path in sorted(path for folder in data_dir.iterdir() for path in folder.rglob("*.csv")):
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
            rows = list(csv.DictReader(stream))
        if rows and {"text", "label"} <= set(rows[0]):
            names = sorted({row["label"] for row in rows})
            numbers = {name: number for number, name in enumerate(names)}
            texts = [row["text"] or "" for row in rows]
            return texts, np.array([numbers[row["label"]] for row in rows]), names
    raise SystemExit('No CSV file with the columns "text" and "label" in the dataset.')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--words", type=int, default=20000, help="size of the vocabulary")
    parser.add_argument("--learning_rate", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)

    texts, labels, names = load()
    order = np.random.default_rng(options.seed).permutation(len(texts))
    texts, labels = np.array(texts, dtype=object)[order], labels[order]
    held_out = max(1, len(texts) // 5)
    print(f"{len(texts)} texts, labels: {', '.join(names)}", flush=True)

    vectorize = keras.layers.TextVectorization(
        max_tokens=options.words, output_mode="tf_idf", ngrams=2
    )
    vectorize.adapt(tf.constant([str(text) for text in texts[held_out:]]))
    vectors = vectorize(tf.constant([str(text) for text in texts])).numpy()
    model = keras.Sequential(
        [
            keras.layers.Input((vectors.shape[1],)),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(len(names), activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(options.learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(
        vectors[held_out:],
        labels[held_out:],
        validation_split=0.1,
        epochs=options.epochs,
        batch_size=options.batch_size,
        verbose=2,
    )
    loss, accuracy = model.evaluate(vectors[:held_out], labels[:held_out], verbose=0)
    print(f"test accuracy {accuracy:.4f}", flush=True)
    model.save("model.keras")
    Path("vocabulary.json").write_text(json.dumps(vectorize.get_vocabulary()))
    Path("labels.json").write_text(json.dumps(names))
    Path("metrics.json").write_text(
        json.dumps({"test_accuracy": float(accuracy), "test_loss": float(loss)})
    )


if __name__ == "__main__":
    main()
