//! Interactive login, from the probe to stored tokens.
//!
//! rmcp implements the protocol; [`super::authority`] finds the authorization server. The browser returns to a page on
//! 127.0.0.1 that exists only during the login. Requests without the login's `state` get a 404 and do not affect it, so
//! another page in the browser can neither end nor hijack it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadata, AuthorizationRequest,
    AuthorizationSession, OAuthClientConfig,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use url::Url;

use crate::config::{ClientCredentials, Config, Target};
use crate::oauth;
use crate::oauth::authority;
use crate::oauth::authority::{LoginError, error_chain, probe, query, unusable};
use crate::oauth::client::{AddressPolicy, LoginClient, LoginTransport};
use crate::oauth::client_credentials::TokenRequest;
use crate::oauth::store::{Grant, TokenStore, take};
use crate::server_log::ServerLog;
use mcpproxy_runtime::io::address::UNIX;
use mcpproxy_runtime::io::egress_proxy::Egress;
use mcpproxy_runtime::secrets::Secrets;

/// Client name for dynamic registration.
const CLIENT_NAME: &str = "mcpproxy";

/// Result of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedIn {
    pub issuer: String,
    /// Granted scopes; empty if unknown.
    pub scopes: Vec<String>,
    /// Whether the tokens can be renewed without a user.
    pub renewable: bool,
}

/// Logs in with the server `name`. `show` gets the URL to open in a browser, within `limit`. Stores the tokens under
/// `data_dir`; on an error, nothing is stored.
pub async fn login(
    name: &str,
    config: &Config,
    data_dir: &Path,
    limit: Duration,
    show: impl FnOnce(&str),
) -> Result<LoggedIn, LoginError> {
    let server_log = ServerLog::new(name.into(), Arc::new(Secrets::new(config.secrets())));
    let logged_in = attempt(&server_log, config, data_dir, limit, show).await;
    logged_in.map_err(|error| error.quoted(&server_log))
}

/// Same as [`login`], with unredacted errors.
async fn attempt(
    server_log: &ServerLog,
    config: &Config,
    data_dir: &Path,
    limit: Duration,
    show: impl FnOnce(&str),
) -> Result<LoggedIn, LoginError> {
    let EntryRead { url, headers, egress, client_secret, client } =
        entry_of(server_log, config).await?;
    let transport = LoginTransport { egress, ..LoginTransport::default() };
    let store = TokenStore::new(data_dir, &server_log.name);
    if let Some(client) = &client {
        let request = TokenRequest { url: &url, headers: &headers, client, transport: &transport };
        let grant = request.obtain(before(&store, &url).await.as_ref()).await?;
        server_log.secrets.learn(grant.secrets());
        return keep(store, grant).await;
    }
    let policy = AddressPolicy::new(&url);
    policy.check(&url).map_err(LoginError::Config)?;
    let client = LoginClient::new(policy.clone(), transport);
    let answered = probe(&client, &url, &headers).await.map_err(LoginError::Unreachable)?;
    let (mut manager, metadata) = authority::find(&url, client, &answered).await?;
    authority::check(&metadata, &policy)?;
    let issuer = metadata.issuer.clone().unwrap_or_default();
    let before = before(&store, &url).await;
    manager.set_metadata(metadata.clone());
    let callback =
        Callback::bind().await.map_err(|error| LoginError::Unusable(error.to_string()))?;
    let known = client_identity(config, client_secret, &metadata, before.as_ref())?;
    let scopes = scopes(&manager, config, &issuer, before.as_ref()).await;
    let (session, client) = begin(manager, known, scopes, &callback.redirect).await?;
    let auth_url = Url::parse(session.get_authorization_url())
        .map_err(|error| LoginError::Unusable(error.to_string()))?;
    let (state, resource) = (query(&auth_url, "state")?, query(&auth_url, "resource")?);
    let requested = oauth::scopes(&query(&auth_url, "scope").unwrap_or_default());
    server_log.secrets.learn([&*state]);
    show(auth_url.as_str());
    let returned = tokio::time::timeout(limit, callback.wait(&state)).await;
    let (returned, page) = returned
        .map_err(|_| LoginError::Late(limit))?
        .map_err(|error| LoginError::Unusable(error.to_string()))?;
    let ending = Ending { server_log, store, session, client, metadata, before };
    let outcome = ending.complete(&url, returned, &state, (resource, requested)).await;
    let text = match &outcome {
        Ok(_) => "The login succeeded. This page can be closed.".to_owned(),
        Err(error) => {
            let reason = server_log.quote(error.to_string());
            format!("The login failed: {reason}. This page can be closed; see the terminal.")
        }
    };
    page.show(&text).await;
    outcome
}

/// Login for which the browser's redirect has arrived.
struct Ending<'a> {
    server_log: &'a ServerLog,
    store: TokenStore,
    session: AuthorizationSession,
    client: OAuthClientConfig,
    metadata: AuthorizationMetadata,
    before: Option<Grant>,
}

impl Ending<'_> {
    /// Exchanges the code for tokens and stores them.
    async fn complete(
        self,
        url: &Url,
        returned: Returned,
        state: &str,
        (resource, requested): (String, Vec<String>),
    ) -> Result<LoggedIn, LoginError> {
        let Self { server_log, store, session, client, metadata, before } = self;
        let issuer = metadata.issuer.clone().unwrap_or_default();
        let (code, by) = match returned {
            Returned::Granted { code, issuer } => (code, issuer),
            Returned::Denied { why, issuer: by } => {
                // Text from an unverified sender is not shown (MCP 2026-07-28 §Authorization Response Validation).
                return Err(match authority::is_from_issuer(&metadata, by.as_deref()) {
                    true => LoginError::Denied(why),
                    false => LoginError::Unusable(format!(
                        "the response does not come from the issuer {issuer}"
                    )),
                });
            }
        };
        server_log.secrets.learn([&*code]);
        let response = session
            .handle_callback_with_issuer(&code, state, by.as_deref())
            .await
            .map_err(|error| LoginError::Denied(error_chain(&error)))?;
        let scopes = session.auth_manager.get_current_scopes().await;
        let grant = Grant {
            url: url.to_string(),
            resource,
            metadata: authority::endpoints(&metadata),
            client_id: client.client_id,
            client_secret: client.client_secret,
            access_token: String::new(),
            refresh_token: None,
            scopes,
            requested,
            wanted: Vec::new(),
            fruitless: before.filter(Grant::requested_in_vain).map_or(0, |before| before.fruitless),
            received_at: 0,
            expires_at: None,
            client: None,
        };
        let grant = take(grant, &response).map_err(LoginError::Unusable)?;
        keep(store, grant).await
    }
}

async fn keep(store: TokenStore, grant: Grant) -> Result<LoggedIn, LoginError> {
    let logged_in = LoggedIn {
        issuer: grant.metadata.issuer.clone().unwrap_or_default(),
        scopes: grant.scopes.clone(),
        renewable: grant.refresh_token.is_some() || grant.client.is_some(),
    };
    let kept = tokio::task::spawn_blocking(move || {
        let _lock = store.lock()?;
        store.save(&grant)
    });
    kept.await.map_err(|error| LoginError::Unusable(error.to_string()))??;
    Ok(logged_in)
}

/// Resolved entry of a server.
pub(super) struct EntryRead {
    url: Url,
    /// Headers set by the operator.
    headers: Vec<(String, String)>,
    pub(super) egress: Egress,
    /// Secret of the preregistered client.
    client_secret: Option<String>,
    /// Credentials for the grant `client_credentials`, if the entry uses it.
    pub(super) client: Option<ClientCredentials>,
}

/// Resolves the entry, possibly with a keyring prompt. From then on, the resolved values are secret.
pub(super) async fn entry_of(
    server_log: &ServerLog,
    config: &Config,
) -> Result<EntryRead, LoginError> {
    let config = config.clone();
    let read = tokio::task::spawn_blocking(move || {
        let (url, target) = target(&config)?;
        let secrets = config.secrets_of(&target);
        let registered = config.oauth.as_ref().is_some_and(|oauth| oauth.client_id.is_some());
        let secret = registered.then(|| config.oauth_secret(&|name| std::env::var(name).ok()));
        let client_secret = secret.transpose().map_err(|it| LoginError::Config(it.to_string()))?;
        let client_secret = client_secret.flatten();
        let Target::Http { headers, egress, client, .. } = target else {
            return Err(LoginError::NoUrl);
        };
        Ok((EntryRead { url, headers, egress, client_secret, client }, secrets))
    });
    let (read, secrets) =
        read.await.map_err(|error| LoginError::Unusable(error.to_string())).flatten()?;
    server_log.secrets.learn(secrets.iter().chain(&read.client_secret).map(String::as_str));
    Ok(read)
}

/// The server's URL and resolved entry.
fn target(config: &Config) -> Result<(Url, Target), LoginError> {
    let wrong = |why: String| Err(LoginError::Config(why));
    let target = match config.target(&|name| std::env::var(name).ok()) {
        Ok(target) => target,
        Err(invalid) => return wrong(invalid.to_string()),
    };
    let Target::Http { url, headers, .. } = &target else { return Err(LoginError::NoUrl) };
    if headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
        return wrong("its headers contain Authorization, which is sent instead of a login".into());
    }
    if url.starts_with(UNIX) {
        return wrong(
            "it is a Unix socket, and only http and https servers ask for a login".into(),
        );
    }
    match Url::parse(url) {
        Ok(url) => Ok((url, target)),
        Err(error) => wrong(format!("url cannot be read: {error}")),
    }
}

/// Stored grant of the last login; an unreadable grant is ignored and will be replaced.
async fn before(store: &TokenStore, url: &Url) -> Option<Grant> {
    let store = store.clone();
    let loaded = tokio::task::spawn_blocking(move || store.load()).await;
    loaded.ok()?.ok()?.filter(|grant| grant.url == url.as_str())
}

/// Client identity at the authorization server.
enum Known {
    /// A registered client id, or the URL of the proxy's metadata document.
    As {
        id: String,
        secret: Option<String>,
    },
    Unknown,
}

/// Selects the proxy's identity in the specified order (MCP 2026-07-28 §Client Registration). Credentials of one
/// authorization server are not sent to another.
fn client_identity(
    config: &Config,
    secret: Option<String>,
    metadata: &AuthorizationMetadata,
    before: Option<&Grant>,
) -> Result<Known, LoginError> {
    let settings = config.oauth.clone().unwrap_or_default();
    let refuse = |why: String| Err(LoginError::Config(why));
    if let Some(id) = settings.client_id {
        authority::check_issuer(metadata, &id, settings.issuer.as_ref(), before)?;
        return Ok(Known::As { id, secret });
    }
    let Some(place) = settings.client_metadata_url else { return Ok(Known::Unknown) };
    let usable = |place: &Url| place.scheme() == "https" && place.path() != "/";
    if !Url::parse(&place).is_ok_and(|place| usable(&place)) {
        return refuse("oauth.client_metadata_url must be an https URL with a path".to_owned());
    }
    Ok(match authority::supports_metadata_documents(metadata) {
        true => Known::As { id: place, secret: None },
        false => Known::Unknown,
    })
}

/// Scopes to request: the configured scopes or those that the server asks for, plus those that the last login requested
/// but did not get (MCP 2026-07-28 §Step-Up Authorization Flow), if it used the same authorization server.
async fn scopes(
    manager: &AuthorizationManager,
    config: &Config,
    issuer: &str,
    before: Option<&Grant>,
) -> Vec<String> {
    let settings = config.oauth.as_ref().map(|settings| settings.scopes.clone());
    let first = match settings.filter(|scopes| !scopes.is_empty()) {
        Some(scopes) => scopes,
        None => manager.select_initial_scopes(&[]).await,
    };
    let before = before.filter(|before| before.metadata.issuer.as_deref() == Some(issuer));
    let more = before.into_iter().flat_map(|before| before.requested.iter().chain(&before.wanted));
    oauth::union(first.into_iter().chain(more.cloned()))
}

/// Registers the client if necessary and prepares the authorization.
async fn begin(
    mut manager: AuthorizationManager,
    known: Known,
    scopes: Vec<String>,
    redirect: &str,
) -> Result<(AuthorizationSession, OAuthClientConfig), LoginError> {
    let client = match known {
        Known::As { id, secret } => {
            let client = OAuthClientConfig::new(id, redirect);
            match secret {
                Some(secret) => client.with_client_secret(secret),
                None => client,
            }
        }
        Known::Unknown => {
            let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
            let registered = manager.register_client(CLIENT_NAME, redirect, &scopes).await;
            registered.map_err(|error| match error {
                AuthError::RegistrationFailed(why) if why.contains("not supported") => {
                    LoginError::Config(
                        "its authorization server does not support client registration: register a client \
                         there and put its id into oauth.client_id"
                            .to_owned(),
                    )
                }
                error => unusable(error),
            })?
        }
    };
    let mut request = AuthorizationRequest::new(redirect)
        .with_scopes(scopes)
        .with_initial_scope_selection()
        .with_preregistered_client(client.client_id.clone());
    if let Some(secret) = &client.client_secret {
        request = request.with_client_secret(secret.clone());
    }
    let session = AuthorizationSession::new(manager, request).await;
    Ok((session.map_err(|(_, error)| unusable(error))?, client))
}

/// Maximum size of a request head, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Maximum time to receive a request head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections: browsers open some that they do not use.
const MAX_CONNECTIONS: usize = 16;
const PATH: &str = "/callback";

/// Result of the redirect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Returned {
    /// An authorization code.
    Granted {
        code: String,
        /// Issuer that sent the code (RFC 9207).
        issuer: Option<String>,
    },
    Denied {
        /// Error and description as received.
        why: String,
        issuer: Option<String>,
    },
}

/// Listener for the redirect of one login.
#[derive(Debug)]
pub(super) struct Callback {
    listener: TcpListener,
    /// Redirect URI.
    pub(super) redirect: String,
}

impl Callback {
    pub(super) async fn bind() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let redirect = format!("http://{}{PATH}", listener.local_addr()?);
        Ok(Self { listener, redirect })
    }

    /// Waits for a redirect with this `state`. The browser keeps waiting for its page.
    pub(super) async fn wait(&self, state: &str) -> io::Result<(Returned, OutcomePage)> {
        let mut connections: JoinSet<Option<(Returned, OutcomePage)>> = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if connections.len() < MAX_CONNECTIONS => {
                    let (stream, _) = accepted?;
                    let state = state.to_owned();
                    connections.spawn(async move {
                        let serving = serve(stream, &state);
                        tokio::time::timeout(HEAD_TIMEOUT, serving).await.ok().flatten()
                    });
                }
                Some(ended) = connections.join_next() => {
                    if let Ok(Some(returned)) = ended {
                        return Ok(returned);
                    }
                }
            }
        }
    }
}

/// Browser connection that waits for the result of the login.
#[derive(Debug)]
pub(super) struct OutcomePage(TcpStream);

impl OutcomePage {
    /// Shows the result on a best-effort basis, within [`HEAD_TIMEOUT`].
    pub(super) async fn show(self, text: &str) {
        let _ = tokio::time::timeout(HEAD_TIMEOUT, respond(self.0, "200 OK", text)).await;
    }
}

async fn respond(mut stream: TcpStream, status: &str, text: &str) {
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    );
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

async fn serve(mut stream: TcpStream, state: &str) -> Option<(Returned, OutcomePage)> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() > MAX_HEAD_BYTES || stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let target = std::str::from_utf8(&head).ok()?.lines().next().and_then(|line| {
        line.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()).map(str::to_owned)
    });
    match target.and_then(|target| returned(&target, state)) {
        Some(returned) => Some((returned, OutcomePage(stream))),
        None => {
            respond(stream, "404 Not Found", "No login is waiting for this request.").await;
            None
        }
    }
}

/// Parses a request target; `None` unless it has the expected `state`.
fn returned(target: &str, state: &str) -> Option<Returned> {
    let url = Url::parse("http://127.0.0.1").ok()?.join(target).ok()?;
    let one = |name: &str| {
        let mut values = url.query_pairs().filter(|(key, _)| key == name);
        let first = values.next().map(|(_, value)| value.into_owned());
        first.filter(|_| values.next().is_none())
    };
    let ours = url.path() == PATH && one("state").as_deref() == Some(state);
    if !ours {
        return None;
    }
    match (one("code"), one("error")) {
        (Some(code), None) => Some(Returned::Granted { code, issuer: one("iss") }),
        (_, Some(error)) => {
            let more = one("error_description").map(|more| format!(": {more}")).unwrap_or_default();
            Some(Returned::Denied { why: format!("{error}{more}"), issuer: one("iss") })
        }
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_redirects_with_the_state_are_accepted() {
        let granted = |issuer: Option<&str>| Returned::Granted {
            code: "c d".into(),
            issuer: issuer.map(str::to_owned),
        };
        for (target, expected) in [
            ("/callback?code=c%20d&state=s1", Some(granted(None))),
            ("/callback?state=s1&iss=https%3A%2F%2Fas&code=c+d", Some(granted(Some("https://as")))),
            ("/callback?code=c&state=s2", None),
            ("/callback?code=c&state=s1&state=s2", None),
            ("/callback?code=c", None),
            ("/callback?state=s1", None),
            ("/other?code=c&state=s1", None),
            (
                "/callback?error=access_denied&error_description=no&state=s1&iss=https://as",
                Some(Returned::Denied {
                    why: "access_denied: no".into(),
                    issuer: Some("https://as".into()),
                }),
            ),
            ("/callback?error=access_denied&state=s2", None),
        ] {
            assert_eq!(returned(target, "s1"), expected, "{target}");
        }
    }

    #[tokio::test]
    async fn pro_25_foreign_redirect_does_not_end_the_login_and_the_page_shows_its_result() {
        let callback = Callback::bind().await.unwrap();
        let address = callback.listener.local_addr().unwrap();
        let ask = async |target: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let browser = async {
            let _unused = TcpStream::connect(address).await.unwrap();
            assert!(ask("/callback?code=evil&state=guess").await.starts_with("HTTP/1.1 404"));
            let shown = ask("/callback?code=good&state=s1").await;
            assert!(shown.starts_with("HTTP/1.1 200") && shown.ends_with("It failed."), "{shown}");
        };
        let login = async {
            let (returned, page) = callback.wait("s1").await.unwrap();
            page.show("It failed.").await;
            returned
        };
        let (returned, ()) = tokio::join!(login, browser);
        assert_eq!(returned, Returned::Granted { code: "good".into(), issuer: None });
    }
}
