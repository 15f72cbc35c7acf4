//! The same commands on data in stores.

// promise of this file: CLI1

use spdl_io::testing::{Fault, FaultPlan, FaultServer};

use super::*;
use crate::common::by_shell;

fn serve(folder: &Folder) -> (FaultServer, Vec<(&'static str, String)>) {
    let server = FaultServer::start(Vec::<(String, Vec<u8>)>::new());
    server.insert_folder(folder.path(), "bucket/");
    let environment = vec![
        ("AWS_ENDPOINT_URL", server.url()),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_ACCESS_KEY_ID", "access-key".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "canary-secret-54".to_owned()),
        ("AWS_REGION", "nowhere-1".to_owned()),
    ];
    (server, environment)
}

#[test]
fn remote_data_packs_to_the_same_bytes_as_local_files() {
    let folder = place();
    let (server, environment) = serve(&folder);
    let url = server.url();
    let expected = shards(&folder.join("set"));
    let faults = FaultPlan::random(7, 0.1, &[Fault::InternalError, Fault::ClosedInBody]);
    for (number, data) in [
        "s3://bucket/set".to_owned(),
        "s3://bucket/set/*.tar".to_owned(),
        "s3://bucket/images".to_owned(),
        "s3://bucket/images/".to_owned(),
        format!("{url}/bucket/set/shard-00000{{0..3}}.tar"),
    ]
    .into_iter()
    .enumerate()
    {
        server.set_faults(if number == 0 { faults.clone() } else { FaultPlan::none() });
        let set = folder.join(format!("of-store-{number}"));
        let mut command = spdl();
        command.arg("pack").arg(&data).arg(&set).args(["--shard-samples", "6"]);
        let result = finish(command.envs(environment.clone()).output().unwrap());
        assert_eq!(result.code, 0, "{data}: {}", result.stderr);
        assert_eq!(shards(&set), expected, "{data}");
    }
    // Paths in the list are keys of its store.
    let data = [format!("{url}/bucket/list.csv")];
    assert_eq!(pack(&data, &folder.join("of-list"), &[]).code, 0);
    assert_eq!(contents(&folder.join("of-list")).len(), IMAGES as usize);
}

#[test]
fn an_interrupted_remote_pack_resumes_to_the_same_bytes() {
    let folder = place();
    let (server, environment) = serve(&folder);
    let set = folder.join("of-store");
    let run = || {
        let mut command = spdl();
        command.args(["pack", "s3://bucket/images"]).arg(&set);
        command.args(["--shard-samples", "6", "--json"]).envs(environment.clone());
        finish(command.output().unwrap())
    };
    let name = "bucket/images/class-1/0013.png";
    server.insert(name, damaged(1));
    let result = run();
    let words = "s3://bucket/images/class-1/0013.png";
    assert!(result.code == 1 && result.line().contains(words), "{}", result.line());
    assert!(set.join("manifest.journal").exists() && set.join("shard-000000.tar").exists());
    server.insert(name, png(13));
    let json = run().json();
    assert_eq!((&json["resumed"], &json["samples"]), (&6.into(), &IMAGES.into()));
    assert_eq!(shards(&set), shards(&folder.join("set")));
}

#[test]
fn remote_data_is_listed_read_verified_and_counted() {
    let folder = place();
    let (server, environment) = serve(&folder);
    let run = |command: &str, data: &str, arguments: &[&str]| {
        let mut spdl = spdl();
        spdl.arg(command).arg(data).args(arguments).envs(environment.clone());
        finish(spdl.output().unwrap())
    };
    let listed = run("ls", "s3://bucket/set/", &[]).stdout;
    let lines: Vec<_> = listed.lines().collect();
    assert_eq!((lines.len(), lines[4]), (5, "4 files, 20 samples"), "{listed}");
    assert!(lines[0].starts_with("s3://bucket/set/shard-000000.tar  6 samples  "), "{listed}");
    let here = super::run("ls", &[folder.join("set")], &["--samples"]).stdout;
    assert_eq!(run("ls", "s3://bucket/set/", &["--samples"]).stdout, here);
    // Offsets are known without reading the data.
    let [there, here] = [
        run("ls", "s3://bucket/set/shard-000001.tar", &["--samples", "--json"]).stdout,
        super::run("ls", &[folder.join("set/shard-000001.tar")], &["--json"]).stdout,
    ];
    let shard = "\"s3://bucket/set/shard-000001.tar\"";
    assert_eq!(there.replace(shard, "\"shard-000001.tar\""), here);
    let web = format!("{}/bucket/set/shard-000000.tar", server.url());
    for (data, name) in [("s3://bucket/set", "class-1/0004"), (&web, "class-0/0003")] {
        let number: u32 = name[8..].parse().unwrap();
        let mut command = spdl();
        command.args(["cat", data, name, "--field", "png"]).envs(environment.clone());
        assert_eq!(command.output().unwrap().stdout, png(number), "{data}");
        assert_eq!(run("cat", data, &[&format!("{name}.cls")]).stdout, name[6..7]);
    }
    for data in ["s3://bucket/set", "s3://bucket/images", &web] {
        let result = run("verify", data, &["--json"]).json();
        let images = if data == web { 6 } else { IMAGES };
        assert_eq!((&result["images"], &result["sound"]), (&images.into(), &true.into()));
        assert_eq!(run("stat", data, &["--json"]).json()["samples"], images);
    }
    server.insert("bucket/images/class-0/0003.png", damaged(1));
    let result = run("verify", "s3://bucket/images", &[]);
    let words = "1 of 20 images is invalid (images/class-0/0003.png)";
    assert!(result.code == 1 && result.line().contains(words), "{}", result.line());
    // A truncated shard: the number of members is unknown.
    let whole = fs::read(folder.join("set/shard-000002.tar")).unwrap();
    server.insert("bucket/cut/a.tar", whole[..whole.len() / 2].to_vec());
    for command in ["verify", "stat"] {
        let result = run(command, "s3://bucket/cut/a.tar", &["--json"]);
        let json: Value = serde_json::from_str(&result.stdout).unwrap();
        assert_eq!((result.code, &json["archives_without_end"]), (1, &1.into()), "{json}");
        let result = run(command, "s3://bucket/cut/a.tar", &[]).stdout;
        assert!(result.contains("1 archive is damaged or truncated"), "{result}");
    }
    for command in ["ls", "verify", "stat"] {
        let result = run(command, "s3://bucket/absent.tar", &[]);
        let is_named = result.line().contains("s3://bucket/absent.tar");
        assert!(result.code == 1 && is_named, "{}", result.line());
    }
    let result = run("cat", "s3://bucket/set", &["class-1/0004"]);
    assert!(result.line().contains("the fields png, cls"), "{}", result.line());
}

/// A remote list cannot use credentials for other servers.
#[test]
fn remote_lists_with_passwords_or_local_files_are_errors() {
    let folder = place();
    let (server, _) = serve(&folder);
    let url = server.url();
    let host = url.replace("http://", "");
    let own = format!("path,caption\n{url}/bucket/images/class-0/0003.png,https://x/?y\n");
    folder.add("own.csv", own.as_bytes());
    folder.add("lists/elsewhere.csv", b"path\n1.png\nhttps://me:canary@other/2.png?sig=canary\n");
    let odd = format!("{{\"path\": \"ftp:\\/\\/{host}\\/bucket\\/1.png?sig=canary\"}}\n");
    folder.add("lists/odd.jsonl", odd.as_bytes());
    folder.add("lists/user.txt", format!("\nhttp://me:canary@{host}/bucket/1.png\n").as_bytes());
    folder.add("lists/files.txt", b"file:///etc/hostname\n");
    server.insert_folder(folder.path(), "bucket/");
    for (list, words) in [
        ("elsewhere.csv", "line 3: cannot read \"https://other/2.png?***\""),
        ("odd.jsonl", "line 1: cannot read \"ftp://"),
        ("user.txt", "line 2: cannot read \"http://"),
        ("files.txt", "line 1: cannot read \"/etc/hostname\""),
    ] {
        for (command, arguments) in
            [("ls", &["--json"][..]), ("verify", &[]), ("stat", &[]), ("bench", &[])]
        {
            let result = run(command, &[format!("{url}/bucket/lists/{list}")], arguments);
            let line = result.line();
            assert!(result.code == 1 && line.contains(words), "{command} {list}: {line}");
            assert!(line.contains(&format!("/bucket/lists/{list}: ")), "{line}");
            assert!(!(result.stdout + &result.stderr).contains("canary"), "{list}");
        }
    }
    // A local list may contain local files, also with names that look like URLs.
    folder.add("odd.txt", b"1a://me:canary@other/2.png?sig=canary\n");
    let result = run("ls", &[folder.join("odd.txt")], &["--json"]);
    assert!(
        result.code == 0 && result.stdout.contains("1a://other/2.png?***"),
        "{}",
        result.stdout
    );
    assert!(!result.stdout.contains("canary"), "{}", result.stdout);
    let result = run("ls", &[folder.join("lists/elsewhere.csv")], &["--json"]);
    assert!(result.code == 1 && !result.stderr.contains("canary"), "{}", result.stderr);
    let own = [format!("{url}/bucket/own.csv")];
    let result = run("verify", &own, &["--json"]).json();
    assert_eq!((&result["images"], &result["sound"]), (&1.into(), &true.into()));
    let listed = run("ls", &own, &["--json"]).stdout;
    assert!(listed.starts_with("{\"key\":\"bucket/images/class-0/0003.png\""), "{listed}");
}

#[test]
fn a_store_failure_ends_a_run_with_skip() {
    let folder = place();
    let rows = fs::read_to_string(folder.join("list.csv")).unwrap();
    folder.add("list.csv", (rows + "images/absent.png,0,absent\n").as_bytes());
    let (server, environment) = serve(&folder);
    let set = folder.join("of-store");
    let run = |faults: FaultPlan| {
        server.set_faults(faults);
        let mut command = spdl();
        command.args(["pack", "s3://bucket/list.csv"]).arg(&set);
        command.args(["--shard-samples", "6", "--json", "--on-error", "skip"]);
        finish(command.envs(environment.clone()).output().unwrap())
    };
    let result = run(FaultPlan::script(|request| {
        request.key.ends_with("0016.png").then_some(Fault::InternalError)
    }));
    let line = result.line();
    assert!(
        result.code == 1
            && line.ends_with("; run the same command again to continue after the finished shards"),
        "{line}"
    );
    assert!(line.contains("0016.png") && set.join("manifest.journal").exists(), "{line}");
    // A missing object is skipped.
    let json = run(FaultPlan::none()).json();
    assert_eq!((&json["skipped"], &json["samples"]), (&1.into(), &IMAGES.into()));
}

#[test]
fn ls_reports_remote_damage_once_and_lists_the_rest() {
    let folder = place();
    let mut shard = fs::read(folder.join("set/shard-000001.tar")).unwrap();
    let (server, environment) = serve(&folder);
    let listed = super::run("ls", &[folder.join("set/shard-000001.tar")], &["--json"]).stdout;
    let third: Value = serde_json::from_str(listed.lines().nth(2).unwrap()).unwrap();
    let at = third["fields"]["png"]["offset"].as_u64().unwrap() as usize;
    // The header of the image of the third sample.
    shard[at - 512..at - 400].fill(0xff);
    server.insert("bucket/damaged/a.tar", shard);
    server.insert("bucket/damaged/b.tar", fs::read(folder.join("set/shard-000002.tar")).unwrap());
    for options in [&["--samples"][..], &["--samples", "--json"], &[]] {
        let mut command = spdl();
        command.args(["ls", "s3://bucket/damaged/"]).args(options).envs(environment.clone());
        let result = finish(command.output().unwrap());
        let words = "s3://bucket/damaged/a.tar";
        assert_eq!(
            (result.code, result.line().matches(words).count()),
            (1, 1),
            "{}",
            result.line()
        );
        // In the first shard, the sample before the damage may be incomplete.
        let lines = if options.is_empty() { 2 } else { 1 + 6 };
        assert_eq!(result.stdout.lines().count(), lines, "{}", result.stdout);
    }
}

#[test]
fn verify_uses_manifest_and_checksums_in_a_store() {
    let folder = place();
    let (server, environment) = serve(&folder);
    let run = |data: &str, arguments: &[&str]| {
        let mut command = spdl();
        command.arg("verify").arg(data).args(arguments).envs(environment.clone());
        finish(command.output().unwrap())
    };
    let web = format!("{}/bucket/set", server.url());
    let all = [
        "s3://bucket/set".to_owned(),
        "s3://bucket/set/".to_owned(),
        "s3://bucket/set/*.tar".to_owned(),
        // The server cannot list objects, but the manifest lists the shards.
        format!("{web}/"),
        format!("{web}/shard-00000{{0..3}}.tar"),
    ];
    for data in &all {
        let result = run(data, &["--json"]).json();
        let compared = ["archives", "checksums", "by_manifest", "without_checksums", "images"];
        let compared = compared.map(|name| result[name].clone());
        assert_eq!(compared, [4, 40, 4, 0, 20].map(Value::from), "{data}");
        let result = run(data, &[]).stdout;
        assert!(result.contains("40 checksums compared, 20 images decoded, all valid"), "{result}");
        assert!(
            result.contains("compared with manifest.json: size and checksum of each"),
            "{result}"
        );
    }
    // A changed class, which decoders cannot detect; then an unused bit of a header.
    let shard = fs::read(folder.join("set/shard-000001.tar")).unwrap();
    let listed = super::run("ls", &[folder.join("set/shard-000001.tar")], &["--json"]).stdout;
    let second: Value = serde_json::from_str(listed.lines().nth(1).unwrap()).unwrap();
    let class = second["fields"]["cls"]["offset"].as_u64().unwrap() as usize;
    let padding = shard.len() - 1;
    let member = format!("{}.cls", second["key"].as_str().unwrap());
    for (at, key) in [(class, json!(member)), (padding, Value::Null)] {
        let mut damaged = shard.clone();
        damaged[at] ^= 1;
        server.insert("bucket/set/shard-000001.tar", damaged);
        for data in &all {
            let result = run(data, &["--json"]);
            let result: Value = serde_json::from_str(&result.stdout).unwrap();
            assert_eq!(
                (&result["bad_total"], &result["bad"][0]["key"]),
                (&1.into(), &key),
                "{data}"
            );
            let archive = result["bad"][0]["shard"].as_str().unwrap();
            assert!(archive.ends_with("shard-000001.tar"), "{archive}");
        }
    }
    server.insert("bucket/set/shard-000001.tar", shard);
    // An unlisted archive, if the store can list objects.
    server.insert("bucket/set/stray.tar", fs::read(folder.join("set/shard-000000.tar")).unwrap());
    let result = run("s3://bucket/set", &[]);
    assert!(result.line().contains("1 of 5 archives is invalid (stray.tar)"), "{}", result.line());
    fs::remove_file(folder.join("set/shard-000002.tar")).unwrap();
    let (_server, environment) = serve(&folder);
    let mut command = spdl();
    command.args(["verify", "s3://bucket/set", "--json"]).envs(environment);
    let result: Value = serde_json::from_str(&finish(command.output().unwrap()).stdout).unwrap();
    assert_eq!((&result["unseen"], &result["bad"][0]["kind"]), (&12.into(), &"not-found".into()));
}

#[test]
fn verify_reports_missing_checksums_in_a_store() {
    let folder = place();
    for number in 0..4 {
        fs::remove_file(folder.join(format!("set/shard-{number:06}.tar.sums"))).unwrap();
    }
    fs::remove_file(folder.join("set/manifest.json")).unwrap();
    let (server, _) = serve(&folder);
    let set = format!("{}/bucket/set/", server.url());
    let data = [format!("{set}shard-00000{{0..3}}.tar")];
    let result = run("verify", &data, &["--json"]).json();
    assert_eq!((&result["without_checksums"], &result["checksums"]), (&4.into(), &0.into()));
    let result = run("verify", &data, &[]).stdout.replace('\n', " ");
    let words = "4 archives have no checksums";
    assert!(result.contains(words) && !result.contains("all valid"), "{result}");
    assert!(result.contains("no manifest.json was found"), "{result}");
}

#[test]
fn a_signed_url_causes_no_other_requests() {
    let folder = place();
    let (server, _) = serve(&folder);
    let data = [format!("{}/bucket/set/shard-000000.tar?signature=x", server.url())];
    let result = run("verify", &data, &["--json"]).json();
    assert_eq!((&result["without_checksums"], &result["by_manifest"]), (&1.into(), &0.into()));
    let requested = |name: &str| server.seen().iter().any(|request| request.target.contains(name));
    assert!(!requested(".sums") && !requested("/manifest."), "{:?}", server.seen());
    // The server accepts the signature for the index as well, so the checksums are read.
    assert_eq!(pack(&data, &folder.join("of-signed"), &[]).code, 0);
    assert!(!requested("/manifest."), "{:?}", server.seen());
}

#[test]
fn an_incomplete_remote_set_is_an_error() {
    let folder = place();
    let (server, environment) = serve(&folder);
    let fails = |words: &str| {
        for command in ["verify", "stat"] {
            let mut spdl = spdl();
            spdl.args([command, "s3://bucket/set"]).envs(environment.clone());
            let result = finish(spdl.output().unwrap());
            assert!(result.code == 1 && result.line().contains(words), "{}", result.line());
        }
    };
    server.insert("bucket/set/manifest.journal", b"x".to_vec());
    fails("s3://bucket/set: the set is incomplete");
    // An invalid manifest beside archives is an error.
    server.insert("bucket/set/manifest.json", b"{}".to_vec());
    fails("cannot open: s3://bucket/set/manifest.json: not a manifest of shards");
}

#[test]
fn the_warning_about_splits_gives_the_full_url() {
    let folder = Folder::new();
    for part in ["train", "val"] {
        folder.add(format!("my photos/{part}/cat/1.png"), &png(1));
    }
    let (_server, environment) = serve(&folder);
    let mut command = spdl();
    command.args(["ls", "s3://bucket/my photos"]).envs(environment.clone());
    let result = finish(command.output().unwrap());
    let words = "to read one split, open 's3://bucket/my photos/train'";
    assert!(result.code == 0 && result.line().ends_with(words), "{}", result.line());
    let address = result.line().rsplit_once(", open ").unwrap().1;
    let result = by_shell(&format!("spdl ls {address}"), &environment);
    assert_eq!(
        (result.code, &*result.stdout),
        (0, "my photos/train/cat/1.png\n"),
        "{}",
        result.stderr
    );
}

// promise: R21
#[test]
fn secrets_of_urls_appear_in_no_file_and_no_message() {
    let folder = place();
    let (server, _) = serve(&folder);
    let host = server.url().replace("http://", "http://me:canary-password-55@");
    let data = format!("{host}/bucket/set/shard-000000.tar?signature=canary-signature-56");
    let set = folder.join("packed");
    let mut result = String::new();
    let packed = pack(&[&data], &set, &["--json"]);
    assert_eq!(packed.code, 0, "{}", packed.stderr);
    result += &(packed.stdout + &packed.stderr);
    for entry in fs::read_dir(&set).unwrap() {
        result += &String::from_utf8_lossy(&fs::read(entry.unwrap().path()).unwrap());
    }
    for (command, arguments) in [
        ("ls", &["--samples", "--long"][..]),
        ("ls", &["--json"]),
        ("cat", &["absent"]),
        ("verify", &["--json"]),
        ("stat", &["--json"]),
    ] {
        let one = run(command, &[&data], arguments);
        result += &(one.stdout + &one.stderr);
    }
    let page = folder.join("page.html");
    let one = run("stat", &[&data], &["--html", page.to_str().unwrap()]);
    result += &(one.stdout + &one.stderr + &fs::read_to_string(&page).unwrap());
    let absent = data.replace("shard-000000", "absent");
    result += &run("ls", &[&absent], &[]).stderr;
    assert!(!result.contains("canary"), "{result}");
}
