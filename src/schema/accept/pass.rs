//! One pass over the bytes of a document: grammar, duplicate keys, depth and rules.

use xxhash_rust::xxh3::xxh3_64;

use mcpproxy_json::keys::has_equal;
use mcpproxy_json::scan::{is_utf8, string_run};

use super::number::{MAX_VALUE_DIGITS, WrittenNumber, accepted};
use super::rules::{AcceptNode, AcceptNodeId, AcceptProgram, ArrayRule, ObjectRule, WrittenText};
use crate::settings::SchemaHash;

/// Step budget of a pass for every document.
const STEPS: usize = 1024;

/// Additional steps per byte of a document. A pass without failed alternatives takes at most two.
const STEPS_PER_BYTE: usize = 4;

/// Number of bytes of a string per step.
const BYTES_PER_STEP: usize = 16;

/// Maximum number of undeclared names in the open objects, and of items compared in the open arrays, together.
const MAX_HASHES: usize = 1 << 16;

/// Scratch memory of a worker for the accept-only evaluator.
#[derive(Default)]
pub(crate) struct AcceptScratch {
    /// Schema of the predictions.
    schema: Option<SchemaHash>,
    /// Predicted index of the next name, by the name before it: the one that followed last time.
    guesses: Vec<u8>,
    /// Hashes of undeclared names of the open objects, and of items that must be unique.
    hashes: Vec<u64>,
}

impl AcceptProgram {
    /// Whether `document` is one JSON value that certainly conforms to the schema.
    pub(crate) fn accepts(&self, document: &[u8], scratch: &mut AcceptScratch) -> bool {
        if !is_utf8(document) {
            return false;
        }
        scratch.begin(self);
        let left = STEPS.saturating_add(document.len().saturating_mul(STEPS_PER_BYTE));
        let mut pass = AcceptPass { program: self, scratch, depth: 0, left };
        let rest = pass.value(self.root, without_space(document));
        rest.is_some_and(|rest| without_space(rest).is_empty())
    }
}

impl AcceptScratch {
    fn begin(&mut self, program: &AcceptProgram) {
        self.hashes.clear();
        if self.schema != Some(program.schema) {
            self.schema = Some(program.schema);
            self.guesses.clear();
            self.guesses.resize(program.guesses, 0);
        }
    }
}

struct AcceptPass<'p> {
    program: &'p AcceptProgram,
    scratch: &'p mut AcceptScratch,
    /// Number of open containers.
    depth: usize,
    /// Steps left.
    left: usize,
}

/// State of one object while its members are read.
#[derive(Default)]
struct Members {
    /// Bit mask of the declared names.
    seen: u64,
    count: usize,
    /// Index of the prediction to use.
    guess: usize,
    /// Bit for each undeclared name, by its hash.
    bits: u64,
    /// Whether two undeclared names share a bit.
    crowded: bool,
}

impl<'p> AcceptPass<'p> {
    fn spend(&mut self, steps: usize) -> Option<()> {
        self.left = self.left.checked_sub(steps)?;
        Some(())
    }

    /// Reads the value at the start of `text` and returns the rest; `None` if it is not certainly valid. Recursion is bounded by the
    /// depth of documents.
    #[inline(always)]
    fn value<'t>(&mut self, node: AcceptNodeId, text: &'t [u8]) -> Option<&'t [u8]> {
        self.spend(1)?;
        let node = self.program.nodes.get(node as usize)?;
        let (first, rest) = text.split_first()?;
        match first {
            b'"' => self.text(node, rest),
            b'-' | b'0'..=b'9' => WrittenNumber::check(&node.numbers, text),
            b'{' => self.container(&node.objects, rest, Self::object),
            b'[' => self.container(&node.arrays, rest, Self::array),
            b't' => rest.strip_prefix(b"rue").filter(|_| node.yes),
            b'f' => rest.strip_prefix(b"alse").filter(|_| node.no),
            b'n' => rest.strip_prefix(b"ull").filter(|_| node.null),
            _ => None,
        }
    }

    /// Reads the string whose opening quote is before `text`.
    #[inline(always)]
    fn text<'t>(&mut self, node: &AcceptNode, text: &'t [u8]) -> Option<&'t [u8]> {
        let len = string_run(text);
        self.spend(len / BYTES_PER_STEP)?;
        match text.get(len) {
            Some(b'"') if node.free_text => text.get(len + 1..),
            Some(b'"') => {
                let string = WrittenText::plain(text.get(..len)?);
                accepted(&node.texts, |rule| rule.accepts(string)).then_some(text.get(len + 1..)?)
            }
            Some(b'\\') => self.escaped_text(node, text, len),
            _ => None,
        }
    }

    /// [`text`](Self::text) for a string with its first backslash at `at`.
    fn escaped_text<'t>(
        &mut self,
        node: &AcceptNode,
        text: &'t [u8],
        at: usize,
    ) -> Option<&'t [u8]> {
        let (string, rest) = WrittenText::read_escaped(text, at)?;
        self.spend(string.inner.len() / BYTES_PER_STEP)?;
        node.texts.iter().any(|rule| rule.accepts(string)).then_some(rest)
    }

    /// Tries the rules for the container whose opening bracket is before `text`.
    #[inline(always)]
    fn container<'t, R>(
        &mut self,
        rules: &'p [R],
        text: &'t [u8],
        read: impl Fn(&mut Self, &'p R, &'t [u8]) -> Option<&'t [u8]>,
    ) -> Option<&'t [u8]> {
        let (depth, hashes) = (self.depth, self.scratch.hashes.len());
        if depth >= self.program.max_depth {
            return None;
        }
        for rule in rules {
            self.depth = depth + 1;
            let rest = read(self, rule, without_space(text));
            self.depth = depth;
            self.scratch.hashes.truncate(hashes);
            if rest.is_some() {
                return rest;
            }
        }
        None
    }

    #[inline(never)]
    fn array<'t>(&mut self, rule: &'p ArrayRule, mut text: &'t [u8]) -> Option<&'t [u8]> {
        let first = self.scratch.hashes.len();
        let mut count = 0;
        if let Some(rest) = text.strip_prefix(b"]") {
            return (rule.min == 0).then_some(rest);
        }
        loop {
            let node = rule.prefix.get(count).copied().unwrap_or(rule.rest);
            let rest = self.value(node, text)?;
            if rule.unique {
                self.push(item_hash(text.get(..text.len() - rest.len())?)?)?;
            }
            count += 1;
            match without_space(rest).split_first()? {
                (b',', rest) => text = without_space(rest),
                (b']', rest) => {
                    let repeats = rule.unique && has_equal(self.scratch.hashes.get_mut(first..)?);
                    return (!repeats && (rule.min..=rule.max).contains(&count)).then_some(rest);
                }
                _ => return None,
            }
        }
    }

    #[inline(never)]
    fn object<'t>(&mut self, rule: &'p ObjectRule, mut text: &'t [u8]) -> Option<&'t [u8]> {
        let first = self.scratch.hashes.len();
        let mut members = Members { guess: rule.first_guess, ..Members::default() };
        if let Some(rest) = text.strip_prefix(b"}") {
            return (rule.required == 0 && rule.min == 0).then_some(rest);
        }
        loop {
            let (node, rest) = self.name(rule, &mut members, text.strip_prefix(b"\"")?)?;
            let rest = without_space(rest).strip_prefix(b":")?;
            let rest = self.value(node, without_space(rest))?;
            match without_space(rest).split_first()? {
                (b',', rest) => text = without_space(rest),
                (b'}', rest) => {
                    let repeats =
                        members.crowded && has_equal(self.scratch.hashes.get_mut(first..)?);
                    let complete = members.seen & rule.required == rule.required
                        && (rule.min..=rule.max).contains(&members.count);
                    return (complete && !repeats).then_some(rest);
                }
                _ => return None,
            }
        }
    }

    /// Reads the name after an opening quote. Returns the node of its value and the text after the closing quote; `None` for a duplicate
    /// and for a name with an escape.
    #[inline(always)]
    fn name<'t>(
        &mut self,
        rule: &ObjectRule,
        members: &mut Members,
        text: &'t [u8],
    ) -> Option<(AcceptNodeId, &'t [u8])> {
        members.count += 1;
        let guess =
            usize::from(self.scratch.guesses.get(members.guess).copied().unwrap_or_default());
        let guessed = rule.names.get(guess).filter(|member| member.leads(text));
        let Some(member) = guessed else { return self.other_name(rule, members, text) };
        let (name, rest) = text.split_at_checked(member.name.len())?;
        self.declared(rule, members, guess, member.bit, name)?;
        Some((member.node, rest.get(1..)?))
    }

    /// [`name`](Self::name) for a name that was not predicted.
    #[inline(never)]
    fn other_name<'t>(
        &mut self,
        rule: &ObjectRule,
        members: &mut Members,
        text: &'t [u8],
    ) -> Option<(AcceptNodeId, &'t [u8])> {
        let (name, rest) = text.split_at_checked(string_run(text))?;
        let rest = rest.strip_prefix(b"\"")?;
        self.spend(name.len() / BYTES_PER_STEP)?;
        if let Ok(at) = rule.names.binary_search_by(|member| member.name.as_bytes().cmp(name)) {
            if let Some(guess) = self.scratch.guesses.get_mut(members.guess) {
                *guess = u8::try_from(at).unwrap_or_default();
            }
            let member = rule.names.get(at)?;
            self.declared(rule, members, at, member.bit, name)?;
            return Some((member.node, rest));
        }
        let hash = xxh3_64(name);
        self.push(hash)?;
        let bit = 1 << (hash >> 58);
        members.crowded |= members.bits & bit != 0;
        members.bits |= bit;
        self.conforms(rule, name)?;
        let mut matching = 0;
        for (at, pattern) in rule.patterns.iter().enumerate() {
            matching |= usize::from(pattern.matches(name)?) << at;
        }
        Some((*rule.rest.get(matching)?, rest))
    }

    /// Records the declared name at index `at`.
    #[inline(always)]
    fn declared(
        &mut self,
        rule: &ObjectRule,
        members: &mut Members,
        at: usize,
        bit: u64,
        name: &[u8],
    ) -> Option<()> {
        if members.seen & bit != 0 {
            return None;
        }
        members.seen |= bit;
        members.guess = rule.first_guess + 1 + at;
        self.conforms(rule, name)
    }

    /// Checks `name` against `propertyNames`.
    #[inline(always)]
    fn conforms(&self, rule: &ObjectRule, name: &[u8]) -> Option<()> {
        let Some(node) = rule.named else { return Some(()) };
        let texts = &self.program.nodes.get(node as usize)?.texts;
        texts.iter().any(|rule| rule.accepts(WrittenText::plain(name))).then_some(())
    }

    fn push(&mut self, hash: u64) -> Option<()> {
        let hashes = &mut self.scratch.hashes;
        (hashes.len() < MAX_HASHES).then(|| hashes.push(hash))
    }
}

/// Hash of an item that is compared: equal for equal items. `None` for an item with more than one spelling.
fn item_hash(item: &[u8]) -> Option<u64> {
    let one_spelling = match item.first()? {
        b'"' => !item.contains(&b'\\'),
        // The engines compare longer integers as doubles.
        b'-' | b'0'..=b'9' => {
            let plain = |byte: &u8| *byte == b'-' || byte.is_ascii_digit();
            item.len() <= MAX_VALUE_DIGITS && item != b"-0" && item.iter().all(plain)
        }
        b'{' | b'[' => false,
        _ => true,
    };
    one_spelling.then(|| xxh3_64(item))
}

/// Text after leading white space.
#[inline(always)]
fn without_space(text: &[u8]) -> &[u8] {
    match text.first() {
        Some(byte) if *byte <= b' ' => after_space(text),
        _ => text,
    }
}

fn after_space(text: &[u8]) -> &[u8] {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
    let len = text.iter().take_while(|byte| is_space(byte)).count();
    text.get(len..).unwrap_or_default()
}
