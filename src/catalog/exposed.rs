//! Exposed names: `server__name` for tools and prompts, `mcpproxy://server/URI` for resources and templates; `ui://server/rest`
//! and `skill://server/rest` where the scheme of the URI is part of an extension's protocol.
//!
//! Each name depends only on the server's name and the item's own name, so it is unique and independent of other
//! servers. Pure.
//!
//! A name is plain if every client accepts it and it can be split in only one way. Otherwise it is truncated and ends
//! in a hash of both parts. A plain name that looks like a hashed one is hashed too, so that names cannot be spoofed.
//!
//! A URI keeps its own spelling after the server name, unescaped, so that a template still expands to the URI its
//! server expects.

use std::borrow::Cow;
use std::fmt::Write as _;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Maximum length of an exposed tool or prompt name, in bytes. Every client and every model accepts this length.
pub(crate) const MAX_NAME_BYTES: usize = 64;
/// Separator between the server's name and the item's own name.
const SEPARATOR: &str = "__";
/// Hexadecimal digits of the hash suffix.
const HASH_DIGITS: usize = 12;

/// URI scheme.
const SCHEME: &str = "mcpproxy://";
/// Schemes of apps (SEP-1865) and skills (SEP-2640). These schemes are kept, because clients recognize them. The name
/// of the server in the proxy becomes the authority of the URI and precedes the original authority.
const KEPT_SCHEMES: [&str; 2] = ["ui://", "skill://"];
/// Escape set of a server name in a URI: all characters except the unreserved ones of RFC 3986.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Exposed name of a tool or prompt.
pub fn name(server: &str, own: &str) -> String {
    spelled(server, own, is_portable)
}

/// Exposed name in the spelling of earlier versions, with dots. Clients still call tools by these names, and pinned
/// definitions contain them.
pub(crate) fn former_name(server: &str, own: &str) -> String {
    spelled(server, own, |char| is_portable(char) || char == '.')
}

fn spelled(server: &str, own: &str, is_plain: impl Fn(char) -> bool) -> String {
    let plain = format!("{server}{SEPARATOR}{own}");
    let fits = plain.len() <= MAX_NAME_BYTES
        && plain.chars().all(&is_plain)
        && is_unambiguous(server)
        && !own.is_empty()
        && !ends_in_hash(&plain);
    if fits { plain } else { hashed(server, own, &plain, is_plain) }
}

/// Splits a plain exposed name into server and own name; `None` for any other name. Existence is not checked. The
/// former spelling is accepted too: no exposed name contains a dot, so it cannot be confused with another one.
pub fn split_name(exposed: &str) -> Option<(&str, &str)> {
    let (server, own) = exposed.split_once(SEPARATOR)?;
    (former_name(server, own) == exposed).then_some((server, own))
}

/// Exposed URI of a resource or URI template.
pub fn uri(server: &str, own: &str) -> String {
    let (scheme, rest) = kept_scheme(own).unwrap_or((SCHEME, own));
    format!("{scheme}{}/{rest}", utf8_percent_encode(server, ESCAPED))
}

/// Whether the exposed form of a server's own URI keeps the scheme.
pub fn keeps_scheme(own: &str) -> bool {
    kept_scheme(own).is_some()
}

/// A kept scheme and the rest of the URI, which is not empty.
fn kept_scheme(uri: &str) -> Option<(&'static str, &str)> {
    let split =
        KEPT_SCHEMES.into_iter().find_map(|scheme| Some((scheme, uri.strip_prefix(scheme)?)));
    split.filter(|(_, rest)| !rest.is_empty())
}

/// Splits an exposed URI into server and own URI; `None` for any other URI. A server's own `ui://` or `skill://` URI is
/// split like an exposed one, because the existence of the server is not checked.
pub fn split_uri(exposed: &str) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
    let (scheme, rest) = match exposed.strip_prefix(SCHEME) {
        Some(rest) => ("", rest),
        None => kept_scheme(exposed)?,
    };
    let (server, rest) = rest.split_once('/')?;
    let server = percent_decode_str(server).decode_utf8().ok()?;
    let own = match scheme {
        "" => Cow::Borrowed(rest),
        scheme => Cow::Owned(format!("{scheme}{rest}")),
    };
    (!server.is_empty() && !rest.is_empty()).then_some((server, own))
}

/// Characters that every model provider accepts in names; MCP 2025-11-25 §Tools also allows a dot.
fn is_portable(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '_' | '-')
}

/// Whether, in a plain name that starts with this server name, the first separator is the one after the server name.
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

fn hashed(server: &str, own: &str, plain: &str, is_plain: impl Fn(char) -> bool) -> String {
    let portable = |char| if is_plain(char) { char } else { '_' };
    let max_chars = MAX_NAME_BYTES - HASH_DIGITS - 1;
    let mut name: String = plain.chars().take(max_chars).map(portable).collect();
    let mut hasher = blake3::Hasher::new();
    // The length of the first part separates it from the second.
    hasher.update(&(server.len() as u64).to_le_bytes());
    hasher.update(server.as_bytes()).update(own.as_bytes());
    let hash = hasher.finalize().to_hex();
    // Writing to a `String` cannot fail.
    let _ = write!(name, "_{}", hash.get(..HASH_DIGITS).unwrap_or_default());
    name
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_name_joins_its_two_parts() {
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
    fn ambiguous_names_are_hashed() {
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
        // A tool has the truncated name of another tool.
        let forged = first.strip_prefix("s__").unwrap();
        assert_ne!(name("s", forged), first);
    }

    #[test]
    fn def_7_dots_are_mapped_without_collisions_and_the_former_spelling_is_still_split() {
        let own = ["a.b", "a_b", "a.b.", "a-b"];
        let names = own.map(|own| name("s", own));
        for (at, exposed) in names.iter().enumerate() {
            let is_accepted = |char: char| char.is_ascii_alphanumeric() || "_-".contains(char);
            assert!(exposed.len() <= 64 && exposed.chars().all(is_accepted), "{exposed}");
            assert!(!names[..at].contains(exposed), "{exposed}");
        }
        assert_eq!(names[1], "s__a_b");
        assert!(names[0].starts_with("s__a_b_"), "{}", names[0]);
        assert!(name("my.server", "a").starts_with("my_server__a_"));
        assert_eq!(split_name("s__a.b"), Some(("s", "a.b")));
        assert_eq!(split_name("my.server__a"), Some(("my.server", "a")));
        assert_eq!(split_name(&names[0]), None, "a hashed name cannot be split");
    }

    #[test]
    fn longest_plain_name_is_not_hashed() {
        let own = "x".repeat(MAX_NAME_BYTES - 3);
        assert_eq!(name("s", &own), format!("s__{own}"));
        assert_ne!(name("s", &format!("{own}x")), format!("s__{own}x"));
    }

    #[test]
    fn uri_round_trips() {
        for (server, own, exposed) in [
            ("files", "file:///a b/é?x#y", "mcpproxy://files/file:///a b/é?x#y"),
            ("a/b:c", "memo:x", "mcpproxy://a%2Fb%3Ac/memo:x"),
            ("ü %41", "x", "mcpproxy://%C3%BC%20%2541/x"),
            ("p", "mcpproxy://s/x", "mcpproxy://p/mcpproxy://s/x"),
            ("t", "test://{id}/{?q*}", "mcpproxy://t/test://{id}/{?q*}"),
            ("s", "/", "mcpproxy://s//"),
            ("a/b c", "ui://app/{id}?x#y", "ui://a%2Fb%20c/app/{id}?x#y"),
            ("s", "skill://acme/x/SKILL.md", "skill://s/acme/x/SKILL.md"),
            ("s", "ui://o/..%2Fp", "ui://s/o/..%2Fp"),
            ("s", "ui:///x", "ui://s//x"),
            ("s", "ui://", "mcpproxy://s/ui://"),
            ("s", "UI://x", "mcpproxy://s/UI://x"),
            ("s", "ui:x", "mcpproxy://s/ui:x"),
        ] {
            assert_eq!(uri(server, own), exposed);
            assert_eq!(split_uri(exposed), Some((server.into(), own.into())));
            assert_eq!(keeps_scheme(own), !exposed.starts_with(SCHEME), "{own}");
        }
        let former = "mcpproxy://s/ui://x";
        assert_eq!(split_uri(former), Some(("s".into(), "ui://x".into())), "{former}");
        for foreign in [
            "",
            "ui://",
            "ui://s",
            "ui://s/",
            "ui:///x",
            "skill://%ff/x",
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
        /// Every name is portable and unique, and a plain name can be split again.
        #[test]
        fn exposed_names_are_portable_and_unique(
            pairs in prop::collection::hash_set(
                (prop::sample::select(vec!["a", "_", "a_", "a__b", "b", "é", "a__b_"]),
                 "[ab_.é\"\n]{0,5}|[a_.]{55,70}|a_[0-9a-f]{12}"),
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
        fn every_uri_round_trips(server in "\\PC{1,9}", own in "(ui://|skill://)?\\PC{1,20}") {
            let exposed = uri(&server, &own);
            prop_assert_eq!(split_uri(&exposed), Some((Cow::from(server), Cow::from(own))));
        }
    }
}
