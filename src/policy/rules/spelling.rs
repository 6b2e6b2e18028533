//! Detection of request targets that are other spellings of a target that a rule names. Servers read one URI in many
//! spellings, and some ignore the case of prompt names, whereas rules compare text. A request for another spelling of a
//! named target makes the rule err. The comparison over-approximates, since servers differ.
//!
//! URIs are compared after the normalization of RFC 3986 §6 (case of scheme and host, percent-encoding, dot segments,
//! default port). In addition, empty path segments are removed, `\` in a path becomes `/`, the host of a `file` URI is
//! ignored, and white space is removed, since WHATWG parsers drop it. A query or fragment is compared only if the rule
//! names one.

use std::cell::OnceCell;

use cedar_policy::Policy;
use mcpproxy_json::fold;
use percent_encoding::percent_decode_str;

use super::request::{EntityKind, Named, RuleTarget};

/// Default ports, which URIs may leave out.
const DEFAULT_PORTS: [(&str, &str); 5] =
    [("http", "80"), ("https", "443"), ("ws", "80"), ("wss", "443"), ("ftp", "21")];

/// Resources and prompts that a rule names, in its scope or condition.
#[derive(Clone, Debug, Default)]
pub(super) struct NamedTargets(Vec<NamedTarget>);

#[derive(Clone, Debug)]
struct NamedTarget {
    server: Box<str>,
    own: Box<str>,
    /// Normalized URI of a resource; `None` for a prompt.
    uri: Option<NormalUri>,
}

impl NamedTargets {
    pub(super) fn of(policy: &Policy) -> Self {
        let named = policy.entity_literals();
        let target = |Named { kind, id }: Named| {
            let (server, own) = id.split_once(':')?;
            let uri = match kind {
                EntityKind::Resource => Some(NormalUri::of(own)),
                EntityKind::Prompt => None,
                EntityKind::Agent | EntityKind::Group | EntityKind::Server | EntityKind::Tool => {
                    return None;
                }
            };
            Some(NamedTarget { server: server.into(), own: own.into(), uri })
        };
        Self(named.iter().filter_map(Named::of).filter_map(target).collect())
    }

    /// The named resource or prompt of which the target is another spelling; `None` if the target itself is named.
    pub(super) fn meant(&self, asked: &AskedTarget<'_>) -> Option<&str> {
        let is_prompt = match asked.target {
            RuleTarget::Resource { .. } => false,
            RuleTarget::Prompt { .. } => true,
            RuleTarget::Tool(_) | RuleTarget::NamedTool { .. } => return None,
        };
        let (server, own) = (asked.target.server(), asked.target.own());
        let named =
            self.0.iter().filter(|it| *it.server == *server && it.uri.is_none() == is_prompt);
        if named.clone().any(|it| *it.own == *own) {
            return None;
        }
        let mut spelled = named.filter(|it| match &it.uri {
            Some(uri) => asked.uri.get_or_init(|| NormalUri::of(own)).is_spelling_of(uri),
            None => fold::same(own, &it.own),
        });
        spelled.next().map(|it| &*it.own)
    }
}

/// Target of a request. Its URI is normalized once, if a rule names a URI of its server.
pub(super) struct AskedTarget<'a> {
    target: RuleTarget<'a>,
    uri: OnceCell<NormalUri>,
}

impl<'a> AskedTarget<'a> {
    pub(super) fn new(target: RuleTarget<'a>) -> Self {
        Self { target, uri: OnceCell::new() }
    }

    /// Reason why a rule that names `meant` errs.
    pub(super) fn misspells(&self, meant: &str) -> String {
        let (kind, how) = match self.target {
            RuleTarget::Prompt { .. } => ("name", "differs only by case from"),
            RuleTarget::Resource { .. } | RuleTarget::Tool(_) | RuleTarget::NamedTool { .. } => {
                ("URI", "is another spelling of")
            }
        };
        let meant = meant.escape_debug();
        format!("the {kind} {how} '{meant}', which the rule names: write '{meant}'")
    }
}

/// Normalized URI: all spellings of a URI have the same form.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NormalUri {
    /// Scheme, authority and path.
    base: String,
    /// `None` if absent or empty.
    query: Option<String>,
    fragment: Option<String>,
}

impl NormalUri {
    fn of(uri: &str) -> Self {
        let uri: String = uri.chars().filter(|it| *it > ' ').map(slash).collect();
        let (rest, fragment) = uri.split_once('#').unwrap_or((uri.as_str(), ""));
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (scheme, rest) = match rest.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest),
            Some(_) | None => (String::new(), rest),
        };
        let (authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", rest),
        };
        let authority =
            if scheme == "file" { String::new() } else { authority_of(&scheme, authority) };
        let path: String = decoded(path).chars().map(slash).collect();
        let mut segments = Vec::new();
        for segment in path.split('/') {
            match segment {
                "" | "." => {}
                ".." => {
                    segments.pop();
                }
                _ => segments.push(segment),
            }
        }
        let part = |text: &str| (!text.is_empty()).then(|| decoded(text));
        Self {
            base: format!("{scheme}://{authority}/{}", segments.join("/")),
            query: part(query),
            fragment: part(fragment),
        }
    }

    fn is_spelling_of(&self, named: &Self) -> bool {
        let added =
            |asked: &Option<String>, named: &Option<String>| named.is_none() || asked == named;
        self.base == named.base
            && added(&self.query, &named.query)
            && added(&self.fragment, &named.fragment)
    }
}

/// Authority without an empty user and a default port.
fn authority_of(scheme: &str, authority: &str) -> String {
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|it| it.is_ascii_digit()) => (host, port),
        Some(_) | None => (host, ""),
    };
    let port = port.trim_start_matches('0');
    let port = if DEFAULT_PORTS.contains(&(scheme, port)) { "" } else { port };
    let host: String = fold::folded(&decoded(host)).collect();
    format!("{}@{host}:{port}", decoded(user))
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|it: char| it.is_ascii_alphabetic())
        && text.bytes().all(|it| it.is_ascii_alphanumeric() || b"+-.".contains(&it))
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// WHATWG parsers read a backslash as a slash.
fn slash(char: char) -> char {
    if char == '\\' { '/' } else { char }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_spelling(uri: &str, named: &str) -> bool {
        NormalUri::of(uri).is_spelling_of(&NormalUri::of(named))
    }

    #[test]
    fn spellings_of_a_uri_are_recognized() {
        for uri in [
            "FILE:///secret/keys.txt",
            "file:///secret/%6beys.txt",
            "file:///secret/%6Beys.txt",
            "file:///secret/./keys.txt",
            "file:///public/../secret/keys.txt",
            "file:///../public/%2e%2E/secret/keys.txt",
            "file://localhost/secret/keys.txt",
            "file://h/secret/keys.txt",
            "file:///secret//keys.txt",
            "file:///secret/keys.txt?",
            "file:///secret/keys.txt?a=b",
            "file:///secret/keys.txt#x",
            "file:/secret/keys.txt",
            "file:///secret/keys.txt/",
            "file:///secret%2Fkeys.txt",
            "file:\\\\\\secret\\keys.txt",
            " file:///sec\tret/keys.txt\n",
        ] {
            assert!(is_spelling(uri, "file:///secret/keys.txt"), "{uri}");
        }
        for (uri, named) in [
            ("HTTPS://H.example:0443/a", "https://h.example/a"),
            ("http://@h:/", "http://h"),
            ("http://%68/a", "http://h/a"),
            ("http://h/caf%C3%A9", "http://h/caf\u{e9}"),
            ("http://h/a?x=%31#f", "http://h/a?x=1"),
            ("URN:isbn:1", "urn:isbn:1"),
            ("./notes", "notes"),
        ] {
            assert!(is_spelling(uri, named), "{uri} {named}");
        }
    }

    #[test]
    fn other_uris_are_not_spellings() {
        for (uri, named) in [
            ("file:///secret/keys.txt2", "file:///secret/keys.txt"),
            ("file:///secret/Keys.txt", "file:///secret/keys.txt"),
            ("file:///secret", "file:///secret/keys.txt"),
            ("file:///secret/%256beys.txt", "file:///secret/keys.txt"),
            ("http://h:81/a", "http://h/a"),
            ("https://h:80/a", "https://h/a"),
            ("http://u@h/a", "http://h/a"),
            ("http://h/a?x=2", "http://h/a?x=1"),
            ("http://h/a", "http://h/a?x=1"),
            ("http://h/a#y", "http://h/a#x"),
            ("http://[::1]/a", "http://[::2]/a"),
            ("urn:isbn:2", "urn:isbn:1"),
            ("", "file:///"),
        ] {
            assert!(!is_spelling(uri, named), "{uri} {named}");
        }
    }
}
