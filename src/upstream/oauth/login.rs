//! One login, from the server's challenge to tokens on disk.
//!
//! rmcp takes the protocol's steps. Who may log in for a server is [`super::authority`]'s, what a
//! server asks for [`super::approach`]'s and [`super::challenge`]'s business.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadata, AuthorizationRequest,
    AuthorizationSession, OAuthClientConfig,
};
use url::Url;

use super::approach::approach;
use super::callback::{Callback, Returned};
use super::client::{AddressPolicy, LoginClient};
use super::login_error::{LoginError, unusable, words};
use super::store::{Grant, TokenStore};
use super::token_response::take;
use super::{authority, challenge};
use crate::io::address::UNIX;
use crate::secrets::Secrets;
use crate::upstream::config::{Config, Target};
use crate::upstream::peer::Peer;

/// Our name at authorization servers.
const CLIENT_NAME: &str = "mcpproxy";

/// What a login led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedIn {
    /// Who gave the tokens.
    pub issuer: String,
    /// What they are good for; empty: the server did not say.
    pub scopes: Vec<String>,
    /// True if they can be renewed without a person.
    pub renewable: bool,
}

/// Logs in with the server that `config` names, called `name`: `show` is given the URL to be
/// opened in a browser, and the person has until `limit`. The tokens are kept under `data_dir`.
///
/// # Errors
///
/// [`LoginError`]; nothing was kept then.
pub async fn login(
    name: &str,
    config: &Config,
    data_dir: &Path,
    limit: Duration,
    show: impl FnOnce(&str),
) -> Result<LoggedIn, LoginError> {
    let peer = Peer::new(name.into(), Arc::new(Secrets::new(config.secrets())));
    let logged_in = attempt(&peer, config, data_dir, limit, show).await;
    logged_in.map_err(|error| error.quoted(&peer))
}

/// The same; its errors are not fit to be told.
async fn attempt(
    peer: &Peer,
    config: &Config,
    data_dir: &Path,
    limit: Duration,
    show: impl FnOnce(&str),
) -> Result<LoggedIn, LoginError> {
    let EntryRead { url, headers, client_secret } = read(peer, config).await?;
    let policy = AddressPolicy::new(&url);
    policy.check(&url).map_err(LoginError::Config)?;
    let client = LoginClient::new(policy.clone(), Arc::new(OnceLock::new()));
    let answered = approach(&client, &url, &headers).await.map_err(LoginError::Unreachable)?;
    let mut manager = authority::manager(&url, client).await?;
    let metadata = authority::discover(&manager, &url, &answered).await?;
    authority::check(&metadata, &policy)?;
    let issuer = metadata.issuer.clone().unwrap_or_default();
    let store = TokenStore::new(data_dir, &peer.name);
    let before = before(&store, &url).await;
    manager.set_metadata(metadata.clone());
    let callback =
        Callback::bind().await.map_err(|error| LoginError::Unusable(error.to_string()))?;
    let known = who(config, client_secret, &metadata, before.as_ref())?;
    let scopes = scopes(&manager, config, &issuer, before.as_ref()).await;
    let (session, client) = begin(manager, known, scopes, &callback.redirect).await?;
    let auth_url = Url::parse(session.get_authorization_url())
        .map_err(|error| LoginError::Unusable(error.to_string()))?;
    let (state, resource) = (query(&auth_url, "state")?, query(&auth_url, "resource")?);
    let requested = challenge::scopes(&query(&auth_url, "scope").unwrap_or_default());
    peer.secrets.learn([&*state]);
    show(auth_url.as_str());
    let returned = tokio::time::timeout(limit, callback.wait(&state)).await;
    let (code, by) = match returned.map_err(|_| LoginError::Late(limit))? {
        Ok(Returned::Granted { code, issuer }) => (code, issuer),
        Ok(Returned::Denied { why, issuer: by }) => {
            // Whoever it is does not get to say why (MCP 2026-07-28 §Authorization Response
            // Validation).
            return Err(match authority::answers(&metadata, by.as_deref()) {
                true => LoginError::Denied(why),
                false => {
                    LoginError::Unusable(format!("the answer is not from its issuer {issuer}"))
                }
            });
        }
        Err(error) => return Err(LoginError::Unusable(error.to_string())),
    };
    peer.secrets.learn([&*code]);
    let response = session
        .handle_callback_with_issuer(&code, &state, by.as_deref())
        .await
        .map_err(|error| LoginError::Denied(words(&error)))?;
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
        fruitless: before.filter(Grant::asked_in_vain).map_or(0, |before| before.fruitless),
        received_at: 0,
        expires_at: None,
    };
    let grant = take(grant, &response).map_err(LoginError::Unusable)?;
    let logged_in =
        LoggedIn { issuer, scopes: grant.scopes.clone(), renewable: grant.refresh_token.is_some() };
    let kept = tokio::task::spawn_blocking(move || {
        let _lock = store.lock()?;
        store.save(&grant)
    });
    kept.await.map_err(|error| LoginError::Unusable(error.to_string()))??;
    Ok(logged_in)
}

/// What a server's entry says, with what it names.
struct EntryRead {
    url: Url,
    /// The operator's, for the server.
    headers: Vec<(String, String)>,
    /// Of the client that was registered by hand, if there is one.
    client_secret: Option<String>,
}

/// Reads what the entry names, which may take as long as a keyring's user does, and is secret from then on.
async fn read(peer: &Peer, config: &Config) -> Result<EntryRead, LoginError> {
    let config = config.clone();
    let read = tokio::task::spawn_blocking(move || {
        let (url, headers) = target(&config)?;
        let registered = config.oauth.as_ref().is_some_and(|oauth| oauth.client_id.is_some());
        let secret = registered.then(|| config.oauth_secret(&|name| std::env::var(name).ok()));
        let client_secret = secret.transpose().map_err(|it| LoginError::Config(it.to_string()))?;
        let of_target = Target::Http { url: url.to_string(), headers: headers.clone() };
        let secrets = config.secrets_of(&of_target);
        let client_secret = client_secret.flatten();
        Ok::<_, LoginError>((EntryRead { url, headers, client_secret }, secrets))
    });
    let (read, secrets) =
        read.await.map_err(|error| LoginError::Unusable(error.to_string())).flatten()?;
    peer.secrets.learn(secrets.iter().chain(&read.client_secret).map(String::as_str));
    Ok(read)
}

/// Where the server is, and the operator's headers for it.
fn target(config: &Config) -> Result<(Url, Vec<(String, String)>), LoginError> {
    let wrong = |why: String| Err(LoginError::Config(why));
    let (url, headers) = match config.target(&|name| std::env::var(name).ok()) {
        Ok(Target::Http { url, headers }) => (url, headers),
        Ok(Target::Stdio { .. }) => {
            return wrong("it is a command, and only servers with a url ask for a login".into());
        }
        Err(invalid) => return wrong(invalid.to_string()),
    };
    if headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization")) {
        return wrong("its headers hold an Authorization, which is sent instead of a login".into());
    }
    if url.starts_with(UNIX) {
        return wrong("it is a Unix socket, and only servers of the web ask for a login".into());
    }
    match Url::parse(&url) {
        Ok(url) => Ok((url, headers)),
        Err(error) => wrong(format!("url cannot be read: {error}")),
    }
}

/// What the last login with this server left behind. What cannot be read is as good as nothing:
/// it is replaced.
async fn before(store: &TokenStore, url: &Url) -> Option<Grant> {
    let store = store.clone();
    let loaded = tokio::task::spawn_blocking(move || store.load()).await;
    loaded.ok()?.ok()?.filter(|grant| grant.url == url.as_str())
}

/// How we are known at the authorization server.
enum Known {
    /// By what is registered there, or by where we describe ourselves.
    As { id: String, secret: Option<String> },
    /// Not yet.
    Unknown,
}

/// Who we are at the authorization server (MCP 2026-07-28 §Client Registration, in its order).
/// What was registered at one is not told to another.
fn who(
    config: &Config,
    secret: Option<String>,
    metadata: &AuthorizationMetadata,
    before: Option<&Grant>,
) -> Result<Known, LoginError> {
    let settings = config.oauth.clone().unwrap_or_default();
    let refuse = |why: String| Err(LoginError::Config(why));
    if let Some(id) = settings.client_id {
        let used = before.filter(|before| before.client_id == id);
        let used = used.and_then(|before| before.metadata.issuer.clone());
        let issuer = metadata.issuer.clone().unwrap_or_default();
        if let Some(at) = settings.issuer.or(used).filter(|at| *at != issuer) {
            return refuse(format!(
                "oauth.client_id is registered at {at}, and the authorization server is {issuer} \
                 now: register a client there, and put its id and that issuer into oauth"
            ));
        }
        return Ok(Known::As { id, secret });
    }
    let Some(place) = settings.client_metadata_url else { return Ok(Known::Unknown) };
    let usable = |place: &Url| place.scheme() == "https" && place.path() != "/";
    if !Url::parse(&place).is_ok_and(|place| usable(&place)) {
        return refuse("oauth.client_metadata_url must be an https URL with a path".to_owned());
    }
    Ok(match authority::reads_descriptions(metadata) {
        true => Known::As { id: place, secret: None },
        false => Known::Unknown,
    })
}

/// What to ask for: what the operator says or the server asks for, and what the last login asked
/// for and lacked (MCP 2026-07-28 §Step-Up Authorization Flow). Another authorization server's
/// scopes mean nothing.
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
    challenge::union(first.into_iter().chain(more.cloned()))
}

/// Registers, unless we are known, and prepares the authorization.
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
                        "its authorization server lets no client register itself: register one \
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

fn query(url: &Url, name: &str) -> Result<String, LoginError> {
    let value = url.query_pairs().find(|(key, _)| key == name);
    value
        .map(|(_, value)| value.into_owned())
        .ok_or_else(|| LoginError::Unusable(format!("the login's URL has no {name}")))
}
