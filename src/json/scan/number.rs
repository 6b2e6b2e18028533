//! The grammar of a JSON number, byte by byte.
//!
//! Decides whether a byte continues a number. The value is not computed.

/// How far into a number we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// After `-`.
    Minus,
    /// After a leading `0`.
    Zero,
    /// In the digits of the integer.
    Integer,
    /// After `.`.
    Point,
    /// In the digits of the fraction.
    Fraction,
    /// After `e` or `E`.
    E,
    /// After the sign of the exponent.
    Sign,
    /// In the digits of the exponent.
    Exponent,
}

impl Number {
    /// The state after a number's first byte, if one can begin with it.
    pub(super) fn begin(byte: u8) -> Option<Self> {
        match byte {
            b'-' => Some(Self::Minus),
            b'0' => Some(Self::Zero),
            b'1'..=b'9' => Some(Self::Integer),
            _ => None,
        }
    }

    /// The state after one more byte; `None` if the number does not go on with it.
    pub(super) fn next(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Minus, b'0') => Some(Self::Zero),
            (Self::Minus, b'1'..=b'9') | (Self::Integer, b'0'..=b'9') => Some(Self::Integer),
            (Self::Zero | Self::Integer, b'.') => Some(Self::Point),
            (Self::Point | Self::Fraction, b'0'..=b'9') => Some(Self::Fraction),
            (Self::Zero | Self::Integer | Self::Fraction, b'e' | b'E') => Some(Self::E),
            (Self::E, b'+' | b'-') => Some(Self::Sign),
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Some(Self::Exponent),
            _ => None,
        }
    }

    /// Whether the number may end here.
    pub(super) fn may_end(self) -> bool {
        match self {
            Self::Zero | Self::Integer | Self::Fraction | Self::Exponent => true,
            Self::Minus | Self::Point | Self::E | Self::Sign => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_number(text: &str) -> bool {
        let mut bytes = text.bytes();
        let mut state = bytes.next().and_then(Number::begin);
        for byte in bytes {
            state = state.and_then(|state| state.next(byte));
        }
        state.is_some_and(Number::may_end)
    }

    #[test]
    fn the_grammar_is_that_of_rfc_8259() {
        for good in ["0", "-0", "10", "-9", "0.5", "1.00", "1e5", "1E+05", "0e-1", "-1.5e10"] {
            assert!(is_number(good), "{good}");
        }
        for bad in ["", "-", "+1", "01", "-01", "1.", ".5", "1e", "1e+", "1.e1", "1ee1", "0x1"] {
            assert!(!is_number(bad), "{bad}");
        }
    }
}
