//! Numbers for the accept-only evaluator: parser, and conditions on the value.

/// Magnitude from which doubles do not represent every integer.
pub(super) const EXACT: f64 = 9_007_199_254_740_992.0;

/// Maximum number of digits whose value fits into an integer.
pub(super) const MAX_VALUE_DIGITS: usize = 18;

/// Maximum number of digits before and after the point. Within this limit, a number with an exponent of two digits does
/// not overflow a double.
const MAX_DIGITS: usize = 40;

/// Relative distance to a limit within which a rounded number is not compared with the limit.
const MARGIN: f64 = 1e-12;

/// Powers of ten that a double represents exactly.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

#[derive(Clone, Copy)]
pub(super) struct WrittenNumber {
    negative: bool,
    /// Digits, without the point; arbitrary if there are more than [`MAX_VALUE_DIGITS`].
    digits: u64,
    count: usize,
    /// Power of ten by which the digits are multiplied.
    power: i32,
    /// Whether there is neither a fraction nor an exponent.
    integer: bool,
}

/// Value of a number.
enum Magnitude {
    Exact(f64),
    /// The exact value is within [`MARGIN`] of this one.
    Rounded(f64),
    Unknown,
}

impl WrittenNumber {
    /// Reads the number at the start of `text`. Returns the rest if a rule accepts the number.
    #[inline(always)]
    pub(super) fn check<'t>(rules: &[NumberRule], text: &'t [u8]) -> Option<&'t [u8]> {
        let (negative, text) = match text.strip_prefix(b"-") {
            Some(text) => (true, text),
            None => (false, text),
        };
        let (digits, count) = read_digits(text);
        let leads_with_zero = count > 1 && text.first() == Some(&b'0');
        if leads_with_zero || !(1..=MAX_DIGITS).contains(&count) {
            return None;
        }
        let rest = text.get(count..)?;
        if matches!(rest.first(), Some(b'.' | b'e' | b'E')) {
            return Self::check_fraction(rules, negative, digits, count, rest);
        }
        let written = || Self { negative, digits, count, power: 0, integer: true };
        accepted(rules, |rule| !rule.compared || rule.compares(written())).then_some(rest)
    }

    /// Continues [`check`](Self::check) at the point or the exponent, after the given digits.
    #[inline(never)]
    fn check_fraction<'t>(
        rules: &[NumberRule],
        negative: bool,
        digits: u64,
        count: usize,
        mut text: &'t [u8],
    ) -> Option<&'t [u8]> {
        let mut number = Self { negative, digits, count, power: 0, integer: false };
        if let Some(fraction) = text.strip_prefix(b".") {
            let (digits, count) = read_digits(fraction);
            if !(1..=MAX_DIGITS).contains(&count) {
                return None;
            }
            number.count += count;
            if number.count <= MAX_VALUE_DIGITS {
                number.digits = number.digits.wrapping_mul(scale(count)).wrapping_add(digits);
            }
            number.power = -(count as i32);
            text = fraction.get(count..)?;
        }
        if let Some((b'e' | b'E', exponent)) = text.split_first() {
            let (sign, exponent) = match exponent.split_first()? {
                (b'-', rest) => (-1, rest),
                (b'+', rest) => (1, rest),
                _ => (1, exponent),
            };
            let (value, count) = read_digits(exponent);
            if !(1..=2).contains(&count) {
                return None;
            }
            number.power += sign * i32::try_from(value).ok()?;
            text = exponent.get(count..)?;
        }
        let conforms =
            |rule: &NumberRule| !rule.integer && (!rule.compared || rule.compares(number));
        accepted(rules, conforms).then_some(text)
    }

    fn magnitude(self) -> Magnitude {
        if self.count > MAX_VALUE_DIGITS {
            return Magnitude::Unknown;
        }
        let signed = |value: f64| if self.negative { -value } else { value };
        let digits = self.digits as f64;
        let Some(power) = POWERS.get(self.power.unsigned_abs() as usize) else {
            return Magnitude::Unknown;
        };
        let value = signed(if self.power < 0 { digits / power } else { digits * power });
        // At most one rounding takes place: the result is the double nearest to the number.
        if digits < EXACT { Magnitude::Exact(value) } else { Magnitude::Rounded(value) }
    }
}

/// Value and count of the digits at the start of `text`. The value wraps around for more than [`MAX_VALUE_DIGITS`].
#[inline]
fn read_digits(text: &[u8]) -> (u64, usize) {
    const ZEROS: u64 = u64::from_ne_bytes([b'0'; 8]);
    let (mut value, mut count) = (0_u64, 0);
    while let Some(eight) = text.get(count..).and_then(|rest| rest.first_chunk::<8>()) {
        let digits = u64::from_le_bytes(*eight) ^ ZEROS;
        // The high bits of a byte are set unless the byte is a digit.
        let others = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
        let found = (others.trailing_zeros() / 8) as usize;
        if found == 0 {
            return (value, count);
        }
        // Replaces the bytes after the digits with leading zeros.
        let part = eight_digits(digits << (8 * (8 - found)));
        value = value.wrapping_mul(scale(found)).wrapping_add(part);
        count += found;
        if found < 8 {
            return (value, count);
        }
        if count > MAX_DIGITS {
            return (value, count);
        }
    }
    let tail = text.get(count..).unwrap_or_default().iter();
    for digit in tail.take_while(|byte| byte.is_ascii_digit()) {
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
        count += 1;
    }
    (value, count)
}

/// Power of ten, for up to [`MAX_VALUE_DIGITS`].
#[inline]
fn scale(power: usize) -> u64 {
    const SCALES: [u64; MAX_VALUE_DIGITS + 1] = [
        1,
        10,
        100,
        1_000,
        10_000,
        100_000,
        1_000_000,
        10_000_000,
        100_000_000,
        1_000_000_000,
        10_000_000_000,
        100_000_000_000,
        1_000_000_000_000,
        10_000_000_000_000,
        100_000_000_000_000,
        1_000_000_000_000_000,
        10_000_000_000_000_000,
        100_000_000_000_000_000,
        1_000_000_000_000_000_000,
    ];
    SCALES.get(power).copied().unwrap_or_default()
}

/// Value of eight digits, of which the first is in the lowest byte.
#[inline]
fn eight_digits(digits: u64) -> u64 {
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8) & 0x00FF_00FF_00FF_00FF;
    let fours = pairs.wrapping_mul(100).wrapping_add(pairs >> 16) & 0x0000_FFFF_0000_FFFF;
    fours.wrapping_mul(10_000).wrapping_add(fours >> 32) & 0xFFFF_FFFF
}

/// Conditions on a number.
#[derive(Clone)]
pub(super) struct NumberRule {
    /// Whether the number must be written as an integer.
    pub(super) integer: bool,
    /// Whether the value is compared.
    pub(super) compared: bool,
    pub(super) at_least: f64,
    pub(super) above: f64,
    pub(super) at_most: f64,
    pub(super) below: f64,
    /// Integer of which the number must be a multiple.
    pub(super) divisor: Option<u64>,
    /// Sorted values, if they are enumerated; no negative zero.
    pub(super) one_of: Option<Box<[f64]>>,
}

impl Default for NumberRule {
    fn default() -> Self {
        Self {
            integer: false,
            compared: false,
            at_least: f64::NEG_INFINITY,
            above: f64::NEG_INFINITY,
            at_most: f64::INFINITY,
            below: f64::INFINITY,
            divisor: None,
            one_of: None,
        }
    }
}

impl NumberRule {
    /// Adds the limit of a keyword.
    pub(super) fn limit(&mut self, keyword: &str, limit: f64) {
        self.compared = true;
        match keyword {
            "minimum" => self.at_least = self.at_least.max(limit),
            "exclusiveMinimum" => self.above = self.above.max(limit),
            "maximum" => self.at_most = self.at_most.min(limit),
            _ => self.below = self.below.min(limit),
        }
    }

    /// Adds a divisor; returns false for a second divisor, or one that doubles do not represent.
    pub(super) fn divide(&mut self, divisor: u64) -> bool {
        self.compared = true;
        self.divisor.replace(divisor).is_none() && divisor as f64 > 0.0 && (divisor as f64) < EXACT
    }

    /// Whether the value of `number` certainly conforms.
    fn compares(&self, number: WrittenNumber) -> bool {
        let lies_within = |low: f64, high: f64| {
            low >= self.at_least && low > self.above && high <= self.at_most && high < self.below
        };
        match number.magnitude() {
            Magnitude::Exact(value) => {
                let divides =
                    |divisor| number.integer && number.digits.checked_rem(divisor) == Some(0);
                value.abs() < EXACT
                    && lies_within(value, value)
                    && self.divisor.is_none_or(divides)
                    && self.one_of.as_ref().is_none_or(|values| {
                        values.binary_search_by(|it| it.total_cmp(&(value + 0.0))).is_ok()
                    })
            }
            Magnitude::Rounded(value) => {
                let margin = value.abs() * MARGIN;
                value.abs() < EXACT / 2.0
                    && lies_within(value - margin, value + margin)
                    && self.divisor.is_none()
                    && self.one_of.is_none()
            }
            Magnitude::Unknown => false,
        }
    }
}

/// Whether any rule accepts. Nearly always there is only one rule.
#[inline(always)]
pub(super) fn accepted<R>(rules: &[R], accepts: impl Fn(&R) -> bool) -> bool {
    match rules {
        [rule] => accepts(rule),
        rules => rules.iter().any(accepts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rest of `text` after its number, if the number is certainly between the limits.
    fn between(at_least: f64, at_most: f64, text: &str) -> Option<&[u8]> {
        let rule = NumberRule { compared: true, at_least, at_most, ..NumberRule::default() };
        WrittenNumber::check(&[rule], text.as_bytes())
    }

    #[test]
    fn numbers_have_the_same_value_as_in_the_standard_library() {
        for text in [
            "0",
            "-0",
            "7",
            "42",
            "1234567",
            "12345678",
            "123456789",
            "1234567890123456",
            "0.5",
            "-0.25",
            "3.14159265358979",
            "1e3",
            "1E+03",
            "25e-2",
            "1.5e10",
            "0.30000000000000004",
            "100.00",
            "-99.9",
            "12345678.123456789",
        ] {
            for tail in ["", ",", "]", " , 12345678"] {
                let whole = format!("{text}{tail}");
                let value: f64 = text.parse().unwrap();
                let margin = value.abs() * 1e-11;
                let rest = between(value - margin, value + margin, &whole);
                assert_eq!(rest, Some(tail.as_bytes()), "{text}");
                assert_eq!(between(value + margin + 1e-300, f64::MAX, &whole), None, "{text}");
                assert_eq!(between(f64::MIN, value - margin - 1e-300, &whole), None, "{text}");
                let rule = NumberRule { integer: true, ..NumberRule::default() };
                let integer = WrittenNumber::check(&[rule], whole.as_bytes()).is_some();
                assert_eq!(integer, !text.contains(['.', 'e', 'E']), "{text}");
            }
        }
        for beyond in ["9007199254740992", "123456789012345678", "1e22", "-1e99"] {
            assert_eq!(between(f64::MIN, f64::MAX, beyond), None, "{beyond}");
        }
    }

    #[test]
    fn digits_end_at_the_first_other_byte() {
        for other in (0..=255_u8).filter(|byte| !byte.is_ascii_digit()) {
            for at in 0..20 {
                let mut text = *b"12345678901234567890";
                text[at] = other;
                let (value, count) = read_digits(&text);
                assert_eq!(count, at, "{other}");
                let digits = std::str::from_utf8(&text[..at]).unwrap();
                assert_eq!(value, digits.parse().unwrap_or(0), "{other}");
            }
        }
    }

    #[test]
    fn text_that_is_not_a_number_is_rejected() {
        for text in
            ["", "-", "01", "-01", "1.", ".5", "1e", "1e+", "1e100", "+1", "x", &"9".repeat(41)]
        {
            let read = WrittenNumber::check(&[NumberRule::default()], text.as_bytes());
            assert!(read.is_none(), "{text}");
        }
    }
}
