//! Credentials in force, replaced by an atomic swap, and their changes.
//!
//! Workers read credentials like their settings: through a cached pointer that is replaced only at a change, without a
//! lock or an atomic write. Each worker caches verified JWTs until the next change.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::{ArcSwap, ArcSwapOption, Cache};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;
use tokio::sync::{Notify, watch};

use super::jwt::{JwtVerifier, Settings};
use super::token_file::{FileStamp, PREFIX, StoredToken, TokenFile, TokenFileError, hash_of};
use crate::identity::jwt::KeySet;
use crate::identity::token_file::{TokenChange, TokenChangeError, TokenChanged};
use crate::identity::{MAX_TOKEN_BYTES, Proven, TokenRefused};
use crate::tool::Pattern;
use crate::{AgentToken, Principal, Scope};

/// Maximum time that a request signed with an unknown key waits for the issuer's current keys.
const KEYS_WAIT: Duration = Duration::from_secs(3);
/// Maximum number of verified tokens that one worker remembers.
const MAX_REMEMBERED: usize = 1024;

/// Immutable set of credentials.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    tokens: Arc<TokenTable>,
    jwt: Option<Arc<JwtVerifier>>,
}

impl Credentials {
    /// Whether `token` has to be verified: an agent token, or any token if JWTs are configured.
    pub fn expect(&self, token: &[u8]) -> bool {
        token.starts_with(PREFIX.as_bytes()) || self.jwt.is_some()
    }

    pub fn jwt(&self) -> Option<&Arc<JwtVerifier>> {
        self.jwt.as_ref()
    }

    fn prove(&self, token: &[u8], now: SystemTime) -> Result<Proven, TokenRefused> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenRefused::TooLong);
        }
        match &self.jwt {
            Some(jwt) if !token.starts_with(PREFIX.as_bytes()) => jwt.prove(token, now),
            Some(_) | None => self.tokens.prove(token, now),
        }
    }
}

/// Reason why the token file is not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFault {
    /// Consequence, cause and repair in one line.
    pub cause: String,
    /// Whether no token was loaded since the start, so that every agent token is rejected.
    pub refuses_all: bool,
}

/// Shared credentials: those in force, the token file, and requests to refresh the issuer's keys.
#[derive(Debug)]
pub struct Identity {
    in_force: Arc<ArcSwap<Credentials>>,
    file: TokenFile,
    /// Stamp of the file in force. Locked while the file is read or written.
    seen: Mutex<Option<FileStamp>>,
    /// Reason why the file on disk is not in force.
    fault: ArcSwapOption<TokenFault>,
    keys_wanted: Notify,
    tokens_changed: Notify,
    /// Marked at each change of credentials.
    changes: watch::Sender<()>,
    /// Counts completed refreshes.
    keys_asked: watch::Sender<u64>,
}

impl Identity {
    /// Creates the credentials; `file` is not loaded before [`Self::reload_tokens`].
    pub fn new(file: TokenFile, jwt: Option<JwtVerifier>) -> Self {
        let credentials = Credentials { tokens: Arc::default(), jwt: jwt.map(Arc::new) };
        Self {
            in_force: Arc::new(ArcSwap::from_pointee(credentials)),
            file,
            seen: Mutex::new(None),
            fault: ArcSwapOption::empty(),
            keys_wanted: Notify::new(),
            tokens_changed: Notify::new(),
            changes: watch::Sender::new(()),
            keys_asked: watch::Sender::new(0),
        }
    }

    pub fn reader(&self) -> CredentialsReader {
        let current = CurrentCredentials::of(self.in_force.load_full());
        let cache = Cache::new(Arc::clone(&self.in_force));
        CredentialsReader(RefCell::new(Seen { cache, current }))
    }

    /// Loads the file if it changed; returns whether it did. Blocks.
    ///
    /// On a [`TokenFileError`], the current tokens stay in force. An error is reported once per state of the file.
    pub fn reload_tokens(&self) -> Result<bool, TokenFileError> {
        let mut seen = self.seen.lock();
        let stamp = self.file.stamp();
        // A missing file does not have a stamp, whether or not its backup copy exists.
        let is_missing = stamp.is_none() && self.file.is_missing();
        let is_known = self.fault.load().is_some();
        if *seen == stamp && (!is_missing || is_known) {
            if stamp.is_none() && is_known && !is_missing {
                self.fault.store(None);
            }
            return Ok(false);
        }
        *seen = stamp;
        match self.file.load() {
            Ok(tokens) => self.put(&tokens),
            Err(error) => {
                self.failed(&error);
                return Err(error);
            }
        }
        Ok(true)
    }

    /// Reason why the token file is not in force; `None` while it is.
    pub fn token_fault(&self) -> Option<Arc<TokenFault>> {
        self.fault.load_full()
    }

    fn failed(&self, error: &TokenFileError) {
        // Without a file there are no tokens, whether or not that is intended.
        if matches!(error, TokenFileError::Missing { .. }) {
            self.put(&[]);
        }
        let refuses_all = self.in_force.load().tokens.is_empty();
        let follows = match refuses_all {
            true => "no agent token is accepted",
            false => "the agent tokens that were read before stay in force",
        };
        let cause = format!("{follows}: {error}");
        self.fault.store(Some(Arc::new(TokenFault { cause, refuses_all })));
    }

    /// Stores a change in the token file, then replaces the credentials in force. Blocks.
    pub fn change(
        &self,
        change: TokenChange,
        random: [u8; 32],
        now: SystemTime,
    ) -> Result<TokenChanged, TokenChangeError> {
        let mut seen = self.seen.lock();
        let _lock = self.file.lock()?;
        let mut tokens = self.file.load()?;
        let changed = change.apply(&mut tokens, random, now)?;
        self.file.save(tokens.clone())?;
        self.put(&tokens);
        *seen = self.file.stamp();
        self.tokens_changed.notify_one();
        Ok(changed)
    }

    /// Replaces the agent tokens with the result of `next`, first on disk and then in force, under the file lock.
    /// `next` gets `None` if there is no file. Returns whether the tokens changed. Blocks.
    ///
    /// On a [`TokenFileError`], the current tokens stay in force.
    pub fn reconcile(
        &self,
        next: impl FnOnce(Option<&[StoredToken]>) -> Vec<StoredToken>,
    ) -> Result<bool, TokenFileError> {
        let mut seen = self.seen.lock();
        let _lock = self.file.lock()?;
        let there = match self.file.load_present() {
            Ok(there) => there,
            Err(TokenFileError::Missing { .. }) => None,
            Err(error) => {
                self.failed(&error);
                return Err(error);
            }
        };
        let tokens = next(there.as_deref());
        if there.unwrap_or_default() == tokens {
            return Ok(false);
        }
        self.file.save(tokens.clone())?;
        self.put(&tokens);
        *seen = self.file.stamp();
        Ok(true)
    }

    /// Stamp of the token file; `None` if there is none.
    pub fn token_stamp(&self) -> Option<FileStamp> {
        self.file.stamp()
    }

    pub async fn tokens_changed(&self) {
        self.tokens_changed.notified().await;
    }

    /// The stored agent tokens, ordered by name. Blocks.
    pub fn kept(&self) -> Result<Vec<StoredToken>, TokenFileError> {
        self.file.load()
    }

    fn put(&self, tokens: &[StoredToken]) {
        self.fault.store(None);
        let tokens = Arc::new(TokenTable::new(tokens));
        self.in_force.rcu(|old| Credentials { tokens: Arc::clone(&tokens), jwt: old.jwt.clone() });
        self.announce_change();
    }

    /// Receiver that is marked at each change of credentials; streams then authenticate again.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Marks a change that is in force. Also called when the API key or `require_mcp_auth` changes.
    pub fn announce_change(&self) {
        self.changes.send_replace(());
    }

    /// Whether `principal` is still valid: its token may have been revoked, or its JWT expired, since the session or
    /// request began.
    pub fn in_force(&self, principal: &Principal, now: SystemTime) -> bool {
        match principal {
            Principal::Anonymous | Principal::Admin | Principal::Certificate(_) => true,
            Principal::Subject(subject) => now < subject.until(),
            Principal::Token(token) => self.in_force.load().tokens.has(token, now),
        }
    }

    /// Replaces the JWT settings. If the source stays the same, its keys are kept; otherwise `keys` are used.
    pub fn set_jwt(&self, settings: Option<&Settings>, keys: Option<&KeySet>) {
        self.in_force.rcu(|old| {
            let known = old.jwt.as_ref();
            let jwt = settings.map(|settings| match known {
                Some(known) if known.settings() == settings => Arc::clone(known),
                Some(known) if known.settings().keys == settings.keys => {
                    Arc::new(known.with_settings(settings.clone()))
                }
                Some(_) | None => {
                    let verifier = JwtVerifier::new(settings.clone());
                    Arc::new(verifier.with_keys(keys.cloned().unwrap_or_default()))
                }
            });
            Credentials { tokens: Arc::clone(&old.tokens), jwt }
        });
        self.announce_change();
    }

    /// Replaces the issuer's keys.
    pub fn set_keys(&self, keys: &KeySet) {
        self.in_force.rcu(|old| {
            let jwt = old.jwt.as_ref().map(|jwt| Arc::new(jwt.with_keys(keys.clone())));
            Credentials { tokens: Arc::clone(&old.tokens), jwt }
        });
        self.announce_change();
    }

    pub fn jwt(&self) -> Option<Arc<JwtVerifier>> {
        self.in_force.load().jwt.clone()
    }

    /// Requests a refresh of the issuer's keys and waits for it for a limited time.
    pub async fn renew_keys(&self) {
        let mut asked = self.keys_asked.subscribe();
        self.keys_wanted.notify_one();
        let _ = tokio::time::timeout(KEYS_WAIT, asked.changed()).await;
    }

    /// Waits for a requested refresh.
    pub async fn keys_wanted(&self) {
        self.keys_wanted.notified().await;
    }

    /// Announces a completed refresh and wakes the waiters.
    pub fn keys_asked(&self) {
        self.keys_asked.send_modify(|count| *count += 1);
    }
}

/// Per-thread reader of the credentials.
pub struct CredentialsReader(RefCell<Seen>);

struct Seen {
    cache: Cache<Arc<ArcSwap<Credentials>>, Arc<Credentials>>,
    current: CurrentCredentials,
}

impl CredentialsReader {
    pub fn current(&self) -> CurrentCredentials {
        let Seen { cache, current } = &mut *self.0.borrow_mut();
        let latest = cache.load();
        if !Arc::ptr_eq(latest, &current.0.credentials) {
            *current = CurrentCredentials::of(Arc::clone(latest));
        }
        current.clone()
    }
}

impl fmt::Debug for CredentialsReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialsReader").finish_non_exhaustive()
    }
}

/// Snapshot of the credentials, with the JWTs that one thread has verified. Stays on its thread.
#[derive(Clone)]
pub struct CurrentCredentials(Rc<VerifiedTokens>);

struct VerifiedTokens {
    credentials: Arc<Credentials>,
    /// Verified JWTs by hash.
    verified: RefCell<HashMap<[u8; 32], Proven>>,
}

impl CurrentCredentials {
    fn of(credentials: Arc<Credentials>) -> Self {
        Self(Rc::new(VerifiedTokens { credentials, verified: RefCell::default() }))
    }

    /// Whether both are the same snapshot.
    pub fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Authenticates a token at wall-clock time `now`.
    pub fn prove(&self, token: &[u8], now: SystemTime) -> Result<Proven, TokenRefused> {
        if token.len() > MAX_TOKEN_BYTES || token.starts_with(PREFIX.as_bytes()) {
            return self.0.credentials.prove(token, now);
        }
        let hash = *blake3::hash(token).as_bytes();
        if let Some(proof) = self.0.verified.borrow().get(&hash)
            && proof.holds(|| now)
        {
            return Ok(proof.clone());
        }
        let proof = self.0.credentials.prove(token, now)?;
        let mut verified = self.0.verified.borrow_mut();
        if verified.len() >= MAX_REMEMBERED {
            verified.clear();
        }
        verified.insert(hash, proof.clone());
        Ok(proof)
    }
}

impl std::ops::Deref for CurrentCredentials {
    type Target = Credentials;

    fn deref(&self) -> &Credentials {
        &self.0.credentials
    }
}

impl fmt::Debug for CurrentCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentCredentials").finish_non_exhaustive()
    }
}

/// Number of bytes of a hash used as the lookup key.
const FOUND_BY: usize = 16;

/// Immutable hash table of the agent tokens in force. Looked up by the first half of the secret's hash; the second
/// half is compared in constant time.
#[derive(Debug, Default)]
pub struct TokenTable {
    tokens: HashMap<[u8; FOUND_BY], InForce>,
    /// Lookup keys in `tokens` by token name, for rechecking known principals.
    names: HashMap<Box<str>, [u8; FOUND_BY]>,
}

#[derive(Debug)]
struct InForce {
    rest: [u8; 32 - FOUND_BY],
    token: Arc<AgentToken>,
    /// Expiry by the wall clock.
    expires: Option<SystemTime>,
}

impl TokenTable {
    pub fn new(kept: &[StoredToken]) -> Self {
        let of = |token: &StoredToken| {
            let (found_by, rest) = halves(&token.hash)?;
            let in_force = InForce { rest, token: agent_token(token), expires: token.ends() };
            Some((found_by, in_force))
        };
        let tokens: HashMap<_, _> = kept.iter().filter_map(of).collect();
        let names = tokens.iter().map(|(at, it)| (it.token.name().into(), *at)).collect();
        Self { tokens, names }
    }

    /// Whether `token` is valid at `now`, regardless of its current secret.
    pub(crate) fn has(&self, token: &AgentToken, now: SystemTime) -> bool {
        let found = self.names.get(token.name()).and_then(|at| self.tokens.get(at));
        found.is_some_and(|it| *it.token == *token && it.expires.is_none_or(|end| now < end))
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Authenticates a token at wall-clock time `now`. Expiry is checked every time, so that a corrected clock takes
    /// effect immediately.
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

fn agent_token(kept: &StoredToken) -> Arc<AgentToken> {
    Arc::new(AgentToken::new(&kept.name, kept.created, kept.scope()))
}

impl StoredToken {
    /// Scope of the token.
    pub fn scope(&self) -> Scope {
        Scope {
            servers: self.servers.clone(),
            tools: self.tools.iter().cloned().map(Pattern::from).collect(),
            operations: self.operations.clone(),
        }
    }

    /// Expiry; `None` if unlimited.
    fn ends(&self) -> Option<SystemTime> {
        let end = |seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        // An unrepresentable expiry counts as past.
        self.expires.map(|seconds| end(seconds).unwrap_or(UNIX_EPOCH))
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::identity::NewAgentToken;

    fn create(identity: &Identity, name: &str, byte: u8) -> String {
        let new = NewAgentToken { name: name.into(), ..NewAgentToken::default() };
        let change = identity.change(TokenChange::Create(new), [byte; 32], UNIX_EPOCH);
        let TokenChanged::Made(made) = change.unwrap() else { panic!() };
        made.secret.expose().to_owned()
    }

    #[test]
    fn token_change_applies_at_once_locally_and_after_a_reload_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, theirs] = [(), ()].map(|()| Identity::new(TokenFile::new(folder.path()), None));
        let (reader, elsewhere) = (ours.reader(), theirs.reader());
        let proves = |reader: &CredentialsReader, token: &str| {
            reader
                .current()
                .prove(token.as_bytes(), UNIX_EPOCH)
                .map(|it| it.principal.id().to_owned())
        };
        let before = reader.current();
        let token = create(&ours, "a", 1);
        assert!(!reader.current().is(&before), "earlier callers are rechecked");
        assert!(reader.current().is(&reader.current()));
        assert_eq!(proves(&reader, &token).unwrap(), "token:a");
        assert_eq!(proves(&elsewhere, &token), Err(TokenRefused::Unknown));
        assert!(theirs.reload_tokens().unwrap() && !theirs.reload_tokens().unwrap());
        assert_eq!(proves(&elsewhere, &token).unwrap(), "token:a");
        let other = create(&theirs, "b", 2);
        assert!(ours.reload_tokens().unwrap());
        ours.change(TokenChange::Revoke("a".into()), [0; 32], UNIX_EPOCH).unwrap();
        assert_eq!(proves(&reader, &token), Err(TokenRefused::Unknown));
        assert_eq!(proves(&reader, &other).unwrap(), "token:b");
        std::fs::write(folder.path().join("tokens.json"), "{").unwrap();
        assert!(ours.reload_tokens().is_err() && !ours.reload_tokens().unwrap());
        assert_eq!(proves(&reader, &other).unwrap(), "token:b", "tokens in force stay");
        assert!(!ours.token_fault().unwrap().refuses_all);
        std::fs::remove_file(folder.path().join("tokens.json")).unwrap();
        assert!(matches!(ours.reload_tokens(), Err(TokenFileError::Missing { .. })));
        let later = Identity::new(TokenFile::new(folder.path()), None);
        assert!(matches!(later.reload_tokens(), Err(TokenFileError::Missing { .. })), "at a start");
        assert!(later.token_fault().is_some() && !later.reload_tokens().unwrap());
        assert_eq!(proves(&reader, &other), Err(TokenRefused::Unknown));
        assert!(ours.token_fault().unwrap().refuses_all);
        std::fs::remove_file(folder.path().join("tokens.json.last-good")).unwrap();
        assert!(!ours.reload_tokens().unwrap() && ours.token_fault().is_none());
        let made = create(&ours, "c", 3);
        assert_eq!(proves(&reader, &made).unwrap(), "token:c");
        assert_eq!(ours.token_fault(), None);
    }

    #[test]
    fn cached_verification_expires_with_the_wall_clock() {
        let fixture: serde_json::Value =
            serde_json::from_str(include_str!("../../../tests/data/identity/rs256.json")).unwrap();
        let settings = crate::identity::Settings {
            issuer: "https://issuer.example".into(),
            audience: "mcp".into(),
            keys: crate::identity::KeySource::Url("https://issuer.example/jwks".into()),
            algorithms: vec![crate::identity::Algorithm::Rs256],
            groups_claim: "groups".into(),
        };
        let folder = tempfile::tempdir().unwrap();
        let verifier = JwtVerifier::new(settings);
        let identity = Identity::new(TokenFile::new(folder.path()), Some(verifier));
        let keys = KeySet::parse(fixture["jwks"].to_string().as_bytes()).unwrap();
        identity.set_keys(&keys);
        let current = identity.reader().current();
        let token = fixture["token"].as_str().unwrap().as_bytes();
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        for (now, counts) in [
            (1_800_000_000, true),
            (1_800_000_400, false),
            (1_800_000_000, true),
            (1_799_999_900, false),
            (1_800_000_359, true),
        ] {
            assert_eq!(current.prove(token, at(now)).is_ok(), counts, "{now}");
        }
        identity.set_keys(&KeySet::default());
        assert!(identity.reader().current().prove(token, at(1_800_000_000)).is_err(), "no key");
    }

    #[test]
    fn only_credentials_with_our_token_prefix_must_verify() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::new(TokenFile::new(folder.path()), None);
        let current = identity.reader().current();
        assert!(current.expect(b"mcpp_x") && !current.expect(b"another's"));
        let long = [PREFIX.as_bytes(), &[b'x'; MAX_TOKEN_BYTES]].concat();
        assert_eq!(current.prove(&long, UNIX_EPOCH), Err(TokenRefused::TooLong));
    }
}

#[cfg(test)]
mod token_table_tests {
    use std::time::Instant;

    use super::*;
    use crate::identity::{AgentSecret, MAX_TOKENS};
    use crate::intent::Operation;

    pub(super) fn kept(number: u32, expires: Option<u64>) -> (AgentSecret, StoredToken) {
        let mut random = [7; 32];
        random[..4].copy_from_slice(&number.to_be_bytes());
        let secret = AgentSecret::new(random);
        let token = StoredToken {
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
    fn token_authenticates_until_expiry() {
        let (secret, token) = kept(1, Some(100));
        let table = TokenTable::new(&[token]);
        let proof = table.prove(secret.expose().as_bytes(), at(99)).unwrap();
        assert_eq!((proof.principal.id(), proof.until), ("token:t1", Some(at(100))));
        let prove = |now| table.prove(secret.expose().as_bytes(), at(now)).err();
        assert_eq!(prove(100), Some(TokenRefused::Expired));
        assert_eq!(prove(99), None, "wall clock stepped back");
    }

    #[test]
    fn unknown_and_malformed_tokens_are_distinguished() {
        let table = TokenTable::new(&[kept(1, None).1]);
        let (secret, _) = kept(2, None);
        let refused = |token: &str| table.prove(token.as_bytes(), at(0)).unwrap_err();
        assert_eq!(refused(secret.expose()), TokenRefused::Unknown);
        assert_eq!(refused("mcpp_short"), TokenRefused::Malformed);
        // The first half of the hash is not sufficient.
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
        // Printed, not asserted: timing depends on the machine.
        println!("{:?} a token", began.elapsed() / MAX_TOKENS as u32);
    }
}
