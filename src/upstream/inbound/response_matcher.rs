//! Whose message is this? Reads a JSON-RPC message as its bytes come, until it is known whether it
//! answers one of our calls.
//!
//! A response is known once its `id` and its `result` or `error` were seen, in either order; a
//! `method` makes it a request or a notification. Owns that decision alone: the scanner reads the
//! JSON, the caller keeps the bytes. Pure.

use bytes::Bytes;

use crate::json::scan::{MessageKind, ScanLimits, Scanner};
use crate::json::span::Span;
use crate::upstream::pending;

/// Longest number that can be one of our ids.
const ID_BYTES: u64 = 14;

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum MessageRoute {
    /// It answers the call with this id.
    Call(u64),
    /// It answers no call of ours, but is a JSON object: the lifecycle's business.
    Lifecycle,
    /// It is no JSON object.
    Garbage,
}

/// The reader of one message's envelope.
#[derive(Debug)]
pub(in crate::upstream) struct ResponseMatcher {
    scanner: Scanner,
}

impl ResponseMatcher {
    /// A reader at the start of a message; `seed` as in [`Scanner::new`].
    pub(in crate::upstream) fn new(seed: u64) -> Self {
        Self { scanner: Scanner::new(ScanLimits::NONE, seed) }
    }

    /// Reads the last of the message's chunks so far, the others having been read. Returns the
    /// route once it is known.
    pub(in crate::upstream) fn feed(&mut self, chunks: &[Bytes]) -> Option<MessageRoute> {
        let broken = self.scanner.feed(chunks.last()?).is_err();
        let envelope = self.scanner.envelope();
        let route = match (envelope.kind, envelope.id) {
            (Some(MessageKind::Method), _) => Some(MessageRoute::Lifecycle),
            (Some(MessageKind::Result | MessageKind::Error), Some(id)) => {
                Some(ours(id, chunks).map_or(MessageRoute::Lifecycle, MessageRoute::Call))
            }
            (Some(MessageKind::Result | MessageKind::Error), None) | (None, _) => None,
        };
        match route {
            // What breaks after it was known whose it is, is for that call to complain about.
            Some(MessageRoute::Call(_)) => route,
            Some(MessageRoute::Lifecycle | MessageRoute::Garbage) | None if broken => {
                Some(MessageRoute::Garbage)
            }
            Some(MessageRoute::Lifecycle | MessageRoute::Garbage) | None => route,
        }
    }

    /// The route of a message that is complete and had none so far.
    pub(in crate::upstream) fn end(&self) -> MessageRoute {
        if self.scanner.finish().is_ok() { MessageRoute::Lifecycle } else { MessageRoute::Garbage }
    }
}

fn ours(id: Span, chunks: &[Bytes]) -> Option<u64> {
    if id.len() > ID_BYTES {
        return None;
    }
    let mut digits = Vec::with_capacity(ID_BYTES as usize);
    let mut base = 0;
    for chunk in chunks {
        digits.extend_from_slice(&id.within(chunk, base));
        base += chunk.len() as u64;
    }
    let id = std::str::from_utf8(&digits).ok()?.parse().ok()?;
    pending::is_ours(id).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: u64 = pending::FIRST_ID;

    /// The same route for every split.
    fn check(message: &str, expected: MessageRoute) {
        let bytes = Bytes::copy_from_slice(message.as_bytes());
        for cut in 0..=bytes.len() {
            let mut peek = ResponseMatcher::new(1);
            let (first, second) = (bytes.slice(..cut), bytes.slice(cut..));
            let route = peek
                .feed(std::slice::from_ref(&first))
                .or_else(|| peek.feed(&[first, second]))
                .unwrap_or_else(|| peek.end());
            assert_eq!(route, expected, "{message} cut at {cut}");
        }
    }

    #[test]
    fn an_answer_is_known_by_id_and_outcome_in_any_order() {
        check(
            &format!(r#"{{"jsonrpc":"2.0","id":{OURS},"result":{{}}}}"#),
            MessageRoute::Call(OURS),
        );
        check(
            &format!(r#"{{"result":{{"id":5}},"jsonrpc":"2.0","id":{OURS}}}"#),
            MessageRoute::Call(OURS),
        );
        check(&format!(r#" {{ "error" : {{}} , "id" : {OURS} }} "#), MessageRoute::Call(OURS));
        check(
            &format!(r#"{{"result":{{"a\"}}\\":["]",{{"method":1}}]}},"id":{OURS}}}"#),
            MessageRoute::Call(OURS),
        );
    }

    #[test]
    fn what_is_not_ours_goes_to_the_lifecycle() {
        for message in [
            r#"{"jsonrpc":"2.0","id":0,"result":{}}"#.to_owned(),
            format!(r#"{{"id":"{OURS}","result":{{}}}}"#),
            format!(r#"{{"id":{OURS}0,"result":{{}}}}"#),
            format!(r#"{{"id":{OURS}.0,"result":{{}}}}"#),
            r#"{"id":null,"error":{}}"#.to_owned(),
            format!(r#"{{"id":{OURS},"method":"ping"}}"#),
            r#"{"method":"notifications/progress","params":{"result":1}}"#.to_owned(),
            "{}".to_owned(),
        ] {
            check(&message, MessageRoute::Lifecycle);
        }
    }

    #[test]
    fn what_is_no_object_is_garbage() {
        for message in ["Server listening", "[]", "12", "{\"id\"", "{} {}", "{1}", "{\"a\" 1}"] {
            check(message, MessageRoute::Garbage);
        }
    }

    #[test]
    fn an_answer_that_breaks_after_its_id_is_still_its_calls() {
        check(
            &format!(r#"{{"jsonrpc":"2.0","id":{OURS},"result":{{1}}}}"#),
            MessageRoute::Call(OURS),
        );
        check(&format!(r#"{{"jsonrpc":"2.0","result":{{1}},"id":{OURS}}}"#), MessageRoute::Garbage);
    }

    #[test]
    fn the_route_is_told_before_the_result_has_come() {
        let head = Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":{OURS},"result":{{"#));
        assert_eq!(ResponseMatcher::new(1).feed(&[head]), Some(MessageRoute::Call(OURS)));
    }
}
