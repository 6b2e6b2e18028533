//! Who logs in for a server: found (RFC 9728, then RFC 8414), and held to what we insist on.
//!
//! rmcp finds and reads the documents, and sees to it that they name themselves. Beyond that we
//! insist on: metadata that was published, on the server's own origin; PKCE by S256, stated;
//! endpoints that may be asked.

use std::sync::Arc;

use rmcp::transport::auth::{
    AuthorizationManager, AuthorizationMetadata, AuthorizationMetadataSource, WWWAuthenticateParams,
};
use serde_json::Value;
use url::Url;

use super::approach::Answered;
use super::client::{AddressPolicy, LoginClient};
use super::login_error::{LoginError, unusable};

/// Takes the protocol's steps for the server at `url`.
pub(super) async fn manager(
    url: &Url,
    client: LoginClient,
) -> Result<AuthorizationManager, LoginError> {
    AuthorizationManager::new_with_oauth_http_client(url.as_str(), Arc::new(client))
        .await
        .map_err(unusable)
}

/// Who logs in for the server at `url`, which has `answered` so.
pub(super) async fn discover(
    manager: &AuthorizationManager,
    url: &Url,
    answered: &Answered,
) -> Result<AuthorizationMetadata, LoginError> {
    let Some(challenge) = &answered.challenge else {
        // It may ask for a login where there is no looking: what it says of itself counts.
        let status = answered.status.as_u16();
        return published(manager).await.ok_or(LoginError::NotAsked(status));
    };
    let named = WWWAuthenticateParams::parse(challenge, url);
    if let Some(elsewhere) = named.resource_metadata_url
        && elsewhere.origin() != url.origin()
    {
        let text = format!("it describes itself at another place, {elsewhere}");
        return Err(LoginError::Unusable(text));
    }
    let challenge = (!challenge.is_empty()).then_some(&**challenge);
    let found = manager.resolve_metadata_from_challenge(challenge).await.map_err(unusable)?;
    match found.source.is_discovered() {
        true => Ok(found.metadata),
        false => Err(LoginError::Unusable(
            "it publishes nothing about who logs in (RFC 9728, RFC 8414)".to_owned(),
        )),
    }
}

/// The authorization server that the server's own description names, if it has one.
pub(super) async fn published(manager: &AuthorizationManager) -> Option<AuthorizationMetadata> {
    let found = manager.resolve_metadata().await.ok()?;
    let described = found.source == AuthorizationMetadataSource::ProtectedResourceMetadata;
    described.then_some(found.metadata)
}

/// What we insist on.
pub(super) fn check(
    metadata: &AuthorizationMetadata,
    policy: &AddressPolicy,
) -> Result<(), LoginError> {
    let refuse = |why: String| Err(LoginError::Unusable(why));
    let methods = metadata.code_challenge_methods_supported.as_deref().unwrap_or_default();
    if !methods.iter().any(|method| method == "S256") {
        return refuse("its authorization server does not support PKCE with S256".to_owned());
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

/// Whether an answer from `issuer` is the authorization server's (RFC 9207 §2.4).
pub(super) fn answers(metadata: &AuthorizationMetadata, issuer: Option<&str>) -> bool {
    match issuer {
        Some(issuer) => metadata.issuer.as_deref() == Some(issuer),
        None => !says(metadata, "authorization_response_iss_parameter_supported"),
    }
}

/// Whether clients can describe themselves at a URL (MCP 2026-07-28 §Client ID Metadata Documents).
pub(super) fn reads_descriptions(metadata: &AuthorizationMetadata) -> bool {
    says(metadata, "client_id_metadata_document_supported")
}

fn says(metadata: &AuthorizationMetadata, name: &str) -> bool {
    metadata.additional_fields.get(name).and_then(Value::as_bool) == Some(true)
}

/// As much of the metadata as renewals need.
pub(super) fn endpoints(metadata: &AuthorizationMetadata) -> AuthorizationMetadata {
    const METHODS: &str = "token_endpoint_auth_methods_supported";
    let mut kept = AuthorizationMetadata::default();
    kept.authorization_endpoint.clone_from(&metadata.authorization_endpoint);
    kept.token_endpoint.clone_from(&metadata.token_endpoint);
    kept.issuer.clone_from(&metadata.issuer);
    let methods = metadata.additional_fields.get(METHODS);
    kept.additional_fields.extend(methods.map(|methods| (METHODS.to_owned(), methods.clone())));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_held_to_the_issuer_it_names() {
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
            assert_eq!(answers(&metadata, by), expected, "{supported} {by:?}");
        }
    }
}
