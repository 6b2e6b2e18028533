//! `/proof`: challenge-response by which a listener proves that it knows the API key before a client sends the key.
//!
//! The client sends a random nonce and no key. The answer is a keyed hash of the nonce and of the address that the
//! request was sent to, under a key derived from the API key. The address is included so that another program cannot
//! relay the challenge to the real server: the client compares it with the address it dialed. Over TLS the hash
//! includes the presented certificate, so the client can rule out an interceptor without a certificate authority. The
//! answer does not help to guess a random key.

use std::net::SocketAddr;

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::query_parameters::{BadQuery, Query};
use super::request::ApiRequest;
use super::response::{ApiError, Success, encode};
use mcpproxy_runtime::io::address::{Address, Reached};

/// Path of the endpoint.
const PATH: &str = "/proof";

/// Size of a nonce in bytes.
pub const NONCE_BYTES: usize = 32;

/// Context string for deriving the proof key from the API key (BLAKE3 §Key derivation).
const CONTEXT: &str = "mcpproxy 2026-11-22 proof of a listener that it knows the API key";

/// Computes the proof for `nonce` at the address `dialed`. The returned hashes compare in constant time.
pub fn of(api_key: &str, nonce: &[u8; NONCE_BYTES], dialed: &Reached) -> blake3::Hash {
    let key = blake3::derive_key(CONTEXT, api_key.as_bytes());
    let address = match &dialed.address {
        // An IPv4 client may connect to an IPv6 listener.
        Address::Tcp(address) => {
            SocketAddr::new(address.ip().to_canonical(), address.port()).into()
        }
        Address::Unix(_) => dialed.address.clone(),
    };
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(nonce).update(address.to_string().as_bytes());
    if let Some(certificate) = &dialed.certificate {
        // The zero byte terminates the address, which never contains it.
        hasher.update(&[0]).update(certificate.as_bytes());
    }
    hasher.finalize()
}

/// Request target for a proof of `nonce`.
pub fn target(nonce: &[u8; NONCE_BYTES]) -> String {
    format!("{PATH}?nonce={}", blake3::Hash::from_bytes(*nonce).to_hex())
}

/// Query parameters of the challenge.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes the query in OpenAPI; `prove` parses it")]
pub(super) struct ProofParameters {
    /// 32 random bytes, as 64 hex digits.
    #[param(min_length = 64, max_length = 64, pattern = "^[0-9a-f]{64}$")]
    nonce: String,
}

/// Response to the challenge.
#[derive(Serialize, ToSchema)]
pub(super) struct Proof {
    /// Keyed BLAKE3 hash, in hex, of the nonce and of the `address:port` or `unix:/path` that the request was sent to;
    /// over TLS also of a zero byte and the BLAKE3 hash of the presented certificate.
    proof: String,
}

/// Proves that the server knows the API key. Needs no key, and reveals nothing about it.
#[utoipa::path(
    get,
    path = PATH,
    tag = "health",
    operation_id = "getProof",
    params(ProofParameters),
    responses(
        (status = 200, description = "The proof", body = Success<Proof>),
        (status = 400, description = "The nonce is missing or malformed, or another parameter is given"),
        (status = 503, description = "There is no API key, or no address"),
    )
)]
pub(super) async fn answer(
    ApiRequest { worker, connection, query, .. }: ApiRequest<'_>,
) -> Result<Bytes, ApiError> {
    prove(&worker.settings().http_auth.api_key, connection.reached.as_ref(), query?)
}

fn prove(api_key: &str, reached: Option<&Reached>, mut query: Query) -> Result<Bytes, ApiError> {
    let nonce = query.text("nonce")?.unwrap_or_default();
    query.finish()?;
    let nonce = blake3::Hash::from_hex(&nonce).map_err(|_| BadQuery::Invalid {
        name: "nonce",
        value: nonce,
        expected: format!("{NONCE_BYTES} bytes as hex digits"),
    })?;
    let Some(reached) = reached.filter(|_| !api_key.is_empty()) else {
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "There is no API key to prove"));
    };
    let proof = of(api_key, nonce.as_bytes(), reached);
    Ok(encode(&Proof { proof: proof.to_hex().to_string() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: [u8; NONCE_BYTES] = [7; NONCE_BYTES];

    fn reached(dialed: &str) -> Reached {
        Reached::plainly(Address::parse(dialed).unwrap())
    }

    fn proof(key: &str, nonce: [u8; NONCE_BYTES], dialed: &str) -> blake3::Hash {
        of(key, &nonce, &reached(dialed))
    }

    #[test]
    fn proof_depends_on_key_nonce_address_and_certificate() {
        let ours = proof("key", NONCE, "127.0.0.1:8080");
        assert_eq!(ours, proof("key", NONCE, "[::ffff:127.0.0.1]:8080"));
        assert_ne!(ours, proof("kez", NONCE, "127.0.0.1:8080"));
        assert_ne!(ours, proof("key", [8; NONCE_BYTES], "127.0.0.1:8080"));
        assert_ne!(ours, proof("key", NONCE, "127.0.0.1:8081"), "the port is part of the address");
        assert_ne!(ours, proof("key", NONCE, "127.0.0.2:8080"));
        assert_ne!(proof("key", NONCE, "unix:/a"), proof("key", NONCE, "unix:/b"));
        let shown = |der: &[u8]| {
            let certificate = Some(mcpproxy_runtime::io::tls::fingerprint(der));
            of("key", &NONCE, &Reached { certificate, ..reached("127.0.0.1:8080") })
        };
        assert_ne!(ours, shown(b"a"));
        assert_ne!(shown(b"a"), shown(b"b"), "an interceptor presents another certificate");
    }

    #[test]
    fn malformed_nonce_is_rejected_and_missing_key_yields_503() {
        let ask = |key: &str, query: &str| {
            let reached = reached("127.0.0.1:1");
            prove(key, Some(&reached), Query::parse(Some(query)).unwrap())
                .map_err(|f| f.status.as_u16())
        };
        let target = target(&NONCE);
        let query = target.split_once('?').unwrap().1;
        let body = ask("key", query).unwrap();
        let expected = proof("key", NONCE, "127.0.0.1:1").to_hex();
        assert_eq!(body, format!(r#"{{"proof":"{expected}"}}"#));
        assert_eq!(ask("", query), Err(503));
        for bad in ["", "nonce=07", "nonce=zz", &format!("{query}&x=1"), &format!("{query}0")] {
            assert_eq!(ask("key", bad), Err(400), "{bad}");
        }
    }
}
