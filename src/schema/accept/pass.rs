//! One pass over the bytes of a document: grammar, duplicate keys, depth and rules.

use xxhash_rust::xxh3::xxh3_64;

use mcpproxy_json::keys::has_equal;
use mcpproxy_json::scan::{is_utf8, string_run};

use super::number::{MAX_VALUE_DIGITS, WrittenNumber, accepted};
use super::rules::{AcceptNode, AcceptNodeId, AcceptProgram, ArrayRule, ObjectRule, WrittenText};
use crate::settings::SchemaHash;

/// Step budget of a pass for every document.
const STEPS: usize = 1024;

/// Additional steps per byte of a document. Most schemas take at most two, unless alternatives fail.
const STEPS_PER_BYTE: usize = 4;

/// Number of bytes of a string, or of white space, per step.
const BYTES_PER_STEP: usize = 16;

/// Number of alternatives for a number per step.
const NUMBERS_PER_STEP: usize = 4;

/// Number of bytes of a string that take one step, for each condition of the string.
const COMPARED_BYTES_PER_STEP: usize = 2;

/// Maximum total number of undeclared names in the open objects and of items compared in the open arrays.
const MAX_HASHES: usize = 1 << 16;

/// Scratch memory of a worker for the accept-only evaluator.
#[derive(Default)]
pub(crate) struct AcceptScratch {
    guesses: Guesses,
    /// State for complete documents.
    state: AcceptState,
}

/// Predictions of the next name of an object, by the name before it: the prediction is the name that followed last
/// time. Predictions do not change the result.
#[derive(Default)]
struct Guesses {
    /// Schema of the predictions.
    schema: Option<SchemaHash>,
    /// Index of the predicted name.
    names: Vec<u8>,
}

/// State of an evaluation between two items of a document.
#[derive(Debug, Default)]
pub(super) struct AcceptState {
    /// Open containers, outermost first.
    frames: Vec<Frame>,
    /// Hashes of undeclared names of the open objects, and of items that must be unique.
    hashes: Vec<u64>,
    /// Maximum number of hashes.
    max_hashes: usize,
    /// Number of steps left.
    steps: usize,
    /// Whether the next byte follows a nested container, so that a comma or a closing bracket is expected.
    after: bool,
    /// Whether the document has begun.
    begun: bool,
    /// Whether a closing bracket was refused, so that the rest of the document does not matter.
    refused: bool,
}

/// Open container.
#[derive(Clone, Copy, Debug)]
struct Frame {
    node: AcceptNodeId,
    is_object: bool,
    /// Index of the rule that is being tried.
    rule: usize,
    /// Number of bytes of a complete document from the first item of this container to the end. Another rule starts
    /// there again.
    bytes_left: usize,
    /// Number of hashes that belong to the enclosing containers.
    hashes: usize,
    items: Items,
}

/// Items of an open container so far.
#[derive(Clone, Copy, Debug, Default)]
struct Items {
    count: usize,
    /// Bit mask of the declared names.
    seen: u64,
    /// Index of the prediction to use.
    guess: usize,
    /// Bit for each undeclared name, by its hash.
    bits: u64,
    /// Whether two undeclared names share a bit, or a name was read again.
    crowded: bool,
}

/// End of an item, and the text after it.
enum End<'t> {
    /// A comma, so another item follows.
    Next(&'t [u8]),
    /// The closing bracket of the container.
    Last(&'t [u8]),
}

impl AcceptProgram {
    /// Whether `document` is one JSON value that certainly conforms to the schema.
    pub(crate) fn accepts(&self, document: &[u8], scratch: &mut AcceptScratch) -> bool {
        let AcceptScratch { guesses, state } = scratch;
        state.begin(MAX_HASHES);
        state.allow(document.len());
        let mut pass =
            AcceptPass { program: self, guesses: guesses.of(self), state, depth: 0, unread: None };
        is_utf8(document) && pass.whole(document).is_some()
    }

    /// Reads `text`, the part of a document that follows the text `state` has read; the steps for it must have been
    /// [allowed](AcceptState::allow) before. Returns the number of bytes from the first item that is incomplete or
    /// refused; `None` if the document is certainly refused, or the part before that item is not UTF-8.
    pub(super) fn read_part(
        &self,
        text: &[u8],
        state: &mut AcceptState,
        scratch: &mut AcceptScratch,
    ) -> Option<usize> {
        let mut pass = AcceptPass {
            program: self,
            guesses: scratch.guesses.of(self),
            state,
            depth: 0,
            unread: None,
        };
        let text = pass.without_space(text);
        let rest = match pass.state.begun {
            true => pass.advance(text),
            false => pass.begin(text),
        };
        let is_valid = !pass.state.refused && is_utf8(text.get(..text.len() - rest.len())?);
        is_valid.then_some(rest.len())
    }

    /// Index of the prediction of the first name in a container under the rule that is being tried. `None` if there is
    /// no such rule.
    fn first_guess(&self, frame: &Frame) -> Option<usize> {
        let node = self.nodes.get(frame.node as usize)?;
        match frame.is_object {
            true => node.objects.get(frame.rule).map(|rule| rule.first_guess),
            false => node.arrays.get(frame.rule).map(|_| 0),
        }
    }
}

impl Guesses {
    fn of(&mut self, program: &AcceptProgram) -> &mut [u8] {
        if self.schema != Some(program.schema) {
            self.schema = Some(program.schema);
            self.names.clear();
            self.names.resize(program.guesses, 0);
        }
        &mut self.names
    }
}

impl AcceptState {
    pub(super) fn new(max_hashes: usize) -> Self {
        let mut state = Self::default();
        state.begin(max_hashes);
        state
    }

    /// Prepares for another document.
    fn begin(&mut self, max_hashes: usize) {
        self.frames.clear();
        self.hashes.clear();
        self.max_hashes = max_hashes;
        self.steps = STEPS;
        (self.after, self.begun, self.refused) = (false, false, false);
    }

    /// Adds the steps for `len` more bytes.
    pub(super) fn allow(&mut self, len: usize) {
        self.steps = self.steps.saturating_add(len.saturating_mul(STEPS_PER_BYTE));
    }

    /// Whether the root value has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.begun && self.frames.is_empty()
    }
}

struct AcceptPass<'p, 's> {
    program: &'p AcceptProgram,
    guesses: &'s mut [u8],
    state: &'s mut AcceptState,
    /// Number of containers around the value that is read.
    depth: usize,
    /// Number of bytes from the item that is incomplete or refused, once there is one.
    unread: Option<usize>,
}

impl<'p> AcceptPass<'p, '_> {
    /// Reads a complete document. If a rule of an open container refuses, the next rule of the innermost container that has one is tried.
    fn whole(&mut self, document: &[u8]) -> Option<()> {
        let document = self.without_space(document);
        let (mut begins, mut text) = (document.len(), self.begin(document));
        while !self.state.is_complete() {
            // Bytes that were already read are read again, which uses up steps.
            self.spend((begins - text.len()) / BYTES_PER_STEP + 1)?;
            begins = self.other_rule()?;
            text = self.advance(document.get(document.len() - begins..)?);
        }
        self.without_space(text).is_empty().then_some(())
    }

    /// Reads the root value at the start of `text`. Returns the text after it, or from the item that is incomplete or refused.
    fn begin<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        let rest = self.value(self.program.root, text);
        self.state.begun = rest.is_some() || self.unread.is_some();
        self.state.frames.reverse();
        rest.unwrap_or_else(|| self.unread(text))
    }

    /// Reads the rest of the open containers. Returns the text after the root value, or from the item that is incomplete or refused.
    fn advance<'t>(&mut self, mut text: &'t [u8]) -> &'t [u8] {
        self.unread = None;
        while let Some(frame) = self.state.frames.pop() {
            let around = self.state.frames.len();
            self.depth = around + 1;
            let Some(rest) = self.container(frame.node, frame.is_object, Some(&frame), text) else {
                // The innermost container was added first.
                self.state.frames.get_mut(around..).unwrap_or_default().reverse();
                return self.unread(text);
            };
            (text, self.state.after) = (rest, true);
        }
        text
    }

    /// The part of `text` from the item that is incomplete or refused.
    fn unread<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        let read = self.unread.and_then(|unread| text.len().checked_sub(unread));
        text.get(read.unwrap_or_default()..).unwrap_or_default()
    }

    /// Records the open container `frame`, so that it can be resumed. A container that was `resumed` before keeps its rule and its beginning.
    #[cold]
    fn suspend<'t>(&mut self, resumed: Option<&Frame>, frame: Frame) -> Option<&'t [u8]> {
        let frame = match resumed {
            Some(begun) => Frame { items: frame.items, ..*begun },
            None => frame,
        };
        self.state.frames.push(frame);
        None
    }

    /// Finds the innermost open container that has another rule, and restarts it with that rule. Returns the number of bytes from its first
    /// item to the end of the document.
    fn other_rule(&mut self) -> Option<usize> {
        let AcceptState { frames, hashes, after, refused, .. } = &mut *self.state;
        while let Some(frame) = frames.last_mut() {
            let next = Frame { rule: frame.rule + 1, items: Items::default(), ..*frame };
            if let Some(guess) = self.program.first_guess(&next) {
                *frame = next;
                frame.items.guess = guess;
                hashes.truncate(frame.hashes);
                (*after, *refused) = (false, false);
                return Some(frame.bytes_left);
            }
            frames.pop();
        }
        None
    }

    /// Uses up steps. Returns `None` if too few steps are left, and then also for all later calls that need steps.
    #[inline(always)]
    fn spend(&mut self, steps: usize) -> Option<()> {
        let is_enough = steps <= self.state.steps;
        self.state.steps = self.state.steps.saturating_sub(steps);
        is_enough.then_some(())
    }

    /// Text after leading white space.
    #[inline(always)]
    fn without_space<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        match text.first() {
            Some(byte) if *byte <= b' ' => self.after_space(text),
            _ => text,
        }
    }

    fn after_space<'t>(&mut self, text: &'t [u8]) -> &'t [u8] {
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        let len = text.iter().take_while(|byte| is_space(byte)).count();
        self.state.steps = self.state.steps.saturating_sub(len / BYTES_PER_STEP);
        text.get(len..).unwrap_or_default()
    }

    /// Reads the value at the start of `text` and returns the text after it; `None` if it is incomplete or not certainly valid.
    #[inline(always)]
    fn value<'t>(&mut self, id: AcceptNodeId, text: &'t [u8]) -> Option<&'t [u8]> {
        self.spend(1)?;
        let node = self.program.nodes.get(id as usize)?;
        let (first, rest) = text.split_first()?;
        match first {
            b'"' => self.text(node, rest),
            b'-' | b'0'..=b'9' => {
                self.spend(node.numbers.len() / NUMBERS_PER_STEP)?;
                WrittenNumber::check(&node.numbers, text)
            }
            b'{' | b'[' => {
                let items = self.without_space(rest);
                self.nested(id, node, *first == b'{', items)
            }
            b't' => rest.strip_prefix(b"rue").filter(|_| node.yes),
            b'f' => rest.strip_prefix(b"alse").filter(|_| node.no),
            b'n' => rest.strip_prefix(b"ull").filter(|_| node.null),
            _ => None,
        }
    }

    /// Reads a container whose opening bracket precedes `text`.
    #[inline(always)]
    fn nested<'t>(
        &mut self,
        id: AcceptNodeId,
        node: &AcceptNode,
        is_object: bool,
        items: &'t [u8],
    ) -> Option<&'t [u8]> {
        if self.depth >= self.program.max_depth {
            return None;
        }
        let (first, rest) = items.split_first()?;
        let accepts_empty = match (is_object, first) {
            (true, b'}') => node.objects.iter().any(|rule| rule.required == 0 && rule.min == 0),
            (false, b']') => node.arrays.iter().any(|rule| rule.min == 0),
            _ => {
                self.depth += 1;
                let rest = self.container(id, is_object, None, items);
                self.depth -= 1;
                return rest;
            }
        };
        accepts_empty.then_some(rest)
    }

    /// Reads the items of a container and its closing bracket, from the first item on or, if it is `resumed`, the rest of them.
    fn container<'t>(
        &mut self,
        id: AcceptNodeId,
        is_object: bool,
        resumed: Option<&Frame>,
        text: &'t [u8],
    ) -> Option<&'t [u8]> {
        let node = self.program.nodes.get(id as usize)?;
        let rule = resumed.map_or(0, |frame| frame.rule);
        match is_object {
            true => self.object(node.objects.get(rule)?, id, resumed, text),
            false => self.array(node.arrays.get(rule)?, id, resumed, text),
        }
    }

    /// Reads the string whose opening quote precedes `text`.
    #[inline(always)]
    fn text<'t>(&mut self, node: &AcceptNode, text: &'t [u8]) -> Option<&'t [u8]> {
        let len = string_run(text);
        self.spend(len / BYTES_PER_STEP)?;
        match text.get(len) {
            Some(b'"') if node.free_text => text.get(len + 1..),
            Some(b'"') => {
                self.spend((len + 1) * node.text_conditions / COMPARED_BYTES_PER_STEP)?;
                let string = WrittenText::plain(text.get(..len)?);
                accepted(&node.texts, |rule| rule.accepts(string)).then_some(text.get(len + 1..)?)
            }
            Some(b'\\') => self.escaped_text(node, text, len),
            _ => None,
        }
    }

    /// Same as `text`, for a string with its first backslash at `at`.
    fn escaped_text<'t>(
        &mut self,
        node: &AcceptNode,
        text: &'t [u8],
        at: usize,
    ) -> Option<&'t [u8]> {
        let Some((string, rest)) = WrittenText::read_escaped(text, at) else {
            // At most the rest of the text was read, so steps are used up for its whole length.
            return self.spend(text.len() / BYTES_PER_STEP).and(None);
        };
        let len = string.inner.len();
        let compared = (len + 1) * node.text_conditions;
        self.spend(len / BYTES_PER_STEP + compared / COMPARED_BYTES_PER_STEP)?;
        node.texts.iter().any(|rule| rule.accepts(string)).then_some(rest)
    }

    #[inline(never)]
    fn array<'t>(
        &mut self,
        rule: &'p ArrayRule,
        node: AcceptNodeId,
        resumed: Option<&Frame>,
        mut text: &'t [u8],
    ) -> Option<&'t [u8]> {
        let bytes_left = text.len();
        let outer = resumed.map_or(self.state.hashes.len(), |frame| frame.hashes);
        let mut count = resumed.map_or(0, |frame| frame.items.count);
        let mut after = resumed.is_some() && self.state.after;
        loop {
            let hashes = self.state.hashes.len();
            let end = match std::mem::take(&mut after) {
                true => self.resumed_end(text, |pass| pass.end_of_item(rule, outer, count, text)),
                false => {
                    count += 1;
                    self.item(rule, outer, count, text)
                }
            };
            match end {
                Some(End::Next(next)) => text = next,
                Some(End::Last(rest)) => {
                    self.state.hashes.truncate(outer);
                    return Some(rest);
                }
                None => {
                    if self.unread.is_none() {
                        self.unread = Some(text.len());
                        self.state.hashes.truncate(hashes);
                        count -= 1;
                    }
                    let items = Items { count, ..Items::default() };
                    let frame =
                        Frame { node, is_object: false, rule: 0, bytes_left, hashes: outer, items };
                    return self.suspend(resumed, frame);
                }
            }
        }
    }

    #[inline(always)]
    fn item<'t>(
        &mut self,
        rule: &ArrayRule,
        outer: usize,
        count: usize,
        text: &'t [u8],
    ) -> Option<End<'t>> {
        let node = rule.prefix.get(count - 1).copied().unwrap_or(rule.rest);
        // Compared items are scalars.
        if rule.unique && matches!(text.first(), Some(b'{' | b'[')) {
            return None;
        }
        let rest = self.value(node, text)?;
        if rule.unique {
            self.push(item_hash(text.get(..text.len() - rest.len())?)?)?;
        }
        let end = self.end_of_item(rule, outer, count, rest);
        end.or_else(|| self.after_value(text, rest))
    }

    /// Reads the end of an item: a comma, or the closing bracket of an array that conforms.
    #[inline(always)]
    fn end_of_item<'t>(
        &mut self,
        rule: &ArrayRule,
        outer: usize,
        count: usize,
        text: &'t [u8],
    ) -> Option<End<'t>> {
        match self.without_space(text).split_first()? {
            (b',', rest) => Some(End::Next(self.without_space(rest))),
            (b']', rest) => {
                let repeats = rule.unique && has_equal(self.state.hashes.get_mut(outer..)?);
                let conforms = !repeats && (rule.min..=rule.max).contains(&count);
                self.state.refused = !conforms;
                conforms.then_some(End::Last(rest))
            }
            _ => None,
        }
    }

    #[inline(never)]
    fn object<'t>(
        &mut self,
        rule: &'p ObjectRule,
        node: AcceptNodeId,
        resumed: Option<&Frame>,
        mut text: &'t [u8],
    ) -> Option<&'t [u8]> {
        let bytes_left = text.len();
        let outer = resumed.map_or(self.state.hashes.len(), |frame| frame.hashes);
        let mut members = match resumed {
            Some(frame) => frame.items,
            None => Items { guess: rule.first_guess, ..Items::default() },
        };
        let mut after = resumed.is_some() && self.state.after;
        loop {
            let (hashes, count, seen) = (self.state.hashes.len(), members.count, members.seen);
            let end = match std::mem::take(&mut after) {
                true => {
                    self.resumed_end(text, |pass| pass.end_of_member(rule, outer, &members, text))
                }
                false => self.member(rule, outer, &mut members, text),
            };
            match end {
                Some(End::Next(next)) => text = next,
                Some(End::Last(rest)) => {
                    self.state.hashes.truncate(outer);
                    return Some(rest);
                }
                None => {
                    if self.unread.is_none() {
                        self.unread = Some(text.len());
                        self.state.hashes.truncate(hashes);
                        members = Items { count, seen, ..members };
                    }
                    let (hashes, items) = (outer, members);
                    let frame = Frame { node, is_object: true, rule: 0, bytes_left, hashes, items };
                    return self.suspend(resumed, frame);
                }
            }
        }
    }

    #[inline(always)]
    fn member<'t>(
        &mut self,
        rule: &'p ObjectRule,
        outer: usize,
        members: &mut Items,
        text: &'t [u8],
    ) -> Option<End<'t>> {
        let (node, rest) = self.name(rule, members, text.strip_prefix(b"\"")?)?;
        let value = self.without_space(rest).strip_prefix(b":")?;
        let value = self.without_space(value);
        let rest = self.value(node, value)?;
        let end = self.end_of_member(rule, outer, members, rest);
        end.or_else(|| self.after_value(value, rest))
    }

    /// Reads the `end` of an item of a resumed container: the nested container before `text` is complete.
    #[cold]
    fn resumed_end<'t>(
        &mut self,
        text: &'t [u8],
        end: impl FnOnce(&mut Self) -> Option<End<'t>>,
    ) -> Option<End<'t>> {
        let end = end(self);
        match end.is_some() {
            true => self.state.after = false,
            false => self.unread = Some(text.len()),
        }
        end
    }

    /// Ends the pass between a complete `value` and `rest`, where the comma or bracket is missing. A container is not read again.
    #[cold]
    fn after_value<'t>(&mut self, value: &[u8], rest: &[u8]) -> Option<End<'t>> {
        if matches!(value.first(), Some(b'{' | b'[')) {
            (self.unread, self.state.after) = (Some(rest.len()), true);
        }
        None
    }

    /// Reads the end of a member: a comma, or the closing brace of an object that conforms.
    #[inline(always)]
    fn end_of_member<'t>(
        &mut self,
        rule: &ObjectRule,
        outer: usize,
        members: &Items,
        text: &'t [u8],
    ) -> Option<End<'t>> {
        match self.without_space(text).split_first()? {
            (b',', rest) => Some(End::Next(self.without_space(rest))),
            (b'}', rest) => {
                let repeats = members.crowded && has_equal(self.state.hashes.get_mut(outer..)?);
                let conforms = !repeats
                    && members.seen & rule.required == rule.required
                    && (rule.min..=rule.max).contains(&members.count);
                self.state.refused = !conforms;
                conforms.then_some(End::Last(rest))
            }
            _ => None,
        }
    }

    /// Reads the name after an opening quote. Returns the node of its value and the text after the closing quote; `None` for a duplicate or
    /// for a name with an escape.
    #[inline(always)]
    fn name<'t>(
        &mut self,
        rule: &ObjectRule,
        members: &mut Items,
        text: &'t [u8],
    ) -> Option<(AcceptNodeId, &'t [u8])> {
        members.count += 1;
        let guess = usize::from(self.guesses.get(members.guess).copied().unwrap_or_default());
        let guessed = rule.names.get(guess).filter(|member| member.leads(text));
        let Some(member) = guessed else { return self.other_name(rule, members, text) };
        let (name, rest) = text.split_at_checked(member.name.len())?;
        self.spend(name.len() / BYTES_PER_STEP)?;
        self.declared(rule, members, guess, member.bit, name)?;
        Some((member.node, rest.get(1..)?))
    }

    /// Same as [`name`](Self::name), for a name that was not predicted.
    #[inline(never)]
    fn other_name<'t>(
        &mut self,
        rule: &ObjectRule,
        members: &mut Items,
        text: &'t [u8],
    ) -> Option<(AcceptNodeId, &'t [u8])> {
        let (name, rest) = text.split_at_checked(string_run(text))?;
        self.spend(name.len() / BYTES_PER_STEP)?;
        let rest = rest.strip_prefix(b"\"")?;
        if let Ok(at) = rule.names.binary_search_by(|member| member.name.as_bytes().cmp(name)) {
            if let Some(guess) = self.guesses.get_mut(members.guess) {
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
        self.spend((name.len() + 1) * rule.patterns.len() / COMPARED_BYTES_PER_STEP)?;
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
        members: &mut Items,
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
    fn conforms(&mut self, rule: &ObjectRule, name: &[u8]) -> Option<()> {
        let Some(node) = rule.named else { return Some(()) };
        let node = self.program.nodes.get(node as usize)?;
        self.spend((name.len() + 1) * node.text_conditions / COMPARED_BYTES_PER_STEP)?;
        node.texts.iter().any(|rule| rule.accepts(WrittenText::plain(name))).then_some(())
    }

    fn push(&mut self, hash: u64) -> Option<()> {
        let AcceptState { hashes, max_hashes, .. } = &mut *self.state;
        (hashes.len() < *max_hashes).then(|| hashes.push(hash))
    }
}

/// Hash of a compared item: equal for equal items. `None` for an item with more than one spelling.
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
