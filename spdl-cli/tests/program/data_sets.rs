//! `spdl bench` on data sets of all kinds, local and remote, and with a cache.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value};

use crate::common::{Folder, Run, by_shell, command_in, finish, image_name, png, spdl};

const IMAGES: u32 = 60;
const CLASSES: u32 = 4;

/// Runs `spdl bench DATA… --json`, with small images.
fn bench_all<A: AsRef<OsStr>>(data: &[A], arguments: &[&str], environment: &[(&str, &str)]) -> Run {
    let mut command = spdl();
    command.arg("bench").args(data).args(["--size", "24", "--batch", "16", "--json"]);
    finish(command.args(arguments).envs(environment.iter().copied()).output().unwrap())
}

fn checksum(json: &Map<String, Value>) -> String {
    json["checksum"].as_str().unwrap().to_owned()
}

/// A folder of images, and the same images packed in `shards`.
fn packed() -> (Folder, Map<String, Value>) {
    let folder = Folder::new();
    for number in 0..IMAGES {
        folder.add(format!("images/{}", image_name(number, CLASSES)), &png(number));
    }
    let mut pack = spdl();
    pack.arg("pack").arg(folder.join("images")).arg(folder.join("shards"));
    let run = finish(pack.args(["--shard-samples", "7"]).output().unwrap());
    assert_eq!(run.code, 0, "{}", run.stderr);
    let json = bench_all(&[folder.join("images")], &[], &[]).json();
    assert_eq!((&json["images"], &json["kind"]), (&IMAGES.into(), &"image folder".into()));
    (folder, json)
}

/// The tar archives of a folder, in order.
fn shards(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut shards: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|it| it == "tar")).collect();
    shards.sort();
    shards
}

/// Writes the images of `packed` to `photos.zip`, in reverse order, stored and compressed in turn.
fn zip_photos(folder: &Folder) {
    let mut archive = zip::ZipWriter::new(fs::File::create(folder.join("photos.zip")).unwrap());
    for number in (0..IMAGES).rev() {
        let methods = [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated];
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(methods[number as usize % 2]);
        let name = image_name(number, CLASSES);
        archive.start_file(format!("photos/{name}"), options).unwrap();
        archive.write_all(&png(number)).unwrap();
    }
    archive.finish().unwrap();
}

#[test]
fn a_zip_archive_is_listed_verified_and_packed() {
    let (folder, _) = packed();
    zip_photos(&folder);
    let zip = folder.join("photos.zip");
    let run = |command: &str, arguments: &[&str]| {
        finish(spdl().arg(command).arg(&zip).args(arguments).output().unwrap())
    };
    let listed = run("ls", &[]);
    assert!(listed.stdout.ends_with("1 file, 60 samples\n"), "{}", listed.stdout);
    assert_eq!(run("stat", &["--json"]).json()["samples"], IMAGES);
    let result = run("verify", &["--json"]).json();
    assert_eq!((&result["images"], &result["bad_total"]), (&IMAGES.into(), &0.into()));
    let name = format!("photos/{}", image_name(7, CLASSES));
    let key = name.trim_end_matches(".png");
    let image = spdl().arg("cat").arg(&zip).args([key, "--field", "png"]).output().unwrap();
    assert!(image.status.success(), "{}", String::from_utf8_lossy(&image.stderr));
    assert_eq!(image.stdout, png(7));
    let again = folder.join("again");
    let pack = run("pack", &[again.to_str().unwrap(), "--shard-samples", "7"]);
    assert_eq!(pack.code, 0, "{}", pack.stderr);
    let json = bench_all(&[&again], &[], &[]).json();
    assert_eq!(checksum(&json), checksum(&bench_all(&[&zip], &[], &[]).json()));
    // A damaged member is found.
    let mut bytes = fs::read(&zip).unwrap();
    let at = bytes.windows(4).position(|it| it == b"IDAT").unwrap() + 8;
    bytes[at] ^= 1;
    fs::write(&zip, bytes).unwrap();
    let found = run("verify", &[]);
    assert_eq!(found.code, 1);
    let words = ["photos.zip:photos/class-", "CRC-32 mismatch"];
    assert!(words.iter().all(|it| found.stdout.contains(it)), "{}{}", found.stdout, found.stderr);
}

// promise: DATA7
#[test]
fn all_storage_formats_give_the_same_batches() {
    let (folder, expected) = packed();
    let mut rows = "path,label\n".to_owned();
    for class in 0..CLASSES {
        for number in (class..IMAGES).step_by(CLASSES as usize) {
            rows += &format!("images/{},{class}\n", image_name(number, CLASSES));
        }
    }
    folder.add("list.csv", rows.as_bytes());
    zip_photos(&folder);
    let all = shards(&folder.join("shards"));
    assert_eq!(all.len(), 9);
    let braces = folder.join("shards/shard-00000{0..8}.tar");
    for (data, kind) in [
        (vec![folder.join("shards")], "tar shards"),
        (all, "tar shards"),
        (vec![braces], "tar shards"),
        (vec![folder.join("shards/*.tar")], "tar shards"),
        (vec![folder.join("list.csv")], "list of files"),
        (vec![folder.join("photos.zip")], "zip archives"),
    ] {
        for mode in ["eval", "train"] {
            let json = bench_all(&data, &["--mode", mode], &[]).json();
            assert_eq!((&json["images"], &json["kind"]), (&IMAGES.into(), &kind.into()));
            let expected = match mode {
                "eval" => checksum(&expected),
                // Shuffled, with random crops and flips.
                _ => checksum(&bench_all(&[folder.join("images")], &["--mode", mode], &[]).json()),
            };
            assert_eq!(checksum(&json), expected, "{kind}, {mode}");
        }
    }
}

#[test]
fn an_invalid_data_set_is_an_error_of_one_line() {
    let (folder, _) = packed();
    folder.add("broken/manifest.json", b"{}");
    folder.add("broken/shard-000000.tar", b"");
    folder.add("notes/readme.md", b"");
    folder.add("empty.tfrecord", b"");
    let join = |name: &str| folder.join(name);
    for (data, code, result) in [
        (vec![join("empty.tfrecord")], 1, "holds no samples"),
        (vec![join("absent")], 1, "file or folder does not exist"),
        (vec![join("absent.tar")], 1, "absent.tar"),
        (vec![join("notes/readme.md")], 1, "the file extension is unknown"),
        (vec![join("notes")], 1, "no images found"),
        (vec![join("broken")], 1, "manifest"),
        (vec![join("images"), join("shards")], 1, "several folders"),
        (vec![join("images"), join("shards/shard-000000.tar")], 1, "one kind in one store"),
        (vec!["ftp://host/x.tar".into()], 1, "unknown address scheme \"ftp\""),
    ] {
        let run = bench_all(&data, &[], &[]);
        assert_eq!(run.code, code, "{data:?}: {}", run.stderr);
        assert!(run.line().contains(result), "{data:?}: {}", run.line());
    }
    if !cfg!(feature = "azure") {
        let run = bench_all(&["az://container/x.tar"], &[], &[]);
        assert!(run.line().contains("\"azure\""), "{}", run.line());
    }
    let run = bench_all(&[join("images")], &["--cache-size", "1MB", "--cache-memory", "1MB"], &[]);
    assert!(
        run.code == 2 && run.line().contains("--cache-size requires --cache"),
        "{}",
        run.line()
    );
    let run = bench_all(&[join("images")], &["--cache-pixels", "32"], &[]);
    assert_eq!(run.code, 2);
    assert!(run.line().contains("--cache"), "{}", run.line());
    for option in ["--image-field", "--label-field"] {
        let run = bench_all(&[join("shards")], &[option, "gif"], &[]);
        let words =
            format!("spdl: {option} \"gif\": no sample has this field; the fields are cls, png");
        assert_eq!((run.code, run.line()), (2, &*words));
    }
}

#[test]
fn a_shard_with_a_wrong_size_is_an_error() {
    let (folder, _) = packed();
    let set = folder.join("shards");
    let shard = shards(&set).swap_remove(4);
    let whole = fs::read(&shard).unwrap();
    let longer = [&whole[..], &[0; 1024]].concat();
    // The second one is truncated between two members, so its structure is valid.
    for changed in [&longer[..], &whole[..whole.len() - 1024]] {
        fs::write(&shard, changed).unwrap();
        let run = bench_all(&[&set], &[], &[]);
        let line = run.line();
        let (found, expected) = (changed.len().to_string(), whole.len().to_string());
        let name = shard.file_name().unwrap().to_str().unwrap();
        for words in [name, &found, &expected, "` for details"] {
            assert!(run.code == 1 && line.contains(words), "{words:?} is missing in {line}");
        }
        let result = by_shell(&command_in(line), &[]);
        assert!(result.code == 1 && result.line().contains(name), "{}", result.stderr);
        // A single shard is accepted without the manifest.
        assert_eq!(bench_all(&[&shard], &["--on-error", "skip"], &[]).code, 0);
    }
    fs::write(&shard, whole).unwrap();
    assert_eq!(bench_all(&[&set], &[], &[]).code, 0);
}

// promise: DATA5
#[test]
fn a_cache_gives_the_same_batches_and_reads_each_image_once() {
    let (folder, expected) = packed();
    let cache = folder.join("cache");
    let with = |data: &str, more: &[&str]| {
        let arguments = [&["--cache", cache.to_str().unwrap()], more].concat();
        bench_all(&[folder.join(data)], &arguments, &[]).json()
    };
    for data in ["images", "shards"] {
        let first = with(data, &["--epochs", "3"]);
        assert_eq!(first["cache"]["misses"], IMAGES);
        assert_eq!(first["cache"]["hits"], 2 * IMAGES);
        let second = with(data, &[]);
        assert_eq!(
            (&second["cache"]["misses"], &second["cache"]["hit_rate"]),
            (&0.into(), &1.0.into())
        );
        assert_eq!(checksum(&second), checksum(&expected));
    }
}

// promise: DATA5
#[test]
fn the_cache_detects_a_changed_file() {
    let (folder, _) = packed();
    let rows = (0..IMAGES).map(|number| format!("images/{},3\n", image_name(number, CLASSES)));
    folder.add("list.csv", rows.collect::<String>().as_bytes());
    let cache = folder.join("cache");
    for data in ["images", "list.csv"] {
        let run = |arguments: &[&str]| bench_all(&[folder.join(data)], arguments, &[]).json();
        let with_cache = ["--cache", cache.to_str().unwrap()];
        run(&with_cache);
        let before = run(&with_cache);
        assert_eq!(before["cache"]["misses"], 0);
        let changed = folder.join("images").join(image_name(7, CLASSES));
        let old = fs::read(&changed).unwrap();
        fs::write(&changed, png(IMAGES + 1)).unwrap();
        let after = run(&with_cache);
        assert_eq!(after["cache"]["misses"], 1, "{data}");
        assert_ne!(checksum(&after), checksum(&before), "{data}");
        assert_eq!(checksum(&after), checksum(&run(&[])), "{data}");
        // The new version replaces the old one in the cache.
        let [disk, disk_before] = [&after, &before].map(|it| it["cache"]["disk_bytes"].as_i64());
        let grown = disk.unwrap() - disk_before.unwrap();
        assert_eq!(grown, png(IMAGES + 1).len() as i64 - old.len() as i64, "{data}");
        fs::write(&changed, old).unwrap();
    }
    // A new first class changes the labels of all others.
    folder.add("images/a new one/1.png", &png(1));
    let arguments = ["--cache", cache.to_str().unwrap()];
    let kept = bench_all(&[folder.join("images")], &arguments, &[]).json();
    let read = bench_all(&[folder.join("images")], &[], &[]).json();
    assert_eq!(checksum(&kept), checksum(&read));
}

// promise: DATA5
#[test]
fn the_cache_detects_a_changed_shard() {
    let (folder, _) = packed();
    let cache = folder.join("cache");
    let arguments = ["--cache", cache.to_str().unwrap()];
    let run = |arguments: &[&str]| bench_all(&[folder.join("shards")], arguments, &[]).json();
    run(&arguments);
    // The bytes of an image change, but not their position; the modification time changes.
    let shard = &shards(&folder.join("shards"))[3];
    let mut bytes = fs::read(shard).unwrap();
    let image = png(3 * 7);
    let at = bytes.windows(4).position(|it| it == &image[..4]).unwrap();
    let end = bytes[at..].windows(4).position(|it| it == b"IEND").unwrap() + at;
    bytes[end - 6] ^= 0x10;
    fs::write(shard, bytes).unwrap();
    let after = run(&[&arguments[..], &["--on-error", "skip"]].concat());
    assert_eq!(after["cache"]["misses"], 7, "the samples of one shard");
}

#[test]
fn cache_pixels_reduces_large_images_only() {
    let (folder, _) = packed();
    let arguments = |pixels| ["--cache-memory", "64MB", "--cache-pixels", pixels, "--epochs", "2"];
    let two = bench_all(&[folder.join("images")], &["--epochs", "2"], &[]).json();
    let same = bench_all(&[folder.join("shards")], &arguments("1000"), &[]).json();
    assert_eq!(checksum(&same), checksum(&two));
    assert_eq!(same["cache"]["hits"], IMAGES);
    // 30 to 34 rows become 20: other pixels, but reproducible.
    let small = bench_all(&[folder.join("images")], &arguments("20"), &[]).json();
    assert_ne!(checksum(&small), checksum(&two));
    let again = bench_all(&[folder.join("shards")], &arguments("20"), &[]).json();
    assert_eq!(checksum(&small), checksum(&again));
    assert!(small["cache"]["memory_bytes"].as_u64().unwrap() > 0);
}

// promise: DATA5
#[test]
fn a_cache_for_a_fifth_of_the_data_has_a_fifth_of_hits() {
    let folder = Folder::with_images(600, 3);
    let all = Folder::new();
    let arguments = ["--cache", all.path().to_str().unwrap()];
    let json = bench_all(&[folder.path()], &arguments, &[]).json();
    let room = (json["cache"]["disk_bytes"].as_u64().unwrap() / 5).to_string();
    let cache = Folder::new();
    let arguments = ["--cache", cache.path().to_str().unwrap(), "--cache-size", &room];
    let share = |epochs: &str| {
        let arguments = [&arguments[..], &["--mode", "train", "--epochs", epochs]].concat();
        let json = bench_all(&[folder.path()], &arguments, &[]).json();
        json["cache"]["hits"].as_f64().unwrap()
    };
    assert_eq!(share("1"), 0.0);
    let hits = share("4") / (4.0 * 600.0);
    assert!((0.19..=0.21).contains(&hits), "{hits}");
}

// promise: DATA7
#[cfg(feature = "parquet")]
#[test]
fn parquet_gives_the_same_images_as_files() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spdl-io/tests/data/parquet");
    let rows: Vec<Value> =
        serde_json::from_slice(&fs::read(data.join("images.json")).unwrap()).unwrap();
    let folder = Folder::new();
    let mut list = String::new();
    for (number, row) in rows.iter().enumerate() {
        let digits = row["image"]["bytes"]["hex"].as_str().unwrap();
        let pairs = (0..digits.len()).step_by(2);
        let bytes: Vec<u8> =
            pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect();
        folder.add(format!("{number}.png"), &bytes);
        list += &format!("{number}.png,{}\n", row["label"]);
    }
    folder.add("list.csv", list.as_bytes());
    let json = bench_all(&[data.join("images.parquet")], &[], &[]).json();
    assert_eq!((&json["images"], &json["kind"]), (&10.into(), &"Parquet files".into()));
    let expected = bench_all(&[folder.join("list.csv")], &[], &[]).json();
    assert_eq!(checksum(&json), checksum(&expected));
}

/// As `docs/datasets.md` documents it.
#[cfg(feature = "parquet")]
#[test]
fn parquet_is_shuffled_in_windows() {
    let file = "../spdl-io/tests/data/parquet/images.parquet";
    let data = [Path::new(env!("CARGO_MANIFEST_DIR")).join(file)];
    let folder = Folder::new();
    let mut pack = spdl();
    assert_eq!(
        finish(pack.arg("pack").arg(&data[0]).arg(folder.join("set")).output().unwrap()).code,
        0
    );
    let set = [folder.join("set")];
    let of = |data: &[std::path::PathBuf], mode: &str, seed: &str| {
        checksum(&bench_all(data, &["--mode", mode, "--seed", seed], &[]).json())
    };
    assert_eq!(of(&data, "eval", "1"), of(&set, "eval", "1"), "the order of the rows");
    assert_eq!(of(&data, "train", "1"), of(&data, "train", "1"), "the same each time");
    assert_ne!(of(&data, "train", "1"), of(&data, "train", "2"), "another seed");
    assert_ne!(of(&data, "train", "1"), of(&set, "train", "1"), "shuffled by row group");
}

#[cfg(not(feature = "parquet"))]
#[test]
fn the_error_names_the_missing_feature_parquet() {
    let run = bench_all(&["x.parquet"], &[], &[]);
    assert!(run.line().contains("`parquet`"), "{}", run.line());
}

#[cfg(feature = "s3")]
mod stores {
    use spdl_io::testing::{Fault, FaultPlan, FaultServer};

    use super::*;
    use crate::common::bench;

    const PASSWORD: &str = "canary-password-51";
    const SIGNATURE: &str = "canary-signature-52";

    fn environment(server: &FaultServer) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT_URL", server.url()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", "access-key".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "canary-secret-53".to_owned()),
            ("AWS_REGION", "nowhere-1".to_owned()),
        ]
    }

    #[test]
    fn steps_that_wait_for_a_slow_store_are_counted() {
        let (folder, _) = packed();
        let server = FaultServer::start(Vec::<(String, Vec<u8>)>::new());
        server.insert_folder(folder.path(), "bucket/");
        server.set_faults(FaultPlan::none().latency(std::time::Duration::from_millis(150)));
        let environment = environment(&server);
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| (*name, &**value)).collect();
        let options = ["--step-ms", "1", "--batch", "4"];
        let json = bench_all(&["s3://bucket/images"], &options, &environment).json();
        let steps = &json["steps"];
        assert_eq!((&json["step_ms"], &steps["steps"]), (&1.into(), &14.into()));
        assert!(steps["waited"].as_u64() >= Some(1), "{steps}");
        assert!(steps["waited_s"].as_f64() > Some(0.01), "{steps}");
    }

    /// The folder under `bucket/`.
    fn serve(folder: &Folder) -> FaultServer {
        let server = FaultServer::start(Vec::<(String, Vec<u8>)>::new());
        server.insert_folder(folder.path(), "bucket/");
        server
    }

    // promise: R15
    #[test]
    fn stores_give_the_same_batches_as_files_and_faults_change_nothing() {
        let (folder, expected) = packed();
        let server = serve(&folder);
        let environment = environment(&server);
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let url = server.url();
        for faults in [
            FaultPlan::none(),
            FaultPlan::random(7, 0.1, &[Fault::InternalError, Fault::ClosedInBody]),
        ] {
            server.set_faults(faults);
            for (data, kind) in [
                ("s3://bucket/images".to_owned(), "image folder"),
                ("s3://bucket/shards/".to_owned(), "tar shards"),
                ("s3://bucket/shards/shard-00000{0..8}.tar".to_owned(), "tar shards"),
                ("s3://bucket/shards/*.tar".to_owned(), "tar shards"),
                (format!("{url}/bucket/shards/shard-00000{{0..8}}.tar"), "tar shards"),
            ] {
                let json = bench_all(&[&data], &[], &environment).json();
                assert_eq!((&json["images"], &json["kind"]), (&IMAGES.into(), &kind.into()));
                assert_eq!(checksum(&json), checksum(&expected), "{data}");
            }
        }
        let run = bench_all(&[format!("{url}/bucket/images/")], &[], &[]);
        assert!(run.line().contains("does not support listing"), "{}", run.line());
    }

    #[test]
    fn a_data_set_of_hugging_face_is_read_with_the_token_of_the_environment() {
        let (folder, expected) = packed();
        let server = FaultServer::start(Vec::<(String, Vec<u8>)>::new());
        server.insert_folder(folder.path(), "datasets/me/photos/resolve/v1/");
        let url = server.url();
        let environment = [("HF_ENDPOINT", &*url), ("HF_TOKEN", "canary-token-54")];
        let data = ["hf://datasets/me/photos@v1/shards/shard-00000{0..8}.tar"];
        let json = bench_all(&data, &[], &environment).json();
        assert_eq!(checksum(&json), checksum(&expected));
        let token = ("authorization".to_owned(), "Bearer canary-token-54".to_owned());
        assert!(server.seen().iter().all(|seen| seen.headers.contains(&token)));
        server.set_faults(FaultPlan::script(|_| Some(Fault::Forbidden)));
        let run = bench_all(&data, &[], &environment);
        assert!(run.line().contains("set HF_TOKEN"), "{}", run.line());
        assert!(!format!("{}{}", run.stdout, run.stderr).contains("canary"), "{}", run.stderr);
        let run = bench_all(&["hf://me/photos/x.tar"], &[], &environment);
        assert!(run.line().contains("hf://datasets/USER/NAME/PATH"), "{}", run.line());
    }

    // promise: DATA5
    #[test]
    fn later_epochs_read_nothing_from_the_store() {
        let (folder, _) = packed();
        let server = serve(&folder);
        let data = [format!("{}/bucket/shards/shard-00000{{0..8}}.tar", server.url())];
        let cache = folder.join("cache");
        let arguments = ["--cache", cache.to_str().unwrap(), "--epochs"];
        bench_all(&data, &[&arguments[..], &["1"]].concat(), &[]).json();
        let first = server.served().requests;
        let json = bench_all(&data, &[&arguments[..], &["3"]].concat(), &[]).json();
        assert_eq!(json["cache"]["misses"], 0);
        // The second run reads the headers, indexes and checksums of the shards, but no image.
        let second = server.served().requests - first;
        assert!(second < first && second <= 4 * 9, "{first}, then {second}");
    }

    /// A server with the same response to every request, and a request counter.
    fn answering(answer: &'static str) -> (String, std::sync::Arc<std::sync::atomic::AtomicU32>) {
        use std::io::{BufRead, BufReader, Write};
        use std::sync::atomic::Ordering;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let count = std::sync::Arc::<std::sync::atomic::AtomicU32>::default();
        let counted = std::sync::Arc::clone(&count);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
                counted.fetch_add(1, Ordering::Relaxed);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        (address, count)
    }

    #[test]
    fn an_invalid_endpoint_is_an_error_that_names_its_variable() {
        for (endpoint, result) in [
            ("127.0.0.1:8766", "must begin with https:// or http://"),
            ("http://192.0.2.1:9000", "AWS_ALLOW_HTTP=true"),
        ] {
            let run = bench_all(&["s3://b/x/"], &[], &[("AWS_ENDPOINT_URL", endpoint)]);
            assert_eq!(run.code, 1, "{}", run.stderr);
            let line = run.line();
            assert!(line.contains("invalid AWS_ENDPOINT_URL") && line.contains(result), "{line}");
        }
        // An invalid header value, which the signing code does not expect.
        let (address, _) = answering("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        let environment = [
            ("AWS_ENDPOINT_URL", &*format!("http://{address}")),
            ("AWS_ACCESS_KEY_ID", "a\nb"),
            ("AWS_SECRET_ACCESS_KEY", "c"),
        ];
        let run = bench_all(&["s3://b/x/"], &[], &environment);
        assert_eq!(run.code, 1, "{}", run.stderr);
        assert!(
            run.stderr.contains("spdl: cannot open the data set: s3://b/x/: "),
            "{}",
            run.stderr
        );
    }

    #[test]
    fn a_bucket_in_another_region_is_requested_once_and_the_error_names_the_address() {
        let (address, count) = answering(
            "HTTP/1.1 301 Moved Permanently\r\nContent-Length: 45\r\nConnection: close\r\n\r\n\
             <Error><Code>PermanentRedirect</Code></Error>",
        );
        let environment = [
            ("AWS_ENDPOINT_URL", &*format!("http://{address}")),
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SECRET_ACCESS_KEY", "c"),
        ];
        let run = bench_all(&["s3://b/x/"], &[], &environment);
        let line = run.line();
        assert!(line.contains(": s3://b/x/: "), "{line}");
        assert!(line.ends_with("the bucket is in another region; set AWS_REGION"), "{line}");
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    /// A server without support for range requests.
    fn without_ranges(file: Vec<u8>) -> String {
        use std::io::{BufRead, BufReader, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head: Vec<_> =
                    lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                let asks = |word: &str| head.first().is_some_and(|line| line.contains(word));
                let (status, body) =
                    if asks(".tar ") { ("200 OK", &file[..]) } else { ("404 Not Found", &[][..]) };
                let len = body.len();
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
                );
                let _ = stream.write_all(answer.as_bytes());
                if asks("GET ") {
                    let _ = stream.write_all(body);
                }
            }
        });
        format!("http://{address}")
    }

    #[test]
    fn a_shard_on_a_server_without_ranges_is_an_error_with_advice() {
        let (folder, _) = packed();
        let url = without_ranges(fs::read(folder.join("shards/shard-000000.tar")).unwrap());
        let data = format!("{url}/shard-000000.tar");
        let set = folder.join("never");
        // Commands that read whole archives need no ranges.
        for (command, words) in [("verify", "all images are valid"), ("stat", "samples       7")] {
            let result = finish(spdl().arg(command).arg(&data).output().unwrap());
            assert!(
                result.code == 0 && result.stdout.contains(words),
                "{}{}",
                result.stdout,
                result.stderr
            );
        }
        for command in ["bench", "pack", "ls"] {
            let mut spdl = spdl();
            spdl.arg(command).arg(&data);
            if command == "pack" {
                spdl.arg(&set);
            }
            let run = finish(spdl.output().unwrap());
            let words =
                [&data, "does not support range requests", "copy the files to this machine"];
            let line = run.line();
            assert!(
                run.code == 1 && words.iter().all(|it| line.contains(*it)),
                "{command}: {line}"
            );
        }
        assert!(!set.exists());
        let bench = |data: &str, option: &str| {
            finish(
                spdl().args(["bench", data, "--mode", "train", "--json", option]).output().unwrap(),
            )
        };
        let local = folder.join("shards/shard-000000.tar");
        let local = bench(local.to_str().unwrap(), "--sequential");
        let remote = bench(&data, "--sequential=64MiB");
        let checksum = |run: &Run| {
            assert_eq!(run.code, 0, "{}", run.stderr);
            run.json()["checksum"].clone()
        };
        assert_eq!(checksum(&remote), checksum(&local));
        let small = bench(&data, "--sequential=1MB");
        assert!(small.line().contains("at least 67108864 bytes of memory"), "{}", small.line());
    }

    #[test]
    fn a_failing_identity_service_is_requested_once() {
        let (address, count) =
            answering("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let environment = [("AWS_METADATA_ENDPOINT", &*format!("http://{address}"))];
        let run = bench_all(&["s3://b/x/"], &[], &environment);
        let line = run.line();
        assert!(line.contains("no credentials: set AWS_ACCESS_KEY_ID"), "{line}");
        assert!(line.contains("~/.aws is not read"), "{line}");
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1);
    }

    // promise: R10
    #[test]
    fn failures_in_a_store_name_the_address() {
        let (folder, _) = packed();
        let server = serve(&folder);
        let environment = environment(&server);
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let web = format!("{}/bucket/absent.tar", server.url());
        for data in ["s3://bucket/absent.tar", "s3://bucket/absent/", "s3://empty", &web] {
            let run = bench_all(&[data], &[], &environment);
            assert!(run.line().contains(&format!(": {data}")), "{data}: {}", run.line());
        }
        // Errors during the run, too.
        server.insert("bucket/images/class-0/bad.png", b"no image".to_vec());
        let run = bench_all(&["s3://bucket/images"], &[], &environment);
        assert!(run.line().contains(": s3://bucket/images/class-0/bad.png: "), "{}", run.line());
    }

    // promise: DATA2
    #[test]
    fn a_changed_object_is_read_again_if_the_store_reports_versions() {
        let (folder, _) = packed();
        let server = serve(&folder);
        let environment = environment(&server);
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let cache = folder.join("cache");
        let arguments = ["--cache", cache.to_str().unwrap()];
        let shards = format!("{}/bucket/shards/shard-00000{{0..8}}.tar", server.url());
        let run = |data: &str| bench_all(&[data], &arguments, &environment).json();
        for (data, object, misses) in [
            ("s3://bucket/images", format!("bucket/images/{}", image_name(7, CLASSES)), 1),
            (&shards, "bucket/shards/shard-000003.tar".to_owned(), 7),
        ] {
            run(data);
            assert_eq!(run(data)["cache"]["misses"], 0, "{data}");
            let bytes = match misses {
                1 => png(IMAGES + 1),
                _ => [&fs::read(folder.join("shards/shard-000003.tar")).unwrap()[..], &[0; 512]]
                    .concat(),
            };
            server.insert(object, bytes);
            assert_eq!(run(data)["cache"]["misses"], misses, "{data}");
            assert_eq!(run(data)["cache"]["misses"], 0, "{data}");
        }
    }

    // promise: R21
    #[test]
    fn secrets_in_an_address_are_never_shown() {
        let (folder, _) = packed();
        let server = serve(&folder);
        let place = server.url().replace("http://", &format!("http://me:{PASSWORD}@"));
        let report = folder.join("report.html");
        for name in ["shards/shard-000000.tar", "absent.tar", "images/"] {
            let data = [format!("{place}/bucket/{name}?signature={SIGNATURE}")];
            let arguments = ["--report", report.to_str().unwrap()];
            let run = bench_all(&data, &arguments, &[("RUST_BACKTRACE", "1")]);
            let result =
                fs::read_to_string(&report).unwrap_or_default() + &run.stdout + &run.stderr;
            for secret in [PASSWORD, SIGNATURE] {
                assert!(!result.contains(secret), "{name}: {result}");
            }
        }
        assert!(report.exists(), "the first one is a shard");
        let text = bench(Path::new(&format!("{place}/bucket/shards/shard-000000.tar")), &[]);
        assert_eq!(text.code, 0, "{}", text.stderr);
        assert!(!(text.stdout + &text.stderr).contains(PASSWORD));
    }
}
