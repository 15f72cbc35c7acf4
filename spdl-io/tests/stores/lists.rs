//! File lists with rows in several stores: each row uses the options of its store, and secrets are
//! not sent to other stores.

use std::fs;
use std::sync::Arc;

use spdl_core::{Dataset, DatasetSource, Labeled, PipelineBuilder, Result};
use spdl_io::datasets::{OpenOptions, OpenedDataset};
use spdl_io::records::StoredField;
use spdl_io::stores::{Address, StoreFactory};
use spdl_io::testing::{FaultServer, SeenRequest};
use spdl_io::{
    Bytes, Cache, ErrorKind, Fetcher, Key, MemoryFetcher, SourceOptions, StoreRegistry, block_on,
};

/// Reads all samples of a data set in order.
fn read(data: &OpenedDataset) -> Vec<Result<Labeled<Bytes>>> {
    let pipeline = PipelineBuilder::new(DatasetSource::new(Arc::clone(&data.samples)))
        .async_stage("fetch", data.fetch_labeled())
        .deterministic();
    pipeline.build().unwrap().collect()
}

fn bytes(data: &OpenedDataset) -> Vec<(Bytes, i64)> {
    read(data).into_iter().map(Result::unwrap).map(|it| (it.value, it.label)).collect()
}

fn open(list: &str, stores: &StoreRegistry) -> Result<OpenedDataset> {
    block_on(OpenedDataset::open(&[list], stores))
}

fn header<'a>(seen: &'a SeenRequest, name: &str) -> Option<&'a str> {
    seen.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}

fn targets(server: &FaultServer) -> Vec<String> {
    let mut targets: Vec<_> = server.seen().into_iter().map(|seen| seen.target).collect();
    targets.sort();
    targets
}

/// Writes a list to a local folder.
fn listed(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn rows_are_read_from_the_stores_they_name() {
    let [one, two] = ["one", "two"].map(|name| FaultServer::start([("a b.jpg", name)]));
    let three = FaultServer::start([("bucket/x%20y.jpg", "three")]);
    let options = SourceOptions::default()
        .endpoint(three.url())
        .credential("access_key_id", "reader")
        .credential("secret_access_key", "canary")
        .region("us-east-1");
    let stores = StoreRegistry::new().with_options("s3://bucket", options);
    let rows = format!(
        "url,label\n{}/a%20b.jpg,3\n{}/a%20b.jpg?width=5&height=7,1\ns3://bucket/x%20y.jpg,2\n\
         beside.jpg,0\n",
        one.url(),
        two.url()
    );
    let (folder, list) = listed("list.csv", &rows);
    fs::write(folder.path().join("beside.jpg"), "four").unwrap();
    fs::write(
        folder.path().join("files.csv"),
        format!("file://{}/beside.jpg,7\n", folder.path().display()),
    )
    .unwrap();

    let data = open(&list, &stores).unwrap();
    assert_eq!((data.is_local, data.store.as_deref()), (false, None));
    let expected = [("one", 3), ("two", 1), ("three", 2), ("four", 0)];
    assert_eq!(bytes(&data), expected.map(|(value, label)| (value.into(), label)));
    assert_eq!(targets(&one), ["/a%20b.jpg"]);
    assert_eq!(targets(&two), ["/a%20b.jpg?width=5&height=7"]);
    assert!(header(&three.seen()[0], "authorization").is_some(), "{:?}", three.seen());
    assert!(one.seen().iter().chain(&two.seen()).all(|it| header(it, "authorization").is_none()));

    // A list of local files only is read by the local fetcher.
    let files = folder.path().join("files.csv");
    let data = open(files.to_str().unwrap(), &stores).unwrap();
    assert!(data.is_local);
    assert_eq!(bytes(&data), [("four".into(), 7)]);
}

#[test]
fn urls_of_rows_are_sent_unchanged() {
    let server = FaultServer::start([("a", "x")]);
    let url = server.url();
    let rows = ["o/a%2Fb.jpg?alt=media", "x%3Fy.jpg", "%C3%A4%20.jpg?q=a%2Bb#top"];
    let text: String = rows.iter().map(|row| format!("{url}/{row}\n")).collect();
    let (_folder, list) = listed("list.txt", &text);
    let data = open(&list, &StoreRegistry::new()).unwrap();
    for index in 0..3 {
        let item = data.samples.item(index).unwrap();
        let read = block_on(data.fetcher.read(&item.key, None));
        assert_eq!(read.unwrap_err().kind(), ErrorKind::NotFound);
    }
    let sent: Vec<_> = server.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(sent, ["/o/a%2Fb.jpg?alt=media", "/x%3Fy.jpg", "/%C3%A4%20.jpg?q=a%2Bb"]);
}

#[test]
fn secrets_of_a_list_are_not_sent_to_other_stores() {
    let list = FaultServer::start([("own.jpg", "own"), ("wide.jpg", "wide")]);
    let other = FaultServer::start([("a.jpg", "other")]);
    let rows = format!(
        "own.jpg\n{}/own.jpg\n{}/wide.jpg?width=5\n{}/a.jpg\n{}/a.jpg?sig=row-secret\n",
        list.url(),
        list.url(),
        other.url(),
        other.url()
    );
    list.insert("list.txt", rows);
    let stores = StoreRegistry::new()
        .with_options(&list.url(), SourceOptions::default().header("X-List", "canary-header"));
    let address = list.url().replace("http://", "http://me:canary-password@");
    let address = format!("{address}/list.txt?sig=canary-query");
    let data = open(&address, &stores).unwrap();
    let values: Vec<_> = bytes(&data).into_iter().map(|(value, _)| value).collect();
    assert_eq!(values, ["own", "own", "wide", "other", "other"]);

    assert_eq!(targets(&other), ["/a.jpg", "/a.jpg?sig=row-secret"]);
    for seen in other.seen() {
        assert!(!format!("{seen:?}").contains("canary"), "{seen:?}");
        assert!(header(&seen, "authorization").is_none() && header(&seen, "x-list").is_none());
    }
    // Rows in the store of the list have the list's query, unless they have a separate one.
    let own = "sig=canary-query";
    let expected = [
        format!("/list.txt?{own}"),
        format!("/own.jpg?{own}"),
        format!("/own.jpg?{own}"),
        "/wide.jpg?width=5".to_owned(),
    ];
    assert_eq!(targets(&list), expected);
    assert!(list.seen().iter().all(|seen| header(seen, "x-list") == Some("canary-header")));
    assert!(list.seen().iter().all(|seen| header(seen, "authorization").is_some()));
}

#[test]
fn each_store_uses_its_own_options() {
    let [one, two] = [1, 2].map(|_| FaultServer::start([("x/a.jpg", "a"), ("y/a.jpg", "a")]));
    let secret = |value: &str| SourceOptions::default().header("X-Secret", value);
    let stores = StoreRegistry::new()
        .with_options(&one.url(), secret("one"))
        .with_options(&format!("{}/x", two.url()), secret("two"));
    let rows =
        format!("{0}/x/a.jpg\n{1}/x/a.jpg\n{1}/x/a.jpg?w=1\n{1}/y/a.jpg\n", one.url(), two.url());
    let (_folder, list) = listed("list.txt", &rows);
    assert_eq!(bytes(&open(&list, &stores).unwrap()).len(), 4);
    let sent = |server: &FaultServer| {
        let seen = server.seen().into_iter();
        let secret = |seen: &SeenRequest| header(seen, "x-secret").map(str::to_owned);
        let mut sent: Vec<_> = seen.map(|seen| (secret(&seen), seen.target)).collect();
        sent.sort();
        sent
    };
    assert_eq!(sent(&one), [(Some("one".into()), "/x/a.jpg".into())]);
    let expected = [
        (None, "/y/a.jpg".to_owned()),
        (Some("two".to_owned()), "/x/a.jpg".to_owned()),
        (Some("two".to_owned()), "/x/a.jpg?w=1".to_owned()),
    ];
    assert_eq!(sent(&two), expected);
}

/// A custom store without support for queries.
#[derive(Debug)]
struct Acme;

impl StoreFactory for Acme {
    fn open(&self, address: &Address, _: &SourceOptions) -> Result<Arc<dyn Fetcher>> {
        Ok(Arc::new(MemoryFetcher::from_iter([("1.jpg", address.authority().to_owned())])))
    }
}

#[test]
fn invalid_rows_are_rejected_when_the_list_is_opened() {
    let server = FaultServer::start([("a.jpg", "a")]);
    let stores = StoreRegistry::new().register("acme", Arc::new(Acme));
    for (row, is_local_error, words) in [
        ("https://me:canary@h/2.jpg?sig=canary", true, "must not contain user names and passwords"),
        ("s3://bucket/a?sig=canary", true, "use the `https:` URL"),
        ("ftp://h/x", true, "unknown address scheme \"ftp\""),
        ("acme://x/1.jpg?sig=canary", true, "does not support queries"),
        ("file:///etc/hostname", false, "only a local list may name local files"),
    ] {
        let text = format!("label,path\n1,a.jpg\n2,{row}\n");
        server.insert("lists/list.csv", text.clone());
        let (_folder, here) = listed("list.csv", &text);
        for (list, is_error) in
            [(here, is_local_error), (format!("{}/lists/list.csv", server.url()), true)]
        {
            let opened = open(&list, &stores);
            if !is_error {
                opened.unwrap();
                continue;
            }
            let error = opened.unwrap_err();
            let message = error.message();
            assert!(message.contains(words), "{row}: {message}");
            assert!(message.starts_with("line 3, column 3: "), "{row}: {message}");
            assert_eq!(error.key(), Some(&*list), "{row}");
            let output = format!("{error} {error:?} {}", error.report());
            assert!(!output.contains("canary"), "{output}");
        }
    }
    let (_folder, list) = listed("list.txt", "acme://x/1.jpg\nacme://y/1.jpg\n");
    let values: Vec<_> = bytes(&open(&list, &stores).unwrap()).into_iter().map(|it| it.0).collect();
    assert_eq!(values, ["x", "y"]);
}

#[test]
fn file_columns_may_name_files_of_other_stores_under_the_same_rules() {
    let own = FaultServer::start([("lists/1.jpg", "photo")]);
    let other = FaultServer::start([("1.png", "mask")]);
    let options = OpenOptions::default().file_fields(["mask"]);
    let open_list = |mask: &str| {
        own.insert("lists/list.csv", format!("path,mask\n1.jpg,{mask}\n"));
        let list = format!("{}/lists/list.csv", own.url());
        block_on(OpenedDataset::open_with(&[list], &StoreRegistry::new(), &options))
    };
    for (mask, words) in [
        ("file:///etc/hostname", "only a local list may name local files"),
        ("https://me:canary@h/1.png", "must not contain user names and passwords"),
    ] {
        let error = open_list(mask).unwrap_err();
        assert!(error.message().contains(words), "{error}");
        assert!(error.message().starts_with("line 2, column 7: "), "{error}");
        assert!(!format!("{error:?}").contains("canary"));
    }
    let data = open_list(&format!("{}/1.png", other.url())).unwrap();
    let record = data.samples.item(0).unwrap();
    let masks = record.fields.iter().filter(|(name, _)| &**name == "mask");
    let read = masks.map(|(_, field)| match field {
        StoredField::At(extent, _) => block_on(data.fetcher.read(&extent.object, None)).unwrap(),
        known => panic!("{known:?}"),
    });
    assert_eq!(read.collect::<Vec<_>>(), ["mask"]);
}

#[test]
fn signatures_of_rows_are_not_shown() {
    let server = FaultServer::start([("bucket/a.jpg", "a")]);
    let options =
        SourceOptions::default().endpoint(server.url()).region("us-east-1").anonymous(true);
    let stores = StoreRegistry::new().with_options("s3:", options);
    let rows = format!("{}/absent.jpg?sig=canary\ns3://bucket/absent.jpg\n", server.url());
    let (_folder, list) = listed("list.txt", &rows);
    let data = open(&list, &stores).unwrap();
    let addresses =
        [format!("{}/absent.jpg?***", server.url()), "s3://bucket/absent.jpg".to_owned()];
    for (index, address) in (0..).zip(addresses) {
        let item = data.samples.item(index).unwrap();
        assert_eq!(data.samples.key(&item).as_deref(), Some(&*address));
        let error = block_on(data.fetcher.read(&item.key, None)).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::NotFound, Some(&*address)));
        assert_eq!(data.address_of(error.key().unwrap()), address);
        let output = format!("{item:?} {error} {error:?} {error:#?} {:?} {data:?}", data.fetcher);
        assert!(!output.contains("canary"), "{output}");
    }
}

#[test]
fn queries_distinguish_cache_entries() {
    let server = FaultServer::start([("a.jpg", "a")]);
    let rows = format!("{0}/a.jpg?w=1\n{0}/a.jpg?w=2\n{0}/a.jpg?w=1\n", server.url());
    let (_folder, list) = listed("list.txt", &rows);
    let data = open(&list, &StoreRegistry::new()).unwrap();
    let cache = Cache::builder().memory(1 << 20).open().unwrap();
    for epoch in 0..2 {
        let pipeline = PipelineBuilder::new(DatasetSource::new(Arc::clone(&data.samples)))
            .async_stage(
                spdl_core::StageOptions::new("fetch").concurrency(1),
                data.fetch_labeled().with_cache(cache.clone()),
            );
        assert_eq!(pipeline.build().unwrap().map(Result::unwrap).count(), 3);
        let read = server.seen().into_iter().filter(|seen| seen.method == "GET");
        let mut read: Vec<_> = read.map(|seen| seen.target).collect();
        read.sort();
        assert_eq!(read, ["/a.jpg?w=1", "/a.jpg?w=2"], "epoch {epoch}");
    }
}

#[test]
fn urls_of_other_servers_are_paths() {
    let server = FaultServer::start([("http://other/a.jpg", "mirrored"), ("b.jpg", "b")]);
    let place = StoreRegistry::new().open(&format!("{}/?sig=canary", server.url())).unwrap();
    let read = |key: &str| block_on(place.fetcher.read(&Key::from(key), None));
    assert_eq!(read("http://other/a.jpg").unwrap(), "mirrored");
    assert_eq!(read(&format!("{}/b.jpg?w=1", server.url())).unwrap(), "b");
    let with_password = server.url().replace("http://", "http://me:pw@");
    let error = read(&format!("{with_password}/b.jpg")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let sent: Vec<_> = server.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(sent, ["/http://other/a.jpg?sig=canary", "/b.jpg?w=1"]);
}
