//! Whether who listens at an address is the mcpproxy of a config, asked before it is sent the key.
//!
//! The client's side of [`proof`]: it sends a random nonce and compares the keyed hash that comes back
//! with the one for the address it has dialled itself.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::header::HOST;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::SendRequest;

use crate::api::proof;
use crate::io::address::Reached;

/// Most time for a proof.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);

/// Most bytes of a proof's response.
const MAX_PROOF_BYTES: usize = 4096;

/// Why a listener is not taken for the mcpproxy of a config.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotProven {
    /// No response, or none that is a proof.
    #[error("it gives no proof that it knows the api_key")]
    Silent,
    /// A proof by another key or for another address.
    #[error("its proof is of another api_key, or of another address than the one asked")]
    Wrong,
    /// The nonce could not be made.
    #[error("there is no randomness to ask it with")]
    NoNonce,
}

/// Asks the other end of a connection to prove that it knows `api_key` and listens at `dialled`. What
/// follows on the same connection reaches nobody else. Without a key there is nothing to prove.
pub(super) async fn prove(
    sender: &mut SendRequest<Full<Bytes>>,
    host: &str,
    dialled: &Reached,
    api_key: &str,
) -> Result<(), NotProven> {
    #[derive(serde::Deserialize)]
    struct ProofResponse {
        data: ProofData,
    }
    #[derive(serde::Deserialize)]
    struct ProofData {
        proof: String,
    }
    if api_key.is_empty() {
        return Ok(());
    }
    let mut nonce = [0; proof::NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(|_| NotProven::NoNonce)?;
    let request = Request::get(proof::target(&nonce)).header(HOST, host);
    let request = request.body(Full::default()).map_err(|_| NotProven::Silent)?;
    let response = async {
        let body = sender.send_request(request).await.ok()?.into_body();
        let body = Limited::new(body, MAX_PROOF_BYTES).collect().await.ok()?.to_bytes();
        sender.ready().await.ok()?;
        let response: ProofResponse = serde_json::from_slice(&body).ok()?;
        blake3::Hash::from_hex(response.data.proof).ok()
    };
    let given = tokio::time::timeout(PROOF_TIMEOUT, response).await.ok().flatten();
    // Hashes compare in constant time.
    match given.ok_or(NotProven::Silent)? == proof::of(api_key, &nonce, dialled) {
        true => Ok(()),
        false => Err(NotProven::Wrong),
    }
}
