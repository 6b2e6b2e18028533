//! The answer to a request: messages as they come, whichever transport carries them.
//!
//! What happens when an answer is dropped is its transport's: `http_source`, `dual_stream`, and
//! [`super::stdio`]. It deliberately does not read the messages: whoever does must check that a
//! response's id is [`Answer::id`], so that nobody gets another's bytes.

use std::sync::Arc;
use std::time::Duration;

use super::error::{CallError, Cause, Sent};
use super::in_use::InUse;
use super::stdio;
use crate::io::deadline::Allowance;

mod dual_stream;
mod http_source;
mod part;

pub(super) use dual_stream::{DualStreamCall, SendState};
pub(super) use http_source::{Cancel, HttpSource};
pub use part::AnswerPart;

/// The answer to a call: messages as they come. Dropping it before its last message has ended
/// cancels the call.
pub struct Answer {
    source: AnswerSource,
    /// The connection it comes over.
    generation: u64,
    upstream: InUse,
    /// The tool's name, or another request's method.
    what: Arc<str>,
}

/// Where it comes from.
pub(super) enum AnswerSource {
    Http(Box<HttpSource>),
    DualStream(Box<DualStreamCall>),
    Stdio(stdio::StdioCall),
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Answer({} of {})", self.id(), self.upstream.name)
    }
}

impl Answer {
    pub(super) fn new(
        source: AnswerSource,
        generation: u64,
        upstream: InUse,
        what: Arc<str>,
    ) -> Self {
        Self { source, generation, upstream, what }
    }

    /// The id under which the call went out, and which its response must carry.
    #[must_use]
    pub fn id(&self) -> u64 {
        match &self.source {
            AnswerSource::Http(source) => source.id(),
            AnswerSource::DualStream(call) => call.id(),
            AnswerSource::Stdio(call) => call.id(),
        }
    }

    /// The connection it comes over, for `Upstream::respond` to a request among its messages.
    #[must_use]
    pub fn generation(&self) -> u64 {
        match &self.source {
            AnswerSource::DualStream(call) => call.generation(),
            AnswerSource::Http(_) | AnswerSource::Stdio(_) => self.generation,
        }
    }

    /// Whether no byte of its answer has come that its transport knows of: over HTTP not its head either, over a pipe
    /// not the beginning of a line that could be it (CAP-7).
    #[must_use]
    pub fn is_unheard(&self) -> bool {
        match &self.source {
            AnswerSource::Http(_) => false,
            AnswerSource::DualStream(call) => call.is_unheard(),
            AnswerSource::Stdio(call) => call.is_unheard(),
        }
    }

    /// Whether the server may have ended by this call: over a pipe, where it was written. Of a connection over HTTP
    /// that breaks nothing of the kind is known.
    #[must_use]
    pub fn may_have_ended_server(&self) -> bool {
        match &self.source {
            AnswerSource::Http(_) | AnswerSource::DualStream(_) => false,
            AnswerSource::Stdio(call) => call.may_have_ended_server(),
        }
    }

    /// From now on a message may take this long to begin: the client is being asked what the
    /// server asked.
    pub fn wait_longer(&mut self, limit: Duration) {
        match &mut self.source {
            AnswerSource::Http(source) => source.wait_until(Allowance::now(limit)),
            AnswerSource::DualStream(call) => call.wait_until(Allowance::now(limit)),
            AnswerSource::Stdio(call) => call.wait_longer(limit),
        }
    }

    /// The next piece; `None` when the stream has ended. Nothing is read ahead of what was asked
    /// for, beyond bounded buffers. Safe to drop and ask again.
    ///
    /// # Errors
    /// [`CallError`]; the answer is over then.
    pub async fn next(&mut self) -> Result<Option<AnswerPart>, CallError> {
        let next = match &mut self.source {
            AnswerSource::Http(source) => source.next().await.map_err(maybe_sent),
            AnswerSource::DualStream(call) => call.next().await,
            AnswerSource::Stdio(call) => call.next().await.map_err(maybe_sent),
        };
        next.map_err(|failed| self.error(failed))
    }

    /// The error for an answer that ended without a response among its messages.
    #[must_use]
    pub fn without_response(&self) -> CallError {
        self.error(maybe_sent(Cause::NoAnswerAtAll {
            reason: "its stream held no response".into(),
        }))
    }

    /// To be called when the response has ended: what may follow it on the stream is not waited
    /// for, and the connection is used again.
    pub fn finish(mut self) {
        match &mut self.source {
            AnswerSource::Http(source) => source.done(),
            AnswerSource::DualStream(call) => call.done(),
            AnswerSource::Stdio(_) => {}
        }
    }

    /// To be called when something came that nobody asked for: its connection is not used again.
    pub fn distrust(&mut self) {
        match &mut self.source {
            AnswerSource::Http(source) => source.trusted = false,
            AnswerSource::DualStream(call) => call.distrust(),
            AnswerSource::Stdio(_) => {}
        }
    }

    fn error(&self, (cause, sent): (Cause, Sent)) -> CallError {
        CallError { server: self.upstream.name.clone(), tool: self.what.clone(), cause, sent }
    }
}

fn maybe_sent(cause: Cause) -> (Cause, Sent) {
    (cause, Sent::Maybe)
}
