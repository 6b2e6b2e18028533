//! Why a request goes no further: what its record and its client are told. Pure.

use bytes::Bytes;

use super::refusal::{Refusal, RefusalKind};
use super::shutdown::CUT_OFF;
use crate::activity::record::Status;
use crate::upstream::CallError;

/// Why a request ends before an upstream has answered.
pub(super) struct Rejection {
    pub(super) status: Status,
    pub(super) refusal: Refusal,
}

impl Rejection {
    pub(super) fn new(status: Status, kind: RefusalKind, text: String) -> Self {
        Self { status, refusal: Refusal::new(kind, text) }
    }

    /// The parameters of a tool of ours are wrong.
    pub(super) fn of_parameters(text: String) -> Self {
        Self::new(Status::Rejected, RefusalKind::Parameters, text)
    }

    /// The same with words from which an agent can mend its call.
    pub(super) fn helping(mut self, help: String) -> Self {
        self.refusal.help = help;
        self
    }

    pub(super) fn upstream(error: &CallError) -> Self {
        Self::new(Status::Error, RefusalKind::Upstream, error.to_string())
    }

    pub(super) fn no_server(name: &str) -> Self {
        Self::new(Status::Error, RefusalKind::Unknown, format!("Server '{name}' not found"))
    }

    /// The proxy is ending, and does not wait for the call any longer.
    pub(super) fn cut_off(server: &str, what: &str) -> Self {
        let text = format!("{server}: {what}: {CUT_OFF}");
        Self::new(Status::Error, RefusalKind::Unavailable, text)
    }
}

/// Why a request goes no further for now.
pub(super) enum Stopped {
    /// It is refused, or failed.
    Rejected(Rejection),
    /// Its client is asked something, and makes it again (MCP 2026-07-28 §Multi Round-Trip Requests).
    InputRequired {
        /// The whole result that asks.
        result: Bytes,
        /// What the record says of it.
        why: String,
    },
}

impl From<Rejection> for Stopped {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}
