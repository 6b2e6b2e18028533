//! The requests that go on to one server, about what it offers beside tools.

use crate::policy::{COMPLETION_COMPLETE, PROMPTS_GET, ResourceRequest};

/// A request that goes on to one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// `resources/read`, `resources/subscribe`, `resources/unsubscribe`
    Resource(ResourceRequest),
    /// `prompts/get`
    Prompt,
    /// `completion/complete`
    Completion,
}

impl Forward {
    /// The method of it.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Resource(request) => request.method(),
            Self::Prompt => PROMPTS_GET,
            Self::Completion => COMPLETION_COMPLETE,
        }
    }
}
