//! Reader of an event stream, event by event.

use std::time::Instant;

use serde_json::Value;

use super::{Connection, PATIENCE};

/// A response that is an event stream.
pub(crate) struct Events {
    connection: Connection,
    text: String,
}

/// An event with data.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) id: Option<String>,
    pub(crate) data: String,
}

impl Event {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error}: {}", self.data))
    }
}

impl Events {
    /// Reads the head of the response to the request on `connection`.
    pub(crate) fn of(mut connection: Connection) -> Self {
        let (status, headers) = connection.head();
        assert_eq!(status, 200);
        let header = |name: &str| {
            headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
        };
        assert_eq!(header("content-type"), Some("text/event-stream"), "{headers:?}");
        assert_eq!(header("x-accel-buffering"), Some("no"));
        Self { connection, text: String::new() }
    }

    /// The next event, without comments; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let start = Instant::now();
        loop {
            // A stream of comments alone would never end, so the whole wait is limited.
            assert!(start.elapsed() < 2 * PATIENCE, "no event within {:?}", 2 * PATIENCE);
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| {
                    let lines = event.lines().filter_map(|line| line.strip_prefix(name));
                    let values: Vec<_> = lines.map(|value| value.trim_start_matches(' ')).collect();
                    (!values.is_empty()).then(|| values.join("\n"))
                };
                let Some(data) = field("data:") else { continue };
                // NET-7
                let is_message = field("event:").as_deref() == Some("message");
                assert!(is_message || !data.contains(r#""jsonrpc":"2.0""#), "{event}");
                return Some(Event { id: field("id:"), data });
            }
            let chunk = self.connection.chunk()?;
            if chunk.is_empty() {
                assert_eq!(self.text, "", "the stream ends with an event");
                return None;
            }
            self.text.push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
        }
    }

    /// The next event, as a message.
    pub(crate) fn message(&mut self) -> Value {
        self.next().expect("an event").json()
    }
}
