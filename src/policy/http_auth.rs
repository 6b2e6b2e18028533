//! What lets an HTTP request in before its content is read: the API key, whether `/mcp` asks for it
//! (`require_mcp_auth`), and the names of hosts and origins.
//!
//! Where a request carries its key is `downstream::api_key`'s. What is then asked of a server is decided by
//! [`admit`](super::admit).

use std::fmt;

use super::host_check::HostCheck;

/// What the config says of which HTTP requests are let in. `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpAuth {
    /// The key that admits a request to `/api/v1` and `/events`; an empty one admits none.
    pub api_key: Box<str>,
    /// `require_mcp_auth`: whether `/mcp` asks for the key as well.
    pub require_mcp_auth: bool,
    /// Hosts and origins that a request may name.
    pub host_check: HostCheck,
}

impl fmt::Debug for HttpAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpAuth")
            .field("require_mcp_auth", &self.require_mcp_auth)
            .field("host_check", &self.host_check)
            .finish_non_exhaustive()
    }
}
