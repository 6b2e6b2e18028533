//! OAuth tokens of one server at run time: current token, renewal, challenges.
//!
//! Used by the server's task, so a token is renewed only once regardless of the number of calls; the store's lock
//! excludes other processes. A login or logout on the command line is detected by the changed file.
//!
//! With the grant `client_credentials`, a missing token is requested ([`Lack`]), with pauses after failures.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::{Mutex, MutexGuard};
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, CredentialStore, InMemoryCredentialStore, OAuthClientConfig,
    StoredCredentials,
};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::config::{ClientCredentials, ClientSettings, Config, Target};
use crate::oauth::authority::{LoginError, error_chain};
use crate::oauth::client::{AddressPolicy, LoginClient, LoginTransport};
use crate::oauth::client_credentials::{Pause, TokenRequest};
use crate::oauth::store::{Grant, Stamp, TokenStore, seconds, take};
use crate::oauth::{
    Challenge, Challenges, MAX_SCOPES, authority, how_to_log_in, needs_login, needs_scopes, union,
};
use crate::server_log::ServerLog;
use mcpproxy_runtime::io::address::UNIX;
use mcpproxy_runtime::io::line_budget::peer_line;

/// Interval between checks of the file.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time before expiry at which tokens are renewed, in seconds; a fifth of their lifetime if that is less.
const MARGIN_SECONDS: u64 = 60;
/// Minimum lifetime before a renewal.
const MIN_SECONDS: u64 = 3;
/// Minimum delay after a failed renewal.
const RETRY: Duration = Duration::from_secs(10);
/// Maximum number of consecutive rejected tokens, each of which is renewed only once.
const MAX_REFUSED: u32 = 3;
/// Number of consecutive logins with the same scopes after which further logins are considered pointless.
const MAX_STEP_UPS: u32 = 2;

#[derive(Clone)]
pub(crate) struct LoginTokens {
    server_log: Arc<ServerLog>,
    url: String,
    store: TokenStore,
    transport: LoginTransport,
    /// Present with the grant `client_credentials`: tokens are requested without a person.
    unattended: Option<Arc<Unattended>>,
    challenges: Arc<Challenges>,
    refused: Arc<Mutex<Refused>>,
    /// Renewals in progress. They must finish even if their caller has disconnected, because the authorization server
    /// has already consumed the old token.
    renewals: TaskTracker,
}

/// Client that requests its own tokens.
struct Unattended {
    client: ClientCredentials,
    /// Headers set by the operator.
    headers: Vec<(String, String)>,
    pause: Mutex<Pause>,
}

/// Tokens that were rejected consecutively.
#[derive(Default)]
struct Refused {
    last: Option<String>,
    /// Token that replaced the last rejected one.
    renewed: Option<String>,
    count: u32,
}

impl Refused {
    /// Whether this token was rejected. A token that does not come from a renewal is a new login and resets the count.
    fn is(&mut self, token: &str) -> bool {
        if !self.knows(token) {
            *self = Self::default();
        }
        self.last.as_deref() == Some(token)
    }

    /// Records the stored token. Returns whether it did not come from a renewal.
    fn is_new(&mut self, token: &str) -> bool {
        let is_new = !self.knows(token);
        if is_new {
            *self = Self { renewed: Some(token.to_owned()), ..Self::default() };
        }
        is_new
    }

    fn knows(&self, token: &str) -> bool {
        [&self.last, &self.renewed].iter().any(|known| known.as_deref() == Some(token))
    }
}

/// Token of a session.
#[derive(Clone)]
pub(crate) struct Bearer {
    /// `Authorization` header, marked as sensitive.
    pub(crate) header: HeaderValue,
    token: String,
    /// Renewal time in seconds since 1970.
    renew_at: Option<u64>,
    stamp: Option<Stamp>,
}

impl Bearer {
    fn is(&self, other: &Self) -> bool {
        (&self.token, self.renew_at) == (&other.token, other.renew_at)
    }
}

/// Result of handling a challenge.
pub(crate) enum ChallengeOutcome {
    /// There was no challenge, or an outdated one.
    Nothing,
    /// The connection's token was rejected.
    Refused,
    /// A login or scope is missing; holds the text in one line.
    Lacks(Arc<str>),
}

/// Change of a session's token.
pub(crate) enum Renewal {
    Bearer(Bearer),
    /// The connection must be closed for this reason: the token was removed, or a token appeared for the first time.
    Gone(String),
}

/// Future that waits for a change of the token.
pub(crate) type Renewing = Pin<Box<dyn Future<Output = Renewal> + Send>>;

/// Waits for a change of the token, or for a first token. Never resolves without a login.
pub(crate) fn renewal(login: Option<&LoginTokens>, bearer: Option<Bearer>) -> Renewing {
    match (login.cloned(), bearer) {
        (Some(login), Some(bearer)) => Box::pin(async move { login.renewal(&bearer).await }),
        (Some(login), None) => Box::pin(async move { login.first().await }),
        (None, _) => Box::pin(std::future::pending()),
    }
}

/// Waits for a challenge. Never resolves without a login.
pub(crate) async fn challenged(login: Option<&LoginTokens>) {
    match login {
        Some(login) => login.challenges.recorded().await,
        None => std::future::pending().await,
    }
}

/// Waits for a login or logout. Never resolves without a login.
pub(crate) async fn changed(login: Option<&LoginTokens>) {
    match login {
        Some(login) => login.changed().await,
        None => std::future::pending().await,
    }
}

impl LoginTokens {
    /// Tokens of a server that may have a login: over HTTP, without an operator's `Authorization` header.
    pub(crate) fn of(
        server_log: &Arc<ServerLog>,
        config: &Config,
        target: &Target,
        tls: &Arc<OnceLock<TlsConnector>>,
    ) -> Option<Self> {
        let (Target::Http { url, headers, egress, client }, Some(folder)) =
            (target, &config.data_dir)
        else {
            return None;
        };
        if url.starts_with(UNIX) {
            // Servers on Unix sockets have no login.
            return None;
        }
        let has_own = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let store = TokenStore::new(folder, &server_log.name);
        let transport = LoginTransport {
            tls: Arc::clone(tls),
            egress: egress.clone(),
            throttle: Arc::default(),
        };
        if has_own {
            return None;
        }
        let tokens = Self::new(Arc::clone(server_log), url, store, transport);
        Some(match client {
            Some(client) => tokens.unattended(client.clone(), headers.clone()),
            None => tokens,
        })
    }

    fn new(
        server_log: Arc<ServerLog>,
        url: &str,
        store: TokenStore,
        transport: LoginTransport,
    ) -> Self {
        // Normalized as in the login.
        let url = url::Url::parse(url).map_or_else(|_| url.to_owned(), |url| url.to_string());
        let challenges = Arc::new(Challenges::new(server_log.name.clone(), false));
        Self {
            server_log,
            url,
            store,
            transport,
            unattended: None,
            challenges,
            refused: Arc::default(),
            renewals: TaskTracker::new(),
        }
    }

    /// Tokens that `client` requests itself.
    fn unattended(self, client: ClientCredentials, headers: Vec<(String, String)>) -> Self {
        let challenges = Arc::new(Challenges::new(self.server_log.name.clone(), true));
        let unattended = Arc::new(Unattended { client, headers, pause: Mutex::default() });
        Self { unattended: Some(unattended), challenges, ..self }
    }

    pub(crate) fn challenges(&self) -> &Arc<Challenges> {
        &self.challenges
    }

    /// Missing scopes of the login of a connected server, as text; empty if none are missing.
    pub(crate) fn notice(&self) -> Arc<str> {
        self.challenges.notice()
    }

    /// Handles the recorded challenge, for a connection with `bearer`. Stores the scopes that the next login must
    /// request.
    pub(crate) async fn handle_challenge(&self, bearer: Option<&Bearer>) -> ChallengeOutcome {
        let notice = match self.challenges.take() {
            None => return ChallengeOutcome::Nothing,
            Some(Challenge::Token(sent)) => match (sent, bearer) {
                (Some(sent), Some(bearer)) if sent == bearer.header => {
                    return ChallengeOutcome::Refused;
                }
                // The connection has a different token by now.
                (Some(_), _) | (None, Some(_)) => return ChallengeOutcome::Nothing,
                (None, None) => self.no_token(),
            },
            Some(Challenge::Scopes(scopes)) => {
                let guard = self.clone();
                let kept = tokio::task::spawn_blocking(move || guard.store_wanted(&scopes)).await;
                match kept.map_err(|error| error.to_string()).flatten() {
                    Ok(notice) => notice,
                    Err(error) => {
                        peer_line!(warn, self.server_log, server = %self.server_log.name, "the required scopes could not be stored: {error}");
                        return ChallengeOutcome::Nothing;
                    }
                }
            }
        };
        let notice: Arc<str> = notice.into();
        self.challenges.set_notice(notice.clone());
        ChallengeOutcome::Lacks(notice)
    }

    /// Stores missing scopes; returns the notice. Blocks.
    fn store_wanted(&self, scopes: &[String]) -> Result<String, String> {
        if scopes.is_empty() {
            return Ok(self.challenges.lacks_scopes(scopes));
        }
        let _lock = self.store.lock().map_err(|error| error.to_string())?;
        let grant = self.store.load().map_err(|error| error.to_string())?;
        let is_current = |grant: &Grant| {
            grant.url == self.url && grant.is_login() && grant.client.as_ref() == self.settings()
        };
        let Some(mut grant) = grant.filter(is_current) else {
            return Ok(self.challenges.lacks_scopes(scopes));
        };
        let wanted = union(grant.wanted.iter().chain(scopes).cloned());
        // The file is saved even if nothing else changed, because another token with more scopes is requested only
        // after a change of the file.
        let is_due = grant.client.is_some() && lack(&grant, seconds()) == Lack::Scopes;
        if wanted != grant.wanted || is_due {
            // Counted once per login: when the server first requires a scope that was already requested.
            let again = scopes.iter().all(|scope| grant.requested.contains(scope));
            grant.fruitless += u32::from(again && !grant.requested_in_vain());
            grant.wanted = wanted;
            self.store.save(&grant).map_err(|error| error.to_string())?;
        }
        Ok(self.notice_of(&grant))
    }

    /// Error text for a connection whose token was rejected or is missing.
    pub(crate) fn no_token(&self) -> String {
        self.challenges.no_token()
    }

    /// Settings of the client that requests its own tokens.
    fn settings(&self) -> Option<&ClientSettings> {
        self.unattended.as_ref().map(|unattended| &unattended.client.settings)
    }

    /// Missing scopes of a grant, as text; empty if none are missing.
    fn notice_of(&self, grant: &Grant) -> String {
        match &grant.client {
            Some(client) => client_notice(client, grant),
            None => notice(&self.server_log.name, grant),
        }
    }

    /// Records a rejected token; returns whether a renewal is worthwhile.
    pub(crate) fn refuse(&self, bearer: &Bearer) -> bool {
        let mut refused = self.refused();
        refused.last = Some(bearer.token.clone());
        refused.count = refused.count.saturating_add(1);
        refused.count <= MAX_REFUSED
    }

    /// Resets the count of rejected tokens.
    pub(crate) fn reset_refusals(&self) {
        *self.refused() = Refused::default();
        if let Some(unattended) = &self.unattended {
            *unattended.pause.lock() = Pause::default();
        }
    }

    fn refused(&self) -> MutexGuard<'_, Refused> {
        self.refused.lock()
    }

    /// Current token, which is renewed if it expires soon or was rejected; `None` without a login. The error is one
    /// line.
    pub(crate) async fn bearer(&self) -> Result<Option<Bearer>, String> {
        if let Some(unattended) = &self.unattended {
            return self.client_bearer(unattended).await.map(Some);
        }
        let Some((grant, stamp)) = self.load().await? else { return Ok(None) };
        let bearer = bearer(&grant, stamp);
        let (was_refused, count) = {
            let mut refused = self.refused();
            (refused.is(&bearer.token), refused.count)
        };
        if was_refused && count > MAX_REFUSED {
            let needs_login = needs_login(&self.server_log.name);
            return Err(format!("it rejected {count} tokens in a row; {needs_login}"));
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

    /// Same as [`bearer`](Self::bearer), for a client that requests its own tokens; does not need a stored token.
    async fn client_bearer(&self, unattended: &Arc<Unattended>) -> Result<Bearer, String> {
        let stored = self.load().await?;
        let Some((grant, stamp)) = stored else {
            return self.spawn_request(unattended, None, Lack::Token).await;
        };
        let current = bearer(&grant, stamp);
        if self.refused().is_new(&current.token) {
            // A login or another process obtained this token during the pause, so the cause of the pause no longer
            // applies.
            *unattended.pause.lock() = Pause::default();
        }
        let lack = match self.refused().is(&current.token) {
            true => Lack::Token,
            false => lack(&grant, seconds()),
        };
        match lack {
            Lack::Nothing => Ok(current),
            Lack::Token | Lack::Time => self.spawn_request(unattended, Some(current), lack).await,
            Lack::Scopes => {
                let token = Some(current.clone());
                let requested = self.spawn_request(unattended, token, lack).await;
                // The token is valid for all other requests.
                Ok(requested.unwrap_or_else(|reason| {
                    peer_line!(warn, self.server_log, server = %self.server_log.name, "no token with further scopes: {reason}");
                    current
                }))
            }
        }
    }

    /// Requests a token in a separate task, which finishes even if its caller has disconnected.
    async fn spawn_request(
        &self,
        unattended: &Arc<Unattended>,
        old: Option<Bearer>,
        lack: Lack,
    ) -> Result<Bearer, String> {
        let (this, unattended) = (self.clone(), Arc::clone(unattended));
        let request = async move { this.request(&unattended, old.as_ref(), lack).await };
        let requested = self.renewals.spawn(request).await;
        requested.map_err(|error| error.to_string()).flatten()
    }

    /// Requests a token, unless another process or connection already did, or the last request has just failed.
    async fn request(
        &self,
        unattended: &Unattended,
        old: Option<&Bearer>,
        lack: Lack,
    ) -> Result<Bearer, String> {
        let store = self.store.clone();
        let lock = tokio::task::spawn_blocking(move || store.lock()).await;
        let _lock = lock.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        let stored = self.load().await?;
        if let Some((grant, stamp)) = &stored
            && old.is_none_or(|old| grant.access_token != old.token)
        {
            return Ok(bearer(grant, *stamp));
        }
        if let Some(reason) = unattended.pause.lock().reason(Instant::now()) {
            return Err(reason.to_owned());
        }
        let url = Url::parse(&self.url).map_err(|error| error.to_string())?;
        let Unattended { client, headers, .. } = unattended;
        let request = TokenRequest { url: &url, headers, client, transport: &self.transport };
        let requested = match (&stored, lack) {
            (Some((grant, _)), Lack::Time) => request.renew(grant.clone()).await,
            (Some((grant, _)), Lack::Scopes) => request.step_up(grant.clone()).await,
            // The server may name a different authorization server than that of an expired or rejected token.
            (Some(_) | None, _) => {
                let store = self.store.clone();
                let before = tokio::task::spawn_blocking(move || store.load()).await;
                let before = before.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
                request.obtain(before.filter(|grant| grant.url == self.url).as_ref()).await
            }
        };
        let error = match requested {
            Ok(grant) => {
                self.pace(unattended, &grant, old);
                return self.store_token(unattended, grant).await;
            }
            Err(error) => error.quoted(&self.server_log),
        };
        let reason = not_granted(&self.server_log.name, &error);
        match (stored, &error) {
            // The scopes are not requested again; all other requests continue without a pause.
            (Some((grant, _)), LoginError::Denied(_)) if lack == Lack::Scopes => {
                self.store_token(unattended, grant.with_wanted_requested()).await?;
            }
            (_, error) => unattended.pause.lock().fail(error, reason.clone(), Instant::now()),
        }
        Err(reason)
    }

    /// Stores a grant of a client and returns its token. If it cannot be stored, the next request is paused.
    async fn store_token(&self, unattended: &Unattended, grant: Grant) -> Result<Bearer, String> {
        self.server_log.secrets.learn(grant.secrets());
        self.challenges.set_notice(self.notice_of(&grant).into());
        let store = self.store.clone();
        let save = move || {
            store.save(&grant).map_err(|error| error.to_string())?;
            Ok(bearer(&grant, store.stamp()))
        };
        let saved = tokio::task::spawn_blocking(save).await.map_err(|error| error.to_string());
        saved.flatten().inspect_err(|reason| {
            let error = LoginError::Unusable(reason.clone());
            unattended.pause.lock().fail(&error, reason.clone(), Instant::now());
        })
    }

    /// Paces the next token request after a successful one: if a server rejects every token, up to [`MAX_REFUSED`] are
    /// requested immediately, and further ones after pauses.
    fn pace(&self, unattended: &Unattended, grant: &Grant, old: Option<&Bearer>) {
        let mut refused = self.refused();
        let was_refused = old.is_some_and(|old| refused.is(&old.token));
        refused.renewed = Some(grant.access_token.clone());
        if was_refused && refused.count >= MAX_REFUSED {
            let issuer = grant.metadata.issuer.as_deref().unwrap_or_default();
            let reason = format!(
                "it rejects every token of {issuer}: check what the client may do there, then {}",
                how_to_log_in(&self.server_log.name)
            );
            unattended.pause.lock().rest(reason, Instant::now());
        } else if !was_refused {
            *unattended.pause.lock() = Pause::default();
        }
    }

    /// Waits for renewals in progress, until `deadline`.
    pub(crate) async fn end(&self, deadline: Instant) {
        self.renewals.close();
        if timeout_at(deadline, self.renewals.wait()).await.is_err() {
            peer_line!(warn, self.server_log, server = %self.server_log.name, "a token renewal was interrupted: log in again if the token is rejected");
        }
    }

    /// Waits until the token of a session must be replaced.
    pub(crate) async fn renewal(&self, current: &Bearer) -> Renewal {
        let mut seen = current.stamp;
        let mut logged = String::new();
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let due = current.renew_at.is_some_and(|at| seconds() >= at);
            let stamp = self.stamp().await;
            if !due && stamp == seen {
                continue;
            }
            seen = stamp;
            match self.bearer().await {
                Ok(Some(bearer)) if bearer.is(current) => {}
                Ok(Some(bearer)) => return Renewal::Bearer(bearer),
                Ok(None) => return Renewal::Gone(self.no_token()),
                Err(reason) if self.ended(current) => return Renewal::Gone(reason),
                Err(reason) => {
                    if logged != reason {
                        peer_line!(warn, self.server_log, server = %self.server_log.name, "token renewal failed, will be retried: {reason}");
                        logged = reason;
                    }
                    let asked = self.transport.throttle.remaining(Instant::now().into_std());
                    tokio::time::sleep(asked.unwrap_or_default().max(RETRY)).await;
                }
            }
        }
    }

    /// Waits for a first login.
    async fn first(&self) -> Renewal {
        let mut seen = None;
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let stamp = self.stamp().await;
            if std::mem::replace(&mut seen, stamp) != stamp
                && matches!(self.load().await, Ok(Some(_)))
            {
                return Renewal::Gone("a login was completed".to_owned());
            }
        }
    }

    /// Waits for a login or logout.
    async fn changed(&self) {
        let before = self.stamp().await;
        while self.stamp().await == before {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Whether the token is useless because it was removed or has expired.
    fn ended(&self, current: &Bearer) -> bool {
        self.store.stamp().is_none()
            || current.renew_at.is_some_and(|at| seconds() >= at + MARGIN_SECONDS)
    }

    async fn stamp(&self) -> Option<Stamp> {
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || store.stamp()).await.ok().flatten()
    }

    async fn load(&self) -> Result<Option<(Grant, Option<Stamp>)>, String> {
        let (store, server_log, url) =
            (self.store.clone(), self.server_log.clone(), self.url.clone());
        let settings = self.settings().cloned();
        let load = move || {
            let stamp = store.stamp();
            let grant = store.load().map_err(|error| error.to_string())?;
            let Some(grant) = grant.filter(Grant::is_login) else { return Ok(None) };
            server_log.secrets.learn(grant.secrets());
            // Tokens are valid only for the URL for which they were issued, and for the client that requested them.
            match (grant.url == url, grant.client == settings) {
                (true, true) => Ok(Some((grant, stamp))),
                (false, true) if settings.is_none() => {
                    Err(format!("its url has changed since; {}", needs_login(&server_log.name)))
                }
                (_, _) => Ok(None),
            }
        };
        let loaded = tokio::task::spawn_blocking(load).await.map_err(|error| error.to_string())?;
        let grant = loaded.as_ref().ok().and_then(Option::as_ref);
        let notice = grant.map(|(grant, _)| self.notice_of(grant));
        self.challenges.set_notice(notice.unwrap_or_default().into());
        loaded
    }

    /// Renews the token, unless another process already did. The server of a rejected token may have moved to another
    /// authorization server, for which the login is not valid.
    async fn renew(&self, old: &Bearer, refused: bool) -> Result<Bearer, String> {
        let store = self.store.clone();
        let lock = tokio::task::spawn_blocking(move || store.lock()).await;
        let _lock = lock.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        let Some((grant, stamp)) = self.load().await? else {
            return Err(needs_login(&self.server_log.name));
        };
        if grant.access_token != old.token {
            return Ok(bearer(&grant, stamp));
        }
        let store = self.store.clone();
        let end = async |grant: Grant| {
            let save = move || store.save(&grant.ended());
            if let Ok(Err(error)) = tokio::task::spawn_blocking(save).await {
                peer_line!(warn, self.server_log, server = %self.server_log.name, "an unusable token could not be removed: {error}");
            }
            needs_login(&self.server_log.name)
        };
        if refused && moved(&grant, &self.transport).await {
            let needs_login = end(grant).await;
            return Err(format!("its authorization server has changed; {needs_login}"));
        }
        match renew(&grant, &self.transport).await {
            Ok(renewed) => {
                self.server_log.secrets.learn(renewed.secrets());
                let store = self.store.clone();
                let save = move || {
                    store.save(&renewed).map_err(|error| error.to_string())?;
                    Ok(bearer(&renewed, store.stamp()))
                };
                tokio::task::spawn_blocking(save).await.map_err(|error| error.to_string())?
            }
            Err(NotRenewed::Refused) => Err(end(grant).await),
            Err(NotRenewed::Failed(reason)) => {
                Err(format!("its token cannot be renewed: {}", self.server_log.quote(reason)))
            }
        }
    }
}

/// Missing scopes of a login, as text; empty if none are missing.
fn notice(server: &str, grant: &Grant) -> String {
    match grant.wanted.as_slice() {
        [] => String::new(),
        wanted if grant.fruitless >= MAX_STEP_UPS => format!(
            "it requires scope {} though {} logins have requested it: another login does not help",
            wanted.join(" "),
            grant.fruitless
        ),
        wanted => needs_scopes(server, wanted),
    }
}

/// Missing scopes of a token that its client requested itself, as text; empty if none are missing.
fn client_notice(client: &ClientSettings, grant: &Grant) -> String {
    let wanted = grant.wanted.join(" ");
    let issuer = grant.metadata.issuer.as_deref().unwrap_or_default();
    match (grant.wanted.is_empty(), client.scopes.is_empty()) {
        (true, _) => String::new(),
        (false, true) => format!(
            "it requires scope {wanted}, which is requested and has to be granted to client {} at {issuer}",
            client.id
        ),
        (false, false) => format!("it requires scope {wanted}: add it to oauth.scopes"),
    }
}

/// Reason why a client that requests its own tokens needs a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    Nothing,
    /// There is no token, or it has expired or was rejected.
    Token,
    /// The token expires soon.
    Time,
    /// The server has required scopes that no request has included yet.
    Scopes,
}

/// Reason to replace the token of `grant`, if any. If scopes are configured, no others are requested.
fn lack(grant: &Grant, now: u64) -> Lack {
    let has_own_scopes = grant.client.as_ref().is_some_and(|client| !client.scopes.is_empty());
    if grant.expires_at.is_some_and(|at| now >= at) {
        Lack::Token
    } else if renew_at(grant).is_some_and(|at| now >= at) {
        Lack::Time
    } else if !has_own_scopes
        && grant.requested.len() < MAX_SCOPES
        && grant.wanted.iter().any(|scope| !grant.requested.contains(scope))
    {
        Lack::Scopes
    } else {
        Lack::Nothing
    }
}

/// Reason why a client got no token, and the next step, in one line.
fn not_granted(server: &str, error: &LoginError) -> String {
    let test = how_to_log_in(server);
    match error {
        LoginError::Denied(_) => format!(
            "no token: {error}; check oauth.client_id, oauth.client_secret and oauth.scopes, then {test}"
        ),
        LoginError::Config(_) | LoginError::NoUrl => format!("no token: {error}"),
        LoginError::NotAsked(_) => {
            format!("no token: {error}; remove oauth.grant if the server needs no token")
        }
        LoginError::Unreachable(_)
        | LoginError::Unusable(_)
        | LoginError::Late(_)
        | LoginError::Store(_) => {
            format!(
                "no token: {error}; it is requested again automatically; to request it now, {test}"
            )
        }
    }
}

/// Renewal time of the token of a grant, in seconds since 1970.
fn renew_at(grant: &Grant) -> Option<u64> {
    let end = grant.expires_at?;
    let life = end.saturating_sub(grant.received_at);
    let due = end.saturating_sub(MARGIN_SECONDS.min(life / 5));
    Some(due.max(grant.received_at + MIN_SECONDS))
}

fn bearer(grant: &Grant, stamp: Option<Stamp>) -> Bearer {
    let header = format!("Bearer {}", grant.access_token);
    // The token was validated when it was received.
    let mut header = HeaderValue::from_str(&header).unwrap_or(HeaderValue::from_static(""));
    header.set_sensitive(true);
    Bearer { header, token: grant.access_token.clone(), renew_at: renew_at(grant), stamp }
}

/// Reason why a renewal failed.
#[derive(Debug)]
pub(super) enum NotRenewed {
    /// The authorization server rejected the renewal, or there is no refresh token.
    Refused,
    /// The failure is temporary.
    Failed(String),
}

pub(super) async fn renew(grant: &Grant, transport: &LoginTransport) -> Result<Grant, NotRenewed> {
    let Some(refresh_token) = &grant.refresh_token else { return Err(NotRenewed::Refused) };
    let failed = |error: &dyn std::fmt::Display| NotRenewed::Failed(error.to_string());
    let url = Url::parse(&grant.url).map_err(|error| failed(&error))?;
    let client = Arc::new(LoginClient::new(AddressPolicy::new(&url), transport.clone()));
    // rmcp derives the resource parameter from the manager's URL.
    let mut manager =
        AuthorizationManager::new_with_oauth_http_client(grant.resource.as_str(), client)
            .await
            .map_err(|error| failed(&error))?;
    let now = serde_json::json!({
        "access_token": grant.access_token, "token_type": "bearer",
        "refresh_token": refresh_token,
    });
    let now = serde_json::from_value(now).map_err(|error| failed(&error))?;
    let (id, scopes) = (grant.client_id.clone(), grant.scopes.clone());
    let stored = StoredCredentials::new(id.clone(), Some(now), scopes, Some(grant.received_at));
    let credentials = InMemoryCredentialStore::new();
    credentials.save(stored).await.map_err(|error| failed(&error))?;
    manager.set_credential_store(credentials);
    manager.set_metadata(grant.metadata.clone());
    let mut client = OAuthClientConfig::new(id, grant.resource.as_str());
    if let Some(secret) = &grant.client_secret {
        client = client.with_client_secret(secret);
    }
    manager.configure_client(client).map_err(|error| failed(&error))?;
    match manager.refresh_token().await {
        Ok(response) => take(grant.clone(), &response).map_err(NotRenewed::Failed),
        Err(AuthError::TokenRefreshRejected(_) | AuthError::AuthorizationRequired) => {
            Err(NotRenewed::Refused)
        }
        Err(error) => {
            // rmcp does not forward the reason for a failed request.
            let throttled = transport.throttle.reason(Instant::now().into_std());
            Err(NotRenewed::Failed(throttled.unwrap_or_else(|| error_chain(&error))))
        }
    }
}

/// Whether the server names a different authorization server than the grant's; false if unknown.
pub(super) async fn moved(grant: &Grant, transport: &LoginTransport) -> bool {
    let Ok(url) = Url::parse(&grant.url) else { return false };
    let client = LoginClient::new(AddressPolicy::new(&url), transport.clone());
    let Ok(manager) = authority::manager(&url, client).await else { return false };
    let issuer = authority::published(&manager).await.and_then(|metadata| metadata.issuer);
    issuer.is_some() && issuer != grant.metadata.issuer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oauth::store::tests::grant;

    fn guard(folder: &std::path::Path, url: &str) -> LoginTokens {
        LoginTokens::new(
            Arc::default(),
            url,
            TokenStore::new(folder, "s"),
            LoginTransport::default(),
        )
    }

    #[tokio::test]
    async fn token_is_bound_to_its_url() {
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
    async fn token_is_redacted_once_known() {
        let folder = tempfile::tempdir().unwrap();
        let guard = guard(folder.path(), "https://a.example/mcp");
        for token in ["first-token", "second-token"] {
            let mut grant = grant("https://a.example/mcp", token);
            grant.refresh_token = Some(format!("to-renew-{token}"));
            guard.store.save(&grant).unwrap();
            guard.bearer().await.unwrap();
            let error_chain = format!("{token} to-renew-{token} first-token");
            assert_eq!(&*guard.server_log.quote(error_chain), "[redacted] [redacted] [redacted]");
        }
    }

    #[test]
    fn id_6_token_obtained_outside_a_renewal_ends_the_pause_once() {
        let token = |token: &str| Some(token.to_owned());
        let mut refused = Refused { last: token("a"), renewed: token("b"), count: 3 };
        assert!(!refused.is_new("a") && !refused.is_new("b"));
        assert!(refused.is_new("c"));
        assert_eq!(refused.count, 0);
        assert!(!refused.is_new("c") && !refused.is("c"));
    }

    #[test]
    fn tokens_are_renewed_before_expiry() {
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

    /// Token of a client with these configured scopes.
    fn of_client(scopes: &[&str]) -> Grant {
        let scopes = scopes.iter().map(|&scope| scope.to_owned()).collect();
        let client = ClientSettings { id: "c".to_owned(), issuer: None, scopes };
        Grant { client: Some(client), ..grant("https://a.example/mcp", "t1") }
    }

    #[test]
    fn id_6_token_of_a_client_is_replaced_when_it_expires_or_lacks_scopes() {
        let of = |expires_at, wanted: &str, configured: &[&str], now| {
            let wanted = wanted.split_terminator(' ').map(str::to_owned).collect();
            lack(&Grant { expires_at, wanted, received_at: 1000, ..of_client(configured) }, now)
        };
        for (expires_at, wanted, configured, now, expected) in [
            (None, "", &[][..], 9000, Lack::Nothing),
            (Some(2000), "", &[], 1900, Lack::Nothing),
            (Some(2000), "", &[], 1940, Lack::Time),
            (Some(2000), "", &[], 2000, Lack::Token),
            (None, "mcp", &[], 9000, Lack::Nothing),
            (None, "mcp more", &[], 9000, Lack::Scopes),
            (Some(2000), "more", &[], 1940, Lack::Time),
            (None, "more", &["mcp"], 9000, Lack::Nothing),
        ] {
            let found = of(expires_at, wanted, configured, now);
            assert_eq!(found, expected, "{expires_at:?} {wanted} {configured:?} {now}");
        }
        let mut full = of_client(&[]);
        full.requested = (0..MAX_SCOPES).map(|n| n.to_string()).collect();
        full.wanted = vec!["more".to_owned()];
        assert_eq!(
            lack(&full, 0),
            Lack::Nothing,
            "the number of scopes that a server can require is limited"
        );
    }

    #[tokio::test]
    async fn id_6_tokens_issued_for_other_settings_are_not_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let login = guard(folder.path(), "https://a.example/mcp");
        let stored = of_client(&["a"]);
        login.store.save(&stored).unwrap();
        assert!(login.bearer().await.unwrap().is_none(), "not a person's login");
        let settings = stored.client.unwrap();
        let loads = async |url: &str, settings: ClientSettings| {
            let client = ClientCredentials { settings, secret: "s3cret".to_owned() };
            let tokens = guard(folder.path(), url).unattended(client, Vec::new());
            tokens.load().await.unwrap().is_some()
        };
        let changed = |change: fn(&mut ClientSettings)| {
            let mut changed = settings.clone();
            change(&mut changed);
            changed
        };
        assert!(loads("https://a.example/mcp", settings.clone()).await);
        assert!(!loads("https://b.example/mcp", settings.clone()).await);
        for change in [
            |settings: &mut ClientSettings| settings.id = "d".to_owned(),
            |settings: &mut ClientSettings| settings.issuer = Some("https://as".to_owned()),
            |settings: &mut ClientSettings| settings.scopes.clear(),
        ] {
            assert!(!loads("https://a.example/mcp", changed(change)).await);
        }
    }

    #[tokio::test]
    async fn expired_token_without_refresh_token_requires_a_login() {
        let folder = tempfile::tempdir().unwrap();
        let guard = guard(folder.path(), "https://a.example/mcp");
        let mut ended = grant("https://a.example/mcp", "t1");
        ended.expires_at = Some(2);
        ended.refresh_token = None;
        guard.store.save(&ended).unwrap();
        let reason = guard.bearer().await.err().unwrap();
        assert_eq!(reason, "needs login: run mcpproxy upstream login s");
        let kept = guard.store.load().unwrap().unwrap();
        assert!(!kept.is_login() && kept.client_secret.is_none(), "no token is left");
        assert!(guard.bearer().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn pro_14_throttled_token_endpoint_is_not_asked_again_before_its_time() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let endpoint = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let mut request = [0; 4096];
                let _ = client.read(&mut request).await;
                let answer = "HTTP/1.1 429 X\r\nRetry-After: 90\r\nContent-Length: 0\r\n\r\n";
                let _ = client.write_all(answer.as_bytes()).await;
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let guard = guard(folder.path(), &format!("{origin}/mcp"));
        let mut due = grant(&format!("{origin}/mcp"), "t1");
        due.metadata.authorization_endpoint = format!("{origin}/authorize");
        due.metadata.token_endpoint = format!("{origin}/token");
        due.expires_at = Some(2);
        guard.store.save(&due).unwrap();
        for _ in 0..2 {
            let reason = guard.bearer().await.err().unwrap();
            let expected =
                format!("the token endpoint at {origin} rate-limits requests, retry after ");
            assert!(reason.contains(&expected), "{reason}");
            assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 1);
        }
        let kept = guard.store.load().unwrap().unwrap();
        assert!(kept.is_login(), "the login stays");
        let rest = guard.transport.throttle.remaining(Instant::now().into_std()).unwrap();
        assert!(rest > RETRY, "the next attempt is delayed until the requested time");
        endpoint.abort();
    }
}
