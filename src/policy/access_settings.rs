//! What admits a request before its content is looked at: the API key, and the names of hosts and origins.

use std::fmt;

use super::host_check::HostCheck;

/// What the config says of who may come in. `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessSettings {
    /// The key that admits a request to `/api/v1` and `/events`; an empty one admits none.
    pub api_key: Box<str>,
    /// `require_mcp_auth`: whether `/mcp` asks for the key as well.
    pub require_mcp_auth: bool,
    /// Hosts and origins that a request may name.
    pub host_check: HostCheck,
}

impl fmt::Debug for AccessSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessSettings")
            .field("require_mcp_auth", &self.require_mcp_auth)
            .field("host_check", &self.host_check)
            .finish_non_exhaustive()
    }
}
