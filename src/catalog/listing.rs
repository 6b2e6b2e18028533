//! List elements under exposed names, the pages in which they are sent, and the lists that servers offer in addition to
//! tools (resources, templates, prompts); also the listings of a tool under `/mcp/all` for each protocol family. Pure.
//!
//! An element is the server's own JSON with one member, the name or URI, replaced; all other bytes are verbatim.
//! Callers are responsible for discovery and aggregation.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::conform::{Conformed, ItemKind, NotListable, conform, without_output_schema};
use super::exposed;
use super::exposed_uris::{self, SKILL, TOOL};
use mcpproxy_json::members;
use mcpproxy_json::span::Span;
use mcpproxy_policy::tool::OutputSchema;
use mcpproxy_protocol::mcp::bounds::{self, MAX_CURSOR_BYTES, OverLimit};
use mcpproxy_protocol::mcp::revisions::ProtocolFamily;
use mcpproxy_protocol::wire::splice::Splice;

/// Maximum number of elements per page. Many clients never request a second page.
pub const PAGE_ELEMENTS: usize = 1000;
/// Size of a page in bytes at which the page ends.
pub(crate) const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// A list element under its exposed name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Exposed name or URI; lists are ordered by it.
    pub key: Box<str>,
    /// The server's own name or URI.
    pub own: Box<str>,
    json: Bytes,
    /// The server's own spelling of its name or URI as raw JSON; `None` if it is the plain spelling.
    token: Option<Box<str>>,
    /// The server's own bytes, if they differ in more than the name or URI.
    verbatim: Option<Box<Bytes>>,
}

impl Listed {
    /// Creates an element from `element`, with the value at `at` replaced by `key`.
    pub(crate) fn new(element: &str, at: Span, own: &str, key: String) -> Self {
        let json = with_string(element.as_bytes(), at, &key).into();
        let token = element.get(at.start as usize..at.end as usize);
        let token = token.filter(|token| **token != plain_token(own)).map(Box::from);
        Self { key: key.into(), own: own.into(), json, token, verbatim: None }
    }

    /// Creates an element with the key `key`, whose JSON contains the name as spelled in `spelling`.
    pub(crate) fn spelled(element: &str, at: Span, own: &str, key: String, spelling: &str) -> Self {
        let json = with_string(element.as_bytes(), at, spelling).into();
        Self { key: key.into(), own: own.into(), json, token: None, verbatim: None }
    }

    /// Creates an element that is already under its exposed name.
    pub(crate) fn stored(key: String, own: &str, json: &str) -> Self {
        let json = Bytes::copy_from_slice(json.as_bytes());
        Self { key: key.into(), own: own.into(), json, token: None, verbatim: None }
    }

    /// Returns the element of a page of `list` under the server's own name or URI, as the server's own bytes.
    pub fn own_element(&self, list: List) -> PageElement<'_> {
        if let Some(verbatim) = &self.verbatim {
            return PageElement { key: &self.key, json: ElementJson::Stored(verbatim) };
        }
        let token = match &self.token {
            Some(token) => Bytes::copy_from_slice(token.as_bytes()),
            None => plain_token(&self.own).into(),
        };
        PageElement { key: &self.key, json: ElementJson::own(&self.json, list.key_member(), token) }
    }

    /// JSON of the element.
    pub(crate) fn json(&self) -> &Bytes {
        &self.json
    }
}

/// A name as raw JSON without needless escapes.
fn plain_token(name: &str) -> String {
    serde_json::Value::from(name).to_string()
}

/// Returns `json` with the value at span `at` replaced by the string `new`.
pub(crate) fn with_string(json: &[u8], at: Span, new: &str) -> Vec<u8> {
    at.replaced(json, plain_token(new).as_bytes())
}

/// Start of a page: after this key, or at the beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Start(Option<Box<str>>);

/// Error of a cursor that this proxy did not issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCursor {
    /// Cursor that does not decode to a list position.
    #[error("Invalid cursor")]
    Unknown,
    /// Cursor that is too long.
    #[error("Invalid cursor: {0}")]
    OverLimit(#[from] OverLimit),
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    cursor: Option<Cow<'a, str>>,
}

impl Start {
    /// Parses the cursor in a list request's params. The protocol requires -32602 for [`BadCursor`].
    pub fn parse(params: &[u8]) -> Result<Self, BadCursor> {
        let params: Params<'_> = serde_json::from_slice(params).map_err(|_| BadCursor::Unknown)?;
        let Some(cursor) = params.cursor else { return Ok(Self(None)) };
        bounds::within("cursor", &*cursor, MAX_CURSOR_BYTES)?;
        let key = URL_SAFE_NO_PAD.decode(&*cursor).map_err(|_| BadCursor::Unknown)?;
        Ok(Self(Some(String::from_utf8(key).map_err(|_| BadCursor::Unknown)?.into())))
    }

    pub fn rest<'a, T>(&self, sorted: &'a [T], key: impl Fn(&T) -> &str) -> &'a [T] {
        let Some(last) = &self.0 else { return sorted };
        let from = sorted.partition_point(|element| *key(element) <= **last);
        sorted.get(from..).unwrap_or_default()
    }
}

/// An element of a page: its exposed name or URI, and its JSON.
#[derive(Clone, Debug)]
pub struct PageElement<'a> {
    pub key: &'a str,
    pub json: ElementJson<'a>,
}

/// JSON of an element under its exposed or its own name.
#[derive(Clone, Debug)]
pub enum ElementJson<'a> {
    /// JSON as stored, either under the exposed name or verbatim.
    Stored(&'a Bytes),
    /// The stored JSON with exposed URIs.
    Rewritten(Splice),
    /// JSON in which the value at `at` is replaced by the server's own name, as raw JSON.
    Own { json: &'a Bytes, at: Span, token: Bytes },
}

impl<'a> ElementJson<'a> {
    /// Creates an element with the value of `member` in `json` replaced by `token`.
    pub(super) fn own(json: &'a Bytes, member: &str, token: Bytes) -> Self {
        let value = std::str::from_utf8(json).ok().and_then(|text| members::member(text, member));
        match value {
            Some(value) => Self::Own { json, at: Span::of(json, value.as_bytes()), token },
            // This case cannot occur, because every element has a name.
            None => Self::Stored(json),
        }
    }

    fn push(&self, page: &mut Splice) {
        match self {
            Self::Stored(json) => page.push((*json).clone()),
            Self::Rewritten(json) => page.extend(json.slices().cloned()),
            Self::Own { json, at, token } => {
                page.push(Span::new(0, at.start).within(json, 0));
                page.push(token.clone());
                page.push(Span::new(at.end, json.len() as u64).within(json, 0));
            }
        }
    }
}

impl<'a> From<&'a Listed> for PageElement<'a> {
    fn from(listed: &'a Listed) -> Self {
        Self { key: &listed.key, json: ElementJson::Stored(&listed.json) }
    }
}

/// Builds one page of a list: `{"tools":[…],"nextCursor":"…"}`, with `tools` for `member`, after `beside`
/// (`"key":value` or empty). The cursor is the last key, so that insertions and removals between pages shift nothing.
pub fn page<'a>(
    beside: &str,
    member: &str,
    elements: impl Iterator<Item = PageElement<'a>>,
) -> Splice {
    const COMMA: Bytes = Bytes::from_static(b",");
    let mut elements = elements.peekable();
    let comma = if beside.is_empty() { "" } else { "," };
    let mut page = Splice::from(Bytes::from(format!("{{{beside}{comma}\"{member}\":[")));
    let mut count = 0;
    while let Some(element) = elements.next() {
        if count > 0 {
            page.push(COMMA);
        }
        element.json.push(&mut page);
        count += 1;
        if elements.peek().is_some() && (count == PAGE_ELEMENTS || page.len() >= PAGE_BYTES) {
            let cursor = URL_SAFE_NO_PAD.encode(element.key.as_bytes());
            page.push(Bytes::from(format!("],\"nextCursor\":\"{cursor}\"}}")));
            return page;
        }
    }
    page.push(Bytes::from_static(b"]}"));
    page
}

/// Maximum size of an element, in bytes.
pub(crate) const MAX_ELEMENT_BYTES: usize = 256 * 1024;
/// Maximum size of a name or URI in bytes.
pub(crate) const MAX_KEY_BYTES: usize = 8 * 1024;

/// A list aggregated over the upstreams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Method `resources/list`.
    Resources,
    /// Method `resources/templates/list`.
    Templates,
    /// Method `prompts/list`.
    Prompts,
    /// Method `skills/list` (SEP-2640).
    Skills,
}

impl List {
    pub const ALL: [Self; 4] = [Self::Resources, Self::Templates, Self::Prompts, Self::Skills];

    /// Protocol method.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
            Self::Prompts => "prompts/list",
            Self::Skills => "skills/list",
        }
    }

    /// Member of an element that contains its name or URI.
    const fn key_member(self) -> &'static str {
        match self {
            Self::Resources | Self::Skills => "uri",
            Self::Templates => "uriTemplate",
            Self::Prompts => "name",
        }
    }

    /// Member of the result that holds the elements.
    pub const fn member(self) -> &'static str {
        match self {
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
            Self::Prompts => "prompts",
            Self::Skills => "skills",
        }
    }
}

/// A parsed page.
#[derive(Debug, Default)]
pub struct OfferedPage {
    /// Conforming elements, in order.
    pub elements: Vec<Listed>,
    /// Notes on repaired elements and on elements left out.
    pub notes: Vec<ListNote>,
    /// Cursor of the next page, or the reason why it is invalid.
    pub next: Option<Result<String, &'static str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(borrow)]
    resources: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    resource_templates: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    prompts: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    skills: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    next_cursor: Option<&'a RawValue>,
}

impl OfferedPage {
    /// Parses the result of `server` for `list`. The error for a malformed result is one line.
    pub fn parse(server: &str, list: List, result: &[u8]) -> Result<Self, String> {
        let fields: Fields<'_> =
            serde_json::from_slice(result).map_err(|error| error.to_string())?;
        let listed = match list {
            List::Resources => fields.resources,
            List::Templates => fields.resource_templates,
            List::Prompts => fields.prompts,
            List::Skills => fields.skills,
        };
        let next = fields
            .next_cursor
            .map(|raw| serde_json::from_str(raw.get()).map_err(|_| "nextCursor is not a string"));
        let mut page = Self { next, ..Self::default() };
        if listed.is_none() {
            let reason = format!("the result has no array '{}'", list.member());
            page.notes.push(ListNote::new(list.method(), "", NoteAction::Omitted, &reason));
        }
        for element in listed.unwrap_or_default() {
            let element = element.get();
            let conformed = conforming(list, element);
            let (text, repairs) = match &conformed {
                Ok(Conformed { json, repairs }) => {
                    (json.as_deref().unwrap_or(element), repairs.as_str())
                }
                Err(_) => (element, ""),
            };
            let parsed = parse(server, list, text).map_err(|reason| (String::new(), reason));
            let parsed = match &conformed {
                // The parser's own error about the name is more specific.
                Err(NotListable(reason)) => {
                    parsed.and_then(|listed| Err((listed.own.into(), reason.clone())))
                }
                Ok(_) => parsed,
            };
            match parsed {
                Ok(listed) => {
                    if !repairs.is_empty() {
                        let action = NoteAction::Repaired;
                        page.notes.push(ListNote::new(list.method(), &listed.own, action, repairs));
                    }
                    page.elements.push(listed);
                }
                Err((own, reason)) => {
                    let action = NoteAction::Omitted;
                    page.notes.push(ListNote::new(list.method(), &own, action, &reason));
                }
            }
        }
        Ok(page)
    }
}

fn conforming(list: List, json: &str) -> Result<Conformed, NotListable> {
    if json.len() > MAX_ELEMENT_BYTES {
        return Ok(Conformed::default());
    }
    let kind = match list {
        List::Resources => ItemKind::Resource,
        List::Templates => ItemKind::Template,
        List::Prompts => ItemKind::Prompt,
        // The extension does not define a schema.
        List::Skills => return Ok(Conformed::default()),
    };
    // The rules are the same in all revisions.
    conform(kind, ProtocolFamily::Legacy, json)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Element<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
    #[serde(borrow)]
    uri: Option<&'a RawValue>,
    #[serde(borrow)]
    uri_template: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct SkillElement<'a> {
    #[serde(borrow)]
    uri: &'a RawValue,
}

fn parse(server: &str, list: List, json: &str) -> Result<Listed, String> {
    if json.len() > MAX_ELEMENT_BYTES {
        return Err(format!("an element is larger than {MAX_ELEMENT_BYTES} bytes"));
    }
    if list == List::Skills {
        return parse_skill(server, json);
    }
    let element: Element<'_> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let name = text("name", element.name)?;
    let (value, own) = match list {
        List::Prompts => (element.name, Cow::Borrowed(&*name)),
        List::Resources | List::Skills => addressed("uri", element.uri, &name)?,
        List::Templates => addressed("uriTemplate", element.uri_template, &name)?,
    };
    let key = match list {
        List::Prompts => exposed::name(server, &own),
        List::Resources | List::Templates | List::Skills => exposed::uri(server, &own),
    };
    let at = Span::of(json.as_bytes(), value.get().as_bytes());
    Ok(Listed::new(json, at, &own, key))
}

/// An entry of `skills/list`, with the URIs of its files exposed.
fn parse_skill(server: &str, json: &str) -> Result<Listed, String> {
    let element: SkillElement<'_> =
        serde_json::from_str(json).map_err(|error| error.to_string())?;
    let own = text("uri", element.uri)?;
    let whole = Bytes::copy_from_slice(json.as_bytes());
    let exposed = exposed_uris::rewritten(&SKILL, &Arc::from(server), &whole);
    let exposed: Vec<Bytes> = exposed.map_or(vec![whole], |parts| parts.into_iter().collect());
    let exposed = String::from_utf8(exposed.concat()).map_err(|error| error.to_string())?;
    let listed = Listed::stored(exposed::uri(server, &own), &own, &exposed);
    let verbatim = Box::new(Bytes::copy_from_slice(json.as_bytes()));
    Ok(Listed { verbatim: Some(verbatim), ..listed })
}

fn addressed<'a>(
    member: &str,
    value: Option<&'a RawValue>,
    name: &str,
) -> Result<(&'a RawValue, Cow<'a, str>), String> {
    let value = value.ok_or_else(|| format!("{}: {member} is missing", shown(name)))?;
    let own = text(member, value).map_err(|reason| format!("{}: {reason}", shown(name)))?;
    Ok((value, own))
}

fn text<'a>(member: &str, value: &'a RawValue) -> Result<Cow<'a, str>, String> {
    /// A string, borrowed if it has no escapes.
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    let Text(text) =
        serde_json::from_str(value.get()).map_err(|error| format!("{member}: {error}"))?;
    match text.len() {
        0 => Err(format!("{member} is empty")),
        1..=MAX_KEY_BYTES => Ok(text),
        _ => Err(format!("{member} is longer than {MAX_KEY_BYTES} bytes")),
    }
}

/// Returns a server's text in truncated, printable form.
fn shown(word: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 64;
    word.chars().take(MAX_SHOWN_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Whether a definition contains URIs to be exposed.
fn has_page(definition: &Bytes) -> bool {
    exposed_uris::rewritten(&TOOL, &Arc::from(""), definition).is_some()
}

/// Listings of one tool under `/mcp/all`, and under its own name.
#[derive(Debug)]
pub(super) struct ToolListings {
    legacy: ToolListing,
    modern: ToolListing,
    /// The server's own spelling of the name as raw JSON.
    token: Bytes,
    /// Whether the definition names a page, whose URI is exposed under `/mcp/all`.
    has_page: bool,
}

#[derive(Debug)]
struct ToolListing {
    form: ListingForm,
    /// Created at first use. Needed only if the output schema turns out to be unusable.
    without_output: OnceLock<Option<Bytes>>,
}

#[derive(Debug)]
enum ListingForm {
    /// The pinned definition.
    Verbatim,
    /// The definition under another spelling of its name.
    Renamed(Bytes),
    Repaired {
        json: Bytes,
        repairs: Box<str>,
    },
    Omitted(Box<str>),
}

impl ToolListing {
    fn of(family: ProtocolFamily, json: &str) -> Self {
        let form = match conform(ItemKind::Tool, family, json) {
            Ok(conformed) => match conformed.json {
                None => ListingForm::Verbatim,
                Some(json) => {
                    ListingForm::Repaired { json: json.into(), repairs: conformed.repairs.into() }
                }
            },
            Err(reason) => ListingForm::Omitted(reason.0.into()),
        };
        Self { form, without_output: OnceLock::new() }
    }
}

impl ToolListings {
    /// Creates the listings of a tool whose pinned definition is `listed`. `json` is the same definition under the
    /// exposed name, and `token` is the server's own name as raw JSON.
    pub(super) fn of(listed: &Listed, json: Vec<u8>, token: &str) -> Self {
        let text = std::str::from_utf8(&json).unwrap_or("{}");
        let [mut legacy, mut modern] = [ProtocolFamily::Legacy, ProtocolFamily::Modern]
            .map(|family| ToolListing::of(family, text));
        if json != **listed.json() {
            let json = Bytes::from(json);
            for listing in [&mut legacy, &mut modern] {
                if matches!(listing.form, ListingForm::Verbatim) {
                    listing.form = ListingForm::Renamed(json.clone());
                }
            }
        }
        let has_page = has_page(listed.json());
        Self { legacy, modern, token: Bytes::copy_from_slice(token.as_bytes()), has_page }
    }

    /// Returns [`json`](Self::json) with exposed URIs.
    pub(super) fn exposed_json<'a>(
        &'a self,
        family: ProtocolFamily,
        (server, listed): (&Arc<str>, &'a Listed),
        schema: &OutputSchema,
    ) -> Option<ElementJson<'a>> {
        let json = self.json(family, listed, schema)?;
        let rewritten = self.has_page.then(|| exposed_uris::rewritten(&TOOL, server, json));
        Some(rewritten.flatten().map_or(ElementJson::Stored(json), ElementJson::Rewritten))
    }

    /// Returns [`json`](Self::json) under the server's own name.
    pub(super) fn own_json<'a>(
        &'a self,
        family: ProtocolFamily,
        listed: &'a Listed,
        schema: &OutputSchema,
    ) -> Option<ElementJson<'a>> {
        let json = self.json(family, listed, schema)?;
        Some(ElementJson::own(json, "name", self.token.clone()))
    }

    /// JSON for clients of `family`; `None` if the tool is left out. An output schema that cannot be compiled is not
    /// listed, because clients compile it too and discard the whole list if they cannot.
    pub(super) fn json<'a>(
        &'a self,
        family: ProtocolFamily,
        listed: &'a Listed,
        schema: &OutputSchema,
    ) -> Option<&'a Bytes> {
        let listing = match family {
            ProtocolFamily::Legacy => &self.legacy,
            ProtocolFamily::Modern => &self.modern,
        };
        let json = match &listing.form {
            ListingForm::Verbatim => listed.json(),
            ListingForm::Renamed(json) | ListingForm::Repaired { json, .. } => json,
            ListingForm::Omitted(_) => return None,
        };
        match schema.now() {
            OutputSchema::Absent | OutputSchema::Compiled(_) => Some(json),
            OutputSchema::Unusable(_) | OutputSchema::Compiling(_) => {
                let without = listing.without_output.get_or_init(|| {
                    let text = std::str::from_utf8(json).ok()?;
                    without_output_schema(text).map(Bytes::from)
                });
                Some(without.as_ref().unwrap_or(json))
            }
        }
    }

    /// Note on the tool's listing, unless it is the server's own listing in every family.
    pub(super) fn note(&self, own: &str, schema: &OutputSchema) -> Option<ListNote> {
        let unusable = match schema.now() {
            OutputSchema::Unusable(reason) => {
                format!("outputSchema is not listed, since it cannot be used: {reason}")
            }
            OutputSchema::Absent | OutputSchema::Compiled(_) | OutputSchema::Compiling(_) => {
                String::new()
            }
        };
        let (action, reason) = match (&self.legacy.form, &self.modern.form) {
            (ListingForm::Omitted(reason), ListingForm::Omitted(_)) => {
                let advice = "callable with the call tools only";
                (NoteAction::Omitted, format!("{reason}; {advice}"))
            }
            (_, ListingForm::Repaired { repairs, .. }) => {
                (NoteAction::Repaired, repairs.to_string())
            }
            (ListingForm::Repaired { repairs, .. }, _) => {
                (NoteAction::Repaired, format!("for legacy clients: {repairs}"))
            }
            (ListingForm::Omitted(reason), _) => {
                (NoteAction::Omitted, format!("for legacy clients: {reason}"))
            }
            (ListingForm::Verbatim | ListingForm::Renamed(_), _) if unusable.is_empty() => {
                return None;
            }
            (ListingForm::Verbatim | ListingForm::Renamed(_), _) => {
                (NoteAction::Repaired, String::new())
            }
        };
        let parts = [reason, unusable].into_iter().filter(|part| !part.is_empty());
        let reason = parts.collect::<Vec<_>>().join("; ");
        Some(ListNote::new("tools/list", own, action, &reason))
    }
}

#[cfg(test)]
mod offered_tests {
    use super::*;

    fn page(list: List, result: &str) -> OfferedPage {
        OfferedPage::parse("s", list, result.as_bytes()).unwrap()
    }

    fn only(list: List, element: &str) -> (String, String) {
        let mut page = page(list, &format!(r#"{{"{}":[{element}]}}"#, list.member()));
        assert_eq!((page.elements.len(), page.notes.len()), (1, 0), "{:?}", page.notes);
        let element = page.elements.remove(0);
        (element.key.to_string(), String::from_utf8(element.json().to_vec()).unwrap())
    }

    #[test]
    fn element_is_verbatim_except_name_or_uri() {
        let (key, json) = only(
            List::Resources,
            r#"{"_meta":{"uri":1},"uri" : "file:///a\"","name":"n","x":1.0e5}"#,
        );
        assert_eq!(key, "mcpproxy://s/file:///a\"");
        assert_eq!(
            json,
            r#"{"_meta":{"uri":1},"uri" : "mcpproxy://s/file:///a\"","name":"n","x":1.0e5}"#
        );
        let (key, json) = only(List::Templates, r#"{"name":"n","uriTemplate":"a:{+b}{?c*}"}"#);
        assert_eq!(key, "mcpproxy://s/a:{+b}{?c*}");
        assert_eq!(json, r#"{"name":"n","uriTemplate":"mcpproxy://s/a:{+b}{?c*}"}"#);
        let (key, json) =
            only(List::Prompts, r#"{"name":"p\u0031","arguments":[{"name":"p1"}],"icons":[]}"#);
        assert_eq!(key, "s__p1");
        assert_eq!(json, r#"{"name":"s__p1","arguments":[{"name":"p1"}],"icons":[]}"#);
    }

    #[test]
    fn malformed_element_is_omitted_and_the_rest_kept() {
        let long = "x".repeat(MAX_KEY_BYTES + 1);
        let huge = "x".repeat(MAX_ELEMENT_BYTES);
        for (element, why) in [
            ("7".to_owned(), "invalid type"),
            (r#"{"uri":"a:b"}"#.to_owned(), "missing field `name`"),
            (r#"{"name":"n\u0000"}"#.to_owned(), "n : uri is missing"),
            (r#"{"name":"n","uri":""}"#.to_owned(), "n: uri is empty"),
            (r#"{"name":"n","uri":7}"#.to_owned(), "n: uri: invalid type"),
            (r#"{"name":"n","uri":"a:b","uri":"c:d"}"#.to_owned(), "duplicate field"),
            (format!(r#"{{"name":"n","uri":"{long}"}}"#), "n: uri is longer than"),
            (format!(r#"{{"name":"n","uri":"a:b","x":"{huge}"}}"#), "an element is larger than"),
        ] {
            let good = r#"{"name":"n","uri":"a:b"}"#;
            let page =
                page(List::Resources, &format!(r#"{{"resources":[{good},{element},{good}]}}"#));
            assert_eq!(page.elements.len(), 2);
            assert!(page.notes[0].reason.contains(why), "{why}: {:?}", page.notes);
            assert_eq!(page.notes[0].action, NoteAction::Omitted);
        }
    }

    #[test]
    fn def_6_nonconforming_element_is_repaired_and_noted() {
        let (bad, good) = (
            r#"{"uri":"b://1","name":"bad","description":null,"size":1.0}"#,
            r#"{"uri":"a:b","name":"n"}"#,
        );
        let page = page(List::Resources, &format!(r#"{{"resources":[{bad},{good}]}}"#));
        let json: Vec<_> = page.elements.iter().map(|it| it.json().clone()).collect();
        assert_eq!(json[0], r#"{"uri":"mcpproxy://s/b://1","name":"bad","size":1.0}"#);
        assert_eq!(json[1], r#"{"uri":"mcpproxy://s/a:b","name":"n"}"#);
        let note =
            ListNote::new("resources/list", "b://1", NoteAction::Repaired, "description is null");
        assert_eq!(page.notes, [note]);
    }

    #[test]
    fn pro_46_skill_is_verbatim_except_its_uris() {
        let (key, json) = only(
            List::Skills,
            r#"{"frontmatter":{"name":"b","n":1.0e5},"uri" : "skill:\/\/a/b/SKILL.md","resources":[{"uri":"skill://a/b/x\u0041","digest":"d"}]}"#,
        );
        assert_eq!(key, "skill://s/a/b/SKILL.md");
        assert_eq!(
            json,
            r#"{"frontmatter":{"name":"b","n":1.0e5},"uri" : "skill://s/a/b/SKILL.md","resources":[{"uri":"skill://s/a/b/xA","digest":"d"}]}"#
        );
        let (key, json) =
            only(List::Skills, r#"{"uri":"github://o/SKILL.md","resources":"dynamic"}"#);
        assert_eq!(key, "mcpproxy://s/github://o/SKILL.md");
        assert_eq!(json, format!(r#"{{"uri":"{key}","resources":"dynamic"}}"#));
        for (element, why) in [
            ("7", "invalid type"),
            (r#"{"frontmatter":{}}"#, "missing field `uri`"),
            (r#"{"uri":null}"#, "uri: invalid type"),
            (r#"{"uri":"skill://a","uri":"skill://b"}"#, "duplicate field"),
        ] {
            let page = page(List::Skills, &format!(r#"{{"skills":[{element}]}}"#));
            assert!(page.notes[0].reason.contains(why), "{why}: {:?}", page.notes);
            assert_eq!(page.elements.len(), 0, "{element}");
        }
    }

    #[test]
    fn def_6_list_that_is_null_is_empty_and_noted() {
        for result in [r#"{"prompts":null}"#, "{}"] {
            let page = page(List::Prompts, result);
            assert_eq!(page.elements.len(), 0);
            assert_eq!(page.notes[0].reason, "the result has no array 'prompts'");
        }
    }

    #[test]
    fn page_has_the_cursor_of_the_next_page() {
        let next = |result| page(List::Prompts, result).next;
        assert_eq!(next(r#"{"prompts":[],"nextCursor":"p\"2"}"#), Some(Ok("p\"2".to_owned())));
        let wrong = Some(Err("nextCursor is not a string"));
        assert_eq!(next(r#"{"prompts":[],"nextCursor":7}"#), wrong);
        assert_eq!(next(r#"{"nextCursor":null,"ttlMs":1}"#), None);
        for bad in ["[]", "", r#"{"prompts":{}}"#] {
            assert!(OfferedPage::parse("s", List::Prompts, bad.as_bytes()).is_err(), "{bad}");
        }
    }
}

/// Maximum number of notes kept per server; further notes are only counted.
pub(crate) const MAX_NOTES: usize = 32;
/// Maximum length of an item's name or a reason in a note, in characters.
const MAX_NOTE_CHARS: usize = 256;

/// Treatment of a listed item that does not conform to the MCP schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NoteAction {
    /// Listed without its nonconforming members.
    Repaired,
    /// Not listed.
    Omitted,
}

impl NoteAction {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Repaired => "repaired",
            Self::Omitted => "omitted",
        }
    }
}

/// Note on an item of a server's lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ListNote {
    /// Method of the list, such as `tools/list`.
    pub list: &'static str,
    /// The server's own name or URI of the item, in printable characters; empty if it has none.
    pub item: String,
    pub action: NoteAction,
    pub reason: String,
}

impl ListNote {
    /// Creates a note with bounded, printable texts.
    pub fn new(list: &'static str, item: &str, action: NoteAction, reason: &str) -> Self {
        let shown = |text: &str| {
            let text = text.chars().take(MAX_NOTE_CHARS);
            text.map(|char| if char.is_control() { ' ' } else { char }).collect()
        };
        Self { list, item: shown(item), action, reason: shown(reason) }
    }
}

/// Notes on one server's lists. All are counted, and the first [`MAX_NOTES`] are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ListNotes {
    /// Number of repaired items.
    pub repaired: usize,
    /// Number of items left out.
    pub omitted: usize,
    /// The first notes.
    pub notes: Vec<ListNote>,
}

impl ListNotes {
    pub fn is_empty(&self) -> bool {
        self.repaired == 0 && self.omitted == 0
    }

    pub fn add(&mut self, note: ListNote) {
        match note.action {
            NoteAction::Repaired => self.repaired += 1,
            NoteAction::Omitted => self.omitted += 1,
        }
        if self.notes.len() < MAX_NOTES {
            self.notes.push(note);
        }
    }

    /// Adds the notes of another list.
    pub fn merge(&mut self, other: &Self) {
        self.repaired += other.repaired;
        self.omitted += other.omitted;
        let remaining = MAX_NOTES.saturating_sub(self.notes.len());
        self.notes.extend(other.notes.iter().take(remaining).cloned());
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf;

    use super::*;

    fn listed(key: &str, more: &str) -> Listed {
        let element = format!("{{ \"name\" :\n\"x\"{more}}}");
        let value = element.find("\"x\"").unwrap() as u64;
        Listed::new(&element, Span::new(value, value + 3), "x", key.to_owned())
    }

    fn shown(elements: &[Listed], start: &Start) -> (serde_json::Value, Start) {
        let rest = start.rest(elements, |element| &element.key).iter();
        let mut page = page("\"ttlMs\":1", "tools", rest.map(PageElement::from));
        let text = page.copy_to_bytes(page.remaining());
        let page: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let params = serde_json::json!({"cursor": page["nextCursor"]}).to_string();
        (page, Start::parse(params.as_bytes()).unwrap())
    }

    #[test]
    fn listed_element_differs_only_in_its_name() {
        let element = listed("s__a\"\n", ",\"n\":1.0e5 , \"name \":1, \"x\":\"é\\u0041\"");
        let expected =
            "{ \"name\" :\n\"s__a\\\"\\n\",\"n\":1.0e5 , \"name \":1, \"x\":\"é\\u0041\"}";
        assert_eq!(element.json(), expected.as_bytes());
    }

    #[test]
    fn ten_thousand_elements_are_paged_once_each() {
        let elements: Vec<_> = (0..10_000).map(|i| listed(&format!("s__{i:05}"), "")).collect();
        let (mut start, mut names) = (Start::default(), Vec::new());
        for _ in 0..10 {
            let (page, next) = shown(&elements, &start);
            let tools = page["tools"].as_array().unwrap();
            assert_eq!(tools.len(), PAGE_ELEMENTS);
            names.extend(tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
            start = next;
        }
        assert_eq!(start, Start::default(), "the last page has no cursor");
        assert!(names.iter().eq(elements.iter().map(|element| &*element.key)));
    }

    #[test]
    fn page_is_bounded_in_bytes_and_never_empty() {
        let padding = format!(",\"x\":\"{}\"", "y".repeat(PAGE_BYTES));
        let elements = [listed("a", &padding), listed("b", &padding), listed("c", "")];
        let (page, start) = shown(&elements, &Start::default());
        assert_eq!(page["tools"].as_array().unwrap().len(), 1);
        let (page, start) = shown(&elements, &start);
        assert_eq!(page["tools"][0]["name"], "b");
        assert_eq!(shown(&elements, &start).0["tools"][0]["name"], "c");
        assert_eq!(shown(&[], &Start::default()).0, serde_json::json!({"ttlMs": 1, "tools": []}));
    }

    #[test]
    fn page_continues_after_the_last_key_despite_changes() {
        let (a, b, c) = (listed("a", ""), listed("b", ""), listed("c", ""));
        let after_b = Start(Some("b".into()));
        let rest = |elements: &[Listed]| shown(elements, &after_b).0["tools"].clone();
        assert_eq!(rest(&[a.clone(), b, c.clone()])[0]["name"], "c");
        assert_eq!(rest(&[a, listed("aa", ""), c])[0]["name"], "c");
        assert_eq!(rest(&[]), serde_json::json!([]));
    }

    #[test]
    fn foreign_cursor_is_rejected() {
        assert_eq!(Start::parse(b"{}"), Ok(Start(None)));
        assert_eq!(Start::parse(br#"{"cursor":null,"_meta":{}}"#), Ok(Start(None)));
        for params in [r#"{"cursor":"%"}"#, r#"{"cursor":"_w"}"#, r#"{"cursor":7}"#, "[]", "7"] {
            assert_eq!(Start::parse(params.as_bytes()), Err(BadCursor::Unknown), "{params}");
        }
        let long = format!(r#"{{"cursor":"{}"}}"#, "a".repeat(MAX_CURSOR_BYTES + 1));
        let refused = Start::parse(long.as_bytes()).unwrap_err();
        assert_eq!(refused.to_string(), "Invalid cursor: cursor is longer than 16384 bytes");
    }
}
