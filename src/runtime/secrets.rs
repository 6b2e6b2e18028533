//! Masking of secrets in foreign text: the secret values of the config, the tokens of logins, and this server's own key.
//!
//! Finds a value in the encodings that programs use, and replaces it. Only exact values match: text that merely looks like a credential is
//! redacted by `activity::redact`, and `config` decides which values are secret. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_encode};

/// The replacement for a secret.
pub const MASKED: &str = "[redacted]";
/// Minimum length of a masked value. Shorter ones would match too many ordinary words and numbers.
pub const MIN_BYTES: usize = 6;
/// Number of values remembered in addition to those of the config: tokens are replaced, and a response may still quote the previous one.
pub(crate) const MAX_LEARNED: usize = 256;
/// Maximum length of a quotation of foreign text, in characters.
pub(crate) const QUOTED_CHARS: usize = 200;

/// The characters that `encodeURIComponent` encodes.
const COMPONENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'!')
    .remove(b'~')
    .remove(b'*')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')');
/// The characters that must be encoded in a query.
const QUERY: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>');

/// All secrets of one process. `Debug` does not show their values.
#[derive(Default)]
pub struct Secrets {
    known: Mutex<Known>,
    mask: ArcSwap<Mask>,
}

#[derive(Default)]
struct Known {
    fixed: BTreeSet<String>,
    /// The values of each holder, by the holder's number.
    held: BTreeMap<u64, BTreeSet<String>>,
    /// Values learned later, oldest first.
    learned: VecDeque<String>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

impl Secrets {
    /// Makes `values` secret permanently. Values shorter than [`MIN_BYTES`] are ignored.
    pub fn new(values: impl IntoIterator<Item = String>) -> Self {
        let fixed: BTreeSet<_> = values.into_iter().filter(|it| it.len() >= MIN_BYTES).collect();
        let known = Known { fixed, ..Known::default() };
        let mask = ArcSwap::from_pointee(known.mask());
        Self { known: Mutex::new(known), mask }
    }

    /// Replaces the permanent secrets. The previous ones stay secret like learned values, because text from before the change may still
    /// arrive.
    pub fn replace(&self, values: impl IntoIterator<Item = String>) {
        let fixed: BTreeSet<_> = values.into_iter().filter(|it| it.len() >= MIN_BYTES).collect();
        let mut known = self.known.lock();
        if known.fixed == fixed {
            return;
        }
        let is_new = fixed.iter().any(|value| !known.is_secret(value));
        let before = std::mem::replace(&mut known.fixed, fixed);
        let is_dropped = known.retire(before);
        self.renew(&known, is_new || is_dropped);
    }

    /// Makes `values` secret for as long as `holder` holds them. The holder's previous values stay secret like learned ones. If `values` is
    /// empty, the holder is removed.
    pub fn hold(&self, holder: u64, values: impl IntoIterator<Item = String>) {
        let values: BTreeSet<_> = values.into_iter().filter(|it| it.len() >= MIN_BYTES).collect();
        let mut known = self.known.lock();
        if known.held.get(&holder).map_or(values.is_empty(), |held| *held == values) {
            return;
        }
        let is_new = values.iter().any(|value| !known.is_secret(value));
        let before = match values.is_empty() {
            true => known.held.remove(&holder),
            false => known.held.insert(holder, values),
        };
        let is_dropped = known.retire(before.unwrap_or_default());
        self.renew(&known, is_new || is_dropped);
    }

    /// Makes `values` secret until [`MAX_LEARNED`] others have been learned after them.
    pub fn learn<'a>(&self, values: impl IntoIterator<Item = &'a str>) {
        let mut known = self.known.lock();
        let mut is_new = false;
        for value in values.into_iter().filter(|it| it.len() >= MIN_BYTES) {
            if !known.is_secret(value) {
                known.learned.push_back(value.to_owned());
                is_new = true;
            }
        }
        if is_new {
            let surplus = known.learned.len().saturating_sub(MAX_LEARNED);
            known.learned.drain(..surplus);
        }
        self.renew(&known, is_new);
    }

    /// Rebuilds the mask if the set of values has changed. Building it is slow for many values, and the start or end of a
    /// server usually changes nothing: its values are in the config or already learned.
    fn renew(&self, known: &Known, is_another: bool) {
        if is_another {
            self.mask.store(Arc::new(known.mask()));
        }
    }

    /// Masks each secret in the text. `cut` means that the text may have been truncated, so that a partial secret at its end is masked as
    /// well.
    pub fn mask<'a>(&self, text: &'a [u8], cut: bool) -> Cow<'a, [u8]> {
        let mask = self.mask.load();
        let hidden = mask.hidden(text, cut);
        if hidden.is_empty() {
            return Cow::Borrowed(text);
        }
        let mut out = Vec::with_capacity(text.len());
        let mut kept = 0;
        for Range { start, end } in hidden {
            out.extend_from_slice(text.get(kept..start).unwrap_or_default());
            out.extend_from_slice(MASKED.as_bytes());
            kept = end;
        }
        out.extend_from_slice(text.get(kept..).unwrap_or_default());
        Cow::Owned(out)
    }

    /// The beginning of a foreign text as one printable line of at most [`QUOTED_CHARS`] characters, without secrets.
    pub fn quote(&self, words: &[u8]) -> Arc<str> {
        self.quote_cut(words, false)
    }

    /// Same as [`quote`](Self::quote), for a text that may have been truncated.
    pub fn quote_cut(&self, words: &[u8], cut: bool) -> Arc<str> {
        let masked = self.mask(words, cut);
        let line = one_line(&String::from_utf8_lossy(&masked));
        // A removed character may have been inside a secret.
        let masked = self.mask(line.as_bytes(), cut);
        let line = String::from_utf8_lossy(&masked);
        match line.char_indices().nth(QUOTED_CHARS) {
            None => line.trim_end().into(),
            Some((end, _)) => {
                let start = line.get(..end).unwrap_or_default();
                format!("{start}…").into()
            }
        }
    }
}

/// Collapses each run of white space to one space and removes control characters.
fn one_line(words: &str) -> String {
    let mut line = String::with_capacity(words.len());
    for char in words.chars() {
        let char = if char.is_whitespace() { ' ' } else { char };
        if !(char.is_control() || (char == ' ' && (line.is_empty() || line.ends_with(' ')))) {
            line.push(char);
        }
    }
    line.truncate(line.trim_end().len());
    line
}

impl Known {
    /// Whether the value stays secret regardless of how many others are learned.
    fn stays(&self, value: &str) -> bool {
        self.fixed.contains(value) || self.held.values().any(|held| held.contains(value))
    }

    /// Whether the value is secret now, for any reason.
    fn is_secret(&self, value: &str) -> bool {
        self.stays(value) || self.learned.iter().any(|it| it == value)
    }

    /// Moves values that are no longer permanent or held to the learned ones. Returns true if older learned values had to be dropped to
    /// make room.
    fn retire(&mut self, before: BTreeSet<String>) -> bool {
        let mut learned = std::mem::take(&mut self.learned);
        learned.extend(before);
        learned.retain(|value| !self.stays(value));
        let surplus = learned.len().saturating_sub(MAX_LEARNED);
        learned.drain(..surplus);
        self.learned = learned;
        surplus > 0
    }

    fn mask(&self) -> Mask {
        let held = self.held.values().flatten();
        let values = self.fixed.iter().chain(held).chain(&self.learned);
        let forms: BTreeSet<Vec<u8>> = values.flat_map(|value| forms(value)).collect();
        if forms.is_empty() {
            return Mask::Nothing;
        }
        let forms: Vec<Vec<u8>> = forms.into_iter().collect();
        let finder = AhoCorasick::builder().match_kind(MatchKind::Standard).build(&forms);
        match finder {
            Ok(finder) => Mask::These { finder: Box::new(finder), forms },
            Err(_) => Mask::Everything,
        }
    }
}

#[derive(Default)]
enum Mask {
    #[default]
    Nothing,
    These {
        finder: Box<AhoCorasick>,
        forms: Vec<Vec<u8>>,
    },
    /// There are too many secrets to search for: everything is masked.
    Everything,
}

impl Mask {
    /// The ranges to mask, sorted and disjoint.
    fn hidden(&self, text: &[u8], cut: bool) -> Vec<Range<usize>> {
        let (finder, forms) = match self {
            Self::Nothing => return Vec::new(),
            Self::Everything => return std::iter::once(0..text.len()).collect(),
            Self::These { finder, forms } => (finder, forms),
        };
        // Secrets may overlap: the union is masked.
        let mut found: Vec<_> =
            finder.find_overlapping_iter(text).map(|found| found.range()).collect();
        if cut {
            let begun = forms.iter().map(|form| begun(text, form)).max().unwrap_or_default();
            found.extend((begun > 0).then(|| text.len() - begun..text.len()));
        }
        found.sort_unstable_by_key(|range| range.start);
        found.dedup_by(|next, last| {
            let joins = next.start <= last.end;
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        found
    }
}

/// Length of the longest proper prefix of `form` with which the text ends.
fn begun(text: &[u8], form: &[u8]) -> usize {
    let longest = form.len().saturating_sub(1).min(text.len());
    let ends = |length: &usize| form.get(..*length).is_some_and(|start| text.ends_with(start));
    (1..=longest).rev().find(ends).unwrap_or_default()
}

/// The forms in which programs write a value: raw, in URLs, JSON, HTML and base64.
fn forms(value: &str) -> Vec<Vec<u8>> {
    let bytes = value.as_bytes();
    let mut forms = vec![bytes.to_vec()];
    for set in [NON_ALPHANUMERIC, COMPONENT, QUERY] {
        let encoded = percent_encode(bytes, set).to_string();
        forms.push(lower_hex(&encoded).into_bytes());
        // HTML forms write a space as `+`.
        forms.push(encoded.replace("%20", "+").into_bytes());
        forms.push(encoded.into_bytes());
    }
    let once = json(value);
    // JSON text inside a JSON string:
    let twice = once.iter().flat_map(|text| json(text)).collect::<Vec<_>>();
    forms.extend(once.into_iter().chain(twice).map(String::into_bytes));
    for quote in ["&#39;", "&#x27;", "&apos;"] {
        let text = value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        forms.push(text.replace('\'', quote).into_bytes());
        forms.push(text.replace('"', "&quot;").replace('\'', quote).into_bytes());
        forms.push(text.replace('"', "&#34;").replace('\'', quote).into_bytes());
    }
    // Within a longer text, the value begins at one of three positions of a base64 group; the characters that it shares with its neighbors
    // are left out.
    for (before, shared) in [(0, 0), (1, 2), (2, 3)] {
        let mut group = vec![0; before];
        group.extend_from_slice(bytes);
        let whole = group.len() % 3 == 0;
        for alphabet in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            let text = alphabet.encode(&group);
            let end = text.len() - usize::from(!whole);
            forms.extend(text.get(shared..end).map(|core| core.as_bytes().to_vec()));
        }
    }
    forms.retain(|form| form.len() >= MIN_BYTES);
    forms
}

/// Lowercases percent escapes: `%AF` becomes `%af`.
fn lower_hex(encoded: &str) -> String {
    let mut after = usize::MAX;
    let lower = encoded.chars().map(|char| {
        after = if char == '%' { 0 } else { after.saturating_add(1) };
        if matches!(after, 1 | 2) { char.to_ascii_lowercase() } else { char }
    });
    lower.collect()
}

/// Content of a string as JSON encoders write it: with the fewest escapes, with HTML characters escaped, with slashes escaped, and in ASCII
/// only.
fn json(value: &str) -> Vec<String> {
    let write = |escape: &dyn Fn(char) -> bool| {
        let mut text = String::new();
        for char in value.chars() {
            match char {
                '"' | '\\' => text.extend(['\\', char]),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\t' => text.push_str("\\t"),
                char if char.is_control() || escape(char) => {
                    let units = char.encode_utf16(&mut [0; 2]).to_vec();
                    text.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
                }
                char => text.push(char),
            }
        }
        text
    };
    let html = |char| matches!(char, '<' | '>' | '&');
    let plain = write(&|_| false);
    let slashes = plain.replace('/', "\\/");
    let ascii = write(&|char| !char.is_ascii());
    vec![write(&html), write(&|char| html(char) || char == '\''), ascii, slashes, plain]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        Secrets::new(values.iter().map(|value| (*value).to_owned()))
    }

    fn masked(secrets: &Secrets, text: &str) -> String {
        String::from_utf8(secrets.mask(text.as_bytes(), false).into_owned()).unwrap()
    }

    #[test]
    fn replaced_values_stay_secret_for_a_while() {
        let secrets = Secrets::new(["first-value".to_owned(), "stays-value".to_owned()]);
        secrets.replace(["second-value".to_owned(), "stays-value".to_owned()]);
        let masked = secrets.mask(b"first-value stays-value second-value", false);
        assert_eq!(*masked, *b"[redacted] [redacted] [redacted]");
        for number in 0..=MAX_LEARNED {
            secrets.replace([format!("value-{number:04}"), "stays-value".to_owned()]);
        }
        let masked = secrets.mask(b"first-value stays-value value-0256 value-0255", false);
        assert_eq!(*masked, *b"first-value [redacted] [redacted] [redacted]");
    }

    #[test]
    fn held_values_stay_secret_while_held_and_for_a_while_after() {
        let secrets = secrets(&["fixed-value"]);
        secrets.hold(1, ["held-value".to_owned(), "fixed-value".to_owned(), "five5".to_owned()]);
        secrets.hold(2, ["held-value".to_owned(), "other-value".to_owned()]);
        let more: Vec<String> = (0..=MAX_LEARNED).map(|n| format!("token-{n}!")).collect();
        secrets.learn(more.iter().map(String::as_str));
        assert_eq!(masked(&secrets, "held-value other-value"), "[redacted] [redacted]");
        secrets.hold(1, []);
        secrets.learn(more.iter().map(String::as_str));
        assert_eq!(masked(&secrets, "held-value fixed-value"), "[redacted] [redacted]");
        secrets.hold(2, ["next-value".to_owned()]);
        let now = "held-value other-value next-value";
        assert_eq!(masked(&secrets, now), "[redacted] [redacted] [redacted]");
        let others: Vec<String> = more.iter().map(|value| format!("another-{value}")).collect();
        secrets.learn(others.iter().map(String::as_str));
        assert_eq!(masked(&secrets, now), "held-value other-value [redacted]");
    }

    #[test]
    fn mask_is_rebuilt_only_when_the_set_of_values_changes() {
        let secrets = secrets(&["fixed-value"]);
        let is_rebuilt = |change: &dyn Fn()| {
            let before = secrets.mask.load_full();
            change();
            !Arc::ptr_eq(&before, &secrets.mask.load_full())
        };
        let hold = |holder: u64, values: &[&str]| {
            is_rebuilt(&|| secrets.hold(holder, values.iter().map(|it| (*it).to_owned())))
        };
        assert!(!hold(1, &["fixed-value", "five5"]), "all values are already secret");
        assert!(hold(1, &["fixed-value", "held-value"]));
        assert!(!hold(2, &["held-value"]));
        assert!(!hold(1, &[]) && !hold(2, &[]), "the value stays secret for a while");
        assert!(!hold(3, &["held-value"]) && !hold(3, &[]));
        assert_eq!(masked(&secrets, "fixed-value held-value"), "[redacted] [redacted]");
        let replaced =
            |values: [&str; 2]| is_rebuilt(&|| secrets.replace(values.map(str::to_owned)));
        assert!(!replaced(["fixed-value", "held-value"]));
        assert!(replaced(["fixed-value", "other-value"]));
        // One value more than the maximum of learned values, so that the oldest is dropped.
        let more: Vec<String> = (0..MAX_LEARNED).map(|n| format!("token-{n}!")).collect();
        assert!(is_rebuilt(&|| secrets.learn(more.iter().map(String::as_str))));
        assert!(!is_rebuilt(&|| secrets.learn(more.iter().map(String::as_str))));
        assert!(hold(4, &["last-value"]) && hold(4, &[]), "the oldest value is dropped");
        assert_eq!(
            masked(&secrets, "last-value token-0! token-1!"),
            "[redacted] token-0! [redacted]"
        );
    }

    #[test]
    fn mask_replaces_only_the_secret_at_any_position() {
        let secrets = secrets(&["s3cr3t-token", "short"]);
        for (text, expected) in [
            ("s3cr3t-token", "[redacted]"),
            ("a s3cr3t-tokens3cr3t-token b", "a [redacted] b"),
            ("x=s3cr3t-token;s3cr3t-toke", "x=[redacted];s3cr3t-toke"),
            ("short", "short"),
            ("", ""),
        ] {
            assert_eq!(masked(&secrets, text), expected);
        }
        assert!(matches!(secrets.mask(b"plain words", false), Cow::Borrowed(_)));
        assert!(!format!("{secrets:?}").contains("s3cr3t"));
    }

    #[test]
    fn mask_removes_overlapping_and_nested_secrets_completely() {
        let secrets = secrets(&["abcdefgh", "efghijkl", "abcdefghijklmnop", "mnopqrst"]);
        assert_eq!(masked(&secrets, "<abcdefghijkl>"), "<[redacted]>");
        assert_eq!(masked(&secrets, "<abcdefghijklmnopqrst>"), "<[redacted]>");
        assert_eq!(masked(&secrets, "abcdefgh-mnopqrst"), "[redacted]-[redacted]");
    }

    #[test]
    fn encoded_secrets_are_masked() {
        let secrets = secrets(&["pä\"s/s<w>&\\ö'rd 1"]);
        for form in [
            "pä\"s/s<w>&\\ö'rd 1",
            "p%C3%A4%22s%2Fs%3Cw%3E%26%5C%C3%B6%27rd%201",
            "p%c3%a4%22s%2fs%3cw%3e%26%5c%c3%b6%27rd%201",
            "p%C3%A4%22s%2Fs%3Cw%3E%26%5C%C3%B6'rd%201",
            "p%C3%A4%22s%2Fs%3Cw%3E%26%5C%C3%B6%27rd+1",
            r#"pä\"s/s<w>&\\ö'rd 1"#,
            r#"pä\"s\/s<w>&\\ö'rd 1"#,
            r#"pä\"s/s\u003cw\u003e\u0026\\ö'rd 1"#,
            r#"p\u00e4\"s/s<w>&\\\u00f6'rd 1"#,
            r#"pä\\\"s/s<w>&\\\\ö'rd 1"#,
            "pä&quot;s/s&lt;w&gt;&amp;\\ö&#39;rd 1",
            "pä\"s/s&lt;w&gt;&amp;\\ö&#x27;rd 1",
        ] {
            assert_eq!(masked(&secrets, &format!("<{form}>")), "<[redacted]>", "{form}");
        }
    }

    #[test]
    fn base64_secret_at_any_offset_is_masked() {
        for value in ["hunter", "hunter2", "hunter22", "h?nt~r>22", "a much longer secret"] {
            let secrets = secrets(&[value]);
            for before in 0..6 {
                for after in 0..4 {
                    let text = format!("{}{value}{}", "u".repeat(before), "v".repeat(after));
                    for alphabet in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                        let encoded = alphabet.encode(&text);
                        let shown = masked(&secrets, &encoded);
                        assert!(shown.contains(MASKED), "{text}: {shown}");
                        // Only the characters shared with the neighbors may be left.
                        let left = encoded.len() - (4 * value.len()).div_ceil(3).saturating_sub(3);
                        assert!(shown.len() - MASKED.len() <= left, "{text}: {shown}");
                    }
                }
            }
        }
    }

    #[test]
    fn mask_covers_the_beginning_of_a_truncated_secret() {
        let secrets = secrets(&["s3cr3t-token"]);
        for cut in 1.."s3cr3t-token".len() {
            let text = format!("key {}", &"s3cr3t-token"[..cut]);
            assert_eq!(&*secrets.mask(text.as_bytes(), true), b"key [redacted]");
            assert_eq!(&*secrets.mask(text.as_bytes(), false), text.as_bytes());
        }
    }

    #[test]
    fn any_quoted_text_is_one_printable_bounded_line() {
        let none = Secrets::default();
        assert_eq!(&*none.quote(b"\n <h1>\tBad\x1b[31m\x00 </h1>\n"), "<h1> Bad[31m </h1>");
        assert_eq!(&*none.quote(b"\xff!"), "\u{fffd}!");
        let long = none.quote("é".repeat(500).as_bytes());
        assert_eq!(long.chars().count(), QUOTED_CHARS + 1);
    }

    #[test]
    fn quoting_neither_splits_nor_joins_a_secret_at_the_limit() {
        let secrets = secrets(&["s3cr3t-token"]);
        for before in QUOTED_CHARS - 14..QUOTED_CHARS + 2 {
            let text = format!("{}s3cr3t-token and more", "x".repeat(before));
            let quoted = secrets.quote(text.as_bytes());
            assert!(!quoted.contains("s3"), "{quoted}");
        }
        assert_eq!(&*secrets.quote(b"a s3cr\x003t-\x07token b"), "a [redacted] b");
    }

    #[test]
    fn learned_values_are_masked_and_their_number_is_bounded() {
        let secrets = secrets(&["fixed-secret"]);
        secrets.learn(["token-0", "five5"]);
        assert_eq!(masked(&secrets, "token-0 five5"), "[redacted] five5");
        let more: Vec<String> = (1..=MAX_LEARNED).map(|n| format!("token-{n}!")).collect();
        secrets.learn(more.iter().map(String::as_str));
        assert_eq!(masked(&secrets, "token-0"), "token-0");
        assert_eq!(masked(&secrets, "fixed-secret token-256!"), "[redacted] [redacted]");
        assert_eq!(secrets.known.lock().learned.len(), MAX_LEARNED);
    }
}
