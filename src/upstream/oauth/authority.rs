//! Authorization server of an upstream: discovery (RFC 9728, then RFC 8414), the proxy's requirements, and login
//! errors.
//!
//! rmcp fetches the documents and verifies that each one describes the server that published it. This module also
//! requires published metadata on the server's own origin, PKCE with S256, and endpoints that pass the address policy.
//!
//! The server is probed without a token in both protocol families, using only requests without side effects. A server
//! that protects only calls is recognized by its published metadata.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, WWW_AUTHENTICATE};
use http::response::Parts;
use http::{Method, Request, StatusCode};
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadata, AuthorizationMetadataSource,
    WWWAuthenticateParams,
};
use serde_json::{Value, json};
use thiserror::Error;
use url::Url;

use crate::oauth::client::{AddressPolicy, LoginClient};
use crate::oauth::store::{Grant, TokenStoreError};
use crate::request::Params;
use crate::server_log::ServerLog;
use mcpproxy_protocol::mcp::headers;
use mcpproxy_protocol::mcp::revisions::{MODERN, NEWEST_LEGACY, ProtocolFamily};

/// rmcp's protocol implementation for the server at `url`.
pub(super) async fn manager(
    url: &Url,
    client: LoginClient,
) -> Result<AuthorizationManager, LoginError> {
    AuthorizationManager::new_with_oauth_http_client(url.as_str(), Arc::new(client))
        .await
        .map_err(unusable)
}

/// Finds the authorization server of the server at `url`; `answered` is that server's response to the probe. Metadata
/// that names the server with a trailing slash is accepted.
pub(super) async fn find(
    url: &Url,
    client: LoginClient,
    answered: &Answered,
) -> Result<(AuthorizationManager, AuthorizationMetadata), LoginError> {
    let plain = manager(url, client.clone()).await?;
    let error = match discover(&plain, url, answered).await {
        Ok(metadata) => return Ok((plain, metadata)),
        Err(error) => error,
    };
    let mut slashed = url.clone();
    slashed.set_path(&format!("{}/", url.path()));
    if url.path().ends_with('/') {
        return Err(error);
    }
    let slashed = manager(&slashed, client).await?;
    match discover(&slashed, url, answered).await {
        Ok(metadata) => Ok((slashed, metadata)),
        Err(_) => Err(error),
    }
}

/// Finds the authorization server. The manager's URL is used as the name of the server.
async fn discover(
    manager: &AuthorizationManager,
    url: &Url,
    answered: &Answered,
) -> Result<AuthorizationMetadata, LoginError> {
    let Some(challenge) = &answered.challenge else {
        // The server may require a login only for calls, so its published metadata decides.
        let status = answered.status.as_u16();
        return published(manager).await.ok_or(LoginError::NotAsked(status));
    };
    let named = WWWAuthenticateParams::parse(challenge, url);
    if let Some(elsewhere) = named.resource_metadata_url
        && elsewhere.origin() != url.origin()
    {
        let text = format!("its metadata is at another origin, {elsewhere}");
        return Err(LoginError::Unusable(text));
    }
    let challenge = (!challenge.is_empty()).then_some(&**challenge);
    let found = manager.resolve_metadata_from_challenge(challenge).await.map_err(unusable)?;
    match found.source.is_discovered() {
        true => Ok(found.metadata),
        false => Err(LoginError::Unusable(
            "it publishes no authorization metadata (RFC 9728, RFC 8414)".to_owned(),
        )),
    }
}

/// Authorization server named in the server's protected resource metadata.
pub(super) async fn published(manager: &AuthorizationManager) -> Option<AuthorizationMetadata> {
    let found = manager.resolve_metadata().await.ok()?;
    let described = found.source == AuthorizationMetadataSource::ProtectedResourceMetadata;
    described.then_some(found.metadata)
}

/// Checks the proxy's requirements.
pub(super) fn check(
    metadata: &AuthorizationMetadata,
    policy: &AddressPolicy,
) -> Result<(), LoginError> {
    let refuse = |why: String| Err(LoginError::Unusable(why));
    let methods = metadata.code_challenge_methods_supported.as_deref().unwrap_or_default();
    if !methods.iter().any(|method| method == "S256") {
        return refuse("its authorization server does not support PKCE with S256".to_owned());
    }
    if metadata.authorization_endpoint.is_empty() {
        let why = "its authorization server has no authorization_endpoint, which a person needs to log in";
        return refuse(why.to_owned());
    }
    let endpoints = [
        Some(&metadata.authorization_endpoint),
        Some(&metadata.token_endpoint),
        metadata.registration_endpoint.as_ref(),
    ];
    for endpoint in endpoints.into_iter().flatten() {
        let checked = Url::parse(endpoint).map_err(|error| error.to_string());
        if let Err(why) = checked.and_then(|endpoint| policy.check(&endpoint)) {
            return refuse(why);
        }
    }
    Ok(())
}

/// Checks that a registered client belongs to the authorization server, because its secret must not be sent to another
/// one. `at` is the configured issuer; if it is missing, the issuer of this client's last grant is used.
pub(super) fn check_issuer(
    metadata: &AuthorizationMetadata,
    client_id: &str,
    at: Option<&String>,
    before: Option<&Grant>,
) -> Result<(), LoginError> {
    let used = before.filter(|before| before.client_id == client_id);
    let at = at.or(used.and_then(|before| before.metadata.issuer.as_ref()));
    let issuer = metadata.issuer.as_deref().unwrap_or_default();
    match at.filter(|at| *at != issuer) {
        None => Ok(()),
        Some(at) => Err(LoginError::Config(format!(
            "oauth.client_id is registered at {at}, and the authorization server is {issuer} now: \
             register a client there, and put its id and that issuer into oauth"
        ))),
    }
}

/// Resource parameter of token requests (RFC 8707). rmcp exposes it only in an authorization URL, which is built
/// for this purpose and discarded.
pub(super) async fn resource(
    manager: &mut AuthorizationManager,
    metadata: &AuthorizationMetadata,
) -> Result<String, LoginError> {
    let mut shown = AuthorizationMetadata::default();
    shown.authorization_endpoint.clone_from(&metadata.token_endpoint);
    shown.token_endpoint.clone_from(&metadata.token_endpoint);
    shown.code_challenge_methods_supported = Some(vec!["S256".to_owned()]);
    manager.set_metadata(shown);
    manager.configure_client_id("unused").map_err(unusable)?;
    let url = manager.get_authorization_url(&[]).await.map_err(unusable)?;
    let url = Url::parse(&url).map_err(|error| LoginError::Unusable(error.to_string()))?;
    query(&url, "resource")
}

/// Parameter of an authorization URL.
pub(super) fn query(url: &Url, name: &str) -> Result<String, LoginError> {
    let value = url.query_pairs().find(|(key, _)| key == name);
    value
        .map(|(_, value)| value.into_owned())
        .ok_or_else(|| LoginError::Unusable(format!("the login's URL has no {name}")))
}

/// Whether `issuer` matches the authorization server (RFC 9207 §2.4).
pub(super) fn is_from_issuer(metadata: &AuthorizationMetadata, issuer: Option<&str>) -> bool {
    match issuer {
        Some(issuer) => metadata.issuer.as_deref() == Some(issuer),
        None => !has_flag(metadata, "authorization_response_iss_parameter_supported"),
    }
}

/// Whether client ID metadata documents are supported (MCP 2026-07-28 §Client ID Metadata Documents).
pub(super) fn supports_metadata_documents(metadata: &AuthorizationMetadata) -> bool {
    has_flag(metadata, "client_id_metadata_document_supported")
}

fn has_flag(metadata: &AuthorizationMetadata, name: &str) -> bool {
    metadata.additional_fields.get(name).and_then(Value::as_bool) == Some(true)
}

/// Members of the metadata (RFC 8414 §2) without a field in rmcp's type.
pub(super) const TOKEN_METHODS: &str = "token_endpoint_auth_methods_supported";
pub(super) const REVOCATION_ENDPOINT: &str = "revocation_endpoint";
pub(super) const REVOCATION_METHODS: &str = "revocation_endpoint_auth_methods_supported";

/// Part of the metadata needed by renewals and the logout.
pub(super) fn endpoints(metadata: &AuthorizationMetadata) -> AuthorizationMetadata {
    let mut kept = AuthorizationMetadata::default();
    kept.authorization_endpoint.clone_from(&metadata.authorization_endpoint);
    kept.token_endpoint.clone_from(&metadata.token_endpoint);
    kept.issuer.clone_from(&metadata.issuer);
    for name in [TOKEN_METHODS, REVOCATION_ENDPOINT, REVOCATION_METHODS] {
        let value = metadata.additional_fields.get(name);
        kept.additional_fields.extend(value.map(|value| (name.to_owned(), value.clone())));
    }
    kept
}

const LIST: &str = "tools/list";
const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Response of a server to requests without a token.
#[derive(Debug)]
pub(super) struct Answered {
    /// Status of the first response.
    pub(super) status: StatusCode,
    /// Value of `WWW-Authenticate` if a login is required; possibly empty.
    pub(super) challenge: Option<String>,
}

/// Sends requests until the server requires a login or lists its tools. Fails if the server is unreachable.
pub(super) async fn probe(
    client: &LoginClient,
    url: &Url,
    headers: &[(String, String)],
) -> Result<Answered, String> {
    let probe = Probe { client, url, headers };
    let us = json!({"name": "mcpproxy", "version": env!("CARGO_PKG_VERSION")});
    let params = json!({"protocolVersion": NEWEST_LEGACY, "capabilities": {}, "clientInfo": us});
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
    let first = probe.post(hello.to_string().into_bytes(), &[]).await?;
    let status = first.status;
    let challenge = match challenge(&first) {
        Some(challenge) => Some(challenge),
        None => probe.list(&first.headers, status.is_success()).await,
    };
    Ok(Answered { status, challenge })
}

struct Probe<'a> {
    client: &'a LoginClient,
    url: &'a Url,
    headers: &'a [(String, String)],
}

impl Probe<'_> {
    /// Lists the tools in the legacy session, then in 2026-07-28.
    async fn list(&self, begun: &HeaderMap, initialized: bool) -> Option<String> {
        let list = |family| {
            let (first, rest) = Params::of(LIST, Bytes::from_static(b"{}")).body(1, family);
            [&first, &*rest.concat()].concat()
        };
        let asked = async |message: Vec<u8>, own: &[(&str, &str)]| {
            self.post(message, own).await.ok().as_ref().and_then(challenge)
        };
        if initialized {
            let session = begun.get(headers::SESSION_ID).and_then(|id| id.to_str().ok());
            let session: Vec<_> = session.map(|id| (headers::SESSION_ID, id)).into_iter().collect();
            let mut found = asked(INITIALIZED.to_vec(), &session).await;
            if found.is_none() {
                found = asked(list(ProtocolFamily::Legacy), &session).await;
            }
            if !session.is_empty() {
                // Best effort, because the session is no longer needed.
                let _ = self.send(Method::DELETE, Vec::new(), &session).await;
            }
            if found.is_some() {
                return found;
            }
        }
        let modern = [(headers::PROTOCOL_VERSION, MODERN), (headers::METHOD, LIST)];
        asked(list(ProtocolFamily::Modern), &modern).await
    }

    async fn post(&self, message: Vec<u8>, own: &[(&str, &str)]) -> Result<Parts, String> {
        self.send(Method::POST, message, own).await
    }

    async fn send(
        &self,
        method: Method,
        body: Vec<u8>,
        own: &[(&str, &str)],
    ) -> Result<Parts, String> {
        let mut request = Request::builder().method(method).uri(self.url.as_str());
        request = request.header(CONTENT_TYPE, "application/json");
        let operators = self.headers.iter().map(|(name, value)| (&**name, &**value));
        for (name, value) in operators.chain(own.iter().copied()) {
            request = request.header(name, value);
        }
        let request = request.body(body).map_err(|error| error.to_string())?;
        self.client.ask(request).await
    }
}

/// Challenge of a response that requires a login.
fn challenge(head: &Parts) -> Option<String> {
    (head.status == StatusCode::UNAUTHORIZED).then(|| {
        let all = head.headers.get_all(WWW_AUTHENTICATE).iter();
        all.filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(", ")
    })
}

/// Reason why a login failed. Each text is one line without secrets.
#[derive(Debug, Error)]
pub enum LoginError {
    /// The config entry does not allow a login.
    #[error("{0}")]
    Config(String),
    /// The server is a child process.
    #[error("it is a command, and only servers with a url ask for a login")]
    NoUrl,
    /// The server responds without a login.
    #[error("it does not ask for a login: it answers HTTP {0} without one")]
    NotAsked(u16),
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    /// The authorization server is not published, or violates the proxy's requirements.
    #[error("its login cannot be used: {0}")]
    Unusable(String),
    /// The user or the authorization server rejected the login.
    #[error("nothing was granted: {0}")]
    Denied(String),
    /// The browser did not return in time.
    #[error("nobody logged in within {0:?}")]
    Late(Duration),
    #[error("the tokens cannot be stored: {0}")]
    Store(#[from] TokenStoreError),
}

impl LoginError {
    /// Redacts and bounds the text.
    pub(super) fn quoted(self, server_log: &ServerLog) -> Self {
        let quote = |text: String| server_log.quote(text).to_string();
        match self {
            Self::Config(text) => Self::Config(quote(text)),
            Self::Unreachable(text) => Self::Unreachable(quote(text)),
            Self::Unusable(text) => Self::Unusable(quote(text)),
            Self::Denied(text) => Self::Denied(quote(text)),
            Self::NoUrl | Self::NotAsked(_) | Self::Late(_) | Self::Store(_) => self,
        }
    }
}

pub(super) fn unusable(error: AuthError) -> LoginError {
    let mut text = error_chain(&error);
    text.truncate(text.trim_end_matches([':', ' ']).len());
    if let AuthError::RegistrationFailed(_) = error {
        text.push_str("; register a client by hand and set its oauth.client_id");
    }
    LoginError::Unusable(text)
}

/// Error with its causes, not redacted.
pub(super) fn error_chain(error: &AuthError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuer_of_a_response_must_match() {
        const SUPPORTED: &str = "authorization_response_iss_parameter_supported";
        for (supported, by, expected) in [
            (true, Some("https://as"), true),
            (true, Some("https://as/"), false),
            (true, Some("https://evil"), false),
            (true, None, false),
            (false, Some("https://as"), true),
            (false, Some("https://evil"), false),
            (false, None, true),
        ] {
            let mut metadata = AuthorizationMetadata::default();
            metadata.issuer = Some("https://as".into());
            metadata.additional_fields.insert(SUPPORTED.into(), supported.into());
            assert_eq!(is_from_issuer(&metadata, by), expected, "{supported} {by:?}");
        }
    }
}
