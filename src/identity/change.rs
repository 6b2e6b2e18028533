//! What an operator does with agent tokens: makes, ends and renews them. Pure; the file is `token_file`'s.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use super::agent_secret::AgentSecret;
use super::token_file::{KeptToken, MAX_TOKENS, TokenFileError};
use crate::intent::Operation;

/// Most characters of a name.
const MAX_NAME_CHARS: usize = 64;
/// Most servers, and most patterns, of one token.
const MAX_LIST: usize = 256;
/// Most characters of a server's name or a pattern.
const MAX_ENTRY_CHARS: usize = 256;
/// Longest time of a token: 10 years.
const MAX_LIFETIME: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// A token to be made, and what it is for; an empty list bounds nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewAgentToken {
    /// Its name, of letters, digits, `-`, `_` and `.`; in records it stands as `token:NAME`.
    pub name: String,
    /// The servers that it may be used for, by their names in the config.
    #[serde(default)]
    pub servers: Vec<String>,
    /// The tools that it may be used for: `server:tool`, or the tool's own name, with `*` for any run of characters.
    #[serde(default)]
    pub tools: Vec<String>,
    /// The operations that it may be used for.
    #[serde(default)]
    pub operations: Vec<Operation>,
    /// How long it is good for, in seconds; for good, if it is left out.
    #[serde(default, deserialize_with = "whole_seconds", skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<u64>,
}

/// What is done with the tokens.
#[derive(Debug)]
pub enum TokenChange {
    /// Makes one.
    Create(NewAgentToken),
    /// Gives the one of that name a new secret; the old one is out of force.
    Rotate(String),
    /// Ends the one of that name.
    Revoke(String),
}

/// What came of it.
#[derive(Debug)]
pub enum TokenChanged {
    /// A secret was made.
    Made(MadeToken),
    /// The token of that name is no more.
    Revoked(String),
}

/// A secret that was just made. It is kept nowhere, and so shown once.
#[derive(Debug)]
pub struct MadeToken {
    /// The token's name.
    pub name: String,
    /// The secret.
    pub secret: AgentSecret,
    /// When its time is up, in seconds since 1970; `None`: never.
    pub expires: Option<u64>,
}

/// Why nothing was done.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each case is its text")]
pub enum TokenChangeError {
    #[error(
        "Invalid token name '{0}': must be 1 to {MAX_NAME_CHARS} letters, digits, '-', '_' and '.', and begin with \
         a letter or digit"
    )]
    Name(String),
    #[error(
        "Invalid {0}: at most {MAX_LIST} of at most {MAX_ENTRY_CHARS} characters each, none of them empty"
    )]
    List(&'static str),
    #[error("Invalid expires_in: must be from 1 second to 10 years")]
    Expires,
    #[error("Token '{0}' exists already")]
    Exists(String),
    #[error("Token '{0}' not found")]
    Missing(String),
    #[error("There are {MAX_TOKENS} tokens already, which is the most there can be")]
    Full,
    #[error(transparent)]
    File(#[from] TokenFileError),
}

impl TokenChange {
    /// Applies it to `tokens` at the time `now`. `random` is the system's.
    ///
    /// # Errors
    /// [`TokenChangeError`]; `tokens` are as before.
    pub(super) fn apply(
        self,
        tokens: &mut Vec<KeptToken>,
        random: [u8; 32],
        now: SystemTime,
    ) -> Result<TokenChanged, TokenChangeError> {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let named =
            |tokens: &[KeptToken], name: &str| tokens.iter().position(|token| *token.name == *name);
        match self {
            Self::Create(new) => {
                new.check()?;
                if named(tokens, &new.name).is_some() {
                    return Err(TokenChangeError::Exists(new.name));
                }
                if tokens.len() >= MAX_TOKENS {
                    return Err(TokenChangeError::Full);
                }
                let secret = AgentSecret::new(random);
                let texts = |list: Vec<String>| list.into_iter().map(Into::into).collect();
                let expires = new.expires_in.map(|seconds| since.as_secs().saturating_add(seconds));
                let kept = KeptToken {
                    name: new.name.as_str().into(),
                    hash: secret.hash(),
                    servers: texts(new.servers),
                    tools: texts(new.tools),
                    operations: new.operations,
                    created: u64::try_from(since.as_micros()).unwrap_or(u64::MAX),
                    expires,
                };
                let at = tokens.partition_point(|token| *token.name < *kept.name);
                tokens.insert(at, kept);
                Ok(TokenChanged::Made(MadeToken { name: new.name, secret, expires }))
            }
            Self::Rotate(name) => {
                let at = named(tokens, &name);
                let Some(token) = at.and_then(|at| tokens.get_mut(at)) else {
                    return Err(TokenChangeError::Missing(name));
                };
                let secret = AgentSecret::new(random);
                token.hash = secret.hash();
                Ok(TokenChanged::Made(MadeToken { name, secret, expires: token.expires }))
            }
            Self::Revoke(name) => {
                let Some(at) = named(tokens, &name) else {
                    return Err(TokenChangeError::Missing(name));
                };
                tokens.remove(at);
                Ok(TokenChanged::Revoked(name))
            }
        }
    }
}

impl NewAgentToken {
    fn check(&self) -> Result<(), TokenChangeError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let begins = self.name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !begins || self.name.len() > MAX_NAME_CHARS || !self.name.bytes().all(plain) {
            return Err(TokenChangeError::Name(self.name.chars().take(MAX_NAME_CHARS).collect()));
        }
        for (name, list) in [("servers", &self.servers), ("tools", &self.tools)] {
            let fits = |entry: &String| (1..=MAX_ENTRY_CHARS).contains(&entry.chars().count());
            if list.len() > MAX_LIST || !list.iter().all(fits) {
                return Err(TokenChangeError::List(name));
            }
        }
        if self.operations.len() > MAX_LIST {
            return Err(TokenChangeError::List("operations"));
        }
        match self.expires_in {
            Some(seconds) if !(1..=MAX_LIFETIME.as_secs()).contains(&seconds) => {
                Err(TokenChangeError::Expires)
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Seconds however JSON writes a whole number: `60` and `60.0` are one.
fn whole_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    /// The largest of which a double tells each whole number from the next: 2^53.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let Some(number) = Option::<serde_json::Number>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let whole = |double: &f64| double.fract() == 0.0 && (0.0..=EXACT).contains(double);
    let seconds =
        number.as_u64().or_else(|| number.as_f64().filter(whole).map(|double| double as u64));
    seconds.map(Some).ok_or_else(|| serde::de::Error::custom("expires_in must be whole seconds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str) -> NewAgentToken {
        NewAgentToken { name: name.into(), ..NewAgentToken::default() }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_token_is_made_renewed_and_ended() {
        let mut tokens = Vec::new();
        let mut apply = |change: TokenChange, byte| change.apply(&mut tokens, [byte; 32], at(100));
        let made =
            apply(TokenChange::Create(NewAgentToken { expires_in: Some(5), ..new("ci") }), 1);
        let TokenChanged::Made(made) = made.unwrap() else { panic!() };
        assert_eq!((&*made.name, made.expires), ("ci", Some(105)));
        assert!(apply(TokenChange::Create(new("a")), 2).is_ok());
        let again = apply(TokenChange::Create(new("ci")), 3).unwrap_err();
        assert_eq!(again.to_string(), "Token 'ci' exists already");
        let TokenChanged::Made(renewed) = apply(TokenChange::Rotate("ci".into()), 4).unwrap()
        else {
            panic!()
        };
        assert_eq!(renewed.expires, Some(105), "a new secret is no more time");
        assert_ne!(renewed.secret.expose(), made.secret.expose());
        assert!(apply(TokenChange::Revoke("ci".into()), 0).is_ok());
        for gone in [TokenChange::Revoke("ci".into()), TokenChange::Rotate("ci".into())] {
            assert_eq!(apply(gone, 0).unwrap_err().to_string(), "Token 'ci' not found");
        }
        let names: Vec<_> = tokens.iter().map(|token| &*token.name).collect();
        assert_eq!(names, ["a"]);
    }

    #[test]
    fn what_cannot_be_is_refused_and_changes_nothing() {
        let long = "x".repeat(MAX_NAME_CHARS + 1);
        let mut tokens = Vec::new();
        let mut refused = |new| {
            let change = TokenChange::Create(new).apply(&mut tokens, [0; 32], at(0));
            change.unwrap_err().to_string()
        };
        for name in ["", "a b", "-a", "a:b", "ü", "a\n", &long] {
            assert!(refused(new(name)).starts_with("Invalid token name"), "{name}");
        }
        let empty = NewAgentToken { servers: vec![String::new()], ..new("a") };
        assert!(refused(empty).starts_with("Invalid servers"));
        let many = NewAgentToken { tools: vec!["x".into(); MAX_LIST + 1], ..new("a") };
        assert!(refused(many).starts_with("Invalid tools"));
        for seconds in [0, MAX_LIFETIME.as_secs() + 1] {
            let bad = NewAgentToken { expires_in: Some(seconds), ..new("a") };
            assert!(refused(bad).starts_with("Invalid expires_in"));
        }
        for (written, read) in [("60", Some(60)), ("60.0", Some(60)), ("null", None)] {
            let text = format!(r#"{{"name":"a","expires_in":{written}}}"#);
            assert_eq!(serde_json::from_str::<NewAgentToken>(&text).unwrap().expires_in, read);
        }
        for written in ["1.5", "-1", "1e300", "\"60\""] {
            let text = format!(r#"{{"name":"a","expires_in":{written}}}"#);
            assert!(serde_json::from_str::<NewAgentToken>(&text).is_err(), "{written}");
        }
        assert!(tokens.is_empty());
    }
}
