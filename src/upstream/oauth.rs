//! Logins with upstreams that ask for one: OAuth 2.1 as MCP has it (RFC 9728, 8414, 7591, 8707).
//!
//! Owns the login, the file that its tokens are kept in, and their renewal. The protocol's steps
//! are rmcp's; the network, the addresses that may be asked, and the bounds are ours, so that
//! there is one TLS stack and nothing here is on a call's way: a call finds the header among those
//! of its session. A token goes to the server it was given for and to no other; what a client of
//! ours sends as its own authorization never comes near here.
//!
//! ```text
//! mcpproxy upstream login ─▶ flow ─▶ store ◀── guard ─▶ the server's session
//!                             │  callback        │ renewed before it ends, or when refused
//!                             └──── client ──────┘
//! ```

mod approach;
mod authority;
mod callback;
mod challenge;
mod client;
mod flow;
mod login_tokens;
mod store;

pub(super) use challenge::{Asked, Challenge};
pub use flow::{LoggedIn, LoginError, login};
pub(super) use login_tokens::{Bearer, Heeded, LoginTokens, Renewal, challenged, changed, renewal};
pub use store::{TokenStore, TokenStoreError};

use serde::Deserialize;

/// `oauth` of a server's entry: for authorization servers where clients cannot register
/// themselves. `Debug` shows no secret.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The client that was registered by hand.
    pub client_id: Option<String>,
    /// Its secret, if it has one. `${env:NAME}` is filled in.
    pub client_secret: Option<String>,
    /// Who registered it: at no other authorization server are the two used. Absent: whoever they
    /// were used at first.
    pub issuer: Option<String>,
    /// Where the client describes itself, an https URL that is its id at authorization servers
    /// which read such descriptions; at others it registers itself.
    pub client_metadata_url: Option<String>,
    /// What to ask for; absent: what the server asks for.
    pub scopes: Vec<String>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

/// What a server without a valid login is told to do.
pub(super) fn needs_login(server: &str) -> String {
    format!("needs login: run mcpproxy upstream login {server}")
}
