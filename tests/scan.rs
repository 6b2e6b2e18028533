//! Comparison of the scanner with a slow and simple reference: small messages split at every position, and generated
//! messages, intact and damaged, split at arbitrary positions.

#[allow(unreachable_pub, dead_code, missing_docs, reason = "the fuzz crate's library, included")]
#[path = "../fuzz/src/lib.rs"]
mod bodies;

use bodies::{envelope, reference, scan};
use mcpproxy_json::scan::{Kernel, ScanLimits, Scanner};
use proptest::{collection::vec, prelude::*, sample::select};

const TIGHT: ScanLimits = ScanLimits { max_bytes: 40, max_depth: 2 };

/// Small messages that together reach every state of the scanner.
const SMALL: [&str; 9] = [
    r#"{"jsonrpc":"2.0","id":-1.5e+3,"result":{"content":[{"a":"]\\"}],"isError":true}}"#,
    r#"{"result":{"structuredContent":{"a":[[1,"}\""],[]],"b":"long enough to breach"}},"id":"x"}"#,
    r#" { "\u0069d" : null , "error" : { "code" : 1 , "x" : [ { } ] } } "#,
    r#"{"method":"m\ud83d\ude00","params":{"q":"\\\\\\\""},"é€𝄞":false}"#,
    r#"{"result":{"isErr\u006fr":0,"\ud800":1,"a":1,"\u0061":2,"resultType":"x","_meta":{}}}"#,
    r#"{"result":{"structuredContent":"a string of more than forty bytes \u0041\n, it is"}}"#,
    r#"{"result":{"structuredContent":12345678901234567890123456789012345678901234567.5}}"#,
    r#"{"id":1,"result":{"content":[[]],"structuredContent":[[[]]],"isError":true}} x"#,
    r#"{"result":{"a key that is longer than the buffer for keys":1,"content":[\"]}}"#,
];

#[test]
fn every_pair_of_splits_gives_the_same_result() {
    for message in SMALL.map(str::as_bytes) {
        let (envelope, finished) = reference::read(message, TIGHT);
        let prefixes: Vec<_> =
            (0..=message.len()).map(|len| reference::read(&message[..len], TIGHT)).collect();
        for kernel in [Kernel::PORTABLE, Kernel::fastest()] {
            for first in 0..=message.len() {
                for second in first..=message.len() {
                    let mut scanner = Scanner::with_kernel(TIGHT, 1, kernel);
                    for (from, to) in [(0, first), (first, second), (second, message.len())] {
                        let _ = scanner.feed(&message[from..to]);
                        assert_eq!((*scanner.envelope(), scanner.finish()), prefixes[to]);
                    }
                    assert_eq!((*scanner.envelope(), scanner.finish()), (envelope, finished));
                }
            }
        }
    }
}

#[test]
fn long_runs_of_backslashes_across_ends_of_blocks_and_chunks_are_read() {
    for run in 0..140 {
        for pad in 0..66 {
            let (pad, run) = (" ".repeat(pad), "\\".repeat(run));
            let message = format!(
                r#"{{"result":{{"content":[{pad}"{run}"],"structuredContent":["{run}"]}}}}"#
            );
            let (envelope, finished) = reference::read(message.as_bytes(), TIGHT);
            for kernel in [Kernel::PORTABLE, Kernel::fastest()] {
                for chunk in [message.len(), 64, 63, 7] {
                    let mut scanner = Scanner::with_kernel(TIGHT, 1, kernel);
                    for chunk in message.as_bytes().chunks(chunk) {
                        let _ = scanner.feed(chunk);
                    }
                    assert_eq!((*scanner.envelope(), scanner.finish()), (envelope, finished));
                }
            }
        }
    }
}

#[test]
fn ordinary_message_is_read_without_an_allocation() {
    let rows = r#"{"a":[1,"two",{}],"b":"\u00e9\""},"#.repeat(1000);
    let message = format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{rows}0],"structuredContent":[{rows}0],"isError":false,"_meta":{{}},"x":1,"y":2}}}}"#
    );
    let count = allocation_counter::measure(|| {
        let mut scanner = Scanner::new(ScanLimits { max_bytes: 5 << 20, max_depth: 64 }, 1);
        for chunk in message.as_bytes().chunks(1000) {
            assert_eq!(scanner.feed(chunk), Ok(()));
        }
        assert_eq!(scanner.finish(), Ok(()));
    });
    assert_eq!(count.count_total, 0);
}

/// JSON text of any value, with white space and escapes.
fn value() -> impl Strategy<Value = String> {
    let string =
        vec(select(&["a", "]", "}", "{", "[", "\\\"", "\\\\", "\\u00e9", "é", ","]), 0..40)
            .prop_map(|parts| format!("\"{}\"", parts.concat()));
    let scalar = select(&["null", "true", "false", "0", "-1.5e+9", "123456789", "\"\""]);
    let space = || select(&["", " ", "\n\t  ", "                                "]);
    let leaf = prop_oneof![scalar.prop_map(String::from), string.clone()];
    leaf.prop_recursive(6, 60, 6, move |inner| {
        let array = (vec(inner.clone(), 0..6), space())
            .prop_map(|(items, space)| format!("[{space}{}{space}]", items.join(",")));
        let object = (vec((string.clone(), inner), 0..6), space()).prop_map(|(members, space)| {
            let members: Vec<_> =
                members.iter().map(|(key, value)| format!("{key}{space}:{value}")).collect();
            format!("{{{}{space}}}", members.join(&format!("{space},")))
        });
        prop_oneof![array, object]
    })
}

fn object(names: &'static [&'static str]) -> impl Strategy<Value = String> {
    vec((select(names), value()), 0..7).prop_map(|members| {
        let members: Vec<_> =
            members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", members.join(","))
    })
}

/// Message, usually a well-formed response.
fn message() -> impl Strategy<Value = String> {
    const RESULT: &[&str] = &[
        "content",
        "structuredContent",
        "structured\\u0043ontent",
        "isError",
        "resultType",
        "ttlMs",
        "cacheScope",
        "_meta",
        "x",
        "a much longer name than any that is known",
    ];
    let result = prop_oneof![4 => object(RESULT), 1 => value()];
    let is_error = select(&["", "\"isError\":true,", "\"isError\":false,"]);
    let response = (select(&["1", "\"a\\\"b\"", "null"]), result, is_error, any::<bool>())
        .prop_map(|(id, result, is_error, id_first)| {
            let result = match result.strip_prefix("{\"") {
                Some(members) => format!("{{{is_error}\"{members}"),
                None => result,
            };
            if id_first {
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
            } else {
                format!(r#"{{"result":{result},"jsonrpc":"2.0","id":{id}}}"#)
            }
        });
    let any = object(&["jsonrpc", "id", "result", "error", "method", "params", "y"]);
    prop_oneof![4 => response, 1 => any]
}

fn limits() -> impl Strategy<Value = ScanLimits> {
    (prop_oneof![0_u64..400, Just(u64::MAX)], prop_oneof![0_u32..8, Just(u32::MAX)])
        .prop_map(|(max_bytes, max_depth)| ScanLimits { max_bytes, max_depth })
}

proptest! {
    #[test]
    fn generated_messages_are_read_like_by_the_reference_scanner(
        message in message(), limits in limits(), cuts: u64,
    ) {
        scan::check(message.as_bytes(), limits, cuts);
        envelope::run(message.as_bytes());
    }

    #[test]
    fn damaged_messages_are_read_like_by_the_reference_scanner(
        message in message(),
        limits in limits(),
        cuts: u64,
        damage in vec((any::<prop::sample::Index>(), any::<u8>(), 0..3), 1..4),
    ) {
        let mut bytes = message.into_bytes();
        for (index, byte, how) in damage {
            let at = index.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => bytes.truncate(at.max(1)),
            }
        }
        scan::check(&bytes, limits, cuts);
        envelope::run(&bytes);
    }

    #[test]
    fn wider_limit_never_breaches_earlier(
        message in message(), limits in limits(), more_bytes in 0_u64..50, more_depth in 0_u32..3,
    ) {
        let breach = |limits| {
            let mut scanner = Scanner::new(limits, 1);
            let _ = scanner.feed(message.as_bytes());
            scanner.envelope().breach.map_or(u64::MAX, |breach| breach.at)
        };
        let wider = ScanLimits {
            max_bytes: limits.max_bytes.saturating_add(more_bytes),
            max_depth: limits.max_depth.saturating_add(more_depth),
        };
        prop_assert!(breach(wider) >= breach(limits));
    }
}
