//! What is suspect in a definition: found by fixed rules, offline, the same each time. Pure.
//!
//! | rule | what | level |
//! |---|---|---|
//! | `hidden-characters` | tags, bidirectional controls, zero width, variation selectors beyond emoji, controls ([`hidden`]) | low to high |
//! | `mixed-scripts` | letters of several scripts in one name | medium |
//! | `confusable-name` | a name that looks like another tool's ([`others`]) | high where it is written with other letters, else low |
//! | `order` | orders to the model ([`orders`]) | low to high |
//! | `other-tool` | a text that names another server's tool | medium |
//! | `too-large` | more than is scanned | medium |
//!
//! A rule can be wrong, and none finds everything: findings are for an operator, who decides. A tool's own definition is
//! read once, when it is new or another; how it stands beside the other tools is looked at whenever these are others.
//! What the rules say never holds the suspect text itself, but for a short piece in which nothing is hidden.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use unicode_security::MixedScript;

use super::definition::DefinitionDigest;

mod finding;
pub mod hidden;
pub mod orders;
pub mod others;

pub use finding::{FindingLevel, ScanFinding, ScanRule};

/// Largest definition that is scanned, in bytes.
pub const MAX_SCANNED_BYTES: usize = 4 * 1024 * 1024;
/// Most findings of one definition; the first count.
pub const MAX_FINDINGS: usize = 32;
/// Most bytes of a finding's place.
const MAX_PLACE_BYTES: usize = 256;
/// Most words of one definition that may be the names of tools; the first count.
const MAX_MENTIONS: usize = 64;
/// Most bytes of such a word.
const MAX_MENTION_BYTES: usize = 128;

/// The identity of findings: what was told once is not told again.
#[must_use]
pub fn digest<'a>(findings: impl Iterator<Item = &'a ScanFinding>) -> DefinitionDigest {
    let text = |finding: &ScanFinding| format!("{finding}\n");
    DefinitionDigest::of(findings.map(text).collect::<String>().as_bytes())
}

/// What the scan says of one definition by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// What was found.
    pub findings: Vec<ScanFinding>,
    /// Words in its texts that may be the names of tools, each once.
    pub mentions: Vec<Box<str>>,
}

/// Scans the definition of the tool called `name`, as its server or we list it.
#[must_use]
pub fn scan(name: &str, json: &str) -> Scanned {
    let mut scanned = Scanned::default();
    scanned.look_at_name(name);
    if json.len() > MAX_SCANNED_BYTES {
        let detail = format!("it is larger than {MAX_SCANNED_BYTES} bytes and was not scanned");
        scanned.add(ScanRule::TooLarge, FindingLevel::Medium, "definition", detail);
        return scanned;
    }
    let mut place = String::new();
    let mut reader = serde_json::Deserializer::from_str(json);
    let walk = Walk { scanned: &mut scanned, place: &mut place };
    if let Err(error) = walk.deserialize(&mut reader) {
        let detail =
            format!("it was not scanned to its end, which is: {}", error.classify_plainly());
        scanned.add(ScanRule::TooLarge, FindingLevel::Medium, "definition", detail);
    }
    scanned.mentions.sort_unstable();
    scanned.mentions.dedup();
    scanned
}

/// What is said of JSON that cannot be read, without its text.
trait Plainly {
    fn classify_plainly(&self) -> &'static str;
}

impl Plainly for serde_json::Error {
    fn classify_plainly(&self) -> &'static str {
        match self.classify() {
            serde_json::error::Category::Io => "an error of the system",
            serde_json::error::Category::Syntax => "no JSON that can be read",
            serde_json::error::Category::Data => "a value that cannot be read",
            serde_json::error::Category::Eof => "cut off",
        }
    }
}

impl Scanned {
    fn add(&mut self, rule: ScanRule, level: FindingLevel, place: &str, detail: String) {
        if self.findings.len() < MAX_FINDINGS {
            let end = place.floor_char_boundary(MAX_PLACE_BYTES);
            let place = place.get(..end).unwrap_or_default().to_owned();
            self.findings.push(ScanFinding { rule, level, place, detail });
        }
    }

    fn look_at_name(&mut self, name: &str) {
        if name.is_ascii() {
            return;
        }
        if let Some((_, detail)) = hidden::hidden(name) {
            // Nothing that is not seen belongs into a name.
            self.add(ScanRule::HiddenCharacters, FindingLevel::High, "name", detail);
        }
        if !name.is_single_script() {
            let detail = "letters of several scripts in one name".to_owned();
            self.add(ScanRule::MixedScripts, FindingLevel::Medium, "name", detail);
        }
    }

    fn look_at_text(&mut self, place: &str, text: &str) {
        if let Some((level, detail)) = hidden::hidden(text) {
            self.add(ScanRule::HiddenCharacters, level, place, detail);
        }
        for (level, detail) in orders::orders(text) {
            self.add(ScanRule::Order, level, place, detail);
        }
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_-:.".contains(c)));
        let words = words.map(|word| word.trim_matches(['-', ':', '.']));
        for word in words.filter(|word| may_be_a_tool(word)) {
            if self.mentions.len() >= 4 * MAX_MENTIONS {
                return;
            }
            self.mentions.push(word.into());
            if self.mentions.len() == 4 * MAX_MENTIONS {
                self.mentions.sort_unstable();
                self.mentions.dedup();
                self.mentions.truncate(MAX_MENTIONS.max(self.mentions.len().min(3 * MAX_MENTIONS)));
            }
        }
    }
}

/// True for a word that is written as names of tools are, and as other words are not.
fn may_be_a_tool(word: &str) -> bool {
    let inner = |c: char| word.trim_matches(c).contains(c);
    let humps = || {
        let pairs = word.as_bytes().windows(2);
        pairs
            .into_iter()
            .any(|pair| matches!(pair, [a, b] if a.is_ascii_lowercase() && b.is_ascii_uppercase()))
    };
    (4..=MAX_MENTION_BYTES).contains(&word.len())
        && (inner('_') || inner('-') || inner(':') || humps())
}

/// Reads a value, and looks at each text in it where it stands; builds nothing.
struct Walk<'a> {
    scanned: &'a mut Scanned,
    place: &'a mut String,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Walk<'_> {
    fn below(&mut self, step: &str) -> (usize, Walk<'_>) {
        let length = self.place.len();
        if !self.place.is_empty() {
            self.place.push('/');
        }
        // Deep places are cut when they are told; here they only must not grow without end.
        if self.place.len() < 4 * MAX_PLACE_BYTES {
            let end = step.floor_char_boundary(MAX_PLACE_BYTES);
            self.place.push_str(step.get(..end).unwrap_or_default());
        }
        (length, Walk { scanned: &mut *self.scanned, place: &mut *self.place })
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        // The name is looked at by itself, as its server wrote it.
        if *self.place != "name" {
            self.scanned.look_at_text(self.place, text);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
        for at in 0_usize.. {
            let (length, walk) = self.below(&at.to_string());
            let more = elements.next_element_seed(walk)?;
            self.place.truncate(length);
            if more.is_none() {
                return Ok(());
            }
        }
        Err(A::Error::custom("no end"))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        while let Some(key) = members.next_key::<String>()? {
            if let Some((level, detail)) = hidden::hidden(&key) {
                let place = format!("{} (a name in it)", self.place);
                self.scanned.add(
                    ScanRule::HiddenCharacters,
                    level.max(FindingLevel::Medium),
                    &place,
                    detail,
                );
            }
            let (length, walk) = self.below(&key);
            members.next_value_seed(walk)?;
            self.place.truncate(length);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
