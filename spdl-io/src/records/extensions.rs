//! File name extensions of images, audio, video and arrays.

/// File name extensions of images: the default of [`ImageFolder`](crate::ImageFolder). Letter case
/// is ignored.
pub const IMAGE_EXTENSIONS: [&str; 10] =
    ["jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff"];

/// File name extensions of audio, for
/// [`ImageFolder::with_extensions`](crate::ImageFolder::with_extensions). Letter case is ignored.
pub const AUDIO_EXTENSIONS: [&str; 17] = [
    "wav", "wave", "flac", "mp3", "ogg", "oga", "opus", "m4a", "aac", "aif", "aiff", "aifc", "au",
    "mka", "caf", "wma", "w64",
];

/// File name extensions of video, for
/// [`ImageFolder::with_extensions`](crate::ImageFolder::with_extensions). Letter case is ignored.
pub const VIDEO_EXTENSIONS: [&str; 15] = [
    "mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts", "mts", "m2ts", "ogv", "flv",
    "wmv", "3gp",
];

/// File name extensions of arrays: `.npy` and `.npz` of NumPy, and raw elements. Letter case is ignored.
pub const ARRAY_EXTENSIONS: [&str; 4] = ["npy", "npz", "bin", "raw"];
