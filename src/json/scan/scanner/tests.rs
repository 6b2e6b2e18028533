//! Tests of the scanner against the specification, rule by rule. Differential tests are in `tests/scan.rs`.

use super::*;
use crate::scan::{MAX_KEYS, MessageKind};

/// Scans `message` whole, byte by byte and split at every place, with every kernel, and returns the result that all of them
/// must give.
fn read(message: &str, limits: ScanLimits) -> (ScannedMessage, Result<(), ScanError>) {
    let message = message.as_bytes();
    let scan = |kernel: Kernel, chunks: &[&[u8]]| {
        let mut scanner = Scanner::with_kernel(limits, 1, kernel);
        let fed = chunks.iter().try_for_each(|chunk| scanner.feed(chunk));
        let finished = scanner.finish();
        assert!(fed.is_ok() || fed == finished);
        (*scanner.envelope(), finished)
    };
    let answer = scan(Kernel::PORTABLE, &[message]);
    for kernel in Kernel::usable() {
        for split in 0..=message.len() {
            let (head, tail) = message.split_at(split);
            assert_eq!(scan(kernel, &[head, tail]), answer, "cut at {split}");
        }
        assert_eq!(scan(kernel, &message.chunks(1).collect::<Vec<_>>()), answer, "by bytes");
    }
    answer
}

fn envelope(message: &str) -> ScannedMessage {
    let (envelope, finished) = read(message, ScanLimits::NONE);
    assert_eq!(finished, Ok(()), "{message}");
    envelope
}

#[track_caller]
fn refused(message: &str, fault: ScanFault, at: usize) {
    let (_, finished) = read(message, ScanLimits::NONE);
    assert_eq!(finished, Err(ScanError { at: at as u64, fault }), "{message}");
}

fn text(message: &str, span: Option<Span>) -> Option<&str> {
    span.map(|span| &message[span.start as usize..span.end as usize])
}

fn part(message: &str, part: Option<ScannedPart>) -> Option<&str> {
    text(message, part.and_then(ScannedPart::span))
}

#[test]
fn spans_of_a_result_are_found_in_any_member_order() {
    let bodies = [
        r#"{"content":[{"type":"text","text":"a]\"}"}],"structuredContent":{"a":[1,{}]},"isError":false}"#,
        r#" { "isError" : false , "structuredContent" : {"a":[1,{}]} , "content" : [{"type":"text","text":"a]\"}"}] } "#,
    ];
    for body in bodies {
        for message in [
            format!(r#"{{"jsonrpc":"2.0","id":"a\"7","result":{body}}}"#),
            format!(r#"{{"result":{body},"jsonrpc":"2.0","id":"a\"7"}}"#),
        ] {
            let envelope = envelope(&message);
            assert_eq!(envelope.kind, Some(MessageKind::Result));
            assert_eq!(text(&message, envelope.id), Some(r#""a\"7""#));
            assert_eq!(part(&message, envelope.body), Some(body.trim()));
            assert_eq!(part(&message, envelope.structured), Some(r#"{"a":[1,{}]}"#));
            let content = r#"[{"type":"text","text":"a]\"}"}]"#;
            assert_eq!(part(&message, envelope.content), Some(content));
            assert_eq!(envelope.is_error, Some(false));
            assert_eq!(envelope.ambiguity, None);
        }
    }
}

#[test]
fn every_json_value_can_be_structured_content() {
    let nested = r#"[[{"a":"]"}],"\\"]"#;
    for value in ["null", "true", "false", "0", "-1.5e+10", r#""""#, r#""\u0041\n""#, "{}", nested]
    {
        let message = format!(r#"{{"id":1,"result":{{"structuredContent":{value} ,"_meta":1}}}}"#);
        assert_eq!(part(&message, envelope(&message).structured), Some(value));
    }
}

#[test]
fn errors_requests_and_notifications_are_recognized() {
    let error = r#"{"id":null,"error":{"code":-1,"message":"x","structuredContent":1}}"#;
    let read = envelope(error);
    assert_eq!(read.kind, Some(MessageKind::Error));
    assert_eq!(text(error, read.id), Some("null"));
    assert_eq!(part(error, read.body), Some(r#"{"code":-1,"message":"x","structuredContent":1}"#));
    assert_eq!(read.structured, None);

    let request = r#"{"method":"tools/call","params":{"structuredContent":[]},"id":-7}"#;
    let read = envelope(request);
    assert_eq!(read.kind, Some(MessageKind::Method));
    assert_eq!(text(request, read.method), Some(r#""tools/call""#));
    assert_eq!(part(request, read.params), Some(r#"{"structuredContent":[]}"#));
    assert_eq!(text(request, read.id), Some("-7"));
    assert_eq!((read.structured, read.body), (None, None));
}

#[test]
fn null_result_or_error_counts_as_absent() {
    for (message, kind, body) in [
        (r#"{"id":1,"result":{"a":1},"error":null}"#, Some(MessageKind::Result), r#"{"a":1}"#),
        (r#"{"error": null ,"result":{"a":1}}"#, Some(MessageKind::Result), r#"{"a":1}"#),
        (r#"{"result":null,"error":{"code":1}}"#, Some(MessageKind::Error), r#"{"code":1}"#),
        (r#"{"error":{"code":1},"result":null}"#, Some(MessageKind::Error), r#"{"code":1}"#),
        (r#"{"result":null,"id":1}"#, None, ""),
        (r#"{"result":null,"error":null}"#, None, ""),
    ] {
        let read = envelope(message);
        assert_eq!((read.kind, read.has_outcome, read.mistyped), (kind, true, None), "{message}");
        assert_eq!(part(message, read.body).unwrap_or_default(), body, "{message}");
    }
    assert!(!envelope(r#"{"id":1,"method":"result","params":{"error":1}}"#).has_outcome);
    let (open, _) = read(r#"{"id":1,"error":"#, ScanLimits::NONE);
    assert_eq!((open.kind, open.has_outcome), (None, true));
    refused(r#"{"result":null,"result":{}}"#, ScanFault::Duplicate(ScannedMember::Result), 22);
    refused(r#"{"result":{},"error":{}}"#, ScanFault::Conflict, 21);
}

#[test]
fn value_of_the_wrong_json_type_is_reported() {
    for (message, mistyped) in [
        (r#"{"result":[]}"#, Some(ScannedMember::Result)),
        (r#"{"result":"x"}"#, Some(ScannedMember::Result)),
        (r#"{"error":"boom"}"#, Some(ScannedMember::Error)),
        (r#"{"error":-1}"#, Some(ScannedMember::Error)),
        (r#"{"result":{"content":null}}"#, Some(ScannedMember::Content)),
        (r#"{"result":{"content":"text"}}"#, Some(ScannedMember::Content)),
        (r#"{"result":{"content":{}}}"#, Some(ScannedMember::Content)),
        (r#"{"result":{"content":[]}}"#, None),
        (r#"{"content":null,"result":{"x":{"content":null}},"params":[]}"#, None),
        (r#"{"error":{"content":null}}"#, None),
    ] {
        assert_eq!(envelope(message).mistyped, mistyped, "{message}");
    }
}

#[test]
fn structured_content_is_recognized_only_as_a_direct_member_of_result() {
    for message in [
        r#"{"structuredContent":1,"isError":true,"result":{}}"#,
        r#"{"result":{"content":[{"structuredContent":1,"isError":true}]}}"#,
        r#"{"result":{"_meta":{"structuredContent":1,"isError":true}}}"#,
        r#"{"result":[{"structuredContent":1,"isError":true}]}"#,
        r#"{"result":{},"params":{"structuredContent":1,"isError":true}}"#,
        r#"{"result":{"result":{"structuredContent":1,"isError":true}}}"#,
        r#"{"result":"structuredContent"}"#,
    ] {
        let read = envelope(message);
        assert_eq!((read.structured, read.is_error), (None, None), "{message}");
        assert!(part(message, read.body).is_some(), "{message}");
    }
}

#[test]
fn escaped_names_are_decoded() {
    let message = r#"{"r\u0065sult":{"structured\u0043ontent":[1],"\u0069s\u0045rror":true}}"#;
    let read = envelope(message);
    assert_eq!(part(message, read.structured), Some("[1]"));
    assert_eq!(read.is_error, Some(true));
    assert_eq!(read.ambiguity, None);
}

#[test]
fn result_type_of_any_json_type_is_reported() {
    for value in [r#""input_required""#, "7", "[1]"] {
        let message = format!(r#"{{"result":{{"resultType":{value}}}}}"#);
        assert_eq!(text(&message, envelope(&message).result_type), Some(value));
    }
}

#[test]
fn request_state_of_any_json_type_is_reported() {
    for value in ["\"a\\u0062\"", "7", "null", r#"{"a":[1]}"#] {
        for message in [
            format!(r#"{{"result":{{"requestState": {value} ,"a":1}}}}"#),
            format!(r#"{{"result":{{"a":{{"requestState":1}},"request\u0053tate":{value}}}}}"#),
        ] {
            let read = envelope(&message);
            assert_eq!(part(&message, read.request_state), Some(value), "{message}");
            assert_eq!(read.ambiguity, None);
        }
    }
    let elsewhere = r#"{"requestState":1,"result":{"a":{"requestState":1}}}"#;
    assert_eq!(envelope(elsewhere).request_state, None);
    let twice = envelope(r#"{"result":{"requestState":1,"requestState":2}}"#);
    assert_eq!(twice.request_state.map(|part| part.start), Some(26));
}

#[test]
fn closed_result_reports_whether_it_had_members() {
    for (result, closed) in [
        ("{}", Some(Closed::Empty)),
        ("{ \n }", Some(Closed::Empty)),
        (r#"{"a":{}}"#, Some(Closed::WithMembers)),
        ("[{}]", None),
        ("null", None),
    ] {
        for message in [
            format!(r#"{{"result":{result}}}"#),
            format!(r#"{{"id":1,"result" : {result} ,"x":{{}}}}"#),
        ] {
            assert_eq!(envelope(&message).closed, closed, "{message}");
        }
        assert_eq!(envelope(&format!(r#"{{"error":{result}}}"#)).closed, None, "{result}");
    }
    let (open, _) = read(r#"{"result":{"a":1"#, ScanLimits::NONE);
    assert_eq!(open.closed, None);
}

#[test]
fn ambiguities_of_the_result_are_reported_and_the_first_value_is_used() {
    let check = |body: &str, kind, at: &str| {
        let message = format!(r#"{{"result":{{{body}}},"id":null}}"#);
        let read = envelope(&message);
        let at = (r#"{"result":{"#.len() + body.rfind(at).unwrap()) as u64;
        assert_eq!(read.ambiguity, Some(Ambiguity { kind, at }), "{message}");
        read
    };
    let twice = AmbiguityKind::Duplicate;
    let read = check(
        r#""structuredContent":1,"structured\u0043ontent":[2]"#,
        twice(ScannedMember::StructuredContent),
        r#""structured\"#,
    );
    assert_eq!(read.structured.and_then(ScannedPart::span).map(Span::len), Some(1));
    let read =
        check(r#""isError":false,"isError":true"#, twice(ScannedMember::IsError), r#""isError""#);
    assert_eq!(read.is_error, Some(false));
    check(r#""content":[],"content":[]"#, twice(ScannedMember::Content), r#""content""#);
    check(r#""_meta":{},"_meta":{}"#, twice(ScannedMember::Meta), r#""_meta""#);
    check(r#""x":1,"":2,"\u0078":3"#, twice(ScannedMember::Other), r#""\u0078""#);
    for value in [r#""true""#, "1", "null", "[]", "{}"] {
        let read = check(&format!(r#""isError":{value}"#), AmbiguityKind::IsErrorNotBoolean, value);
        assert_eq!(read.is_error, None);
    }
    check(r#""a\ud800":1"#, AmbiguityKind::LoneSurrogate, r#""a\ud800"#);
}

#[test]
fn duplicates_at_the_top_are_faults_where_the_protocol_defines_the_member() {
    refused(r#"{"id":1,"i\u0064":2}"#, ScanFault::Duplicate(ScannedMember::Id), 16);
    refused(r#"{"result":1,"result":2}"#, ScanFault::Duplicate(ScannedMember::Result), 19);
    refused(r#"{"error":1,"error":2}"#, ScanFault::Duplicate(ScannedMember::Error), 17);
    refused(r#"{"method":"","method":""}"#, ScanFault::Duplicate(ScannedMember::Method), 20);
    refused(r#"{"params":1,"params":2}"#, ScanFault::Duplicate(ScannedMember::Params), 19);
    refused(r#"{"jsonrpc":1,"jsonrpc":2}"#, ScanFault::Duplicate(ScannedMember::Jsonrpc), 21);
    refused(r#"{"result":1,"error":2}"#, ScanFault::Conflict, 20);
    refused(r#"{"method":"","result":2}"#, ScanFault::Conflict, 22);
    refused(r#"{"result":{},"method":""}"#, ScanFault::Conflict, 20);
    let other = envelope(r#"{"x":1,"result":{"x":1},"x":2}"#);
    let kind = AmbiguityKind::Duplicate(ScannedMember::Other);
    assert_eq!(other.ambiguity, Some(Ambiguity { kind, at: 24 }));
}

#[test]
fn unknown_keys_are_bounded() {
    let members = |count: usize| {
        let members: Vec<_> = (0..count).map(|n| format!(r#""k{n}":0"#)).collect();
        let message = format!(r#"{{"result":{{{}}}}}"#, members.join(","));
        let mut scanner = Scanner::new(ScanLimits::NONE, 3);
        assert_eq!(scanner.feed(message.as_bytes()), Ok(()));
        scanner.envelope().ambiguity.map(|ambiguity| ambiguity.kind)
    };
    assert_eq!(members(MAX_KEYS), None);
    assert_eq!(members(MAX_KEYS + 1), Some(AmbiguityKind::TooManyKeys));
}

#[test]
fn message_is_exactly_one_json_object() {
    refused("", ScanFault::Truncated, 0);
    refused(" \n", ScanFault::Truncated, 2);
    refused("[]", ScanFault::Batch, 0);
    refused(r#" [{"id":1}]"#, ScanFault::Batch, 1);
    refused("1", ScanFault::NotAnObject, 0);
    refused("\u{FEFF}{}", ScanFault::NotAnObject, 0);
    refused("{} x", ScanFault::Trailing, 3);
    refused("{}{}", ScanFault::Trailing, 2);
    refused(r#"{"id":1,"result":{"content":[]}"#, ScanFault::Truncated, 31);
    assert_eq!(envelope(" \t\r\n{ } \t\r\n"), ScannedMessage::default());
}

#[test]
fn grammar_outside_containers_is_exact() {
    refused("{,}", ScanFault::Unexpected, 1);
    refused(r#"{"a"}"#, ScanFault::Unexpected, 4);
    refused(r#"{"a":}"#, ScanFault::Unexpected, 5);
    refused(r#"{"a":1,}"#, ScanFault::Unexpected, 7);
    refused(r#"{"a":1 "b":2}"#, ScanFault::Unexpected, 7);
    refused(r#"{"a":1]"#, ScanFault::Unexpected, 6);
    refused(r#"{"a":nul}"#, ScanFault::Unexpected, 8);
    refused(r#"{"a":NaN}"#, ScanFault::Unexpected, 5);
    refused(r#"{"a":01}"#, ScanFault::Unexpected, 6);
    refused(r#"{"a":1.}"#, ScanFault::Number, 7);
    refused(r#"{"a":-}"#, ScanFault::Number, 6);
    refused("{\"a\":\"\n\"}", ScanFault::Control, 6);
    refused(r#"{"a":"\x"}"#, ScanFault::Escape, 7);
    refused(r#"{"a":"\u12"}"#, ScanFault::Escape, 10);
    refused("{\"\0\":1}", ScanFault::Control, 2);
    refused(r#"{"result":{"a":1,}}"#, ScanFault::Unexpected, 17);
    refused(r#"{"result":{"a":[1}}"#, ScanFault::Mismatched, 17);
    refused(r#"{"result":{"a":[\"]}}"#, ScanFault::Unexpected, 16);
    refused(r#"{"id":true}"#, ScanFault::WrongType(ScannedMember::Id), 6);
    refused(r#"{"id":{}}"#, ScanFault::WrongType(ScannedMember::Id), 6);
    refused(r#"{"method":1}"#, ScanFault::WrongType(ScannedMember::Method), 10);
}

#[test]
fn scanner_error_persists_for_later_input() {
    let mut scanner = Scanner::new(ScanLimits::NONE, 1);
    let error = Err(ScanError { at: 1, fault: ScanFault::Unexpected });
    assert_eq!(scanner.feed(b"{]"), error);
    assert_eq!(scanner.feed(b"}"), error);
    assert_eq!(scanner.finish(), error);
    assert_eq!(scanner.position(), 1);
}

/// Scans `value` as `structuredContent` under `limits`; returns the breach with its offset from the start of the value.
fn breach(value: &str, limits: ScanLimits) -> Option<(Guard, u64)> {
    let head = r#"{"id":1,"result":{"content":[[[[]]]],"structuredContent": "#;
    let message = format!("{head}{value} ,\"x\":[[[[[[]]]]]]}}}}");
    let (envelope, finished) = read(&message, limits);
    assert_eq!(finished, Ok(()), "a breach does not stop the scanner");
    envelope.breach.map(|breach| {
        assert!(!breach.after_is_error_true);
        (breach.guard, breach.at - head.len() as u64)
    })
}

#[test]
fn fr_a6_bytes_are_exact_for_every_type() {
    let long = format!(r#"["{}"]"#, "x".repeat(150));
    for value in
        ["null", "true", "false", "1", "-12.5e7", r#""""#, r#""a\n\u0041""#, "[]", "{ }", &long]
    {
        let len = value.len() as u64;
        let limits = |max_bytes| ScanLimits { max_bytes, ..ScanLimits::NONE };
        assert_eq!(breach(value, limits(len + 1)), None, "{value}");
        assert_eq!(breach(value, limits(len)), None, "{value}");
        assert_eq!(breach(value, limits(len - 1)), Some((Guard::Bytes, len - 1)), "{value}");
        assert_eq!(breach(value, limits(0)), Some((Guard::Bytes, 0)), "{value}");
    }
}

#[test]
fn fr_a6_depth_is_exact_for_every_type() {
    let padded = format!(r#"[{0}{{"a":{0}[{0}"]}}"{0}]{0}}}{0},[]]"#, " ".repeat(70));
    let third = padded.find(r#"{"a":"#).unwrap() + 5 + 70;
    for (value, depth, at) in [
        ("null", 0, 0),
        (r#""[[[""#, 0, 0),
        ("1", 0, 0),
        ("[]", 1, 0),
        ("{}", 1, 0),
        (r#"{"a":[]}"#, 2, 5),
        ("[[],[[]],[[[]]]]", 4, 11),
        (r#"["]]",{"a[":["[[[[\"[[[["]}]"#, 3, 12),
        (&padded, 3, third),
    ] {
        let limits = |max_depth| ScanLimits { max_depth, ..ScanLimits::NONE };
        assert_eq!(breach(value, limits(depth + 1)), None, "{value}");
        assert_eq!(breach(value, limits(depth)), None, "{value}");
        if let Some(below) = depth.checked_sub(1) {
            assert_eq!(breach(value, limits(below)), Some((Guard::Depth, at as u64)), "{value}");
        }
    }
}

#[test]
fn fr_a6_first_breach_counts_and_size_takes_precedence_over_depth() {
    let limits = |max_bytes, max_depth| ScanLimits { max_bytes, max_depth };
    assert_eq!(breach("[[[]]]", limits(3, 2)), Some((Guard::Depth, 2)));
    assert_eq!(breach("[[[]]]", limits(2, 2)), Some((Guard::Bytes, 2)));
    assert_eq!(breach("[[[]]]", limits(1, 2)), Some((Guard::Bytes, 1)));
    assert_eq!(breach("[]", limits(0, 0)), Some((Guard::Bytes, 0)));
}

#[test]
fn fr_a6_breach_is_reported_at_its_byte() {
    let message = br#"{"result":{"structuredContent":{"a":[1,2,3]}}}"#;
    for (limits, at) in [
        (ScanLimits { max_bytes: 4, ..ScanLimits::NONE }, 35),
        (ScanLimits { max_depth: 1, ..ScanLimits::NONE }, 36),
    ] {
        let mut scanner = Scanner::new(limits, 1);
        for (index, byte) in message.iter().enumerate() {
            scanner.feed(&[*byte]).unwrap();
            assert_eq!(scanner.envelope().breach.is_some(), index >= at);
        }
        assert_eq!(scanner.envelope().breach.unwrap().at, at as u64);
    }
}

#[test]
fn fr_a10_breach_reports_whether_is_error_came_before() {
    let limits = ScanLimits { max_bytes: 1, max_depth: 64 };
    for (head, tail, before) in [
        (r#""isError":true,"#, "", true),
        (r#""isError":false,"#, "", false),
        ("", r#","isError":true"#, false),
    ] {
        let message = format!(r#"{{"result":{{{head}"structuredContent":[]{tail}}}}}"#);
        let (envelope, finished) = read(&message, limits);
        assert_eq!(finished, Ok(()));
        assert_eq!(envelope.breach.unwrap().after_is_error_true, before);
        assert_eq!(envelope.is_error, Some(!message.contains("false")));
    }
}
