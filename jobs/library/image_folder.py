"""Train an image classifier on your own pictures: one subfolder per class.

Upload a zip such as ``cats/1.jpg cats/2.jpg dogs/1.jpg …``; JPEG, PNG, BMP and GIF are read.
"""

import argparse
import json
import os
from pathlib import Path

import keras

data_dir = Path(os.environ.get("STARLING_DATA_DIR", "data"))
ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".gif"}


def class_root():
    """Return the first folder, from the top, whose subfolders hold pictures."""
    datasets = sorted(data_dir.iterdir())
    below = [path for dataset in datasets for path in sorted(dataset.rglob("*")) if path.is_dir()]
    for folder in [*datasets, *below]:
        classes = [
            sub
            for sub in folder.iterdir()
            if sub.is_dir() and any(file.suffix.lower() in ENDINGS for file in sub.iterdir())
        ]
        if len(classes) >= 2:
            return folder
    raise SystemExit("The dataset needs two or more subfolders with pictures, one per class.")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--image_size", type=int, default=96)
    parser.add_argument("--learning_rate", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    keras.utils.set_random_seed(options.seed)

    train, held_out = keras.utils.image_dataset_from_directory(
        class_root(),
        validation_split=0.2,
        subset="both",
        seed=options.seed,
        image_size=(options.image_size, options.image_size),
        batch_size=options.batch_size,
    )
    classes = train.class_names
    print(f"classes: {', '.join(classes)}", flush=True)

    model = keras.Sequential(
        [
            keras.layers.Input((options.image_size, options.image_size, 3)),
            keras.layers.Rescaling(1.0 / 255),
            keras.layers.RandomFlip("horizontal"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu", padding="same"),
            keras.layers.Conv2D(64, 3, strides=2, activation="relu", padding="same"),
            keras.layers.Conv2D(128, 3, strides=2, activation="relu", padding="same"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(len(classes), activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(options.learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(train, validation_data=held_out, epochs=options.epochs, verbose=2)
    loss, accuracy = model.evaluate(held_out, verbose=0)
    print(f"test accuracy {accuracy:.4f}", flush=True)
    model.save("model.keras")
    Path("classes.json").write_text(json.dumps(classes))
    Path("metrics.json").write_text(
        json.dumps({"test_accuracy": float(accuracy), "test_loss": float(loss)})
    )


if __name__ == "__main__":
    main()
