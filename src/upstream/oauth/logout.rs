//! Logout: removes the tokens of a server locally and revokes them at its authorization server (RFC 7009).
//!
//! Tokens are always removed first. A failed revocation is reported and not repeated: by then the tokens are no longer
//! known, and they expire with their lifetime.

use std::path::Path;
use std::sync::Arc;

use http::Request;
use serde_json::Value;
use url::Url;

use crate::config::Config;
use crate::oauth::authority::{LoginError, REVOCATION_ENDPOINT, REVOCATION_METHODS, TOKEN_METHODS};
use crate::oauth::client::{AddressPolicy, LoginClient, LoginTransport};
use crate::oauth::client_credentials;
use crate::oauth::login::entry_of;
use crate::oauth::store::{Grant, TokenStore, TokenStoreError};
use crate::server_log::ServerLog;
use mcpproxy_runtime::secrets::Secrets;

/// Result of a logout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoggedOut {
    /// There were no tokens.
    NotLoggedIn,
    /// The authorization server has confirmed that the tokens are no longer valid.
    Revoked,
    /// The tokens are removed locally but stay valid at the authorization server until they expire. The reason is one
    /// line without secrets.
    Removed(String),
}

/// Removes the tokens of the server `name` from `data_dir` and revokes them. An error means that they still exist.
pub async fn log_out(
    name: &str,
    config: &Config,
    data_dir: &Path,
) -> Result<LoggedOut, LoginError> {
    let server_log = ServerLog::new(name.into(), Arc::new(Secrets::new(config.secrets())));
    let store = TokenStore::new(data_dir, name);
    let taken = tokio::task::spawn_blocking(move || take(&store)).await;
    let grant = match taken.map_err(|error| LoginError::Unusable(error.to_string()))?? {
        Ok(grant) => grant.filter(Grant::is_login),
        Err(unreadable) => return Ok(LoggedOut::Removed(unreadable.to_string())),
    };
    let Some(grant) = grant else { return Ok(LoggedOut::NotLoggedIn) };
    server_log.secrets.learn(grant.secrets());
    Ok(match revoke(&server_log, config, &grant).await {
        Ok(()) => LoggedOut::Revoked,
        Err(reason) => LoggedOut::Removed(server_log.quote(reason).to_string()),
    })
}

/// Removes the stored login. Returns the login, or the reason why it was unreadable. Blocks.
fn take(store: &TokenStore) -> Result<Result<Option<Grant>, TokenStoreError>, TokenStoreError> {
    if let Ok(None) = store.load() {
        return Ok(Ok(None));
    }
    // Without the lock, a renewal in progress would store its tokens afterward.
    let _lock = store.lock()?;
    let loaded = store.load();
    store.forget()?;
    Ok(loaded)
}

/// Revokes both tokens, the refresh token first, because an authorization server may be unable to revoke the other (RFC
/// 7009 §2).
async fn revoke(server_log: &ServerLog, config: &Config, grant: &Grant) -> Result<(), String> {
    let endpoint =
        grant.metadata.additional_fields.get(REVOCATION_ENDPOINT).and_then(Value::as_str);
    let endpoint = endpoint.ok_or("no revocation endpoint (RFC 7009) was named at the login")?;
    let server = Url::parse(&grant.url).map_err(|error| error.to_string())?;
    let entry = entry_of(server_log, config).await.map_err(|error| error.to_string())?;
    let transport = LoginTransport { egress: entry.egress, ..LoginTransport::default() };
    let client = LoginClient::new(AddressPolicy::new(&server), transport);
    let mut grant = grant.clone();
    if let Some(own) = entry.client.filter(|own| grant.client.as_ref() == Some(&own.settings)) {
        grant.client_secret = Some(own.secret);
    }
    let refresh = grant.refresh_token.as_deref().map(|token| (token, "refresh_token"));
    let access = (&*grant.access_token, "access_token");
    let mut result = Ok(());
    for (token, hint) in refresh.into_iter().chain([access]) {
        let request = request(endpoint, &grant, token, hint)?;
        // Both tokens are tried.
        let answer = client.fetch(request).await.and_then(|answer| match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("the authorization server answered {status}")),
        });
        let answer = answer.map_err(|reason| format!("{hint}: {reason}"));
        result = result.and(answer);
    }
    result
}

/// Revocation request (RFC 7009 §2.1), with the client's authentication as in token requests.
fn request(
    endpoint: &str,
    grant: &Grant,
    token: &str,
    hint: &str,
) -> Result<Request<Vec<u8>>, String> {
    let fields = [("token", token), ("token_type_hint", hint)];
    let is_basic =
        client_credentials::is_basic(&grant.metadata, &[REVOCATION_METHODS, TOKEN_METHODS]);
    let secret = grant.client_secret.as_deref();
    client_credentials::authenticated(endpoint, &fields, &grant.client_id, secret, is_basic)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use http::header::AUTHORIZATION;

    use super::*;
    use crate::oauth::store::tests::grant;

    /// Form and header of a request.
    fn sent(grant: &Grant) -> (String, Option<String>) {
        let request = request("https://as.example/revoke", grant, "a&b", "access_token").unwrap();
        let header = request.headers().get(AUTHORIZATION);
        let header = header.map(|header| header.to_str().unwrap().to_owned());
        (String::from_utf8(request.into_body()).unwrap(), header)
    }

    // ID-7
    #[test]
    fn id_7_revocation_authenticates_the_client_like_its_token_requests() {
        let mut grant = grant("https://s.example/mcp", "t");
        grant.client_id = "c 1".to_owned();
        grant.client_secret = None;
        let plain = "token=a%26b&token_type_hint=access_token";
        assert_eq!(sent(&grant), (format!("{plain}&client_id=c+1"), None));
        grant.client_secret = Some("p:w".to_owned());
        let posted = format!("{plain}&client_id=c+1&client_secret=p%3Aw");
        // Base64 of `c+1:p%3Aw`.
        let in_header = (plain.to_owned(), Some("Basic YysxOnAlM0F3".to_owned()));
        assert_eq!(sent(&grant), in_header, "the default of RFC 8414 §2, as for rmcp");
        for (list, method, expected) in [
            (TOKEN_METHODS, "client_secret_post", (posted.clone(), None)),
            (TOKEN_METHODS, "client_secret_basic", in_header),
            (REVOCATION_METHODS, "client_secret_post", (posted, None)),
        ] {
            grant.metadata.additional_fields.insert(list.to_owned(), json!([method]));
            assert_eq!(sent(&grant), expected, "{list} {method}");
        }
    }
}
