//! The words for how a server is and how it is reached.

/// How a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = ServerStatus)]
pub enum Status {
    /// Switched off in the config.
    Disabled,
    /// An attempt is being made, or is about to be.
    Connecting,
    /// Initialized, and its tools are known.
    Connected,
    /// The last attempt failed; the next one comes.
    Failed,
}

impl Status {
    /// The word that REST, records and tables use ([contracts](crate::reference::contracts#http)).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Failed => "failed",
        }
    }
}

/// What carries a server's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// The pipes of a child process.
    Stdio,
    /// Streamable HTTP.
    StreamableHttp,
    /// The config does not say: the server cannot be reached.
    Unknown,
}

impl Transport {
    /// As the config writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::StreamableHttp => "streamable-http",
            Self::Unknown => "unknown",
        }
    }
}
