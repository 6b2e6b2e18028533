//! Numbers on the tape, and how far they can be trusted.
//!
//! Owns equality of numbers, which is boon's, and the rule from where on boon has to be asked.

use std::borrow::Cow;

use jsonschema::json::JsonNumber;
use serde_json::Number;
use simd_json::{Node as Raw, StaticNode};

use crate::schema::meter::Meter;

/// From here on a double no longer tells neighbouring integers apart.
const EXACT: u64 = 1 << 53;

/// A number on the tape: exact between -2^63 and 2^64 where it was written without fraction and
/// exponent, a double else.
#[derive(Clone, Copy)]
pub struct TapeNumber<'a> {
    digits: Digits,
    meter: &'a Meter,
}

/// How a number stands on the tape.
#[derive(Clone, Copy)]
pub(super) enum Digits {
    Signed(i64),
    Unsigned(u64),
    Double(f64),
}

impl<'a> TapeNumber<'a> {
    pub(super) fn new(digits: Digits, meter: &'a Meter) -> Self {
        Self { digits, meter }
    }

    /// Every comparison by size starts here.
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

    // The tape no longer knows how a whole double was written. boon takes `1.0` for an integer
    // in draft 4 as in all others, and the engines are to agree.
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

    pub(super) fn double(self) -> f64 {
        match self {
            Self::Signed(n) => n as f64,
            Self::Unsigned(n) => n as f64,
            Self::Double(n) => n,
        }
    }

    pub(super) fn owned(self) -> Number {
        match self {
            Self::Signed(n) => n.into(),
            Self::Unsigned(n) => n.into(),
            Self::Double(n) => Number::from_f64(n).unwrap_or_else(|| 0.into()),
        }
    }

    /// Equality as boon has it: exact where both are integers, by double else.
    pub(super) fn equals(self, other: &Number) -> bool {
        if let (Some(a), Some(b)) = (self.unsigned(), other.as_u64()) {
            return a == b;
        }
        if let (Some(a), Some(b)) = (self.signed(), other.as_i64()) {
            return a == b;
        }
        other.as_f64().is_some_and(|other| self.double() == other)
    }

    pub(super) fn same(self, other: Self) -> bool {
        if let (Some(a), Some(b)) = (self.unsigned(), other.unsigned()) {
            return a == b;
        }
        if let (Some(a), Some(b)) = (self.signed(), other.signed()) {
            return a == b;
        }
        self.double() == other.double()
    }
}

/// The number at a node, if it is one.
pub(super) fn number(raw: Raw<'_>) -> Option<Digits> {
    match raw {
        Raw::Static(StaticNode::I64(n)) => Some(Digits::Signed(n)),
        Raw::Static(StaticNode::U64(n)) => Some(Digits::Unsigned(n)),
        Raw::Static(StaticNode::F64(n)) => Some(Digits::Double(n)),
        Raw::Static(StaticNode::Null | StaticNode::Bool(_))
        | Raw::Object { .. }
        | Raw::Array { .. }
        | Raw::String(_) => None,
    }
}
