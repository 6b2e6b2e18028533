//! The id of a request: the client's own where it sends a plain one, else a fresh one.

use std::time::SystemTime;

use http::{HeaderMap, HeaderName};
use ulid::Ulid;

/// The header that names the request, in both directions.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest request id taken from a client.
const MAX_REQUEST_ID_BYTES: usize = 128;

/// The client's own id for the request if it is 1 to 128 letters, digits, `-`, `_`, `.` and `:`, else
/// a fresh one.
pub(super) fn of(headers: &HeaderMap) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:".contains(&b);
    let given = headers.get(&REQUEST_ID).and_then(|value| value.to_str().ok());
    match given {
        Some(id) if (1..=MAX_REQUEST_ID_BYTES).contains(&id.len()) && id.bytes().all(plain) => {
            id.to_owned()
        }
        Some(_) | None => fresh(),
    }
}

/// An id for a request that brought none.
pub(super) fn fresh() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut random = [0; 16];
    // Without randomness the id still holds the time. It names a request and protects nothing.
    let _ = getrandom::fill(&mut random);
    let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    Ulid::from_parts(ms, u128::from_ne_bytes(random)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_ids_differ_and_are_plain() {
        let (one, other) = (fresh(), fresh());
        assert_ne!(one, other);
        assert!(one.len() == 26 && one.bytes().all(|b| b.is_ascii_alphanumeric()), "{one}");
    }

    #[test]
    fn a_plain_id_of_the_client_is_kept() {
        let id = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, value.parse().unwrap());
            of(&headers)
        };
        assert_eq!(id("abc-1.2_3:4"), "abc-1.2_3:4");
        for odd in ["", "a b", "a\"b", "é", &"x".repeat(MAX_REQUEST_ID_BYTES + 1)] {
            let given = id(odd);
            assert!(given != odd && given.len() == 26, "{odd}: {given}");
        }
        assert_eq!(of(&HeaderMap::new()).len(), 26);
    }
}
