//! Why an entry names no server.

use thiserror::Error;

/// Why an entry names no server. It stops that server alone.
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
