//! `/proof`: how a listener shows that it is the mcpproxy of a config, before it is sent the key.
//!
//! Whoever asks sends a random nonce and no key; the answer is a keyed hash of the nonce and of the
//! address that the question came to, under a key derived from the API key. The address is in it
//! so that another program cannot have the real server answer in its place: the client compares
//! with the address that it dialled itself. Over TLS the certificate that was shown is in it as well, so that
//! the client needs no authority to know that nobody reads on the way. Nothing that is answered helps to find a random key.

use std::net::SocketAddr;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::query_parameters::{BadQuery, Query};
use super::response::{ApiError, Success, encode};
use crate::io::address::{Address, Reached};

/// Where a proof is asked for.
pub const PATH: &str = "/proof";

/// Bytes of a nonce; twice as many hex digits.
pub const NONCE_BYTES: usize = 32;

/// What the key of proofs is derived from the API key for (BLAKE3 §Key derivation).
const CONTEXT: &str = "mcpproxy 2026-11-22 proof of a listener that it knows the API key";

/// The proof that `api_key` is known to whoever was asked `nonce` at the address `dialled`. Two of
/// them are compared in constant time.
#[must_use]
pub fn of(api_key: &str, nonce: &[u8; NONCE_BYTES], dialled: &Reached) -> blake3::Hash {
    let key = blake3::derive_key(CONTEXT, api_key.as_bytes());
    let address = match &dialled.address {
        // A client of IPv4 may come in at a listener of IPv6.
        Address::Tcp(address) => {
            SocketAddr::new(address.ip().to_canonical(), address.port()).into()
        }
        Address::Unix(_) => dialled.address.clone(),
    };
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(nonce).update(address.to_string().as_bytes());
    if let Some(certificate) = &dialled.certificate {
        // Ends the address: in none of them is such a byte.
        hasher.update(&[0]).update(certificate.as_bytes());
    }
    hasher.finalize()
}

/// The query of a request for a proof.
#[must_use]
pub fn target(nonce: &[u8; NONCE_BYTES]) -> String {
    format!("{PATH}?nonce={}", blake3::Hash::from_bytes(*nonce).to_hex())
}

/// What is to be proven.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only described: `answer` reads it")]
pub(super) struct ProofParameters {
    /// 32 random bytes, as 64 hex digits.
    #[param(min_length = 64, max_length = 64, pattern = "^[0-9a-f]{64}$")]
    nonce: String,
}

/// The proof.
#[derive(Serialize, ToSchema)]
pub(super) struct Proof {
    /// BLAKE3, keyed, of the nonce and of the `address:port` or `unix:/path` that the request came to; over TLS also
    /// of a zero byte and BLAKE3 of the certificate that was shown. As hex.
    proof: String,
}

/// Proves that the API key is known here. Needs no key, and tells nothing of it.
#[utoipa::path(
    get,
    path = "/proof",
    tag = "health",
    operation_id = "getProof",
    params(ProofParameters),
    responses(
        (status = 200, description = "The proof", body = Success<Proof>),
        (status = 400, description = "The nonce is missing or malformed, or another parameter is given"),
        (status = 503, description = "There is no API key, or no address"),
    )
)]
pub(super) fn answer(
    api_key: &str,
    came_to: Option<&Reached>,
    mut query: Query,
) -> Result<Bytes, ApiError> {
    let nonce = query.text("nonce")?.unwrap_or_default();
    query.finish()?;
    let nonce = blake3::Hash::from_hex(&nonce).map_err(|_| BadQuery::Invalid {
        name: "nonce",
        value: nonce,
        expected: format!("{NONCE_BYTES} bytes as hex digits"),
    })?;
    let Some(came_to) = came_to.filter(|_| !api_key.is_empty()) else {
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "There is nothing to prove"));
    };
    let proof = of(api_key, nonce.as_bytes(), came_to);
    Ok(encode(&Proof { proof: proof.to_hex().to_string() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: [u8; NONCE_BYTES] = [7; NONCE_BYTES];

    fn reached(dialled: &str) -> Reached {
        Reached::plainly(Address::parse(dialled).unwrap())
    }

    fn proof(key: &str, nonce: [u8; NONCE_BYTES], dialled: &str) -> blake3::Hash {
        of(key, &nonce, &reached(dialled))
    }

    #[test]
    fn a_proof_is_of_one_key_one_nonce_and_one_address() {
        let ours = proof("key", NONCE, "127.0.0.1:8080");
        assert_eq!(ours, proof("key", NONCE, "[::ffff:127.0.0.1]:8080"));
        assert_ne!(ours, proof("kez", NONCE, "127.0.0.1:8080"));
        assert_ne!(ours, proof("key", [8; NONCE_BYTES], "127.0.0.1:8080"));
        assert_ne!(ours, proof("key", NONCE, "127.0.0.1:8081"), "another port may be another's");
        assert_ne!(ours, proof("key", NONCE, "127.0.0.2:8080"));
        assert_ne!(proof("key", NONCE, "unix:/a"), proof("key", NONCE, "unix:/b"));
        let shown = |der: &[u8]| {
            let certificate = Some(crate::io::tls::fingerprint(der));
            of("key", &NONCE, &Reached { certificate, ..reached("127.0.0.1:8080") })
        };
        assert_ne!(ours, shown(b"a"));
        assert_ne!(shown(b"a"), shown(b"b"), "who reads on the way shows another one");
    }

    #[test]
    fn a_question_is_read_strictly_and_without_a_key_there_is_no_proof() {
        let ask = |key: &str, query: &str| {
            let came_to = reached("127.0.0.1:1");
            answer(key, Some(&came_to), Query::parse(Some(query)).unwrap())
                .map_err(|f| f.status.as_u16())
        };
        let asked = target(&NONCE);
        let query = asked.split_once('?').unwrap().1;
        let told = ask("key", query).unwrap();
        let expected = proof("key", NONCE, "127.0.0.1:1").to_hex();
        assert_eq!(told, format!(r#"{{"proof":"{expected}"}}"#));
        assert_eq!(ask("", query), Err(503));
        for bad in ["", "nonce=07", "nonce=zz", &format!("{query}&x=1"), &format!("{query}0")] {
            assert_eq!(ask("key", bad), Err(400), "{bad}");
        }
    }
}
