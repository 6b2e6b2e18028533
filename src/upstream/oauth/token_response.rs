//! The tokens in an authorization server's response.

use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use rmcp::transport::auth::OAuthTokenResponse;
use serde::Deserialize;

use super::store::Grant;

/// Takes the tokens out of a response.
pub(super) fn take(mut grant: Grant, response: &OAuthTokenResponse) -> Result<Grant, String> {
    #[derive(Deserialize)]
    struct Tokens {
        access_token: String,
        token_type: String,
        expires_in: Option<u64>,
        refresh_token: Option<String>,
        scope: Option<String>,
    }
    let tokens = serde_json::to_value(response).and_then(serde_json::from_value::<Tokens>);
    let tokens = tokens.map_err(|_| "it gave tokens that cannot be read".to_owned())?;
    if !tokens.token_type.eq_ignore_ascii_case("bearer") {
        return Err("it gave a token that is no bearer token".to_owned());
    }
    if HeaderValue::from_str(&tokens.access_token).is_err() || tokens.access_token.is_empty() {
        return Err("it gave a token that no header can carry".to_owned());
    }
    grant.received_at = seconds();
    grant.expires_at = tokens.expires_in.map(|left| grant.received_at.saturating_add(left));
    grant.access_token = tokens.access_token;
    grant.refresh_token = tokens.refresh_token.or(grant.refresh_token);
    if let Some(scope) = tokens.scope {
        grant.scopes = scope.split_whitespace().map(str::to_owned).collect();
    }
    Ok(grant)
}

/// Seconds since 1970.
pub(super) fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
