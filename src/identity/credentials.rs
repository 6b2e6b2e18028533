//! What requests prove themselves by at one moment, behind one swap; and how it is changed.
//!
//! A worker reads it as it reads its settings: one pointer that is written at a change only, no lock, no atomic step of
//! its own. What it has verified it remembers until something changes, so that a token is not verified for each request.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::{ArcSwap, Cache};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::agent_secret::PREFIX;
use super::change::{TokenChange, TokenChangeError, TokenChanged};
use super::jwt::{JwtVerifier, Settings};
use super::key_set::KeySet;
use super::proven::{MAX_TOKEN_BYTES, Proven, TokenRefused};
use super::token_file::{FileStamp, KeptToken, TokenFile, TokenFileError};
use super::token_table::TokenTable;
use crate::policy::Principal;

/// Longest wait of a request for the keys of its issuer, should it be signed with one that is not known yet.
const KEYS_WAIT: Duration = Duration::from_secs(3);
/// Most verified tokens that one worker remembers.
const MAX_REMEMBERED: usize = 1024;

/// What requests prove themselves by at one moment. Immutable.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    tokens: Arc<TokenTable>,
    jwt: Option<Arc<JwtVerifier>>,
}

impl Credentials {
    /// True if `token` is meant for what is asked here, and so must prove something: an agent token, or any where JWTs
    /// are awaited.
    #[must_use]
    pub fn expect(&self, token: &[u8]) -> bool {
        token.starts_with(PREFIX.as_bytes()) || self.jwt.is_some()
    }

    /// What JWTs are verified by, if they are awaited.
    #[must_use]
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

/// Who there is, for all workers: what is in force, the file of agent tokens, and the wish for other keys.
#[derive(Debug)]
pub struct Identity {
    in_force: Arc<ArcSwap<Credentials>>,
    file: TokenFile,
    /// Held while the file is read or written; the state of the file that is in force.
    seen: Mutex<Option<FileStamp>>,
    keys_wanted: Notify,
    tokens_changed: Notify,
    /// Counts the answers to that wish.
    keys_asked: watch::Sender<u64>,
}

impl Identity {
    /// The tokens of `file`, none of them in force before [`Self::reload_tokens`], and the JWTs that `jwt` verifies.
    #[must_use]
    pub fn new(file: TokenFile, jwt: Option<JwtVerifier>) -> Self {
        let credentials = Credentials { tokens: Arc::default(), jwt: jwt.map(Arc::new) };
        Self {
            in_force: Arc::new(ArcSwap::from_pointee(credentials)),
            file,
            seen: Mutex::new(None),
            keys_wanted: Notify::new(),
            tokens_changed: Notify::new(),
            keys_asked: watch::Sender::new(0),
        }
    }

    /// A reader for one thread.
    #[must_use]
    pub fn reader(&self) -> CredentialsReader {
        let current = CurrentCredentials::of(self.in_force.load_full());
        let cache = Cache::new(Arc::clone(&self.in_force));
        CredentialsReader(RefCell::new(Seen { cache, current }))
    }

    /// Puts what is in the file in force, if it is another file than before; true if it was. Blocks.
    ///
    /// # Errors
    /// [`TokenFileError`]; what was in force stays. It is told once for each state of the file.
    pub fn reload_tokens(&self) -> Result<bool, TokenFileError> {
        let mut seen = self.seen.lock();
        let stamp = self.file.stamp();
        if *seen == stamp {
            return Ok(false);
        }
        *seen = stamp;
        self.put(&self.file.load()?);
        Ok(true)
    }

    /// Changes the agent tokens, on disk and then in force. Blocks.
    ///
    /// # Errors
    /// [`TokenChangeError`]; nothing is changed.
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

    /// Replaces the agent tokens by what `next` makes of them, on disk and then in force, while nobody else changes them;
    /// it is given `None` where there is no file. True if they are others. Blocks.
    ///
    /// # Errors
    /// [`TokenFileError`]; what was in force stays.
    pub fn reconcile(
        &self,
        next: impl FnOnce(Option<&[KeptToken]>) -> Vec<KeptToken>,
    ) -> Result<bool, TokenFileError> {
        let mut seen = self.seen.lock();
        let _lock = self.file.lock()?;
        let there = self.file.stamp().map(|_| self.file.load()).transpose()?;
        let tokens = next(there.as_deref());
        if there.unwrap_or_default() == tokens {
            return Ok(false);
        }
        self.file.save(tokens.clone())?;
        self.put(&tokens);
        *seen = self.file.stamp();
        Ok(true)
    }

    /// The state of the file of agent tokens; `None` if there is none.
    #[must_use]
    pub fn token_stamp(&self) -> Option<FileStamp> {
        self.file.stamp()
    }

    /// Waits until this process has changed the agent tokens.
    pub async fn tokens_changed(&self) {
        self.tokens_changed.notified().await;
    }

    /// The agent tokens that are kept, in the order of their names. Blocks.
    ///
    /// # Errors
    /// [`TokenFileError`]
    pub fn kept(&self) -> Result<Vec<KeptToken>, TokenFileError> {
        self.file.load()
    }

    fn put(&self, tokens: &[KeptToken]) {
        let tokens = Arc::new(TokenTable::new(tokens));
        self.in_force.rcu(|old| Credentials { tokens: Arc::clone(&tokens), jwt: old.jwt.clone() });
    }

    /// True if `principal` is still one: whoever has a stream open, or a request that waits, may have lost its token
    /// since, or the JWT's time may be up.
    #[must_use]
    pub fn in_force(&self, principal: &Principal, now: SystemTime) -> bool {
        match principal {
            Principal::Anonymous | Principal::Admin | Principal::Certificate(_) => true,
            Principal::Subject(subject) => now < subject.until(),
            Principal::Token(token) => self.in_force.load().tokens.has(token, now),
        }
    }

    /// From now on JWTs are verified so, or are none. Keys that came from the same source stay; of another one `keys` are
    /// those that could be had.
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
    }

    /// From now on JWTs are verified by these keys.
    pub fn set_keys(&self, keys: &KeySet) {
        self.in_force.rcu(|old| {
            let jwt = old.jwt.as_ref().map(|jwt| Arc::new(jwt.with_keys(keys.clone())));
            Credentials { tokens: Arc::clone(&old.tokens), jwt }
        });
    }

    /// What JWTs are verified by, if they are awaited.
    #[must_use]
    pub fn jwt(&self) -> Option<Arc<JwtVerifier>> {
        self.in_force.load().jwt.clone()
    }

    /// Wishes for the present keys of the issuer, and waits until they were asked for, bounded.
    pub async fn renew_keys(&self) {
        let mut asked = self.keys_asked.subscribe();
        self.keys_wanted.notify_one();
        let _ = tokio::time::timeout(KEYS_WAIT, asked.changed()).await;
    }

    /// Waits for such a wish.
    pub async fn keys_wanted(&self) {
        self.keys_wanted.notified().await;
    }

    /// Tells those who wait that the keys are now as they can be had.
    pub fn keys_asked(&self) {
        self.keys_asked.send_modify(|count| *count += 1);
    }
}

/// What one thread reads the credentials through.
pub struct CredentialsReader(RefCell<Seen>);

struct Seen {
    cache: Cache<Arc<ArcSwap<Credentials>>, Arc<Credentials>>,
    current: CurrentCredentials,
}

impl CredentialsReader {
    /// What is in force at this moment.
    #[must_use]
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

/// What is in force at one moment, with what one thread has verified by it. Stays on its thread.
#[derive(Clone)]
pub struct CurrentCredentials(Rc<Remembering>);

struct Remembering {
    credentials: Arc<Credentials>,
    /// JWTs by their hashes.
    verified: RefCell<HashMap<[u8; 32], Proven>>,
}

impl CurrentCredentials {
    fn of(credentials: Arc<Credentials>) -> Self {
        Self(Rc::new(Remembering { credentials, verified: RefCell::default() }))
    }

    /// True if nothing was changed between the two.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// Whom a token proves at the moment `now` of the clock on the wall.
    ///
    /// # Errors
    /// [`TokenRefused`].
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
    fn a_change_is_in_force_at_once_here_and_after_a_look_at_the_file_elsewhere() {
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
        assert!(!reader.current().is(&before), "who was admitted before is looked at again");
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
        assert_eq!(proves(&reader, &other).unwrap(), "token:b", "what was in force stays");
        std::fs::remove_file(folder.path().join("tokens.json")).unwrap();
        assert!(ours.reload_tokens().unwrap());
        assert_eq!(proves(&reader, &other), Err(TokenRefused::Unknown));
    }

    #[test]
    fn what_was_verified_once_still_ends_with_its_time_whichever_way_the_clock_goes() {
        let fixture: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/data/identity/rs256.json")).unwrap();
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
    fn only_what_is_meant_for_us_must_prove_something() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::new(TokenFile::new(folder.path()), None);
        let current = identity.reader().current();
        assert!(current.expect(b"mcpp_x") && !current.expect(b"another's"));
        let long = [PREFIX.as_bytes(), &[b'x'; MAX_TOKEN_BYTES]].concat();
        assert_eq!(current.prove(&long, UNIX_EPOCH), Err(TokenRefused::TooLong));
    }
}
