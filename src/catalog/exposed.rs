//! Under which names clients see what the upstreams have: `server__name` for tools and prompts,
//! `mcpproxy://server/URI` for resources and their templates.
//!
//! Each name follows from its server's and its own alone, so it stays the same whatever else is
//! configured, and no two are alike. Pure: which names exist is the snapshot's business.
//!
//! A name of tools and prompts is put together plainly where every client takes the result and it
//! can only be read in one way. Else it is cut, and ends in a hash of both parts. A plain name that
//! looks as if it ended in a hash is given one too, so that nobody can take another's.
//!
//! A URI keeps its own spelling behind the server's name: nothing is escaped, so that a template
//! still expands to the URI that its server expects.

use std::borrow::Cow;
use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Longest name of a tool or prompt, in bytes: what every client and every model takes.
pub const MAX_NAME_BYTES: usize = 64;
/// Between the server's name and the thing's own.
const SEPARATOR: &str = "__";
/// Hexadecimal digits of the hash at the end of a name that is not plain.
const HASH_DIGITS: usize = 12;

/// What our URIs begin with.
const SCHEME: &str = "mcpproxy://";
/// A server's name in a URI: what RFC 3986 calls unreserved stands for itself.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The name of a server's tool or prompt.
#[must_use]
pub fn name(server: &str, own: &str) -> String {
    let plain = format!("{server}{SEPARATOR}{own}");
    let fits = plain.len() <= MAX_NAME_BYTES
        && plain.chars().all(is_portable)
        && is_unambiguous(server)
        && !own.is_empty()
        && !ends_in_hash(&plain);
    if fits { plain } else { hashed(server, own, &plain) }
}

/// The server and its own name of a thing whose name is plain; `None` for any other name. Whether
/// that server has such a thing is not known here.
#[must_use]
pub fn split_name(exposed: &str) -> Option<(&str, &str)> {
    let (server, own) = exposed.split_once(SEPARATOR)?;
    (name(server, own) == exposed).then_some((server, own))
}

/// The URI of a server's resource, or its template of URIs.
#[must_use]
pub fn uri(server: &str, own: &str) -> String {
    format!("{SCHEME}{}/{own}", utf8_percent_encode(server, ESCAPED))
}

/// The server and its own URI; `None` for a URI that is not of ours.
#[must_use]
pub fn split_uri(exposed: &str) -> Option<(Cow<'_, str>, &str)> {
    let (server, own) = exposed.strip_prefix(SCHEME)?.split_once('/')?;
    let server = percent_decode_str(server).decode_utf8().ok()?;
    (!server.is_empty() && !own.is_empty()).then_some((server, own))
}

/// MCP 2025-11-25 §Tools: the characters that names should be made of.
fn is_portable(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '_' | '-' | '.')
}

/// Whether the first separator in a plain name is the one after this server's name.
fn is_unambiguous(server: &str) -> bool {
    !server.is_empty() && !server.contains(SEPARATOR) && !server.ends_with('_')
}

fn ends_in_hash(name: &str) -> bool {
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let Some((head, digits)) = name.as_bytes().split_last_chunk::<HASH_DIGITS>() else {
        return false;
    };
    head.last() == Some(&b'_') && digits.iter().all(is_hex)
}

fn hashed(server: &str, own: &str, plain: &str) -> String {
    let portable = |char| if is_portable(char) { char } else { '_' };
    let room = MAX_NAME_BYTES - HASH_DIGITS - 1;
    let mut name: String = plain.chars().take(room).map(portable).collect();
    let mut hasher = blake3::Hasher::new();
    // The length keeps the two parts apart.
    hasher.update(&(server.len() as u64).to_le_bytes());
    hasher.update(server.as_bytes()).update(own.as_bytes());
    let hash = hasher.finalize().to_hex();
    // Infallible: a String takes everything.
    let _ = write!(name, "_{}", hash.get(..HASH_DIGITS).unwrap_or_default());
    name
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_plain_name_is_its_two_parts() {
        assert_eq!(name("github", "create_issue"), "github__create_issue");
        assert_eq!(name("a", "_b"), "a___b");
        assert_eq!(name("a", "b__c"), "a__b__c");
        assert_eq!(split_name("a__b__c"), Some(("a", "b__c")));
        assert_eq!(split_name("a___b"), Some(("a", "_b")));
        for unlike in ["", "a", "a_b", "__a", "a__", "a__é", "a__b_0123456789ab"] {
            assert_eq!(split_name(unlike), None, "{unlike}");
        }
    }

    #[test]
    fn names_that_would_read_alike_are_told_apart() {
        for ((server_a, a), (server_b, b)) in [
            (("a", "b__c"), ("a__b", "c")),
            (("a", "_b"), ("a_", "b")),
            (("a", "é"), ("a", "è")),
            (("a", "x y"), ("a", "x/y")),
            (("ä", "x"), ("ö", "x")),
        ] {
            assert_ne!(name(server_a, a), name(server_b, b));
        }
        let long = "x".repeat(MAX_NAME_BYTES);
        let (first, second) = (name("s", &format!("{long}1")), name("s", &format!("{long}2")));
        assert_ne!(first, second);
        assert_eq!((first.len(), first.get(..4)), (MAX_NAME_BYTES, Some("s__x")));
        // Somebody gives a tool the very name that another has after being cut.
        let forged = first.strip_prefix("s__").unwrap();
        assert_ne!(name("s", forged), first);
    }

    #[test]
    fn the_longest_plain_name_is_plain() {
        let own = "x".repeat(MAX_NAME_BYTES - 3);
        assert_eq!(name("s", &own), format!("s__{own}"));
        assert_ne!(name("s", &format!("{own}x")), format!("s__{own}x"));
    }

    #[test]
    fn a_uri_comes_back_as_it_was() {
        for (server, own, exposed) in [
            ("files", "file:///a b/é?x#y", "mcpproxy://files/file:///a b/é?x#y"),
            ("a/b:c", "memo:x", "mcpproxy://a%2Fb%3Ac/memo:x"),
            ("ü %41", "x", "mcpproxy://%C3%BC%20%2541/x"),
            ("p", "mcpproxy://s/x", "mcpproxy://p/mcpproxy://s/x"),
            ("t", "test://{id}/{?q*}", "mcpproxy://t/test://{id}/{?q*}"),
            ("s", "/", "mcpproxy://s//"),
        ] {
            assert_eq!(uri(server, own), exposed);
            assert_eq!(split_uri(exposed), Some((server.into(), own)));
        }
        for foreign in [
            "",
            "file:///a",
            "mcpproxy://",
            "mcpproxy://s",
            "mcpproxy://s/",
            "mcpproxy:///x",
            "mcpproxy://%ff/x",
        ] {
            assert_eq!(split_uri(foreign), None, "{foreign}");
        }
    }

    proptest! {
        /// Every client takes every name, no two things share one, and the plain ones lead back.
        #[test]
        fn names_are_portable_and_unlike(
            pairs in prop::collection::hash_set(
                (prop::sample::select(vec!["a", "_", "a_", "a__b", "b", "é", "a__b_"]),
                 "[ab_é\"\n]{0,5}|[a_]{55,70}|a_[0-9a-f]{12}"),
                0..200,
            )
        ) {
            let mut seen = HashMap::new();
            for (server, own) in &pairs {
                let name = name(server, own);
                prop_assert!(name.len() <= MAX_NAME_BYTES && name.chars().all(is_portable), "{}", name);
                if let Some(parts) = split_name(&name) {
                    prop_assert_eq!(parts, (*server, own.as_str()));
                }
                let other = seen.insert(name, (server, own));
                prop_assert!(other.is_none(), "{:?} {:?}", other, (server, own));
            }
        }

        #[test]
        fn every_uri_comes_back(server in "\\PC{1,9}", own in "\\PC{1,20}") {
            let exposed = uri(&server, &own);
            prop_assert_eq!(split_uri(&exposed), Some((Cow::from(server), own.as_str())));
        }
    }
}
