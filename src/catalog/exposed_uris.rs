//! Streaming rewriter of the URIs at known places of a server's JSON. It replaces each of them by the exposed URI and
//! forwards all other bytes verbatim. Sans-I/O and incremental: the output does not depend on how the input is split.
//!
//! Clients may parse more leniently than the standard requires, and must not mistake a server's own URI for an exposed
//! one. Member names therefore match in any case and with any escapes, and a string that cannot be decoded only gets
//! the server's prefix.
//!
//! The structure is tracked only where a URI can occur; brackets and strings suffice to skip the rest. Malformed JSON
//! is forwarded verbatim.

use std::sync::Arc;

use bytes::Bytes;
use mcpproxy_json::fold;
use mcpproxy_json::members::string;
use mcpproxy_protocol::mcp::bounds::{MAX_URI_BYTES, MAX_URI_PREFIX_BYTES};
use mcpproxy_protocol::wire::splice::Splice;
use memchr::memchr2;

use super::exposed;

/// Part of a JSON value in which URIs occur.
#[derive(Debug)]
pub enum UriPlace {
    /// A string that is a URI.
    Uri,
    /// Every element of an array.
    Each(&'static UriPlace),
    /// Members of an object by name. Names match in any case.
    Members(&'static [(&'static str, UriPlace)]),
}

use UriPlace::{Each, Members, Uri};

/// An element of `tools/list`: the URI of its UI resource (SEP-1865), nested or as a flat key.
pub(crate) const TOOL: UriPlace = Members(&[(
    "_meta",
    Members(&[("ui", Members(&[("resourceUri", Uri)])), ("ui/resourceUri", Uri)]),
)]);
/// The result of `resources/read`.
pub const CONTENTS: UriPlace = Members(&[("contents", Each(&Members(&[("uri", Uri)])))]);
/// The result of `resources/directory/read`.
pub const DIRECTORY: UriPlace = Members(&[("resources", Each(&Members(&[("uri", Uri)])))]);
/// An entry of `skills/list` (SEP-2640).
pub const SKILL: UriPlace =
    Members(&[("uri", Uri), ("resources", Each(&Members(&[("uri", Uri)])))]);
/// The result of `skills/get`.
pub const SKILL_RESULT: UriPlace = Members(&[("skill", SKILL)]);
/// A JSON-RPC error about a resource (SEP-2164).
const ERROR: UriPlace = Members(&[("data", Members(&[("uri", Uri)]))]);

/// Maximum raw length in bytes of a URI that is rewritten: the length of the longest exposed URI with every character
/// escaped. A longer URI cannot be requested.
pub(crate) const MAX_TOKEN_BYTES: usize = 6 * (MAX_URI_PREFIX_BYTES + MAX_URI_BYTES);
/// Maximum raw length in bytes of a member name that is compared: the length of the longest name in a place, with every
/// character escaped as two UTF-16 surrogates.
const MAX_MEMBER_BYTES: usize = 12 * 16;

/// Requested URI in both spellings.
#[derive(Debug)]
struct RequestedUri {
    /// The server's own URI.
    own: Box<str>,
    /// The client's spelling of the URI.
    asked: Box<str>,
}

/// Rewriter of the answer to a request for one URI of a server.
#[derive(Debug)]
pub struct AnswerRewriter {
    requested: Arc<RequestedUri>,
    /// Rewriter of the result, if the result contains URIs that are exposed.
    pub result: Option<UriRewriter>,
}

impl AnswerRewriter {
    /// Creates the rewriter for a request for `own` of `server`, which the client spelled `asked`. `exposed` is the
    /// place of URIs in the result that are exposed.
    #[must_use]
    pub fn new(
        exposed: Option<&'static UriPlace>,
        server: &Arc<str>,
        own: &str,
        asked: &str,
    ) -> Self {
        let requested = Arc::new(RequestedUri { own: own.into(), asked: asked.into() });
        let result = exposed.map(|place| {
            let requested = Some(Arc::clone(&requested));
            UriRewriter { requested, ..UriRewriter::new(place, server) }
        });
        Self { requested, result }
    }

    /// Rewrites `data.uri` of a JSON-RPC error to the client's spelling if it is the requested URI; `None` if nothing changes.
    #[must_use]
    pub fn error(&self, error: &Bytes) -> Option<Splice> {
        if self.requested.own == self.requested.asked {
            return None;
        }
        let requested = Some(Arc::clone(&self.requested));
        UriRewriter { requested, ..UriRewriter::of(&ERROR, None) }.whole(error)
    }
}

/// Rewriter of one value.
#[derive(Debug)]
pub struct UriRewriter {
    root: &'static UriPlace,
    /// Server under whose name URIs are exposed. If it is `None`, only the requested URI is rewritten.
    server: Option<Arc<str>>,
    requested: Option<Arc<RequestedUri>>,
    /// Open containers in which URIs can occur; never deeper than the place.
    open: Vec<Container>,
    /// Depth within a container without URIs.
    skipped: u64,
    /// Place of the next value.
    next: Option<&'static UriPlace>,
    string: Option<OpenString>,
    /// Beginning of a member name or a URI, which is held back until it is complete.
    held: Vec<u8>,
    changed: bool,
}

#[derive(Debug)]
struct Container {
    place: &'static UriPlace,
    /// Whether a member name is next.
    expects_name: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Member name.
    Name,
    Uri,
    Other,
}

#[derive(Clone, Copy, Debug)]
struct OpenString {
    role: Role,
    escaped: bool,
}

impl UriRewriter {
    pub fn new(place: &'static UriPlace, server: &Arc<str>) -> Self {
        Self::of(place, Some(Arc::clone(server)))
    }

    fn of(place: &'static UriPlace, server: Option<Arc<str>>) -> Self {
        Self {
            root: place,
            server,
            requested: None,
            open: Vec::new(),
            skipped: 0,
            next: Some(place),
            string: None,
            held: Vec::new(),
            changed: false,
        }
    }

    /// Starts the next value for the same request.
    pub fn restart(&mut self) {
        self.open.clear();
        self.held.clear();
        (self.skipped, self.next, self.string) = (0, Some(self.root), None);
    }

    /// Whether a URI was rewritten.
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// Appends the rewritten `chunk` to `out`; the beginning of a URI is held back.
    pub fn feed(&mut self, chunk: &Bytes, out: &mut Splice) {
        let (mut at, mut from) = (0, 0);
        while let Some(byte) = chunk.get(at).copied() {
            match self.string {
                Some(OpenString { role: Role::Other, escaped: false }) => {
                    let rest = chunk.get(at..).unwrap_or_default();
                    at += memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                    match chunk.get(at) {
                        Some(b'"') => self.string = None,
                        Some(_) => {
                            self.string = Some(OpenString { role: Role::Other, escaped: true });
                        }
                        None => break,
                    }
                }
                Some(open) => {
                    if self.in_string(open, byte) {
                        let token = std::mem::take(&mut self.held);
                        out.push(self.rewritten(token));
                        from = at + 1;
                    } else if open.role == Role::Uri
                        && self.string.is_none_or(|it| it.role != open.role)
                    {
                        // The URI is too long to be rewritten, so the held text is forwarded as it is.
                        out.push(std::mem::take(&mut self.held).into());
                        from = at + 1;
                    }
                }
                None => {
                    self.structure(byte);
                    if self.string.is_some_and(|it| it.role == Role::Uri) {
                        out.push(chunk.slice(from..at));
                    }
                }
            }
            at += 1;
        }
        if self.string.is_none_or(|it| it.role != Role::Uri) && from < chunk.len() {
            out.push(chunk.slice(from..));
        }
    }

    /// Appends the text that is still held back, which is the beginning of a URI that never ended.
    pub fn end(&mut self, out: &mut Splice) {
        if self.string.take().is_some_and(|it| it.role == Role::Uri) {
            out.push(std::mem::take(&mut self.held).into());
        }
    }

    /// Processes a byte within a string. Returns true if the byte ends a URI.
    fn in_string(&mut self, open: OpenString, byte: u8) -> bool {
        let OpenString { role, escaped } = open;
        let max = match role {
            Role::Name => MAX_MEMBER_BYTES,
            Role::Uri => MAX_TOKEN_BYTES,
            Role::Other => 0,
        };
        if role != Role::Other {
            self.held.push(byte);
        }
        if byte == b'"' && !escaped {
            self.string = None;
            if role == Role::Name {
                let name = std::mem::take(&mut self.held);
                self.next = self.place_of(&name);
            }
            return role == Role::Uri;
        }
        // The closing quotation mark counts toward the limit.
        let role = if self.held.len() >= max { Role::Other } else { role };
        self.string = Some(OpenString { role, escaped: byte == b'\\' && !escaped });
        if role == Role::Other && open.role == Role::Name {
            self.held.clear();
        }
        false
    }

    /// Processes a byte outside of strings.
    fn structure(&mut self, byte: u8) {
        match byte {
            b'"' => {
                let role = self.role();
                if role != Role::Other {
                    self.held.clear();
                    self.held.push(byte);
                }
                self.string = Some(OpenString { role, escaped: false });
            }
            b'{' | b'[' if self.skipped > 0 => self.skipped += 1,
            b'}' | b']' if self.skipped > 0 => self.skipped -= 1,
            b'{' | b'[' => match self.next.take() {
                Some(place) => match (byte, place) {
                    (b'{', Members(_)) => self.open.push(Container { place, expects_name: true }),
                    (b'[', Each(each)) => {
                        self.open.push(Container { place, expects_name: false });
                        self.next = Some(*each);
                    }
                    _ => self.skipped = 1,
                },
                None => self.skipped = 1,
            },
            b'}' | b']' => {
                self.open.pop();
                self.next = None;
            }
            b',' if self.skipped == 0 => match self.open.last_mut() {
                Some(Container { place: Each(each), .. }) => self.next = Some(*each),
                Some(container) => {
                    container.expects_name = true;
                    self.next = None;
                }
                None => {}
            },
            b':' if self.skipped == 0 => {
                if let Some(container) = self.open.last_mut() {
                    container.expects_name = false;
                }
            }
            _ => {}
        }
    }

    /// Role of a string that begins here.
    fn role(&mut self) -> Role {
        if self.skipped > 0 {
            return Role::Other;
        }
        if self.open.last().is_some_and(|it| it.expects_name && matches!(it.place, Members(_))) {
            return Role::Name;
        }
        match self.next.take() {
            Some(Uri) => Role::Uri,
            Some(Each(_) | Members(_)) | None => Role::Other,
        }
    }

    /// Place of the member with this name, given as a raw string.
    fn place_of(&self, name: &[u8]) -> Option<&'static UriPlace> {
        let Some(Container { place: Members(known), .. }) = self.open.last() else { return None };
        let name = string(std::str::from_utf8(name).ok()?)?;
        known.iter().find(|(known, _)| fold::same(known, &name)).map(|(_, place)| place)
    }

    /// The exposed URI as raw JSON; the token itself if the URI is empty.
    fn rewritten(&mut self, token: Vec<u8>) -> Bytes {
        let own = std::str::from_utf8(&token).ok().and_then(string);
        let exposed = match (own, &self.requested, &self.server) {
            (Some(own), ..) if own.is_empty() => return token.into(),
            (Some(own), Some(requested), _) if *requested.own == *own => {
                requested.asked.to_string()
            }
            (_, _, None) => return token.into(),
            (Some(own), _, Some(server)) => exposed::uri(server, &own),
            (None, _, Some(server)) => {
                // The string cannot be decoded, for example because it contains a lone escaped surrogate. A URI of this
                // kind cannot be requested.
                let server = serde_json::Value::from(exposed::uri(server, "")).to_string();
                let server = server.strip_suffix('"').unwrap_or_default();
                let rest = token.get(1..).unwrap_or_default();
                self.changed = true;
                return [server.as_bytes(), rest].concat().into();
            }
        };
        self.changed = true;
        serde_json::Value::from(exposed).to_string().into()
    }

    /// Rewrites a whole value; `None` if nothing changes.
    fn whole(mut self, json: &Bytes) -> Option<Splice> {
        let mut out = Splice::new();
        self.feed(json, &mut out);
        self.end(&mut out);
        self.has_changed().then_some(out)
    }
}

/// Rewrites the URIs of a whole value; `None` if there are none.
pub fn rewritten(place: &'static UriPlace, server: &Arc<str>, json: &Bytes) -> Option<Splice> {
    UriRewriter::new(place, server).whole(json)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    static TOOLS: UriPlace = TOOL;
    static READ: UriPlace = CONTENTS;
    static SKILLS: UriPlace = SKILL_RESULT;

    fn joined(out: Splice) -> String {
        String::from_utf8(out.into_iter().collect::<Vec<_>>().concat()).unwrap()
    }

    /// Rewrites in chunks of `size`.
    fn in_chunks(place: &'static UriPlace, json: &[u8], size: usize) -> Vec<u8> {
        let (mut rewriter, mut out) = (UriRewriter::new(place, &"s".into()), Splice::new());
        for chunk in json.chunks(size.max(1)) {
            rewriter.feed(&Bytes::copy_from_slice(chunk), &mut out);
        }
        rewriter.end(&mut out);
        out.into_iter().collect::<Vec<_>>().concat()
    }

    /// Checks the output for every chunk size.
    fn check(place: &'static UriPlace, json: &str, expected: &str) {
        for size in 1..=json.len() {
            let got = String::from_utf8(in_chunks(place, json.as_bytes(), size)).unwrap();
            assert_eq!(got, expected, "chunks of {size}");
        }
    }

    #[test]
    fn pro_45_page_uri_of_a_tool_is_exposed_in_both_forms_and_other_bytes_are_unchanged() {
        check(
            &TOOLS,
            r#"{"name":"t","ui/resourceUri":"ui://a","_meta" : {"x":{"ui":{"resourceUri":"ui://a"}},"ui/resourceUri" : "ui:\/\/a/b?c#d" ,"ui":{"resourceUri":"ui://o%2Fther/\u0041","visibility":["app"],"n":1.0e5,"resourceUri2":"ui://a"}},"z":"\"resourceUri\""}"#,
            r#"{"name":"t","ui/resourceUri":"ui://a","_meta" : {"x":{"ui":{"resourceUri":"ui://a"}},"ui/resourceUri" : "ui://s/a/b?c#d" ,"ui":{"resourceUri":"ui://s/o%2Fther/A","visibility":["app"],"n":1.0e5,"resourceUri2":"ui://a"}},"z":"\"resourceUri\""}"#,
        );
    }

    #[test]
    fn pro_45_null_and_values_of_wrong_types_are_unchanged() {
        for same in [
            r#"{"_meta":null}"#,
            r#"{"_meta":[{"ui":{"resourceUri":"ui://a"}}]}"#,
            r#"{"_meta":{"ui":null,"ui/resourceUri":7}}"#,
            r#"{"_meta":{"ui":["resourceUri","ui://a"],"ui/resourceUri":{"a":"ui://a"}}}"#,
            r#"{"_meta":{"ui":"ui://a","ui/resourceUri":["ui://a"]}}"#,
            r#"{"_meta":{"ui":{"resourceUri":""}}}"#,
            r#"{"_meta":{"ui":{"resourceUri":{"resourceUri":"ui://a"}}}}"#,
            r#"["_meta",{"ui/resourceUri":"ui://a"}]"#,
            r#""_meta""#,
            "7",
            r#"{"_meta":{"ui/resourceUri":"ui://a"#,
            r#"]}},:{"_meta":"#,
        ] {
            check(&TOOLS, same, same);
        }
    }

    #[test]
    fn pro_45_uri_of_any_other_form_is_exposed_under_its_server() {
        for (own, exposed) in [
            ("ui://B/x", "ui://s/B/x"),
            ("ui://../B/x", "ui://s/../B/x"),
            ("mcpproxy://B/ui://x", "mcpproxy://s/mcpproxy://B/ui://x"),
            ("UI://B/x", "mcpproxy://s/UI://B/x"),
            ("ui:B/x", "mcpproxy://s/ui:B/x"),
            ("ui://", "mcpproxy://s/ui://"),
            ("https://example.com/", "mcpproxy://s/https://example.com/"),
            ("a\\nb", "mcpproxy://s/a\\nb"),
        ] {
            let json = |uri: &str| format!(r#"{{"_meta":{{"ui":{{"resourceUri":"{uri}"}}}}}}"#);
            check(&TOOLS, &json(own), &json(exposed));
        }
    }

    #[test]
    fn pro_45_names_in_another_case_and_undecodable_strings_are_also_exposed() {
        check(
            &TOOLS,
            r#"{"_META":{"UI":{"ResourceURI":"ui://a","re\u017fourceUri":"ui://b","resource_uri":"ui://c"},"\u0055I/resourceuri":"ui://d"}}"#,
            r#"{"_META":{"UI":{"ResourceURI":"ui://s/a","re\u017fourceUri":"ui://s/b","resource_uri":"ui://c"},"\u0055I/resourceuri":"ui://s/d"}}"#,
        );
        for (own, exposed) in [
            (r"ui://B/\ud800", r"mcpproxy://s/ui://B/\ud800"),
            (r"\udc00ui://B", r"mcpproxy://s/\udc00ui://B"),
            (r"ui:\x", r"mcpproxy://s/ui:\x"),
        ] {
            let json = |uri: &str| format!(r#"{{"_meta":{{"ui/resourceUri":"{uri}","n":1}}}}"#);
            check(&TOOLS, &json(own), &json(exposed));
        }
    }

    #[test]
    fn pro_45_answer_repeats_the_requested_uri_as_the_client_spelled_it() {
        let json = r#"{"contents":[{"uri":"ui:\/\/a","text":"{\"uri\":\"ui://a\"}","_meta":{"uri":"ui://a"}},{"text":"","uri":"ui://b"}],"uri":"ui://a"}"#;
        let answer = AnswerRewriter::new(Some(&READ), &"s".into(), "ui://a", "mcpproxy://s/ui://a");
        let mut rewriter = answer.result.unwrap();
        let mut out = Splice::new();
        rewriter.feed(&Bytes::from_static(json.as_bytes()), &mut out);
        let expected = r#"{"contents":[{"uri":"mcpproxy://s/ui://a","text":"{\"uri\":\"ui://a\"}","_meta":{"uri":"ui://a"}},{"text":"","uri":"ui://s/b"}],"uri":"ui://a"}"#;
        assert_eq!(joined(out), expected);
        assert!(rewriter.has_changed());
        let none = Bytes::from_static(br#"{"contents":[{"text":"uri"}]}"#);
        assert!(rewritten(&READ, &"s".into(), &none).is_none());
    }

    #[test]
    fn pro_4_error_repeats_the_requested_uri_as_the_client_spelled_it() {
        let answer = AnswerRewriter::new(None, &"s".into(), "t://a/b", "mcpproxy://s/t://a/b");
        let rewritten =
            |error: &str| answer.error(&Bytes::copy_from_slice(error.as_bytes())).map(joined);
        for own in ["t://a/b", r"t:\/\/a\/b", r"\u0074://a/b"] {
            let error = |uri: &str| {
                format!(
                    r#"{{"code" : -32602,"data":{{"n":1.50,"uri" :"{uri}", "x":"\/"}},"message":"t://a/b"}}"#
                )
            };
            assert_eq!(rewritten(&error(own)), Some(error("mcpproxy://s/t://a/b")), "{own}");
        }
        for same in [
            r#"{"data":{"uri":"t://a/c"}}"#,
            r#"{"data":{"uri":"t://a/b/"}}"#,
            r#"{"data":{"uri":["t://a/b"]}}"#,
            r#"{"data":{"uri":{"uri":"t://a/b"}}}"#,
            r#"{"data":{"uri":""}}"#,
            r#"{"data":{"uri":"t://a/b\ud800"}}"#,
            r#"{"data":{"data":{"uri":"t://a/b"}}}"#,
            r#"{"data":[{"uri":"t://a/b"}]}"#,
            r#"{"data":"t://a/b","uri":"t://a/b"}"#,
            r#"{"data":{"uris":"t://a/b"}}"#,
            r#"{"data":{"uri":"t://a/b"#,
        ] {
            assert_eq!(rewritten(same), None, "{same}");
        }
        let own = AnswerRewriter::new(None, &"s".into(), "t://a/b", "t://a/b");
        assert!(own.error(&Bytes::from_static(br#"{"data":{"uri":"t:\/\/a\/b"}}"#)).is_none());
    }

    #[test]
    fn pro_46_skill_and_its_files_are_exposed() {
        check(
            &SKILLS,
            r#"{"skill":{"resources":[{"digest":"x","uri":"skill://a/b/SKILL.md"},{"uri":"github://o/r/x"}],"frontmatter":{"name":"b","uri":"skill://a"},"uri":"skill://a/b/SKILL.md"},"resources":[{"uri":"skill://a"}]}"#,
            r#"{"skill":{"resources":[{"digest":"x","uri":"skill://s/a/b/SKILL.md"},{"uri":"mcpproxy://s/github://o/r/x"}],"frontmatter":{"name":"b","uri":"skill://a"},"uri":"skill://s/a/b/SKILL.md"},"resources":[{"uri":"skill://a"}]}"#,
        );
    }

    #[test]
    fn pro_45_uri_that_is_too_long_is_unchanged_and_the_next_one_is_exposed() {
        let json = |length: usize, second: &str| {
            let long = "x".repeat(length);
            format!(r#"{{"contents":[{{"uri":"{long}"}},{{"uri":"{second}"}}]}}"#)
        };
        // The length includes the quotation marks.
        let fits = MAX_TOKEN_BYTES - 2;
        for length in [fits + 1, 2 * MAX_TOKEN_BYTES] {
            let (before, after) = (json(length, "ui://a"), json(length, "ui://s/a"));
            for size in [1, 1000, before.len()] {
                assert!(in_chunks(&READ, before.as_bytes(), size) == after.as_bytes(), "{length}");
            }
        }
        let before = json(fits, "ui://a");
        let after = in_chunks(&READ, before.as_bytes(), 777);
        assert!(after.starts_with(br#"{"contents":[{"uri":"mcpproxy://s/xxx"#));
    }

    /// Reference implementation on a document tree.
    fn by_tree(mut value: Value) -> Value {
        if let Some(contents) = value.get_mut("contents").and_then(Value::as_array_mut) {
            for uri in contents.iter_mut().filter_map(|it| it.get_mut("uri")) {
                if let Some(own) = uri.as_str().filter(|own| !own.is_empty()) {
                    *uri = exposed::uri("s", own).into();
                }
            }
        }
        value
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let key = || prop_oneof![Just("contents"), Just("uri"), Just("x\"\\")];
        let leaf = prop_oneof![
            Just(json!(null)),
            Just(json!(1.5)),
            "(ui://)?[a-z\"\\\\/é\u{1}]{0,6}".prop_map(Value::from)
        ];
        leaf.prop_recursive(5, 40, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(key(), inner, 0..3).prop_map(|members| {
                    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn output_equals_that_of_a_document_tree(value in any_value(), size in 1_usize..20) {
            let value = json!({"contents": [value.clone(), {"uri": value}]});
            let got = in_chunks(&READ, value.to_string().as_bytes(), size);
            prop_assert_eq!(serde_json::from_slice::<Value>(&got).unwrap(), by_tree(value));
        }

        #[test]
        fn arbitrary_bytes_are_rewritten_identically_for_every_split(
            pieces in prop::collection::vec(prop_oneof![
                Just("{"), Just("}"), Just("["), Just("]"), Just("\"contents\""), Just("\"uri\""),
                Just(":"), Just(","), Just("\\"), Just("\""), Just("a"),
            ], 0..40),
            size in 1_usize..8,
        ) {
            let json = pieces.concat();
            let whole = in_chunks(&READ, json.as_bytes(), json.len());
            prop_assert_eq!(in_chunks(&READ, json.as_bytes(), size), whole);
        }
    }
}
