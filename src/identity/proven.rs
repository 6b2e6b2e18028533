//! What a token proves, or why it proves nothing. The texts are a contract. Pure; the clock is an argument.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use thiserror::Error;

use crate::policy::Principal;

/// Most bytes of a token of either kind.
pub const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Whom a token proves, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    /// Who makes the request.
    pub principal: Principal,
    /// From when on, by the clock on the wall; `None`: always.
    pub from: Option<SystemTime>,
    /// Until when; `None`: always.
    pub until: Option<SystemTime>,
}

impl Proven {
    /// That of a principal whose time has no bounds.
    #[must_use]
    pub fn lasting(principal: Principal) -> Self {
        Self { principal, from: None, until: None }
    }

    /// True while it is within its time. The clock is not asked where there are no bounds.
    #[must_use]
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

/// What the client certificate of a connection proves, as long as whoever has signed it counts.
#[derive(Clone, Debug)]
pub struct CertifiedClient {
    /// Whom it names, and how long it holds.
    pub proven: Proven,
    /// Whether its authority counts still.
    pub authority: AuthorityStanding,
}

/// Whether authorities that clients were let in by count still: all who were look at the same.
#[derive(Clone, Debug, Default)]
pub struct AuthorityStanding(Arc<AtomicBool>);

impl AuthorityStanding {
    /// They count no more, for good.
    pub fn take_back(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// True once they count no more.
    #[must_use]
    pub fn is_taken_back(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Why a token proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TokenRefused {
    /// It has not the form of an agent token.
    #[error("Token is malformed")]
    Malformed,
    /// No agent token has this secret.
    #[error("Token is unknown, or was revoked")]
    Unknown,
    /// Its time is up.
    #[error("Token has expired")]
    Expired,
    /// It is too long.
    #[error("Token is longer than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    /// It is a JWT that does not count.
    #[error(transparent)]
    Jwt(#[from] JwtRefused),
}

/// Why a JWT proves nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JwtRefused {
    /// It has not the form of one.
    #[error("Bearer token is no JWT: {0}")]
    Malformed(&'static str),
    /// It is signed by an algorithm that does not count.
    #[error("JWT: algorithm '{0}' is not allowed")]
    Algorithm(String),
    /// No key of the issuer fits.
    #[error("JWT: it is signed with no key of its issuer that is known")]
    UnknownKey,
    /// It is not signed by that key.
    #[error("JWT: its signature is wrong")]
    Signature,
    /// A claim is missing, or of another type.
    #[error("JWT: claim '{0}' must be {1}")]
    Claim(Box<str>, &'static str),
    /// `iss`
    #[error("JWT: it is from another issuer")]
    Issuer,
    /// `aud`
    #[error("JWT: it is for another audience")]
    Audience,
    /// `exp`
    #[error("JWT: it has expired")]
    Expired,
    /// `nbf`, `iat`
    #[error("JWT: it is not valid yet")]
    Early,
}
