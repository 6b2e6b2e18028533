//! Authentication by token: agent tokens, JWTs of an identity provider, and logins to the page ([`PageLogins`]).
//!
//! ```text
//! tokens.json ─ TokenFile ─▶ TokenTable ─┐
//!                                        ├─ Credentials ─▶ atomic swap ─▶ one reader per worker ─▶ Proven
//! JWKS ─ KeySet ─▶ JwtVerifier ──────────┘
//! ```
//!
//! Credentials are read without a lock. The gateway decides where a request carries its token, and whether the API key
//! takes precedence; the rest of this crate authorizes. Key sets are fetched by the root package
//! (`server::identity_watch`): this module does not use the network.
//!
//! [`Proven`] is the result of authentication. The texts of its failures are a contract; the clock is an argument.

mod credentials;
mod jwt;
mod page_logins;
mod token_file;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use thiserror::Error;
use tokio::sync::Notify;

use crate::Principal;

pub use self::jwt::{Algorithm, BadKeySet, KeySet, MAX_KEY_SET_BYTES};
pub use self::token_file::{MadeToken, NewAgentToken, TokenChange, TokenChangeError, TokenChanged};
pub use credentials::{
    Credentials, CredentialsReader, CurrentCredentials, Identity, TokenFault, TokenTable,
};
pub use jwt::{JwtVerifier, KeySource, LEEWAY, Settings};
pub use page_logins::{
    CODE_LIFE, MAX_CODES, MAX_SESSIONS, PAGE_SECRET_BYTES, PageLogins, PageSecret, PageSession,
    SESSION_IDLE, SESSION_LIFE,
};
pub use token_file::{
    AgentSecret, FileStamp, MAX_TOKENS, PREFIX, StoredToken, TokenFile, TokenFileError, file_stamp,
    read_stored, write_stored,
};

/// Maximum length of an agent token or JWT, in bytes.
pub const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// An authenticated principal and its validity period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    pub principal: Principal,
    /// Start of validity by the wall clock; `None` if unlimited.
    pub from: Option<SystemTime>,
    /// End of validity; `None` if unlimited.
    pub until: Option<SystemTime>,
}

impl Proven {
    /// A principal with unlimited validity.
    pub fn lasting(principal: Principal) -> Self {
        Self { principal, from: None, until: None }
    }

    /// Whether the principal is valid now. The clock is read only if validity is limited.
    pub fn holds(&self, now: impl FnOnce() -> SystemTime) -> bool {
        match (self.from, self.until) {
            (None, None) => true,
            (from, until) => {
                let now = now();
                from.is_none_or(|from| now >= from) && until.is_none_or(|until| now < until)
            }
        }
    }
}

/// Principal of a client certificate, valid while its authority is trusted.
#[derive(Clone, Debug)]
pub struct CertifiedClient {
    pub proven: Proven,
    /// Revocation state of the certificate's authority.
    pub authority: AuthorityStanding,
}

/// Revocation flag of the client certificate authorities, shared by all connections they admitted.
#[derive(Clone, Debug, Default)]
pub struct AuthorityStanding(Arc<RevocationState>);

#[derive(Debug, Default)]
struct RevocationState {
    is_taken_back: AtomicBool,
    notify: Notify,
}

impl AuthorityStanding {
    /// Revokes the authorities permanently.
    pub fn take_back(&self) {
        self.0.is_taken_back.store(true, Ordering::Release);
        self.0.notify.notify_waiters();
    }

    pub fn is_taken_back(&self) -> bool {
        self.0.is_taken_back.load(Ordering::Acquire)
    }

    /// Completes when the authorities are revoked.
    pub async fn taken_back(&self) {
        // The waiter is registered before the flag is read, so that no wake-up is lost.
        let notified = self.0.notify.notified();
        if !self.is_taken_back() {
            notified.await;
        }
    }
}

/// Reason why a token is rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TokenRefused {
    /// The text does not have the shape of an agent token.
    #[error("Token is malformed: send it whole, as `mcpproxy token create NAME` printed it")]
    Malformed,
    #[error("Token is unknown, or was revoked: `mcpproxy token create NAME` makes another")]
    Unknown,
    #[error("Token has expired: `mcpproxy token rotate NAME` renews it")]
    Expired,
    #[error("Token is longer than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    #[error(transparent)]
    Jwt(#[from] JwtRefused),
}

/// Reason why a JWT is rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JwtRefused {
    /// The text does not have the shape of a JWT.
    #[error("Bearer token is not a JWT: {0}")]
    Malformed(&'static str),
    /// The algorithm is not allowed.
    #[error("JWT: algorithm '{0}' is not allowed")]
    Algorithm(String),
    #[error("JWT: it is not signed with a known key of its issuer")]
    UnknownKey,
    #[error("JWT: its signature is wrong")]
    Signature,
    /// A claim is missing or has the wrong type.
    #[error("JWT: claim '{0}' must be {1}")]
    Claim(Box<str>, &'static str),
    /// The issuer (`iss`) is not accepted.
    #[error("JWT: the issuer is not accepted")]
    Issuer,
    /// The audience (`aud`) is not accepted.
    #[error("JWT: the audience is not accepted")]
    Audience,
    /// The token has expired (`exp`).
    #[error("JWT: it has expired")]
    Expired,
    /// The token is not valid yet (`nbf`, `iat`).
    #[error("JWT: it is not valid yet")]
    Early,
}
