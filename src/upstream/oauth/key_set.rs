//! The key set of the identity provider whose JWTs clients bring (`auth.jwt`): fetched as a login fetches, from the
//! address that the operator named and no other.

use std::sync::{Arc, OnceLock};

use http::{Request, StatusCode};
use url::Url;

use super::client::{AddressPolicy, LoginClient, origin};

/// Whether a key set may be fetched from there. The error is one line that quotes no user, path or query of it.
///
/// # Errors
/// What is wrong with the URL.
pub fn check_key_set_url(url: &str) -> Result<(), String> {
    let url = Url::parse(url).map_err(|error| format!("is no URL: {error}"))?;
    AddressPolicy::new(&url).check(&url)
}

/// Fetches a key set, bounded in bytes and time. The error is one line, with whom was asked.
///
/// # Errors
/// Why there is none.
pub async fn fetch_key_set(url: &str) -> Result<Vec<u8>, String> {
    let parsed = Url::parse(url).map_err(|error| error.to_string())?;
    let told = |why: String| format!("{}: {why}", origin(&parsed));
    let client = LoginClient::new(AddressPolicy::new(&parsed), Arc::new(OnceLock::new()));
    let request = Request::get(url).body(Vec::new()).map_err(|error| told(error.to_string()))?;
    let answer = client.fetch(request).await.map_err(told)?;
    match answer.status() {
        StatusCode::OK => Ok(answer.into_body()),
        status => Err(told(format!("it answers {status}"))),
    }
}
