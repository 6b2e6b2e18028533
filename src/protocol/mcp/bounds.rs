//! Maximum lengths of the strings in a message. A longer string is refused with its limit before anything is stored.
//!
//! Each member has its own bound, because a session, a subscription or a call in flight may hold the member longer than the message exists.

use thiserror::Error;

/// Maximum length of a server's resource URI or URI template: 8 KiB.
pub const MAX_URI_BYTES: usize = 8 * 1024;
/// Maximum length of the prefix of a URI shown to clients: 1 KiB.
pub const MAX_URI_PREFIX_BYTES: usize = 1024;
/// Maximum length of the name of a tool or a prompt that a client sends: 1 KiB.
pub const MAX_NAME_BYTES: usize = 1024;
/// Maximum length of the name of a method.
pub(crate) const MAX_METHOD_BYTES: usize = 256;
/// Maximum length of an id that a client gives a request, as written.
pub const MAX_ID_BYTES: usize = 256;
/// Maximum length of a progress token that a client gives a request, as written.
pub const MAX_PROGRESS_TOKEN_BYTES: usize = 256;
/// Maximum length of a cursor that a client sends: the longest key in base64.
pub const MAX_CURSOR_BYTES: usize = 16 * 1024;

/// String longer than its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{what} is longer than {limit} bytes")]
pub struct OverLimit {
    pub what: &'static str,
    /// Maximum length in bytes.
    pub limit: usize,
}

/// Checks that `text` has at most `limit` bytes; the error refers to it as `what`.
pub fn within(what: &'static str, text: impl AsRef<[u8]>, limit: usize) -> Result<(), OverLimit> {
    match text.as_ref().len() > limit {
        true => Err(OverLimit { what, limit }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_over_its_limit_is_refused_with_name_and_limit() {
        assert_eq!(within("uri", "x".repeat(8), 8), Ok(()));
        let refused = within("uri", "x".repeat(9), 8).unwrap_err();
        assert_eq!(refused.to_string(), "uri is longer than 8 bytes");
    }
}
