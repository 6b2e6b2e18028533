//! Compressed answers and byte order marks.

use super::*;
use crate::http::decoder::tests::{gzip, zlib, zstd};
use crate::tests::{Fake, Say, legacy};

fn marked(text: &[u8]) -> Vec<u8> {
    [b"\xEF\xBB\xBF", text].concat()
}

/// A response with this body.
fn encoded(encoding: &str, kind: &str, body: &[u8]) -> Say {
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: {encoding}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    Say::Bytes([head.as_bytes(), body].concat())
}

#[tokio::test]
async fn pro_26_compressed_answers_and_answers_with_a_byte_order_mark_reach_the_client_decoded() {
    let text = "long ".repeat(20_000);
    for (encoding, encode) in [
        ("gzip", gzip as fn(&[u8]) -> Vec<u8>),
        ("deflate", zlib),
        ("zstd", zstd),
        ("", |text| text.to_vec()),
        ("identity", marked),
        ("gzip", |text| gzip(&marked(text))),
    ] {
        for kind in ["application/json", "text/event-stream"] {
            let sent = text.clone();
            let server = Fake::start(move |seen| match seen.method() {
                "tools/call" => {
                    let message = result(seen.body["id"].as_u64().unwrap(), &sent);
                    let body = match kind {
                        "application/json" => message,
                        _ => format!("data: {message}\n\n"),
                    };
                    encoded(encoding, kind, &encode(body.as_bytes()))
                }
                "tools/list" => {
                    let Say::Raw(list) = legacy(seen) else { panic!("it answers at once") };
                    let (_, body) = list.split_once("\r\n\r\n").unwrap();
                    encoded(encoding, "application/json", &encode(body.as_bytes()))
                }
                _ => legacy(seen),
            })
            .await;
            let bench = server.bench();
            bench.connected("web").await;
            for _ in 0..2 {
                let mut answer = bench.begin("web:t", "{}").await.unwrap();
                let expected = result(answer.id(), &text);
                let message = next_message(&mut answer).await.unwrap();
                assert!(message.is_some_and(|it| it == expected), "{encoding:?} {kind}");
                answer.finish();
            }
            bench.stop().await;
        }
    }
}

#[tokio::test]
async fn pro_26_broken_coding_is_an_error_of_the_server() {
    let server = Fake::start(|seen| match seen.method() {
        "tools/call" => {
            let body = gzip(&result(1, "x").into_bytes());
            encoded("gzip", "application/json", &body[..body.len() - 5])
        }
        _ => legacy(seen),
    })
    .await;
    let bench = server.bench();
    bench.connected("web").await;
    let error = bench.call("web:t", "{}").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "web: t: the answer cannot be read: its gzip coding is broken or incomplete"
    );
    assert!(error.cause.blames_server());
    bench.stop().await;
}
