"""tf.data: decode_and_crop_jpeg, which decodes only the crop, and TensorFlow's bilinear resize."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import common


def batches(options, antialias):
    size = [common.SIZE, common.SIZE]

    def load(path, label):
        encoded = tf.io.read_file(path)
        shape = tf.image.extract_jpeg_shape(encoded)
        if options.mode == "eval":
            # Resize of the shorter side to 256 and centre crop of 224, as one crop.
            shorter = tf.minimum(shape[0], shape[1])
            side = tf.cast(tf.round(shorter * common.SIZE / common.EVAL_RESIZE), tf.int32)
            window = tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])
        else:
            begin, extent, _ = tf.image.sample_distorted_bounding_box(
                shape,
                tf.zeros([1, 0, 4]),
                area_range=(0.08, 1.0),
                aspect_ratio_range=(3 / 4, 4 / 3),
                use_image_if_no_bounding_boxes=True,
            )
            window = tf.stack([begin[0], begin[1], extent[0], extent[1]])
        picture = tf.image.decode_and_crop_jpeg(
            encoded, window, channels=3, dct_method="INTEGER_ACCURATE"
        )
        picture = tf.image.resize(picture, size, antialias=antialias)
        if options.mode == "train":
            picture = tf.image.random_flip_left_right(picture)
        return tf.cast(tf.clip_by_value(tf.round(picture), 0, 255), tf.uint8), label

    files = options.files * options.epochs
    paths, labels = [path for path, _ in files], [label for _, label in files]
    data = tf.data.Dataset.from_tensor_slices((paths, labels))
    data = data.map(load, num_parallel_calls=options.workers).batch(common.BATCH).prefetch(4)
    settings = tf.data.Options()
    settings.threading.private_threadpool_size = options.workers
    return data.with_options(settings).as_numpy_iterator()


if __name__ == "__main__":
    antialias = "--alias" not in sys.argv
    sys.argv = [word for word in sys.argv if word != "--alias"]
    options = common.arguments()
    common.measure(lambda: batches(options, antialias))
