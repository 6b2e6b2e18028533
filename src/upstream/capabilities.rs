//! What a server, and the client behind a call, is able to do; and what a server is asked for.
//!
//! Pure values. How a request travels is the business of [`super::call`].

use bytes::Bytes;

/// Which kind of protocol a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Era {
    /// 2024-11-05 to 2025-11-25: `initialize`, sessions, requests of the server.
    #[default]
    Legacy,
    /// 2026-07-28: each request stands for itself; what the server wants to know comes as an
    /// `input_required` result.
    Modern,
}

/// What a server said that it offers. All false before it was reached for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCapabilities {
    /// `tools/*`
    pub tools: bool,
    /// `resources/*`
    pub resources: bool,
    /// Single resources can be subscribed to.
    pub resource_updates: bool,
    /// `prompts/*`
    pub prompts: bool,
    /// `completion/complete`
    pub completions: bool,
    /// `logging/setLevel` and log notifications.
    pub logging: bool,
}

/// How often a server's lists have changed, as far as it tells. Of tools the catalog tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// `notifications/resources/list_changed`, and each new connection.
    pub resources: u64,
    /// `notifications/prompts/list_changed`, and each new connection.
    pub prompts: u64,
}

/// What became of a log message that names no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Whoever it is for has it, or does not want it.
    Already,
    /// One client alone uses the server: the call in flight can tell it, if there is but one.
    ByItsCall,
    /// It could be about several clients, or about none.
    Nobody,
}

/// Which requests of a server the client behind a call can be asked. Only one of the revisions
/// with `initialize` can: a modern client has none of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    /// `sampling/createMessage`
    pub sampling: bool,
    /// `elicitation/create`
    pub elicitation: bool,
    /// `roots/list`
    pub roots: bool,
}

impl ClientCapabilities {
    /// Whatever a server can ask.
    pub const ALL: Self = Self { sampling: true, elicitation: true, roots: true };

    /// Whether its client can be asked that.
    #[must_use]
    pub fn grant(self, method: &str) -> bool {
        match method {
            "sampling/createMessage" => self.sampling,
            "elicitation/create" => self.elicitation,
            "roots/list" => self.roots,
            _ => false,
        }
    }
}

/// What a call carries beside its tool and arguments.
#[derive(Clone, Debug, Default)]
pub struct CallExtras {
    /// The client's `_meta`, as it wrote it. A `progressToken` in it is replaced by the id under
    /// which the call goes out ([`Answer::id`](super::Answer::id)), which is then what progress is told under. The
    /// keys of a modern client's own hop are replaced by ours, but for its capabilities and log
    /// level, which a modern server gets as the client said them.
    pub meta: Option<Bytes>,
    /// Further members of `params`, as raw JSON `"key":value` joined by commas, or nothing:
    /// `inputResponses`, `requestState`.
    pub members: Bytes,
    /// What its client can be asked.
    pub client_capabilities: ClientCapabilities,
}

/// A request that is no call of a tool.
#[derive(Clone, Debug)]
pub struct OutgoingRequest<'a> {
    /// The method, as the server knows it. `tools/call` needs a permit and has
    /// [`Upstream::call`](super::Upstream::call).
    pub method: &'static str,
    /// What the header `Mcp-Name` repeats of `params`: a prompt's name, a resource's URI.
    pub name: Option<&'a str>,
    /// The raw `params` object, without `_meta`.
    pub params: Bytes,
    /// As in [`CallExtras::meta`].
    pub meta: Option<Bytes>,
    /// What its client can be asked.
    pub client_capabilities: ClientCapabilities,
}
