//! Why an entry names no server.

use thiserror::Error;

/// Why an entry names no server, or none now. It holds up that server alone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(in crate::upstream) enum Invalid {
    #[error("neither command nor url is given")]
    Neither,
    #[error("both command and url are given and protocol does not say which one counts")]
    Both,
    #[error("protocol stdio needs a command")]
    NoCommand,
    #[error("protocol streamable-http needs a url")]
    NoUrl,
    #[error("environment variable {name} is not set, which {key} asks for")]
    Missing { name: String, key: String },
    #[error("{what} cannot be read, which {key} asks for: {why}")]
    Unread { what: String, key: String, why: String },
    #[error("{key} holds a ${{…: without its closing brace")]
    Unclosed { key: String },
    #[error("{key} holds ${{input:{name}}}, which VS Code asks its user for and nobody here")]
    Input { name: String, key: String },
}

impl Invalid {
    /// Whether it stays so until the entry is another, or we are: our own variables change no more. What could not be read
    /// may be there the next time.
    pub(in crate::upstream) const fn is_lasting(&self) -> bool {
        match self {
            Self::Neither
            | Self::Both
            | Self::NoCommand
            | Self::NoUrl
            | Self::Missing { .. }
            | Self::Unclosed { .. }
            | Self::Input { .. } => true,
            Self::Unread { .. } => false,
        }
    }
}
