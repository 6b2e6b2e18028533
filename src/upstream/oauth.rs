//! OAuth 2.1 logins with upstreams, as specified by MCP (RFC 9728, 8414, 7591, 8707).
//!
//! Owns the login, the token files and their renewal. rmcp implements the protocol steps; the HTTP client, its address
//! policy and the limits are implemented here. Calls are not delayed: a token is one of the headers of a session. It is
//! sent only to the server for which it was issued; authorization sent by the proxy's clients never reaches this code.
//!
//! ```text
//! mcpproxy upstream login ─▶ login ─▶ store ◀─ login_tokens ─▶ the server's session
//!                              │ callback        │ renewal before expiry, or after a rejection
//!                              └──── client ─────┘
//! ```
//!
//! With the grant `client_credentials`, no person is involved: [`client_credentials`] requests every token, both the
//! first one and its renewals.
//!
//! Any request may be challenged: a server may require a login, or an additional scope, only at a call. [`Challenges`]
//! collects the challenges for the server's task, which renews tokens and reports the state.

use std::sync::Arc;

use http::HeaderValue;
use parking_lot::{Mutex, MutexGuard};
use rmcp::transport::auth::WWWAuthenticateParams;
use tokio::sync::Notify;
use url::Url;

pub use self::authority::LoginError;
pub use self::client::{check_key_set_url, fetch_key_set};
pub(super) use self::client_credentials::basic;
pub use self::login::{LoggedIn, login};
pub(super) use self::login_tokens::{
    Bearer, ChallengeOutcome, LoginTokens, Renewal, challenged, changed, renewal,
};
pub use self::logout::{LoggedOut, log_out};
pub use self::store::TokenStoreError;

mod authority;
mod client;
mod client_credentials;
mod login;
mod login_tokens;
mod logout;
mod store;

/// Maximum number of scopes read from a challenge.
const MAX_SCOPES: usize = 64;
/// Maximum length of a scope in bytes.
const MAX_SCOPE_BYTES: usize = 256;

/// Authentication challenge (RFC 6750 §3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// The server requires a login or another token (401). Contains the header that was sent.
    Token(Option<HeaderValue>),
    /// The server requires additional scopes (403, `insufficient_scope`).
    Scopes(Vec<String>),
}

impl Challenge {
    /// Parses the challenge of a response with this status and `WWW-Authenticate` to a request with the header `bearer`.
    pub(crate) fn read(
        status: u16,
        authenticate: Option<&[u8]>,
        bearer: Option<&HeaderValue>,
    ) -> Option<Self> {
        match status {
            401 => Some(Self::Token(bearer.cloned())),
            403 => {
                let text = std::str::from_utf8(authenticate?).ok()?;
                // Only used to resolve relative URLs, which are ignored.
                let nowhere = Url::parse("http://localhost/").ok()?;
                let recorded = WWWAuthenticateParams::parse(text, &nowhere);
                let insufficient = recorded.is_insufficient_scope();
                insufficient.then(|| Self::Scopes(scopes(&recorded.scope.unwrap_or_default())))
            }
            _ => None,
        }
    }
}

/// Distinct valid scopes in a text (RFC 6749 §3.3).
pub(super) fn scopes(text: &str) -> Vec<String> {
    let is_scope = |word: &&str| {
        let scope = |byte| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
        word.len() <= MAX_SCOPE_BYTES && word.bytes().all(scope)
    };
    // Some servers separate scopes with commas.
    let separates = |char: char| char.is_ascii_whitespace() || char == ',';
    let words = text.split(separates).filter(|word| !word.is_empty());
    union(words.filter(is_scope).take(MAX_SCOPES).map(str::to_owned))
}

/// Removes duplicates, keeping the order.
pub(super) fn union(scopes: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for scope in scopes {
        if !all.contains(&scope) {
            all.push(scope);
        }
    }
    all
}

/// Challenges of one server, from any of its requests.
#[derive(Debug)]
pub(crate) struct Challenges {
    server: Arc<str>,
    /// Whether tokens are requested without a person.
    is_unattended: bool,
    state: Mutex<State>,
    recorded: Notify,
}

#[derive(Debug, Default)]
struct State {
    challenge: Option<Challenge>,
    notice: Arc<str>,
}

impl Challenges {
    pub(super) fn new(server: Arc<str>, is_unattended: bool) -> Self {
        Self { server, is_unattended, state: Mutex::default(), recorded: Notify::new() }
    }

    /// Records a challenge for the server's task; returns the resulting error text.
    pub(crate) fn record(&self, challenge: Challenge) -> Arc<str> {
        let reason: Arc<str> = match &challenge {
            Challenge::Token(_) => self.no_token().into(),
            Challenge::Scopes(scopes) => self.lacks_scopes(scopes).into(),
        };
        let mut state = self.state();
        // A rejected token makes its scopes irrelevant.
        let token = matches!(challenge, Challenge::Token(_));
        if token || !matches!(state.challenge, Some(Challenge::Token(_))) {
            state.challenge = Some(challenge);
        }
        drop(state);
        self.recorded.notify_one();
        reason
    }

    /// Error text for a request that was rejected because its token was invalid or missing.
    pub(super) fn no_token(&self) -> String {
        match self.is_unattended {
            true => "its token was rejected, another one is requested".to_owned(),
            false => needs_login(&self.server),
        }
    }

    /// Error text for a request that requires additional scopes.
    pub(super) fn lacks_scopes(&self, scopes: &[String]) -> String {
        match (self.is_unattended, scopes) {
            (true, []) => {
                "its token lacks a scope that the server does not name: set oauth.scopes".to_owned()
            }
            (true, scopes) => format!("its token lacks scope {}", scopes.join(" ")),
            (false, scopes) => needs_scopes(&self.server, scopes),
        }
    }

    /// Waits for a challenge.
    pub(super) async fn recorded(&self) {
        self.recorded.notified().await;
    }

    /// Takes the recorded challenge.
    pub(super) fn take(&self) -> Option<Challenge> {
        self.state().challenge.take()
    }

    /// Missing scopes of the login of a connected server, as text; empty if none are missing.
    pub(super) fn notice(&self) -> Arc<str> {
        self.state().notice.clone()
    }

    pub(super) fn set_notice(&self, notice: Arc<str>) {
        self.state().notice = notice;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Error text for a server without a valid login.
pub(crate) fn needs_login(server: &str) -> String {
    format!("needs login: {}", how_to_log_in(server))
}

/// Error text for a server that requires additional scopes.
pub(super) fn needs_scopes(server: &str, scopes: &[String]) -> String {
    match scopes {
        [] => {
            "its login is not sufficient for this request, and the server does not name the missing scope"
                .to_owned()
        }
        scopes => {
            let scopes = scopes.join(" ");
            format!("needs login with scope {scopes}: {}", how_to_log_in(server))
        }
    }
}

/// Whether [`needs_login`] or [`needs_scopes`] created the reason.
pub fn says_needs_login(reason: &str, server: &str) -> bool {
    reason.contains("needs login") && reason.ends_with(&how_to_log_in(server))
}

/// Command for the user, as an imperative.
pub fn how_to_log_in(server: &str) -> String {
    format!("run mcpproxy upstream login {server}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_is_parsed_from_the_refusal() {
        let scopes = |scopes: &[&str]| {
            Some(Challenge::Scopes(scopes.iter().map(|&scope| scope.to_owned()).collect()))
        };
        let long = format!("Bearer error=\"insufficient_scope\", scope=\"{}\"", "x".repeat(257));
        for (status, authenticate, expected) in [
            (401, None, Some(Challenge::Token(None))),
            (401, Some("Bearer scope=\"a\""), Some(Challenge::Token(None))),
            (403, None, None),
            (403, Some("Bearer"), None),
            (403, Some("Bearer error=\"invalid_token\", scope=\"a\""), None),
            (
                403,
                Some("Bearer error=\"insufficient_scope\", scope=\"a b a\""),
                scopes(&["a", "b"]),
            ),
            (403, Some("Bearer scope=a, error=insufficient_scope"), scopes(&["a"])),
            (403, Some("Bearer scope=\"a,b\", error=insufficient_scope"), scopes(&["a", "b"])),
            (403, Some("Bearer error=\"insufficient_scope\""), scopes(&[])),
            (
                403,
                Some("Bearer error=\"insufficient_scope\", scope=\"\u{1b}[2J é a\""),
                scopes(&["a"]),
            ),
            (403, Some(&*long), scopes(&[])),
            (200, Some("Bearer error=\"insufficient_scope\", scope=\"a\""), None),
        ] {
            let read = Challenge::read(status, authenticate.map(str::as_bytes), None);
            assert_eq!(read, expected, "{status} {authenticate:?}");
        }
        let many: String = (0..100).map(|n| format!("s{n} ")).collect();
        assert_eq!(super::scopes(&many).len(), MAX_SCOPES);
    }

    #[test]
    fn missing_login_is_recognized_by_the_reason() {
        let refused = format!("it refused 4 tokens one after the other; {}", needs_login("s"));
        for (reason, needs) in [
            (&*needs_login("s"), true),
            (&*needs_scopes("s", &["a".into()]), true),
            (&*refused, true),
            (&*needs_login("t"), false),
            (&*needs_scopes("s", &[]), false),
            ("connection refused", false),
        ] {
            assert_eq!(says_needs_login(reason, "s"), needs, "{reason}");
        }
    }

    #[test]
    fn rejected_token_outweighs_missing_scopes() {
        let challenges = Challenges::new("s".into(), false);
        let recorded = challenges.record(Challenge::Scopes(vec!["a".into()]));
        assert_eq!(&*recorded, "needs login with scope a: run mcpproxy upstream login s");
        let refused = Challenge::Token(Some(HeaderValue::from_static("Bearer t1")));
        challenges.record(refused.clone());
        challenges.record(Challenge::Scopes(vec!["b".into()]));
        assert_eq!((challenges.take(), challenges.take()), (Some(refused), None));
    }
}
