//! Keys that the library takes for no paths, in a store that lists in pages: a server of its own on loopback that has them, and lists
//! as S3 does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::pages::MAX_ODD_KEYS;
use super::slow_links::bucket_at;
use super::*;

/// Keys below `f` that no node makes.
const ODD: [&str; 9] =
    ["f//x", "f//y", "f/./x", "f/../x", "f/\u{1}", "f/a\u{1}", "f/c//d", "f/m\u{7f}", "f/zz//"];

/// What the server has, and how it lists that.
struct Keys {
    keys: BTreeSet<String>,
    /// Keys in a page.
    page: usize,
    /// Whether a listing can begin behind a key.
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

    /// These keys at a server, in a folder of its bucket; its threads end with the process.
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

    /// Answers what comes over a connection, until that ends.
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
        let most = of("max-keys").parse::<usize>().unwrap_or(self.page).min(self.page);
        // What stands for each, and whether that is a folder.
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
        let is_last = entries.len() <= most;
        entries.truncate(most);
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
            // Behind all that is in it.
            let end = if *is_folder { "\u{10fffd}" } else { "" };
            let token = escaped(&format!("{last}{end}"));
            let _ = write!(page, "<NextContinuationToken>{token}</NextContinuationToken>");
        }
        page + "</ListBucketResult>"
    }
}

/// As it stands in XML.
fn escaped(text: &str) -> String {
    let plain = |c: char| !c.is_ascii_control() && !matches!(c, '&' | '<' | '>');
    let escape = |c: char| if plain(c) { c.to_string() } else { format!("&#x{:x};", c as u32) };
    text.chars().map(escape).collect()
}

/// Twenty-four keys that nodes could have made, in two folders beside them some of them.
fn good() -> Vec<String> {
    let letters = ('a'..='t').map(|letter| format!("f/{letter}"));
    let below = ["f/d1/x", "f/d1/y", "f/d2/x", "f/0"].map(str::to_owned);
    letters.chain(below).collect()
}

/// All of them in their order, and a bucket with them.
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
async fn a_key_that_is_no_path_is_listed_with_the_others_and_hides_none() {
    let rows = ODD.iter().map(|odd| vec![*odd]).chain([Vec::new(), ODD.to_vec()]);
    for (odd, folder) in rows.flat_map(|odd| [(odd.clone(), ""), (odd, "some/prefix")]) {
        let (all, bucket) = with(&odd, folder);
        let told = format!("{odd:?} in {folder:?}");
        let some = bucket.list_up_to("f", 1000).await.unwrap();
        assert_eq!((names(&some.objects), some.is_whole), (all.clone(), true), "{told}");
        let some = bucket.list_up_to("f", 5).await.unwrap();
        assert_eq!((names(&some.objects), some.is_whole), (all[..5].to_vec(), false), "{told}");
        assert_eq!(names(&bucket.list("f", None).await.unwrap()), all, "{told}");
        let newest = bucket.list_newest("f", "", 3).await.unwrap();
        let (rest, last) = all.split_at(all.len() - 3);
        assert_eq!((names(&newest.objects), newest.more), (last.to_vec(), rest.len() as u64));
        assert_eq!(newest.last.as_ref(), all.last(), "{told}");
    }
}

#[tokio::test]
async fn a_listing_begins_behind_a_key_that_is_no_path() {
    let (all, bucket) = with(&ODD, "some/prefix");
    for (at, after) in (1..).zip(&all) {
        let mut walked = Vec::new();
        let each = bucket.walk("f", Some(after), |object| {
            walked.push(object.key);
            ControlFlow::Continue(())
        });
        each.await.unwrap();
        assert_eq!(walked, all[at..], "behind {after:?}");
        let part = bucket.list_part("f", after, 2, 1).await.unwrap();
        assert_eq!(names(&part.objects), all[at..(at + 2).min(all.len())], "behind {after:?}");
        assert_eq!(part.more > 0, at + 2 < all.len(), "behind {after:?}");
    }
}

#[tokio::test]
async fn folders_whose_names_are_none_are_told_apart_and_hide_none() {
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
async fn where_there_are_too_many_the_first_that_is_not_passed_is_named() {
    let odd: Vec<_> = (0..=MAX_ODD_KEYS).map(|at| format!("f/\u{1}{at:02}")).collect();
    let few = Keys::new(odd[1..].iter().map(String::as_str).chain(["f/a"]));
    let (bucket, _) = few.served("");
    assert_eq!(bucket.list_up_to("f", 1000).await.unwrap().objects.len(), MAX_ODD_KEYS + 1);
    let many = Keys::new(odd.iter().map(String::as_str).chain(["f/a"]));
    let (bucket, _) = many.served("some/prefix");
    let error = bucket.list_up_to("f", 1000).await.unwrap_err();
    let named = format!("some/prefix/f/\\u{{1}}{MAX_ODD_KEYS}");
    assert_eq!(error, BucketError::OddKey(named.clone()));
    let told = error.to_string();
    assert!(told.contains(&named) && told.contains("remove it"), "{told}");
}

#[tokio::test]
async fn a_store_that_cannot_begin_behind_a_key_is_not_asked_without_end() {
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
async fn of_a_long_page_few_parts_are_asked_for() {
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
async fn in_a_folder_of_this_machine_such_a_key_is_named() {
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
    assert_eq!(bucket.folders("").await.unwrap(), ["f"], "which is listed otherwise");
}
