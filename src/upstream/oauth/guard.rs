//! One server's tokens while the proxy runs: what its session carries, and when that changes.
//!
//! The server's own task asks here, so tokens are renewed once however many calls there are; other
//! processes are kept apart by the store's lock. A login or logout from the command line is seen
//! by the file it changes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderValue;
use tokio_rustls::TlsConnector;

use super::flow::{NotRenewed, renew, seconds};
use super::needs_login;
use super::store::{Grant, Stamp, Store};
use crate::upstream::config::{Config, Invalid, Target};

/// How often it is looked whether the file is another.
const LOOK: Duration = Duration::from_secs(1);
/// Tokens are renewed this long before they end, or a fifth of their life if that is less.
const MARGIN_SECONDS: u64 = 60;
/// Tokens are not renewed more often than this, however short their life.
const MIN_SECONDS: u64 = 3;
/// How long to wait before a renewal that could not be asked for is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// The tokens of one server.
#[derive(Clone)]
pub(in crate::upstream) struct Guard {
    server: Arc<str>,
    url: String,
    store: Store,
    tls: Arc<OnceLock<TlsConnector>>,
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

/// What has become of a session's token.
pub(in crate::upstream) enum Renewal {
    /// There is another.
    Bearer(Bearer),
    /// There is none any more, for this reason.
    Gone(String),
}

/// Resolves when somebody has logged in or out, or never.
pub(in crate::upstream) async fn changed(login: Option<&Guard>) {
    match login {
        Some(login) => login.changed().await,
        None => std::future::pending().await,
    }
}

impl Guard {
    /// The login of a server that can have one: reached by HTTP, and not given its authorization
    /// by the operator.
    pub(in crate::upstream) fn of(
        name: &Arc<str>,
        config: &Config,
        target: &Result<Target, Invalid>,
        tls: &Arc<OnceLock<TlsConnector>>,
    ) -> Option<Self> {
        let (Ok(Target::Http { url, headers }), Some(folder)) = (target, &config.data_dir) else {
            return None;
        };
        let given = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let store = Store::new(folder, name);
        (!given).then(|| Self::new(Arc::clone(name), url, store, Arc::clone(tls)))
    }

    fn new(server: Arc<str>, url: &str, store: Store, tls: Arc<OnceLock<TlsConnector>>) -> Self {
        // As the login has written it.
        let url = url::Url::parse(url).map_or_else(|_| url.to_owned(), |url| url.to_string());
        Self { server, url, store, tls }
    }

    /// The token to go with, renewed if it is about to end or was `refused`; `None` if there was
    /// no login. The error is one line.
    pub(in crate::upstream) async fn bearer(
        &self,
        refused: Option<&Bearer>,
    ) -> Result<Option<Bearer>, String> {
        let Some((grant, stamp)) = self.load().await? else { return Ok(None) };
        let bearer = bearer(&grant, stamp);
        let was_refused = refused.is_some_and(|refused| refused.token == bearer.token);
        if !was_refused && bearer.renew_at.is_none_or(|at| seconds() < at) {
            return Ok(Some(bearer));
        }
        self.renew(&bearer).await.map(Some)
    }

    /// Waits until the token of a session is to be replaced.
    pub(in crate::upstream) async fn renewal(&self, current: &Bearer) -> Renewal {
        let mut seen = current.stamp;
        loop {
            tokio::time::sleep(LOOK).await;
            let due = current.renew_at.is_some_and(|at| seconds() >= at);
            let stamp = self.stamp().await;
            if !due && stamp == seen {
                continue;
            }
            seen = stamp;
            match self.bearer(None).await {
                Ok(Some(bearer)) if bearer.is(current) => {}
                Ok(Some(bearer)) => return Renewal::Bearer(bearer),
                Ok(None) => return Renewal::Gone(needs_login(&self.server)),
                Err(reason) if self.ended(current) => return Renewal::Gone(reason),
                Err(reason) => {
                    tracing::warn!(server = %self.server, "its token cannot be renewed yet: {reason}");
                    tokio::time::sleep(RETRY).await;
                }
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
        let (store, server, url) = (self.store.clone(), self.server.clone(), self.url.clone());
        let load = move || {
            let stamp = store.stamp();
            let grant = store.load().map_err(|error| error.to_string())?;
            let Some(grant) = grant else { return Ok(None) };
            // Its tokens are for the place they were given for.
            match grant.url == url {
                true => Ok(Some((grant, stamp))),
                false => Err(format!("its url has changed since; {}", needs_login(&server))),
            }
        };
        tokio::task::spawn_blocking(load).await.map_err(|error| error.to_string())?
    }

    /// Renews the token, unless someone else has meanwhile.
    async fn renew(&self, old: &Bearer) -> Result<Bearer, String> {
        let store = self.store.clone();
        let lock = tokio::task::spawn_blocking(move || store.lock()).await;
        let _lock = lock.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        let Some((grant, stamp)) = self.load().await? else {
            return Err(needs_login(&self.server));
        };
        if grant.access_token != old.token {
            return Ok(bearer(&grant, stamp));
        }
        let store = self.store.clone();
        match renew(&grant, &self.tls).await {
            Ok(renewed) => {
                let save = move || {
                    store.save(&renewed).map_err(|error| error.to_string())?;
                    Ok(bearer(&renewed, store.stamp()))
                };
                tokio::task::spawn_blocking(save).await.map_err(|error| error.to_string())?
            }
            Err(NotRenewed::Refused) => {
                let forget = move || store.forget();
                let forgotten = tokio::task::spawn_blocking(forget).await;
                if let Ok(Err(error)) = forgotten {
                    tracing::warn!(server = %self.server, "a token of no use is still kept: {error}");
                }
                Err(needs_login(&self.server))
            }
            Err(NotRenewed::Failed(reason)) => {
                Err(format!("its token cannot be renewed: {reason}"))
            }
        }
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

    fn guard(folder: &std::path::Path, url: &str) -> Guard {
        Guard::new("s".into(), url, Store::new(folder, "s"), Arc::default())
    }

    #[tokio::test]
    async fn a_token_is_for_the_url_it_was_given_for() {
        let folder = tempfile::tempdir().unwrap();
        let here = guard(folder.path(), "https://a.example/mcp");
        assert!(here.bearer(None).await.unwrap().is_none());
        here.store.save(&grant("https://a.example/mcp", "t1")).unwrap();
        let bearer = here.bearer(None).await.unwrap().unwrap();
        assert_eq!(bearer.header, "Bearer t1");
        assert!(!format!("{:?}", bearer.header).contains("t1"));
        let there = guard(folder.path(), "https://b.example/mcp");
        let reason = there.bearer(None).await.err().unwrap();
        assert!(reason.contains("mcpproxy upstream login s"), "{reason}");
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
        let reason = guard.bearer(None).await.err().unwrap();
        assert_eq!(reason, "needs login: run mcpproxy upstream login s");
        assert!(guard.store.load().unwrap().is_none(), "what is of no use is not kept");
    }
}
