//! Why a login failed, in words.

use std::time::Duration;

use rmcp::transport::auth::AuthError;
use thiserror::Error;

use super::store::TokenStoreError;
use crate::upstream::peer::Peer;

/// Why a login failed. Each is one line and quotes no secret.
#[derive(Debug, Error)]
pub enum LoginError {
    /// The entry names no server that can be logged in with.
    #[error("{0}")]
    Config(String),
    /// The server answers without.
    #[error("it does not ask for a login: it answers HTTP {0} without one")]
    NotAsked(u16),
    /// The server cannot be asked.
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// Who logs in is not, or not safely, published.
    #[error("its login cannot be used: {0}")]
    Unusable(String),
    /// The person, or the authorization server, said no.
    #[error("nothing was granted: {0}")]
    Denied(String),
    /// Nobody came back.
    #[error("nobody logged in within {0:?}")]
    Late(Duration),
    /// The tokens cannot be kept.
    #[error("the tokens cannot be kept: {0}")]
    Store(#[from] TokenStoreError),
}

impl LoginError {
    /// Without what must not be told, and in one bounded line.
    pub(super) fn quoted(self, peer: &Peer) -> Self {
        let quote = |text: String| peer.quote(text).to_string();
        match self {
            Self::Config(text) => Self::Config(quote(text)),
            Self::Unreachable(text) => Self::Unreachable(quote(text)),
            Self::Unusable(text) => Self::Unusable(quote(text)),
            Self::Denied(text) => Self::Denied(quote(text)),
            Self::NotAsked(_) | Self::Late(_) | Self::Store(_) => self,
        }
    }
}

/// A step that the protocol does not let us take.
pub(super) fn unusable(error: AuthError) -> LoginError {
    LoginError::Unusable(words(&error))
}

/// An error and its causes, to be quoted by whoever tells it.
pub(super) fn words(error: &AuthError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
