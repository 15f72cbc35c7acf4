//! [`ImageFolder`]: a folder of images with one folder per class.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{MAIN_SEPARATOR, Path, PathBuf};
use std::sync::Arc;

use futures_util::StreamExt;
use spdl_core::{Dataset, Error, ErrorKind, Labeled, Result};

use crate::fetch::{Fetcher, Key, ObjectMeta};
use crate::files::{Folder, FolderPath, Listing, Walker, bytes, os_error};
use crate::records::IMAGE_EXTENSIONS;

/// The images below a folder, with one class per folder.
///
/// ```text
/// root/cat/1.jpg            class 0, "cat"
/// root/cat/more/2.PNG       class 0: images at any depth below the class folder
/// root/dog/3.webp           class 1, "dog"
/// ```
///
/// - **Classes.** The folders directly below the root, sorted by the bytes of their names. A label is an
///   index into the classes of its root. To use several roots together, give them a common list:
///   [`with_classes`](ImageFolder::with_classes).
/// - **Flat folders.** If only the root holds images, there are no classes, and every label is −1.
/// - **Order.** As in torchvision's `ImageFolder`: by class, then by folder path, then by file name, each
///   compared as bytes. The order does not depend on the file system.
/// - **Keys.** The key of an image is its complete path.
/// - **Images.** Files with one of the [`IMAGE_EXTENSIONS`], or of the given
///   [extensions](ImageFolder::with_extensions). Opening lists folders, and reads no file contents. Names need
///   not be UTF-8.
/// - **Hidden files and folders** are ignored. torchvision reads them.
/// - **Symbolic links** are followed, up to 8 per path. A link to one of its parent folders is ignored, with
///   a warning. A broken link with an image name is an image that cannot be read.
/// - **Warnings.** [`warnings`](ImageFolder::warnings) lists suspicious folders: there are several
///   classes, all with names of splits (`train`, `val`, …); a class has no images (it remains a
///   class, but torchvision raises an error); images next to the class folders are ignored.
///
/// Memory use per image: its file name and 8 bytes; in a store, 16 bytes and the version more.
pub struct ImageFolder {
    /// The root with a separator at the end, or empty.
    prefix: Box<[u8]>,
    /// Consecutive images with the same folder and label.
    runs: Vec<ImageRun>,
    /// All file names, concatenated.
    names: Vec<u8>,
    /// The end of each name.
    ends: Vec<usize>,
    /// The listed size of each image. Empty for local folders, whose listing has neither sizes nor versions.
    sizes: Vec<u64>,
    /// All listed versions, concatenated. The version of an image without one is empty.
    versions: Vec<u8>,
    /// The end of each version.
    version_ends: Vec<usize>,
    classes: Vec<String>,
    warnings: Vec<Error>,
}

struct ImageRun {
    /// The position of the first image.
    first: u64,
    label: i64,
    /// The path below the root, with a separator at the end, or empty.
    folder: Box<[u8]>,
}

impl ImageFolder {
    /// Lists the images below `root`.
    ///
    /// # Errors
    /// - `NotFound` if the folder does not exist or holds no image.
    /// - `InvalidArgument` if `root` is a file.
    /// - `PermissionDenied` or `Io` if a folder cannot be listed.
    /// - `LimitExceeded` for a path with more than 8 symbolic links to folders, or for more than
    ///   100,000 repeated visits of folders through links.
    pub fn open(root: impl AsRef<Path>) -> Result<Self> {
        ImageFolder::with_extensions(root, &IMAGE_EXTENSIONS)
    }

    /// Lists the files with these extensions below `root`. The extensions have no dot; letter case is ignored.
    ///
    /// ```
    /// use spdl_io::ImageFolder;
    /// use spdl_io::records::IMAGE_EXTENSIONS;
    /// # let folder = tempfile::tempdir()?;
    /// # std::fs::write(folder.path().join("a.jxl"), [])?;
    /// # let path = folder.path();
    /// let extensions = [&IMAGE_EXTENSIONS[..], &["jxl"]].concat();
    /// let images = ImageFolder::with_extensions(path, &extensions)?;
    /// # assert_eq!(spdl_core::Dataset::len(&images), 1);
    /// # assert!(ImageFolder::open(path).is_err());
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// Audio files and videos are listed in the same way:
    ///
    /// ```
    /// use spdl_core::Dataset;
    /// use spdl_io::ImageFolder;
    /// use spdl_io::records::AUDIO_EXTENSIONS;
    /// # let folder = tempfile::tempdir()?;
    /// # for (class, file) in [("bark", "1.wav"), ("bark", "notes.txt"), ("meow", "2.FLAC")] {
    /// #     std::fs::create_dir_all(folder.path().join(class))?;
    /// #     std::fs::write(folder.path().join(class).join(file), [])?;
    /// # }
    /// # let path = folder.path();
    /// let sounds = ImageFolder::with_extensions(path, &AUDIO_EXTENSIONS)?;
    /// assert_eq!((sounds.len(), sounds.classes()), (2, &["bark".to_owned(), "meow".to_owned()][..]));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`open`](ImageFolder::open).
    pub fn with_extensions(root: impl AsRef<Path>, extensions: &[&str]) -> Result<Self> {
        let root = root.as_ref();
        let metadata = fs::metadata(root).map_err(|error| {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            let message = if missing { "folder does not exist" } else { "cannot read the folder" };
            os_error(message, &root.into(), error)
        })?;
        if !metadata.is_dir() {
            let message = "expected a folder of images, found a file";
            return Err(at(root, ErrorKind::InvalidArgument, message));
        }

        let walker = Walker::new(root, |name| is_image(name, extensions)).skip_hidden();
        let Listing { folders, files } = walker.list(&walker.root()?)?;
        let mut images = ImageFolder::empty(with_separator(root));
        let name = |class: &FolderPath| {
            Key::from_path(class.path.file_name().unwrap_or_default()).to_string()
        };
        let classes = folders.iter().map(name).collect();
        let paths: Vec<PathBuf> = folders.iter().map(|class| class.path.clone()).collect();
        for ((label, path), found) in (0..).zip(&paths).zip(walker.walk(folders)?) {
            if found.is_empty() {
                images.warnings.push(at(path, ErrorKind::NotFound, "class has no images"));
            }
            for folder in found {
                images.push_folder(label, root, folder);
            }
        }
        let mut seen = walker.into_observations();
        if images.is_empty() && files.is_empty() {
            return Err(no_images(root, seen.unselected, seen.warnings.len(), extensions));
        }
        if images.is_empty() {
            // A flat folder: warnings about other folders do not apply.
            images.warnings.clear();
            images.push_folder(-1, root, Folder { path: root.to_path_buf(), files });
        } else {
            images.classes = classes;
            images.warnings.extend(splits_as_classes(None, root, &images.classes));
            if !files.is_empty() {
                images.warnings.push(ignored_images(root, files.len()));
            }
        }
        images.warnings.append(&mut seen.warnings);
        // Make the order of warnings independent of the file system.
        images.warnings.sort_by(|a, b| a.key().cmp(&b.key()));
        images.names.shrink_to_fit();
        images.ends.shrink_to_fit();
        Ok(images)
    }

    /// Lists the images below `root` in a store.
    ///
    /// Classes, order and labels are the same as for a local folder, except that a folder without
    /// images is not a class. Keys are those of the store. The fetcher must support listing.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use spdl_core::Dataset;
    /// use spdl_io::{Fetcher, ImageFolder, MemoryFetcher};
    /// use spdl_io::records::IMAGE_EXTENSIONS;
    /// let objects = [("photos/dog/1.jpg", "…"), ("photos/cat/1.jpg", "…")];
    /// let store: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter(objects));
    /// let images = ImageFolder::fetch(&store, "photos", &IMAGE_EXTENSIONS);
    /// let images = spdl_core::block_on(images)?;
    /// assert_eq!(images.classes(), ["cat", "dog"]);
    /// assert_eq!(images.item(1)?.value.as_str(), Some("photos/dog/1.jpg"));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// - The errors of the fetcher.
    /// - `Unsupported` if the fetcher does not list.
    /// - `NotFound` if there is no image.
    pub async fn fetch(
        fetcher: &Arc<dyn Fetcher>,
        root: impl Into<Key>,
        extensions: &[&str],
    ) -> Result<Self> {
        ImageFolder::fetch_from(None, fetcher, root.into(), extensions).await
    }

    /// [`fetch`](Self::fetch) with the address of the store, for messages.
    pub(crate) async fn fetch_from(
        store: Option<&str>,
        fetcher: &Arc<dyn Fetcher>,
        root: Key,
        extensions: &[&str],
    ) -> Result<Self> {
        let mut listing = fetcher.list(&root).await?;
        let mut prefix = root.as_bytes().to_vec();
        if !prefix.is_empty() && !prefix.ends_with(b"/") {
            prefix.push(b'/');
        }
        // The path below the root, the size and the version of each image.
        let mut found = Vec::new();
        let mut unwanted = 0;
        while let Some(object) = listing.next().await {
            let object = object?;
            let key = &object.key;
            let below = key.as_bytes().strip_prefix(&prefix[..]).unwrap_or(key.as_bytes());
            let mut parts = below.split(|&byte| byte == b'/');
            if parts.any(|part| part.is_empty() || part.starts_with(b".")) {
                continue;
            }
            let (_, _, name) = split(below);
            match is_image(Key::from_bytes(name).to_path().as_os_str(), extensions) {
                true => found.push((Box::<[u8]>::from(below), object.size, object.version)),
                false => unwanted += 1,
            }
        }
        let mut images = ImageFolder::empty(prefix.into());
        if found.is_empty() {
            return Err(no_images(&root.to_path(), unwanted, 0, extensions));
        }
        let is_flat = found.iter().all(|(below, ..)| !below.contains(&b'/'));
        let all = found.len();
        if !is_flat {
            found.retain(|(below, ..)| below.contains(&b'/'));
        }
        let ignored = all - found.len();
        found.sort_unstable_by(|(a, ..), (b, ..)| sort_key(a).cmp(&sort_key(b)));
        for (below, size, version) in &found {
            let (class, folder, name) = split(below);
            let is_new = images.runs.last().is_none_or(|run| *run.folder != *folder);
            if is_new {
                let class = Key::from_bytes(class).to_string();
                if !is_flat && images.classes.last() != Some(&class) {
                    images.classes.push(class);
                }
                images.push_run(images.classes.len() as i64 - 1, folder.into());
            }
            images.push_name(name);
            images.sizes.push(*size);
            images.versions.extend_from_slice(version.as_deref().unwrap_or_default().as_bytes());
            images.version_ends.push(images.versions.len());
        }
        images.warnings.extend(splits_as_classes(store, &root.to_path(), &images.classes));
        if ignored > 0 {
            images.warnings.push(ignored_images(&root.to_path(), ignored));
        }
        Ok(images)
    }

    /// Replaces the classes, so that folders with different classes can be used together.
    ///
    /// Labels become indices into `classes`, which may contain more classes than this folder has. The images
    /// and their order do not change.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use spdl_core::source::sampler::{Concatenated, Mixed};
    /// use spdl_core::{Dataset, Labeled};
    /// use spdl_io::{ImageFolder, Key};
    /// # let place = tempfile::tempdir()?;
    /// # let (photos, drawings) = (place.path().join("photos"), place.path().join("drawings"));
    /// # for (root, class) in [(&photos, "cat"), (&photos, "dog"), (&drawings, "ant"), (&drawings, "cat")] {
    /// #     std::fs::create_dir_all(root.join(class))?;
    /// #     std::fs::write(root.join(class).join("1.jpg"), [])?;
    /// # }
    /// // Photographs of cats and dogs, drawings of ants and cats.
    /// let (photos, drawings) = (ImageFolder::open(photos)?, ImageFolder::open(drawings)?);
    /// // Label 0 is "cat" in the first folder, and "ant" in the second.
    /// assert_eq!((photos.item(0)?.label, drawings.item(0)?.label), (0, 0));
    ///
    /// let classes = ImageFolder::union_of_classes([&photos, &drawings]);
    /// assert_eq!(classes, ["ant", "cat", "dog"]);
    /// let photos: Arc<dyn Dataset<Item = Labeled<Key>>> = Arc::new(photos.with_classes(&classes)?);
    /// let drawings: Arc<dyn Dataset<Item = Labeled<Key>>> =
    ///     Arc::new(drawings.with_classes(&classes)?);
    /// let both = Concatenated::new([photos, drawings])?;
    /// let labels = (0..4).map(|index| Ok(both.item(index)?.item.label));
    /// assert_eq!(labels.collect::<spdl_core::Result<Vec<_>>>()?, [1, 2, 0, 1]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if `classes` has a duplicate or lacks a class of this folder, and if this folder has
    /// no classes: a flat folder, or the result of [`from_paths`](ImageFolder::from_paths).
    pub fn with_classes(mut self, classes: &[impl AsRef<str>]) -> Result<Self> {
        let mut labels = HashMap::new();
        for (label, class) in (0_i64..).zip(classes) {
            let class = class.as_ref();
            if labels.insert(class, label).is_some() {
                return Err(self.invalid(format!("duplicate class {class:?} in the list")));
            }
        }
        if self.classes.is_empty() {
            let message = "cannot set the list of classes: these images have no classes";
            return Err(self.invalid(message.into()));
        }
        let is_unknown = |class: &&String| !labels.contains_key(class.as_str());
        let unknown: Vec<&String> = self.classes.iter().filter(is_unknown).collect();
        if let Some(first) = unknown.first() {
            let message = match unknown.len() - 1 {
                0 => format!("class {first:?} is not in the list of {} classes", classes.len()),
                more => format!(
                    "class {first:?} and {more} more are not in the list of {} classes",
                    classes.len()
                ),
            };
            return Err(self.invalid(message));
        }
        let label_of = |own: i64| {
            let class = usize::try_from(own).ok().and_then(|own| self.classes.get(own));
            class.and_then(|class| labels.get(class.as_str())).copied().unwrap_or(own)
        };
        for run in &mut self.runs {
            run.label = label_of(run.label);
        }
        self.classes = classes.iter().map(|class| class.as_ref().to_owned()).collect();
        Ok(self)
    }

    /// The classes of all `folders`, without duplicates and sorted by their bytes, for
    /// [`with_classes`](ImageFolder::with_classes).
    pub fn union_of_classes<'a>(folders: impl IntoIterator<Item = &'a ImageFolder>) -> Vec<String> {
        let all = folders.into_iter().flat_map(|folder| &folder.classes);
        all.collect::<BTreeSet<_>>().into_iter().cloned().collect()
    }

    fn invalid(&self, message: String) -> Error {
        let error = Error::new(ErrorKind::InvalidArgument, message);
        match self.prefix.is_empty() {
            true => error,
            false => error.with_key(Key::from_bytes(&self.prefix).display_name()),
        }
    }

    /// A data set of given files, in this order. Without `labels`, every label is −1.
    ///
    /// The files are not accessed. Reading a missing file fails later.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty list, and if the numbers of labels and files differ.
    pub fn from_paths<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        labels: Option<&[i64]>,
    ) -> Result<Self> {
        let mut images = ImageFolder::empty(Box::default());
        for (index, path) in paths.into_iter().enumerate() {
            let label = match labels {
                // The lengths are compared below.
                Some(labels) => labels.get(index).copied().unwrap_or_default(),
                None => -1,
            };
            if images.runs.last().is_none_or(|run| run.label != label) {
                images.push_run(label, Box::default());
            }
            images.push_name(Key::from_path(path).as_bytes());
        }
        if images.is_empty() {
            return Err(Error::new(ErrorKind::InvalidArgument, "the list of images is empty"));
        }
        if let Some(labels) = labels
            && labels.len() as u64 != images.len()
        {
            let message = format!("{} images, but {} labels", images.len(), labels.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(images)
    }

    /// The class names; a label is an index. Empty for a flat folder and for
    /// [`from_paths`](ImageFolder::from_paths).
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Ignored files and folders, and suspicious classes, each with its path.
    pub fn warnings(&self) -> &[Error] {
        &self.warnings
    }

    /// The key, size and version of an image in a store, as they were listed; `None` for local files.
    pub(crate) fn listed(&self, index: u64, key: &Key) -> Option<ObjectMeta> {
        let index = usize::try_from(index).ok()?;
        let mut meta = ObjectMeta::new(key.clone(), *self.sizes.get(index)?);
        let version = piece(&self.versions, &self.version_ends, index)?;
        let version = std::str::from_utf8(version).ok().filter(|version| !version.is_empty());
        meta.version = version.map(Into::into);
        Some(meta)
    }

    fn empty(prefix: Box<[u8]>) -> Self {
        ImageFolder {
            prefix,
            runs: Vec::new(),
            names: Vec::new(),
            ends: Vec::new(),
            sizes: Vec::new(),
            versions: Vec::new(),
            version_ends: Vec::new(),
            classes: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn push_folder(&mut self, label: i64, root: &Path, folder: Folder) {
        // The path of each folder starts with the root.
        let below = folder.path.strip_prefix(root).unwrap_or(&folder.path);
        self.push_run(label, with_separator(below));
        for name in folder.files.iter() {
            self.push_name(name);
        }
    }

    fn push_run(&mut self, label: i64, folder: Box<[u8]>) {
        self.runs.push(ImageRun { first: self.len(), label, folder });
    }

    fn push_name(&mut self, name: &[u8]) {
        self.names.extend_from_slice(name);
        self.ends.push(self.names.len());
    }

    fn name(&self, index: usize) -> Option<&[u8]> {
        piece(&self.names, &self.ends, index)
    }
}

/// One of several concatenated texts.
fn piece<'a>(all: &'a [u8], ends: &[usize], index: usize) -> Option<&'a [u8]> {
    let end = *ends.get(index)?;
    let start = index.checked_sub(1).map_or(0, |before| ends[before]);
    all.get(start..end)
}

impl Dataset for ImageFolder {
    type Item = Labeled<Key>;

    fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    fn item(&self, index: u64) -> Result<Labeled<Key>> {
        let after = self.runs.partition_point(|run| run.first <= index);
        let found = usize::try_from(index).ok().and_then(|index| self.name(index));
        let (Some(name), Some(run)) = (found, self.runs[..after].last()) else {
            let message =
                format!("index {index} is out of range: the folder has {} images", self.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let path = [&self.prefix, &run.folder, name].concat();
        Ok(Labeled { value: Key::from_bytes(&path), label: run.label })
    }

    /// The 64-bit FNV-1a hash of all paths below the root and of the labels.
    fn content_hash(&self) -> Option<u64> {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |bytes: &[u8]| {
            for &byte in bytes {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        };
        for run in &self.runs {
            add(&run.first.to_le_bytes());
            add(&run.label.to_le_bytes());
            add(&run.folder);
        }
        add(&self.names);
        self.ends.iter().for_each(|&end| add(&(end as u64).to_le_bytes()));
        Some(hash)
    }

    fn key(&self, item: &Labeled<Key>) -> Option<Arc<str>> {
        Some(item.value.display_name())
    }
}

impl fmt::Debug for ImageFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageFolder")
            .field("root", &Key::from_bytes(&self.prefix))
            .field("images", &self.len())
            .field("classes", &self.classes.len())
            .field("warnings", &self.warnings.len())
            .finish()
    }
}

fn is_image(name: &OsStr, extensions: &[&str]) -> bool {
    let extension = Path::new(name).extension().map(bytes);
    extension.is_some_and(|found| {
        extensions.iter().any(|known| found.eq_ignore_ascii_case(known.as_bytes()))
    })
}

/// The sort key of an image: [`split`], without the slash at the end of the folder.
fn sort_key(below: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let (class, folder, name) = split(below);
    (class, folder.strip_suffix(b"/").unwrap_or(folder), name)
}

/// Splits a path below the root into class, folder with a slash at the end, and file name.
fn split(below: &[u8]) -> (&[u8], &[u8], &[u8]) {
    let slash = |from: Option<usize>| from.map_or(0, |at| at + 1);
    let class = &below[..slash(below.iter().position(|&byte| byte == b'/'))];
    let (folder, name) = below.split_at(slash(below.iter().rposition(|&byte| byte == b'/')));
    (class.strip_suffix(b"/").unwrap_or(class), folder, name)
}

fn ignored_images(root: &Path, images: usize) -> Error {
    let message = match images {
        1 => "1 image next to the class folders is ignored".to_owned(),
        more => format!("{more} images next to the class folders are ignored"),
    };
    at(root, ErrorKind::InvalidArgument, message)
}

/// A warning if there are several classes, all with names of splits.
fn splits_as_classes(store: Option<&str>, root: &Path, classes: &[String]) -> Option<Error> {
    let is_split = |class: &String| is_split_name(class);
    let first = classes.first().filter(|_| classes.len() > 1 && classes.iter().all(is_split))?;
    let names = classes.join(", ");
    let split = classes.iter().find(|class| class.to_lowercase().starts_with("train"));
    let path = root.join(split.unwrap_or(first)).display().to_string();
    let path = crate::fetch::quoted(&store.map_or(path.clone(), |store| format!("{store}/{path}")));
    let message =
        format!("the folders {names} are used as classes; to read one split, open {path}");
    Some(at(root, ErrorKind::InvalidArgument, message))
}

/// Whether a folder name is that of a split, such as `train`.
pub(crate) fn is_split_name(name: &str) -> bool {
    const SPLITS: [&str; 8] =
        ["train", "training", "val", "valid", "validation", "test", "testing", "dev"];
    SPLITS.contains(&&*name.to_lowercase())
}

/// The path with a separator at the end, unless it is empty.
fn with_separator(path: &Path) -> Box<[u8]> {
    let mut path = Key::from_path(path).as_bytes().to_vec();
    if path.last().is_some_and(|&last| last != b'/' && last != MAIN_SEPARATOR as u8) {
        path.push(MAIN_SEPARATOR as u8);
    }
    path.into()
}

fn at(path: &Path, kind: ErrorKind, message: impl Into<String>) -> Error {
    Error::new(kind, message).with_key(Key::from_path(path).display_name())
}

fn no_images(root: &Path, unwanted: u64, bad_links: usize, extensions: &[&str]) -> Error {
    let count = |number: u64, one: &str, more: &str| match number {
        0 => format!("no {more}"),
        1 => format!("1 {one}"),
        number => format!("{number} {more}"),
    };
    let mut found = match unwanted {
        0 => "the folder holds no files".to_owned(),
        others => {
            format!("the folder holds {}", count(others, "other file", "other files"))
        }
    };
    if bad_links > 0 {
        let links = count(bad_links as u64, "invalid link", "invalid links");
        found.push_str(&format!(" and {links}"));
    }
    let known = extensions.join(", ");
    let what = if extensions.contains(&"jpg") { "images" } else { "samples" };
    let message = format!("no {what} found: {found}; expected files that end in {known}");
    at(root, ErrorKind::NotFound, message)
}
