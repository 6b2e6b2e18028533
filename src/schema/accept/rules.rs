//! Rules of the accept-only evaluator: for each node and JSON type, the conditions under which a value is certainly valid, and a reader of
//! strings.

use std::sync::Arc;

use super::number::NumberRule;
use crate::pattern::CompiledPattern;
use crate::settings::SchemaHash;
use mcpproxy_json::scan::string_run;

/// Index of a node.
pub(super) type AcceptNodeId = u32;

pub(super) const NOTHING: AcceptNodeId = 0;

/// Node that accepts every value.
pub(super) const ANYTHING: AcceptNodeId = 1;

/// Maximum number of declared or required names of one object.
pub(super) const MAX_NAMES: usize = u64::BITS as usize;

/// Maximum number of patterns for the names of one object.
pub(super) const MAX_NAME_PATTERNS: usize = 3;

/// Number of bytes compared in one step: a short name and its closing quote.
const SHORT: usize = size_of::<u128>();

/// Compiled form of a schema for the accept-only evaluator.
pub(crate) struct AcceptProgram {
    pub(super) nodes: Box<[AcceptNode]>,
    pub(super) root: AcceptNodeId,
    /// Number of predictions of the next name; see [`ObjectRule::first_guess`].
    pub(super) guesses: usize,
    /// Maximum depth of a document.
    pub(super) max_depth: usize,
    /// Identity of the schema.
    pub(super) schema: SchemaHash,
}

/// Alternatives for a value, by its JSON type. A value is accepted if one rule of its type accepts it.
#[derive(Default)]
pub(super) struct AcceptNode {
    pub(super) null: bool,
    pub(super) yes: bool,
    pub(super) no: bool,
    pub(super) numbers: Box<[NumberRule]>,
    /// Whether every string is accepted.
    pub(super) free_text: bool,
    pub(super) texts: Box<[TextRule]>,
    /// Number of conditions that are compared with the bytes of a string.
    pub(super) text_conditions: usize,
    pub(super) arrays: Box<[ArrayRule]>,
    pub(super) objects: Box<[ObjectRule]>,
}

/// Conditions on an array.
#[derive(Default)]
pub(super) struct ArrayRule {
    /// Nodes of the first items.
    pub(super) prefix: Box<[AcceptNodeId]>,
    /// Node of the other items.
    pub(super) rest: AcceptNodeId,
    pub(super) min: usize,
    pub(super) max: usize,
    pub(super) unique: bool,
}

/// Conditions on an object.
pub(super) struct ObjectRule {
    /// Declared and required names, sorted.
    pub(super) names: Box<[MemberRule]>,
    /// Bit mask of required names.
    pub(super) required: u64,
    /// Patterns of `patternProperties`.
    pub(super) patterns: Box<[Arc<CompiledPattern>]>,
    /// Nodes of members without a declared name, by the bit mask of the patterns that match.
    pub(super) rest: Box<[AcceptNodeId]>,
    /// Node of the names (`propertyNames`).
    pub(super) named: Option<AcceptNodeId>,
    pub(super) min: usize,
    pub(super) max: usize,
    /// Index of the prediction of the first name; the prediction of the name after `names[i]` is at `first_guess + 1 + i`.
    pub(super) first_guess: usize,
}

/// Declared or required member.
pub(super) struct MemberRule {
    pub(super) name: Box<str>,
    pub(super) node: AcceptNodeId,
    /// Bit of the name in the masks of the object's names.
    pub(super) bit: u64,
    /// First bytes of the name and its closing quote, zero elsewhere.
    word: u128,
    /// Bits of `word` that are compared; zero for a long name.
    mask: u128,
}

impl MemberRule {
    pub(super) fn new(name: &str, bit: u64, node: AcceptNodeId) -> Self {
        let (mut word, mut mask) = ([0; SHORT], [0; SHORT]);
        if name.len() < SHORT {
            for ((slot, bits), byte) in
                word.iter_mut().zip(&mut mask).zip(name.bytes().chain(*b"\""))
            {
                (*slot, *bits) = (byte, u8::MAX);
            }
        }
        Self {
            name: name.into(),
            node,
            bit,
            word: u128::from_le_bytes(word),
            mask: u128::from_le_bytes(mask),
        }
    }

    /// Whether `text`, which follows an opening quote, begins with this name and a quote.
    #[inline]
    pub(super) fn leads(&self, text: &[u8]) -> bool {
        match text.first_chunk() {
            Some(head) if self.mask != 0 => u128::from_le_bytes(*head) & self.mask == self.word,
            _ => text
                .strip_prefix(self.name.as_bytes())
                .is_some_and(|rest| rest.first() == Some(&b'"')),
        }
    }
}

impl AcceptNode {
    /// Node that accepts every value.
    pub(super) fn anything() -> Self {
        let object = ObjectRule {
            names: Box::default(),
            required: 0,
            patterns: Box::default(),
            rest: [ANYTHING].into(),
            named: None,
            min: 0,
            max: usize::MAX,
            first_guess: 0,
        };
        let array = ArrayRule { rest: ANYTHING, max: usize::MAX, ..ArrayRule::default() };
        Self {
            null: true,
            yes: true,
            no: true,
            numbers: [NumberRule::default()].into(),
            free_text: true,
            texts: [TextRule::default()].into(),
            text_conditions: 0,
            arrays: [array].into(),
            objects: [object].into(),
        }
    }

    /// Whether the node accepts no value.
    pub(super) fn is_empty(&self) -> bool {
        !(self.null || self.yes || self.no)
            && self.numbers.is_empty()
            && self.texts.is_empty()
            && self.arrays.is_empty()
            && self.objects.is_empty()
    }
}

/// Maximum number of enumerated values that are compared one by one.
const FEW_VALUES: usize = 8;

/// String as written, without its quotes.
#[derive(Clone, Copy)]
pub(super) struct WrittenText<'t> {
    pub(super) inner: &'t [u8],
    /// Number of characters by which the escapes exceed the characters that they encode.
    surplus: usize,
}

impl<'t> WrittenText<'t> {
    /// String without an escape.
    pub(super) fn plain(inner: &'t [u8]) -> Self {
        Self { inner, surplus: 0 }
    }

    /// Reads the string whose opening quote is just before `text` and whose first backslash is at `at`. Returns the string and the text
    /// after its closing quote; `None` for a control character, an invalid escape or a lone surrogate.
    pub(super) fn read_escaped(text: &'t [u8], mut at: usize) -> Option<(Self, &'t [u8])> {
        let mut surplus = 0;
        loop {
            let rest = text.get(at..)?;
            let (len, more) = match rest {
                [b'"', after @ ..] => {
                    return Some((Self { inner: text.get(..at)?, surplus }, after));
                }
                [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => (2, 1),
                [b'\\', b'u', ..] => match code_unit(rest)? {
                    0xD800..=0xDBFF if (0xDC00..=0xDFFF).contains(&code_unit(rest.get(6..)?)?) => {
                        (12, 11)
                    }
                    0xD800..=0xDFFF => return None,
                    _ => (6, 5),
                },
                _ => return None,
            };
            surplus += more;
            at += len;
            at += string_run(text.get(at..)?);
        }
    }

    fn is_escaped(self) -> bool {
        self.surplus > 0
    }

    /// Whether the number of characters is within the limits. A character has at most four bytes.
    fn has_length(self, min: usize, max: usize) -> bool {
        let at_most = self.inner.len() - self.surplus.min(self.inner.len());
        if at_most <= max && min <= at_most.div_ceil(4) {
            return true;
        }
        let starts = self.inner.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        (min..=max).contains(&starts.saturating_sub(self.surplus))
    }
}

/// Code unit of the `\uXXXX` at the start of `text`.
fn code_unit(text: &[u8]) -> Option<u16> {
    let digits = text.get(..6)?.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, digit| {
        let value = char::from(*digit).to_digit(16)?;
        Some(unit << 4 | u16::try_from(value).ok()?)
    })
}

/// Conditions on a string.
pub(super) struct TextRule {
    /// Whether there are no conditions.
    pub(super) free: bool,
    /// Limits of the length in characters.
    pub(super) min: usize,
    pub(super) max: usize,
    pub(super) patterns: Box<[Arc<CompiledPattern>]>,
    /// Sorted values, if they are enumerated.
    pub(super) one_of: Option<Box<[Box<str>]>>,
}

impl Default for TextRule {
    fn default() -> Self {
        Self { free: true, min: 0, max: usize::MAX, patterns: Box::default(), one_of: None }
    }
}

impl TextRule {
    /// Whether `text` certainly conforms.
    #[inline]
    pub(super) fn accepts(&self, text: WrittenText<'_>) -> bool {
        self.free || self.has_passed(text)
    }

    fn has_passed(&self, text: WrittenText<'_>) -> bool {
        let compared = self.one_of.is_some() || !self.patterns.is_empty();
        if compared && text.is_escaped() {
            return false;
        }
        let found = |values: &[Box<str>]| match values.len() {
            0..=FEW_VALUES => values.iter().any(|value| value.as_bytes() == text.inner),
            _ => values.binary_search_by(|value| value.as_bytes().cmp(text.inner)).is_ok(),
        };
        self.one_of.as_deref().is_none_or(found)
            && text.has_length(self.min, self.max)
            && self.patterns.iter().all(|pattern| pattern.matches(text.inner) == Some(true))
    }

    /// Number of conditions that are compared with the bytes of a string; the length and the enumerated values together count as one.
    pub(super) fn conditions(&self) -> usize {
        if self.free { 0 } else { 1 + self.patterns.len() }
    }

    /// Whether the enumerated values are the only condition.
    pub(super) fn is_enumeration(&self) -> bool {
        self.one_of.is_some() && self.min == 0 && self.max == usize::MAX && self.patterns.is_empty()
    }
}
