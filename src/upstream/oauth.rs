//! Logins with upstreams that ask for one: OAuth 2.1 as MCP has it (RFC 9728, 8414, 7591, 8707).
//!
//! Owns the login, the file that its tokens are kept in, and their renewal. The protocol's steps
//! are rmcp's; the network, the addresses that may be asked, and the bounds are ours, so that
//! there is one TLS stack and nothing here is on a call's way: a call finds the header among those
//! of its session. A token goes to the server it was given for and to no other; what a client of
//! ours sends as its own authorization never comes near here.
//!
//! ```text
//! mcpproxy upstream login ─▶ login ─▶ store ◀─ login_tokens ─▶ the server's session
//!                              │ callback        │ renewal before they end, or when refused
//!                              └──── client ─────┘
//! ```

mod approach;
mod authority;
mod callback;
mod challenge;
mod client;
mod key_set;
mod login;
mod login_error;
mod login_tokens;
mod renewal;
mod settings;
mod store;
mod token_response;

pub(super) use challenge::{Challenge, Challenges, needs_login, says_needs_login};
pub use key_set::{check_key_set_url, fetch_key_set};
pub use login::{LoggedIn, login};
pub use login_error::LoginError;
pub(super) use login_tokens::{Bearer, Heeded, LoginTokens, Renewal, challenged, changed, renewal};
pub use settings::Settings;
pub use store::{TokenStore, TokenStoreError};
