//! Who a request is made by, as far as a token proves it: agent tokens, and the JWTs of an identity provider; and who is
//! logged in to the page ([`PageLogins`]).
//!
//! ```text
//! tokens.json ─ TokenFile ─▶ TokenTable ─┐
//!                                        ├─ Credentials ─▶ one swap ─▶ a reader for each worker ─▶ Proven
//! JWKS ─ KeySet ─▶ JwtVerifier ──────────┘
//! ```
//!
//! A request proves itself by what is in force at that moment, without a lock. Where a request carries its token, and
//! that the API key counts before it, is `downstream::api_key`'s; what the holder may do is `policy`'s. Key sets are
//! fetched by whoever has an HTTP client (`server::identity_watch`): nothing here goes over the network.

mod agent_secret;
mod algorithm;
mod change;
mod credentials;
mod jwt;
mod key_set;
mod page_logins;
mod proven;
mod signature;
mod token_file;
mod token_table;

pub use agent_secret::{AgentSecret, PREFIX};
pub use algorithm::Algorithm;
pub use change::{MadeToken, NewAgentToken, TokenChange, TokenChangeError, TokenChanged};
pub use credentials::{Credentials, CredentialsReader, CurrentCredentials, Identity};
pub use jwt::{JwtVerifier, KeySource, LEEWAY, Settings};
pub use key_set::{BadKeySet, KeySet, MAX_KEY_SET_BYTES};
pub use page_logins::{
    CODE_LIFE, MAX_CODES, MAX_SESSIONS, PAGE_SECRET_BYTES, PageLogins, PageSecret, PageSession,
    SESSION_IDLE, SESSION_LIFE,
};
pub use proven::{
    AuthorityStanding, CertifiedClient, JwtRefused, MAX_TOKEN_BYTES, Proven, TokenRefused,
};
pub use token_file::{
    FileStamp, KeptToken, MAX_TOKENS, TokenFile, TokenFileError, file_stamp, read_kept, write_kept,
};
pub use token_table::TokenTable;
