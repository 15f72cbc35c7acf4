//! Tests of `ImageFolder`: classes, order, links, warnings.

// feature of this file: Q07
#![expect(clippy::unwrap_used, reason = "helpers of tests, where a panic is the report")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spdl_core::{Dataset, Error, ErrorKind, Labeled};
use spdl_io::records::IMAGE_EXTENSIONS;
use spdl_io::{Fetcher, ImageFolder, Key, LocalFetcher, MemoryFetcher};
use tempfile::TempDir;

/// Creates a folder with these files. A name that ends with a slash is an empty folder.
fn tree(names: &[&str]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for name in names {
        let path = root.path().join(name);
        if name.ends_with('/') {
            fs::create_dir_all(path).unwrap();
        } else {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
    }
    root
}

/// The label and the path below the root of each image, in order.
fn found(root: &Path) -> Vec<(i64, String)> {
    let images = ImageFolder::open(root).unwrap();
    let items = (0..images.len()).map(|index| images.item(index).unwrap());
    items.map(|Labeled { value, label }| (label, below(root, &value))).collect()
}

fn below(root: &Path, key: &Key) -> String {
    Key::from_path(key.to_path().strip_prefix(root).unwrap()).to_string()
}

fn images(items: &[(i64, &str)]) -> Vec<(i64, String)> {
    items.iter().map(|&(label, name)| (label, name.to_owned())).collect()
}

fn warnings(root: &Path) -> Vec<(String, String)> {
    let images = ImageFolder::open(root).unwrap();
    let line = |warning: &Error| {
        (below(root, &warning.key().unwrap().into()), warning.message().to_owned())
    };
    images.warnings().iter().map(line).collect()
}

fn refusal(root: &Path, kind: ErrorKind, message: &str) {
    let error = ImageFolder::open(root).unwrap_err();
    assert_eq!(error.kind(), kind, "{}", error.report());
    assert_eq!(error.key(), root.to_str());
    assert!(error.message().contains(message), "{}", error.report());
    assert!(!error.report().contains('\n'));
}

#[test]
fn classes_are_the_sorted_folders_below_the_root() {
    let root = tree(&["dog/b.jpg", "cat/2.jpg", "dog/a.jpg", "cat/10.jpg", "Zebra/z.jpg"]);
    assert_eq!(ImageFolder::open(root.path()).unwrap().classes(), ["Zebra", "cat", "dog"]);
    let expected = [
        (0, "Zebra/z.jpg"),
        (1, "cat/10.jpg"),
        (1, "cat/2.jpg"),
        (2, "dog/a.jpg"),
        (2, "dog/b.jpg"),
    ];
    assert_eq!(found(root.path()), images(&expected));
    assert_eq!(warnings(root.path()), []);
}

#[test]
fn nested_images_belong_to_the_top_class_in_the_order_of_torchvision() {
    let root = tree(&["a/x/2.jpg", "a/x-y/1.jpg", "a/z.jpg", "a/x/w/3.jpg", "b/1.jpg"]);
    // `a/x-y` is sorted between `a/x` and `a/x/w`, because `-` is less than `/`.
    let expected =
        [(0, "a/z.jpg"), (0, "a/x/2.jpg"), (0, "a/x-y/1.jpg"), (0, "a/x/w/3.jpg"), (1, "b/1.jpg")];
    assert_eq!(found(root.path()), images(&expected));
}

/// The folders are listed by several threads.
#[test]
fn many_folders_give_the_same_list_as_few() {
    let mut expected = Vec::new();
    for class in 0..150 {
        for below in ["", "a/", "a-b/", "a/c/"] {
            let images =
                ["1.jpg", "10.jpg", "2.jpg"].map(|name| format!("{class:03}/{below}{name}"));
            expected.extend(images.map(|path| (class, path)));
        }
    }
    // Within a class: by the bytes of the folder path, then by file name.
    expected.sort_by_key(|(class, path)| {
        let (folder, name) = path.rsplit_once('/').unwrap();
        (*class, folder.to_owned(), name.to_owned())
    });
    let names: Vec<&str> = expected.iter().map(|(_, path)| path.as_str()).collect();
    let root = tree(&[&names[..], &["empty/", "full/not an image"]].concat());
    assert_eq!(found(root.path()), expected);
    let message = "class has no images".to_owned();
    assert_eq!(
        warnings(root.path()),
        [("empty".to_owned(), message.clone()), ("full".to_owned(), message)]
    );
}

#[test]
fn folders_named_like_splits_give_a_warning() {
    let root = tree(&["Train/cat/1.jpg", "val/cat/2.jpg"]);
    let path = root.path().join("Train").display().to_string();
    let message =
        format!("the folders Train, val are used as classes; to read one split, open {path}");
    assert_eq!(warnings(root.path()), [(String::new(), message)]);
    for classes in
        [&["train/1.jpg"][..], &["train/1.jpg", "tram/1.jpg"], &["cat/1.jpg", "val/1.jpg"]]
    {
        assert_eq!(warnings(tree(classes).path()), [], "{classes:?}");
    }
    let objects = [("a/test/1.jpg", ""), ("a/validation/2.jpg", "")];
    let store: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter(objects));
    let images = spdl_core::block_on(ImageFolder::fetch(&store, "a", &IMAGE_EXTENSIONS)).unwrap();
    let messages: Vec<_> = images.warnings().iter().map(|it| it.message()).collect();
    assert_eq!(messages.len(), 1);
    assert!(messages[0].ends_with("open a/test"), "{messages:?}");
}

#[test]
fn a_stored_folder_equals_a_local_folder() {
    let names = [
        "b/1.jpg",
        "a/x/2.jpg",
        "a/x-y/1.jpg",
        "a/z.jpg",
        "a/x/w/3.JPG",
        "a-b/1.png",
        "a.b/1.png",
        "A/1.png",
        "a/notes.txt",
        "a/.hidden.jpg",
        ".git/x/1.jpg",
        "stray.jpg",
        "größe/1.jpg",
    ];
    for names in [&names[..], &["2.jpg", "1.jpg", "notes.txt"], &["only/deep/er/1.jpg"]] {
        let root = tree(names);
        let local = ImageFolder::open(root.path()).unwrap();
        let fetcher: Arc<dyn Fetcher> = Arc::new(LocalFetcher::new());
        let listed = ImageFolder::fetch(&fetcher, root.path(), &IMAGE_EXTENSIONS);
        let stored = spdl_core::block_on(listed).unwrap();
        assert_eq!(stored.classes(), local.classes());
        let items = |images: &ImageFolder| -> Vec<_> {
            (0..images.len()).map(|index| images.item(index).unwrap()).collect()
        };
        assert_eq!(items(&stored), items(&local));
        assert_eq!(stored.content_hash(), local.content_hash(), "a run may resume with the other");
        assert_eq!(stored.warnings().len(), local.warnings().len());
    }
    let store: Arc<dyn Fetcher> = Arc::new(MemoryFetcher::from_iter([("photos/a.txt", "")]));
    let none = ImageFolder::fetch(&store, "photos", &IMAGE_EXTENSIONS);
    let error = spdl_core::block_on(none).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("1 other file;"), "{error}");
}

#[test]
fn extensions_match_in_any_case() {
    let names: Vec<String> = IMAGE_EXTENSIONS.iter().map(|end| format!("c/image.{end}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.extend(["c/A.JPG", "c/B.JpEg", "c/two.dots.Png"]);
    let ours = names.len();
    names.extend(["c/notes.txt", "c/jpg", "c/archive.jpg.gz", "c/trailing.", "c/x.jpgg"]);
    let root = tree(&names);
    let found = found(root.path());
    assert_eq!(found.len(), ours, "{found:?}");
    assert!(found.contains(&(0, "c/B.JpEg".to_owned())));
}

#[test]
fn hidden_files_and_folders_are_ignored() {
    let root = tree(&["cat/1.jpg", "cat/._1.jpg", "cat/.cache/2.jpg", ".git/3.jpg", ".jpg"]);
    assert_eq!(found(root.path()), images(&[(0, "cat/1.jpg")]));
}

#[test]
fn a_flat_folder_has_no_classes_and_the_label_minus_one() {
    let root = tree(&["b.jpg", "a.png", "readme.txt", "notes/todo.txt"]);
    assert_eq!(found(root.path()), images(&[(-1, "a.png"), (-1, "b.jpg")]));
    assert_eq!(ImageFolder::open(root.path()).unwrap().classes().len(), 0);
    assert_eq!(warnings(root.path()), []);
}

#[test]
fn images_next_to_class_folders_are_ignored_with_a_warning() {
    let root = tree(&["stray.jpg", "other.jpg", "cat/1.jpg"]);
    assert_eq!(found(root.path()), images(&[(0, "cat/1.jpg")]));
    let message = "2 images next to the class folders are ignored".to_owned();
    assert_eq!(warnings(root.path()), [(String::new(), message)]);
    let root = tree(&["stray.jpg", "cat/1.jpg"]);
    let message = "1 image next to the class folders is ignored".to_owned();
    assert_eq!(warnings(root.path()), [(String::new(), message)]);
}

fn labels(images: &ImageFolder) -> Vec<i64> {
    (0..images.len()).map(|index| images.item(index).unwrap().label).collect()
}

#[test]
fn with_classes_gives_folders_common_labels() {
    let photos = tree(&["cat/1.jpg", "cat/more/2.jpg", "dog/1.jpg"]);
    let drawings = tree(&["ant/1.jpg", "cat/1.jpg"]);
    let open = |root: &TempDir| ImageFolder::open(root.path()).unwrap();
    assert_eq!(labels(&open(&photos)), [0, 0, 1]);
    assert_eq!(labels(&open(&drawings)), [0, 1]);
    let classes = ImageFolder::union_of_classes([&open(&photos), &open(&drawings)]);
    assert_eq!(classes, ["ant", "cat", "dog"]);
    let alike = open(&photos).with_classes(&classes).unwrap();
    assert_eq!((labels(&alike), alike.classes()), (vec![1, 1, 2], &classes[..]));
    assert_eq!(labels(&open(&drawings).with_classes(&classes).unwrap()), [0, 1]);
    // The images and their order stay the same. The content hash differs, so that a state is refused.
    let keys = |images: &ImageFolder| -> Vec<String> {
        (0..images.len())
            .map(|index| below(photos.path(), &images.item(index).unwrap().value))
            .collect()
    };
    assert_eq!(keys(&alike), keys(&open(&photos)));
    assert_ne!(alike.content_hash(), open(&photos).content_hash());
    // The list may have any order, and may be replaced again.
    let other = alike.with_classes(&["dog", "bird", "ant", "cat"]).unwrap();
    assert_eq!(labels(&other), [3, 3, 0]);
}

#[test]
fn with_classes_refuses_a_list_that_lacks_a_class() {
    let refused = |root: &TempDir, classes: &[&str], words: &[&str]| {
        let images = ImageFolder::open(root.path()).unwrap();
        let error = images.with_classes(classes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
    };
    let root = tree(&["cat/1.jpg", "dog/1.jpg", "eel/1.jpg"]);
    let name = root.path().file_name().unwrap().to_str().unwrap();
    refused(&root, &["cat", "dog"], &["\"eel\" is not", "2 classes", name]);
    refused(&root, &["dog"], &["\"cat\" and 1 more are not"]);
    refused(&root, &["cat", "dog", "eel", "cat"], &["duplicate class \"cat\""]);
    refused(&tree(&["1.jpg"]), &["cat"], &["have no classes"]);
    let list = ImageFolder::from_paths(["a.jpg"], Some(&[3])).unwrap();
    assert_eq!(list.with_classes(&["cat"]).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_class_without_images_keeps_its_label_with_a_warning() {
    let root = tree(&["a/1.jpg", "b/notes.txt", "c/", "d/1.jpg"]);
    assert_eq!(found(root.path()), images(&[(0, "a/1.jpg"), (3, "d/1.jpg")]));
    assert_eq!(ImageFolder::open(root.path()).unwrap().classes(), ["a", "b", "c", "d"]);
    let message = "class has no images".to_owned();
    let expected = [("b".to_owned(), message.clone()), ("c".to_owned(), message)];
    assert_eq!(warnings(root.path()), expected);
}

#[test]
fn a_folder_without_images_is_refused() {
    refusal(tree(&[]).path(), ErrorKind::NotFound, "no images found: the folder holds no files");
    refusal(tree(&["a/", "b/c/"]).path(), ErrorKind::NotFound, "no images found");
    let one = tree(&["1.txt"]);
    refusal(one.path(), ErrorKind::NotFound, "no images found: the folder holds 1 other file;");
    let root = tree(&["a/1.txt", "2.doc"]);
    refusal(root.path(), ErrorKind::NotFound, "no images found: the folder holds 2 other files");
}

#[test]
fn a_missing_folder_and_a_file_are_refused() {
    let root = tree(&["file.jpg"]);
    refusal(&root.path().join("none"), ErrorKind::NotFound, "folder does not exist");
    refusal(&root.path().join("file.jpg"), ErrorKind::InvalidArgument, "found a file");
    let error = ImageFolder::open("").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn keys_start_with_the_given_root() {
    let root = tree(&["cat/1.jpg"]);
    let plain = ImageFolder::open(root.path()).unwrap().item(0).unwrap();
    let mut slash = root.path().as_os_str().to_owned();
    slash.push("/");
    let with_slash = ImageFolder::open(PathBuf::from(slash)).unwrap();
    assert_eq!(with_slash.item(0).unwrap(), plain);
    assert_eq!(plain.value.to_path(), root.path().join("cat/1.jpg"));
    assert_eq!(with_slash.key(&plain), Some(plain.value.display_name()));
}

#[test]
fn an_index_out_of_range_is_refused() {
    let root = tree(&["cat/1.jpg"]);
    let images = ImageFolder::open(root.path()).unwrap();
    for index in [1, u64::MAX] {
        assert_eq!(images.item(index).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn a_list_of_paths_keeps_its_order_and_labels() {
    let paths = ["z.jpg", "/some/where/a.jpg", "", "z.jpg"];
    let items = |labels| {
        let images = ImageFolder::from_paths(paths, labels).unwrap();
        let items: Vec<_> = (0..images.len()).map(|index| images.item(index).unwrap()).collect();
        let paths: Vec<_> = items.iter().map(|item| item.value.to_string()).collect();
        (paths, items.iter().map(|item| item.label).collect::<Vec<_>>())
    };
    let names = paths.map(str::to_owned).to_vec();
    assert_eq!(items(None), (names.clone(), vec![-1; 4]));
    assert_eq!(items(Some(&[7, 7, -3, 7])), (names, vec![7, 7, -3, 7]));
}

#[test]
fn from_paths_refuses_empty_lists_and_wrong_numbers_of_labels() {
    for labels in [&[1][..], &[], &[1, 2, 3]] {
        let error = ImageFolder::from_paths(["a.jpg", "b.jpg"], Some(labels)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("2 images"), "{error}");
    }
    let none: [&str; 0] = [];
    assert!(ImageFolder::from_paths(none, None).is_err());
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::{Duration, Instant};

    #[test]
    fn links_to_files_folders_and_classes_are_followed() {
        let store = tree(&["x/1.jpg", "x/deep/2.jpg", "one.bin"]);
        let root = tree(&["cat/0.jpg"]);
        symlink(store.path().join("x"), root.path().join("dog")).unwrap();
        symlink(store.path().join("one.bin"), root.path().join("cat/9.jpg")).unwrap();
        symlink(store.path().join("x/deep"), root.path().join("cat/linked")).unwrap();
        let expected = [
            (0, "cat/0.jpg"),
            (0, "cat/9.jpg"),
            (0, "cat/linked/2.jpg"),
            (1, "dog/1.jpg"),
            (1, "dog/deep/2.jpg"),
        ];
        assert_eq!(found(root.path()), images(&expected));
        assert_eq!(warnings(root.path()), []);
    }

    #[test]
    fn cyclic_links_are_ignored_with_a_warning() {
        let root = tree(&["cat/1.jpg", "cat/sub/2.jpg", "dog/3.jpg"]);
        let path = |name: &str| root.path().join(name);
        symlink(path("cat"), path("cat/sub/up")).unwrap();
        symlink(root.path(), path("dog/root")).unwrap();
        symlink("/", path("dog/top")).unwrap();
        symlink(path("dog/self"), path("dog/self")).unwrap();
        // Links to each other are followed once.
        symlink(path("dog"), path("cat/friend")).unwrap();
        symlink(path("cat"), path("dog/friend")).unwrap();
        let names: Vec<_> = found(root.path()).into_iter().map(|(_, name)| name).collect();
        let expected = [
            "cat/1.jpg",
            "cat/friend/3.jpg",
            "cat/sub/2.jpg",
            "dog/3.jpg",
            "dog/friend/1.jpg",
            "dog/friend/sub/2.jpg",
        ];
        assert_eq!(names, expected);
        let warned: Vec<_> = warnings(root.path()).into_iter().map(|(name, _)| name).collect();
        for name in ["cat/sub/up", "dog/root", "dog/top", "dog/self", "cat/friend/friend"] {
            assert!(warned.iter().any(|warned| warned == name), "{name} is not in {warned:?}");
        }
    }

    /// Creates nested levels of folders, each with `links` links to the next, and an image in the last
    /// level. Returns the first level.
    fn maze(levels: usize, links: usize) -> (TempDir, PathBuf) {
        let store = TempDir::new().unwrap();
        let level = |number: usize| store.path().join(format!("{number:02}"));
        for number in 0..levels {
            fs::create_dir(level(number)).unwrap();
            for link in 0..links {
                symlink(level(number + 1), level(number).join(format!("{link:03}"))).unwrap();
            }
        }
        fs::create_dir(level(levels)).unwrap();
        fs::write(level(levels).join("1.jpg"), "").unwrap();
        let first = level(0);
        (store, first)
    }

    fn limit(root: &Path, message: &str) {
        let started = Instant::now();
        let error = ImageFolder::open(root).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert!(error.to_string().contains(message), "{error}");
        assert!(error.key().unwrap().starts_with(root.to_str().unwrap()), "{error}");
        assert!(started.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn exponentially_many_links_are_refused_quickly() {
        let started = Instant::now();
        let (_store, first) = maze(16, 2);
        limit(&first, "more than 8 nested symbolic links");
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    }

    #[test]
    fn paths_with_more_than_eight_links_are_refused() {
        let (_store, first) = maze(8, 1);
        assert_eq!(ImageFolder::open(&first).unwrap().len(), 1);
        let (_store, first) = maze(9, 1);
        limit(&first, "more than 8 nested symbolic links");
    }

    #[test]
    fn too_many_links_to_the_same_folders_are_refused() {
        // 50 + 50² + 50³ paths to three distinct folders.
        let (_store, first) = maze(3, 50);
        limit(&first, "more than 100000 symbolic links lead to folders");
    }

    #[test]
    fn several_links_may_lead_to_the_same_folder() {
        let (_store, first) = maze(3, 20);
        let images = ImageFolder::open(&first).unwrap();
        assert_eq!((images.len(), images.classes().len(), images.warnings().len()), (8000, 20, 0));
    }

    #[test]
    fn a_broken_link_with_an_image_name_is_listed() {
        let root = tree(&["cat/1.jpg"]);
        symlink("nowhere", root.path().join("cat/2.jpg")).unwrap();
        symlink("nowhere", root.path().join("cat/folder")).unwrap();
        assert_eq!(found(root.path()), images(&[(0, "cat/1.jpg"), (0, "cat/2.jpg")]));
        let warned = warnings(root.path());
        assert_eq!(warned, [("cat/folder".to_owned(), "broken symbolic link".to_owned())]);
    }

    #[test]
    fn a_pipe_with_an_image_name_is_ignored_with_a_warning() {
        let root = tree(&["cat/1.jpg"]);
        let pipe = root.path().join("cat/2.jpg");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if !made.is_ok_and(|status| status.success()) {
            println!("SKIPPED: mkfifo is not installed");
            return;
        }
        assert_eq!(found(root.path()), images(&[(0, "cat/1.jpg")]));
        let expected = ("cat/2.jpg".to_owned(), "not a regular file".to_owned());
        assert_eq!(warnings(root.path()), [expected]);
    }

    #[test]
    fn non_utf8_names_are_preserved() {
        let root = tree(&["plain/1.jpg"]);
        let class = root.path().join(OsStr::from_bytes(b"caf\xe9"));
        if let Err(error) = fs::create_dir(&class) {
            println!("SKIPPED: this file system allows only UTF-8 names: {error}");
            return;
        }
        let path = class.join(OsStr::from_bytes(b"\xff.JPG"));
        fs::write(&path, "x").unwrap();
        let images = ImageFolder::open(root.path()).unwrap();
        assert_eq!(images.classes(), [r"caf\xe9", "plain"]);
        let image = images.item(0).unwrap();
        assert_eq!(image.value.to_path(), path);
        assert_eq!(image.label, 0);
        assert_eq!(fs::read(image.value.to_path()).unwrap(), b"x");
    }

    #[test]
    fn an_unreadable_folder_is_an_error_with_its_path() {
        let root = tree(&["cat/1.jpg", "dog/secret/2.jpg"]);
        let secret = root.path().join("dog/secret");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
        let readable = fs::read_dir(&secret).is_ok();
        let error = ImageFolder::open(root.path());
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o755)).unwrap();
        if readable {
            println!("SKIPPED: running as root");
            return;
        }
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert_eq!(error.key(), secret.to_str());
        assert!(error.message().contains("cannot list folder"), "{error}");
    }
}
