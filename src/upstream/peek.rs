//! Whose message is this? Reads a JSON-RPC message as its bytes come, until it is known whether it
//! answers one of our calls.
//!
//! A response is known once its `id` and its `result` or `error` were seen, in either order; a
//! `method` makes it a request or a notification. It deliberately does not check the JSON: that is
//! the judge's work, and a wrong guess here only leaves a call without its answer. Pure.

use memchr::memchr2;

use super::pending;

/// Longest name of a member that matters: `result`, `method`.
const KEY_BYTES: usize = 6;
/// Longest number that can be one of our ids.
const ID_BYTES: usize = 10;

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// It answers the call with this id.
    Call(u64),
    /// It answers no call of ours, but is a JSON object: the lifecycle's business.
    Lifecycle,
    /// It is no JSON object.
    Garbage,
}

/// The reader of one message's envelope.
///
/// ```text
/// Start ─'{'▶ BeforeKey ─'"'▶ Key ─'"'▶ Colon ─':'▶ Value | Id ─','▶ BeforeKey
///                 └── '}' ──────────────────────────────┴── '}' ──▶ Done
/// ```
#[derive(Debug, Default)]
pub(super) struct Peek {
    place: Place,
    /// Open brackets inside the value of an envelope's member.
    depth: u64,
    key: Short<KEY_BYTES>,
    id: Short<ID_BYTES>,
    /// The id's value is complete.
    has_id: bool,
    /// `result` or `error` was seen.
    has_outcome: bool,
    route: Option<Route>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Start,
    BeforeKey,
    Key,
    KeyEscape,
    Colon,
    Id,
    Value,
    Text,
    TextEscape,
    Done,
}

impl Peek {
    /// Reads on. Returns the route as soon as it is known, and from then on the same.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Option<Route> {
        while self.route.is_none() {
            if self.place == Place::Text {
                // The long strings of an answer are run over at memchr's speed.
                let at = memchr2(b'"', b'\\', bytes)?;
                bytes = bytes.get(at..)?;
            }
            let (&byte, rest) = bytes.split_first()?;
            bytes = rest;
            self.step(byte);
            if self.has_id && self.has_outcome {
                self.route = Some(self.answered());
            }
        }
        self.route
    }

    /// The message is complete.
    pub(super) fn end(&self) -> Route {
        match (self.route, self.place) {
            (Some(route), _) => route,
            (None, Place::Done) => Route::Lifecycle,
            (None, _) => Route::Garbage,
        }
    }

    fn step(&mut self, byte: u8) {
        let space = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        self.place = match (self.place, byte) {
            (Place::Start | Place::BeforeKey | Place::Colon, _) if space => return,
            (Place::Start, b'{') => Place::BeforeKey,
            (Place::BeforeKey, b'"') => {
                self.key.clear();
                Place::Key
            }
            (Place::BeforeKey, b'}') => Place::Done,
            (Place::Key, b'"') => Place::Colon,
            (Place::Key, _) => {
                // No name that matters needs an escape; one that has it is another name here.
                self.key.push(byte);
                if byte == b'\\' { Place::KeyEscape } else { Place::Key }
            }
            (Place::KeyEscape, _) => Place::Key,
            (Place::Colon, b':') => self.member(),
            (Place::Id, b',' | b'}') => {
                self.has_id = true;
                if byte == b',' { Place::BeforeKey } else { Place::Done }
            }
            (Place::Id, b'"' | b'{' | b'[') => {
                // No id of ours: the value is skipped like any other.
                self.id.push(byte);
                self.has_id = true;
                self.place = Place::Value;
                return self.step(byte);
            }
            (Place::Id, _) if space => Place::Id,
            (Place::Id, _) => {
                self.id.push(byte);
                Place::Id
            }
            (Place::Value, b'"') => Place::Text,
            (Place::Value, b'{' | b'[') => {
                self.depth += 1;
                Place::Value
            }
            (Place::Value, b'}') if self.depth == 0 => Place::Done,
            (Place::Value, b'}' | b']') => {
                self.depth = self.depth.saturating_sub(1);
                Place::Value
            }
            (Place::Value, b',') if self.depth == 0 => Place::BeforeKey,
            (Place::Value, _) => Place::Value,
            (Place::Text, b'"') => Place::Value,
            (Place::Text, b'\\') => Place::TextEscape,
            (Place::Text | Place::TextEscape, _) => Place::Text,
            (Place::Done, _) if space => Place::Done,
            (Place::Start | Place::BeforeKey | Place::Colon | Place::Done, _) => {
                self.route = Some(Route::Garbage);
                return;
            }
        };
    }

    fn member(&mut self) -> Place {
        match self.key.get() {
            b"id" if !self.has_id => return Place::Id,
            b"method" => self.route = Some(Route::Lifecycle),
            b"result" | b"error" => self.has_outcome = true,
            _ => {}
        }
        Place::Value
    }

    fn answered(&self) -> Route {
        std::str::from_utf8(self.id.get())
            .ok()
            .and_then(|id| id.parse().ok())
            .filter(|&id| pending::is_ours(id))
            .map_or(Route::Lifecycle, Route::Call)
    }
}

/// A few bytes; what is longer is equal to nothing.
#[derive(Debug)]
struct Short<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Default for Short<N> {
    fn default() -> Self {
        Self { bytes: [0; N], len: 0 }
    }
}

impl<const N: usize> Short<N> {
    fn clear(&mut self) {
        self.len = 0;
    }

    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.len) {
            *slot = byte;
        }
        self.len = (self.len + 1).min(N + 1);
    }

    fn get(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: u64 = pending::FIRST_ID;

    /// The same route for every split, never changing once told.
    fn check(message: &str, expected: Route) {
        for cut in 0..=message.len() {
            let mut peek = Peek::default();
            let (first, second) = message.as_bytes().split_at(cut);
            let early = peek.feed(first).or(peek.feed(second));
            let end = peek.end();
            assert_eq!(end, expected, "{message} cut at {cut}");
            assert!(early.is_none_or(|early| early == end));
        }
    }

    #[test]
    fn an_answer_is_known_by_id_and_outcome_in_any_order() {
        check(&format!(r#"{{"jsonrpc":"2.0","id":{OURS},"result":{{}}}}"#), Route::Call(OURS));
        check(&format!(r#"{{"result":{{"id":5}},"jsonrpc":"2.0","id":{OURS}}}"#), Route::Call(OURS));
        check(&format!(r#" {{ "error" : {{}} , "id" : {OURS} }} "#), Route::Call(OURS));
        check(
            &format!(r#"{{"result":"a\"}}\\","x":["]",{{"method":1}}],"id":{OURS}}}"#),
            Route::Call(OURS),
        );
    }

    #[test]
    fn what_is_not_ours_goes_to_the_lifecycle() {
        for message in [
            r#"{"jsonrpc":"2.0","id":0,"result":{}}"#.to_owned(),
            format!(r#"{{"id":"{OURS}","result":{{}}}}"#),
            format!(r#"{{"id":{OURS}0,"result":{{}}}}"#),
            format!(r#"{{"id":{OURS}.0,"result":{{}}}}"#),
            format!(r#"{{"id":[{OURS}],"result":{{}}}}"#),
            r#"{"id":null,"error":{}}"#.to_owned(),
            format!(r#"{{"id":{OURS},"method":"ping"}}"#),
            r#"{"method":"notifications/progress","params":{"result":1}}"#.to_owned(),
            "{}".to_owned(),
        ] {
            check(&message, Route::Lifecycle);
        }
    }

    #[test]
    fn what_is_no_object_is_garbage() {
        for message in ["Server listening", "[]", "12", "{\"id\"", "{} {}", "{1}", "{\"a\" 1}"] {
            check(message, Route::Garbage);
        }
    }

    #[test]
    fn the_route_is_told_before_the_result_has_come() {
        let mut peek = Peek::default();
        assert_eq!(peek.feed(br#"{"jsonrpc":"2.0","id":"#), None);
        assert_eq!(peek.feed(format!(r#"{OURS},"result":"#).as_bytes()), Some(Route::Call(OURS)));
    }
}
