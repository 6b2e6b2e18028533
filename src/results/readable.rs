//! What there is to be read of a result as text: its text blocks, or the JSON itself. Pure.

use std::borrow::Cow;

use crate::json::elements::elements;
use crate::json::members::{members, string};

/// What a result says.
#[derive(Debug)]
pub(super) struct Readable<'r> {
    pub(super) text: Cow<'r, str>,
    /// What that is, in a few words.
    pub(super) is: &'static str,
}

impl<'r> Readable<'r> {
    /// The text blocks of `result`, one after another, each on a line of its own; where there are none, its JSON.
    pub(super) fn of(result: &'r str) -> Self {
        let mut blocks = text_blocks(result);
        let text = match (blocks.next(), blocks.next()) {
            (None, _) => Cow::default(),
            (Some(only), None) => only,
            (Some(first), Some(second)) => {
                let mut text = first.into_owned();
                for block in [second].into_iter().chain(blocks) {
                    if !text.is_empty() && !text.ends_with('\n') {
                        text.push('\n');
                    }
                    text.push_str(&block);
                }
                Cow::Owned(text)
            }
        };
        match text.is_empty() {
            true => Self { text: Cow::Borrowed(result), is: "its JSON" },
            false => Self { text, is: "its text" },
        }
    }
}

/// The text of each text block in the `content` of `result`.
fn text_blocks(result: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let content = member(result, "content").and_then(|content| elements(content).ok());
    let blocks = content.into_iter().flatten().map_while(Result::ok);
    blocks.filter_map(|block| {
        let is_text = member(block, "type").and_then(string).as_deref() == Some("text");
        member(block, "text").filter(|_| is_text).and_then(string)
    })
}

/// The value of the member of that name, the last where there are several.
pub(super) fn member<'r>(object: &'r str, name: &str) -> Option<&'r str> {
    let named = members(object).ok()?.map_while(Result::ok).filter(|(it, _)| it == name);
    named.last().map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_blocks_are_read_one_after_another_and_without_any_the_json() {
        for (result, text, is) in [
            (r#"{"content":[{"type":"text","text":"a\nb"}]}"#, "a\nb", "its text"),
            (
                r#"{"content":[{"type":"text","text":"a"},{"type":"image","text":"no"},{"text":"b\n","type":"text"},{"type":"text","text":"c"}]}"#,
                "a\nb\nc",
                "its text",
            ),
            (r#"{"content":[],"structuredContent":{"a":1}}"#, "", "its JSON"),
            (r#"{"content":[{"type":"text","text":""}]}"#, "", "its JSON"),
            (r#"{"content":7}"#, "", "its JSON"),
            ("[", "", "its JSON"),
        ] {
            let read = Readable::of(result);
            let expected = if text.is_empty() { result } else { text };
            assert_eq!((&*read.text, read.is), (expected, is), "{result}");
        }
    }
}
