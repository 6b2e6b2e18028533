//! Loopback HTTP servers that act like S3 for tests: one with invalid keys, one with a slow link.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;

use crate::bucket::listing::MAX_ODD_KEYS;
use crate::bucket::*;

/// Invalid keys below `f`.
const ODD: [&str; 9] =
    ["f//x", "f//y", "f/./x", "f/../x", "f/\u{1}", "f/a\u{1}", "f/c//d", "f/m\u{7f}", "f/zz//"];

/// Keys of the server and its listing behavior.
struct Keys {
    keys: BTreeSet<String>,
    /// Keys per page.
    page: usize,
    /// True if a start key is supported.
    begins_behind: bool,
    asked: AtomicUsize,
}

impl Keys {
    fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Self {
        let keys = keys.into_iter().map(str::to_owned).collect();
        Self { keys, page: 7, begins_behind: true, asked: AtomicUsize::new(0) }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Serves these keys in a folder of a bucket. The threads run until the process ends.
    fn served(mut self, folder: &str) -> (Bucket, Arc<Self>) {
        let folder = Path::from(folder);
        if !folder.is_root() {
            self.keys = self.keys.iter().map(|key| format!("{folder}/{key}")).collect();
        }
        let keys = Arc::new(self);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = Arc::clone(&keys);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = Arc::clone(&served);
                std::thread::spawn(move || served.serve(&stream));
            }
        });
        (bucket_at(url, folder), keys)
    }

    /// Serves a connection until it closes.
    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let (mut reader, mut writer) = (BufReader::new(stream), stream);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                reader.read_line(&mut head).ok().filter(|count| *count > 0)?;
            }
            let url = Url::parse(&format!("http://store{}", head.split(' ').nth(1)?)).ok()?;
            let asked: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
            self.asked.fetch_add(1, Ordering::Relaxed);
            let page = self.page(&asked);
            let length = page.len();
            write!(writer, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{page}").ok()?;
        }
    }

    fn page(&self, asked: &BTreeMap<String, String>) -> String {
        let of = |name: &str| asked.get(name).map_or("", String::as_str);
        let after = match (of("continuation-token"), self.begins_behind) {
            ("", true) => of("start-after"),
            (token, _) => token,
        };
        let (prefix, is_direct) = (of("prefix"), !of("delimiter").is_empty());
        let max = of("max-keys").parse::<usize>().unwrap_or(self.page).min(self.page);
        // Entries, and whether each is a common prefix.
        let mut entries: Vec<(&str, bool)> = Vec::new();
        let keys = self.keys.iter().filter(|key| key.starts_with(prefix) && key.as_str() > after);
        for key in keys {
            let slash = key[prefix.len()..].find('/').filter(|_| is_direct);
            let entry = match slash {
                Some(at) => (&key[..=prefix.len() + at], true),
                None => (key.as_str(), false),
            };
            if entries.last() != Some(&entry) {
                entries.push(entry);
            }
        }
        let is_last = entries.len() <= max;
        entries.truncate(max);
        let mut page = "<ListBucketResult>".to_owned();
        for (key, _) in entries.iter().filter(|(_, is_folder)| !is_folder) {
            let _ = write!(
                page,
                "<Contents><Key>{}</Key><LastModified>2026-11-23T10:00:00.000Z</LastModified>\
                 <ETag>\"1\"</ETag><Size>1</Size></Contents>",
                escaped(key)
            );
        }
        for (folder, _) in entries.iter().filter(|(_, is_folder)| *is_folder) {
            let folder = escaped(folder);
            let _ = write!(page, "<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>");
        }
        if let Some((last, is_folder)) = entries.last().filter(|_| !is_last) {
            // For a folder, the token sorts after all contents of the folder.
            let end = if *is_folder { "\u{10fffd}" } else { "" };
            let token = escaped(&format!("{last}{end}"));
            let _ = write!(page, "<NextContinuationToken>{token}</NextContinuationToken>");
        }
        page + "</ListBucketResult>"
    }
}

/// XML-escapes a text.
fn escaped(text: &str) -> String {
    let plain = |c: char| !c.is_ascii_control() && !matches!(c, '&' | '<' | '>');
    let escape = |c: char| if plain(c) { c.to_string() } else { format!("&#x{:x};", c as u32) };
    text.chars().map(escape).collect()
}

/// Twenty-four valid keys, some of them in two folders.
fn good() -> Vec<String> {
    let letters = ('a'..='t').map(|letter| format!("f/{letter}"));
    let below = ["f/d1/x", "f/d1/y", "f/d2/x", "f/0"].map(str::to_owned);
    letters.chain(below).collect()
}

/// All keys in order, and a bucket with them.
fn with(odd: &[&str], folder: &str) -> (Vec<String>, Bucket) {
    let good = good();
    let all: BTreeSet<&str> = good.iter().map(String::as_str).chain(odd.iter().copied()).collect();
    let bucket = Keys::new(all.iter().copied()).served(folder).0;
    (all.into_iter().map(str::to_owned).collect(), bucket)
}

fn names(objects: &[ListedObject]) -> Vec<String> {
    objects.iter().map(|object| object.key.clone()).collect()
}

#[tokio::test]
async fn invalid_key_is_listed_and_does_not_hide_others() {
    let rows = ODD.iter().map(|odd| vec![*odd]).chain([Vec::new(), ODD.to_vec()]);
    for (odd, folder) in rows.flat_map(|odd| [(odd.clone(), ""), (odd, "some/prefix")]) {
        let (all, bucket) = with(&odd, folder);
        let reported = format!("{odd:?} in {folder:?}");
        let some = bucket.list_up_to("f", 1000).await.unwrap();
        assert_eq!((names(&some.objects), some.is_whole), (all.clone(), true), "{reported}");
        let some = bucket.list_up_to("f", 5).await.unwrap();
        assert_eq!((names(&some.objects), some.is_whole), (all[..5].to_vec(), false), "{reported}");
        assert_eq!(names(&bucket.list("f", None).await.unwrap()), all, "{reported}");
        let newest = bucket.list_newest("f", "", 3).await.unwrap();
        let (rest, last) = all.split_at(all.len() - 3);
        assert_eq!((names(&newest.objects), newest.more), (last.to_vec(), rest.len() as u64));
        assert_eq!(newest.last.as_ref(), all.last(), "{reported}");
    }
}

#[tokio::test]
async fn listing_starts_after_an_invalid_key() {
    let (all, bucket) = with(&ODD, "some/prefix");
    for (at, after) in (1..).zip(&all) {
        let mut scan_counter = Vec::new();
        let each = bucket.walk("f", Some(after), |object| {
            scan_counter.push(object.key);
            ControlFlow::Continue(())
        });
        each.await.unwrap();
        assert_eq!(scan_counter, all[at..], "behind {after:?}");
        let part = bucket.list_part("f", after, 2, 1).await.unwrap();
        assert_eq!(names(&part.objects), all[at..(at + 2).min(all.len())], "behind {after:?}");
        assert_eq!(part.more > 0, at + 2 < all.len(), "behind {after:?}");
    }
}

#[tokio::test]
async fn invalid_folder_names_are_marked_and_do_not_hide_others() {
    let odd = ["n//x", "n//y", "n/../x", "n/\u{1}/x", "n/b\u{1}", "n/b\u{1}c/x"];
    let good = ["n/0/1", "n/a/1", "n/a/2", "n/b/1", "n/c", "n/z/1", "o/1"];
    for folder in ["", "some/prefix"] {
        for page in [1, 2, 7] {
            let keys = Keys { page, ..Keys::new(odd.into_iter().chain(good)) };
            let (bucket, _) = keys.served(folder);
            let found = bucket.folders("n").await.unwrap();
            let named = ["\u{1}/", "../", "/", "0", "a", "b", "b\u{1}c/", "z"];
            assert_eq!(found, named, "{folder:?}, {page} in a page");
            let entries = bucket.entries("n").await.unwrap();
            assert_eq!(entries.folders, ["0", "a", "b", "z"], "{folder:?}, {page} in a page");
            let objects = ["n/\u{1}/", "n/../", "n//", "n/b\u{1}", "n/b\u{1}c/", "n/c"];
            assert_eq!(names(&entries.objects), objects, "{folder:?}, {page} in a page");
        }
    }
}

#[tokio::test]
async fn too_many_invalid_keys_fail_and_the_first_one_not_skipped_is_named() {
    let odd: Vec<_> = (0..=MAX_ODD_KEYS).map(|at| format!("f/\u{1}{at:02}")).collect();
    let few = Keys::new(odd[1..].iter().map(String::as_str).chain(["f/a"]));
    let (bucket, _) = few.served("");
    assert_eq!(bucket.list_up_to("f", 1000).await.unwrap().objects.len(), MAX_ODD_KEYS + 1);
    let many = Keys::new(odd.iter().map(String::as_str).chain(["f/a"]));
    let (bucket, _) = many.served("some/prefix");
    let error = bucket.list_up_to("f", 1000).await.unwrap_err();
    let named = format!("some/prefix/f/\\u{{1}}{MAX_ODD_KEYS}");
    assert_eq!(error, BucketError::OddKey(named.clone()));
    let reported = error.to_string();
    assert!(reported.contains(&named) && reported.contains("remove it"), "{reported}");
}

#[tokio::test]
async fn store_that_ignores_the_start_key_is_not_queried_forever() {
    for is_direct in [false, true] {
        let keys = Keys::new(["f/a/1", "f/b/1", "f/b//1", "f//1", "f/c/1"]);
        let (bucket, keys) = Keys { begins_behind: false, page: 2, ..keys }.served("");
        let error = match is_direct {
            true => bucket.folders("f").await.map(|_| ()),
            false => bucket.list_up_to("f", 1000).await.map(|_| ()),
        };
        assert!(matches!(error, Err(BucketError::OddKey(key)) if key.starts_with("f//")));
        assert!(keys.asked() < 20, "{} requests", keys.asked());
    }
}

#[tokio::test]
async fn long_page_needs_few_requests() {
    let keys: Vec<_> = (0..2000).map(|at| format!("f/{at:04}")).collect();
    let odd = ["f/0700\u{1}", "f/1999\u{1}"];
    let keys = Keys::new(keys.iter().map(String::as_str).chain(odd));
    let (bucket, keys) = Keys { page: 1000, ..keys }.served("");
    let some = bucket.list_up_to("f", 3000).await.unwrap();
    assert_eq!((some.objects.len(), some.is_whole), (2002, true));
    assert!(keys.asked() <= 60, "{} requests", keys.asked());
}

#[cfg(unix)]
#[tokio::test]
async fn error_names_the_invalid_key_in_a_local_folder() {
    let dir = tempfile::tempdir().unwrap();
    let bucket = Bucket::open(&format!("file://{}", dir.path().display())).unwrap();
    bucket.put("f/a", Bytes::from_static(b"1")).await.unwrap();
    std::fs::write(dir.path().join("f/\u{1}x"), b"").unwrap();
    for error in [
        bucket.list_up_to("f", 1000).await.map(|_| ()),
        bucket.walk("f", None, |_| ControlFlow::Continue(())).await,
        bucket.list_newest("f", "", 1000).await.map(|_| ()),
    ] {
        assert!(matches!(error, Err(BucketError::OddKey(key)) if key.ends_with("f/\\u{1}x")));
    }
    assert_eq!(bucket.folders("").await.unwrap(), ["f"], "listed by another code path");
}

/// Portion size in bytes, and the pause between two: 80 kB/s, three times the slowest supported link.
const PORTION: usize = 8 << 10;
const PAUSE: Duration = Duration::from_millis(100);
/// Sizes that take 13 seconds to send and 33 to read.
const SENT: usize = 1040 << 10;
const READ: usize = 2640 << 10;

/// Behavior of the server after a request.
#[derive(Clone, Copy)]
enum Way {
    Slow,
    /// The server reads everything and never responds.
    Hangs,
}

/// Bucket at a new server, whose threads run until the process ends.
fn bucket(way: Way) -> Bucket {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(&stream, way));
        }
    });
    bucket_at(url, Path::default())
}

/// Bucket for a folder at an S3-like URL.
pub(crate) fn bucket_at(url: String, folder: Path) -> Bucket {
    let store = AmazonS3Builder::new()
        .with_endpoint(url)
        .with_bucket_name("b")
        .with_access_key_id("id")
        .with_secret_access_key("secret")
        .with_retry(retries())
        .with_http_connector(StoreClient::new())
        .build()
        .unwrap();
    let (store, lister) = both(store);
    Bucket { store, lister, folder, shown: "s3://b".to_owned() }
}

/// Serves a connection until it closes.
fn serve(stream: &TcpStream, way: Way) -> Option<()> {
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let (mut head, mut length, mut first) = (String::new(), 0, None);
        loop {
            let start = head.len();
            reader.read_line(&mut head).ok().filter(|count| *count > 0)?;
            let line = head[start..].trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if let Some(range) = line.strip_prefix("range: bytes=") {
                first = range.split('-').next().and_then(|first| first.parse::<usize>().ok());
            }
        }
        let mut portion = [0; PORTION];
        while length > 0 {
            let count = reader.read(&mut portion[..length.min(PORTION)]).ok()?;
            length = length.checked_sub(count).filter(|_| count > 0)?;
            if matches!(way, Way::Slow) {
                std::thread::sleep(PAUSE.mul_f64(count as f64 / PORTION as f64));
            }
        }
        if matches!(way, Way::Hangs) {
            // Waits until the client closes the connection.
            let _ = reader.read(&mut portion);
            return None;
        }
        if head.starts_with("PUT") {
            write!(writer, "HTTP/1.1 200 OK\r\netag: \"1\"\r\ncontent-length: 0\r\n\r\n").ok()?;
            continue;
        }
        let from = first.unwrap_or(0);
        let status = match first {
            Some(from) => {
                format!("206 Partial Content\r\ncontent-range: bytes {from}-{}/{READ}", READ - 1)
            }
            None => "200 OK".to_owned(),
        };
        write!(
            writer,
            "HTTP/1.1 {status}\r\netag: \"1\"\r\nlast-modified: Mon, 23 Nov 2026 10:00:00 GMT\r\ncontent-length: {}\r\n\r\n",
            READ - from
        )
        .ok()?;
        for start in (from..READ).step_by(PORTION) {
            writer.write_all(&vec![7; PORTION.min(READ - start)]).ok()?;
            std::thread::sleep(PAUSE);
        }
    }
}

#[tokio::test]
async fn upload_succeeds_over_a_slow_link() {
    let put = bucket(Way::Slow).put("a", Bytes::from(vec![1; SENT])).await;
    assert_eq!(put, Ok(()));
}

#[tokio::test]
async fn read_succeeds_over_a_slow_link() {
    let read = bucket(Way::Slow).get("a").await;
    assert_eq!(read.map(|bytes| bytes.len()), Ok(READ));
}

#[tokio::test]
async fn store_that_never_responds_times_out() {
    let bucket = bucket(Way::Hangs);
    let put = bucket.put("a", Bytes::from(vec![1; 1000]));
    let read = bucket.get("a");
    let (put, read) = tokio::join!(put, read);
    for given_up in [put, read.map(|_| ())] {
        assert!(matches!(given_up, Err(BucketError::Late(_) | BucketError::Failed(_))));
    }
}
