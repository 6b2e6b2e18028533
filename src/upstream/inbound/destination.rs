//! What a server says outside of any answer: what it is, who it is for, what it is answered.
//!
//! A request of a server (sampling, elicitation, roots) names no call. Inside a call's own stream
//! it belongs to that call and never comes here. Outside of one, on a child's pipe or on the GET
//! stream, it is given to the one call in flight whose client can take it, and refused with the
//! reason if there is none such or more than one: a guess could show one client's data to another.
//! Pure: who reads and who writes is not known here.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::mcp::capabilities::ClientCapabilities;
use crate::mcp::jsonrpc::{self, Code, Envelope};
use crate::upstream::pending;

/// Longest id of a server's request, in bytes as written.
const MAX_ID_BYTES: usize = 1024;
/// Most bytes of a message that is given to a call: what its reader takes outside of an answer.
const MAX_TOLD_BYTES: usize = 1024 * 1024;
/// Most characters of a server's own words in our answer to it.
const SHOWN_CHARS: usize = 100;

/// A list of a server that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum ChangedList {
    Tools,
    Resources,
    Prompts,
}

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Destination {
    /// It answers a request of the lifecycle, or is for it to judge.
    Lifecycle,
    /// A log message, which names no call: the only one in flight, if it is the only one.
    Log(Option<u64>),
    /// It is about this call. With an id it is a request, which must be answered by somebody.
    Call(u64, Option<Bytes>),
    /// A list has changed.
    Changed(ChangedList),
    /// A resource has changed.
    Updated(Box<str>),
    /// We answer it ourselves: the message to send.
    Reply(Bytes),
    /// Nobody wants it; why, for the log.
    Nobody(&'static str),
}

/// Decides about a whole message that answers no call. `calls` are those in flight that can be
/// reached, with what each one's client can be asked.
pub(in crate::upstream) fn way(
    message: &[u8],
    calls: impl Iterator<Item = (u64, ClientCapabilities)>,
) -> Destination {
    let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(message) else {
        return Destination::Nobody("a message that cannot be read");
    };
    let way = match (envelope.method.as_deref(), envelope.id) {
        (None, _) => Destination::Lifecycle,
        (Some(method), None) => notification(method, envelope.params, calls),
        (Some(method), Some(id)) => request(method, id.get(), calls),
    };
    let request = match &way {
        Destination::Call(_, request) => request.as_deref(),
        Destination::Log(_) => None,
        Destination::Lifecycle
        | Destination::Changed(_)
        | Destination::Updated(_)
        | Destination::Reply(_)
        | Destination::Nobody(_) => {
            return way;
        }
    };
    if message.len() <= MAX_TOLD_BYTES {
        return way;
    }
    let Some(id) = request else {
        return Destination::Nobody("a notification that is too large for a call");
    };
    let text = format!("the request is larger than {MAX_TOLD_BYTES} bytes");
    Destination::Reply(jsonrpc::error(Some(id), Code::Internal, &text))
}

fn notification(
    method: &str,
    params: Option<&RawValue>,
    mut calls: impl Iterator<Item = (u64, ClientCapabilities)>,
) -> Destination {
    match method {
        "notifications/progress" => match params.and_then(progress_of) {
            Some(id) if calls.any(|(call, _)| call == id) => Destination::Call(id, None),
            Some(_) | None => Destination::Nobody("progress of a call that is not in flight"),
        },
        "notifications/message" => match (calls.next(), calls.next()) {
            (Some((only, _)), None) => Destination::Log(Some(only)),
            (None, _) | (Some(_), Some(_)) => Destination::Log(None),
        },
        // It takes back what it asked: whoever was asked is the one call that could be.
        "notifications/cancelled" => {
            let mut asked = calls.filter(|(_, client_capabilities)| {
                *client_capabilities != ClientCapabilities::default()
            });
            match (asked.next(), asked.next()) {
                (Some((only, _)), None) => Destination::Call(only, None),
                (None, _) | (Some(_), Some(_)) => {
                    Destination::Nobody("the end of a request to no call")
                }
            }
        }
        "notifications/tools/list_changed" => Destination::Changed(ChangedList::Tools),
        "notifications/resources/list_changed" => Destination::Changed(ChangedList::Resources),
        "notifications/prompts/list_changed" => Destination::Changed(ChangedList::Prompts),
        "notifications/resources/updated" => match params.and_then(uri_of) {
            Some(uri) => Destination::Updated(uri),
            None => Destination::Nobody("the change of a resource without a URI"),
        },
        _ => Destination::Nobody("a notification of an unknown kind"),
    }
}

fn request(
    method: &str,
    id: &str,
    calls: impl Iterator<Item = (u64, ClientCapabilities)>,
) -> Destination {
    if id.len() > MAX_ID_BYTES {
        return Destination::Nobody("a request whose id is too long");
    }
    if !id.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9')) {
        return Destination::Nobody("a request whose id is neither a string nor a number");
    }
    let reply =
        |code, text: &str| Destination::Reply(jsonrpc::error(Some(id.as_bytes()), code, text));
    if method == "ping" {
        return Destination::Reply(jsonrpc::response(id.as_bytes(), b"{}"));
    }
    if !ClientCapabilities::ALL.grant(method) {
        let shown: String = method.chars().take(SHOWN_CHARS).collect();
        return reply(Code::MethodNotFound, &format!("Method not found: {shown}"));
    }
    let (mut able, mut first, mut all) = (0_usize, 0, 0_usize);
    for (call, client_capabilities) in calls {
        all += 1;
        if client_capabilities.grant(method) {
            able += 1;
            first = call;
        }
    }
    match (able, all) {
        (1, _) => Destination::Call(first, Some(Bytes::copy_from_slice(id.as_bytes()))),
        (0, 0) => reply(
            Code::Internal,
            &format!("{method}: no call is in flight whose client could be asked"),
        ),
        (0, _) => reply(
            Code::MethodNotFound,
            &format!("{method}: no client of a call in flight supports it"),
        ),
        (several, _) => reply(
            Code::Internal,
            &format!(
                "{method}: {several} calls are in flight whose clients could be asked, and the \
                 request does not say which one it belongs to"
            ),
        ),
    }
}

/// What a request that found its call but no room there is answered.
pub(in crate::upstream) fn busy(id: &[u8]) -> Bytes {
    jsonrpc::error(Some(id), Code::Internal, "the client does not keep up with what it is sent")
}

/// The call that a progress notification is about, by the token it carries: our own id.
fn progress_of(params: &RawValue) -> Option<u64> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Params<'a> {
        #[serde(borrow)]
        progress_token: &'a RawValue,
    }
    let token = serde_json::from_str::<Params<'_>>(params.get()).ok()?.progress_token.get();
    // Some servers make a string of every token.
    let digits = token.strip_prefix('"').and_then(|it| it.strip_suffix('"')).unwrap_or(token);
    digits.parse().ok().filter(|id| pending::is_ours(*id))
}

fn uri_of(params: &RawValue) -> Option<Box<str>> {
    #[derive(Deserialize)]
    struct Params {
        uri: Box<str>,
    }
    serde_json::from_str::<Params>(params.get()).ok().map(|params| params.uri)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const A: u64 = pending::FIRST_ID;
    const B: u64 = pending::FIRST_ID + 1;
    const NONE: ClientCapabilities = ClientCapabilities {
        sampling: false,
        elicitation: false,
        elicitation_forms: false,
        roots: false,
    };
    const ELICITATION: ClientCapabilities = ClientCapabilities { elicitation: true, ..NONE };

    fn check(message: &str, calls: &[(u64, ClientCapabilities)], expected: &Destination) {
        assert_eq!(&way(message.as_bytes(), calls.iter().copied()), expected, "{message}");
    }

    /// Code and text of the error that a request is answered.
    fn refused(message: &str, calls: &[(u64, ClientCapabilities)]) -> (i64, String) {
        let Destination::Reply(reply) = way(message.as_bytes(), calls.iter().copied()) else {
            panic!("{message} is not answered")
        };
        let reply: Value = serde_json::from_slice(&reply).unwrap();
        let asked: Value = serde_json::from_str(message).unwrap();
        assert_eq!((&reply["jsonrpc"], &reply["id"]), (&json!("2.0"), &asked["id"]));
        let error = &reply["error"];
        (error["code"].as_i64().unwrap(), error["message"].as_str().unwrap().to_owned())
    }

    #[test]
    fn progress_goes_to_the_call_whose_id_is_its_token() {
        let progress = |token: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progress":1,"progressToken":{token}}}}}"#
            )
        };
        let calls = [(A, NONE), (B, ELICITATION)];
        for token in [B.to_string(), format!("\"{B}\"")] {
            check(&progress(&token), &calls, &Destination::Call(B, None));
        }
        for token in [(B + 1).to_string(), "1".into(), "null".into(), "[]".into(), "\"x\"".into()] {
            let nobody = Destination::Nobody("progress of a call that is not in flight");
            check(&progress(&token), &calls, &nobody);
        }
        check(
            r#"{"method":"notifications/progress"}"#,
            &calls,
            &Destination::Nobody("progress of a call that is not in flight"),
        );
    }

    #[test]
    fn a_request_goes_to_the_one_call_whose_client_can_take_it() {
        let asks = r#"{"jsonrpc":"2.0","id":"q-1","method":"elicitation/create","params":{}}"#;
        let to_b = Destination::Call(B, Some(Bytes::from_static(b"\"q-1\"")));
        check(asks, &[(B, ELICITATION)], &to_b);
        check(asks, &[(A, NONE), (B, ELICITATION)], &to_b);
        let (code, text) = refused(asks, &[]);
        assert_eq!(code, -32603);
        assert_eq!(text, "elicitation/create: no call is in flight whose client could be asked");
        let (code, text) =
            refused(asks, &[(A, ClientCapabilities { sampling: true, roots: true, ..NONE })]);
        assert_eq!(code, -32601);
        assert_eq!(text, "elicitation/create: no client of a call in flight supports it");
        let (code, text) = refused(asks, &[(A, ELICITATION), (B, ELICITATION)]);
        assert_eq!(code, -32603);
        assert!(text.contains("2 calls are in flight"), "{text}");
    }

    #[test]
    fn each_request_asks_for_its_own_capability() {
        for (method, client_capabilities) in [
            ("sampling/createMessage", ClientCapabilities { sampling: true, ..NONE }),
            ("elicitation/create", ELICITATION),
            ("roots/list", ClientCapabilities { roots: true, ..NONE }),
        ] {
            let asks = format!(r#"{{"id":7,"method":"{method}"}}"#);
            check(
                &asks,
                &[(A, client_capabilities)],
                &Destination::Call(A, Some(Bytes::from_static(b"7"))),
            );
            let others = ClientCapabilities {
                sampling: !client_capabilities.sampling,
                elicitation: !client_capabilities.elicitation,
                elicitation_forms: !client_capabilities.elicitation_forms,
                roots: !client_capabilities.roots,
            };
            assert_eq!(refused(&asks, &[(A, others)]).0, -32601);
        }
    }

    #[test]
    fn ping_is_answered_and_the_unknown_refused() {
        let ping = r#"{"jsonrpc":"2.0","id":-1.5,"method":"ping"}"#;
        let pong = Bytes::from_static(br#"{"jsonrpc":"2.0","id":-1.5,"result":{}}"#);
        check(ping, &[(A, ELICITATION)], &Destination::Reply(pong));
        let long = "x".repeat(10_000);
        let (code, text) = refused(&format!(r#"{{"id":1,"method":"{long}"}}"#), &[]);
        assert_eq!(code, -32601);
        assert!(text.len() < 200);
    }

    #[test]
    fn a_request_that_cannot_be_answered_is_not() {
        for id in ["null", "{}", "[1]", "true", &format!("\"{}\"", "x".repeat(MAX_ID_BYTES))] {
            let asks = format!(r#"{{"id":{id},"method":"ping"}}"#);
            let found = way(asks.as_bytes(), std::iter::empty());
            assert!(matches!(found, Destination::Nobody(_)), "{id}: {found:?}");
        }
    }

    #[test]
    fn what_is_too_large_for_a_call_is_not_given_to_it() {
        let filler = "x".repeat(MAX_TOLD_BYTES);
        let calls = [(A, ELICITATION)];
        let asks = format!(r#"{{"id":7,"method":"elicitation/create","params":"{filler}"}}"#);
        let (code, text) = refused(&asks, &calls);
        assert_eq!((code, &*text), (-32603, "the request is larger than 1048576 bytes"));
        let log = format!(r#"{{"method":"notifications/message","params":"{filler}"}}"#);
        check(&log, &calls, &Destination::Nobody("a notification that is too large for a call"));
    }

    #[test]
    fn a_log_message_may_go_to_the_only_call() {
        let log = r#"{"method":"notifications/message","params":{"level":"info"}}"#;
        check(log, &[(A, NONE)], &Destination::Log(Some(A)));
        check(log, &[], &Destination::Log(None));
        check(log, &[(A, NONE), (B, NONE)], &Destination::Log(None));
    }

    #[test]
    fn changes_are_told_apart() {
        for (method, list) in [
            ("tools", ChangedList::Tools),
            ("resources", ChangedList::Resources),
            ("prompts", ChangedList::Prompts),
        ] {
            let changed = format!(r#"{{"method":"notifications/{method}/list_changed"}}"#);
            check(&changed, &[], &Destination::Changed(list));
        }
        check(
            r#"{"method":"notifications/resources/updated","params":{"uri":"a\u0062"}}"#,
            &[],
            &Destination::Updated("ab".into()),
        );
    }

    #[test]
    fn the_rest_is_the_lifecycles_or_nobodys() {
        check(r#"{"id":0,"result":{}}"#, &[], &Destination::Lifecycle);
        check(r#"{"error":{},"id":null}"#, &[], &Destination::Lifecycle);
        for message in ["[]", "7", "{", r#"{"method":1}"#, r#"{"method":"notifications/x"}"#] {
            let found = way(message.as_bytes(), std::iter::empty());
            assert!(matches!(found, Destination::Nobody(_)), "{message}: {found:?}");
        }
    }
}
