//! The agent tokens in force, found by their secrets in one step. Immutable; a change makes a new one.
//!
//! A token is looked up by the first half of its hash, and the other half is compared in constant time. How long
//! either takes tells nothing: both are about a hash that nobody can choose, not about a secret.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use subtle::ConstantTimeEq;

use super::agent_secret::hash_of;
use super::proven::{Proven, TokenRefused};
use super::token_file::KeptToken;
use crate::policy::{AgentToken, Principal, Scope};
use crate::tool::Pattern;

/// Bytes of a hash that a token is found by.
const FOUND_BY: usize = 16;

/// The agent tokens in force.
#[derive(Debug, Default)]
pub struct TokenTable {
    tokens: HashMap<[u8; FOUND_BY], InForce>,
    /// By name, for who is there already.
    names: HashMap<Box<str>, [u8; FOUND_BY]>,
}

#[derive(Debug)]
struct InForce {
    rest: [u8; 32 - FOUND_BY],
    token: Arc<AgentToken>,
    /// The end of its time, by the clock on the wall.
    expires: Option<SystemTime>,
}

impl TokenTable {
    /// The table of what is kept.
    #[must_use]
    pub fn new(kept: &[KeptToken]) -> Self {
        let of = |token: &KeptToken| {
            let (found_by, rest) = halves(&token.hash)?;
            let in_force = InForce { rest, token: agent_token(token), expires: token.ends() };
            Some((found_by, in_force))
        };
        let tokens: HashMap<_, _> = kept.iter().filter_map(of).collect();
        let names = tokens.iter().map(|(at, it)| (it.token.name().into(), *at)).collect();
        Self { tokens, names }
    }

    /// True if `token` is in force at that moment, whatever its secret is now.
    #[must_use]
    pub fn has(&self, token: &AgentToken, now: SystemTime) -> bool {
        let found = self.names.get(token.name()).and_then(|at| self.tokens.get(at));
        found.is_some_and(|it| *it.token == *token && it.expires.is_none_or(|end| now < end))
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whom a token proves at the moment `now` of the clock on the wall. The end of its time is looked at each time,
    /// so that a clock that is put right counts at once, in both directions.
    ///
    /// # Errors
    /// [`TokenRefused`].
    pub fn prove(&self, token: &[u8], now: SystemTime) -> Result<Proven, TokenRefused> {
        let hash = hash_of(token).ok_or(TokenRefused::Malformed)?;
        let (found_by, rest) = halves(&hash).ok_or(TokenRefused::Malformed)?;
        let found = self.tokens.get(&found_by);
        let found = found.filter(|found| bool::from(found.rest.ct_eq(&rest)));
        let InForce { token, expires, .. } = found.ok_or(TokenRefused::Unknown)?;
        if expires.is_some_and(|end| now >= end) {
            return Err(TokenRefused::Expired);
        }
        Ok(Proven { principal: Principal::Token(Arc::clone(token)), from: None, until: *expires })
    }
}

fn halves(hash: &[u8; 32]) -> Option<([u8; FOUND_BY], [u8; 32 - FOUND_BY])> {
    let (first, rest) = hash.split_first_chunk()?;
    Some((*first, rest.try_into().ok()?))
}

fn agent_token(kept: &KeptToken) -> Arc<AgentToken> {
    let scope = Scope {
        servers: kept.servers.clone(),
        tools: kept.tools.iter().cloned().map(Pattern::from).collect(),
        operations: kept.operations.clone(),
    };
    Arc::new(AgentToken::new(&kept.name, kept.created, scope))
}

impl KeptToken {
    /// The end of its time; `None`: it has none.
    fn ends(&self) -> Option<SystemTime> {
        let end = |seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        // A time that there is not has been long ago: nothing lasts longer by it.
        self.expires.map(|seconds| end(seconds).unwrap_or(UNIX_EPOCH))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::identity::{AgentSecret, MAX_TOKENS};
    use crate::intent::Operation;

    pub(super) fn kept(number: u32, expires: Option<u64>) -> (AgentSecret, KeptToken) {
        let mut random = [7; 32];
        random[..4].copy_from_slice(&number.to_be_bytes());
        let secret = AgentSecret::new(random);
        let token = KeptToken {
            name: format!("t{number}").into(),
            hash: secret.hash(),
            servers: vec!["a".into()],
            tools: vec!["get_*".into()],
            operations: vec![Operation::Read],
            created: 1,
            expires,
        };
        (secret, token)
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_token_proves_its_holder_until_its_time_is_up() {
        let (secret, token) = kept(1, Some(100));
        let table = TokenTable::new(&[token]);
        let proof = table.prove(secret.expose().as_bytes(), at(99)).unwrap();
        assert_eq!((proof.principal.id(), proof.until), ("token:t1", Some(at(100))));
        let prove = |now| table.prove(secret.expose().as_bytes(), at(now)).err();
        assert_eq!(prove(100), Some(TokenRefused::Expired));
        assert_eq!(prove(99), None, "a clock that was put back");
    }

    #[test]
    fn another_token_is_unknown_and_another_form_is_told() {
        let table = TokenTable::new(&[kept(1, None).1]);
        let (secret, _) = kept(2, None);
        let refused = |token: &str| table.prove(token.as_bytes(), at(0)).unwrap_err();
        assert_eq!(refused(secret.expose()), TokenRefused::Unknown);
        assert_eq!(refused("mcpp_short"), TokenRefused::Malformed);
        // Half of a hash is not enough.
        let (known, mut altered) = kept(1, None);
        altered.hash[31] ^= 1;
        let table = TokenTable::new(&[altered]);
        assert!(table.prove(known.expose().as_bytes(), at(0)).is_err());
    }

    #[test]
    fn ten_thousand_tokens_are_found_as_fast_as_one() {
        let all: Vec<_> = (0..MAX_TOKENS as u32).map(|number| kept(number, None)).collect();
        let table =
            TokenTable::new(&all.iter().map(|(_, token)| token.clone()).collect::<Vec<_>>());
        let began = Instant::now();
        for (secret, _) in &all {
            assert!(table.prove(secret.expose().as_bytes(), at(0)).is_ok());
        }
        // Told, and not asserted: how fast it is depends on the machine.
        println!("{:?} a token", began.elapsed() / MAX_TOKENS as u32);
    }
}
