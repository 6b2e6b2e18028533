//! On whose behalf a request is made.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::SystemTime;

use crate::intent::Operation;
use crate::tool::Pattern;

/// Who asks, as far as it was proven. It stands in each request and in its record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Principal {
    /// Nobody said who they are: the loopback without a key, a pipe.
    #[default]
    Anonymous,
    /// The holder of the API key.
    Admin,
    /// The holder of an agent token.
    Token(Arc<AgentToken>),
    /// Whom an identity provider vouches for by a JWT.
    Subject(Arc<JwtSubject>),
    /// The holder of a client certificate: the whole id, `cert:NAME`.
    Certificate(Arc<str>),
}

impl Principal {
    /// The holder of a certificate that names it so.
    #[must_use]
    pub fn certificate(name: &str) -> Self {
        Self::Certificate(format!("{CERTIFICATE}{name}").into())
    }

    /// The name in records and filters: stable, and told apart from those of other kinds by what it begins with.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Admin => "admin",
            Self::Token(token) => &token.id,
            Self::Subject(subject) => &subject.id,
            Self::Certificate(id) => id,
        }
    }

    /// 128 bits that are the same on whichever node and whenever it is the same principal, and no other's.
    #[must_use]
    pub fn mark(&self) -> [u8; 16] {
        let (kind, made) = match self {
            Self::Anonymous => (0, 0),
            Self::Admin => (1, 0),
            Self::Token(token) => (2, token.made),
            Self::Subject(_) => (3, 0),
            Self::Certificate(_) => (4, 0_u64),
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[kind]).update(&made.to_be_bytes()).update(self.id().as_bytes());
        hasher.finalize().as_bytes().first_chunk().copied().unwrap_or_default()
    }

    /// The groups that it was proven to be in.
    #[must_use]
    pub fn groups(&self) -> &[Box<str>] {
        match self {
            Self::Anonymous | Self::Admin | Self::Token(_) | Self::Certificate(_) => &[],
            Self::Subject(subject) => &subject.groups,
        }
    }
}

/// A token that an operator made for an agent, without what proves it.
#[derive(Clone, Debug)]
pub struct AgentToken {
    id: Box<str>,
    /// When it was made, in microseconds since 1970: another token of the same name is another principal.
    made: u64,
    scope: Scope,
}

impl AgentToken {
    /// The token called `name` that was made at `made` (microseconds since 1970) for what is in `scope`.
    #[must_use]
    pub fn new(name: &str, made: u64, scope: Scope) -> Self {
        Self { id: format!("{TOKEN}{name}").into(), made, scope }
    }

    /// The name that its maker gave it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.id.strip_prefix(TOKEN).unwrap_or(&self.id)
    }

    /// What it was made for.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }
}

/// What a token may be used for; an empty list bounds nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Servers, by their names in the config.
    pub servers: Vec<Box<str>>,
    /// Tools: as `server:tool` where a pattern has a colon, else by the tool's own name. A token with tools and no
    /// servers is for tools alone: no resource, no prompt.
    pub tools: Vec<Pattern>,
    /// Operations. What is no tool is read.
    pub operations: Vec<Operation>,
}

/// The same token with a new secret is the same principal.
impl PartialEq for AgentToken {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.made == other.made
    }
}

impl Eq for AgentToken {}

impl Hash for AgentToken {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// Whom a JWT is about.
#[derive(Clone, Debug)]
pub struct JwtSubject {
    id: Box<str>,
    groups: Box<[Box<str>]>,
    /// When what vouches for it ends.
    until: SystemTime,
}

impl JwtSubject {
    /// The subject `sub` of an identity provider, in these groups, as long as the token lasts that says so.
    #[must_use]
    pub fn new(sub: &str, groups: Vec<Box<str>>, until: SystemTime) -> Self {
        Self { id: format!("{SUBJECT}{sub}").into(), groups: groups.into(), until }
    }

    /// When what vouches for it ends: a stream that was opened with it lasts no longer.
    #[must_use]
    pub fn until(&self) -> SystemTime {
        self.until
    }
}

/// Whoever is in another group since the last JWT is still the same.
impl PartialEq for JwtSubject {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for JwtSubject {}

impl Hash for JwtSubject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// What the id of a token begins with.
const TOKEN: &str = "token:";
/// What the id of a subject begins with.
const SUBJECT: &str = "jwt:";
/// What the id of a certificate's holder begins with.
const CERTIFICATE: &str = "cert:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_principal_is_who_it_is_whatever_else_changes() {
        let token = |made| AgentToken::new("ci", made, Scope::default());
        assert_eq!(token(1), token(1));
        assert_ne!(token(1), token(2), "one that was made anew is another");
        assert_eq!((token(1).name(), &*token(1).id), ("ci", "token:ci"));
        let subject =
            |group: &str| JwtSubject::new("ada", vec![group.into()], SystemTime::UNIX_EPOCH);
        assert_eq!(subject("a"), subject("b"));
        let principal = Principal::Subject(Arc::new(subject("a")));
        assert_eq!((principal.id(), principal.groups()), ("jwt:ada", &["a".into()][..]));
        assert_ne!(principal, Principal::Token(Arc::new(token(1))));
        let holder = Principal::certificate("ada");
        assert_eq!((holder.id(), holder.groups().len()), ("cert:ada", 0));
        assert_eq!(holder, Principal::certificate("ada"));
        assert_ne!(holder, principal);
        assert_eq!(Principal::Admin.groups(), &[] as &[Box<str>]);
    }

    #[test]
    fn the_mark_is_the_principals_and_no_others() {
        let token =
            |made| Principal::Token(Arc::new(AgentToken::new("ci", made, Scope::default())));
        let subject = |sub: &str, groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).into()).collect();
            Principal::Subject(Arc::new(JwtSubject::new(sub, groups, SystemTime::UNIX_EPOCH)))
        };
        let all = [
            Principal::Anonymous,
            Principal::Admin,
            token(1),
            token(2),
            subject("ada", &[]),
            subject("bob", &[]),
            Principal::certificate("ada"),
        ];
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!(one.mark() == other.mark(), at == other_at, "{one:?} {other:?}");
            }
        }
        assert_eq!(subject("ada", &["a"]).mark(), subject("ada", &["b"]).mark());
    }
}
