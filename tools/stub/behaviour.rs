//! The ways an answer can go wrong on the wire, by name.
//!
//! What each does to the bytes is in `stdio.rs` and `http.rs`; the contents of answers are in
//! `tools.rs`.

use std::time::Duration;

use crate::Pace;

/// The process that `close_stdin` turns into: it reads nothing and answers nothing.
pub(crate) const DEAF: &str = "deaf";
/// How long it lives if nobody ends it.
pub(crate) const DEAF_LIFE: Duration = Duration::from_secs(60);

const SLOW_CHUNK: usize = 16;
const SLOW_PAUSE: Duration = Duration::from_millis(5);

/// Treatment of a response before it is sent. If a row names one transport only, the other
/// answers as `normal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Normal,
    Cut,
    Crash,
    Drop,
    DropOnce,
    Garbage,
    ForeignId,
    Never,
    Slow,
    FloodStderr,
    CloseStdin,
    OddFraming,
    Status500,
    Html,
    Gzip,
    BadChunk,
    LongBody,
    ShortBody,
}

/// Name, behavior, and description: the reference for authors of tests.
pub(crate) const BEHAVIOURS: &[(&str, Behaviour, &str)] = &[
    ("normal", Behaviour::Normal, "answers"),
    ("cut", Behaviour::Cut, "half the answer, then the connection (HTTP) or the process ends"),
    ("crash", Behaviour::Crash, "the process exits, no byte answered"),
    ("drop", Behaviour::Drop, "the connection (HTTP) or the process ends, no byte answered"),
    ("drop_once", Behaviour::DropOnce, "HTTP: drop the first time, answer from then on"),
    ("garbage", Behaviour::Garbage, "answers what is not JSON; over stdio the answer follows"),
    (
        "foreign_id",
        Behaviour::ForeignId,
        "answers an id nobody asked for; over stdio and SSE the right answer follows",
    ),
    ("never", Behaviour::Never, "does not answer"),
    ("slow", Behaviour::Slow, "answers 16 bytes every 5 ms"),
    ("flood_stderr", Behaviour::FloodStderr, "8 MiB to stderr, then answers"),
    ("close_stdin", Behaviour::CloseStdin, "stdio: closes stdin, keeps stdout, answers nothing"),
    (
        "odd_framing",
        Behaviour::OddFraming,
        "HTTP: SSE with CRLF, comments, ids, several data lines, in 7-byte writes; \
         stdio: empty lines around, CRLF, in 7-byte writes",
    ),
    ("status_500", Behaviour::Status500, "HTTP: 500 and a line of text"),
    ("html", Behaviour::Html, "HTTP: 200 and a page"),
    ("gzip", Behaviour::Gzip, "HTTP: compressed, asked for or not"),
    ("bad_chunk", Behaviour::BadChunk, "HTTP: chunked, with a size that is no number"),
    ("long_body", Behaviour::LongBody, "HTTP: 32 bytes more than Content-Length says"),
    ("short_body", Behaviour::ShortBody, "HTTP: 32 bytes less than Content-Length says, then end"),
];

impl Behaviour {
    /// The behavior of that name, if there is one.
    pub(crate) fn named(name: &str) -> Option<Self> {
        BEHAVIOURS.iter().find(|(known, ..)| *known == name).map(|(_, behaviour, _)| *behaviour)
    }

    /// The pace of this behavior if the call requested `asked`.
    pub(crate) fn pace(self, asked: Pace) -> Pace {
        match self {
            Self::Slow if asked.chunk == 0 => {
                Pace { chunk: SLOW_CHUNK, pause: SLOW_PAUSE, ..asked }
            }
            _ => asked,
        }
    }
}
