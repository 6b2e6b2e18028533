//! One server's tokens while the proxy runs: what its session carries, and when that changes.
//!
//! The server's own task asks here, so tokens are renewed once however many calls there are; other
//! processes are kept apart by the store's lock. A login or logout from the command line is seen
//! by the file it changes.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_util::task::TaskTracker;

use super::challenge::{Challenge, Challenges, needs_login, needs_scopes, union};
use super::renewal::{NotRenewed, moved, renew};
use super::store::{Grant, Stamp, TokenStore};
use super::token_response::seconds;
use crate::io::address::UNIX;
use crate::upstream::config::{Config, Target};
use crate::upstream::peer::Peer;

/// How often it is looked whether the file is another.
const LOOK: Duration = Duration::from_secs(1);
/// Tokens are renewed this long before they end, or a fifth of their life if that is less.
const MARGIN_SECONDS: u64 = 60;
/// Tokens are not renewed more often than this, however short their life.
const MIN_SECONDS: u64 = 3;
/// How long to wait before a renewal that could not be asked for is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// Tokens in a row that a server may refuse before they are not renewed any more: each is one
/// renewal.
const MAX_REFUSED: u32 = 3;
/// Logins in a row that may ask for the same scopes. A server that still wants them then wants
/// what no login gives.
const MAX_STEP_UPS: u32 = 2;

/// The tokens of one server.
#[derive(Clone)]
pub(in crate::upstream) struct LoginTokens {
    peer: Arc<Peer>,
    url: String,
    store: TokenStore,
    tls: Arc<OnceLock<TlsConnector>>,
    asked: Arc<Challenges>,
    refused: Arc<Mutex<Refused>>,
    /// Renewals under way: whoever waits for one may go away, the authorization server has taken
    /// the old token by then, and the new one must be kept.
    renewals: TaskTracker,
}

/// Tokens of a server that it refused, one after the other.
#[derive(Default)]
struct Refused {
    last: Option<String>,
    /// What the last one was renewed to.
    renewed: Option<String>,
    count: u32,
}

impl Refused {
    /// Whether it was this one that was refused. A token that no renewal gave is a person's, who
    /// has logged in: what was refused before counts no more.
    fn is(&mut self, token: &str) -> bool {
        let is = |of: &Option<String>| of.as_deref() == Some(token);
        let (last, renewed) = (is(&self.last), is(&self.renewed));
        if !last && !renewed {
            *self = Self::default();
        }
        last
    }
}

/// What a session carries.
#[derive(Clone)]
pub(in crate::upstream) struct Bearer {
    /// `Authorization`, marked as a secret.
    pub(in crate::upstream) header: HeaderValue,
    token: String,
    /// When to renew, in seconds since 1970.
    renew_at: Option<u64>,
    stamp: Option<Stamp>,
}

impl Bearer {
    fn is(&self, other: &Self) -> bool {
        (&self.token, self.renew_at) == (&other.token, other.renew_at)
    }
}

/// What a challenge comes to.
pub(in crate::upstream) enum Heeded {
    /// Nothing was asked, or nothing that matters still.
    Nothing,
    /// The connection's token is no good.
    Refused,
    /// The login lacks something, or there is none: in one line.
    Lacks(Arc<str>),
}

/// What has become of a session's token.
pub(in crate::upstream) enum Renewal {
    /// There is another.
    Bearer(Bearer),
    /// The connection is not to go on as it is, for this reason: there is none any more, or one
    /// where there was none.
    Gone(String),
}

/// A wait for what becomes of a connection's token.
pub(in crate::upstream) type Renewing = Pin<Box<dyn Future<Output = Renewal> + Send>>;

/// What becomes of a connection's token, or that there is one where there was none; never anything
/// of a server that has no login.
pub(in crate::upstream) fn renewal(
    login: Option<&LoginTokens>,
    bearer: Option<Bearer>,
) -> Renewing {
    match (login.cloned(), bearer) {
        (Some(login), Some(bearer)) => Box::pin(async move { login.renewal(&bearer).await }),
        (Some(login), None) => Box::pin(async move { login.first().await }),
        (None, _) => Box::pin(std::future::pending()),
    }
}

/// Resolves when a server has challenged a request, or never.
pub(in crate::upstream) async fn challenged(login: Option<&LoginTokens>) {
    match login {
        Some(login) => login.asked.told().await,
        None => std::future::pending().await,
    }
}

/// Resolves when somebody has logged in or out, or never.
pub(in crate::upstream) async fn changed(login: Option<&LoginTokens>) {
    match login {
        Some(login) => login.changed().await,
        None => std::future::pending().await,
    }
}

impl LoginTokens {
    /// The login of a server that can have one: reached by HTTP, and not given its authorization
    /// by the operator.
    pub(in crate::upstream) fn of(
        peer: &Arc<Peer>,
        config: &Config,
        target: &Target,
        tls: &Arc<OnceLock<TlsConnector>>,
    ) -> Option<Self> {
        let (Target::Http { url, headers }, Some(folder)) = (target, &config.data_dir) else {
            return None;
        };
        if url.starts_with(UNIX) {
            // A login is with whoever a URL of the web leads to.
            return None;
        }
        let given = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let store = TokenStore::new(folder, &peer.name);
        (!given).then(|| Self::new(Arc::clone(peer), url, store, Arc::clone(tls)))
    }

    fn new(
        peer: Arc<Peer>,
        url: &str,
        store: TokenStore,
        tls: Arc<OnceLock<TlsConnector>>,
    ) -> Self {
        // As the login has written it.
        let url = url::Url::parse(url).map_or_else(|_| url.to_owned(), |url| url.to_string());
        let asked = Arc::new(Challenges::new(peer.name.clone()));
        let renewals = TaskTracker::new();
        Self { peer, url, store, tls, asked, refused: Arc::default(), renewals }
    }

    /// Where the server's challenges are left.
    pub(in crate::upstream) fn asked(&self) -> &Arc<Challenges> {
        &self.asked
    }

    /// What is wrong with the login though the server is connected; empty if nothing is.
    pub(in crate::upstream) fn notice(&self) -> Arc<str> {
        self.asked.notice()
    }

    /// Takes up the challenge that was left last, for a connection that goes with `bearer`. One for
    /// scopes is remembered until the next login, which asks for them.
    pub(in crate::upstream) async fn heed(&self, bearer: Option<&Bearer>) -> Heeded {
        let notice = match self.asked.take() {
            None => return Heeded::Nothing,
            Some(Challenge::Token(sent)) => match (sent, bearer) {
                (Some(sent), Some(bearer)) if sent == bearer.header => return Heeded::Refused,
                // The connection has another by now.
                (Some(_), _) | (None, Some(_)) => return Heeded::Nothing,
                (None, None) => needs_login(&self.peer.name),
            },
            Some(Challenge::Scopes(scopes)) => {
                let guard = self.clone();
                let kept = tokio::task::spawn_blocking(move || guard.want(&scopes)).await;
                match kept.map_err(|error| error.to_string()).flatten() {
                    Ok(notice) => notice,
                    Err(error) => {
                        tracing::warn!(server = %self.peer.name, "what it asks for is not kept: {error}");
                        return Heeded::Nothing;
                    }
                }
            }
        };
        let notice: Arc<str> = notice.into();
        self.asked.set_notice(notice.clone());
        Heeded::Lacks(notice)
    }

    /// Keeps the scopes that a request was refused for; what that comes to. It blocks.
    fn want(&self, scopes: &[String]) -> Result<String, String> {
        if scopes.is_empty() {
            return Ok(needs_scopes(&self.peer.name, scopes));
        }
        let _lock = self.store.lock().map_err(|error| error.to_string())?;
        let grant = self.store.load().map_err(|error| error.to_string())?;
        let Some(mut grant) = grant.filter(|grant| grant.url == self.url && grant.is_login())
        else {
            return Ok(needs_scopes(&self.peer.name, scopes));
        };
        let wanted = union(grant.wanted.iter().chain(scopes).cloned());
        if wanted != grant.wanted {
            // Counted once a login, at the first request that is refused for what it asked for.
            let again = scopes.iter().all(|scope| grant.requested.contains(scope));
            grant.fruitless += u32::from(again && !grant.asked_in_vain());
            grant.wanted = wanted;
            self.store.save(&grant).map_err(|error| error.to_string())?;
        }
        Ok(notice(&self.peer.name, &grant))
    }

    /// The server has refused a token; whether renewing it is worth trying.
    pub(in crate::upstream) fn refuse(&self, bearer: &Bearer) -> bool {
        let mut refused = self.refused();
        refused.last = Some(bearer.token.clone());
        refused.count = refused.count.saturating_add(1);
        refused.count <= MAX_REFUSED
    }

    /// A token has held for long: what was refused before it counts no more.
    pub(in crate::upstream) fn held(&self) {
        *self.refused() = Refused::default();
    }

    fn refused(&self) -> MutexGuard<'_, Refused> {
        self.refused.lock()
    }

    /// The token to go with, renewed if it is about to end or was refused; `None` if there was no
    /// login. The error is one line.
    pub(in crate::upstream) async fn bearer(&self) -> Result<Option<Bearer>, String> {
        let Some((grant, stamp)) = self.load().await? else { return Ok(None) };
        let bearer = bearer(&grant, stamp);
        let (was_refused, count) = {
            let mut refused = self.refused();
            (refused.is(&bearer.token), refused.count)
        };
        if was_refused && count > MAX_REFUSED {
            let needs_login = needs_login(&self.peer.name);
            return Err(format!("it refused {count} tokens one after the other; {needs_login}"));
        }
        if !was_refused && bearer.renew_at.is_none_or(|at| seconds() < at) {
            return Ok(Some(bearer));
        }
        let this = self.clone();
        let renewal = async move {
            let renewed = this.renew(&bearer, was_refused).await?;
            this.refused().renewed = Some(renewed.token.clone());
            Ok(renewed)
        };
        let renewed = self.renewals.spawn(renewal).await;
        renewed.map_err(|error| error.to_string()).flatten().map(Some)
    }

    /// Waits until no renewal is under way, `deadline` at the latest.
    pub(in crate::upstream) async fn end(&self, deadline: Instant) {
        self.renewals.close();
        if timeout_at(deadline, self.renewals.wait()).await.is_err() {
            tracing::warn!(server = %self.peer.name, "its token was being renewed and is perhaps lost: log in again if it is refused");
        }
    }

    /// Waits until the token of a session is to be replaced.
    pub(in crate::upstream) async fn renewal(&self, current: &Bearer) -> Renewal {
        let mut seen = current.stamp;
        let mut told = String::new();
        loop {
            tokio::time::sleep(LOOK).await;
            let due = current.renew_at.is_some_and(|at| seconds() >= at);
            let stamp = self.stamp().await;
            if !due && stamp == seen {
                continue;
            }
            seen = stamp;
            match self.bearer().await {
                Ok(Some(bearer)) if bearer.is(current) => {}
                Ok(Some(bearer)) => return Renewal::Bearer(bearer),
                Ok(None) => return Renewal::Gone(needs_login(&self.peer.name)),
                Err(reason) if self.ended(current) => return Renewal::Gone(reason),
                Err(reason) => {
                    if told != reason {
                        tracing::warn!(server = %self.peer.name, "its token cannot be renewed yet: {reason}");
                        told = reason;
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    /// Waits until somebody logs in where nobody was.
    async fn first(&self) -> Renewal {
        let mut seen = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let stamp = self.stamp().await;
            if std::mem::replace(&mut seen, stamp) != stamp
                && matches!(self.load().await, Ok(Some(_)))
            {
                return Renewal::Gone("somebody has logged in".to_owned());
            }
        }
    }

    /// Waits until somebody logs in or out.
    async fn changed(&self) {
        let before = self.stamp().await;
        while self.stamp().await == before {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Whether the token is of no use any more: the file is gone, or it has ended.
    fn ended(&self, current: &Bearer) -> bool {
        self.store.stamp().is_none()
            || current.renew_at.is_some_and(|at| seconds() >= at + MARGIN_SECONDS)
    }

    async fn stamp(&self) -> Option<Stamp> {
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || store.stamp()).await.ok().flatten()
    }

    async fn load(&self) -> Result<Option<(Grant, Option<Stamp>)>, String> {
        let (store, peer, url) = (self.store.clone(), self.peer.clone(), self.url.clone());
        let load = move || {
            let stamp = store.stamp();
            let grant = store.load().map_err(|error| error.to_string())?;
            let Some(grant) = grant.filter(Grant::is_login) else { return Ok(None) };
            peer.secrets.learn(grant.secrets());
            // Its tokens are for the place they were given for.
            match grant.url == url {
                true => Ok(Some((grant, stamp))),
                false => Err(format!("its url has changed since; {}", needs_login(&peer.name))),
            }
        };
        let loaded = tokio::task::spawn_blocking(load).await.map_err(|error| error.to_string())?;
        let grant = loaded.as_ref().ok().and_then(Option::as_ref);
        let notice = grant.map(|(grant, _)| notice(&self.peer.name, grant));
        self.asked.set_notice(notice.unwrap_or_default().into());
        loaded
    }

    /// Renews the token, unless someone else has meanwhile. Whose token was refused may have gone
    /// to another authorization server, where this one's login counts for nothing.
    async fn renew(&self, old: &Bearer, refused: bool) -> Result<Bearer, String> {
        let store = self.store.clone();
        let lock = tokio::task::spawn_blocking(move || store.lock()).await;
        let _lock = lock.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        let Some((grant, stamp)) = self.load().await? else {
            return Err(needs_login(&self.peer.name));
        };
        if grant.access_token != old.token {
            return Ok(bearer(&grant, stamp));
        }
        let store = self.store.clone();
        let end = async |grant: Grant| {
            let save = move || store.save(&grant.ended());
            if let Ok(Err(error)) = tokio::task::spawn_blocking(save).await {
                tracing::warn!(server = %self.peer.name, "a token of no use is still kept: {error}");
            }
            needs_login(&self.peer.name)
        };
        if refused && moved(&grant, &self.tls).await {
            let needs_login = end(grant).await;
            return Err(format!("its authorization server is another now; {needs_login}"));
        }
        match renew(&grant, &self.tls).await {
            Ok(renewed) => {
                self.peer.secrets.learn(renewed.secrets());
                let store = self.store.clone();
                let save = move || {
                    store.save(&renewed).map_err(|error| error.to_string())?;
                    Ok(bearer(&renewed, store.stamp()))
                };
                tokio::task::spawn_blocking(save).await.map_err(|error| error.to_string())?
            }
            Err(NotRenewed::Refused) => Err(end(grant).await),
            Err(NotRenewed::Failed(reason)) => {
                Err(format!("its token cannot be renewed: {}", self.peer.quote(reason)))
            }
        }
    }
}

/// What a login lacks; empty if it lacks nothing.
fn notice(server: &str, grant: &Grant) -> String {
    match grant.wanted.as_slice() {
        [] => String::new(),
        wanted if grant.fruitless >= MAX_STEP_UPS => format!(
            "it asks for scope {} though {} logins have asked for it: no login helps",
            wanted.join(" "),
            grant.fruitless
        ),
        wanted => needs_scopes(server, wanted),
    }
}

fn bearer(grant: &Grant, stamp: Option<Stamp>) -> Bearer {
    let header = format!("Bearer {}", grant.access_token);
    // It was checked when it came.
    let mut header = HeaderValue::from_str(&header).unwrap_or(HeaderValue::from_static(""));
    header.set_sensitive(true);
    let renew_at = grant.expires_at.map(|end| {
        let life = end.saturating_sub(grant.received_at);
        end.saturating_sub(MARGIN_SECONDS.min(life / 5)).max(grant.received_at + MIN_SECONDS)
    });
    Bearer { header, token: grant.access_token.clone(), renew_at, stamp }
}

#[cfg(test)]
mod tests {
    use super::super::store::tests::grant;
    use super::*;

    fn guard(folder: &std::path::Path, url: &str) -> LoginTokens {
        LoginTokens::new(Arc::default(), url, TokenStore::new(folder, "s"), Arc::default())
    }

    #[tokio::test]
    async fn a_token_is_for_the_url_it_was_given_for() {
        let folder = tempfile::tempdir().unwrap();
        let here = guard(folder.path(), "https://a.example/mcp");
        assert!(here.bearer().await.unwrap().is_none());
        here.store.save(&grant("https://a.example/mcp", "t1")).unwrap();
        let bearer = here.bearer().await.unwrap().unwrap();
        assert_eq!(bearer.header, "Bearer t1");
        assert!(!format!("{:?}", bearer.header).contains("t1"));
        let there = guard(folder.path(), "https://b.example/mcp");
        let reason = there.bearer().await.err().unwrap();
        assert!(reason.contains("mcpproxy upstream login s"), "{reason}");
    }

    #[tokio::test]
    async fn a_token_is_secret_from_when_it_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let guard = guard(folder.path(), "https://a.example/mcp");
        for token in ["first-token", "second-token"] {
            let mut grant = grant("https://a.example/mcp", token);
            grant.refresh_token = Some(format!("to-renew-{token}"));
            guard.store.save(&grant).unwrap();
            guard.bearer().await.unwrap();
            let words = format!("{token} to-renew-{token} first-token");
            assert_eq!(&*guard.peer.quote(words), "[redacted] [redacted] [redacted]");
        }
    }

    #[test]
    fn tokens_are_renewed_before_they_end() {
        let at = |life: Option<u64>| {
            let mut grant = grant("https://a.example/mcp", "t1");
            grant.received_at = 1000;
            grant.expires_at = life.map(|life| 1000 + life);
            bearer(&grant, None).renew_at
        };
        assert_eq!(at(Some(3600)), Some(1000 + 3540));
        assert_eq!(at(Some(10)), Some(1008));
        assert_eq!(at(Some(0)), Some(1003));
        assert_eq!(at(None), None);
    }

    #[tokio::test]
    async fn an_ended_token_that_cannot_be_renewed_needs_a_login() {
        let folder = tempfile::tempdir().unwrap();
        let guard = guard(folder.path(), "https://a.example/mcp");
        let mut ended = grant("https://a.example/mcp", "t1");
        ended.expires_at = Some(2);
        ended.refresh_token = None;
        guard.store.save(&ended).unwrap();
        let reason = guard.bearer().await.err().unwrap();
        assert_eq!(reason, "needs login: run mcpproxy upstream login s");
        let kept = guard.store.load().unwrap().unwrap();
        assert!(!kept.is_login() && kept.client_secret.is_none(), "no token is kept of it");
        assert!(guard.bearer().await.unwrap().is_none());
    }
}
