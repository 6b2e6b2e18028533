//! Faulty ways to send an answer, by name.
//!
//! Their effect on the bytes is in `stdio.rs` and `http.rs`; the contents of answers are in `tools.rs`.

use std::time::Duration;

use crate::Pace;

/// Name of the mode in which the process continues after `close_stdin`: it reads nothing and answers nothing.
pub(crate) const DEAF: &str = "deaf";
/// Time after which that process ends by itself.
pub(crate) const DEAF_LIFE: Duration = Duration::from_secs(60);

const SLOW_CHUNK: usize = 16;
const SLOW_PAUSE: Duration = Duration::from_millis(5);

/// Treatment of a response before it is sent. A behavior whose description names one transport acts like `normal` on
/// the other.
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
    ("crash", Behavior::Crash, "the process exits before the first byte of the answer"),
    ("drop", Behavior::Drop, "the connection (HTTP) or the process ends before the answer"),
    ("drop_once", Behavior::DropOnce, "HTTP: like drop for the first call, then answers"),
    ("garbage", Behavior::Garbage, "sends text that is not JSON; over stdio the answer follows"),
    (
        "foreign_id",
        Behavior::ForeignId,
        "answers with an unknown id; over stdio and SSE the right answer follows",
    ),
    ("never", Behavior::Never, "does not answer"),
    ("slow", Behavior::Slow, "sends 16 bytes of the answer every 5 ms"),
    ("flood_stderr", Behavior::FloodStderr, "writes 8 MiB to stderr, then answers"),
    ("close_stdin", Behavior::CloseStdin, "stdio: closes stdin, keeps stdout, answers nothing"),
    (
        "odd_framing",
        Behavior::OddFraming,
        "HTTP: SSE with CRLF, comments, ids, several data lines, in 7-byte writes; \
         stdio: empty lines before and after, CRLF, in 7-byte writes",
    ),
    ("status_500", Behavior::Status500, "HTTP: 500 and a line of text"),
    ("html", Behavior::Html, "HTTP: 200 and a page"),
    ("gzip", Behavior::Gzip, "HTTP: compressed, regardless of the request"),
    ("bad_chunk", Behavior::BadChunk, "HTTP: chunked, with an invalid chunk size"),
    ("long_body", Behavior::LongBody, "HTTP: 32 bytes more than Content-Length"),
    ("short_body", Behavior::ShortBody, "HTTP: 32 bytes less than Content-Length, then closes"),
];

impl Behavior {
    /// The behavior with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        BEHAVIORS.iter().find(|(known, ..)| *known == name).map(|(_, behavior, _)| *behavior)
    }

    /// The pace of an answer with this behavior if the call requested the pace `asked`.
    pub(crate) fn pace(self, asked: Pace) -> Pace {
        match self {
            Self::Slow if asked.chunk == 0 => {
                Pace { chunk: SLOW_CHUNK, pause: SLOW_PAUSE, ..asked }
            }
            _ => asked,
        }
    }
}
