//! A store at the end of a slow way: a server of its own on loopback that takes and gives bytes slowly, as S3 does otherwise.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;

use super::*;

/// Bytes in a portion, and the time between two: 80 kB/s, three times as fast as the slowest.
const PORTION: usize = 8 << 10;
const PAUSE: Duration = Duration::from_millis(100);
/// What takes 13 seconds to send and 33 to read.
const SENT: usize = 1040 << 10;
const READ: usize = 2640 << 10;

/// What the server does once it has a request.
#[derive(Clone, Copy)]
enum Way {
    Slow,
    /// It takes all, and never answers.
    Hangs,
}

/// A bucket at a server; its threads end with the process.
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

/// A folder of what is at a URL, which speaks as S3 does.
pub(super) fn bucket_at(url: String, folder: Path) -> Bucket {
    let store = AmazonS3Builder::new()
        .with_endpoint(url)
        .with_bucket_name("b")
        .with_access_key_id("id")
        .with_secret_access_key("secret")
        .with_retry(retries())
        .with_http_connector(OwnClient::new().unwrap())
        .build()
        .unwrap();
    let (store, lister) = both(store);
    Bucket { store, lister, folder, shown: "s3://b".to_owned() }
}

/// Answers what comes over a connection, until that ends.
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
            // Until the client gives up.
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
async fn an_object_gets_to_the_store_over_a_slow_way() {
    let put = bucket(Way::Slow).put("a", Bytes::from(vec![1; SENT])).await;
    assert_eq!(put, Ok(()));
}

#[tokio::test]
async fn an_object_is_read_over_a_slow_way() {
    let read = bucket(Way::Slow).get("a").await;
    assert_eq!(read.map(|bytes| bytes.len()), Ok(READ));
}

#[tokio::test]
async fn a_store_that_takes_all_and_never_answers_is_given_up() {
    let bucket = bucket(Way::Hangs);
    let put = bucket.put("a", Bytes::from(vec![1; 1000]));
    let read = bucket.get("a");
    let (put, read) = tokio::join!(put, read);
    for given_up in [put, read.map(|_| ())] {
        assert!(matches!(given_up, Err(BucketError::Late(_) | BucketError::Failed(_))));
    }
}
