//! File name extensions of images, audio and video.

/// The name extensions, in any case, by which [`ImageFolder`] knows an image. What a file really
/// holds is seen when it is decoded.
pub const IMAGE_EXTENSIONS: [&str; 10] =
    ["jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff"];

/// Name extensions of sound files, in any case: for [`ImageFolder::with_extensions`].
pub const AUDIO_EXTENSIONS: [&str; 13] =
    ["wav", "wave", "flac", "mp3", "ogg", "oga", "opus", "m4a", "aac", "aif", "aiff", "aifc", "au"];

/// Name extensions of films, in any case: for [`ImageFolder::with_extensions`].
pub const VIDEO_EXTENSIONS: [&str; 15] = [
    "mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ts", "mts", "m2ts", "ogv", "flv",
    "wmv", "3gp",
];
