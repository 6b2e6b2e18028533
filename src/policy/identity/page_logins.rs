//! Logins to the page at `/ui/`: one-time codes and browser sessions, in memory only, so that they end with the
//! process. Clock and randomness are arguments.
//!
//! ```text
//! code (in a terminal) ──exchanged once──▶ session (in a cookie) ─▶ ended: locked, idle, too old, evicted, key replaced
//! key (typed by hand)  ──exchanged───────▶
//! ```
//!
//! Only BLAKE3 hashes are kept: secrets are 256 random bits, which cannot be guessed. `admin` handles the cookies and
//! decides which requests a session authorizes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use subtle::{Choice, ConstantTimeEq};
use tokio::sync::watch;

/// Number of random bytes in a code and in a session secret.
pub const PAGE_SECRET_BYTES: usize = 32;
/// Number of base64 characters of a code or session secret.
const SECRET_CHARS: usize = 43;
/// Lifetime of a code.
pub const CODE_LIFE: Duration = Duration::from_secs(10 * 60);
/// Maximum number of codes; a new one replaces the oldest.
pub const MAX_CODES: usize = 16;
/// Idle time after which a session ends.
pub const SESSION_IDLE: Duration = Duration::from_secs(8 * 60 * 60);
/// Maximum lifetime of a session.
pub const SESSION_LIFE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Maximum number of sessions; a new one replaces the one that has been idle longest.
pub const MAX_SESSIONS: usize = 64;

type Hash = [u8; blake3::OUT_LEN];

/// A code or session secret, handed over once. `Debug` does not show it.
pub struct PageSecret(String);

impl std::fmt::Debug for PageSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PageSecret(…)")
    }
}

impl PageSecret {
    fn new(random: [u8; PAGE_SECRET_BYTES]) -> Self {
        Self(URL_SAFE_NO_PAD.encode(random))
    }

    /// The secret: letters, digits, `-` and `_`.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// A session as seen by one request.
#[derive(Clone, Debug)]
pub struct PageSession {
    /// Hash of the API key that the session is valid for.
    key: Hash,
    /// Channel that closes when the session ends, because the sender is dropped with the session.
    ended: watch::Receiver<()>,
    /// Latest time at which the session ends.
    pub until: Instant,
}

impl PageSession {
    /// Whether the session is valid for this API key.
    pub fn is_valid_for(&self, key: &str) -> bool {
        is(&self.key, &hash(key)).into()
    }

    /// Completes when the session ends for a reason other than its lifetime.
    pub async fn ended(&mut self) {
        while self.ended.changed().await.is_ok() {}
    }
}

/// All codes and sessions, valid only for the API key that was in force when they were made.
#[derive(Debug, Default)]
pub struct PageLogins(Mutex<LoginTable>);

#[derive(Debug, Default)]
struct LoginTable {
    codes: VecDeque<KeptCode>,
    sessions: Vec<KeptSession>,
}

#[derive(Debug)]
struct KeptCode {
    hash: Hash,
    key: Hash,
    until: Instant,
}

#[derive(Debug)]
struct KeptSession {
    hash: Hash,
    key: Hash,
    until: Instant,
    used: Instant,
    ended: watch::Sender<()>,
}

impl PageLogins {
    /// Creates a code, valid for [`CODE_LIFE`] while `key` is the API key.
    pub fn code(&self, key: &str, random: [u8; PAGE_SECRET_BYTES], now: Instant) -> PageSecret {
        let code = PageSecret::new(random);
        let mut kept = self.0.lock();
        kept.expire(now);
        if kept.codes.len() >= MAX_CODES {
            kept.codes.pop_front();
        }
        let (hash, key) = (hash(code.expose()), hash(key));
        kept.codes.push_back(KeptCode { hash, key, until: now + CODE_LIFE });
        code
    }

    /// Exchanges a code, once, for a session; `None` if the code is unknown or expired.
    pub fn exchange(
        &self,
        code: &str,
        key: &str,
        random: [u8; PAGE_SECRET_BYTES],
        now: Instant,
    ) -> Option<PageSecret> {
        let (given, key_hash) = (formed(code)?, hash(key));
        let mut kept = self.0.lock();
        kept.expire(now);
        let at = kept.codes.iter().position(|code| is(&code.hash, &given).into())?;
        let code = kept.codes.remove(at)?;
        bool::from(is(&code.key, &key_hash)).then(|| kept.open(key_hash, random, now))
    }

    /// Opens a session for a caller that presented the key.
    pub fn open(&self, key: &str, random: [u8; PAGE_SECRET_BYTES], now: Instant) -> PageSecret {
        let mut kept = self.0.lock();
        kept.expire(now);
        kept.open(hash(key), random, now)
    }

    /// Looks up a session by its secret and marks it as used; `None` if it does not exist.
    pub fn session(&self, secret: &str, key: &str, now: Instant) -> Option<PageSession> {
        let (given, key) = (formed(secret)?, hash(key));
        let mut kept = self.0.lock();
        kept.expire(now);
        // Sessions of a replaced API key end.
        kept.sessions.retain(|session| is(&session.key, &key).into());
        let found = kept.sessions.iter_mut().find(|session| is(&session.hash, &given).into())?;
        found.used = now;
        Some(PageSession { key, ended: found.ended.subscribe(), until: found.until })
    }

    pub fn end(&self, secret: &str) {
        let Some(given) = formed(secret) else { return };
        self.0.lock().sessions.retain(|session| !bool::from(is(&session.hash, &given)));
    }
}

impl LoginTable {
    fn expire(&mut self, now: Instant) {
        self.codes.retain(|code| now < code.until);
        let is_fresh = |used: Instant| now.saturating_duration_since(used) < SESSION_IDLE;
        self.sessions.retain(|session| now < session.until && is_fresh(session.used));
    }

    fn open(&mut self, key: Hash, random: [u8; PAGE_SECRET_BYTES], now: Instant) -> PageSecret {
        if self.sessions.len() >= MAX_SESSIONS {
            let idlest = self.sessions.iter().enumerate().min_by_key(|(_, session)| session.used);
            if let Some((at, _)) = idlest {
                self.sessions.swap_remove(at);
            }
        }
        let secret = PageSecret::new(random);
        self.sessions.push(KeptSession {
            hash: hash(secret.expose()),
            key,
            until: now + SESSION_LIFE,
            used: now,
            ended: watch::Sender::new(()),
        });
        secret
    }
}

fn hash(text: &str) -> Hash {
    *blake3::hash(text.as_bytes()).as_bytes()
}

/// Hash of the input; `None` if it is not shaped like a secret.
fn formed(given: &str) -> Option<Hash> {
    (given.len() == SECRET_CHARS).then(|| hash(given))
}

fn is(one: &Hash, other: &Hash) -> Choice {
    one.ct_eq(other)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const KEY: &str = "a-key";

    fn random(number: u8) -> [u8; PAGE_SECRET_BYTES] {
        [number; PAGE_SECRET_BYTES]
    }

    #[test]
    fn code_is_valid_once_within_its_lifetime_and_for_its_key() {
        let (logins, now) = (PageLogins::default(), Instant::now());
        let code = logins.code(KEY, random(1), now);
        assert_eq!((code.expose().len(), format!("{code:?}")), (43, "PageSecret(…)".to_owned()));
        let exchange = |code: &str, key: &str, now| logins.exchange(code, key, random(2), now);
        for guess in ["", "x", &code.expose()[1..], &PageSecret::new(random(3)).0] {
            assert!(exchange(guess, KEY, now).is_none(), "{guess}");
        }
        let session = exchange(code.expose(), KEY, now).unwrap();
        assert!(exchange(code.expose(), KEY, now).is_none(), "valid once");
        assert!(logins.session(session.expose(), KEY, now).is_some());
        assert!(logins.session(code.expose(), KEY, now).is_none(), "a code is not a session");
        let late = logins.code(KEY, random(4), now);
        assert!(exchange(late.expose(), KEY, now + CODE_LIFE).is_none());
        let other = logins.code(KEY, random(5), now);
        assert!(exchange(other.expose(), "another key", now).is_none());
        assert!(
            exchange(other.expose(), KEY, now).is_none(),
            "consumed by an attempt with another key"
        );
    }

    #[test]
    fn session_ends_by_idleness_age_logout_and_key_change() {
        let (logins, now) = (PageLogins::default(), Instant::now());
        let holds = |secret: &PageSecret, key: &str, now| logins.session(secret.expose(), key, now);
        let idle = logins.open(KEY, random(1), now);
        assert!(holds(&idle, KEY, now + SESSION_IDLE - Duration::from_secs(1)).is_some());
        assert!(holds(&idle, KEY, now + SESSION_IDLE).is_some(), "it was used meanwhile");
        assert!(holds(&idle, KEY, now + 2 * SESSION_IDLE).is_none());
        let old = logins.open(KEY, random(2), now);
        let mut at = now;
        while at < now + SESSION_LIFE {
            assert!(holds(&old, KEY, at).is_some());
            at += SESSION_IDLE / 2;
        }
        assert!(holds(&old, KEY, now + SESSION_LIFE).is_none());
        let locked = logins.open(KEY, random(3), now);
        let mut seen = holds(&locked, KEY, now).unwrap();
        assert!(seen.ended().now_or_never().is_none());
        logins.end(locked.expose());
        assert!(seen.ended().now_or_never().is_some(), "waiters are notified");
        assert!(holds(&locked, KEY, now).is_none());
        let keyed = logins.open(KEY, random(4), now);
        assert!(holds(&keyed, "another key", now).is_none());
        assert!(holds(&keyed, KEY, now).is_none(), "not even when the key is restored");
    }

    #[test]
    fn codes_and_sessions_are_bounded() {
        let (logins, now) = (PageLogins::default(), Instant::now());
        let second = |number: u8| now + Duration::from_secs(number.into());
        let codes: Vec<_> =
            (0..=MAX_CODES as u8).map(|number| logins.code(KEY, random(number), now)).collect();
        assert!(logins.exchange(codes[0].expose(), KEY, random(99), now).is_none());
        assert!(logins.exchange(codes[1].expose(), KEY, random(99), now).is_some());
        let sessions: Vec<_> = (0..MAX_SESSIONS as u8)
            .map(|number| logins.open(KEY, random(number), second(number + 1)))
            .collect();
        let until = second(MAX_SESSIONS as u8 + 1);
        assert!(logins.session(sessions[0].expose(), KEY, until).is_some(), "used last");
        let another = logins.open(KEY, random(200), until);
        assert!(logins.session(sessions[1].expose(), KEY, until).is_none(), "idle longest");
        for session in [&sessions[0], &sessions[2], &another] {
            assert!(logins.session(session.expose(), KEY, until).is_some());
        }
        assert_eq!(logins.0.lock().sessions.len(), MAX_SESSIONS);
    }
}
