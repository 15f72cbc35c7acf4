//! `spdl ls`, `cat`, `verify` and `stat` on local data sets of all kinds.

// promise of this file: CLI1

use super::*;

#[test]
fn cat_accepts_names_relative_to_a_folder() {
    let folder = Folder::with_images(3, 1);
    let cat = |key: &str, arguments: &[&str]| {
        spdl().arg("cat").arg(folder.path()).arg(key).args(arguments).output().unwrap()
    };
    let whole = folder.join("class-0/0001.png");
    for key in ["class-0/0001.png", whole.to_str().unwrap()] {
        let output = cat(key, &[]);
        assert_eq!(output.stdout, png(1), "{key}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let output = finish(cat("class-0/0001.png", &["--field", "jpg"]));
    assert!(
        output.line().contains("no field \"jpg\": the sample has the fields "),
        "{}",
        output.stderr
    );
    assert!(finish(cat("0001.png", &[])).line().contains("not found in 3 images"));
}

#[test]
fn folders_and_lists_are_listed_read_verified_and_counted() {
    let folder = place();
    let (images, list) = ([folder.join("images")], [folder.join("list.csv")]);
    for data in [&images, &list] {
        let listed = run("ls", data, &[]).stdout;
        assert_eq!(listed.lines().count(), IMAGES as usize, "{listed}");
        let first = listed.lines().next().unwrap();
        assert!(first.ends_with("images/class-0/0000.png"), "{listed}");
        let image = spdl().arg("cat").args(data).arg(first).output().unwrap();
        assert_eq!(image.stdout, png(0));
        let result = run("verify", data, &["--json"]).json();
        assert_eq!((&result["images"], &result["bad_total"]), (&IMAGES.into(), &0.into()));
        let result = run("stat", data, &["--json"]).json();
        assert_eq!(
            (&result["samples"], &result["classes"][0]["samples"]),
            (&IMAGES.into(), &7.into())
        );
        assert_eq!(result["fields"]["png"]["members"], IMAGES);
    }
    let name = format!("{}", folder.join("images/class-1/0004.png").display());
    let caption = run("cat", &list, &[&name, "--field", "caption"]);
    assert_eq!(caption.stdout, "number 4", "{}", caption.stderr);
    let result = run("cat", &list, &[&format!("{name}.nothing")]);
    assert!(
        result.code == 1 && result.line().contains("not found in 20 samples"),
        "{}",
        result.line()
    );
    let result = run("cat", &list, &[&name, "--field", "nothing"]);
    assert!(result.line().contains("the fields file, caption"), "{}", result.line());
    let listed = run("ls", &list, &["--json"]).stdout;
    let first: Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["shard"], &first["fields"]["caption"]["offset"]),
        (&Value::Null, &Value::Null)
    );
    let long = run("ls", &list, &["--long"]).stdout;
    let place = folder.path().display();
    let expected = format!("{place}/images/class-0/0000.png\n  .file\n  .caption\n");
    assert!(long.starts_with(&expected), "{long}");
    folder.add("images/class-0/0003.png", &damaged(1));
    fs::remove_file(folder.join("images/class-0/0006.png")).unwrap();
    let result = run("verify", &list, &[]);
    assert!(
        result.code == 1 && result.line().contains("2 of 20 samples are invalid ("),
        "{}",
        result.line()
    );
    assert!(
        result.line().contains("0003.png") && result.line().contains("0006.png"),
        "{}",
        result.line()
    );
    let result = run("stat", &list, &[]);
    assert!(
        result.code == 1 && result.line().contains("2 of 20 samples cannot be"),
        "{}",
        result.line()
    );
}

#[test]
fn patterns_match_in_the_current_folder() {
    let folder = place();
    let mut ls = spdl();
    let listed = ls.args(["ls", "shard-*.tar"]).current_dir(folder.join("set")).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let shards = fs::read_dir(folder.join("set")).unwrap();
    let shards =
        shards.filter(|it| it.as_ref().unwrap().path().extension() == Some("tar".as_ref()));
    assert_eq!(listed.lines().count(), shards.count(), "{listed}");
    assert!(listed.starts_with("shard-000000.tar"), "{listed}");
}

#[test]
fn ls_continues_after_a_damaged_archive() {
    let folder = place();
    fs::write(folder.join("set/shard-000000.tar"), [b'x'; 2048]).unwrap();
    fs::remove_file(folder.join("set/shard-000000.tar.idx")).unwrap();
    for (options, lines) in [(&["--samples"][..], 14), (&["--samples", "--json"], 14)] {
        let result = run("ls", &[folder.join("set")], options);
        assert_eq!((result.code, result.stdout.lines().count()), (1, lines), "{}", result.stdout);
        assert!(result.line().contains("shard-000000.tar"), "{}", result.line());
    }
}

#[test]
fn samples_are_counted_when_read() {
    let folder = place();
    // A sample twice in a row, and a missing one.
    let row = "images/class-0/0000.png";
    folder.add("twice.txt", format!("{row}\n{row}\nimages/absent.png\n").as_bytes());
    let result = run("stat", &[folder.join("twice.txt")], &["--json"]);
    let json: Value = serde_json::from_str(&result.stdout).unwrap();
    let counted = ["samples", "members", "unreadable"].map(|name| json[name].clone());
    assert_eq!(counted, [3, 2, 1].map(Value::from), "{json}");
}

#[test]
fn patterns_of_archives_use_their_checksums() {
    let folder = place();
    for name in ["shard-000000.tar.idx", "shard-000001.tar.idx"] {
        fs::remove_file(folder.join("set").join(name)).unwrap();
    }
    let before = fs::read_dir(folder.join("set")).unwrap().count();
    for (pattern, archives, members) in [("set/*.tar", 4, 40), ("set/shard-00000{0..1}.tar", 2, 24)]
    {
        let data = [folder.join(pattern)];
        let result = run("verify", &data, &["--json"]).json();
        let counted = ["archives", "members", "checksums"].map(|name| result[name].clone());
        assert_eq!(counted, [archives, members, members].map(Value::from), "{pattern}");
        let listed = run("ls", &data, &[]).stdout;
        assert_eq!(listed.lines().count(), archives, "{listed}");
        assert!(listed.starts_with("shard-000000.tar  6 samples  "), "{listed}");
    }
    assert_eq!(fs::read_dir(folder.join("set")).unwrap().count(), before, "nothing is written");
    let result = run("ls", &[folder.join("set/x*.tar")], &[]);
    assert!(
        result.code == 1 && result.line().contains("no file matches this pattern"),
        "{}",
        result.line()
    );
}

#[test]
fn unread_members_of_a_truncated_shard_are_counted() {
    let folder = place();
    let shard = folder.join("set/shard-000001.tar");
    let whole = fs::read(&shard).unwrap();
    let listed = run("ls", &[&shard], &["--json"]).stdout;
    let third: Value = serde_json::from_str(listed.lines().nth(2).unwrap()).unwrap();
    let at = third["fields"]["cls"]["offset"].as_u64().unwrap() as usize;
    // After the class of the third of six samples: six members remain.
    fs::write(&shard, &whole[..at + 512]).unwrap();
    let lines = |run: Run| run.stdout.lines().map(str::to_owned).collect::<Vec<_>>();
    for (data, all) in [(folder.join("set"), 40), (shard.clone(), 12)] {
        for command in ["verify", "stat"] {
            let result = run(command, &[&data], &["--json"]);
            assert_eq!(result.code, 1, "{command}");
            let json: Value = serde_json::from_str(&result.stdout).unwrap();
            assert_eq!(json["unseen"], 6, "{command} {data:?}: {json}");
            assert_eq!(json["members"], all - 6, "{command}");
            assert_eq!(json["archives_without_end"], 0);
            let text = lines(run(command, &[&data], &[]));
            let words = "6 members were not read: after damage, or in missing archives";
            assert!(text.iter().any(|line| line == words), "{command}: {text:?}");
        }
    }
    // Without manifest and checksums the number is unknown.
    let alone = folder.join("alone.tar");
    // Truncated between members, and inside one.
    for (cut, command) in
        [(at + 512, "verify"), (at + 512, "stat"), (at - 700, "verify"), (at - 700, "stat")]
    {
        fs::write(&alone, &whole[..cut]).unwrap();
        let result = run(command, &[&alone], &["--json"]);
        let json: Value = serde_json::from_str(&result.stdout).unwrap();
        assert_eq!((&json["unseen"], &json["archives_without_end"]), (&0.into(), &1.into()));
        let text = lines(run(command, &[&alone], &[]));
        assert!(
            text.iter().any(|line| line.contains("its number of members is unknown")),
            "{text:?}"
        );
    }
    fs::write(&shard, &whole).unwrap();
    let json = run("stat", &[folder.join("set")], &["--json"]).json();
    assert_eq!((&json["unseen"], &json["archives_without_end"]), (&0.into(), &0.into()));
    // All members of a missing shard are unread.
    fs::remove_file(&shard).unwrap();
    let result: Value =
        serde_json::from_str(&run("verify", &[folder.join("set")], &["--json"]).stdout).unwrap();
    assert_eq!(result["unseen"], 12);
}

#[test]
fn file_urls_are_accepted_by_every_command() {
    let folder = place();
    let address = |name: &str| format!("file://{}", folder.join(name).display());
    let files = |name: &str| fs::read_dir(folder.join(name)).unwrap().count();
    assert_eq!(pack(&[address("images")], address("zz").as_ref(), &[]).code, 0);
    assert!(folder.join("zz/manifest.json").exists());
    let result = run("verify", &[address("set")], &["--json"]).json();
    assert_eq!((&result["archives"], &result["checksums"]), (&4.into(), &40.into()));
    for name in ["a.tar", "B.TAR"] {
        let alone = format!("alone-{name}");
        folder.add(
            format!("{alone}/{name}"),
            &fs::read(folder.join("set/shard-000000.tar")).unwrap(),
        );
        for command in ["ls", "verify", "stat"] {
            assert_eq!(run(command, &[address(&alone)], &[]).code, 0);
            assert_eq!(run(command, &[address(&format!("{alone}/{name}"))], &[]).code, 0);
        }
        assert_eq!(run("cat", &[address(&alone)], &["class-0/0000.cls"]).stdout, "0");
        assert_eq!(files(&alone), 1, "{name}: nothing is written");
    }
    let one = [address("set/shard-000001.tar")];
    assert_eq!(run("ls", &one, &[]).stdout.lines().count(), 6, "the samples of one archive");
}
