//! Renewal of a grant's tokens, without a person.

use std::sync::{Arc, OnceLock};

use rmcp::transport::auth::{
    AuthError, AuthorizationManager, CredentialStore, InMemoryCredentialStore, OAuthClientConfig,
    StoredCredentials,
};
use tokio_rustls::TlsConnector;
use url::Url;

use super::authority;
use super::client::{AddressPolicy, LoginClient};
use super::login_error::words;
use super::store::Grant;
use super::token_response::take;

/// Why tokens could not be renewed.
#[derive(Debug)]
pub(super) enum NotRenewed {
    /// The authorization server will not, or there is nothing to renew with.
    Refused,
    /// It could not be asked; it may be another time.
    Failed(String),
}

/// Renews the tokens of a grant.
pub(super) async fn renew(
    grant: &Grant,
    tls: &Arc<OnceLock<TlsConnector>>,
) -> Result<Grant, NotRenewed> {
    let Some(refresh_token) = &grant.refresh_token else { return Err(NotRenewed::Refused) };
    let failed = |error: &dyn std::fmt::Display| NotRenewed::Failed(error.to_string());
    let url = Url::parse(&grant.url).map_err(|error| failed(&error))?;
    let client = Arc::new(LoginClient::new(AddressPolicy::new(&url), Arc::clone(tls)));
    // What tokens are asked for is named after the manager's own URL.
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
        Err(error) => Err(NotRenewed::Failed(words(&error))),
    }
}

/// Whether the server names another authorization server now than the one that gave the grant. It
/// counts as not moved where that cannot be found out.
pub(super) async fn moved(grant: &Grant, tls: &Arc<OnceLock<TlsConnector>>) -> bool {
    let Ok(url) = Url::parse(&grant.url) else { return false };
    let client = LoginClient::new(AddressPolicy::new(&url), Arc::clone(tls));
    let Ok(manager) = authority::manager(&url, client).await else { return false };
    let issuer = authority::published(&manager).await.and_then(|metadata| metadata.issuer);
    issuer.is_some() && issuer != grant.metadata.issuer
}
