//! What a server offers beside tools, as it listed it: resources, templates of them, prompts.
//!
//! Owns how a page of such a list is read and what a well-formed element of it is. Pure: who asks
//! the server, and how long what it said is good for, is not known here.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::exposed;
use super::listing::Listed;
use crate::json::span::Span;

/// Largest element that is taken up, in bytes.
pub const MAX_ELEMENT_BYTES: usize = 256 * 1024;
/// Longest name or URI that is taken up, in bytes.
pub const MAX_KEY_BYTES: usize = 8 * 1024;

/// A list that is made of what the upstreams list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// `resources/list`
    Resources,
    /// `resources/templates/list`
    Templates,
    /// `prompts/list`
    Prompts,
}

impl List {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Resources, Self::Templates, Self::Prompts];

    /// The method that asks for it.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
            Self::Prompts => "prompts/list",
        }
    }

    /// The member of the result that holds the elements.
    #[must_use]
    pub const fn member(self) -> &'static str {
        match self {
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
            Self::Prompts => "prompts",
        }
    }
}

/// A page as its server wrote it.
#[derive(Debug, Default)]
pub struct OfferedPage {
    /// The well-formed elements, in the server's order.
    pub elements: Vec<Listed>,
    /// Why each of the others was left out: one line that names it.
    pub malformed: Vec<String>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
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
    next_cursor: Option<String>,
}

impl OfferedPage {
    /// Reads the result that `server` gave to a request for `list`.
    ///
    /// # Errors
    /// It is no such result: one line.
    pub fn parse(server: &str, list: List, result: &[u8]) -> Result<Self, String> {
        let fields: Fields<'_> =
            serde_json::from_slice(result).map_err(|error| error.to_string())?;
        let listed = match list {
            List::Resources => fields.resources,
            List::Templates => fields.resource_templates,
            List::Prompts => fields.prompts,
        };
        let mut page = Self { next: fields.next_cursor, ..Self::default() };
        for element in listed.unwrap_or_default() {
            match parse(server, list, element.get()) {
                Ok(listed) => page.elements.push(listed),
                Err(reason) => page.malformed.push(reason),
            }
        }
        Ok(page)
    }
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

fn parse(server: &str, list: List, json: &str) -> Result<Listed, String> {
    if json.len() > MAX_ELEMENT_BYTES {
        return Err(format!("an element is larger than {MAX_ELEMENT_BYTES} bytes"));
    }
    let element: Element<'_> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let name = text("name", element.name)?;
    let (value, own) = match list {
        List::Prompts => (element.name, Cow::Borrowed(&*name)),
        List::Resources => addressed("uri", element.uri, &name)?,
        List::Templates => addressed("uriTemplate", element.uri_template, &name)?,
    };
    let key = match list {
        List::Prompts => exposed::name(server, &own),
        List::Resources | List::Templates => exposed::uri(server, &own),
    };
    let at = Span::of(json.as_bytes(), value.get().as_bytes());
    Ok(Listed::new(json, at, &own, key))
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
    /// A string, borrowed where it holds no escapes.
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

/// The beginning of a server's word, printable.
fn shown(word: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 64;
    word.chars().take(MAX_SHOWN_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(list: List, result: &str) -> OfferedPage {
        OfferedPage::parse("s", list, result.as_bytes()).unwrap()
    }

    fn only(list: List, element: &str) -> (String, String) {
        let mut page = page(list, &format!(r#"{{"{}":[{element}]}}"#, list.member()));
        assert_eq!((page.elements.len(), page.malformed.len()), (1, 0), "{:?}", page.malformed);
        let element = page.elements.remove(0);
        (element.key.to_string(), String::from_utf8(element.json().to_vec()).unwrap())
    }

    #[test]
    fn an_element_is_the_servers_own_but_for_its_name_or_uri() {
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
    fn a_malformed_element_is_left_out_and_the_rest_kept() {
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
            assert!(page.malformed[0].contains(why), "{why}: {:?}", page.malformed);
        }
    }

    #[test]
    fn a_page_leads_to_the_next() {
        let next = |result| page(List::Prompts, result).next;
        assert_eq!(next(r#"{"prompts":[],"nextCursor":"p\"2"}"#).as_deref(), Some("p\"2"));
        assert_eq!(next(r#"{"nextCursor":null,"ttlMs":1}"#), None);
        for bad in ["[]", "", r#"{"prompts":{}}"#, r#"{"prompts":[],"nextCursor":7}"#] {
            assert!(OfferedPage::parse("s", List::Prompts, bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
