//! Implementation of jsonschema's `Json` traits over the borrowed tape, with metered access.
//!
//! Detects numbers that the tape cannot represent exactly. Allocates nothing before a verdict, and builds no tree. Numbers are compared as
//! in boon.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use jsonschema::JsonType;
use jsonschema::json::{Array, Json, JsonNumber, Node, NodeIdentity, Object};
use serde_json::{Number, Value};
use simd_json::{Node as Raw, StaticNode};

use super::meter::{BYTES_PER_STEP, Meter};
use mcpproxy_json::pointer::names;
use mcpproxy_json::tape::{Document, Name, lone_string};

/// Maximum length of an array whose items are compared pairwise.
const FEW_ITEMS: usize = 8;

/// Marker type of the representation: simd-json tape.
pub(crate) enum TapeJson {}

/// Document with the meter of its evaluation.
#[derive(Clone, Copy)]
pub(super) struct MeteredDocument<'a> {
    /// Value that is inspected.
    pub document: Document<'a>,
    pub meter: &'a Meter,
}

/// One value on the tape.
#[derive(Clone, Copy)]
pub(crate) struct TapeNode<'a> {
    at: u32,
    view: &'a MeteredDocument<'a>,
}

impl<'a> MeteredDocument<'a> {
    /// Root value of the document.
    pub(super) fn root(&'a self) -> TapeNode<'a> {
        TapeNode { at: 0, view: self }
    }

    /// Whether the value at a place is null; also true once the steps are used up.
    pub(super) fn null_at(&self, pointer: &str) -> bool {
        let mut node = self.root();
        for name in names(pointer) {
            let below = match name {
                None => None,
                Some(name) => match (node.as_object(), node.as_array()) {
                    (Some(object), _) => object.get(&Name::new(&name)),
                    (None, Some(array)) => {
                        name.parse().ok().and_then(|at: usize| array.elements().nth(at))
                    }
                    (None, None) => None,
                },
            };
            match below {
                Some(below) => node = below,
                None => return false,
            }
        }
        node.is_null()
    }
}

impl<'a> TapeNode<'a> {
    /// Meter of the evaluation.
    pub(crate) fn meter(&self) -> &'a Meter {
        self.view.meter
    }

    /// Raw node; null once the steps are used up.
    fn look(&self) -> Raw<'a> {
        if self.view.meter.step() {
            self.view.document.node(self.at)
        } else {
            Raw::Static(StaticNode::Null)
        }
    }

    fn sibling(&self, at: u32) -> Self {
        Self { at, view: self.view }
    }

    fn next(&self) -> Self {
        self.sibling(self.view.document.after(self.at))
    }
}

impl Json for TapeJson {
    type Node<'a> = TapeNode<'a>;
    type PreparedKey = Name;
    type StringBuffer = Meter;

    // On average, a look-up in an object with few members compares half of them.
    const KEYS_PER_LOOKUP: usize = 8;

    fn prepare_key(key: &str) -> Name {
        Name::new(key)
    }

    fn with_string_node<T>(
        buffer: &mut Meter,
        string: &str,
        f: impl FnOnce(TapeNode<'_>) -> T,
    ) -> T {
        let node = [Raw::String(string)];
        f(MeteredDocument { document: lone_string(&node), meter: buffer }.root())
    }
}

impl<'a> Node<'a, TapeJson> for TapeNode<'a> {
    type Object = TapeObject<'a>;
    type Array = TapeArray<'a>;
    type Number = TapeNumber<'a>;

    fn as_object(&self) -> Option<TapeObject<'a>> {
        match self.look() {
            Raw::Object { len, .. } => Some(TapeObject { node: *self, len }),
            _ => None,
        }
    }

    fn as_array(&self) -> Option<TapeArray<'a>> {
        match self.look() {
            Raw::Array { len, .. } => Some(TapeArray { node: *self, len }),
            _ => None,
        }
    }

    fn as_string(&self) -> Option<Cow<'a, str>> {
        match self.view.document.node(self.at) {
            Raw::String(text) => {
                let paid = self.view.meter.spend(1 + text.len() as u64 / BYTES_PER_STEP);
                paid.then_some(Cow::Borrowed(text))
            }
            Raw::Object { .. } | Raw::Array { .. } | Raw::Static(_) => {
                self.view.meter.step();
                None
            }
        }
    }

    fn as_number(&self) -> Option<TapeNumber<'a>> {
        number(self.look()).map(|digits| TapeNumber::new(digits, self.view.meter))
    }

    fn as_boolean(&self) -> Option<bool> {
        match self.look() {
            Raw::Static(StaticNode::Bool(truth)) => Some(truth),
            _ => None,
        }
    }

    fn is_null(&self) -> bool {
        matches!(self.look(), Raw::Static(StaticNode::Null))
    }

    fn json_type(&self) -> JsonType {
        match self.look() {
            Raw::Object { .. } => JsonType::Object,
            Raw::Array { .. } => JsonType::Array,
            Raw::String(_) => JsonType::String,
            Raw::Static(StaticNode::Null) => JsonType::Null,
            Raw::Static(StaticNode::Bool(_)) => JsonType::Boolean,
            Raw::Static(StaticNode::I64(_) | StaticNode::U64(_) | StaticNode::F64(_)) => {
                JsonType::Number
            }
        }
    }

    fn string_length(&self) -> Option<u64> {
        self.as_string().map(|text| characters(&text))
    }

    fn equals_value(&self, expected: &Value) -> bool {
        match (self.look(), expected) {
            (Raw::String(text), Value::String(other)) => text == other,
            (Raw::Static(StaticNode::Null), Value::Null) => true,
            (Raw::Static(StaticNode::Bool(truth)), Value::Bool(other)) => truth == *other,
            (raw, Value::Number(other)) => number(raw).is_some_and(|digits| digits.equals(other)),
            (Raw::Array { len, .. }, Value::Array(others)) => {
                len == others.len()
                    && TapeArray { node: *self, len }
                        .elements()
                        .zip(others)
                        .all(|(item, other)| item.equals_value(other))
            }
            (Raw::Object { len, .. }, Value::Object(others)) => {
                len == others.len()
                    && TapeObject { node: *self, len }.members().all(|(name, value)| {
                        others.get(name).is_some_and(|other| value.equals_value(other))
                    })
            }
            (Raw::Object { .. } | Raw::Array { .. } | Raw::String(_) | Raw::Static(_), _) => false,
        }
    }

    fn to_value(&self) -> Cow<'a, Value> {
        if !self.view.meter.makes_values {
            return Cow::Owned(Value::Null);
        }
        Cow::Owned(match self.look() {
            Raw::String(text) => Value::String(text.to_owned()),
            Raw::Static(StaticNode::Null) => Value::Null,
            Raw::Static(StaticNode::Bool(truth)) => Value::Bool(truth),
            raw @ Raw::Static(_) => number(raw).map_or(Value::Null, |n| Value::Number(n.owned())),
            Raw::Array { len, .. } => Value::Array(
                TapeArray { node: *self, len }
                    .elements()
                    .map(|item| item.to_value().into_owned())
                    .collect(),
            ),
            Raw::Object { len, .. } => Value::Object(
                TapeObject { node: *self, len }
                    .members()
                    .map(|(name, value)| (name.to_owned(), value.to_value().into_owned()))
                    .collect(),
            ),
        })
    }

    fn identity(&self) -> Option<NodeIdentity> {
        self.view.meter.step();
        Some(NodeIdentity::tagged(std::ptr::from_ref(self.view) as usize, self.at))
    }
}

pub(crate) struct TapeObject<'a> {
    node: TapeNode<'a>,
    len: usize,
}

/// Iterator over the members of an object, in document order.
pub(crate) struct TapeMembers<'a> {
    key: TapeNode<'a>,
    left: usize,
}

impl<'a> Object<'a, TapeJson> for TapeObject<'a> {
    type Node = TapeNode<'a>;
    type MemberName = &'a str;
    type MembersIter = TapeMembers<'a>;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, key: &Name) -> Option<TapeNode<'a>> {
        if !self.node.view.meter.step() {
            return None;
        }
        let value = self.node.view.document.member(self.node.at, key)?;
        Some(self.node.sibling(value))
    }

    fn members(&self) -> TapeMembers<'a> {
        TapeMembers { key: self.node.sibling(self.node.at + 1), left: self.len }
    }
}

impl<'a> Iterator for TapeMembers<'a> {
    type Item = (&'a str, TapeNode<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let meter = self.key.view.meter;
        let Raw::String(name) = self.key.view.document.node(self.key.at) else { return None };
        if !meter.spend(meter.name_steps(name).saturating_add(1)) {
            return None;
        }
        let value = self.key.sibling(self.key.at + 1);
        self.key = value.next();
        Some((name, value))
    }
}

pub(crate) struct TapeArray<'a> {
    node: TapeNode<'a>,
    len: usize,
}

/// Iterator over the items of an array, in order.
#[derive(Clone)]
pub(crate) struct Elements<'a> {
    item: TapeNode<'a>,
    left: usize,
}

impl<'a> Array<'a, TapeJson> for TapeArray<'a> {
    type Node = TapeNode<'a>;
    type ElementsIter = Elements<'a>;

    fn len(&self) -> usize {
        self.len
    }

    fn elements(&self) -> Elements<'a> {
        Elements { item: self.node.sibling(self.node.at + 1), left: self.len }
    }

    /// Items are first compared by a hash that ignores bracketing, as in boon, so that a document with provoked collisions uses up its
    /// steps here.
    fn is_unique(&self) -> bool {
        if self.len <= FEW_ITEMS {
            let mut rest = self.elements();
            while let Some(item) = rest.next() {
                if rest.clone().any(|other| same(item, other)) {
                    return false;
                }
            }
            return true;
        }
        let mut order = self.node.view.meter.order.borrow_mut();
        order.clear();
        order.extend(self.elements().map(|item| {
            let mut state = DefaultHasher::new();
            hash(item, &mut state);
            (state.finish(), item.at)
        }));
        order.sort_unstable();
        order.chunk_by(|a, b| a.0 == b.0).all(|alike| {
            alike.iter().enumerate().all(|(i, a)| {
                alike
                    .iter()
                    .skip(i + 1)
                    .all(|b| !same(self.node.sibling(a.1), self.node.sibling(b.1)))
            })
        })
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = TapeNode<'a>;

    fn next(&mut self) -> Option<TapeNode<'a>> {
        self.left = self.left.checked_sub(1)?;
        if !self.item.view.meter.step() {
            return None;
        }
        let item = self.item;
        self.item = item.next();
        Some(item)
    }
}

/// Number of characters of `text`, which are all bytes except continuation bytes. Counted in byte-sized lanes, in blocks that cannot
/// overflow them.
fn characters(text: &str) -> u64 {
    const COUNTED_AT_ONCE: usize = 240;
    let starts =
        |chunk: &[u8]| -> u8 { chunk.iter().map(|byte| u8::from(byte & 0xC0 != 0x80)).sum() };
    text.as_bytes().chunks(COUNTED_AT_ONCE).map(|chunk| u64::from(starts(chunk))).sum()
}

/// JSON equality of two values of one document. Recursion is bounded by the depth of documents.
fn same(a: TapeNode<'_>, b: TapeNode<'_>) -> bool {
    match (a.look(), b.look()) {
        (Raw::String(x), Raw::String(y)) => {
            a.view.meter.spend(x.len().min(y.len()) as u64 / BYTES_PER_STEP);
            x == y
        }
        (Raw::Array { len: x, .. }, Raw::Array { len: y, .. }) => {
            let items = |node, len| TapeArray { node, len }.elements();
            x == y && items(a, x).zip(items(b, y)).all(|(a, b)| same(a, b))
        }
        (Raw::Object { len: x, .. }, Raw::Object { len: y, .. }) => {
            x == y
                && TapeObject { node: a, len: x }.members().all(|(name, value)| {
                    let twin = b.view.document.member_once(b.at, name);
                    twin.is_some_and(|twin| same(value, b.sibling(twin)))
                })
        }
        (Raw::Static(x), Raw::Static(y)) => match (number(a.look()), number(b.look())) {
            (Some(x), Some(y)) => x.same(y),
            (Some(_), None) | (None, Some(_)) => false,
            (None, None) => x == y,
        },
        (Raw::Object { .. } | Raw::Array { .. } | Raw::String(_) | Raw::Static(_), _) => false,
    }
}

/// Hash of a value: equal for equal values, and for arrays that differ only in bracketing.
fn hash(node: TapeNode<'_>, state: &mut DefaultHasher) {
    match node.look() {
        Raw::Static(StaticNode::Null) => 0_u8.hash(state),
        Raw::Static(StaticNode::Bool(truth)) => truth.hash(state),
        raw @ Raw::Static(_) => {
            // Adding zero turns -0 into 0.
            (number(raw).map_or(0.0, Digits::double) + 0.0).to_bits().hash(state);
        }
        Raw::String(text) => {
            node.view.meter.spend(text.len() as u64 / BYTES_PER_STEP);
            text.hash(state);
        }
        Raw::Array { len, .. } => {
            for item in (TapeArray { node, len }).elements() {
                hash(item, state);
            }
        }
        Raw::Object { len, .. } => {
            let mut all = 0;
            for (name, value) in (TapeObject { node, len }).members() {
                let mut member = DefaultHasher::new();
                name.hash(&mut member);
                hash(value, &mut member);
                all ^= member.finish();
            }
            all.hash(state);
        }
    }
}

/// Magnitude from which doubles do not represent every integer.
const EXACT: u64 = 1 << 53;

/// Number on the tape: exact between -2^63 and 2^64 if written without fraction and exponent, otherwise a double.
#[derive(Clone, Copy)]
pub(crate) struct TapeNumber<'a> {
    digits: Digits,
    meter: &'a Meter,
}

/// Representation of a number on the tape.
#[derive(Clone, Copy)]
enum Digits {
    Signed(i64),
    Unsigned(u64),
    Double(f64),
}

impl<'a> TapeNumber<'a> {
    fn new(digits: Digits, meter: &'a Meter) -> Self {
        Self { digits, meter }
    }

    /// Operand of every comparison by size.
    fn compared(&self) -> Digits {
        let beyond = match self.digits {
            Digits::Signed(n) => n.unsigned_abs() >= EXACT,
            Digits::Unsigned(n) => n >= EXACT,
            Digits::Double(n) => n.abs() >= EXACT as f64,
        };
        if beyond {
            self.meter.mark_inexact();
        }
        self.digits
    }
}

impl JsonNumber for TapeNumber<'_> {
    fn as_u64(&self) -> Option<u64> {
        self.compared().unsigned()
    }

    fn as_i64(&self) -> Option<i64> {
        self.compared().signed()
    }

    fn as_f64(&self) -> Option<f64> {
        Some(self.compared().double())
    }

    fn as_str(&self) -> Cow<'_, str> {
        Cow::Owned(self.compared().owned().to_string())
    }

    fn to_number(&self) -> Cow<'_, Number> {
        Cow::Owned(self.compared().owned())
    }

    fn is_integer(&self) -> bool {
        match self.digits {
            Digits::Signed(_) | Digits::Unsigned(_) => true,
            Digits::Double(n) => n.fract() == 0.0,
        }
    }

    // The tape does not record how an integral double was written. boon treats `1.0` as an integer in all drafts, and the engines must
    // agree.
    fn is_written_as_integer(&self) -> bool {
        self.is_integer()
    }
}

impl Digits {
    fn unsigned(self) -> Option<u64> {
        match self {
            Self::Signed(n) => u64::try_from(n).ok(),
            Self::Unsigned(n) => Some(n),
            Self::Double(_) => None,
        }
    }

    fn signed(self) -> Option<i64> {
        match self {
            Self::Signed(n) => Some(n),
            Self::Unsigned(n) => i64::try_from(n).ok(),
            Self::Double(_) => None,
        }
    }

    fn double(self) -> f64 {
        match self {
            Self::Signed(n) => n as f64,
            Self::Unsigned(n) => n as f64,
            Self::Double(n) => n,
        }
    }

    fn owned(self) -> Number {
        match self {
            Self::Signed(n) => n.into(),
            Self::Unsigned(n) => n.into(),
            Self::Double(n) => Number::from_f64(n).unwrap_or_else(|| 0.into()),
        }
    }

    /// Equality as in boon: exact for two integers, otherwise by double.
    fn equals(self, other: &Number) -> bool {
        if let (Some(a), Some(b)) = (self.unsigned(), other.as_u64()) {
            return a == b;
        }
        if let (Some(a), Some(b)) = (self.signed(), other.as_i64()) {
            return a == b;
        }
        other.as_f64().is_some_and(|other| self.double() == other)
    }

    fn same(self, other: Self) -> bool {
        if let (Some(a), Some(b)) = (self.unsigned(), other.unsigned()) {
            return a == b;
        }
        if let (Some(a), Some(b)) = (self.signed(), other.signed()) {
            return a == b;
        }
        self.double() == other.double()
    }
}

/// Number at a node, if the node is a number.
fn number(raw: Raw<'_>) -> Option<Digits> {
    match raw {
        Raw::Static(StaticNode::I64(n)) => Some(Digits::Signed(n)),
        Raw::Static(StaticNode::U64(n)) => Some(Digits::Unsigned(n)),
        Raw::Static(StaticNode::F64(n)) => Some(Digits::Double(n)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use jsonschema::json::{JsonNumber, conformance};

    use super::*;
    use mcpproxy_json::tape::Scratch;

    fn with<R>(json: &str, look: impl FnOnce(TapeNode<'_>) -> R) -> R {
        let meter = Meter::default();
        Scratch::new()
            .read([json.as_bytes()], |document| {
                look(MeteredDocument { document, meter: &meter }.root())
            })
            .unwrap()
    }

    #[test]
    fn representation_passes_the_conformance_suite() {
        with(&conformance::document().to_string(), |root| {
            conformance::assert_conformance::<TapeJson>(&root);
        });
    }

    #[test]
    fn unique_items_agree_with_json_equality() {
        let many = |last: &str| {
            let items: Vec<String> = (0..30).map(|i| format!("[{i},{{\"a\":{i}}}]")).collect();
            format!("[{},{last}]", items.join(","))
        };
        for (json, expected) in [
            ("[1,2,3]".to_owned(), true),
            ("[1,1.0]".to_owned(), false),
            ("[0,-0.0]".to_owned(), false),
            (r#"[{"a":1,"b":2},{"b":2,"a":1}]"#.to_owned(), false),
            ("[[1],[[1]],1,\"1\",true,null,false,0,\"\",{},[]]".to_owned(), true),
            ("[1,true]".to_owned(), true),
            ("[9007199254740993,9007199254740992]".to_owned(), true),
            (many("[7,{\"a\":8}]"), true),
            (many("[7.0,{\"a\":7}]"), false),
            (many("[-0.0,{\"a\":0}]"), false),
        ] {
            let unique = with(&json, |root| root.as_array().unwrap().is_unique());
            assert_eq!(unique, expected, "{json}");
        }
    }

    #[test]
    fn exhausted_meter_yields_empty_values() {
        with("{\"a\":[1,2]}", |root| {
            root.meter().exhaust();
            assert!(root.as_object().is_none());
            assert!(root.is_null());
            assert_eq!(root.to_value().as_ref(), &Value::Null);
        });
    }

    #[test]
    fn comparison_by_size_beyond_2_53_is_inexact() {
        for (json, expected) in [
            ("9007199254740991", false),
            ("9007199254740992", true),
            ("-9007199254740992", true),
            ("18446744073709551615", true),
            ("18446744073709551616", true),
            ("1e300", true),
            ("0.1", false),
        ] {
            with(json, |root| {
                let number = root.as_number().unwrap();
                let _ = number.is_integer();
                assert!(!root.meter().inexact());
                let _ = number.as_f64();
                assert_eq!(root.meter().inexact(), expected, "{json}");
            });
        }
    }
}
