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
pub(crate) enum Behavior {
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
pub(crate) const BEHAVIORS: &[(&str, Behavior, &str)] = &[
    ("normal", Behavior::Normal, "answers"),
    ("cut", Behavior::Cut, "half the answer, then the connection (HTTP) or the process ends"),
    ("crash", Behavior::Crash, "the process exits, no byte answered"),
    ("drop", Behavior::Drop, "the connection (HTTP) or the process ends, no byte answered"),
    ("drop_once", Behavior::DropOnce, "HTTP: drop the first time, answer from then on"),
    ("garbage", Behavior::Garbage, "answers what is not JSON; over stdio the answer follows"),
    (
        "foreign_id",
        Behavior::ForeignId,
        "answers an id nobody asked for; over stdio and SSE the right answer follows",
    ),
    ("never", Behavior::Never, "does not answer"),
    ("slow", Behavior::Slow, "answers 16 bytes every 5 ms"),
    ("flood_stderr", Behavior::FloodStderr, "8 MiB to stderr, then answers"),
    ("close_stdin", Behavior::CloseStdin, "stdio: closes stdin, keeps stdout, answers nothing"),
    (
        "odd_framing",
        Behavior::OddFraming,
        "HTTP: SSE with CRLF, comments, ids, several data lines, in 7-byte writes; \
         stdio: empty lines around, CRLF, in 7-byte writes",
    ),
    ("status_500", Behavior::Status500, "HTTP: 500 and a line of text"),
    ("html", Behavior::Html, "HTTP: 200 and a page"),
    ("gzip", Behavior::Gzip, "HTTP: compressed, asked for or not"),
    ("bad_chunk", Behavior::BadChunk, "HTTP: chunked, with a size that is no number"),
    ("long_body", Behavior::LongBody, "HTTP: 32 bytes more than Content-Length says"),
    ("short_body", Behavior::ShortBody, "HTTP: 32 bytes less than Content-Length says, then end"),
];

impl Behavior {
    /// The behavior of that name, if there is one.
    pub(crate) fn named(name: &str) -> Option<Self> {
        BEHAVIORS.iter().find(|(known, ..)| *known == name).map(|(_, behavior, _)| *behavior)
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
