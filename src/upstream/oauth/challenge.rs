//! What a server asks of a login while it is used, and where that is heard and told.
//!
//! Any request may be the one that is challenged: a server may let everyone initialize and ask for
//! a login at a call, or for a scope that the login does not have. Whoever sends requests leaves
//! the challenge here; the server's own task takes it up, since only it renews tokens and tells
//! the server's state.

use std::sync::Arc;

use http::HeaderValue;
use parking_lot::{Mutex, MutexGuard};
use rmcp::transport::auth::WWWAuthenticateParams;
use tokio::sync::Notify;
use url::Url;

/// Most scopes of one challenge that are read.
const MAX_SCOPES: usize = 64;
/// Most bytes of a scope that is read.
const MAX_SCOPE_BYTES: usize = 256;

/// What a server asks of a login (RFC 6750 §3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Challenge {
    /// For one, or for another token than it was sent (401): the header that it was sent.
    Token(Option<HeaderValue>),
    /// For these scopes beside those that the token has (403, `insufficient_scope`).
    Scopes(Vec<String>),
}

impl Challenge {
    /// The challenge of an answer with `status` and `WWW-Authenticate`, if it is one, to a request
    /// with the header `bearer`.
    pub(in crate::upstream) fn read(
        status: u16,
        authenticate: Option<&[u8]>,
        bearer: Option<&HeaderValue>,
    ) -> Option<Self> {
        match status {
            401 => Some(Self::Token(bearer.cloned())),
            403 => {
                let text = std::str::from_utf8(authenticate?).ok()?;
                // It resolves a place that is not looked at.
                let nowhere = Url::parse("http://localhost/").ok()?;
                let told = WWWAuthenticateParams::parse(text, &nowhere);
                let insufficient = told.is_insufficient_scope();
                insufficient.then(|| Self::Scopes(scopes(&told.scope.unwrap_or_default())))
            }
            _ => None,
        }
    }
}

/// The scopes in a text, each once (RFC 6749 §3.3); what cannot be one is left out.
pub(super) fn scopes(text: &str) -> Vec<String> {
    let is_scope = |word: &&str| {
        let scope = |byte| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
        word.len() <= MAX_SCOPE_BYTES && word.bytes().all(scope)
    };
    union(text.split_ascii_whitespace().filter(is_scope).take(MAX_SCOPES).map(str::to_owned))
}

/// Scopes in their order, each once.
pub(super) fn union(scopes: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for scope in scopes {
        if !all.contains(&scope) {
            all.push(scope);
        }
    }
    all
}

/// What one server asks of its login. Written by whoever sends it requests, and only when it
/// challenges one.
#[derive(Debug)]
pub(in crate::upstream) struct Challenges {
    server: Arc<str>,
    state: Mutex<State>,
    told: Notify,
}

#[derive(Debug, Default)]
struct State {
    challenge: Option<Challenge>,
    notice: Arc<str>,
}

impl Challenges {
    pub(super) fn new(server: Arc<str>) -> Self {
        Self { server, state: Mutex::default(), told: Notify::new() }
    }

    /// Leaves a challenge for the server's task; what it comes to, in one line.
    pub(in crate::upstream) fn tell(&self, challenge: Challenge) -> Arc<str> {
        let reason: Arc<str> = match &challenge {
            Challenge::Token(_) => needs_login(&self.server).into(),
            Challenge::Scopes(scopes) => needs_scopes(&self.server, scopes).into(),
        };
        let mut state = self.state();
        // A token that is refused is the end of its scopes, too.
        let token = matches!(challenge, Challenge::Token(_));
        if token || !matches!(state.challenge, Some(Challenge::Token(_))) {
            state.challenge = Some(challenge);
        }
        drop(state);
        self.told.notify_one();
        reason
    }

    /// Waits for a challenge.
    pub(super) async fn told(&self) {
        self.told.notified().await;
    }

    /// The challenge that was left last.
    pub(super) fn take(&self) -> Option<Challenge> {
        self.state().challenge.take()
    }

    /// What is wrong with the login though the server is connected; empty if nothing is.
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

/// What the operator of a server without a valid login has to do.
pub(in crate::upstream) fn needs_login(server: &str) -> String {
    format!("needs login: {}", how_to_log_in(server))
}

/// The same of a server that asks for further scopes.
pub(super) fn needs_scopes(server: &str, scopes: &[String]) -> String {
    match scopes {
        [] => "its login is not good for this, and it does not say what would be".to_owned(),
        scopes => {
            let scopes = scopes.join(" ");
            format!("needs login with scope {scopes}: {}", how_to_log_in(server))
        }
    }
}

/// Whether a reason ends as [`needs_login`] and [`needs_scopes`] do: what is missing is a login.
pub(in crate::upstream) fn says_needs_login(reason: &str, server: &str) -> bool {
    reason.contains("needs login") && reason.ends_with(&how_to_log_in(server))
}

fn how_to_log_in(server: &str) -> String {
    format!("run mcpproxy upstream login {server}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_asks_for_is_read_from_its_refusal() {
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
    fn whether_a_login_is_missing_is_read_from_the_reason() {
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
    fn a_refused_token_outweighs_a_scope() {
        let asked = Challenges::new("s".into());
        let told = asked.tell(Challenge::Scopes(vec!["a".into()]));
        assert_eq!(&*told, "needs login with scope a: run mcpproxy upstream login s");
        let refused = Challenge::Token(Some(HeaderValue::from_static("Bearer t1")));
        asked.tell(refused.clone());
        asked.tell(Challenge::Scopes(vec!["b".into()]));
        assert_eq!((asked.take(), asked.take()), (Some(refused), None));
    }
}
